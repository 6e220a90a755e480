"""ReceiverTasklet: takes what comes over one distributed edge from all remote members."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from jetlet.core.items import DONE as DONE_ITEM
from jetlet.errors import JobFailedError
from jetlet.execution import progress_state as progress
from jetlet.execution.outbound_edge import OutboundEdge
from jetlet.execution.progress_state import MADE_PROGRESS, NO_PROGRESS, ProgressState
from jetlet.execution.tasklet import Tasklet
from jetlet.metrics.edge_metrics import EdgeMetrics
from jetlet.network.packets import SPECIAL, decode_header, decode_items
from jetlet.network.receive_window import UNIT_BITS, ReceiveWindow, weigh

PACKETS_PER_CALL = 8


class Lane:
    """What the receiver knows of one sender."""

    __slots__ = ("_is_settled", "_weight", "member", "metrics", "outbound", "packets", "window")

    def __init__(self, name: str, member: int, outbound: OutboundEdge) -> None:
        self.member = member
        self.outbound: OutboundEdge | None = outbound
        """Where its items go; ``None`` when the sender is done."""
        self.packets: deque[memoryview] = deque()
        self.window = ReceiveWindow()
        self.metrics = EdgeMetrics(name, "in", member)
        self._weight = 0
        """The weight of the packet that is being handed to the queues."""
        self._is_settled = True

    @property
    def is_closed(self) -> bool:
        """True if nobody here wants more of its items; from any thread."""
        outbound = self.outbound
        return outbound is not None and outbound.is_unwanted

    def arrive(self, packet: memoryview) -> None:
        """A packet has come; from the network's thread."""
        _, count = decode_header(packet)
        self.metrics.sequence += weigh(len(packet), 1 if count == SPECIAL else count)
        self.packets.append(packet)

    def limit(self, now_ns: int) -> int:
        """What to tell the sender; from the network's thread."""
        is_starved = not self.packets and self._is_settled
        metrics = self.metrics
        limit = self.window.limit(metrics.acknowledged, now_ns, is_starved=is_starved)
        metrics.window = self.window.size << UNIT_BITS
        return limit

    def advance(self) -> bool:
        """Hand over one packet, or more of the one before; true if anything moved."""
        outbound = self.outbound
        if outbound is None:
            return False
        if not self._is_settled:
            if outbound.flush():
                self._settle()
            return outbound.has_moved
        if not self.packets:
            return False
        # In this order: whoever looks in between must not take the lane for starved.
        self._is_settled = False
        packet = self.packets.popleft()
        _, count = decode_header(packet)
        items = decode_items(packet)
        self.metrics.packets += 1
        self.metrics.bytes += len(packet)
        if count == SPECIAL:
            self._weight = weigh(len(packet), 1)
            is_clear = outbound.put_special(items)
            if items is DONE_ITEM:
                self._weight = -1
        else:
            self.metrics.items += count
            self._weight = weigh(len(packet), count)
            is_clear = outbound.put(items)
        if is_clear:
            self._settle()
        else:
            self.metrics.blocked.start()
        return True

    def _settle(self) -> None:
        """All of the packet is in the queues."""
        if self._weight < 0:
            self.outbound = None
            self.metrics.acknowledged = self.metrics.sequence
        else:
            self.metrics.acknowledged += self._weight
        self.metrics.blocked.stop()
        self._is_settled = True


class ReceiverTasklet(Tasklet):
    """Unpickles packets and puts their items into the queues of the local processors.

    An item counts as processed, and is acknowledged, only when a queue has accepted it: so the
    window, and with it what a sender may have on its way, follows the speed of the processors.
    """

    def __init__(self, name: str, outbound: Mapping[int, OutboundEdge]) -> None:
        super().__init__()
        self.name = name
        self.lanes = {member: Lane(name, member, edge) for member, edge in outbound.items()}
        self._open = list(self.lanes.values())

    def receive(self, member: int, packet: memoryview) -> None:
        """A packet has come; from the network's thread."""
        self.lanes[member].arrive(packet)
        self.waker.wake()

    def call(self) -> ProgressState:
        made_progress = has_ended = False
        for lane in self._open:
            for _ in range(PACKETS_PER_CALL):
                try:
                    if not lane.advance():
                        break
                except Exception as error:
                    raise JobFailedError(
                        f"what member {lane.member} sent cannot be read: "
                        f"{type(error).__name__}: {error}",
                        vertex=self.vertex_name or None,
                    ) from error
                made_progress = True
            has_ended = has_ended or lane.outbound is None
        if has_ended:
            self._open = [lane for lane in self._open if lane.outbound is not None]
        if not self._open:
            return progress.DONE
        return MADE_PROGRESS if made_progress else NO_PROGRESS
