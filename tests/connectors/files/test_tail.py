from __future__ import annotations

import os
import pickle
import random
import shutil

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import sources
from jetlet.connectors.files.tail import FILES_PER_POLL, GRACE_MS
from jetlet.core.processor import ProcessorContext
from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.testing import verify_processor
from jetlet.testing.clock import ManualClock


class Tail:
    """A reader and its clock: ``lines()`` is what is found after another interval."""

    def __init__(self, source, saved=None, clock=None):
        self.clock = clock or ManualClock(1_000_000)
        there = pickle.loads(cloudpickle.dumps(source))
        self.reader = there.open(source.partitions(), ProcessorContext(clock=self.clock))
        if saved is not None:
            self.reader.restore(pickle.loads(pickle.dumps(saved)))

    def lines(self, limit=100, ms=50):
        self.clock.advance(ms=ms)
        found = []
        while polled := self.reader.poll(limit):
            for each in polled:
                assert each.partition == 0
                assert 0 < len(each.items) <= limit
                found += each.items
        return found

    def save(self):
        return self.reader.save()


@pytest.fixture
def tail():
    """Opens readers, and closes them."""
    opened = []

    def open_tail(path, *, saved=None, clock=None, **options):
        opened.append(Tail(sources.tail(path, **options), saved, clock))
        return opened[-1]

    yield open_tail
    for each in opened:
        each.reader.close()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "app.log"
    path.write_text("one\ntwo\n")
    return path


def append(path, text):
    with path.open("a", newline="") as file:
        file.write(text)


class TestOneFile:
    def test_what_is_there_and_what_is_appended(self, tail, file):
        following = tail(file)
        assert following.lines() == ["one", "two"]
        assert following.lines() == []
        append(file, "three\n")
        assert following.lines() == ["three"]

    def test_partial_line_waits_for_its_end(self, tail, file):
        following = tail(file)
        following.lines()
        for part in ("thr", "ee", "\nfo"):
            assert following.lines() == []
            append(file, part)
        assert following.lines() == ["three"]
        append(file, "ur\r\n\n")
        assert following.lines() == ["four", ""]

    def test_only_new_lines(self, tail, file):
        following = tail(file, from_start=False)
        assert following.lines() == []
        append(file, "three\n")
        assert following.lines() == ["three"]

    def test_new_means_since_the_job_was_submitted(self, file):
        source = sources.tail(file, from_start=False)
        partitions = source.partitions()
        append(file, "three\n")
        reader = source.open(partitions, ProcessorContext())
        assert [each.items for each in reader.poll(10)] == [["three"]]
        reader.close()

    def test_file_may_appear_later(self, tail, tmp_path):
        following = tail(tmp_path / "deep" / "new.log", from_start=False)
        assert following.lines() == []
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "new.log").write_text("a\n")
        assert following.lines() == ["a"]

    def test_nothing_is_looked_at_within_the_interval(self, tail, file, monkeypatch):
        following = tail(file, interval=70)
        following.lines()
        append(file, "three\n")
        with monkeypatch.context() as patch:
            for name in ("stat", "fstat", "pread", "listdir"):
                patch.delattr(os, name)
            assert following.lines(ms=69) == []
        assert following.lines(ms=1) == ["three"]

    def test_limit_is_kept_without_waiting_for_the_next_interval(self, tail, file):
        append(file, "".join(f"{i}\n" for i in range(5000)))
        following = tail(file)
        assert following.lines(limit=7) == ["one", "two", *map(str, range(5000))]

    def test_truncated_file_is_read_from_its_start(self, tail, file, caplog):
        following = tail(file)
        append(file, "par")
        assert following.lines() == ["one", "two"]
        file.write_text("new\n")
        assert following.lines() == ["new"]
        assert "truncated" in caplog.text

    def test_byte_order_mark_is_dropped(self, tail, tmp_path):
        path = tmp_path / "bom.txt"
        path.write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")
        assert tail(path).lines() == ["a", "\ufeffb"]

    def test_encoding(self, tail, tmp_path):
        path = tmp_path / "latin.txt"
        path.write_bytes("grün\n".encode("latin-1"))
        assert tail(path, encoding="latin-1").lines() == ["grün"]
        assert tail(path, errors="replace").lines() == ["gr\ufffdn"]
        with pytest.raises(BadRecordError, match=r"latin\.txt: byte 2 is not utf-8"):
            tail(path).lines()

    def test_line_without_end_is_refused_in_the_end(self, tail, file, monkeypatch):
        monkeypatch.setattr("jetlet.connectors.files.line_buffer.MAX_LINE", 100_000)
        append(file, "x" * 200_000)
        following = tail(file)
        with pytest.raises(BadRecordError, match=r"app\.log: the line at byte 8 has more than"):
            following.lines()


