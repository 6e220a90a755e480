from __future__ import annotations

import errno
import pickle
import random

import pytest

from jetlet import sinks, sources
from jetlet.errors import InvalidArgumentError, JobFailedError, OutputExistsError
from jetlet.storage import file_systems as storage


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def start(sink, run_id, writer_id, items):
    writer = sink.open(run_id, writer_id)
    writer.write(items)
    return writer


class TestCommit:
    def test_output_is_a_directory_of_parts(self, tmp_path, write_all, tree):
        out = tmp_path / "deep" / "out"
        write_all(sinks.text(out), ["a"], ["b", "c"])
        assert tree(out) == {
            "_SUCCESS": b"",
            "part-00000.txt": b"a\n",
            "part-00001.txt": b"b\nc\n",
        }
        assert names(out) == ["_SUCCESS", "part-00000.txt", "part-00001.txt"]

    def test_parts_are_numbered_by_the_order_of_writers(self, tmp_path):
        sink = sinks.text(tmp_path)
        sink.begin("run")
        ids = [f"v/{i}-{attempt}" for i in range(12) for attempt in (0, 1)]
        messages = [start(sink, "run", id, [id]).finish() for id in ids]
        random.Random(5).shuffle(messages)
        sink.commit("run", messages)
        written = [(tmp_path / f"part-{i:05}.txt").read_text().strip() for i in range(24)]
        assert written == ids

    def test_writers_without_items_leave_no_part(self, tmp_path, write_all):
        write_all(sinks.csv(tmp_path, header=["x"]), [], [(1,)], [])
        assert names(tmp_path) == ["_SUCCESS", "part-00000.csv"]

    def test_empty_output_still_makes_the_directory(self, tmp_path, write_all, read_all):
        out = tmp_path / "out"
        write_all(sinks.csv(out), [], [])
        assert names(out) == ["_SUCCESS"]
        assert read_all(sources.csv(out)) == []
        write_all(sinks.csv(out))
        assert names(out) == ["_SUCCESS"]

    def test_only_files_of_the_named_writers_count(self, tmp_path, tree):
        sink = sinks.text(tmp_path)
        sink.begin("run")
        start(sink, "run", "w-0-attempt-0", ["twice"]).finish()
        message = start(sink, "run", "w-0-attempt-1", ["once"]).finish()
        lost = start(sink, "run", "w-1-attempt-0", ["half"])
        sink.commit("run", [message])
        assert tree(tmp_path) == {"_SUCCESS": b"", "part-00000.txt": b"once\n"}
        lost.abort()

    def test_attempts_have_files_of_their_own(self, tmp_path):
        sink = sinks.text(tmp_path)
        sink.begin("run")
        first = start(sink, "run", "w", ["x"])
        with pytest.raises(FileExistsError):
            start(sink, "run", "w", ["y"])
        first.abort()
        sink.abort("run")

    def test_nothing_is_visible_before(self, tmp_path, write_all, read_all):
        out = tmp_path / "out"
        write_all(sinks.text(out), ["old"], ["older"], run_id="first")
        before = {p: (out / p).read_bytes() for p in names(out)}
        sink = sinks.text(out)
        sink.begin("second")
        writer = start(sink, "second", "w", ["new"])
        message = writer.finish()
        now = {p: (out / p).read_bytes() for p in names(out) if not p.startswith(".")}
        assert now == before
        assert read_all(sources.text(out)) == ["old", "older"]
        assert read_all(sources.text(f"{out}/**")) == ["old", "older"]
        sink.commit("second", [message])
        assert names(out) == ["_SUCCESS", "part-00000.txt"]
        assert read_all(sources.text(out)) == ["new"]

    def test_success_marks_only_what_is_complete(self, tmp_path, write_all, monkeypatch):
        """Whoever sees _SUCCESS sees all of one output, even while the commit is at work."""
        write_all(sinks.text(tmp_path), ["old"], ["old"], run_id="first")
        seen = []
        move = storage.LocalStorage.move

        def spy(self, source, target):
            seen.append((tmp_path / "_SUCCESS").exists())
            move(self, source, target)

        monkeypatch.setattr(storage.LocalStorage, "move", spy)
        write_all(sinks.text(tmp_path), ["new"], ["new"], run_id="second")
        assert seen == [False, False]
        assert (tmp_path / "_SUCCESS").exists()

    def test_files_reach_the_disk_first(self, tmp_path, write_all, monkeypatch):
        events = []
        move, sync = storage.LocalStorage.move, storage.os.fsync
        monkeypatch.setattr(
            storage.LocalStorage, "move", lambda *a: (events.append("move"), move(*a))[1]
        )
        monkeypatch.setattr(storage.os, "fsync", lambda fd: (events.append("sync"), sync(fd))[1])
        write_all(sinks.text(tmp_path), ["x"])
        assert events[:2] == ["sync", "move"]
        assert events.count("sync") >= 3  # the part, the directory, _SUCCESS

    def test_files_written_on_another_machine_are_missed(self, tmp_path, write_all, tree):
        write_all(sinks.text(tmp_path), ["old"], run_id="first")
        sink = sinks.text(tmp_path)
        sink.begin("second")
        message = start(sink, "second", "w", ["new"]).finish()
        (tmp_path / ".jetlet-second" / "w.txt").unlink()
        with pytest.raises(JobFailedError, match="all machines share"):
            sink.commit("second", [message])
        sink.abort("second")
        assert tree(tmp_path) == {"_SUCCESS": b"", "part-00000.txt": b"old\n"}

    def test_writer_without_the_staging_directory_says_why(self, tmp_path):
        sink = sinks.text(tmp_path / "out")
        with pytest.raises(JobFailedError, match="another machine"):
            start(sink, "run", "w", ["x"])


