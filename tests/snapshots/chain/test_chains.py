"""Chains of changes: any of their snapshots is what the state was then, whatever has happened."""

from __future__ import annotations

import queue
import random
import uuid
from functools import partial
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core.items import DONE, BroadcastKey
from jetlet.core.partitioning import assign, partition_id
from jetlet.core.state_on_disk import StateOnDisk
from jetlet.errors import SnapshotError
from jetlet.execution import progress_state as progress
from jetlet.execution.queue import BoundedQueue
from jetlet.snapshots.chain import part, pending, sweep
from jetlet.snapshots.chain.contents import entries, latest
from jetlet.snapshots.context import ActiveSnapshot, SnapshotContext
from jetlet.snapshots.driver import _longer
from jetlet.snapshots.format import SnapshotRecord, VertexState
from jetlet.snapshots.incremental import Incremental
from jetlet.snapshots.job_snapshots import chains_of
from jetlet.snapshots.member import MemberSnapshots
from jetlet.snapshots.restore import Restore, Route
from jetlet.snapshots.signing import Signer
from jetlet.snapshots.store import Exports, SnapshotStore, open_export
from jetlet.snapshots.writer import SnapshotWriter
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.disk_table import DiskTable
from jetlet.storage.file_systems import locate

PARTITIONS = 271


class Tabled(Incremental):
    """State in tables that come and go: what windows and maps with state have, without the rest."""

    def __init__(self, index, store=None):
        self.index = index
        self.named = {}
        self.steps = 0
        self._new_table = dict if store is None else store.table

    @property
    def tables(self):
        return self.named

    def saved_entries(self, table, entries):
        return {key: (table, value) for key, value in entries.items()}

    def beside_tables(self):
        return ((BroadcastKey(self.index), self.steps),)

    def put(self, table, key, value):
        self.steps += 1
        if table not in self.named:
            self.named[table] = self._new_table()
        self._touch(table, key)
        kept = self.named[table].get(key)
        if isinstance(kept, list) and isinstance(value, list):
            kept[:] = value  # in place, as functions do with their states
        else:
            self.named[table][key] = value

    def delete(self, table, key):
        self.steps += 1
        if key in self.named.get(table, {}):
            self._touch(table, key)
            del self.named[table][key]

    def drop(self, table):
        self.steps += 1
        if self.touched is not None:
            self.touched.drop(table)
        dropped = self.named.pop(table, None)
        if isinstance(dropped, DiskTable):
            dropped.drop()

    def _touch(self, table, key):
        if self.touched is not None:
            self.touched[table][key] = None

    def save_to_snapshot(self):
        if self.touched is None:
            for table, values in self.named.items():
                self.outbox.offer_batch_to_snapshot([(k, (table, v)) for k, v in values.items()])
            self.outbox.offer_batch_to_snapshot(list(self.beside_tables()))
        return True

    def restore(self, restored):
        for key, value in restored:
            if isinstance(key, BroadcastKey):
                continue
            table, value = value
            assert key not in self.named.get(table, ()), "a key came twice"
            self.put(table, key, value)

    def state(self):
        return {(t, k): v for t, values in self.named.items() for k, v in values.items()}


class Outbox:
    """Takes everything; what is left for later is pickled when the processor has gone on."""

    def __init__(self, sink):
        self._sink = sink
        self._deferred = []
        self.made_progress = False

    def offer_batch_to_snapshot(self, batch):
        self._sink.add(batch)
        return True

    def defer(self, steps):
        self._deferred.append(steps)

    def step(self):
        """Save a little of what is left for later."""
        while self._deferred and next(self._deferred[0], self) is self:
            self._deferred.pop(0)

    def finish(self):
        while self._deferred:
            self.step()
        self._sink.flush()


