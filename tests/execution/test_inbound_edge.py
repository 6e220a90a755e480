"""InboundEdge: merges the queues of an edge and aligns what is in-band."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core import DONE, IDLE, SnapshotBarrier, SpecialItem, Watermark
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.queue import BoundedQueue

BARRIER = SnapshotBarrier(1)
TERMINAL = SnapshotBarrier(1, is_terminal=True)


def edge_of(*contents, exactly_once=True):
    """An edge with one queue per argument, filled with its batches and special items."""
    queues = [BoundedQueue(1024) for _ in contents]
    edge = InboundEdge(0, queues, exactly_once=exactly_once)
    for queue, entries in zip(queues, contents, strict=True):
        fill(queue, *entries)
    return edge


def fill(queue, *entries):
    for entry in entries:
        if isinstance(entry, SpecialItem):
            assert queue.offer_special(entry)
        else:
            assert queue.offer(entry) == len(entry)


def drain(edge, limit=1000):
    return list(edge.drain(limit)), edge.special


def drain_all(edge, limit=1000):
    """Everything there is, as a flat list of items and special items."""
    out = []
    while True:
        batch, special = drain(edge, limit)
        out += batch
        if special is not None:
            out.append(special)
        elif not batch:
            return out


def test_empty_edge_gives_nothing():
    assert drain(edge_of([], [])) == ([], None)


def test_batches_of_all_queues_are_merged_up_to_the_limit():
    edge = edge_of([[1, 2], [3]], [[4, 5]])
    assert drain(edge, 4) == ([1, 2, 3, 4], None)
    assert drain(edge, 4) == ([5], None)


def test_single_batch_is_handed_on_as_it_is():
    batch = [1, 2, 3]
    edge = edge_of([batch])
    assert edge.drain(10) is batch


def test_merging_does_not_change_the_batches():
    first, second = [1], [2]
    edge = edge_of([first, second])
    assert list(edge.drain(10)) == [1, 2]
    assert (first, second) == ([1], [2])


def test_no_queue_is_starved_by_a_full_one():
    edge = edge_of([[1] * 100], [[2] * 100], [[3] * 100])
    firsts = [edge.drain(10)[0] for _ in range(6)]
    assert firsts == [1, 2, 3, 1, 2, 3]


def test_drain_stops_at_a_special_item():
    edge = edge_of([[1, 2], Watermark(5), [3], BARRIER, [4], DONE])
    assert drain(edge) == ([1, 2], Watermark(5))
    assert drain(edge) == ([3], BARRIER)
    assert drain(edge) == ([4], DONE)
    assert edge.is_done
    assert drain(edge) == ([], None)


# --- Watermarks -------------------------------------------------------------------------------


def test_watermark_waits_for_all_queues():
    edge = edge_of([[1], Watermark(10), [2]], [[3]])
    assert drain(edge) == ([1, 2, 3], None)
    fill(edge.queues[1], Watermark(7), [4])
    assert drain(edge) == ([], Watermark(7))
    assert drain(edge) == ([4], None)


def test_all_queues_idle_gives_the_top_watermark_then_idle():
    edge = edge_of([Watermark(10), IDLE], [Watermark(5), IDLE])
    assert drain_all(edge) == [Watermark(5), Watermark(10), IDLE]


def test_data_ends_the_idleness_of_its_queue():
    edge = edge_of([Watermark(5), IDLE, [1]], [Watermark(10)])
    assert drain_all(edge) == [1, Watermark(5)]
    fill(edge.queues[1], Watermark(11))
    assert drain_all(edge) == []


def test_data_that_has_only_not_been_drained_yet_ends_the_idleness_of_its_queue():
    edge = edge_of([IDLE], [[1], Watermark(10)])
    assert drain_all(edge) == [1, Watermark(10)]
    fill(edge.queues[0], Watermark(12), [3], Watermark(15))
    fill(edge.queues[1], [2], Watermark(20))
    assert drain_all(edge) == [2, Watermark(12), 3, Watermark(15)]


def test_done_queue_releases_a_watermark():
    edge = edge_of([Watermark(10)], [DONE])
    assert drain(edge) == ([], Watermark(10))
    assert not edge.is_done


def test_end_of_the_edge_comes_when_all_queues_are_done():
    edge = edge_of([[1], DONE], [[2]])
    assert drain(edge) == ([1, 2], None)
    fill(edge.queues[1], DONE)
    assert drain(edge) == ([], DONE)


# --- Barriers ---------------------------------------------------------------------------------


def test_exactly_once_does_not_drain_a_queue_behind_its_barrier():
    edge = edge_of([[1], BARRIER, [2]], [[3]])
    assert drain(edge) == ([1, 3], None)
    assert drain(edge) == ([], None)
    fill(edge.queues[1], [4], BARRIER, [5])
    assert drain(edge) == ([4], BARRIER)
    assert sorted(drain(edge)[0]) == [2, 5]


def test_at_least_once_goes_on_draining():
    edge = edge_of([[1], BARRIER, [2]], [[3]], exactly_once=False)
    assert drain(edge) == ([1, 2, 3], None)
    fill(edge.queues[1], [4], BARRIER)
    assert drain(edge) == ([4], BARRIER)


def test_terminal_barrier_aligns_also_under_at_least_once():
    edge = edge_of([[1], TERMINAL, [2]], [[3]], exactly_once=False)
    assert drain(edge) == ([1, 3], None)
    fill(edge.queues[1], TERMINAL)
    assert drain(edge) == ([], TERMINAL)
    assert drain(edge) == ([2], None)


@pytest.mark.parametrize("exactly_once", [True, False])
def test_ended_queue_is_not_waited_for(exactly_once):
    edge = edge_of([[1], BARRIER], [[2]], exactly_once=exactly_once)
    assert drain(edge) == ([1, 2], None)
    fill(edge.queues[1], DONE)
    assert drain(edge) == ([], BARRIER)


def test_ended_queue_takes_its_barrier_with_it():
    # Under at-least-once a queue can end behind its barrier: it must not count for another.
    edge = edge_of([BARRIER, DONE], [[1]], [[2]], exactly_once=False)
    assert drain(edge) == ([1, 2], None)
    fill(edge.queues[1], BARRIER)
    assert drain(edge) == ([], None)
    fill(edge.queues[2], BARRIER)
    assert drain(edge) == ([], BARRIER)


def test_released_watermark_goes_before_the_barrier():
    edge = edge_of([Watermark(10), BARRIER], [DONE])
    assert drain_all(edge) == [Watermark(10), BARRIER]


def test_watermark_behind_a_barrier_waits_with_it():
    edge = edge_of([Watermark(1), BARRIER, Watermark(20)], [Watermark(5)])
    assert drain_all(edge) == [Watermark(1)]
    fill(edge.queues[1], Watermark(15), BARRIER)
    assert drain_all(edge) == [BARRIER, Watermark(15)]


def test_special_item_of_one_queue_does_not_hide_the_data_behind_it():
    # A barrier is pending and another queue has a watermark that changes nothing yet.
    edge = edge_of([BARRIER], [Watermark(5), [1, 2]])
    assert drain(edge) == ([1, 2], None)


def test_next_snapshot_starts_afresh():
    second = SnapshotBarrier(2)
    edge = edge_of([BARRIER, [1], second], [BARRIER, [2], second])
    assert drain(edge) == ([], BARRIER)
    assert sorted(edge.drain(10)) == [1, 2]
    assert edge.special is second


# --- Sizes ------------------------------------------------------------------------------------


def test_size_and_capacity_are_those_of_all_queues():
    edge = edge_of([[1, 2]], [[3], Watermark(1)])
    assert edge.size == 4
    assert edge.capacity == 2048
    edge.drain(1)
    assert edge.size == 3


# --- Against a model ---------------------------------------------------------------------------

ENTRIES = st.lists(
    st.one_of(st.integers(1, 5), st.sampled_from(["watermark", "barrier"])), max_size=12
)


@settings(max_examples=200)
@given(st.lists(ENTRIES, min_size=1, max_size=3), st.integers(1, 6), st.booleans(), st.randoms())
def test_every_queue_arrives_whole_and_in_order(plans, limit, exactly_once, random):
    contents, number = [], 0
    for index, plan in enumerate(plans):
        entries, watermark, snapshot = [], 0, 0
        for step in plan:
            if step == "watermark":
                watermark += random.randint(1, 5)
                entries.append(Watermark(watermark))
            elif step == "barrier":
                snapshot += 1
                entries.append(SnapshotBarrier(snapshot))
            else:
                entries.append([(index, snapshot, number + i) for i in range(step)])
                number += step
        contents.append([*entries, DONE])
    # As a coordinator would see to: every queue has the same snapshots, and one that is not
    # aligned is over everywhere before the next one begins.
    snapshots = min(sum(isinstance(e, SnapshotBarrier) for e in c) for c in contents)
    if not exactly_once:
        snapshots = min(snapshots, 1)
    for entries in contents:
        entries[:] = [
            e for e in entries if not (isinstance(e, SnapshotBarrier) and e.snapshot_id > snapshots)
        ]
    edge = edge_of(*contents, exactly_once=exactly_once)
    out = drain_all(edge, limit)

    assert out[-1] is DONE and out.count(DONE) == 1
    for index, entries in enumerate(contents):
        expected = [item for e in entries if isinstance(e, list) for item in e]
        assert [item for item in out if isinstance(item, tuple) and item[0] == index] == expected
    barriers = [e.snapshot_id for e in out if isinstance(e, SnapshotBarrier)]
    assert barriers == sorted(set(barriers))
    if exactly_once:
        assert barriers == list(range(1, snapshots + 1))
        passed = 0
        for entry in out:
            if isinstance(entry, SnapshotBarrier):
                passed = entry.snapshot_id
            elif isinstance(entry, tuple):
                assert min(entry[1], snapshots) == passed, "an item on the wrong side of a barrier"
    watermarks = [e.timestamp for e in out if isinstance(e, Watermark)]
    assert watermarks == sorted(set(watermarks))