class TestAbort:
    def test_leaves_nothing(self, tmp_path):
        out = tmp_path / "deep" / "out"
        sink = sinks.csv(out, compression="gzip")
        sink.begin("run")
        start(sink, "run", "w-0", [(1,)]).finish()
        start(sink, "run", "w-1", [(2,)]).abort()
        # Nobody remembers anything: abort works from what is on the disk.
        pickle.loads(pickle.dumps(sink)).abort("run")
        assert list(tmp_path.iterdir()) == []

    def test_keeps_the_previous_output(self, tmp_path, write_all, tree):
        write_all(sinks.text(tmp_path), ["old"], run_id="first")
        before = tree(tmp_path)
        sink = sinks.text(tmp_path)
        sink.begin("second")
        start(sink, "second", "w", ["new"]).finish()
        sink.abort("second")
        assert tree(tmp_path) == before
        assert names(tmp_path) == ["_SUCCESS", "part-00000.txt"]

    def test_keeps_a_directory_that_was_there(self, tmp_path):
        sink = sinks.text(tmp_path)
        sink.begin("run")
        sink.abort("run")
        assert tmp_path.is_dir() and names(tmp_path) == []

    def test_of_a_run_that_never_began_does_nothing(self, tmp_path):
        sinks.text(tmp_path / "out").abort("run")
        assert list(tmp_path.iterdir()) == []

    def test_does_not_touch_another_run(self, tmp_path, tree):
        sink = sinks.text(tmp_path / "out")
        sink.begin("one")
        sink.begin("two")
        message = start(sink, "two", "w", ["x"]).finish()
        sink.abort("one")
        sink.commit("two", [message])
        assert tree(tmp_path / "out") == {"_SUCCESS": b"", "part-00000.txt": b"x\n"}

    @pytest.mark.parametrize("compression", [None, "gzip", "bz2", "xz", "zstd"])
    def test_of_a_writer_works_on_a_full_disk(self, tmp_path, monkeypatch, compression):
        sink = sinks.text(tmp_path / "out", compression=compression)
        sink.begin("run")
        monkeypatch.setattr(storage.LocalStorage, "create", lambda _, path: _FullDisk(path))
        writer = sink.open("run", "w")
        with pytest.raises(OSError, match="No space"):
            for _ in range(1000):
                writer.write([random.Random(3).randbytes(1000).hex()])
            writer.finish()
        writer.abort()
        sink.abort("run")
        assert list(tmp_path.iterdir()) == []


