"""SenderTasklet and ReceiverTasklet, stepped by hand: no sockets, no threads, no time."""

from __future__ import annotations

import random
import threading

import pytest

from jetlet.core.items import DONE, IDLE, SnapshotBarrier, SpecialItem, Watermark
from jetlet.core.partitioning import Partitioner, owners
from jetlet.errors import JobFailedError
from jetlet.execution import progress_state as progress
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.outbound_edge import (
    BroadcastEdge,
    PartitionedEdge,
    SingleTargetEdge,
    UnicastEdge,
)
from jetlet.execution.progress_state import MADE_PROGRESS, NO_PROGRESS
from jetlet.execution.queue import BoundedQueue
from jetlet.network.packets import PACKET_LIMIT, SPECIAL, decode_header, decode_items
from jetlet.network.receive_window import ACK_PERIOD_NS, CLOSED, INITIAL_WINDOW, UNIT_BITS
from jetlet.network.receiver import ReceiverTasklet
from jetlet.network.sender import MAX_BACKLOG, SenderTasklet

UNIT = 1 << UNIT_BITS


class Wire:
    """Keeps what is sent."""

    def __init__(self):
        self.backlog = 0
        self.packets = []

    def send(self, kind, *parts):
        self.packets.append(memoryview(b"".join(parts)))

    def items(self):
        out = []
        for packet in self.packets:
            load = decode_items(packet)
            out += [load] if decode_header(packet)[1] == SPECIAL else load
        return out


class Source:
    """A sender with its queues."""

    def __init__(self, producers=1, capacity=10**9, **options):
        self.queues = [BoundedQueue(capacity) for _ in range(producers)]
        self.wire = Wire()
        inbound = InboundEdge(0, self.queues, **options)
        self.sender = SenderTasklet(0, "a -> b", 1, inbound, self.wire)
        self.sender.vertex_name = "a"

    def feed(self, *entries, producer=0):
        for entry in entries:
            if isinstance(entry, SpecialItem):
                assert self.queues[producer].offer_special(entry)
            else:
                assert self.queues[producer].offer(entry) == len(entry)

    def run(self):
        """Call until nothing moves."""
        while (state := self.sender.call()) is MADE_PROGRESS:
            pass
        return state


class Destination:
    """A receiver with its queues, fed by the given members."""

    def __init__(self, consumers=1, capacity=1024, members=(0,), routing=None):
        self.queues = {m: [BoundedQueue(capacity) for _ in range(consumers)] for m in members}
        routing = routing or UnicastEdge
        if consumers == 1:
            routing = lambda queues: SingleTargetEdge(queues[0])
        self.receiver = ReceiverTasklet("a -> b", {m: routing(q) for m, q in self.queues.items()})
        self.receiver.vertex_name = "b"

    def take(self, member=0, consumer=0, limit=10**9):
        out = []
        queue = self.queues[member][consumer]
        while len(out) < limit and (entry := queue.poll(limit - len(out))) is not None:
            out += [entry] if isinstance(entry, SpecialItem) else entry
        return out

    def run(self):
        while (state := self.receiver.call()) is MADE_PROGRESS:
            pass
        return state


# --- Sender ---------------------------------------------------------------------------------


def test_sender_packs_items_up_to_the_limit():
    source = Source()
    source.sender.acknowledge(INITIAL_WINDOW, INITIAL_WINDOW)
    source.feed(list(range(100_000)), DONE)
    assert source.run() is progress.DONE
    assert source.wire.items() == [*range(100_000), DONE]
    sizes = [len(packet) for packet in source.wire.packets]
    assert max(sizes) <= PACKET_LIMIT
    assert len(sizes) < sum(sizes) / PACKET_LIMIT * 2


def test_sender_sends_items_larger_than_a_packet_one_by_one():
    source = Source()
    source.sender.acknowledge(INITIAL_WINDOW, INITIAL_WINDOW)
    source.feed([bytes(PACKET_LIMIT * 2) for _ in range(5)])
    source.run()
    assert len(source.wire.packets) == 5


