"""Part files in which several transactions are gathered."""

from __future__ import annotations

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.connectors.files.transactions import RollingWriter
from jetlet.errors import InvalidArgumentError
from jetlet.log import Log
from jetlet.pipeline.sink import TransactionId, WriterPlace
from jetlet.storage.file_systems import LocalStorage

PLACE = WriterPlace("run", "sink", "1", 0, 1)


class Writer:
    """A writer of a sink, by a clock that stands until it is moved."""

    def __init__(self, sink, place=PLACE):
        sink.begin("run")
        self.sink = sink
        self.now_ms = 0
        self.writer = RollingWriter(sink, place, sink.roll_policy, lambda: self.now_ms * 1_000_000)
        self.number = 0

    def prepare(self, items):
        self.writer.begin(TransactionId("run", "sink", self.number, 0, "1"))
        self.number += 1
        if items:
            self.writer.write(items)
        return self.writer.prepare()

    def commit(self, *items):
        prepared = self.prepare(items)
        self.writer.commit(prepared)
        return prepared


def parts(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("part-*"))


FORMATS = {
    "text": (sinks.text, sources.text, ["a", "b", "c"], {}),
    "compressed text": (sinks.text, sources.text, ["a", "b", "c"], {"compression": "gzip"}),
    "csv": (sinks.csv, sources.csv, [{"x": n, "y": "2\n"} for n in "abc"], {}),
    "compressed csv": (
        sinks.csv,
        sources.csv,
        [{"a\r": n} for n in "abc"],
        {"compression": "xz", "encoding": "utf-16-le"},
    ),
    "json lines": (sinks.json_lines, sources.json_lines, [{"x": 1}, [123456], "text"], {}),
    "parquet": (sinks.parquet, sources.parquet, [{"x": n} for n in (1, 2, 3)], {}),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_transactions_become_one_file_when_it_is_large_enough(kind, tmp_path, read_all):
    make_sink, make_source, items, options = FORMATS[kind]
    probe = Writer(make_sink(tmp_path / "probe", roll_size=1, **options))
    probe.commit(items[0])
    [first] = (tmp_path / "probe").glob("part-*")
    size = 2 * first.stat().st_size + 1
    writer = Writer(make_sink(tmp_path / "out", roll_size=size, **options))
    for item in items[:-1]:
        writer.commit(item)
        assert parts(tmp_path / "out") == []
        assert writer.writer.holds_back
    writer.commit(items[-1])
    assert not writer.writer.holds_back
    [part] = (tmp_path / "out").glob("part-*")
    keeps = {"encoding": options["encoding"]} if "encoding" in options else {}
    if "csv" in kind:
        keeps["multiline"] = True
    assert read_all(make_source(str(part), **keeps)) == items


def test_a_file_is_published_when_its_first_items_have_waited_long_enough(tmp_path, read_all):
    writer = Writer(sinks.text(tmp_path, roll_interval="1min"))
    writer.commit("a")
    writer.now_ms = 59_999
    writer.commit("b")
    assert parts(tmp_path) == []
    writer.now_ms = 60_000
    writer.commit()  # nothing has come, and the file is not to wait for what does
    assert len(parts(tmp_path)) == 1
    assert read_all(sources.text(tmp_path)) == ["a", "b"]


def test_each_directory_has_a_file_of_its_own_size(tmp_path, read_all):
    writer = Writer(sinks.json_lines(tmp_path, partition_by="day", roll_size=30))
    for n in range(3):
        writer.commit({"day": "mon", "n": n, "text": "long"}, {"day": "tue", "n": n})
    assert [name.partition("/")[0] for name in parts(tmp_path)] == ["day=mon"]
    writer.commit({"day": "tue", "n": 3})
    assert [name.partition("/")[0] for name in parts(tmp_path)] == ["day=mon", "day=tue"]
    assert len(read_all(sources.json_lines(tmp_path / "day=tue"))) == 4


@pytest.mark.parametrize(
    ("make", "first", "second"),
    [
        (sinks.csv, {"x": 1}, {"y": 2}),
        (sinks.parquet, {"x": 1}, {"x": "text"}),
    ],
    ids=["csv", "parquet"],
)
def test_what_has_another_header_or_schema_goes_to_another_file(tmp_path, make, first, second):
    writer = Writer(make(tmp_path, roll_interval=1))
    writer.commit(first)
    writer.commit(first)
    writer.commit(second)
    writer.now_ms = 1
    writer.commit()
    assert len(parts(tmp_path)) == 2


def test_a_snapshot_that_failed_is_made_up_for_by_the_next_one(tmp_path, read_all):
    writer = Writer(sinks.text(tmp_path, roll_size=3))
    failed = writer.prepare("ab")
    writer.writer.commit(failed)
    writer.commit("c")
    writer.commit("d")
    assert read_all(sources.text(tmp_path)) == ["a", "b", "c", "d"]


def test_restart_publishes_what_the_snapshot_has_and_drops_the_rest(tmp_path, read_all):
    sink = sinks.text(tmp_path, roll_size="1 MB")
    writer = Writer(sink)
    writer.commit("a")
    saved = writer.prepare("b")
    writer.prepare("never recorded")
    for attempt in ("2", "3"):
        successor = sink.open_transactional(WriterPlace("run", "sink", attempt, 0, 1))
        successor.recover([saved])
        assert read_all(sources.text(tmp_path)) == ["a", "b"]
    assert len(parts(tmp_path)) == 1
    assert [path.name for path in (tmp_path / ".jetlet-run").iterdir()] == [".begun"]


def test_sink_without_the_policy_goes_on_from_a_snapshot_with_it(tmp_path, read_all):
    writer = Writer(sinks.text(tmp_path, roll_size="1 MB"))
    saved = writer.commit("a", "b")
    plain = sinks.text(tmp_path).open_transactional(WriterPlace("run", "sink", "2", 0, 1))
    plain.recover([saved])
    assert read_all(sources.text(tmp_path)) == ["a", "b"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it closes nothing
@pytest.mark.parametrize("step", ["create", "close_durably", "move", "remove", "move_again"])
@pytest.mark.parametrize("time", ["before", "behind"])
def test_joining_that_was_interrupted_is_done_again(tmp_path, read_all, monkeypatch, step, time):
    """At the first of these steps; all of them are tried at random with other transactions."""
    writer = Writer(sinks.text(tmp_path, roll_size=4))
    writer.commit("a")
    due = writer.prepare("b")
    original = getattr(LocalStorage, step)

    def crash(*args):
        if time == "behind":
            original(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, step, crash)
        with pytest.raises(KeyboardInterrupt):
            writer.writer.commit(due)
    for attempt in ("2", "3"):
        successor = writer.sink.open_transactional(WriterPlace("run", "sink", attempt, 0, 1))
        successor.recover([due])
        assert read_all(sources.text(tmp_path)) == ["a", "b"]


def test_end_of_a_job_publishes_all(tmp_path, read_all):
    sink = sinks.text(tmp_path, roll_size="1 MB")
    writer = Writer(sink)
    pending = writer.prepare("a")
    last = writer.prepare("b")
    for prepared in (pending, last):
        writer.writer.keep(prepared)
    for _ in range(2):
        sink.commit_last("run", "sink", [pending, last])
        assert read_all(sources.text(tmp_path)) == ["a", "b"]
    assert len(parts(tmp_path)) == 1


def stream(directory, out, **options):
    p = Pipeline("numbers")
    source = p.read_from(sources.log(directory, serializer="json")).without_timestamps()
    source.write_to(sinks.json_lines(out, **options), name="write")
    return p


def test_a_stream_makes_fewer_files_than_snapshots(tmp_path, read_all):
    out = tmp_path / "out"
    with Log(tmp_path / "in", partitions=1, serializer="json") as log:
        config = JobConfig(
            processing_guarantee="exactly-once", snapshot_interval=0.01, snapshot_dir=tmp_path / "s"
        )
        with EmbeddedEngine() as engine:
            job = engine.submit(stream(tmp_path / "in", out, roll_size=50), config)
            for number in range(40):
                log.append([number])
                taken = job.metrics().snapshots.get("taken", 0)
                while job.metrics().snapshots.get("taken", 0) < taken + 2:
                    assert not job.status.is_final, job.error
            job.cancel()
    found = read_all(sources.json_lines(out))
    assert found == list(range(len(found)))
    assert len(found) >= 20  # less than one file's worth is held back
    assert len(parts(out)) < 10


def test_a_stream_without_guarantee_shows_all_when_it_is_cancelled(tmp_path, read_all):
    out = tmp_path / "out"
    with Log(tmp_path / "in", partitions=1, serializer="json") as log:
        log.append([1, 2, 3])
    with EmbeddedEngine() as engine:
        job = engine.submit(stream(tmp_path / "in", out, roll_size="1 MB"))
        while "write" not in job.metrics() or job.metrics()["write"].received < 3:
            assert not job.status.is_final, job.error
        job.cancel()
    assert read_all(sources.json_lines(out)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda out: sinks.text(out, roll_size="big"), "roll_size is a number of bytes"),
        (lambda out: sinks.csv(out, roll_interval="soon"), "roll_interval is a duration"),
        (lambda out: sinks.text(out, roll_size=9, encoding="utf-16"), "begins with a mark"),
    ],
)
def test_mistakes_say_what_to_write(tmp_path, make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make(tmp_path)