class Member:
    """A processor, and what takes its part in snapshots."""

    def __init__(self, index, epoch, since, disk):
        self._store = None if disk is None else DiskStore(disk)
        self.processor = Tabled(index, self._store)
        self._snapshots = MemberSnapshots(
            SnapshotContext("exactly-once"), SnapshotWriter(index, epoch, ["state"]), since
        )
        sink = self._snapshots.sink("state", index)
        self._outbox = self.processor.outbox = Outbox(sink)
        self._part = self._snapshots.chain_part("state", index, self.processor, sink)

    def begin(self, active, directory):
        """Save what has to be saved at once."""
        self._reports = queue.SimpleQueue()
        self._snapshots.context.register()
        self._snapshots.begin(active, directory, self._reports.put)
        while not self._part.save(active, self._outbox):
            pass

    def save_early(self):
        """Save of the next snapshot what can be."""
        self._part.save_early(self._outbox)

    def step(self):
        """Save a little of the rest."""
        self._outbox.step()

    def end(self):
        """Save the rest; its report."""
        self._outbox.finish()
        self._snapshots.context.phase1_done()
        report = self._reports.get(timeout=60)
        assert report.error is None
        self._snapshots.context.live = 0
        return report

    def restore(self, restored):
        self.processor.restore(restored)
        self._part.restored()

    def finish(self, success):
        self._part.finish(success=success)

    def close(self):
        self._snapshots.close()
        if self._store is not None:
            self._store.close()


class Job:
    """Members in one process, and their snapshots in a store."""

    def __init__(self, keep, key=None, disk=None):
        self.storage, self.root = locate(f"memory://{uuid.uuid4()}")
        self._keep = keep
        self._signer = Signer(key)
        self._disk = disk
        self.members = []
        self._begin(1)

    def _begin(self, size):
        self.store = SnapshotStore(self.storage, self.root, "job", self._signer)
        self.attempt = self.store.begin_attempt(may_go_back=True)
        self._ids = count(self.attempt.next_id)
        self._good = list(self.attempt.good_areas[: self._keep])
        restored = self.attempt.restored
        is_alike = restored is not None and restored.record.members == size
        self._chains = chains_of(restored.record) if is_alike else {}
        since = min((chain[0].number for chain in self._chains.values()), default=None)
        self.members = [
            Member(index, self.attempt.epoch, since, self._disk) for index in range(size)
        ]
        self.owners = [member for member, _ in assign(PARTITIONS, size, 1)]

    def owner(self, key):
        return self.members[self.owners[partition_id(key)]].processor

    def state(self):
        found = {}
        for member in self.members:
            found.update(member.processor.state())
        return found

    def restart(self, size):
        for member in self.members:
            member.close()
        self._begin(size)
        restored = self.attempt.restored
        if restored is None:
            return
        record = restored.record
        for index, member in enumerate(self.members):
            restore = Restore(record, restored.directory, size)
            way = BoundedQueue(8192)
            is_alike = restore.is_alike("state", size)
            places = [0 if owner == index else None for owner in self.owners]
            tasklet = restore.tasklet({"state": Route([way], places, index if is_alike else None)})
            while tasklet.call() is not progress.DONE:
                pass
            batch = []
            while (some := way.poll(8192)) is not DONE:
                batch += some
            member.restore(batch)

    def snapshot(self, *, success, go_on=lambda: None):
        number = next(self._ids)
        area = next(a for a in range(self._keep + 1) if a not in self._good)
        directory = self.store.make_room(area, self.attempt.epoch)
        reports = self._save(ActiveSnapshot(number), directory, go_on)
        chains = {
            index: _longer(self._chains.get(index, ()), report, number)
            for index, report in enumerate(reports)
        }
        if success:
            self._chains = chains
            self.store.write_record(directory, self._record(number, reports, chains, None))
            self._good = [area, *self._good][: self._keep]
        for member in self.members:
            member.finish(success)

    def _save(self, active, directory, go_on):
        """Reports of the members, which ``go_on`` before all is saved."""
        for member in self.members:
            member.begin(active, directory)
        go_on()
        return [member.end() for member in self.members]

    def export(self, name, *, go_on=lambda: None):
        number = next(self._ids)
        exports = Exports(self.storage, self.root)
        directory = exports.prepare(name)
        active = ActiveSnapshot(number, is_export=True)
        reports = self._save(active, directory, go_on)
        chains = {i: _longer((), report, number) for i, report in enumerate(reports)}
        directory.write_record(self._record(number, reports, chains, name))
        return open_export(exports.directory(name))

    def _record(self, number, reports, chains, name):
        return SnapshotRecord(
            snapshot_id=number,
            epoch=self.attempt.epoch,
            job_name="job",
            job_id="id",
            members=len(self.members),
            partition_count=PARTITIONS,
            began_ms=0,
            ended_ms=0,
            name=name,
            files=tuple(report.file for report in reports if report.file is not None),
            chain=tuple(sorted(file for chain in chains.values() for file in chain)),
            vertices={"state": VertexState(len(self.members), 1, chained=True)},
        )