def test_sender_stops_at_the_limit_and_goes_on_with_the_next_acknowledgement():
    source = Source()
    source.feed([bytes(10_000) for _ in range(1000)])
    assert source.run() is NO_PROGRESS
    # Limit 0 lets the first unit through, so that a short job need not wait for the first ack.
    first = sum(map(len, source.wire.packets))
    assert UNIT - PACKET_LIMIT < first < UNIT + PACKET_LIMIT
    assert source.sender.call() is NO_PROGRESS
    source.sender.acknowledge(9, 9)
    source.run()
    assert 10 * UNIT - PACKET_LIMIT < sum(map(len, source.wire.packets)) < 10 * UNIT + PACKET_LIMIT


def test_sender_waits_for_a_connection_that_has_too_much_to_do():
    source = Source()
    source.sender.acknowledge(INITIAL_WINDOW, INITIAL_WINDOW)
    source.feed([1, 2, 3])
    source.wire.backlog = MAX_BACKLOG + 1
    assert source.run() is NO_PROGRESS
    assert not source.wire.packets
    source.wire.backlog = 0
    source.run()
    assert source.wire.items() == [1, 2, 3]


def test_sender_yields_after_a_few_packets():
    source = Source()
    source.sender.acknowledge(INITIAL_WINDOW, INITIAL_WINDOW)
    source.feed([bytes(PACKET_LIMIT) for _ in range(100)])
    assert source.sender.call() is MADE_PROGRESS
    assert len(source.wire.packets) <= 8


def test_sender_merges_the_watermarks_and_barriers_of_its_producers():
    source = Source(producers=2)
    source.feed([1], Watermark(10), SnapshotBarrier(1), [2], producer=0)
    source.feed([3], Watermark(7), producer=1)
    source.run()
    assert source.wire.items() == [1, 3, Watermark(7)]
    source.feed(Watermark(12), SnapshotBarrier(1), DONE, producer=1)
    source.feed(DONE, producer=0)
    assert source.run() is progress.DONE
    # The item behind the barrier of the first producer stayed behind it.
    assert source.wire.items()[3:] == [Watermark(10), SnapshotBarrier(1), 2, DONE]


def test_unsendable_item_fails_with_its_vertex_and_itself():
    source = Source()
    source.feed([1, threading.Lock(), 2])
    with pytest.raises(JobFailedError, match="cannot be sent to another member: TypeError") as e:
        source.run()
    assert e.value.vertex == "a"
    assert e.value.item.startswith("<unlocked _thread.lock")
    assert isinstance(e.value.__cause__, TypeError)


# --- Receiver -------------------------------------------------------------------------------


def packets_of(*entries, **options):
    source = Source(**options)
    source.sender.acknowledge(2**30, 2**30)
    source.feed(*entries)
    source.run()
    return source.wire.packets


def test_receiver_hands_over_items_in_order_and_ends_with_done():
    dest = Destination()
    for packet in packets_of(["a", "b"], Watermark(5), IDLE, ["c"], SnapshotBarrier(2), DONE):
        dest.receiver.receive(0, packet)
    assert dest.run() is progress.DONE
    # A watermark that is merged before it is sent rises to the top when all are idle.
    assert dest.take() == ["a", "b", Watermark(5), IDLE, "c", SnapshotBarrier(2), DONE]


def test_receiver_acknowledges_only_what_the_queue_accepted():
    dest = Destination(capacity=100)
    lane = dest.receiver.lanes[0]
    (packet,) = packets_of(list(range(220)))
    dest.receiver.receive(0, packet)
    assert dest.run() is NO_PROGRESS
    assert lane.metrics.acknowledged == 0
    assert lane.metrics.in_flight > len(packet)
    assert dest.take() == list(range(100))
    dest.run()
    assert lane.metrics.acknowledged == 0
    assert dest.take() == list(range(100, 200))
    dest.run()
    assert lane.metrics.acknowledged == lane.metrics.sequence
    assert lane.metrics.in_flight == 0
    assert dest.take() == list(range(200, 220))