class TestRotation:
    def test_renamed_file_is_read_to_its_end(self, tail, file, tmp_path):
        following = tail(file)
        append(file, "three")
        assert following.lines() == ["one", "two"]
        file.rename(tmp_path / "app.log.1")
        append(tmp_path / "app.log.1", "!\nfour\n")
        file.write_text("new\n")
        assert sorted(following.lines()) == ["four", "new", "three!"]
        append(tmp_path / "app.log.1", "late\n")  # by a writer that has not noticed
        assert following.lines() == ["late"]

    def test_removed_file_is_forgotten_after_a_while_with_its_last_line(self, tail, file):
        following = tail(file)
        append(file, "no end")
        following.lines()
        file.unlink()
        assert following.lines() == []
        assert following.lines(ms=GRACE_MS - 1) == []
        assert following.lines() == ["no end"]
        assert following.lines() == []
        assert following.save() == [[]]

    def test_renamed_within_what_is_followed_is_the_same_file(self, tail, file, tmp_path):
        following = tail(tmp_path / "app.log*")
        assert following.lines() == ["one", "two"]
        file.rename(tmp_path / "app.log.1")
        file.write_text("new\n")
        append(tmp_path / "app.log.1", "three\n")
        assert sorted(following.lines()) == ["new", "three"]
        assert following.lines(ms=2 * GRACE_MS) == []
        append(tmp_path / "app.log.1", "four\n")
        assert following.lines() == ["four"]


class TestManyFiles:
    def test_directory(self, tail, file, tmp_path):
        following = tail(tmp_path)
        assert following.lines() == ["one", "two"]
        (tmp_path / "b.txt").write_text("b\n")
        (tmp_path / ".hidden").write_text("no\n")
        (tmp_path / "_SUCCESS").write_text("no\n")
        (tmp_path / "old.gz").write_bytes(b"no\n")
        (tmp_path / "below").mkdir()
        (tmp_path / "below" / "c.txt").write_text("no\n")
        append(file, "three\n")
        assert sorted(following.lines()) == ["b", "three"]

    def test_glob_and_list(self, tail, tmp_path):
        (tmp_path / "below").mkdir()
        following = tail([tmp_path / "**" / "*.log", str(tmp_path / "x.txt")])
        for name in ("a.log", "below/b.log", "x.txt", "y.txt", "c.log.gz"):
            (tmp_path / name).write_text(f"{name}\n")
        assert sorted(following.lines()) == ["a.log", "below/b.log", "x.txt"]

    def test_new_files_are_read_from_their_start(self, tail, file, tmp_path):
        following = tail(tmp_path, from_start=False)
        (tmp_path / "b.txt").write_text("b\n")
        append(file, "three\n")
        assert sorted(following.lines()) == ["b", "three"]

    def test_link_to_a_file_that_is_followed_is_not_read_twice(self, tail, file, tmp_path):
        (tmp_path / "current").symlink_to(file)
        assert tail(tmp_path).lines() == ["one", "two"]

    def test_poll_looks_at_some_at_a_time(self, tail, tmp_path, monkeypatch):
        for i in range(3 * FILES_PER_POLL):
            (tmp_path / f"{i}").touch()
        following = tail(tmp_path)
        following.clock.advance(ms=50)
        reads = []
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda *args: (reads.append(args), pread(*args))[1])
        following.reader.poll(100)
        assert len(reads) == FILES_PER_POLL
        append(tmp_path / f"{3 * FILES_PER_POLL - 1}", "x\n")
        found = [
            line for _ in range(3) for each in following.reader.poll(100) for line in each.items
        ]
        assert found == ["x"]


