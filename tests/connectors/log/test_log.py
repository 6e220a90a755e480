from __future__ import annotations

import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import EmbeddedEngine, Pipeline, sinks, sources
from jetlet.core.processor import ProcessorContext
from jetlet.errors import (
    BadRecordError,
    InputNotFoundError,
    InvalidArgumentError,
    JetletError,
    JobFailedError,
    OutputExistsError,
)
from jetlet.log import Log
from jetlet.log.blocks import HEADER_SIZE
from jetlet.log.reader import BLOCKS_PER_POLL, CHECK_EVERY, PartitionReader
from jetlet.log.segments import (
    INDEX_ENTRY_SIZE,
    index_path,
    list_segments,
    segment_path,
)
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.testing import assert_collected_eventually, verify_processor
from jetlet.testing.clock import ManualClock


def fail_to_decode():
    raise ValueError("cannot be decoded here")


class Undecodable:
    def __reduce__(self):
        return fail_to_decode, ()


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "events"


def read_all(log, partition=0, offset=0, limit=1000):
    """All records from an offset on, as (timestamp, item); checks that offsets have no gaps."""
    found = []
    while True:
        records = log.read(partition, offset + len(found), limit)
        assert records.offset == offset + len(found)
        assert len(records.items) == len(records.timestamps) <= limit
        if not records.items:
            return found
        found += zip(records.timestamps, records.items, strict=True)


def items_of(log, partition=0, offset=0):
    return [item for _, item in read_all(log, partition, offset)]


def partition_path(log, partition=0):
    return f"{log.directory}/{partition:05}"


def last_segment(log, partition=0):
    path = partition_path(log, partition)
    return Path(segment_path(path, list_segments(path)[-1]))