def test_blocked_receiver_is_not_starved_and_its_window_shrinks():
    dest = Destination(capacity=10)
    lane = dest.receiver.lanes[0]
    lane.limit(0)
    (packet,) = packets_of(list(range(100)))
    dest.receiver.receive(0, packet)
    dest.run()
    assert not lane.packets, "all that came is in its hands"
    lane.limit(ACK_PERIOD_NS)
    assert lane.window.size < INITIAL_WINDOW
    while dest.take():
        dest.run()
    size = lane.window.size
    lane.limit(2 * ACK_PERIOD_NS)
    assert lane.window.size == size, "now it is starved"


def test_one_slow_sender_lane_does_not_hold_up_another():
    dest = Destination(capacity=4, members=(0, 2))
    for packet in packets_of(list(range(100)), DONE):
        dest.receiver.receive(0, packet)
    dest.run()
    for packet in packets_of(["x", "y", "z"], DONE):
        dest.receiver.receive(2, packet)
    assert dest.run() is NO_PROGRESS
    assert dest.take(member=2) == ["x", "y", "z", DONE]
    seen = []
    while dest.receiver.call() is not progress.DONE:
        seen += dest.take(member=0)
    assert [*seen, *dest.take(member=0)] == [*range(100), DONE]


@pytest.mark.parametrize("consumers", [1, 3])
def test_broadcast_reaches_every_local_consumer_once(consumers):
    dest = Destination(consumers, capacity=7, routing=BroadcastEdge)
    for packet in packets_of(list(range(50)), DONE):
        dest.receiver.receive(0, packet)
    got = [[] for _ in range(consumers)]
    rnd = random.Random(consumers)
    state = MADE_PROGRESS
    while state is not progress.DONE:
        state = dest.receiver.call()
        for consumer in range(consumers):
            got[consumer] += dest.take(consumer=consumer, limit=rnd.randint(1, 5))
    for consumer in range(consumers):
        assert [*got[consumer], *dest.take(consumer=consumer)] == [*range(50), DONE]


def test_partitioned_items_reach_the_owner_of_their_key():
    places = owners(271, 3)
    partitioner = Partitioner(None, 271)
    dest = Destination(
        3, routing=lambda queues: PartitionedEdge(queues, Partitioner(None, 271), places)
    )
    for packet in packets_of(list(range(900))):
        dest.receiver.receive(0, packet)
    dest.run()
    for consumer in range(3):
        items = dest.take(consumer=consumer)
        assert items
        assert {places[p] for p in partitioner.partition_ids(items)} == {consumer}


def test_unreadable_packet_fails_naming_vertex_and_sender():
    dest = Destination(members=(4,))
    (packet,) = packets_of([1, 2])
    broken = bytearray(packet)
    broken[12:] = bytes(len(broken) - 12)
    dest.receiver.receive(4, memoryview(broken))
    with pytest.raises(JobFailedError, match="what member 4 sent cannot be read") as e:
        dest.run()
    assert e.value.vertex == "b"


# --- Together -------------------------------------------------------------------------------


def test_weights_are_equal_on_both_sides():
    source, dest = Source(), Destination(capacity=10**6)
    source.sender.acknowledge(2**30, 2**30)
    rnd = random.Random(5)
    for _ in range(200):
        source.feed([rnd.randbytes(rnd.randint(0, 500)) for _ in range(rnd.randint(1, 50))])
        source.feed(Watermark(len(source.wire.packets) * 10**6 + rnd.randint(1, 10**6)))
        source.run()
    for packet in source.wire.packets:
        dest.receiver.receive(0, packet)
    dest.run()
    received = dest.receiver.lanes[0].metrics
    sent = source.sender.metrics
    assert received.acknowledged == received.sequence == sent.sequence
    assert (received.items, received.bytes, received.packets) == (
        sent.items,
        sent.bytes,
        sent.packets,
    )