class _FullDisk:
    def __init__(self, path) -> None:
        self._file = open(path, "xb")  # noqa: SIM115, PTH123

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self):
        pass

    def close(self):
        self._file.close()


class TestOverwrite:
    def test_replaces_more_parts_by_fewer(self, tmp_path, write_all, tree):
        write_all(sinks.text(tmp_path), ["1"], ["2"], ["3"], run_id="first")
        write_all(sinks.json_lines(tmp_path), ["x"], run_id="second")
        assert tree(tmp_path) == {"_SUCCESS": b"", "part-00000.jsonl": b'"x"\n'}

    def test_replaces_output_of_spark(self, tmp_path, write_all):
        for name in (
            "part-00000-3a7e9e3c-8f7b-4d1a-9e0f-c000.snappy.parquet",
            ".part-00000-3a7e9e3c-8f7b-4d1a-9e0f-c000.snappy.parquet.crc",
            "part-00001",
            "_SUCCESS",
            "._SUCCESS.crc",
        ):
            (tmp_path / name).touch()
        write_all(sinks.text(tmp_path), ["x"])
        assert names(tmp_path) == ["_SUCCESS", "part-00000.txt"]

    @pytest.mark.parametrize("name", ["report.docx", "part-1.txt", ".git", "Part-00000.txt"])
    def test_refuses_a_directory_with_anything_else(self, tmp_path, tree, name):
        (tmp_path / name).write_text("precious")
        (tmp_path / "part-00000.txt").write_text("old")
        with pytest.raises(OutputExistsError, match=f"{name}.*write another directory"):
            sinks.text(tmp_path).begin("run")
        assert tree(tmp_path) == {name: b"precious", "part-00000.txt": b"old"}

    def test_refuses_directories_inside(self, tmp_path):
        (tmp_path / "part-00000.txt").mkdir()
        with pytest.raises(OutputExistsError):
            sinks.text(tmp_path).begin("run")

    def test_leftovers_of_a_killed_run_are_no_obstacle(self, tmp_path, write_all):
        sink = sinks.text(tmp_path)
        sink.begin("killed")
        start(sink, "killed", "w", ["x"]).finish()
        write_all(sinks.text(tmp_path), ["y"], run_id="next")
        assert (tmp_path / "part-00000.txt").read_text() == "y\n"

    def test_what_arrived_during_the_run_is_not_removed(self, tmp_path, tree):
        sink = sinks.text(tmp_path)
        sink.begin("run")
        (tmp_path / "notes.md").write_text("precious")
        sink.commit("run", [start(sink, "run", "w", ["x"]).finish()])
        assert set(tree(tmp_path)) == {"_SUCCESS", "part-00000.txt", "notes.md"}


@pytest.mark.parametrize("mode", ["overwrite", "append", "error"])
def test_file_in_the_way_is_refused(tmp_path, mode):
    (tmp_path / "out").write_text("precious")
    with pytest.raises(OutputExistsError, match="is a file"):
        sinks.text(tmp_path / "out", mode=mode).begin("run")
    with pytest.raises(OutputExistsError, match="is a file"):
        sinks.text(tmp_path / "out" / "below", mode=mode).begin("run")
    assert (tmp_path / "out").read_text() == "precious"


class TestAppend:
    def test_adds_parts_after_those_there(self, tmp_path, write_all, read_all):
        (tmp_path / "notes.md").write_text("kept\n")
        sink = sinks.text(tmp_path, mode="append")
        for i in range(12):
            write_all(sink, [f"{i}a"], [f"{i}b"], run_id=f"run-{99 - i}")
        assert "_SUCCESS" in names(tmp_path)
        assert read_all(sources.text(f"{tmp_path}/part-*")) == [
            f"{i}{letter}" for i in range(12) for letter in "ab"
        ]
        assert (tmp_path / "notes.md").read_text() == "kept\n"

    def test_runs_at_the_same_time_do_not_collide(self, tmp_path, read_all):
        sink = sinks.text(tmp_path, mode="append")
        messages = {}
        for run in ("one", "two"):
            sink.begin(run)
            messages[run] = start(sink, run, "w", [run]).finish()
        for run, message in messages.items():
            sink.commit(run, [message])
        assert sorted(read_all(sources.text(tmp_path))) == ["one", "two"]

    def test_output_can_be_overwritten_later(self, tmp_path, write_all):
        write_all(sinks.text(tmp_path, mode="append"), ["x"], run_id="job 1/a")
        write_all(sinks.text(tmp_path), ["y"], run_id="second")
        assert names(tmp_path) == ["_SUCCESS", "part-00000.txt"]