class TestAppendingAndReading:
    def test_records_come_back_with_offsets_and_timestamps(self, directory):
        with Log(directory, partitions=1) as log:
            assert log.append(["a", None, ("c", 1)], timestamps=[30, 10, 20]) == {0: range(3)}
            assert log.append([{}], timestamps=40) == {0: range(3, 4)}
            assert read_all(log) == [(30, "a"), (10, None), (20, ("c", 1)), (40, {})]
            assert items_of(log, offset=2) == [("c", 1), {}]
            assert log.end_offsets() == [4]

    def test_timestamps_are_the_clocks_by_default(self, directory):
        with Log(directory, partitions=1, clock=ManualClock(1234)) as log:
            log.append(iter("ab"))
            assert read_all(log) == [(1234, "a"), (1234, "b")]

    def test_nothing_is_nothing(self, directory):
        with Log(directory, partitions=1) as log:
            assert log.append([]) == {}
            assert len(log.read(0, 0)) == 0
            assert log.end_offsets() == log.start_offsets() == [0]

    def test_batches_take_the_partitions_in_turn(self, directory):
        with Log(directory, partitions=3) as log:
            taken = [next(iter(log.append([i]))) for i in range(6)]
        assert taken == [0, 1, 2, 0, 1, 2]

    def test_a_partition_can_be_chosen(self, directory):
        with Log(directory, partitions=3) as log:
            log.append([1, 2], partition=2)
            assert log.end_offsets() == [0, 0, 2]

    def test_equal_keys_share_a_partition_and_keep_their_order(self, directory):
        events = [(i % 7, i) for i in range(200)]
        with Log(directory, partitions=4) as log:
            log.append(events[:100], key=lambda e: e[0], timestamps=range(100))
            log.append(events[100:], key=lambda e: float(e[0]), timestamps=range(100, 200))
            found = [read_all(log, partition) for partition in range(4)]
        assert sorted(event for part in found for event in part) == [*enumerate(events)]
        where = {}
        for partition, part in enumerate(found):
            assert part == sorted(part)
            for _, (key, _) in part:
                assert where.setdefault(key, partition) == partition
        assert len(set(where.values())) > 1

    def test_reading_starts_in_the_middle_of_a_batch(self, directory):
        with Log(directory, partitions=1) as log:
            log.append(list(range(3000)))
            for offset in (0, 1, 1023, 1024, 1025, 2999, 3000):
                assert items_of(log, offset=offset) == list(range(offset, 3000))
            assert log.read(0, 5, 3).items == [5, 6, 7]
            assert log.read(0, 1020, 10).items == list(range(1020, 1030))

    def test_read_of_many_small_batches_is_short(self, directory):
        with Log(directory, partitions=1) as log:
            for i in range(BLOCKS_PER_POLL + 10):
                log.append([i])
            assert log.read(0, 5, 1000).items == list(range(5, 5 + BLOCKS_PER_POLL))
            assert items_of(log) == list(range(BLOCKS_PER_POLL + 10))

    def test_large_records_are_stored_whole(self, directory):
        large = [os.urandom(700_000), b"x", os.urandom(3_000_000)]
        with Log(directory, partitions=1) as log:
            log.append(large)
            assert items_of(log) == large

    def test_offsets_outside_of_the_log_are_told(self, directory):
        with Log(directory, partitions=1) as log:
            log.append([1, 2])
            with pytest.raises(BadRecordError, match="ends before"):
                log.read(0, 3)
            assert log.read(0, 2).items == []

    def test_what_was_appended_is_there_after_reopening(self, directory):
        with Log(directory, partitions=2) as log:
            log.append([1, 2], partition=1)
        with Log(directory) as log:
            assert log.partition_count == 2
            assert log.append([3], partition=1) == {1: range(2, 3)}
            assert items_of(log, 1) == [1, 2, 3]

    @pytest.mark.parametrize(
        ("serializer", "items"),
        [
            ("pickle", [None, (1, "ä"), {2: {3}}, b"\0"]),
            ("json", [None, [1, "ä"], {"2": 3.5}, "\ud800"]),
            ("bytes", [b"", b"\0\xff", b"abc" * 1000]),
        ],
    )
    def test_serializers(self, directory, serializer, items):
        with Log(directory, partitions=1, serializer=serializer) as log:
            log.append(items, timestamps=range(len(items)))
            log.append(items, timestamps=7)
        with Log(directory) as log:
            assert read_all(log) == [*enumerate(items), *((7, item) for item in items)]

    @pytest.mark.parametrize(
        ("serializer", "item"),
        [("json", {1, 2}), ("bytes", "text"), ("bytes", 5), ("pickle", lambda: 1)],
    )
    def test_item_that_cannot_be_stored_is_named_and_nothing_is_written(
        self, directory, serializer, item
    ):
        fine = b"fine" if serializer == "bytes" else "fine"
        with Log(directory, partitions=1, serializer=serializer) as log:
            with pytest.raises(BadRecordError, match=serializer) as refused:
                log.append([fine, item])
            assert repr(item)[:20] in str(refused.value)
            assert log.end_offsets() == [0]

    def test_pickles_are_not_loaded_where_json_is_expected(self, tmp_path):
        with Log(tmp_path / "safe", partitions=1, serializer="json") as log:
            with Log(tmp_path / "evil", partitions=1) as evil:
                evil.append(["boo"])
                shutil.copy(last_segment(evil), last_segment(log))
            with pytest.raises(BadRecordError, match=r"are pickle.*serializer='json'"):
                log.read(0, 0)
            with pytest.raises(BadRecordError, match="are pickle"):  # and it is not skipped
                log.read(0, 0)

    @pytest.mark.parametrize("timestamps", [["x"], [1.5], [1 << 70], [1, 2], "x"])
    def test_timestamps_that_are_none_are_refused(self, directory, timestamps):
        with Log(directory, partitions=1) as log:
            with pytest.raises(InvalidArgumentError, match="timestamps"):
                log.append(["a"], timestamps=timestamps)
            assert log.end_offsets() == [0]

    @pytest.mark.parametrize("items", ["text", b"bytes", 5, None])
    def test_what_is_not_items_is_refused(self, directory, items):
        with Log(directory, partitions=1) as log, pytest.raises(InvalidArgumentError, match="list"):
            log.append(items)

    @pytest.mark.parametrize(
        "options", [{"partition": 1}, {"partition": -1}, {"partition": 0, "key": str}]
    )
    def test_partitions_that_are_none_are_refused(self, directory, options):
        with Log(directory, partitions=1) as log:
            with pytest.raises(InvalidArgumentError, match="partition"):
                log.append([1], **options)
            with pytest.raises(InvalidArgumentError, match="from 0 to 0"):
                log.read(1, 0)

    def test_forked_writer_has_a_lock_of_its_own(self, directory):
        with Log(directory, partitions=1) as log:
            log.append([1])
            before = log._writers[0]._lock_fd
            log._writers[0]._pid = -1  # as in the child
            log.append([2])
            assert items_of(log) == [1, 2]
            assert before >= 0


