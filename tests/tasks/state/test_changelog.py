from __future__ import annotations

import pickle
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from jetlet.errors import BadRecordError, InvalidArgumentError, JetletError
from jetlet.log import Log
from jetlet.log.segments import list_segments, segment_path
from jetlet.tasks import stores
from jetlet.tasks.state import changelog as changelogs
from jetlet.tasks.state.changelog import decode_changes, encode_changes, in_log, restore
from jetlet.tasks.state.container_storage import StoreContext
from jetlet.tasks.state.local_store import MemoryStore, Position
from jetlet.tasks.state.sqlite_store import SqliteStore


def context(partition=0, partitions=1, position=None):
    return StoreContext("app", f"task {partition}", "views", partition, partitions, position)


@pytest.fixture
def changelog(tmp_path):
    opened = in_log(tmp_path / "changelogs").open(context())
    yield opened
    opened.close()


def changes_of(changelog):
    at, end = changelog.bounds()
    found = []
    while at < end:
        changes, position = changelog.read(at, end)
        found += changes
        at = position.end
    return found


def replayed(changelog):
    return {key: value for key, value in dict(changes_of(changelog)).items() if value is not None}


def entries_of(local):
    return dict(local.page(b"", None, 1_000_000))


class TestRecords:
    def test_changes_come_back(self):
        changes = [(b"", b""), (b"", None), (b"key", b"value"), (b"k" * 1000, b"\x00" * 1000)]
        assert decode_changes(encode_changes(changes)) == changes

    def test_what_is_not_a_change_is_refused(self):
        with pytest.raises(BadRecordError, match="only 2 bytes"):
            decode_changes([b"ab"])

    def test_each_task_has_a_partition(self, tmp_path):
        place = in_log(tmp_path)
        first, second = (place.open(context(i, 2)) for i in range(2))
        assert first.append([(b"a", b"1"), (b"b", None)]).end == 2
        assert second.append([(b"a", b"2")]).end == 1
        assert changes_of(first) == [(b"a", b"1"), (b"b", None)]
        assert changes_of(second) == [(b"a", b"2")]
        first.close()
        second.close()

    def test_another_number_of_tasks_is_refused(self, tmp_path):
        place = pickle.loads(pickle.dumps(in_log(tmp_path)))
        place.open(context(0, 2)).close()
        with pytest.raises(InvalidArgumentError, match=r"does not fit 3 tasks.*has 2 partitions"):
            place.open(context(0, 3))

    def test_it_can_wait_for_the_disk(self, tmp_path, monkeypatch):
        synced = []
        monkeypatch.setattr("os.fsync", synced.append)
        changelog = in_log(tmp_path, fsync=True).open(context())
        before = len(synced)
        changelog.append([(b"a", b"1")])
        assert len(synced) == before + 1
        changelog.close()