class TestResuming:
    def test_goes_on_behind_the_last_line(self, tail, file):
        following = tail(file)
        append(file, "thr")
        assert following.lines(limit=100) == ["one", "two"]
        saved = following.save()
        append(file, "ee\nfour\n")
        assert tail(file, saved=saved).lines() == ["three", "four"]
        assert tail(file, saved=saved, from_start=False).lines() == ["three", "four"]

    def test_position_is_behind_what_was_polled(self, tail, file):
        following = tail(file)
        following.clock.advance(ms=50)
        assert following.reader.poll(1)[0].items == ["one"]
        assert tail(file, saved=following.save()).lines() == ["two"]

    def test_file_that_was_renamed_meanwhile_is_known(self, tail, file, tmp_path):
        following = tail(tmp_path)
        following.lines()
        saved = following.save()
        file.rename(tmp_path / "app.log.1")
        append(tmp_path / "app.log.1", "three\n")
        file.write_text("new\n")
        assert sorted(tail(tmp_path, saved=saved).lines()) == ["new", "three"]

    def test_file_with_other_content_is_another_file(self, tail, file):
        following = tail(file)
        following.lines()
        saved = following.save()
        file.write_text("ONE\ntwo\nthree\n")  # the same inode
        assert tail(file, saved=saved).lines() == ["ONE", "two", "three"]

    def test_saved_before_any_poll_is_what_was_restored(self, tail, file):
        following = tail(file)
        following.lines()
        saved = following.save()
        assert tail(file, saved=saved).save() == saved

    def test_none_begins_anew(self, tail, file):
        assert tail(file, saved=[None]).lines() == ["one", "two"]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.text("ab\n\r", max_size=6)), max_size=30), st.data()
)
def test_every_line_comes_once_whatever_is_written_when(scratch, writes, data):
    """Lines of three files, appended piece by piece, with restarts, as the files have them."""
    directory = scratch / "tail"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    paths = [directory / f"{i}.txt" for i in range(3)]
    source = sources.tail(directory)
    following = Tail(source)
    found = []
    rng = random.Random(data.draw(st.integers(0, 999)))
    for i, text in writes:
        append(paths[i], text)
        if rng.random() < 0.5:
            found += following.lines(limit=rng.choice([1, 2, 100]))
        if rng.random() < 0.2:
            saved = following.save()
            following.reader.close()
            following = Tail(source, saved, following.clock)
    found += following.lines()
    following.reader.close()
    expected = []
    for path in paths:
        if path.exists():
            text = path.read_bytes().decode()
            whole = text[: text.rfind("\n") + 1]
            expected += whole.replace("\r\n", "\n").split("\n")[:-1]
    assert sorted(found) == sorted(expected)


def test_as_a_processor(file):
    supplier = StreamReadSupplier(sources.tail(file), Timestamps())
    supplier.prepare(1)
    verify_processor(supplier, expect_output=["one", "two"], endless=True, may_wait=True)


def test_says_what_it_is(file):
    source = sources.tail(file)
    assert source.is_replayable and not source.is_blocking and not source.has_native_timestamps
    assert source.name == f"tail({file})"
    assert sources.tail(["a", "b"]).name == "tail(a, +1)"


@pytest.mark.parametrize(
    "options",
    [
        {"path": ""},
        {"path": []},
        {"path": 5},
        {"path": b"x"},
        {"path": ["a", None]},
        {"path": "s3://bucket/x"},
        {"encoding": "utf-16"},
        {"encoding": "nonsense"},
        {"errors": "nonsense"},
        {"name": ""},
    ],
)
def test_arguments_that_cannot_work_are_refused(options):
    with pytest.raises(InvalidArgumentError, match=r"sources\.tail.*write"):
        sources.tail(**{"path": "x", **options})


def test_interval_must_be_one():
    with pytest.raises(InvalidArgumentError, match=r"sources\.tail: interval"):
        sources.tail("x", interval=0)
