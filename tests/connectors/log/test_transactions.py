"""Transactions on an embedded log."""

from __future__ import annotations

import os
import threading

import pytest

from jetlet import sinks
from jetlet.errors import JetletError
from jetlet.log import Log
from jetlet.log import writer as log_writer
from jetlet.pipeline.sink import TransactionId, WriterPlace


def transaction(number, writer=0, attempt="1"):
    return TransactionId("run", "sink", number, writer, attempt)


def open_writer(sink, index=0, count=1, attempt="1"):
    return sink.open_transactional(WriterPlace("run", "sink", attempt, index, count))


def prepared(into, items, number=0, **place):
    into.begin(transaction(number, **place))
    into.write(items)
    return into.prepare()


def read(directory):
    """All records, by partition, with their timestamps."""
    with Log(directory) as log:
        found = [log.read(i, 0, limit=1 << 20) for i in range(log.partition_count)]
        assert [len(records) for records in found] == log.end_offsets()
        return [list(zip(r.items, r.timestamps, strict=True)) for r in found]


def items(directory):
    return [item for partition in read(directory) for item, _ in partition]


def begun(directory, **options):
    sink = sinks.log(directory, **options)
    sink.begin("run")
    return sink


def test_records_are_visible_when_they_are_committed(tmp_path):
    writer = open_writer(begun(tmp_path))
    first = prepared(writer, ["a", "b"])
    second = prepared(writer, ["c"], 1)
    assert items(tmp_path) == []
    writer.commit(first)
    assert items(tmp_path) == ["a", "b"]
    writer.commit(second)
    writer.close()
    assert items(tmp_path) == ["a", "b", "c"]


def test_reader_that_waits_sees_them_then(tmp_path):
    writer = open_writer(begun(tmp_path))
    with Log(tmp_path) as log:
        reader = log.reader(0, 0)
        first = prepared(writer, ["a"])
        assert reader.poll(10) is None
        writer.commit(first)
        assert reader.poll(10).items == ["a"]
        reader.close()
    writer.close()


def test_keys_and_timestamps_are_those_of_the_log(tmp_path):
    sink = begun(tmp_path / "one", partitions=3, key=lambda i: i % 5, timestamp=lambda i: 1000 + i)
    writer = open_writer(sink)
    writer.commit(prepared(writer, range(100)))
    writer.close()
    with Log(tmp_path / "other", partitions=3) as log:
        log.append(range(100), key=lambda i: i % 5, timestamps=[1000 + i for i in range(100)])
    assert read(tmp_path / "one") == read(tmp_path / "other")
    with Log(tmp_path / "one") as log, Log(tmp_path / "other") as other:
        for partition in range(3):
            assert log.offset_at(partition, 1050) == other.offset_at(partition, 1050)


@pytest.mark.parametrize("serializer", ["pickle", "json", "bytes"])
def test_serializers_do_not_mind(tmp_path, serializer):
    values = [b"x", b""] if serializer == "bytes" else ["x", 1, None]
    writer = open_writer(begun(tmp_path, serializer=serializer))
    writer.commit(prepared(writer, values))
    writer.close()
    assert items(tmp_path) == values


def test_commit_of_many_blocks_and_segments_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(log_writer, "WRITE_SIZE", 1 << 12)
    writer = open_writer(begun(tmp_path, segment_bytes=1 << 14))
    writer.begin(transaction(0))
    for start in range(0, 10_000, 100):
        writer.write(range(start, start + 100))
    writer.commit(writer.prepare())
    writer.close()
    assert items(tmp_path) == list(range(10_000))
    assert len(list((tmp_path / "00000").glob("*.log"))) > 2


