"""SnapshotWriter: writes in the background; what fails is told at the end and harms nobody."""

from __future__ import annotations

import threading

import pytest

from jetlet.snapshots import writer as writer_module
from jetlet.snapshots.directory import SnapshotDirectory
from jetlet.snapshots.format import STATE, Chunk
from jetlet.snapshots.writer import SnapshotWriter, Written
from jetlet.storage.file_systems import LocalStorage, locate

PROMPT = 60.0


def chunk(vertex="sum", number=0, size=10):
    return Chunk(STATE, vertex, 0, 1, bytes([number, 0]) + b"x" * size)


@pytest.fixture
def writer():
    made = SnapshotWriter(3, 2, ["source", "sum"])
    yield made
    made.close()
    assert not [t for t in threading.enumerate() if t.name == "jetlet-snapshots-3"]


@pytest.fixture
def directory(place):
    made = SnapshotDirectory(*place)
    made.clear()
    return made


def finish(writer):
    """The answer to ``end``."""
    done, answers = threading.Event(), []
    writer.end(lambda written: (answers.append(written), done.set()))
    assert done.wait(PROMPT)
    return answers[0]


def test_chunks_of_a_snapshot_end_up_in_a_file(writer, directory):
    writer.begin(7, directory)
    chunks = [chunk(number=n) for n in range(20)] + [chunk("source")]
    for each in chunks:
        writer.put(each)
    written = finish(writer)
    assert written.error is None
    assert written.file.name == "00000007-0002-member-3.state"
    assert written.vertices == {"sum": (20, 240), "source": (1, 12)}
    assert list(directory.chunks(written.file)) == chunks


def test_snapshots_follow_each_other(writer, directory):
    for snapshot_id in (1, 2, 3):
        writer.begin(snapshot_id, directory)
        writer.put(chunk(number=snapshot_id))
        written = finish(writer)
        assert list(directory.chunks(written.file)) == [chunk(number=snapshot_id)]


def test_member_without_state_writes_no_file(writer, directory):
    writer.begin(1, directory)
    assert finish(writer) == Written()
    assert list(directory._storage.entries(directory.path)) == []


def test_thread_is_started_only_when_it_is_needed():
    before = threading.active_count()
    SnapshotWriter(0, 1, []).close()
    assert threading.active_count() == before


def test_snapshot_that_comes_too_late_is_not_begun(tmp_path):
    storage, path = locate(str(tmp_path))
    before = threading.active_count()
    writer = SnapshotWriter(0, 1, ["sum"])
    writer.close()
    writer.begin(1, SnapshotDirectory(storage, path))
    writer.put(chunk())
    writer.close()
    assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []


class Full(LocalStorage):
    """A disk that is full after so many bytes, noticed late as with any buffered file."""

    def __init__(self, room):
        self.room = room

    def close_durably(self, file):
        if file.tell() > self.room:
            raise OSError(28, "No space left on device")
        super().close_durably(file)


def test_full_disk_is_told_at_the_end_and_the_next_one_works(writer, tmp_path):
    storage = Full(100)
    directory = SnapshotDirectory(storage, str(tmp_path))
    writer.begin(1, directory)
    for _ in range(100):
        writer.put(chunk())
    written = finish(writer)
    assert "No space left on device" in written.error
    assert written.file is None
    assert list(tmp_path.iterdir()) == [], "what was written is of no use"
    storage.room = 10_000
    writer.begin(2, directory)
    writer.put(chunk())
    assert finish(writer).error is None


def test_directory_that_vanished_is_told(writer, tmp_path):
    directory = SnapshotDirectory(LocalStorage(), str(tmp_path / "gone"))
    writer.begin(1, directory)
    writer.put(chunk())
    writer.put(chunk())
    assert "FileNotFoundError" in finish(writer).error


class Slow(LocalStorage):
    """Does not create a file before it is told to."""

    def __init__(self):
        self.may_go_on = threading.Event()

    def create(self, path):
        assert self.may_go_on.wait(PROMPT)
        return super().create(path)


def test_it_is_full_while_too_much_waits(writer, tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_BACKLOG", 100)
    storage = Slow()
    writer.begin(1, SnapshotDirectory(storage, str(tmp_path)))
    for _ in range(5):
        assert not writer.is_full()
        writer.put(chunk(size=20))
    assert writer.is_full()
    storage.may_go_on.set()
    assert finish(writer).error is None
    assert not writer.is_full()


def test_close_leaves_no_half_written_file(tmp_path):
    storage, path = locate(str(tmp_path))
    writer = SnapshotWriter(0, 1, ["sum"])
    writer.begin(1, SnapshotDirectory(storage, path))
    writer.put(chunk())
    writer.close()
    assert list(tmp_path.iterdir()) == []