class TestErrorMode:
    def test_takes_a_new_or_empty_directory(self, tmp_path, write_all):
        for out in (tmp_path / "empty", tmp_path / "new"):
            (tmp_path / "empty").mkdir(exist_ok=True)
            write_all(sinks.text(out, mode="error"), ["x"])
            assert names(out) == ["_SUCCESS", "part-00000.txt"]

    def test_refuses_earlier_output(self, tmp_path, write_all):
        write_all(sinks.text(tmp_path), ["x"])
        with pytest.raises(OutputExistsError, match="mode='overwrite'"):
            sinks.text(tmp_path, mode="error").begin("run")

    def test_refuses_output_that_arrived_during_the_run(self, tmp_path, write_all, tree):
        sink = sinks.text(tmp_path, mode="error")
        sink.begin("slow")
        message = start(sink, "slow", "w", ["slow"]).finish()
        write_all(sinks.text(tmp_path, mode="error"), ["quick"], run_id="quick")
        with pytest.raises(OutputExistsError):
            sink.commit("slow", [message])
        sink.abort("slow")
        assert tree(tmp_path) == {"_SUCCESS": b"", "part-00000.txt": b"quick\n"}


@pytest.mark.parametrize(
    ("compression", "ending"),
    [("gzip", ".gz"), ("bz2", ".bz2"), ("xz", ".xz"), ("zstd", ".zst")],
)
def test_compressed_parts_are_read_back(tmp_path, write_all, read_all, tree, compression, ending):
    lines = [f"line {i}" for i in range(5000)]
    write_all(sinks.text(tmp_path / "1", compression=compression), lines[:3000], lines[3000:])
    part = f"part-00000.txt{ending}"
    assert names(tmp_path / "1") == ["_SUCCESS", part, f"part-00001.txt{ending}"]
    assert (tmp_path / "1" / part).stat().st_size < 15_000
    assert read_all(sources.text(tmp_path / "1")) == lines
    write_all(sinks.text(tmp_path / "2", compression=compression), lines[:3000], lines[3000:])
    assert tree(tmp_path / "1") == tree(tmp_path / "2")


@pytest.mark.parametrize(
    "make",
    [
        lambda: sinks.text(5),
        lambda: sinks.text(""),
        lambda: sinks.text(None),
        lambda: sinks.text("out/*"),
        lambda: sinks.text("out", mode="replace"),
        lambda: sinks.text("out", compression="zip"),
        lambda: sinks.parquet("out", compression="bz2"),
        lambda: sinks.text("out", to_str="upper"),
        lambda: sinks.text("out", encoding="utf-9"),
        lambda: sinks.text("out", name=7),
        lambda: sinks.csv("out", header="word"),
        lambda: sinks.csv("out", header=["a", "a"]),
        lambda: sinks.csv("out", delimiter=", "),
        lambda: sinks.json_lines("out", default=3),
    ],
)
def test_arguments_that_cannot_work_are_refused(make):
    with pytest.raises(InvalidArgumentError, match=r"sinks\.\w+.*write"):
        make()


def test_names_tell_what_is_written():
    assert sinks.csv("out/counts").name == "csv-sink(out/counts)"
    assert sinks.json_lines("s3://key:secret@bucket/x").name == "json-lines-sink(s3://bucket/x)"
    assert sinks.parquet("out", name="rows").name == "rows"


def test_relative_directory_means_where_the_sink_was_made(tmp_path, monkeypatch, write_all):
    monkeypatch.chdir(tmp_path)
    sink = sinks.text("out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write_all(sink, ["x"])
    assert (tmp_path / "out" / "part-00000.txt").exists()