def contents(stored):
    """What is in a snapshot, by table and key; no key may come twice."""
    found = {}
    for vertex, key, value in entries(stored.record, stored.directory):
        assert vertex == "state"
        if not isinstance(key, BroadcastKey):
            assert (value[0], key) not in found
            found[value[0], key] = value[1]
    return found


KEYS = st.integers(0, 5)
TABLES = st.sampled_from(["main", 10])
VALUES = st.one_of(st.integers(), st.lists(st.integers(), max_size=2))
SEEDS = st.integers(0, 1000)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), TABLES, KEYS, VALUES),
        st.tuples(st.just("put"), TABLES, KEYS, VALUES),
        st.tuples(st.just("put"), TABLES, KEYS, VALUES),
        st.tuples(st.just("delete"), TABLES, KEYS),
        st.tuples(st.just("drop"), TABLES),
        st.tuples(st.just("snapshot"), st.sampled_from([True, True, True, False]), SEEDS),
        st.tuples(st.just("snapshot"), st.just(True), SEEDS),
        st.tuples(st.just("early")),
        st.tuples(st.just("early")),
        st.tuples(st.just("export"), SEEDS),
        st.tuples(st.just("restart"), st.integers(1, 3)),
    ),
    min_size=20,
    max_size=100,
)


@pytest.fixture(scope="module", autouse=True)
def small_sweeps():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sweep, "MIN_SLICE", 1)
        monkeypatch.setattr(sweep, "MAX_SWEEP", 8)
        monkeypatch.setattr(part, "MAX_CHAIN", 10)
        monkeypatch.setattr("jetlet.snapshots.member.ChainPart", partial(part.ChainPart, fewest=1))
        monkeypatch.setattr(pending, "AT_ONCE", 1)
        monkeypatch.setattr(pending, "LARGEST", 1)
        yield


@pytest.fixture(scope="module")
def disk_directory(tmp_path_factory):
    return str(tmp_path_factory.mktemp("disk"))


def go_on(job, oracle, seed):
    """What processors do while what they have left for later is saved."""
    rng = random.Random(seed)
    for _ in range(rng.randrange(6)):
        table, key = rng.choice(["main", 10]), rng.randrange(6)
        action = rng.randrange(8)
        if action == 0:
            for member in job.members:
                member.processor.drop(table)
            for place in [place for place in oracle if place[0] == table]:
                del oracle[place]
        elif action == 1:
            job.owner(key).delete(table, key)
            oracle.pop((table, key), None)
        elif action < 4:
            for member in job.members:
                member.step()
        else:
            job.owner(key).put(table, key, [seed])
            oracle[table, key] = [seed]


@pytest.mark.parametrize("memory", [None, 1, 4000])
@settings(deadline=None, max_examples=20)
@given(steps=STEPS, keep=st.integers(1, 3))
def test_every_snapshot_is_what_the_state_was(disk_directory, memory, steps, keep):
    disk = None if memory is None else StateOnDisk(memory, disk_directory)
    job, saved, oracle = Job(keep, disk=disk), {}, {}
    names = count()
    for step, *args in [*steps, ("snapshot", True, 0), ("restart", 2)]:
        if step == "put":
            table, key, value = args
            job.owner(key).put(table, key, list(value) if isinstance(value, list) else value)
            oracle[table, key] = value
        elif step == "delete":
            table, key = args
            job.owner(key).delete(table, key)
            oracle.pop((table, key), None)
        elif step == "drop":
            for member in job.members:
                member.processor.drop(args[0])
            oracle = {place: value for place, value in oracle.items() if place[0] != args[0]}
        elif step == "early":
            for member in job.members:
                member.save_early()
        elif step == "snapshot":
            before = dict(oracle)
            job.snapshot(success=args[0], go_on=partial(go_on, job, oracle, args[1]))
            if args[0]:
                saved = before
                assert contents(job.store.snapshots()[0]) == saved
        elif step == "export":
            before = dict(oracle)
            after = partial(go_on, job, oracle, args[0])
            exported = job.export(f"export-{next(names)}", go_on=after)
            assert contents(exported) == before
        else:
            job.restart(*args)
            oracle = dict(saved)
            assert job.state() == oracle
    job.restart(1)
    assert job.state() == oracle
    kept = {file.name for stored in job.store.snapshots() for file in stored.record.chain}
    assert kept <= set(job.store.area(0).chain.names())