class TestMakingALog:
    def test_there_must_be_one(self, directory):
        with pytest.raises(InputNotFoundError, match="write partitions="):
            Log(directory)

    def test_settings_that_differ_are_refused(self, directory):
        Log(directory, partitions=2, serializer="json").close()
        Log(directory, partitions=2, serializer="json").close()
        with pytest.raises(InvalidArgumentError, match="has 2 partitions, not 3"):
            Log(directory, partitions=3)
        with pytest.raises(InvalidArgumentError, match="serializer='json', not 'pickle'"):
            Log(directory, serializer="pickle")

    def test_foreign_directories_and_files_are_left_alone(self, tmp_path):
        (tmp_path / "photo.jpg").touch()
        with pytest.raises(OutputExistsError, match=r"photo\.jpg"):
            Log(tmp_path, partitions=1)
        with pytest.raises(OutputExistsError, match="a file in the way"):
            Log(tmp_path / "photo.jpg", partitions=1)
        assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]

    @pytest.mark.parametrize(
        "options",
        [
            {"partitions": 0},
            {"partitions": 10**6},
            {"serializer": "xml"},
            {"segment_bytes": 0},
            {"fsync": "always"},
            {"fsync": 0},
            {"max_age": 0},
            {"max_bytes": -1},
        ],
    )
    def test_arguments_that_cannot_work_are_refused(self, directory, options):
        with pytest.raises(InvalidArgumentError):
            Log(directory, **{"partitions": 1, **options})
        assert not directory.exists()

    def test_urls_are_refused(self):
        with pytest.raises(InvalidArgumentError, match="this machine"):
            Log("s3://bucket/log", partitions=1)


batches = st.lists(
    st.lists(st.tuples(st.integers(-50, 50), st.binary(max_size=30)), max_size=20), max_size=12
)