def test_commit_that_was_cut_off_goes_on_where_it_was(tmp_path, monkeypatch):
    class Crash(BaseException):
        pass

    sink = begun(tmp_path, partitions=2, key=lambda i: i)
    writer = open_writer(sink)
    writer.begin(transaction(0))
    for start in range(0, 1000, 10):
        writer.write(range(start, start + 10))
    left = writer.prepare()
    monkeypatch.setattr(log_writer, "WRITE_SIZE", 1 << 10)
    for allowed in range(1, 12, 3):
        with monkeypatch.context() as patch:
            calls = []

            def write(fd, data, calls=calls, allowed=allowed, write=os.write):
                calls.append(data)
                if len(calls) > allowed:
                    raise Crash
                return write(fd, data[: len(data) // 2 + 1])

            patch.setattr(os, "write", write)
            with pytest.raises(Crash):
                open_writer(sink, attempt="2").recover([left])
        seen = items(tmp_path)
        assert len(seen) == len(set(seen)) < 1000
    # Somebody else may write in between.
    with Log(tmp_path) as log:
        log.append(["other"], partition=0)
    open_writer(sink, attempt="3").recover([left])
    open_writer(sink, attempt="4").recover([left])
    seen = items(tmp_path)
    seen.remove("other")
    assert sorted(seen) == list(range(1000))
    for partition in read(tmp_path):
        numbers = [item for item, _ in partition if item != "other"]
        assert numbers == sorted(numbers)


def test_two_that_commit_the_same_append_it_once(tmp_path):
    sink = begun(tmp_path, partitions=2, key=lambda i: i)
    for number in range(20):
        left = prepared(open_writer(sink), range(100), number)
        writers = [open_writer(sink, attempt="2"), open_writer(sink, attempt="3")]
        threads = [threading.Thread(target=w.recover, args=([left],)) for w in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for writer in writers:
            writer.close()
        assert len(items(tmp_path)) == 100 * (number + 1)


def test_what_nobody_knows_of_is_removed(tmp_path):
    sink = begun(tmp_path)
    prepared(open_writer(sink), ["prepared"])
    kept = prepared(writer := open_writer(sink), ["kept"], 1)
    writer.keep(kept)
    prepared(open_writer(sink, attempt="3"), ["later"], 2, attempt="3")
    open_writer(sink, attempt="2").recover([])
    [staged] = tmp_path.glob("staged-*")
    assert sorted(path.name for path in staged.iterdir()) == [
        "00002-00000-3",
        "kept-00001-00000-1",
    ]
    sink.commit_last("run", "sink", [kept])
    assert not staged.exists()
    assert items(tmp_path) == ["kept"]


def test_sinks_of_one_job_do_not_mix(tmp_path):
    sink = begun(tmp_path)
    writers = [
        sink.open_transactional(WriterPlace("run", vertex, "1", 0, 1)) for vertex in ("a", "b")
    ]
    left = []
    for vertex, writer in zip("ab", writers, strict=True):
        writer.begin(TransactionId("run", vertex, 0, 0, "1"))
        writer.write([vertex])
        left.append(writer.prepare())
        writer.close()
    sink.commit_last("run", "a", [left[0]])
    sink.commit_last("run", "b", [left[1]])
    assert items(tmp_path) == ["a", "b"]


def test_open_transaction_is_dropped(tmp_path):
    writer = open_writer(begun(tmp_path))
    writer.begin(transaction(0))
    writer.write(["a"])
    writer.close()
    assert [path.name for path in tmp_path.glob("staged-*/*")] == []
    assert items(tmp_path) == []


def test_file_that_vanishes_before_its_commit_fails_the_job(tmp_path):
    writer = open_writer(begun(tmp_path))
    first = prepared(writer, ["a"])
    next(tmp_path.glob("staged-*/*")).unlink()
    with pytest.raises(JetletError, match="somebody has removed it"):
        writer.commit(first)
    writer.close()


def test_damaged_file_is_not_appended(tmp_path):
    writer = open_writer(begun(tmp_path))
    first = prepared(writer, ["a"])
    path = next(tmp_path.glob("staged-*/*"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(JetletError, match="is damaged at byte 0"):
        writer.commit(first)
    writer.close()
    assert items(tmp_path) == []


def test_disk_is_waited_for_where_the_log_does(tmp_path, monkeypatch):
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.fstat(fd).st_ino))
    writer = open_writer(begun(tmp_path, fsync="batch"))
    synced.clear()
    first = prepared(writer, ["a"])
    [staged] = tmp_path.glob("staged-*/*")
    assert {staged.stat().st_ino, staged.parent.stat().st_ino} <= synced
    synced.clear()
    writer.commit(first)
    [segment] = tmp_path.glob("00000/*.log")
    assert segment.stat().st_ino in synced
    writer.close()