def test_stalling_consumer_bounds_what_is_on_its_way():
    """Random stalls; what lies between sender and consumer stays within the window."""
    source, dest = Source(capacity=10**9), Destination(capacity=64)
    lane = dest.receiver.lanes[0]
    rnd = random.Random(11)
    payload = [rnd.randbytes(2000) for _ in range(40_000)]
    source.feed(payload, DONE)
    got, now, most, allowed = [], 0, 0, 0
    state = MADE_PROGRESS
    is_stalled = False
    while state is not progress.DONE:
        now += ACK_PERIOD_NS
        limit = lane.limit(now)
        window = lane.window.size
        source.sender.acknowledge(limit, window)
        source.run()
        # The window may have shrunk since: what was allowed once may have been used.
        allowed = max(allowed, lane.metrics.acknowledged + (window + 1) * UNIT)
        assert source.sender.metrics.sequence <= allowed + 2 * PACKET_LIMIT
        for packet in source.wire.packets:
            dest.receiver.receive(0, packet)
        source.wire.packets.clear()
        most = max(most, sum(map(len, lane.packets)))
        is_stalled = rnd.random() < (0.7 if is_stalled else 0.2)
        for _ in range(0 if is_stalled else rnd.randint(1, 60)):
            state = dest.receiver.call()
            got += dest.take()
    got += dest.take()
    assert got == [*payload, DONE]
    assert most <= (INITIAL_WINDOW + 2) * UNIT
    assert source.sender.metrics.blocked.ns > 0


def test_in_flight_is_known_to_the_sender_up_to_a_unit():
    source, dest = Source(), Destination(capacity=10**6)
    lane = dest.receiver.lanes[0]
    source.sender.acknowledge(lane.limit(0), lane.window.size)
    source.feed([bytes(1000) for _ in range(1000)])
    source.run()
    metrics = source.sender.metrics
    assert metrics.in_flight == metrics.sequence
    assert metrics.window == INITIAL_WINDOW * UNIT
    for packet in source.wire.packets:
        dest.receiver.receive(0, packet)
    dest.run()
    source.sender.acknowledge(lane.limit(ACK_PERIOD_NS), lane.window.size)
    assert 0 <= metrics.in_flight < UNIT


def test_metrics_are_plain_data():
    source = Source()
    source.feed([1, 2, 3], DONE)
    source.run()
    row = source.sender.metrics.snapshot()
    assert row["edge"] == "a -> b"
    assert (row["direction"], row["peer"], row["items"], row["packets"]) == ("out", 1, 3, 2)
    assert row["bytes"] > 0
    assert {"window", "in_flight", "blocked_ns"} <= row.keys()


# --- When nobody wants more ---------------------------------------------------------------------


def test_a_sender_whose_receiver_wants_no_more_sends_only_what_is_special():
    source = Source(producers=2)
    source.sender.acknowledge(INITIAL_WINDOW, INITIAL_WINDOW)
    source.feed([1, 2])
    source.run()
    source.sender.acknowledge(INITIAL_WINDOW, CLOSED)
    source.feed([3], Watermark(5), [4], DONE)
    source.feed(Watermark(5), DONE, producer=1)

    assert source.run() is progress.DONE
    assert source.wire.items() == [1, 2, Watermark(5), DONE]
    assert all(queue.is_closed for queue in source.queues)


def test_a_lane_is_closed_when_nobody_behind_it_wants_more():
    queues = [BoundedQueue(10) for _ in range(2)]
    receiver = ReceiverTasklet("a -> b", {1: UnicastEdge(queues)})
    lane = receiver.lanes[1]
    queues[0].close()
    assert not lane.is_closed
    queues[1].close()
    assert lane.is_closed
