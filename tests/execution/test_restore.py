"""Restore: each processor gets what it owns, however many there were when it was saved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core import DONE, BroadcastKey, Processor
from jetlet.core.partitioning import assign, partition_id
from jetlet.errors import SnapshotError
from jetlet.execution import progress_state as progress
from jetlet.execution.outbound_edge import BroadcastEdge
from jetlet.execution.progress_state import NO_PROGRESS
from jetlet.execution.queue import BoundedQueue
from jetlet.snapshots.chain.contents import whole
from jetlet.snapshots.format import REPORTS, Chunk, SnapshotRecord, VertexState
from jetlet.snapshots.restore import EndedTasklet, Restore, RestoreTasklet, Route
from jetlet.snapshots.state_sink import StateSink
from jetlet.snapshots.tasklet import TaskletSnapshots

PARTITIONS = 271


def chunks_of(entries, vertex="sum", size=10, processor=0):
    chunks = []
    sink = StateSink(vertex, processor, chunks.append, lambda: False)
    for start in range(0, len(entries), size):
        sink.add(entries[start : start + size])
        sink.flush()
    return chunks


def route(member, members, parallelism, ended=(), first=None):
    places = [
        place if owner == member else None
        for owner, place in assign(PARTITIONS, members, parallelism)
    ]
    queues = [None if i in ended else BoundedQueue(8) for i in range(parallelism)]
    return Route(queues, places, first)


def run(tasklet, *routes):
    """Run it to its end; what came out of each queue."""
    found = [[[] for _ in each.queues] for each in routes]
    for _ in range(100_000):
        state = tasklet.call()
        for each, out in zip(routes, found, strict=True):
            for index, queue in enumerate(each.queues):
                while queue is not None and (entry := queue.poll(3)) is not None:
                    out[index] += [DONE] if entry is DONE else entry
        if state is progress.DONE:
            return found
    pytest.fail("it does not end")


@given(
    st.dictionaries(st.one_of(st.integers(), st.text()), st.integers(), max_size=60),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_every_entry_comes_to_its_owner_and_to_nobody_else(state, members, parallelism):
    chunks = chunks_of(list(state.items()))
    everything = []
    for member in range(members):
        mine = route(member, members, parallelism)
        (out,) = run(RestoreTasklet(whole(iter(chunks)), {"sum": mine}), mine)
        for place, entries in enumerate(out):
            assert entries.pop() is DONE
            owners = assign(PARTITIONS, members, parallelism)
            assert all(owners[partition_id(key)] == (member, place) for key, _ in entries)
            everything += entries
    assert sorted(everything, key=repr) == sorted(state.items(), key=repr)


def test_broadcast_entries_come_to_all():
    entries = [(BroadcastKey(n), n) for n in range(30)]
    mine = route(1, 2, 3)
    (out,) = run(RestoreTasklet(whole(iter(chunks_of(entries))), {"sum": mine}), mine)
    assert out == [[*entries, DONE]] * 3


def test_each_gets_its_own_back_if_there_are_as_many():
    # Also a key that is another's by its partition: that of a local edge, which each member has.
    chunks = [
        chunk
        for n in range(6)
        for chunk in chunks_of([("same key", n), (BroadcastKey(n), n)], processor=n)
    ]
    mine = route(1, 3, 2, first=2)
    (out,) = run(RestoreTasklet(whole(iter(chunks)), {"sum": mine}), mine)
    for local in (0, 1):
        entries = dict(out[local][:-1])
        assert entries.pop("same key") == 2 + local
        assert entries == {BroadcastKey(n): n for n in range(6)}


def test_entries_of_other_vertices_and_reports_are_left_out():
    chunks = [*chunks_of([(1, 1)], "gone"), Chunk(REPORTS, "sum", 0, 0, b"junk")]
    mine = route(0, 1, 1)
    (out,) = run(RestoreTasklet(whole(iter(chunks)), {"sum": mine}), mine)
    assert out == [[DONE]]


def test_completed_processors_get_nothing():
    entries = [(BroadcastKey(0), 0), *((n, n) for n in range(100))]
    mine = route(0, 1, 2, ended={0})
    (out,) = run(RestoreTasklet(whole(iter(chunks_of(entries))), {"sum": mine}), mine)
    assert out[0] == []
    assert out[1][-1] is DONE


def test_it_waits_for_room():
    mine = route(0, 1, 1)
    tasklet = RestoreTasklet(
        whole(iter(chunks_of([(n, n) for n in range(20)], size=20))), {"sum": mine}
    )
    tasklet.call()
    assert tasklet.call() is NO_PROGRESS
    assert tasklet.call() is NO_PROGRESS


# --- What had completed -----------------------------------------------------------------------


def restore_of(**vertices):
    record = SnapshotRecord(
        snapshot_id=4,
        epoch=1,
        job_name="job",
        job_id="id",
        members=2,
        partition_count=PARTITIONS,
        began_ms=0,
        ended_ms=0,
        vertices=vertices,
    )
    return Restore(record, None, 2)


def test_vertex_whose_processors_had_all_completed_is_over_however_many_there_are():
    over = restore_of(a=VertexState(2, ended=(0, 1)))
    assert all(over.has_ended("a", index, 5) for index in range(5))
    assert not over.has_ended("new", 0, 1)


def test_single_processors_are_over_if_the_layout_is_the_same():
    partly = restore_of(a=VertexState(4, ended=(1,)))
    assert [partly.has_ended("a", index, 4) for index in range(4)] == [False, True, False, False]
    assert not any(partly.has_ended("a", index, 6) for index in range(6))
    other_members = Restore(partly._record, None, 4)
    assert not any(other_members.has_ended("a", index, 4) for index in range(4))


def test_ended_tasklet_says_so_to_all_and_ends():
    queues = [BoundedQueue(1), BoundedQueue(1)]
    queues[1].offer(["full"])
    tasklet = EndedTasklet("v", 3, [BroadcastEdge(queues)])
    assert tasklet.call() is NO_PROGRESS
    assert tasklet.call() is NO_PROGRESS
    queues[1].poll(1)
    assert tasklet.call() is progress.DONE
    assert [queue.poll(9) for queue in queues] == [DONE, DONE]


# --- Versions of state ------------------------------------------------------------------------


class Second(Processor):
    schema_version = 2

    def upgrade(self, old_version, state):
        return (old_version, state)


def test_version_of_the_state_is_compared_with_that_of_the_processor():
    saved = restore_of(a=VertexState(1, schema_version=1), b=VertexState(1, schema_version=2))
    assert saved.saved_schema("a", Second()) == 1
    assert saved.saved_schema("b", Second()) is None
    assert saved.saved_schema("new", Second()) is None


def test_values_are_upgraded_before_they_are_restored(bench):
    class Upgrading(Second):
        restored = ()

        def restore_from_snapshot(self, inbox):
            self.restored += tuple(inbox.take())

    step = bench(Upgrading(), inputs=({"is_restore": True},), saved_schema=1)
    step.feed(0, [("k", "old")], DONE)
    step.run()
    assert step.processor.restored == (("k", (1, "old")),)


def test_processor_without_an_upgrade_says_what_to_define():
    class Careless(Processor):
        schema_version = 3

    processor = Careless()
    processor.init(None, restore_context())
    part = TaskletSnapshots(None, saved_schema=2)
    with pytest.raises(SnapshotError, match=r"schema_version 2, and now it is 3: define upgrade"):
        part.upgraded(processor, [("k", 1)])


def restore_context():
    from jetlet.core import ProcessorContext

    return ProcessorContext(vertex_name="careless")
