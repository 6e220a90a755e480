"""Signed snapshots: what was not written by a job with the same key is never unpickled."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, sources
from jetlet.errors import InvalidArgumentError, SnapshotError
from jetlet.log import Log
from jetlet.snapshots.format import STATE, Chunk, SnapshotRecord, StateFileWriter, VertexState
from jetlet.snapshots.signing import UNSIGNED, Signer
from jetlet.snapshots.store import SnapshotStore
from jetlet.storage.file_systems import LocalStorage

KEY = b"0123456789abcdef"
OTHER = b"fedcba9876543210"


class Touch:
    """Leaves a trace where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def store_at(root, key=KEY):
    return SnapshotStore(LocalStorage(), str(root), "job", Signer(key))


def write(store, payload, signer, area=0):
    """A snapshot of one entry, as whoever has this signer would write it."""
    directory = store.area(area)
    directory.signer = signer
    directory.clear()
    name = "00000001-0001-member-0.state"
    file = directory.create(name)
    writer = StateFileWriter(file, name, {"vertices": ["sum"]}, signer)
    writer.write(Chunk(STATE, "sum", 0, 1, payload))
    entry = writer.end()
    directory.close_durably(file)
    record = SnapshotRecord(
        snapshot_id=1,
        epoch=1,
        job_name="job",
        job_id="abc",
        members=1,
        partition_count=271,
        began_ms=0,
        ended_ms=1,
        files=(entry,),
        vertices={"sum": VertexState(1, 1, 9)},
    )
    store.write_record(directory, record)
    return record


def restored(store):
    """The entries that an attempt would begin with."""
    stored = store.begin_attempt(may_go_back=True).restored
    return [] if stored is None else entries_of(stored)


def entries_of(stored):
    chunks = [c for file in stored.record.files for c in stored.directory.chunks(file)]
    return [entry for chunk in chunks for entry in chunk.items()]


def test_what_was_signed_is_read_with_the_same_key(tmp_path):
    store = store_at(tmp_path)
    store.begin_attempt()
    write(store, pickle.dumps([("k", 1)]), Signer(KEY))
    assert restored(store_at(tmp_path)) == [("k", 1)]


@pytest.mark.parametrize(
    ("written", "read", "reason"),
    [
        (Signer(OTHER), KEY, "signed with another key"),
        (UNSIGNED, KEY, "is not signed, so it may be anybody's"),
        (Signer(KEY), None, r"is signed: write JobConfig\(snapshot_key=...\)"),
    ],
    ids=["another key", "unsigned", "no key"],
)
def test_what_others_have_written_is_refused_before_it_is_unpickled(
    tmp_path, written, read, reason
):
    trace = tmp_path / "trace"
    store = store_at(tmp_path / "state", read)
    store.begin_attempt()
    write(store, pickle.dumps([("k", Touch(trace))]), written)
    with pytest.raises(SnapshotError, match=reason):
        restored(store_at(tmp_path / "state", read))
    assert not trace.exists()


def test_a_state_file_in_the_place_of_a_signed_one_is_refused(tmp_path):
    """The record has its checksum, which whoever replaces the file can make right: it is a CRC."""
    trace = tmp_path / "trace"
    store = store_at(tmp_path / "state")
    store.begin_attempt()
    record = write(store, pickle.dumps([("k", 1)]), Signer(KEY))
    stored = store.snapshots()[0]
    name = record.files[0].name
    with Path(stored.directory.path, name).open("wb") as file:
        evil = StateFileWriter(file, name, {"vertices": ["sum"]}, Signer(OTHER))
        evil.write(Chunk(STATE, "sum", 0, 1, pickle.dumps([("k", Touch(trace))])))
        entry = evil.end()
    forged = replace(stored, record=replace(stored.record, files=(entry,)))
    with pytest.raises(SnapshotError, match="signed with another key"):
        entries_of(forged)
    assert not trace.exists()


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    root = tmp_path_factory.mktemp("signed")
    store = store_at(root)
    store.begin_attempt()
    write(store, pickle.dumps([("k", n) for n in range(20)]), Signer(KEY))
    stored = store.snapshots()[0]
    return stored, Path(stored.directory.path, stored.record.files[0].name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_no_bit_of_a_file_can_be_changed(signed, data):
    stored, path = signed
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
    try:
        with pytest.raises(SnapshotError):
            entries_of(stored)
    finally:
        path.write_bytes(whole)
    assert len(entries_of(stored)) == 20


@pytest.mark.parametrize("members", [1, pytest.param(2, marks=pytest.mark.process)])
def test_a_job_goes_on_from_its_signed_snapshot(tmp_path, members):
    with Log(tmp_path / "in", partitions=1) as log:
        log.append(["a", "a"])

    def counts():
        p = Pipeline("counts")
        stream = p.read_from(sources.log(tmp_path / "in")).without_timestamps()
        counted = stream.grouping_key(lambda word: word).rolling_aggregate(agg.counting())
        counted.write_to(sinks.log(tmp_path / "out"))
        return p

    def run(key, **options):
        config = JobConfig(snapshot_dir=tmp_path / "state", snapshot_key=key, **options)
        with EmbeddedEngine(members=members) as engine:
            job = engine.submit(counts(), config)
            while not written():
                assert not job.status.is_final, job.error
                os.sched_yield()
            job.suspend()
            job.cancel()

    def written():
        with Log(tmp_path / "out", partitions=1) as log:
            return len(log.read(0, 0).items) == len(log_in())

    def log_in():
        with Log(tmp_path / "in") as log:
            return log.read(0, 0).items

    run(KEY)
    with Log(tmp_path / "in") as log:
        log.append(["a"])
    for key in (None, OTHER):
        with pytest.raises(SnapshotError):
            run(key)
    run(KEY)
    with Log(tmp_path / "out") as log:
        assert log.read(0, 0).items == [("a", 1), ("a", 2), ("a", 3)]


@pytest.mark.parametrize("key", [b"short", "a text of sixteen letters", b""])
def test_a_key_is_long_and_of_bytes(key):
    with pytest.raises(InvalidArgumentError, match=r"secrets.token_bytes\(32\)"):
        JobConfig(snapshot_key=key)


def test_a_key_is_never_shown(caplog):
    config = JobConfig(snapshot_key=KEY)
    assert "0123456789abcdef" not in repr(config)
    config.tell_ignored(["snapshot_key"], "a job without snapshots")
    assert "snapshot_key has no effect" in caplog.text
    assert "0123456789abcdef" not in caplog.text
