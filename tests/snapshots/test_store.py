"""SnapshotStore: areas, records, epochs and exports; damage is noticed, and who came later wins."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.errors import RestartableError, SnapshotError
from jetlet.snapshots.directory import RecordInDoubtError, read_file, record_name
from jetlet.snapshots.epochs import SupersededError
from jetlet.snapshots.format import STATE, Chunk, SnapshotRecord, StateFileWriter, VertexState
from jetlet.snapshots.store import Exports, SnapshotStore, open_export
from jetlet.storage.file_systems import LocalStorage, locate

CHUNK = Chunk(STATE, "sum", 0, 1, b"\7\0payload")


def store_at(place, name="job"):
    storage, root = place
    return SnapshotStore(storage, root, name)


def write(store, epoch, snapshot_id, area, *, directory=None, **changes):
    """A whole snapshot: a state file and its record."""
    directory = directory or store.area(area)
    directory.clear()
    name = f"{snapshot_id:08d}-{epoch:04d}-member-0.state"
    file = directory.create(name)
    writer = StateFileWriter(file, name, {"vertices": ["sum"]})
    writer.write(CHUNK)
    entry = writer.end()
    directory.close_durably(file)
    record = SnapshotRecord(
        snapshot_id=snapshot_id,
        epoch=epoch,
        job_name="job",
        job_id="abc",
        members=1,
        partition_count=271,
        began_ms=0,
        ended_ms=1,
        files=(entry,),
        vertices={"sum": VertexState(1, 1, 9)},
        **changes,
    )
    store.write_record(directory, record)
    return record


def state_of(stored):
    return [c for file in stored.record.files for c in stored.directory.chunks(file)]


# --- Attempts ---------------------------------------------------------------------------------


def test_first_attempt_begins_anew(place):
    attempt = store_at(place).begin_attempt()
    assert attempt.epoch == 1
    assert attempt.restored is None
    assert attempt.good_areas == ()
    assert attempt.next_id == 1


def test_next_attempt_goes_on_from_the_newest_snapshot(place):
    store = store_at(place)
    store.begin_attempt()
    write(store, 1, 1, 0)
    newest = write(store, 1, 2, 1)
    attempt = store_at(place).begin_attempt()
    assert attempt.epoch == 2
    assert attempt.restored.record == newest
    assert attempt.good_areas == (1, 0)
    assert attempt.next_id == 3
    assert state_of(attempt.restored) == [CHUNK]


def test_snapshot_without_a_record_does_not_count(place):
    store = store_at(place)
    store.begin_attempt()
    write(store, 1, 1, 0)
    directory = store.area(1)
    directory.clear()
    directory.close_durably(directory.create("00000002-0001-member-0.state"))
    assert store.begin_attempt().restored.record.snapshot_id == 1


def test_jobs_do_not_see_each_other(place):
    store = store_at(place, "one")
    store.begin_attempt()
    write(store, 1, 1, 0)
    for name in ("two", "..", ".", "jobs/one", "one "):
        assert store_at(place, name).begin_attempt().restored is None
    assert store.begin_attempt().restored is not None


def test_completed_job_begins_anew(place):
    store = store_at(place)
    store.begin_attempt()
    write(store, 1, 1, 0)
    store.complete(1)
    attempt = store.begin_attempt()
    assert attempt.restored is None
    assert attempt.epoch == 2
    assert store.snapshots() == []


def test_run_keeps_its_id_until_it_has_completed(place):
    """Also before there is a snapshot: attempts leave things that are known by it."""
    assert store_at(place).begin_attempt("one").job_id == "one"
    assert store_at(place).begin_attempt("two").job_id == "one"
    attempt = store_at(place).begin_attempt("three")
    store_at(place).complete(attempt.epoch)
    assert store_at(place).begin_attempt("four").job_id == "four"
    assert store_at(place).begin_attempt("five", fresh=True).job_id == "five"
    assert store_at(place).begin_attempt("six").job_id == "five"


def test_attempt_that_died_before_it_knew_what_to_begin_with_is_as_if_it_had_not_been(place):
    store = store_at(place)
    attempt = store.begin_attempt("one")
    store.complete(attempt.epoch)
    write(store, attempt.epoch, 1, 0)  # as if it had been killed before all was removed
    store._epochs.claim()
    again = store_at(place).begin_attempt("two")
    assert again.job_id == "two", "the job has completed all the same"
    assert again.restored is None


def test_job_that_must_go_on_does_not_begin_anew(place):
    with pytest.raises(SnapshotError, match="is missing, although it was committed"):
        store_at(place).begin_attempt(committed=(1, 1))


def test_fresh_start_leaves_aside_what_is_there(place):
    store = store_at(place)
    store.begin_attempt()
    write(store, 1, 7, 0)
    assert store.begin_attempt(fresh=True).restored is None
    assert store.begin_attempt().restored is None, "it is gone for good"


def test_initial_snapshot_is_used_until_there_is_one_of_its_own(place):
    store = store_at(place)
    exports = Exports(*place)
    write(store, 1, 5, 0, directory=exports.prepare("before"), name="before")
    initial = exports.find("before")
    assert store.begin_attempt(initial=initial).restored == initial
    assert store.begin_attempt(initial=initial).restored == initial, "nothing of its own yet"
    own = write(store, 2, 6, 0)
    assert store.begin_attempt(initial=initial).restored.record == own
    assert store.begin_attempt(initial=initial, fresh=True).restored == initial


def test_old_epochs_are_forgotten(place):
    store = store_at(place)
    for epoch in (1, 2, 3):
        store.begin_attempt()
        write(store, epoch, epoch, epoch % 2)
    store.forget_epochs(3)
    storage, _ = place
    names = {e.name for e in storage.entries(storage.join(store.directory, "epochs"))}
    assert {name for name in names if name < "0003"} == {"0002.claim", "0002.json"}
    assert {"0003.claim", "0003.json", "0003.00000003.commit"} <= names
    assert store.begin_attempt().epoch == 4


# --- Damage -----------------------------------------------------------------------------------


def damage(place, path, how):
    storage, _ = place
    with storage.open_read(path) as file:
        data = file.read()
    storage.remove(path)
    if how == "missing":
        return
    data = data[:-1] if how == "truncated" else data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]
    file = storage.create(path)
    file.write(data)
    storage.close_durably(file)


@pytest.mark.parametrize("what", ["state", "json"])
@pytest.mark.parametrize("how", ["missing", "truncated", "changed"])
def test_older_snapshot_is_used_only_if_that_is_allowed(place, what, how, caplog):
    """Since the newer one was committed: what it had decided on would be written again."""
    store = store_at(place)
    store.begin_attempt()
    previous = write(store, 1, 1, 0)
    write(store, 1, 2, 1)
    storage, _ = place
    (name,) = [e.name for e in storage.entries(store.area(1).path) if e.name.endswith(what)]
    damage(place, storage.join(store.area(1).path, name), how)
    for _ in range(2):
        with pytest.raises(SnapshotError, match=rf"{name} is .*snapshot 1, of .*allow_older_"):
            store.begin_attempt()
    with caplog.at_level(logging.WARNING):
        attempt = store.begin_attempt(may_go_back=True)
    assert attempt.restored.record == previous
    assert attempt.good_areas == (0,), "the damaged one is written over next"
    assert name in caplog.text
    assert store.begin_attempt().restored.record == previous, "the newer one does not count now"


def test_job_whose_snapshots_are_all_damaged_does_not_begin_anew_by_itself(place):
    store = store_at(place)
    store.begin_attempt()
    record = write(store, 1, 1, 0)
    storage, _ = place
    storage.remove(storage.join(store.area(0).path, record.files[0].name))
    with pytest.raises(SnapshotError, match=r"no snapshot left .*start_fresh=True"):
        store.begin_attempt()
    assert store.begin_attempt(fresh=True).restored is None


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("what", ["record", "area"])
def test_job_whose_snapshots_have_vanished_does_not_begin_anew_by_itself(place, attempts, what):
    store = store_at(place)
    for _ in range(attempts):
        store.begin_attempt()
    record = write(store, attempts, 1, 0)
    if what == "area":
        store.area(0).remove()
    else:
        storage, _ = place
        storage.remove(storage.join(store.area(0).path, record_name(record.order)))
    gone = rf"{record_name(record.order)} is missing, although it was committed"
    for _ in range(2):
        with pytest.raises(SnapshotError, match=gone):
            store.begin_attempt(may_go_back=True)
    assert store.begin_attempt(fresh=True).restored is None
    assert store.begin_attempt().restored is None


def test_completed_job_whose_end_is_gone_does_not_begin_anew_by_itself(place):
    store = store_at(place)
    store.begin_attempt()
    write(store, 1, 1, 0)
    store.complete(1)
    storage, _ = place
    storage.remove(storage.join(store.directory, "epochs", "0001.end"))
    with pytest.raises(SnapshotError, match="is missing, although it was committed"):
        store.begin_attempt()


def test_snapshot_that_the_job_knows_of_is_missed_even_if_all_traces_are_gone(place):
    store = store_at(place)
    store.begin_attempt()
    write(store, 1, 1, 0)
    storage, root = place
    storage.remove_tree(root)
    with pytest.raises(SnapshotError, match="is missing, although it was committed"):
        store.begin_attempt(committed=(1, 1))


@pytest.mark.parametrize("how", ["truncated", "changed", *range(30)])
def test_damaged_origin_is_noticed(place, how):
    """It says what an attempt began with: by it old records count or do not."""
    store = store_at(place)
    store.begin_attempt("run")
    write(store, 1, 1, 0)
    store.begin_attempt()
    storage, _ = place
    path = storage.join(store.directory, "epochs", "0002.json")
    if isinstance(how, str):
        damage(place, path, how)
    else:
        data = bytearray(read_file(storage, path))
        spot = random.Random(how).randrange(len(data) * 8)
        data[spot // 8] ^= 1 << spot % 8
        storage.remove(path)
        with storage.create(path) as file:
            file.write(data)
    told = None
    try:
        attempt = store.begin_attempt()
    except SnapshotError as error:
        told = str(error)
    if told is None:  # a blank for another
        assert attempt.restored.record.order == (1, 1)
    else:
        assert f"{path} is damaged" in told
        assert "start_fresh" in told
        assert store.begin_attempt(fresh=True).restored is None
        assert store.begin_attempt().restored is None


def test_origin_of_an_earlier_version_has_no_checksum(place):
    store = store_at(place)
    store.begin_attempt("run")
    write(store, 1, 1, 0)
    storage, _ = place
    path = storage.join(store.directory, "epochs", "0001.json")
    storage.remove(path)
    with storage.create(path) as file:
        file.write(b'{"restored": null, "job_id": "run"}')
    assert store.begin_attempt().restored.record.order == (1, 1)


def test_file_that_cannot_be_read_may_be_read_later(tmp_path):
    class Unreadable(LocalStorage):
        def open_read(self, path):
            if path.endswith(".state"):
                raise OSError(5, "Input/output error")
            return super().open_read(path)

    store = store_at((LocalStorage(), str(tmp_path)))
    store.begin_attempt()
    write(store, 1, 1, 0)
    with pytest.raises(RestartableError, match=r"member-0\.state cannot be read: .*Input/output"):
        store_at((Unreadable(), str(tmp_path))).begin_attempt()
    assert store.begin_attempt().restored is not None


def test_commit_that_cannot_be_noted_is_not_decided(tmp_path):
    storage = Failing()
    store = store_at((storage, str(tmp_path)))
    store.begin_attempt()
    write(store, 1, 1, 0)
    storage.operations = (".commit",)
    with pytest.raises(OSError, match="create failed"):
        write(store, 1, 2, 1)
    storage.operations = ()
    assert store.begin_attempt().restored.record.order == (1, 1)


# --- Attempts that were given up and live on ----------------------------------------------------


def test_attempt_that_was_superseded_hears_of_it_with_its_next_record(place):
    store = store_at(place)
    store.begin_attempt()
    write(store, 1, 1, 0)
    later = store_at(place)
    later.begin_attempt()
    with pytest.raises(SupersededError, match="this one has number 1, the other 2"):
        write(store, 1, 2, 1)


def test_what_a_superseded_attempt_has_written_does_not_count(place):
    store = store_at(place)
    store.begin_attempt()
    known = write(store, 1, 1, 0)
    store.begin_attempt()
    with pytest.raises(SupersededError):
        write(store, 1, 2, 1)
    assert store.begin_attempt().restored.record == known


def test_record_written_before_the_next_attempt_looked_counts(place):
    store = store_at(place)
    store.begin_attempt()
    epoch = store._epochs.claim()
    with pytest.raises(SupersededError):
        write(store, 1, 1, 0)
    assert epoch == 2
    assert store.begin_attempt().restored.record.order == (1, 1)


@given(st.lists(st.sampled_from(["restart", "record", "zombie", "fresh"]), max_size=12))
@settings(max_examples=50, deadline=None)
def test_history_is_one_line_whatever_old_attempts_write(tmp_path_factory, history):
    store = store_at(locate(str(tmp_path_factory.mktemp("store"))))
    attempt = store.begin_attempt()
    expected, free, next_id = None, 0, 1
    for event in history:
        if event == "record":
            expected = write(store, attempt.epoch, next_id, free)
            free, next_id = 1 - free, next_id + 1
            continue
        if event == "zombie":
            if attempt.epoch > 1:
                with pytest.raises(SupersededError):
                    write(store, attempt.epoch - 1, next_id, free)
                next_id += 1
            continue
        expected = None if event == "fresh" else expected
        attempt = store.begin_attempt(fresh=event == "fresh")
        found = attempt.restored.record if attempt.restored else None
        assert found == expected
        free = 1 - attempt.good_areas[0] if attempt.good_areas else 0
        next_id = max(next_id, attempt.next_id)


# --- Failing storage --------------------------------------------------------------------------


class Failing(LocalStorage):
    """Fails in the operations it is told to."""

    def __init__(self, *operations):
        self.operations = operations

    def create(self, path):
        if path.endswith(self.operations or "nothing"):
            raise OSError("create failed")
        return super().create(path)

    def move(self, source, target):
        self._check("move")
        super().move(source, target)

    def sync_directory(self, path):
        self._check("sync_directory")
        super().sync_directory(path)

    def remove(self, path):
        self._check("remove")
        super().remove(path)

    def _check(self, operation):
        if operation in self.operations:
            raise OSError(f"{operation} failed")


@pytest.mark.parametrize("operation", ["move", "sync_directory"])
def test_record_that_could_not_be_written_is_not_there(tmp_path, operation):
    storage = Failing()
    store = store_at((storage, str(tmp_path)))
    store.begin_attempt()
    storage.operations = (operation,)
    if operation == "sync_directory":
        # It was moved into place already, and is taken away again; that must be made sure of.
        with pytest.raises(RecordInDoubtError):
            write(store, 1, 1, 0)
    else:
        with pytest.raises(OSError, match="move failed"):
            write(store, 1, 1, 0)
    storage.operations = ()
    assert store.snapshots() == []


def test_record_that_cannot_be_taken_away_is_in_doubt(tmp_path):
    storage = Failing()
    store = store_at((storage, str(tmp_path)))
    store.begin_attempt()
    storage.operations = ("sync_directory", "remove")
    with pytest.raises(RecordInDoubtError, match="may have been written"):
        write(store, 1, 1, 0)


# --- Exports ----------------------------------------------------------------------------------


def test_export_is_kept_until_it_is_deleted(place):
    store, exports = store_at(place), Exports(*place)
    store.begin_attempt()
    write(store, 1, 1, None, directory=exports.prepare("before/upgrade"), name="before/upgrade")
    store.complete(1)
    assert exports.names() == ["before/upgrade"]
    found = exports.find("before/upgrade")
    assert state_of(found) == [CHUNK]
    assert found.record == open_export(exports.directory("before/upgrade")).record
    exports.delete("before/upgrade")
    assert exports.names() == []
    with pytest.raises(SnapshotError, match=r"no snapshot named 'before/upgrade'.* none"):
        exports.find("before/upgrade")


def test_export_is_never_written_over(place):
    store, exports = store_at(place), Exports(*place)
    store.begin_attempt()
    write(store, 1, 1, None, directory=exports.prepare("mine"))
    with pytest.raises(SnapshotError, match="choose another name"):
        exports.prepare("mine")


def test_export_that_was_not_finished_is_written_over(place):
    store, exports = store_at(place), Exports(*place)
    store.begin_attempt()
    directory = exports.prepare("mine")
    directory.close_durably(directory.create("00000001-0001-member-0.state"))
    write(store, 1, 2, None, directory=exports.prepare("mine"))
    assert exports.find("mine").record.snapshot_id == 2


def test_snapshot_can_be_exported_later(place):
    store, exports = store_at(place), Exports(*place)
    store.begin_attempt()
    record = write(store, 1, 1, 0)
    (stored,) = store.snapshots()
    exports.copy(stored, "copy")
    write(store, 1, 2, 1)
    write(store, 1, 3, 0)
    copied = exports.find("copy")
    assert copied.record == replace(record, name="copy")
    assert state_of(copied) == [CHUNK]


def test_damaged_export_is_refused(place):
    store, exports = store_at(place), Exports(*place)
    store.begin_attempt()
    directory = exports.prepare("mine")
    record = write(store, 1, 1, None, directory=directory)
    storage, _ = place
    damage(place, storage.join(directory.path, record.files[0].name), "changed")
    with pytest.raises(SnapshotError, match="damaged"):
        exports.find("mine")