class TestRestore:
    def test_an_empty_copy_gets_everything_up_to_the_checkpoint(self, changelog, monkeypatch):
        monkeypatch.setattr(changelogs, "CHUNK", 3)
        changelog.append([(b"%d" % i, b"old") for i in range(5)])
        end = changelog.append([(b"1", None), (b"2", b"new"), (b"2", b"newer")])
        local, counts = MemoryStore(), []
        assert restore(local, changelog, end.end, counts.append) == end
        assert entries_of(local) == {b"0": b"old", b"2": b"newer", b"3": b"old", b"4": b"old"}
        assert local.position == end
        assert sum(counts) == 8

    def test_a_copy_gets_what_it_lacks(self, changelog):
        local = MemoryStore()
        local.write([(b"a", b"1")], changelog.append([(b"a", b"1")]))
        end = changelog.append([(b"b", b"2")])
        counts = []
        assert restore(local, changelog, end.end, counts.append) == end
        assert (entries_of(local), counts) == ({b"a": b"1", b"b": b"2"}, [1])

    def test_what_was_not_committed_is_undone(self, changelog):
        committed = changelog.append([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
        changelog.append([(b"a", b"2"), (b"b", None), (b"new", b"2")])
        local = MemoryStore()
        end = restore(local, changelog, committed.end)
        assert entries_of(local) == {b"a": b"1", b"b": b"1", b"c": b"1"} == replayed(changelog)
        assert end.end == 9  # three changes, and three that undo them
        # It is the same again if the container dies before it commits anything.
        again = MemoryStore()
        restore(again, changelog, committed.end)
        assert entries_of(again) == entries_of(local) == replayed(changelog)

    def test_without_a_checkpoint_it_begins_anew(self, changelog):
        end = changelog.append([(b"a", b"1")])
        local = MemoryStore()
        local.write([(b"a", b"1")], end)
        restore(local, changelog, None)
        assert entries_of(local) == {} == replayed(changelog)

    @pytest.mark.parametrize(
        "position", [Position(2, 0), Position(1, 12345), Position(7, 0), Position(0, 1), None]
    )
    def test_a_copy_that_does_not_fit_is_not_used(self, changelog, position):
        changelog.append([(b"a", b"1")])
        committed = changelog.append([(b"b", b"2")])
        local = MemoryStore()
        local.write([(b"wrong", b"wrong")], position)
        restore(local, changelog, committed.end)
        assert entries_of(local) == {b"a": b"1", b"b": b"2"}

    def test_a_copy_of_another_changelog_is_not_used(self, tmp_path):
        local = SqliteStore(tmp_path / "store")
        for value in (b"first", b"second"):
            changelog = in_log(tmp_path / "changelogs").open(context())
            end = changelog.append([(b"a", value)])
            restore(local, changelog, end.end)
            assert entries_of(local) == {b"a": value}
            changelog.close()
            shutil.rmtree(tmp_path / "changelogs")
        local.close()

    def test_a_checkpoint_beyond_the_changelog_is_an_error(self, changelog):
        changelog.append([(b"a", b"1")])
        with pytest.raises(JetletError, match=r"up to 2, but it has 0 to 1: records were lost"):
            restore(MemoryStore(), changelog, 2)

    def test_a_damaged_changelog_is_an_error(self, tmp_path):
        changelog = in_log(tmp_path).open(context())
        changelog.append([(b"a", b"1")])
        end = changelog.append([(b"b", b"1")])
        changelog.close()
        segment = next(tmp_path.rglob("*.log"))
        data = bytearray(segment.read_bytes())
        data[60] ^= 1
        segment.write_bytes(data)
        changelog = in_log(tmp_path).open(context())
        with pytest.raises(JetletError):
            restore(MemoryStore(), changelog, end.end)
        changelog.close()


class TestLocalCopy:
    def test_is_as_it_was_at_the_checkpoint_whatever_was_written_since(self, tmp_path):
        """Nothing is read again: SQLite takes back what was not committed."""
        counts = Counter()
        declared = stores.sqlite(
            tmp_path / "state", changelog=tmp_path / "changelogs", write_buffer=500
        )
        store = declared.open(context())
        store.put_many((i, "old") for i in range(100))
        position = store.flush()
        store.committed()
        store.put_many((i, "new") for i in range(50, 150))  # more than the buffer holds
        store.flush()
        store.close()
        where = replace(context(position=position), count=lambda n, i: counts.update({n: i}))
        store = declared.open(where)
        assert dict(store.all()) == dict.fromkeys(range(100), "old")
        assert not counts
        store.close()


class TestCleaning:
    """A changelog that is rewritten, in segments of about ten records."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch):
        monkeypatch.setattr(changelogs, "CLEAN_FROM", 100)
        monkeypatch.setattr(changelogs, "SEGMENT_BYTES", 1000)

    def test_it_stays_in_proportion_to_the_store(self, tmp_path):
        rng = random.Random(1)
        declared = stores.sqlite(tmp_path / "state", changelog=tmp_path / "changelogs")
        position, oracle, lengths = None, {}, []
        store = declared.open(context())
        for turn in range(600):
            for key in rng.sample(range(300), 10):
                store.put(key, turn)
                oracle[key] = turn
            for key in rng.sample(range(300), 2):
                store.delete(key)
                oracle.pop(key, None)
            position = store.flush()
            store.committed()
            start, end = store._changelog.bounds()
            lengths.append(end - start)
            if turn % 100 == 50:
                store.close()
                if turn % 200 == 50:
                    shutil.rmtree(tmp_path / "state")
                store = declared.open(context(position=position))
                assert dict(store.all()) == oracle
        store.close()
        assert max(lengths) < 3000
        assert position > 6 * max(lengths)
        assert min(lengths[100:]) < max(lengths) / 2

    def test_nothing_goes_before_the_commit(self, tmp_path):
        declared = stores.in_memory(changelog=tmp_path)
        store = declared.open(context())
        for turn in range(50):
            store.put_many((key, turn) for key in range(10))
            position = store.flush()
            store.committed()
        before = store._changelog.bounds()[0]
        assert before > 0
        for turn in range(100):
            store.put_many((key, -turn) for key in range(10))
            store.flush()  # a checkpoint that never comes
        assert store._changelog.bounds()[0] == before
        store.close()
        store = declared.open(context(position=position))
        assert dict(store.all()) == dict.fromkeys(range(10), 49)
        store.close()

    def test_it_costs_nothing_below_a_size(self, changelog):
        assert changelogs.Cleaner(changelog, None).next_entries(99, 1) == []


class TestDiscardingSegments:
    def test_whole_segments_before_an_offset_go(self, tmp_path):
        with Log(tmp_path, partitions=2, segment_bytes=100, serializer="bytes") as log:
            for i in range(10):
                log.append([b"%060d" % i], partition=0)
            path = f"{log.directory}/00000"
            assert list_segments(path) == list(range(10))
            assert log.discard_before(0, 0) == 0
            assert log.discard_before(0, 4) == 4
            assert log.start_offsets() == [4, 0]
            assert log.read(0, 4, 1).items == [b"%060d" % 4]
            assert log.discard_before(0, 1000) == 5  # the last one is written to
            log.append([b"more"], partition=0)
            assert log.read(0, 9, 10).items == [b"%060d" % 9, b"more"]
            assert not Path(segment_path(path, 3)).with_suffix(".index").exists()