# --- Files of chains --------------------------------------------------------------------------


def test_a_part_that_is_not_restored_yet_has_nothing_to_save():
    member = Member(0, 0, 7, None)
    member.save_early()  # nothing is touched, and nobody keeps account of it yet
    member.close()


def grown(keep=1, key=None):
    """A job whose chain has several files, and its state."""
    job = Job(keep, key)
    for number in range(40):
        job.owner(number).put("main", number, [number])
    job.snapshot(success=True)
    for number in range(4):
        job.owner(number).put("main", number, [number, "again"])
        job.snapshot(success=True)
    return job, job.state()


def chain_files(job):
    path = job.store.area(0).chain.path
    return [job.storage.join(path, name) for name in job.store.area(0).chain.names()]


def read(storage, path):
    with storage.open_read(path) as file:
        return file.read()


def write(storage, path, data):
    storage.remove(path)
    with storage.create(path) as file:
        file.write(data)


def flipped(data):
    return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]


DAMAGE = {
    "deleted": None,
    "cut off": lambda data: data[:-1],
    "flipped": flipped,
    "emptied": lambda data: b"",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_to_any_file_of_a_chain_names_it(damage):
    job, state = grown()
    needed = {file.name for file in job.store.snapshots()[0].record.chain}
    told = 0
    for path in chain_files(job):
        data = read(job.storage, path)
        if damage is None:
            job.storage.remove(path)
        else:
            write(job.storage, path, damage(data))
        if path.rpartition("/")[2] in needed:
            told += 1
            with pytest.raises(SnapshotError, match=path):
                job.store.begin_attempt()
        with job.storage.create(path) as file:  # as the message says: a copy is put back
            file.write(data)
    assert told >= 5
    job.restart(2)
    assert job.state() == state


def test_older_snapshot_has_its_own_end_of_the_chain():
    job, _ = grown(keep=2)
    older = contents(job.store.snapshots()[1])
    assert older[("main", 3)] == [3]
    newest = max(file.name for file in job.store.snapshots()[0].record.chain)
    job.storage.remove(next(path for path in chain_files(job) if path.endswith(newest)))
    job.restart(1)  # which may go back
    assert job.state() == older


def test_file_that_somebody_else_has_signed_is_refused():
    job, _ = grown(key=b"k" * 16)
    stored = job.store.snapshots()[0]
    other = SnapshotStore(job.storage, job.root, "job", Signer(b"K" * 16))
    directory = other.area(stored.area)
    with pytest.raises(SnapshotError, match=r"\.(state|changes) is signed with another key"):
        list(latest(stored.record, directory))
    assert len(list(latest(stored.record, stored.directory))) > 0


def test_only_files_that_a_snapshot_needs_are_kept():
    job, _ = grown()
    for number in range(100):
        job.owner(number % 40).put("main", number % 40, [number])
        job.snapshot(success=number % 3 != 0)
        needed = {f.name for stored in job.store.snapshots() for f in stored.record.chain}
        there = {path.rpartition("/")[2] for path in chain_files(job)}
        assert needed <= there
        # With each snapshot goes what the one before it was the last to need.
        assert len(there - needed) <= 2 * len(job.members) * (sweep.MAX_SWEEP + 2)
    numbers = {file.number for file in job.store.snapshots()[0].record.chain}
    assert len(numbers) <= 4 * sweep.MAX_SWEEP


def test_files_of_a_later_attempt_are_not_touched():
    job, _ = grown()
    chain = job.store.area(0).chain
    path = job.storage.join(chain.path, "00000009-0002-member-0.changes")
    job.storage.create(path).close()
    job.snapshot(success=True)
    assert path in chain_files(job)


def test_copies_of_a_chain_are_whole():
    job, state = grown()
    exports = Exports(job.storage, job.root)
    exports.copy(job.store.snapshots()[0], "copied")
    job.store.complete(job.attempt.epoch)
    assert chain_files(job) == []
    assert contents(exports.find("copied")) == state
