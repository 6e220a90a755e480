"""EdgeOutbox: keeps the order, bounds what is accepted, and watches over the contract."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core import DONE, IDLE, SnapshotBarrier, Watermark
from jetlet.errors import ProcessorContractError
from jetlet.execution.outbound_edge import SingleTargetEdge
from jetlet.execution.outbox import (
    MAX_ITEMS_PER_CALL,
    STATE_BYTES_PER_ITEM,
    EdgeOutbox,
    shorten,
)
from jetlet.execution.queue import BoundedQueue
from jetlet.snapshots.state_sink import StateSink


class Plain:
    """Equal to nothing but itself."""


class Odd:
    def __eq__(self, other):
        raise RuntimeError("do not compare me")

    __hash__ = None


class Mute:
    def __repr__(self):
        raise RuntimeError("no comment")


def make(*capacities, state=None):
    queues = [BoundedQueue(capacity) for capacity in capacities]
    edges = [SingleTargetEdge(queue) for queue in queues]
    outbox = EdgeOutbox(edges, state)
    outbox.begin_call()
    return outbox, queues


def drained(queue):
    out = []
    while (entry := queue.poll(10_000)) is not None:
        out += entry if isinstance(entry, (list, tuple)) else [entry]
    return out


def next_call(outbox):
    assert outbox.flush()
    outbox.begin_call()


def fill(outbox):
    """Offer single items until one is refused; that one."""
    for item in range(MAX_ITEMS_PER_CALL):
        assert outbox.offer(item)
    assert not outbox.offer("refused")
    return "refused"


# --- Where items go ---------------------------------------------------------------------------


def test_items_and_batches_go_to_one_ordinal_several_or_all():
    outbox, queues = make(9, 9, 9)
    outbox.offer("one", 0)
    outbox.offer("two", (0, 2))
    outbox.offer("all")
    outbox.offer_batch(["b-one"], 1)
    outbox.offer_batch(["b-two"], [0, 1])
    outbox.offer_batch(["b-all"])
    outbox.flush()
    assert [drained(queue) for queue in queues] == [
        ["one", "two", "all", "b-two", "b-all"],
        ["all", "b-one", "b-two", "b-all"],
        ["two", "all", "b-all"],
    ]


def test_outbox_without_edges_accepts_and_drops():
    outbox, _ = make()
    assert outbox.edge_count == 0
    assert outbox.offer(1) and outbox.offer_batch([1]) and outbox.offer(Watermark(1))
    assert outbox.flush()


def test_unknown_ordinal_fails():
    outbox, _ = make(1)
    with pytest.raises(IndexError):
        outbox.offer("x", 1)
    with pytest.raises(IndexError):
        outbox.offer_batch(["x"], 1)


def test_none_and_false_are_ordinary_items():
    outbox, (queue,) = make(9)
    for item in (None, False, 0, ()):
        assert outbox.offer(item)
    outbox.flush()
    assert drained(queue) == [None, False, 0, ()]


def test_empty_batch_is_accepted_and_not_sent():
    outbox, (queue,) = make(9)
    assert outbox.offer_batch([])
    assert outbox.flush()
    assert queue.is_empty()


def test_batches_singles_and_watermarks_keep_their_order():
    outbox, (queue,) = make(100)
    outbox.offer(1)
    outbox.offer_batch([2, 3])
    outbox.offer(4)
    outbox.offer(Watermark(7))
    outbox.offer_batch([5])
    outbox.flush()
    assert drained(queue) == [1, 2, 3, 4, Watermark(7), 5]


# --- Refusals ---------------------------------------------------------------------------------


def test_offers_per_call_are_bounded():
    outbox, (queue,) = make(10_000)
    fill(outbox)
    assert outbox.has_unfinished_item()
    next_call(outbox)
    assert outbox.offer("refused")
    assert not outbox.has_unfinished_item()
    outbox.flush()
    assert drained(queue) == [*range(MAX_ITEMS_PER_CALL), "refused"]


def test_batch_is_refused_once_the_bound_is_reached():
    outbox, (queue,) = make(10_000)
    big, next_batch = [0] * (MAX_ITEMS_PER_CALL + 5), [1]
    assert outbox.offer_batch(big), "a batch is accepted whole or not at all"
    assert not outbox.offer_batch(next_batch)
    next_call(outbox)
    assert outbox.offer_batch(next_batch)
    assert drained(queue) == big + next_batch


def test_accepted_batch_that_does_not_fit_blocks_the_outbox():
    outbox, (queue,) = make(2)
    batch = [1, 2, 3, 4]
    assert outbox.offer_batch(batch)
    assert outbox.is_blocked
    assert not outbox.offer(5)
    assert not outbox.flush()
    assert drained(queue) == [1, 2]
    next_call(outbox)
    assert outbox.offer(5)
    assert drained(queue) == [3, 4]
    outbox.flush()
    assert drained(queue) == [5]


def test_other_edge_gets_its_share_while_one_is_full():
    outbox, (full, free) = make(1, 100)
    assert outbox.offer_batch([1, 2, 3])
    assert not outbox.flush()
    assert drained(free) == [1, 2, 3]
    assert drained(full) == [1]
    assert not outbox.flush() and drained(full) == [2]
    assert outbox.flush() and drained(full) == [3]
    assert drained(free) == []


def test_small_batch_does_not_overtake_items_that_wait_for_more_room():
    outbox, (queue,) = make(8)  # takes a part only if that is two items or more
    queue.offer([0] * 7)
    outbox.offer(1)
    outbox.offer(2)
    outbox.offer_batch([3])
    outbox.flush()
    got = drained(queue)
    assert outbox.flush()
    assert got + drained(queue) == [0] * 7 + [1, 2, 3]


def test_watermark_is_refused_behind_items_that_are_not_out():
    outbox, (queue,) = make(1)
    outbox.offer(1)
    outbox.offer(2)
    assert not outbox.offer(Watermark(9))
    assert outbox.has_unfinished_item()
    assert not outbox.flush()
    assert drained(queue) == [1]
    next_call(outbox)
    assert drained(queue) == [2]
    assert outbox.offer(Watermark(9))
    assert drained(queue) == [Watermark(9)]


def test_progress_is_what_was_accepted_or_delivered():
    outbox, (queue,) = make(1)
    outbox.made_progress = False
    outbox.offer_batch([1, 2])
    assert outbox.made_progress
    outbox.made_progress = False
    outbox.flush()
    assert not outbox.made_progress
    drained(queue)
    outbox.flush()
    assert outbox.made_progress


# --- The contract -----------------------------------------------------------------------------


def test_offering_again_in_the_same_call_is_a_breach():
    outbox, _ = make(10_000)
    refused = fill(outbox)
    with pytest.raises(ProcessorContractError, match="offered again in the same call"):
        outbox.offer(refused)


@pytest.mark.parametrize(
    "offer",
    [
        lambda outbox: outbox.offer("other"),
        lambda outbox: outbox.offer("refused", 0),
        lambda outbox: outbox.offer_batch(["refused"]),
        lambda outbox: outbox.offer(Watermark(1)),
        lambda outbox: outbox.offer_batch([]),
    ],
)
def test_offering_something_else_after_a_refusal_is_a_breach(offer):
    outbox, _ = make(10_000)
    fill(outbox)
    next_call(outbox)
    with pytest.raises(ProcessorContractError, match="after a refusal offer the same item"):
        offer(outbox)


@pytest.mark.parametrize(
    "make_item",
    [
        lambda: "text",
        lambda: [1, "two"],
        Plain,
        Odd,
        lambda: float("nan"),
        lambda: ("key", Plain(), float("nan")),
    ],
)
def test_item_that_is_computed_anew_is_the_same_item(make_item):
    outbox, (queue,) = make(10_000)
    for _ in range(MAX_ITEMS_PER_CALL):
        outbox.offer(0)
    assert not outbox.offer(make_item())
    next_call(outbox)
    assert outbox.offer(make_item())
    outbox.flush()
    assert len(drained(queue)) == MAX_ITEMS_PER_CALL + 1


def test_breach_is_reported_even_if_the_item_has_no_text():
    outbox, _ = make(10_000)
    for _ in range(MAX_ITEMS_PER_CALL):
        outbox.offer(0)
    outbox.offer(Mute())
    next_call(outbox)
    with pytest.raises(ProcessorContractError, match="Mute whose repr failed"):
        outbox.offer(1)


@pytest.mark.parametrize("item", [DONE, SnapshotBarrier(1)])
def test_only_the_engine_ends_streams_and_sends_barriers(item):
    outbox, _ = make(9)
    with pytest.raises(ProcessorContractError, match="only the engine sends"):
        outbox.offer(item)


def test_watermarks_must_increase_per_edge():
    outbox, _ = make(9, 9)
    assert outbox.offer(Watermark(5), 0)
    assert outbox.offer(Watermark(3), 1)
    assert outbox.offer(IDLE) and outbox.offer(IDLE)
    with pytest.raises(ProcessorContractError, match="must increase, but 5 follows 5 on ordinal 0"):
        outbox.offer(Watermark(5))


def test_refused_watermark_does_not_count_as_sent():
    outbox, (queue,) = make(1)
    outbox.offer_batch([1, 2])
    assert not outbox.offer(Watermark(5))
    assert drained(queue) == [1]
    next_call(outbox)
    assert outbox.offer(Watermark(5))


# --- Snapshots --------------------------------------------------------------------------------


class State:
    """A sink for state that is full when it is told to be."""

    def __init__(self):
        self.chunks = []
        self.is_full = False
        self.sink = StateSink("vertex", 0, self.chunks.append, lambda: self.is_full)

    def entries(self):
        return [entry for chunk in self.chunks for entry in chunk.items()]


def test_state_goes_to_the_snapshot_and_items_to_the_edges():
    state = State()
    outbox, (queue,) = make(9, state=state.sink)
    outbox.offer("item")
    assert outbox.offer_to_snapshot("key", "value")
    assert outbox.offer_batch_to_snapshot([("a", 1), ("b", 2)])
    outbox.finish_state()
    assert outbox.offer_special(SnapshotBarrier(1))
    assert drained(queue) == ["item", SnapshotBarrier(1)]
    assert state.entries() == [("key", "value"), ("a", 1), ("b", 2)]


def test_full_snapshot_refuses_and_resumes():
    state = State()
    outbox, _ = make(state=state.sink)
    assert outbox.offer_to_snapshot("a", 1)
    state.is_full = True
    assert not outbox.offer_to_snapshot("b", 2)
    next_call(outbox)
    assert not outbox.offer_to_snapshot("b", 2)
    state.is_full = False
    next_call(outbox)
    with pytest.raises(ProcessorContractError, match="offer the same item"):
        outbox.offer_to_snapshot("c", 3)
    next_call(outbox)
    assert outbox.offer_to_snapshot("b", 2)
    outbox.finish_state()
    assert state.entries() == [("a", 1), ("b", 2)]


def test_call_takes_so_much_state_that_it_stays_short():
    outbox, _ = make(state=State().sink)
    assert outbox.offer_batch_to_snapshot([(key, key) for key in range(MAX_ITEMS_PER_CALL)])
    assert not outbox.offer_to_snapshot("more", 1)
    outbox, _ = make(state=State().sink)
    assert outbox.offer_to_snapshot("large", b"x" * STATE_BYTES_PER_ITEM * MAX_ITEMS_PER_CALL)
    assert not outbox.offer_to_snapshot("more", 1)


def test_while_it_only_finishes_it_takes_the_refused_item_and_no_other():
    outbox, (queue,) = make(100_000)
    refused = fill(outbox)
    next_call(outbox)
    outbox.finish_only(is_closed=True)
    assert outbox.offer(refused)
    assert not outbox.offer("next")
    assert not outbox.has_unfinished_item(), "it was not begun"
    outbox.finish_only(is_closed=False)
    next_call(outbox)
    assert outbox.offer("another one")
    assert drained(queue)[-1] == refused
    next_call(outbox)
    assert drained(queue) == ["another one"]


def test_without_a_snapshot_state_is_dropped():
    outbox, (queue,) = make(1)
    assert outbox.offer_to_snapshot("key", "value")
    assert queue.is_empty()


# --- Against a model --------------------------------------------------------------------------

OFFERS = st.lists(
    st.tuples(
        st.sampled_from(["item", "batch", "watermark"]),
        st.integers(1, 6),
        st.sampled_from([None, 0, 1, (0, 1)]),
    ),
    max_size=25,
)


@settings(max_examples=200)
@given(OFFERS, st.integers(1, 16), st.integers(1, 16), st.integers(1, 8), st.randoms())
def test_every_edge_gets_its_items_in_order_however_full_the_queues_are(
    offers, first, second, per_call, random
):
    outbox, queues = make(first, second)
    got, expected = [[], []], [[], []]
    number = 0

    def consume():
        index = random.randrange(2)
        entry = queues[index].poll(random.randint(1, 3))
        if entry is not None:
            got[index].extend([entry] if isinstance(entry, Watermark) else entry)

    def wait_for_next_call():
        for _ in range(10_000):
            if outbox.flush():
                outbox.begin_call()
                return
            consume()
        pytest.fail("the outbox never got rid of what it had accepted")

    for count, (kind, size, ordinal) in enumerate(offers):
        if count % per_call == 0:
            wait_for_next_call()
        number += size
        items = list(range(number - size, number))
        if kind == "batch":
            offer = lambda: outbox.offer_batch(items, ordinal)  # noqa: B023
        else:
            items = [Watermark(number)] if kind == "watermark" else items[:1]
            offer = lambda: outbox.offer(items[0], ordinal)  # noqa: B023
        while not offer():
            assert outbox.has_unfinished_item()
            wait_for_next_call()
        for index in (0, 1) if ordinal is None else (ordinal,) if ordinal in (0, 1) else ordinal:
            expected[index] += items
    wait_for_next_call()
    for index, queue in enumerate(queues):
        got[index] += drained(queue)
    assert got == expected


def test_shorten_fits_on_a_line_and_never_raises():
    assert shorten("x") == "'x'"
    assert len(shorten("x" * 1000)) == 120
    assert shorten(Mute()) == "<Mute whose repr failed: RuntimeError>"
