"""Choosers, each alone and stacked."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from jetlet.tasks.envelope import IncomingEnvelope, SystemStreamPartition
from jetlet.tasks.loop.chooser import (
    BatchingChooser,
    BootstrapChooser,
    ChooserContext,
    PriorityChooser,
    RoundRobinChooser,
    make_chooser,
)

A, B, C = (SystemStreamPartition("s", name, 0) for name in "abc")


class Feed:
    """Gives a chooser the next message of a partition when the one before was chosen."""

    def __init__(self, chooser, **streams):
        self.chooser = chooser
        self.rest = {
            SystemStreamPartition("s", name, 0): deque(
                IncomingEnvelope(SystemStreamPartition("s", name, 0), offset, f"{name}{offset}")
                for offset in range(count)
            )
            for name, count in streams.items()
        }
        for partition in self.rest:
            self.offer(partition)

    def offer(self, partition):
        if self.rest[partition]:
            self.chooser.update(self.rest[partition].popleft())

    def take(self, limit=1000):
        taken = []
        while len(taken) < limit and (envelope := self.chooser.choose()) is not None:
            taken.append(envelope.message)
            self.offer(envelope.partition)
        return " ".join(taken)


def test_an_empty_chooser_gives_nothing():
    assert make_chooser(ChooserContext({A: 0})).choose() is None


def test_round_robin_takes_partitions_in_turn():
    assert Feed(RoundRobinChooser(), a=3, b=2, c=1).take() == "a0 b0 c0 a1 b1 a2"


def test_priority_takes_the_highest_first_and_equals_in_turn():
    feed = Feed(PriorityChooser({A: 1, B: 5, C: 5}), a=2, b=2, c=2)
    assert feed.take() == "b0 c0 b1 c1 a0 a1"


def test_a_message_of_higher_priority_overtakes_those_that_wait():
    feed = Feed(PriorityChooser({A: 1, B: 5}), a=3, b=0)
    assert feed.take(1) == "a0"
    feed.rest[B].append(IncomingEnvelope(B, 0, "b0"))
    feed.offer(B)
    assert feed.take() == "b0 a1 a2"


def test_batching_stays_with_a_partition_for_a_while():
    feed = Feed(BatchingChooser(RoundRobinChooser(), 3), a=5, b=4)
    assert feed.take() == "a0 a1 a2 b0 b1 b2 a3 a4 b3"


def test_batching_goes_on_if_the_partition_has_no_more():
    feed = Feed(BatchingChooser(RoundRobinChooser(), 3), a=1, b=2)
    assert feed.take(1) == "a0"
    assert feed.take(1) == "b0"
    # One that comes late is not part of the batch any more.
    feed.rest[A].append(IncomingEnvelope(A, 1, "a1"))
    feed.offer(A)
    assert feed.take() == "b1 a1"


def test_bootstrap_holds_the_others_until_what_was_newest_is_chosen():
    chooser = BootstrapChooser(RoundRobinChooser(), {B: 2}, lambda partition, offset: offset)
    feed = Feed(chooser, a=2, b=5)
    assert feed.take(3) == "b0 b1 b2"
    assert chooser.is_caught_up
    assert feed.take() == "a0 b3 a1 b4"


def test_bootstrap_waits_for_a_partition_that_has_nothing_yet():
    chooser = BootstrapChooser(RoundRobinChooser(), {B: 0}, lambda partition, offset: offset)
    feed = Feed(chooser, a=1, b=0)
    assert feed.take() == ""
    feed.rest[B].append(IncomingEnvelope(B, 0, "b0"))
    feed.offer(B)
    assert feed.take() == "b0 a0"


def test_bootstrap_compares_offsets_as_the_system_does():
    order = lambda partition, offset: tuple(map(int, offset.split("-")))
    chooser = BootstrapChooser(RoundRobinChooser(), {B: "9-0"}, order)
    chooser.update(IncomingEnvelope(A, "1-0", "a"))
    for offset in ("8-1", "10-0"):  # the goal itself was deleted in the meantime
        chooser.update(IncomingEnvelope(B, offset, offset))
        assert chooser.choose().message == offset
    assert chooser.choose().message == "a"


def test_a_bootstrap_stream_that_ends_early_does_not_block_for_ever():
    chooser = BootstrapChooser(RoundRobinChooser(), {B: 7}, lambda partition, offset: offset)
    chooser.update(IncomingEnvelope(A, 0, "a"))
    assert chooser.choose() is None
    chooser.end_of_stream(B)
    assert chooser.choose().message == "a"


def test_bootstrap_ends_where_all_was_seen_though_no_message_is_there():
    chooser = BootstrapChooser(RoundRobinChooser(), {B: 7}, lambda partition, offset: offset)
    chooser.update(IncomingEnvelope(A, 0, "a"))
    chooser.update(IncomingEnvelope(B, 5, "b"))
    assert chooser.choose().message == "b"
    chooser.seen(B, 6)
    assert chooser.choose() is None
    chooser.seen(B, 7)
    chooser.seen(B, 9)
    assert chooser.choose().message == "a"


def test_only_the_layers_that_are_needed_are_stacked():
    assert type(make_chooser(ChooserContext({A: 0, B: 0}))) is RoundRobinChooser
    assert type(make_chooser(ChooserContext({A: 0, B: 1}))) is PriorityChooser
    assert type(make_chooser(ChooserContext({A: 0}, batch_size=2))) is BatchingChooser
    whole = make_chooser(ChooserContext({A: 0, B: 1}, batch_size=2, bootstrap={A: 1}))
    assert type(whole) is BootstrapChooser
    assert type(whole._wrapped) is BatchingChooser
    assert type(whole._wrapped._wrapped) is PriorityChooser


def test_the_whole_stack():
    context = ChooserContext({A: 0, B: 1, C: 1}, batch_size=2, bootstrap={A: 1})
    feed = Feed(make_chooser(context), a=3, b=3, c=3)
    assert feed.take() == "a0 a1 b0 b1 c0 c1 b2 c2 a2"


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
    st.integers(1, 4),
    st.lists(st.integers(0, 6), min_size=3, max_size=3),
    st.sets(st.integers(0, 2)),
)
def test_whatever_the_stack_each_partition_stays_in_order_and_nothing_is_lost(
    priorities, batch_size, counts, bootstrap
):
    partitions = (A, B, C)
    context = ChooserContext(
        {p: priorities[i % len(priorities)] for i, p in enumerate(partitions)},
        batch_size,
        {partitions[i]: counts[i] - 1 for i in bootstrap if counts[i]},
    )
    feed = Feed(make_chooser(context), **dict(zip("abc", counts, strict=True)))
    taken = feed.take().split()
    for name, count in zip("abc", counts, strict=True):
        assert [m for m in taken if m[0] == name] == [f"{name}{i}" for i in range(count)]
