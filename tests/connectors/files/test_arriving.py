"""sources.files_stream: each file of a growing directory is read once."""

from __future__ import annotations

import gzip
import json
import logging
import pickle
import random
import time

import cloudpickle
import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.connectors.files.arriving import FORGET_MS
from jetlet.core.processor import ProcessorContext
from jetlet.errors import BadRecordError, InputNotFoundError, InvalidArgumentError
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.testing import assert_collected_eventually, verify_processor
from jetlet.testing.clock import ManualClock


class Reading:
    """A reader and its clock: ``items()`` is what is found after another interval."""

    def __init__(self, source, saved=None):
        self.clock = ManualClock(1_000_000)
        there = pickle.loads(cloudpickle.dumps(source))
        self.reader = there.open(source.partitions(), ProcessorContext(clock=self.clock))
        if saved is not None:
            self.reader.restore(pickle.loads(pickle.dumps(saved)))

    def items(self, limit=1000, ms=1000):
        self.clock.advance(ms=ms)
        found = []
        while polled := self.reader.poll(limit):
            found += [item for each in polled for item in each.items]
        return found


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "in"
    directory.mkdir()
    return directory


@pytest.fixture
def read(directory):
    """Opens readers, and closes them."""
    opened = []

    def open_reader(saved=None, source=None, **options):
        files = source or sources.text(directory / "*.txt", split_size=64)
        opened.append(Reading(sources.files_stream(files, **options), saved))
        return opened[-1]

    yield open_reader
    for each in opened:
        each.reader.close()


def test_files_that_are_there_and_files_that_arrive_are_read_once(directory, read):
    (directory / "b.txt").write_text("3\n4\n")
    (directory / "a.txt").write_text("1\n2\n")
    reading = read()
    assert reading.items() == ["1", "2", "3", "4"]
    assert reading.reader.is_quiet(0)
    assert reading.items() == []
    (directory / "0.txt").write_text("5\n")
    (directory / "_hidden.txt").write_text("no\n")
    assert reading.items(ms=10) == []
    assert reading.items() == ["5"]
    (directory / "0.txt").write_text("5\n6\n")
    assert reading.items() == []


def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path, read):
    reading = read(source=sources.text(tmp_path / "later"))
    assert reading.items() == []
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a.txt").write_text("1\n")
    assert reading.items() == ["1"]


def test_restored_at_any_point_it_goes_on_behind_it(directory, read):
    rng = random.Random(7)
    lines = [f"line {n} {'x' * rng.randrange(30)}" for n in range(500)]
    for index in range(0, 500, 50):
        (directory / f"{index:03}.txt").write_text("\n".join(lines[index : index + 50]) + "\n")
    found, saved = [], None
    while len(found) < len(lines):
        reading = read(saved)
        reading.clock.advance(ms=1000)
        for _ in range(rng.randrange(1, 4)):
            for polled in reading.reader.poll(rng.randrange(1, 70)):
                found += polled.items
        saved = reading.reader.save()
    assert found == lines
    assert read(saved).items() == []


def test_partitions_share_the_files(directory, read):
    for n in range(40):
        (directory / f"{n}.txt").write_text(f"{n}\n")
    source = sources.files_stream(sources.text(directory), partitions=3)
    parts = []
    for number in source.partitions():
        reader = source.open([number], ProcessorContext(clock=ManualClock(0)))
        parts.append({item for polled in reader.poll(1000) for item in polled.items})
        reader.close()
    assert all(parts)
    assert sorted(map(int, set.union(*parts))) == list(range(40))
    assert sum(map(len, parts)) == 40
    assert sorted(map(int, read(partitions=3).items())) == list(range(40))


def test_what_was_read_may_be_removed_and_its_name_comes_again_later(directory, read):
    (directory / "a.txt").write_text("1\n")
    reading = read()
    assert reading.items() == ["1"]
    (directory / "a.txt").unlink()
    assert reading.items() == []
    (directory / "a.txt").write_text("missing for a moment\n")
    assert reading.items() == []
    (directory / "a.txt").unlink()
    assert reading.items() == []
    assert reading.items(ms=FORGET_MS) == []
    assert reading.reader.save() == [([], None)]
    (directory / "a.txt").write_text("2\n")
    assert reading.items() == ["2"]


def test_a_file_that_is_gone_before_it_is_read_is_told(directory, read, caplog):
    (directory / "a.txt").write_text("1\n")
    (directory / "b.txt").write_text("2\n")
    reading = read()
    reading.clock.advance(ms=1000)
    with caplog.at_level(logging.WARNING):
        assert [each.items for each in reading.reader.poll(1)] == [["1"]]
        (directory / "b.txt").unlink()
        assert reading.items() == []
    assert "b.txt was removed before it was read" in caplog.text