class TestProperties:
    @given(batches, st.integers(1, 400), st.integers(1, 40), st.data())
    def test_all_is_read_from_any_offset_and_found_by_any_timestamp(
        self, scratch, appended, segment_bytes, limit, data
    ):
        shutil.rmtree(scratch / "log", ignore_errors=True)
        with Log(scratch / "log", partitions=1, segment_bytes=segment_bytes) as log:
            for batch in appended:
                log.append([item for _, item in batch], timestamps=[time for time, _ in batch])
            expected = [record for batch in appended for record in batch]
            assert log.end_offsets() == [len(expected)]
            offset = data.draw(st.integers(0, len(expected)))
            assert read_all(log, offset=offset, limit=limit) == expected[offset:]
            timestamp = data.draw(st.integers(-60, 60))
            first = next(
                (i for i, (time, _) in enumerate(expected) if time >= timestamp), len(expected)
            )
            assert log.offset_at(0, timestamp) == first

    @given(batches, st.integers(1, 400), st.integers(1, 40), st.data())
    def test_follower_sees_all_in_order_whenever_it_looks(
        self, scratch, appended, segment_bytes, limit, data
    ):
        shutil.rmtree(scratch / "log", ignore_errors=True)
        found = []
        with Log(scratch / "log", partitions=1, segment_bytes=segment_bytes) as log:
            reader = log.reader(0, None)
            for batch in appended:
                log.append([item for _, item in batch], timestamps=[time for time, _ in batch])
                for _ in range(data.draw(st.integers(0, 3))):
                    if records := reader.poll(limit):
                        assert records.offset == len(found)
                        found += zip(records.timestamps, records.items, strict=True)
            while records := reader.poll(limit):
                found += zip(records.timestamps, records.items, strict=True)
            assert reader.offset == len(found)
            reader.close()
        assert found == [record for batch in appended for record in batch]

    def test_index_is_used_and_not_trusted(self, directory):
        records = [(i // 3, os.urandom(100)) for i in range(5000)]

        def check(log):
            for i in (0, 1, 700, 2500, 4998, 4999):
                assert items_of(log, offset=i) == [item for _, item in records[i:]]
                assert log.offset_at(0, records[i][0]) == i // 3 * 3
            assert log.end_offsets() == [5000]

        with Log(directory, partitions=1) as log:
            for i in range(0, 5000, 50):
                part = records[i : i + 50]
                log.append([item for _, item in part], timestamps=[time for time, _ in part])
            index = Path(index_path(partition_path(log), 0))
            good = index.read_bytes()
            assert len(good) // INDEX_ENTRY_SIZE == pytest.approx(5000 * 100 / 65536, abs=3)
            check(log)
            for bad in (b"", good[:-5], good[5:], os.urandom(len(good)), good + b"\xff" * 24):
                index.write_bytes(bad)
                check(log)
            index.unlink()
            check(log)


class TestCrashes:
    """A writer that died in the middle of a write: the tail is cut at every byte."""

    def make(self, path):
        with Log(path, partitions=1, segment_bytes=500) as log:
            for i in range(4):
                log.append([f"{i}-{j}" for j in range(3)], timestamps=[i, i, i + 1])
            log.append(["sealed"] * 40, timestamps=9)  # the next segment
            log.append(["last"])
            segment = last_segment(log)
            return segment.relative_to(path), segment.stat().st_size, items_of(log)

    def test_readers_see_a_prefix_and_writers_recover_at_every_cut(
        self, directory, tmp_path, caplog
    ):
        caplog.set_level(logging.CRITICAL)
        segment, size, items = self.make(directory)
        lengths = set()
        for cut in range(size):
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(directory, copy)
            os.truncate(copy / segment, cut)
            with Log(copy, segment_bytes=500) as log:
                reader = log.reader(0, None)
                before = reader.poll(1000).items
                assert before == items[: len(before)]
                assert log.end_offsets() == [len(before)]
                lengths.add(len(before))
                assert log.append(["new"]) == {0: range(len(before), len(before) + 1)}
                assert items_of(log) == [*before, "new"]
                for _ in range(40):  # a follower pauses when it meets half a block
                    if records := reader.poll(1000):
                        break
                assert records.items == ["new"]
                reader.close()
        assert lengths == {12, 52}  # with and without the block before the one that is torn

    @pytest.mark.parametrize("garbage", [b"\0" * 5000, b"JLF\x01" + b"\xff" * 50, b"J"])
    def test_garbage_behind_the_last_record_is_dropped(self, directory, garbage, caplog):
        segment, _, items = self.make(directory)
        with (directory / segment).open("ab") as file:
            file.write(garbage)
        with Log(directory) as log:
            assert items_of(log) == items
            log.append(["new"])
            assert items_of(log) == [*items, "new"]
        assert "not completed" in caplog.text

    def test_blocks_behind_damage_are_put_aside(self, directory, caplog):
        with Log(directory, partitions=1) as log:
            for i in range(3):
                log.append([i])
            segment = last_segment(log)
            data = bytearray(segment.read_bytes())
            data[len(data) // 2] ^= 1
            segment.write_bytes(data)
            Path(partition_path(log), "lock").unlink()
        with Log(directory) as log:
            assert log.append(["new"]) == {0: range(1, 2)}
            assert items_of(log) == [0, "new"]
        (aside,) = segment.parent.glob("*.damaged-*")
        assert data.endswith(aside.read_bytes())
        assert aside.name in caplog.text

    @pytest.mark.parametrize("content", [b"", b"\0" * 60, bytes(range(64)), None])
    def test_lost_state_is_found_again(self, directory, content):
        _, _, items = self.make(directory)
        lock = directory / "00000" / "lock"
        lock.unlink() if content is None else lock.write_bytes(content)
        with Log(directory) as log:
            log.append(["new"])
            assert items_of(log) == [*items, "new"]

    def test_crash_between_seal_and_next_segment(self, directory):
        with Log(directory, partitions=1, segment_bytes=200) as log:
            log.append([1])
            lock = Path(partition_path(log), "lock")
            state = lock.read_bytes()
            reader = log.reader(0, None)
            assert reader.poll(10).items == [1]
            log.append([b"x" * 200])
            Path(segment_path(partition_path(log), 1)).unlink()
            lock.write_bytes(state)
            assert reader.poll(10) is None
        with Log(directory) as log:
            assert log.end_offsets() == [1]
            assert log.append([2]) == {0: range(1, 2)}
        assert next(filter(None, (reader.poll(10) for _ in range(40)))).items == [2]
        reader.close()

    def test_full_disk_keeps_what_was_written_whole(self, directory, monkeypatch):
        write = os.write

        def write_half(fd, data):
            if len(data) > 1000:
                write(fd, data[: len(data) // 2])
                raise OSError(28, "No space left on device")
            return write(fd, data)

        with Log(directory, partitions=1) as log:
            log.append([0])
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", write_half)
                with pytest.raises(OSError, match="No space"):
                    log.append([b"%0500d" % i for i in range(4000)])
            kept = log.end_offsets()[0]
            assert 1024 < kept < 4000
            log.append(["end"])
            items = items_of(log)
            assert items == [0, *(b"%0500d" % i for i in range(kept - 1)), "end"]

    def test_short_writes_are_completed(self, directory, monkeypatch):
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
        with Log(directory, partitions=1) as log:
            log.append(list(range(50)))
            assert items_of(log) == list(range(50))

    @pytest.mark.parametrize(("on_gap", "expected"), [("skip", [2]), ("fail", None)])
    def test_damage_in_an_older_segment(self, directory, on_gap, expected, caplog):
        with Log(directory, partitions=1, segment_bytes=1) as log:
            for i in range(3):
                log.append([i])
            path = Path(segment_path(partition_path(log), 1))
            data = bytearray(path.read_bytes())
            data[HEADER_SIZE] ^= 1
            path.write_bytes(data)
            reader = log.reader(0, None, on_gap=on_gap)
            assert reader.poll(1).items == [0]
            if expected is None:
                with pytest.raises(BadRecordError, match=r"offsets 1 to 1: .*damaged at byte 0"):
                    reader.poll(1)
            else:
                assert reader.poll(1).items == expected
                assert "damaged" in caplog.text
            reader.close()

    def test_seal_that_was_lost_is_not_waited_for(self, directory):
        with Log(directory, partitions=1, segment_bytes=1) as log:
            log.append([0])
            log.append([1])
            path = segment_path(partition_path(log), 0)
            os.truncate(path, Path(path).stat().st_size - HEADER_SIZE)
            reader = log.reader(0, None)
            assert reader.poll(1).items == [0]
            found = [reader.poll(1) for _ in range(CHECK_EVERY)]
            assert [records.items for records in found if records] == [[1]]
            reader.close()

    def test_log_that_was_removed_is_told(self, directory):
        log = Log(directory, partitions=1)
        log.append([0])
        reader = log.reader(0, None)
        reader.poll(1)
        shutil.rmtree(directory)
        with pytest.raises(JetletError, match="removed"):
            log.append([1])
        with pytest.raises(JetletError, match="removed"):
            for _ in range(CHECK_EVERY):
                reader.poll(1)
        reader.close()
        log.close()


class TestSyncing:
    @pytest.fixture
    def syncs(self, monkeypatch):
        done = []
        sync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda fd: (done.append(fd), sync(fd)))
        return done

    @pytest.mark.parametrize(
        ("fsync", "after_appends", "after_close"),
        [("none", 0, 0), ("batch", 4, 4), (100, 1, 2)],
    )
    def test_policies(self, directory, syncs, fsync, after_appends, after_close):
        Log(directory, partitions=1).close()
        syncs.clear()
        clock = ManualClock()
        log = Log(directory, fsync=fsync, clock=clock)
        for i in range(4):
            log.append([i])
            clock.advance(ms=60)
        assert len(syncs) == after_appends
        log.close()
        assert len(syncs) == after_close

    def test_on_request(self, directory, syncs):
        with Log(directory, partitions=2) as log:
            log.append([1], partition=1)
            syncs.clear()
            log.sync()
            log.sync()
            assert len(syncs) == 1

    def test_segment_is_on_disk_before_the_next_begins(self, directory, syncs):
        with Log(
            directory, partitions=1, fsync=10_000, segment_bytes=1, clock=ManualClock()
        ) as log:
            log.append([1])
            syncs.clear()
            log.append([2])
            assert len(syncs) == 2  # the segment and the directory


class TestRetention:
    def fill(self, log, count, size=100, step=10):
        for i in range(count):
            log.append([(i, b"x" * size)], timestamps=i * step)

    def test_whole_segments_go_by_bytes(self, directory):
        with Log(directory, partitions=1, segment_bytes=500) as log:
            self.fill(log, 20)
            path = partition_path(log)
            before = list_segments(path)
            assert len(before) > 5
            assert log.retain(max_bytes=1500) > 0
            left = list_segments(path)
            assert left == before[-len(left) :]
            sizes = [Path(segment_path(path, base)).stat().st_size for base in left]
            assert sum(sizes) <= 1500 < sum(sizes) + 500
            assert log.start_offsets() == [left[0]]
            assert sorted(p.name for p in Path(path).iterdir()) == sorted(
                ["lock", *(f"{b:020}.{kind}" for b in left for kind in ("log", "index"))]
            )
            log.append(["new"])
            assert items_of(log, offset=left[0])[-1] == "new"

    def test_whole_segments_go_by_age(self, directory):
        clock = ManualClock(1000)
        with Log(directory, partitions=1, segment_bytes=500, clock=clock) as log:
            self.fill(log, 20)  # timestamps 0 to 190
            assert log.retain(max_age=1001) == 0
            assert log.retain(max_age=901) > 0  # older than 99
            (start,) = log.start_offsets()
            assert 5 < start <= 10
            assert [time for time, _ in read_all(log, offset=start)] == [
                i * 10 for i in range(start, 20)
            ]
            log.retain(max_age=500)
            assert log.start_offsets() == log.end_offsets() == [20]
            assert log.offset_at(0, 0) == 20
            assert log.append(["new"]) == {0: range(20, 21)}

    def test_happens_by_itself(self, directory):
        clock = ManualClock()
        options = {"segment_bytes": 1000, "max_age": 800, "max_bytes": 40_000, "clock": clock}
        with Log(directory, partitions=2, **options) as log:
            for i in range(100):
                log.append([i] * 20, partition=0)
                log.append([b"x" * 2000], partition=1)
                clock.advance(ms=100)
            oldest = read_all(log, 0, log.start_offsets()[0])[0][0]
            assert clock.time_ms() - 800 - 300 <= oldest <= clock.time_ms() - 700
        with Log(directory, max_bytes=40_000, clock=clock) as log:
            for _ in range(100):
                log.append([b"x" * 2000], partition=1)
            size = sum(p.stat().st_size for p in Path(partition_path(log, 1)).glob("*.log"))
            assert 14_000 < size <= 20_000 + 2100

    def test_reader_that_is_overtaken_skips_or_fails(self, directory, caplog):
        skipped = []
        with Log(directory, partitions=1, segment_bytes=500) as log:
            self.fill(log, 20)
            skipping = log.reader(0, None, on_gap="skip", on_skip=skipped.append)
            failing = log.reader(0, 0, on_gap="fail")
            assert skipping.poll(1).offset == failing.poll(1).offset == 0
            log.retain(max_bytes=700)
            (start,) = log.start_offsets()
            found = []
            while records := skipping.poll(100):
                found += range(records.offset, records.next_offset)
            # The segment that it had open is read to its end.
            held = found.index(start)
            assert found == [*range(1, held + 1), *range(start, 20)]
            assert skipped == [start - held - 1]
            assert "retention" in caplog.text
            with pytest.raises(BadRecordError, match="retention"):
                while failing.poll(100):
                    pass
            with pytest.raises(BadRecordError, match=r"offsets 3 to .*on_gap='skip'"):
                log.read(0, 3)
            skipping.close()
            failing.close()

    def test_segment_that_vanishes_while_it_is_opened_is_skipped(self, directory, monkeypatch):
        with Log(directory, partitions=1, segment_bytes=1) as log:
            self.fill(log, 3)
            listed = iter([[0, 1, 2]])
            monkeypatch.setattr(
                "jetlet.log.reader.list_segments",
                lambda path: next(listed, None) or list_segments(path),
            )
            log.retain(max_bytes=0)
            reader = PartitionReader(partition_path(log), None, "pickle", on_gap="skip")
            assert reader.poll(1).offset == 2
            reader.close()


WRITER = """
import sys
from jetlet.log import Log
name, count = sys.argv[2], int(sys.argv[3])
with Log(sys.argv[1], partitions=2, segment_bytes=20_000) as log:
    for i in range(0, count, 25):
        log.append([(name, j) for j in range(i, i + 25)], partition=i % 2)
"""


class TestProcesses:
    def test_several_write_and_follow_at_once(self, directory):
        count = 4000
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, directory, name, str(count)])
            for name in "abc"
        ]
        found = []
        with Log(directory, partitions=2) as log:
            readers = [log.reader(partition, 0) for partition in range(2)]
            while any(writer.poll() is None for writer in writers):
                for partition, reader in enumerate(readers):
                    if records := reader.poll(1000):
                        found += ((partition, item) for item in records.items)
            assert [writer.returncode for writer in writers] == [0, 0, 0]
            for partition, reader in enumerate(readers):
                while records := reader.poll(1000):
                    found += ((partition, item) for item in records.items)
                reader.close()
            assert sum(log.end_offsets()) == 3 * count
        for partition in range(2):
            here = [item for p, item in found if p == partition]
            for name in "abc":
                expected = [
                    j for i in range(0, count, 25) if i % 2 == partition for j in range(i, i + 25)
                ]
                assert [j for n, j in here if n == name] == expected
            # Whole batches: 25 records of one writer follow each other.
            for i in range(0, len(here), 25):
                assert len({name for name, _ in here[i : i + 25]}) == 1

    def test_killed_writer_leaves_whole_blocks(self, directory):
        code = """
import sys
from jetlet.log import Log
log = Log(sys.argv[1])
i = 0
while True:
    log.append([(i + j, "x" * 100) for j in range(2000)])
    i += 2000
    print(i, flush=True)
"""
        Log(directory, partitions=1, segment_bytes=500_000).close()
        for _ in range(3):
            writer = subprocess.Popen(
                [sys.executable, "-c", code, directory], stdout=subprocess.PIPE, text=True
            )
            for _ in range(4):
                acknowledged = int(writer.stdout.readline())
            writer.kill()
            writer.communicate()
            with Log(directory) as log:
                (before,) = log.end_offsets()
                assert log.append(["mark"]) == {0: range(before, before + 1)}
        with Log(directory) as log:
            runs, expected = [], 0
            for item in items_of(log):
                if item == "mark":
                    runs.append(expected)
                    expected = 0
                else:
                    assert item == (expected, "x" * 100)
                    expected += 1
        assert len(runs) == 3 and min(runs) >= acknowledged == 8000


class TestSource:
    def open(self, source, *, context=None):
        source = pickle.loads(cloudpickle.dumps(source))
        return source.open(
            pickle.loads(pickle.dumps(source.partitions())), context or ProcessorContext()
        )

    def polled(self, reader, limit=100, polls=3):
        found = []
        for _ in range(polls):
            for each in reader.poll(limit):
                found += (
                    (each.partition, time, item)
                    for time, item in zip(each.timestamps, each.items, strict=True)
                )
        return found

    @pytest.fixture
    def log(self, directory):
        with Log(directory, partitions=2) as log:
            log.append(["a", "b"], partition=0, timestamps=[10, 20])
            log.append(["c", "d"], partition=1, timestamps=[15, 25])
            yield log

    @pytest.mark.parametrize(
        ("start", "expected"),
        [
            ("earliest", "abcd"),
            ("latest", ""),
            ({0: 1}, "bcd"),
            ({0: 2, 1: 1}, "d"),
            (15, "bcd"),
            (21, "d"),
            (datetime(1970, 1, 1, 0, 0, 0, 25_000, tzinfo=UTC), "d"),
        ],
    )
    def test_starts_where_told(self, log, start, expected):
        reader = self.open(sources.log(log.directory, start=start))
        assert "".join(sorted(item for _, _, item in self.polled(reader))) == expected
        log.append(["x", "y"], partition=0, timestamps=30)
        assert self.polled(reader) == [(0, 30, "x"), (0, 30, "y")]
        reader.close()

    def test_latest_is_when_the_job_is_submitted(self, log):
        source = sources.log(log.directory, start="latest")
        partitions = source.partitions()
        log.append(["new"], partition=1, timestamps=50)
        reader = source.open(partitions, ProcessorContext())
        assert self.polled(reader) == [(1, 50, "new")]
        reader.close()

    def test_says_what_it_is(self, log):
        source = sources.log(log.directory)
        assert source.has_native_timestamps and source.is_replayable and not source.is_blocking
        assert source.name == "log-source(events)"
        assert len(source.partitions()) == 2

    def test_limit_is_kept_and_partitions_take_turns(self, log):
        log.append(list(range(100)), partition=0, timestamps=30)
        reader = self.open(sources.log(log.directory))
        polls = [reader.poll(3) for _ in range(4)]
        assert all(sum(len(each.items) for each in polled) <= 3 for polled in polls)
        assert {each.partition for polled in polls[:2] for each in polled} == {0, 1}
        reader.close()

    def test_goes_on_where_it_was_saved(self, log):
        source = sources.log(log.directory)
        reader = self.open(source)
        assert reader.save() == [0, 0]
        first = self.polled(reader, limit=1, polls=2)
        saved = pickle.loads(pickle.dumps(reader.save()))
        reader.close()
        reader = self.open(source)
        reader.restore(saved)
        rest = self.polled(reader)
        assert sorted(first + rest) == [(0, 10, "a"), (0, 20, "b"), (1, 15, "c"), (1, 25, "d")]
        reader.close()
        reader = self.open(sources.log(log.directory, start={0: 1, 1: 2}))
        reader.restore([None, 0])
        assert [item for _, _, item in self.polled(reader)] == ["c", "d", "b"]
        reader.close()

    def test_as_a_processor(self, log):
        supplier = StreamReadSupplier(sources.log(log.directory), Timestamps())
        supplier.prepare(1)
        verify_processor(
            supplier, expect_output=["a", "b", "c", "d"], order_matters=False, endless=True
        )

    @pytest.mark.parametrize("on_error", ["fail", "skip", "sink"])
    def test_records_that_cannot_be_decoded(self, directory, on_error):
        with Log(directory, partitions=1, serializer="pickle") as log:
            for batch in (["a"], [Undecodable()], ["b", "c"], [Undecodable(), "d"]):
                log.append(batch, timestamps=1)
        letters, out = sinks.collect(), sinks.collect()
        p = Pipeline("bad")
        policy = letters if on_error == "sink" else on_error
        source = sources.log(directory, on_error=policy, name="read", serializer="pickle")
        p.read_from(source).with_native_timestamps().write_to(out)
        with EmbeddedEngine() as engine:
            job = engine.submit(p)
            if on_error == "fail":
                with pytest.raises(JobFailedError, match="cannot be decoded here"):
                    job.join(30)
                return
            with Log(directory) as log:
                log.append(["end"], timestamps=2)
            assert_collected_eventually(job, out, ["a", "b", "c", "end"], timeout=30)
            job.cancel()
        name = "skipped" if on_error == "skip" else "dead_letters"
        assert job.metrics()["read"].counters[name] == 2
        if on_error == "sink":
            places = [(each.item.origin, each.item.offset) for each in letters.items]
            assert places == [(str(directory), 1), (str(directory), 4)]
            assert all(b"fail_to_decode" in each.item.raw for each in letters.items)
            assert all("cannot be decoded here" in each.error for each in letters.items)

    def test_records_that_cannot_be_decoded_are_behind_what_was_saved(self, directory):
        with Log(directory, partitions=1, serializer="pickle") as log:
            for batch in (["a"], [Undecodable()], ["b"]):
                log.append(batch, timestamps=1)
        source = sources.log(directory, on_error="skip", serializer="pickle")
        rejected, items, positions = [], [], [None]
        for _ in range(20):
            reader = self.open(source)
            reader.restore(positions)
            for each in reader.poll(1):
                rejected += [record.offset for record, _ in each.rejected]
                items += each.items
            positions = reader.save()
            reader.close()
        assert (items, rejected) == (["a", "b"], [1])

    def test_gap_is_skipped_and_counted_or_fails(self, directory):
        counted = []
        context = ProcessorContext(count=lambda name, amount: counted.append((name, amount)))
        with Log(directory, partitions=1, segment_bytes=1) as log:
            for i in range(5):
                log.append([i])
            log.retain(max_bytes=100)
            (start,) = log.start_offsets()
            reader = self.open(sources.log(directory, start={0: 0}), context=context)
            assert self.polled(reader)[0][2] == start
            assert counted == [("skipped_offsets", start)]
            reader.close()
            reader = self.open(sources.log(directory, start={0: 0}, on_gap="fail"))
            with pytest.raises(BadRecordError):
                reader.poll(1)
            reader.close()

    def test_position_behind_the_end_goes_on_at_the_end(self, log, caplog):
        reader = self.open(sources.log(log.directory))
        reader.restore([100, 1])
        assert [item for _, _, item in self.polled(reader)] == ["d"]
        assert "ends before" in caplog.text
        log.append(["new"], partition=0, timestamps=50)
        assert self.polled(reader) == [(0, 50, "new")]
        reader.close()

    def test_pipelines_write_and_follow(self, directory):
        events = [(i % 10, i) for i in range(1000)]
        fill = Pipeline("fill")
        sink = sinks.log(directory, key=lambda e: e[0], timestamp=lambda e: e[1], partitions=2)
        fill.read_from(sources.items(events)).write_to(sink)
        fill.run(on="embedded")
        found, seen_all = [], threading.Event()

        def take(event):
            found.append(event)
            if len(found) == len(events):
                seen_all.set()

        follow = Pipeline("follow")
        read = follow.read_from(sources.log(directory)).with_native_timestamps()
        read.write_to(sinks.client(take))
        with EmbeddedEngine() as engine:
            job = engine.submit(follow)
            assert seen_all.wait(60)
            job.cancel()
        assert sorted(found, key=lambda e: e[1]) == events

    def test_there_must_be_a_log_unless_it_is_to_be_made(self, directory):
        with pytest.raises(InputNotFoundError, match=r"sources\.log.*write partitions="):
            sources.log(directory).partitions()
        assert len(sources.log(directory, partitions=3).partitions()) == 3

    @pytest.mark.parametrize(
        "options",
        [{"start": "now"}, {"start": 1.5}, {"start": True}, {"on_gap": "?"}, {"serializer": "x"}],
    )
    def test_arguments_that_cannot_work_are_refused(self, directory, options):
        with pytest.raises(InvalidArgumentError, match=r"sources\.log.*write"):
            sources.log(directory, **options)

    def test_unknown_partition_is_refused(self, log):
        with pytest.raises(InvalidArgumentError, match="no partition 7"):
            sources.log(log.directory, start={7: 0}).partitions()


class TestSink:
    def test_writes_as_items_come(self, directory, write_all):
        sink = sinks.log(directory, partitions=3, key=lambda e: e[0], timestamp=lambda e: e[1])
        sink.begin("run")
        writer = pickle.loads(cloudpickle.dumps(sink)).open("run", "w")
        events = [(i % 5, i) for i in range(100)]
        writer.write(events[:50])
        with Log(directory) as log:
            found = [record for partition in range(3) for record in read_all(log, partition)]
            assert sorted(found) == sorted((i, event) for i, event in enumerate(events[:50]))
            writer.write(events[50:])
            sink.commit("run", [writer.finish()])
            assert sum(log.end_offsets()) == 100

    def test_failed_job_leaves_what_it_wrote(self, directory):
        sink = sinks.log(directory)
        sink.begin("run")
        writer = sink.open("run", "w")
        writer.write([1, 2])
        writer.abort()
        sink.abort("run")
        with Log(directory) as log:
            assert items_of(log) == [1, 2]

    def test_says_how_it_wants_to_be_run(self, directory):
        assert sinks.log(directory).name == "log-sink(events)"
        assert not sinks.log(directory).is_blocking
        assert sinks.log(directory, fsync="batch").is_blocking

    def test_mistakes_are_refused_before_anything_runs(self, directory):
        Log(directory, partitions=2).close()
        with pytest.raises(InvalidArgumentError, match=r"sinks\.log.*2 partitions"):
            sinks.log(directory, partitions=3).begin("run")
        with pytest.raises(InvalidArgumentError, match=r"sinks\.log: key=3"):
            sinks.log(directory, key=3)
        sinks.log(directory).begin("run")  # as many as there are
