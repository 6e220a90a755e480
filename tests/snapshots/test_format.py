"""State files and records: what goes in comes out, and no damage goes unnoticed."""

from __future__ import annotations

import io
import json
import threading
from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core import BroadcastKey
from jetlet.errors import SnapshotError, UnstableKeyError
from jetlet.snapshots import state_sink
from jetlet.snapshots.format import (
    REPORTS,
    STATE,
    Chunk,
    SnapshotRecord,
    StateFile,
    StateFileWriter,
    UnknownFormatError,
    VertexState,
    read_state_file,
)
from jetlet.snapshots.state_sink import StateSink

HEADER = {"snapshot": 3, "epoch": 2, "member": 0, "vertices": ["source", "sum"]}
RECORD = SnapshotRecord(
    snapshot_id=3,
    epoch=2,
    job_name="job",
    job_id="abc",
    members=2,
    partition_count=271,
    began_ms=1000,
    ended_ms=1010,
    files=(StateFile("3-2-member-0.state", 120, 77),),
    vertices={"sum": VertexState(4, 100, 2000, 1, (0, 3)), "source": VertexState(1)},
)

keys = st.one_of(st.integers(), st.text(), st.tuples(st.integers(), st.text()))
states = st.lists(st.tuples(keys, st.one_of(st.none(), st.text(), st.lists(st.integers()))))


def sink_to(chunks):
    return StateSink("sum", 1, chunks.append, lambda: False)


def file_of(*chunks):
    buffer = io.BytesIO()
    writer = StateFileWriter(buffer, "file", HEADER)
    for chunk in chunks:
        writer.write(chunk)
    entry = writer.end()
    assert entry.size == len(buffer.getvalue())
    return buffer.getvalue()


def read(data):
    return list(read_state_file(io.BytesIO(data), "file"))


# --- State ------------------------------------------------------------------------------------


@given(st.lists(states, max_size=4))
def test_state_comes_back(batches):
    chunks = []
    sink = sink_to(chunks)
    for batch in batches:
        sink.add(batch)
    sink.flush()
    expected = [entry for batch in batches for entry in batch]
    assert [entry for chunk in read(file_of(*chunks)) for entry in chunk.items()] == expected
    assert sum(chunk.entries for chunk in chunks) == len(expected)


def test_state_may_change_as_soon_as_it_was_offered():
    chunks, value = [], [1]
    sink = sink_to(chunks)
    sink.add([("key", value)])
    value.append(2)
    sink.flush()
    assert list(chunks[0].items()) == [("key", [1])]


def test_chunks_are_handed_over_when_they_are_large(monkeypatch):
    monkeypatch.setattr(state_sink, "CHUNK_SIZE", 1000)
    chunks = []
    sink = sink_to(chunks)
    for number in range(100):
        sink.add([(number, "x" * 100)])
    sink.flush()
    assert 9 < len(chunks) < 13
    assert [key for chunk in chunks for key, _ in chunk.items()] == list(range(100))


def test_state_that_cannot_be_pickled_is_named():
    sink = sink_to([])
    with pytest.raises(SnapshotError, match="the state of key 'b' cannot be pickled"):
        sink.add([("a", 1), ("b", threading.Lock())])


def test_key_without_a_stable_hash_is_refused():
    for key in (object(), BroadcastKey(object())):
        with pytest.raises(UnstableKeyError):
            sink_to([]).add([(key, 1)])


def test_classes_of_no_module_travel_by_value():
    @dataclass
    class Account:
        balance: int

    chunks = []
    sink = sink_to(chunks)
    sink.add([("a", Account(3)), ("b", defaultdict(lambda: 7))])
    sink.flush()
    (_, account), (_, table) = chunks[0].items()
    assert account.balance == 3
    assert table["any"] == 7


# --- State files ------------------------------------------------------------------------------

CHUNKS = (
    Chunk(STATE, "sum", 1, 2, b"\1\0\2\0" + b"entries"),
    Chunk(REPORTS, "source", 0, 0, b"report"),
)


def test_chunks_come_back_as_they_were():
    assert read(file_of(*CHUNKS)) == list(CHUNKS)
    assert read(file_of()) == []


@given(st.data())
@settings(max_examples=200)
def test_truncated_file_is_noticed(data):
    whole = file_of(*CHUNKS)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(SnapshotError, match="damaged"):
        read(whole[:length])


@given(st.data())
@settings(max_examples=300)
def test_changed_bit_is_noticed_unless_it_changes_nothing(data):
    whole = bytearray(file_of(*CHUNKS))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        chunks = read(bytes(whole))
    except SnapshotError:
        return
    # Headers of chunks are covered by the checksum of the file, which the record has.
    assert [chunk.payload for chunk in chunks] == [chunk.payload for chunk in CHUNKS]


def test_file_of_another_version_is_not_taken_for_a_damaged_one():
    whole = bytearray(file_of())
    whole[len("jetlet state\n")] += 1
    with pytest.raises(UnknownFormatError, match="run it with the version that wrote it"):
        read(bytes(whole))


# --- Records ----------------------------------------------------------------------------------


def test_record_comes_back_as_it_was():
    assert SnapshotRecord.from_bytes(RECORD.to_bytes(), "record") == RECORD


def test_record_can_be_read_by_people():
    values = json.loads(RECORD.to_bytes())
    assert values["snapshot_id"] == 3
    assert values["vertices"]["sum"]["entries"] == 100
    assert values["format"] == 3


@given(st.data())
@settings(max_examples=200)
def test_damaged_record_is_noticed(data):
    whole = RECORD.to_bytes()
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(SnapshotError, match="damaged"):
        SnapshotRecord.from_bytes(whole[:length], "record")
    changed = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed[at] ^= 1 << data.draw(st.integers(0, 6))
    try:
        record = SnapshotRecord.from_bytes(bytes(changed), "record")
    except SnapshotError:
        return
    assert record == RECORD, "only the layout may differ"


def test_record_of_another_version_is_not_taken_for_a_damaged_one():
    from jetlet.snapshots.format import _checksum

    values = json.loads(RECORD.to_bytes())
    del values["crc32"]
    values["format"] = 9
    data = json.dumps({**values, "crc32": _checksum(values)}).encode()
    with pytest.raises(UnknownFormatError):
        SnapshotRecord.from_bytes(data, "record")