def test_a_file_that_is_gone_in_the_middle_of_it_is_an_error(directory, read):
    (directory / "a.txt").write_text("1\n" * 3000)
    reading = read()
    reading.clock.advance(ms=1000)
    reading.reader.poll(1)
    saved = reading.reader.save()
    (directory / "a.txt").unlink()
    with pytest.raises((InputNotFoundError, FileNotFoundError), match=r"a\.txt"):
        read(saved).items()


@pytest.mark.parametrize("kind", ["csv", "json_lines", "parquet", "gz"])
def test_all_kinds_of_files(kind, directory, read):
    rows = [{"n": str(n)} for n in range(3)]
    if kind == "csv":
        (directory / "a").write_text("n\n0\n1\n2\n")
        source = sources.csv(directory)
    elif kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), directory / "a", row_group_size=1)
        source = sources.parquet(directory)
    else:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        name, data = ("a.gz", gzip.compress(data)) if kind == "gz" else ("a", data)
        (directory / name).write_bytes(data)
        source = sources.json_lines(directory)
    assert [dict(item) for item in read(source=source).items()] == rows


def test_keys_of_directories_are_fields(directory, read):
    (directory / "day=1").mkdir()
    (directory / "day=1" / "a.jsonl").write_text('{"n": 1}\n')
    assert read(source=sources.json_lines(directory)).items() == [{"n": 1, "day": "1"}]


def test_bad_records_go_where_they_are_sent(directory):
    (directory / "a.jsonl").write_text('{"n": 1}\nbad\n{"n": 2}\n')
    p, good, bad = Pipeline("bad"), sinks.collect(), sinks.collect()
    stream = sources.files_stream(sources.json_lines(directory, on_error=bad), interval=10)
    p.read_from(stream).without_timestamps().write_to(good)
    with EmbeddedEngine() as engine:
        job = engine.submit(p)
        assert_collected_eventually(job, good, [{"n": 1}, {"n": 2}], timeout=60)
        assert_collected_eventually(job, bad, lambda letters: len(letters) == 1, timeout=60)
        job.cancel()
    assert bad.items[0].item.line == 2


def test_bad_records_fail_the_job_if_nothing_else_is_said(directory, read):
    (directory / "a.jsonl").write_text("bad\n")
    with pytest.raises(BadRecordError, match=r"a\.jsonl"):
        read(source=sources.json_lines(directory)).items()


@pytest.mark.parametrize("members", [1, pytest.param(2, marks=pytest.mark.cluster)])
def test_a_job_that_is_restarted_misses_nothing_and_repeats_nothing(members, directory, tmp_path):
    def submit(engine):
        p = Pipeline("arriving")
        stream = sources.files_stream(sources.text(directory), interval=20, partitions=2)
        p.read_from(stream).without_timestamps().map(int).write_to(sinks.log(tmp_path / "out"))
        config = JobConfig(
            processing_guarantee="exactly-once",
            snapshot_dir=str(tmp_path / "state"),
            snapshot_interval=0.05,
        )
        return engine.submit(p, config)

    def write(numbers):
        for n in numbers:
            (directory / f".{n}").write_text(f"{n * 10}\n{n * 10 + 1}\n")
            (directory / f".{n}").rename(directory / f"{n}")

    def written():
        p, out = Pipeline("written"), sinks.collect()
        stream = sources.log(tmp_path / "out", until="end")
        p.read_from(stream).without_timestamps().write_to(out)
        p.run(on="embedded")
        return sorted(out.items)

    expected = []
    with EmbeddedEngine(members=members) as engine:
        job = submit(engine)
        for start in range(0, 30, 10):
            write(range(start, start + 10))
            expected += [n * 10 + i for n in range(start, start + 10) for i in (0, 1)]
            if start == 10:
                job.restart()
            elif start == 20:
                job.suspend()
                job.resume()
        assert_eventually(lambda: written() == expected)
        job.cancel()
    assert written() == expected


def assert_eventually(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_as_a_processor(directory):
    (directory / "a.txt").write_text("one\ntwo\n")
    supplier = StreamReadSupplier(
        sources.files_stream(sources.text(directory), interval=1), Timestamps()
    )
    supplier.prepare(1)
    verify_processor(supplier, expect_output=["one", "two"], endless=True, may_wait=True)


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"files": "in"}, r"sources\.json_lines"),
        ({"files": sources.items([1])}, r"sources\.json_lines"),
        ({"interval": 0}, "interval"),
        ({"partitions": 0}, "partitions"),
        ({"name": ""}, "name"),
    ],
)
def test_mistakes_are_refused(options, instead):
    with pytest.raises(InvalidArgumentError, match=instead):
        sources.files_stream(**{"files": sources.text("in"), **options})
