"""ReceiverTasklet: takes what comes over one distributed edge from all remote members."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from jetlet.core.items import DONE as DONE_ITEM
from jetlet.execution import progress
from jetlet.execution.outbound_edge import OutboundEdge
from jetlet.execution.progress import MADE_PROGRESS, NO_PROGRESS, ProgressState
from jetlet.execution.tasklet import Tasklet
from jetlet.metrics.edge_metrics import EdgeMetrics
from jetlet.network.packets import SPECIAL, decode_header, decode_items
from jetlet.network.receive_window import ReceiveWindow, weigh

PACKETS_PER_CALL = 8


class Lane:
    """What the receiver knows of one sender."""

    __slots__ = ("metrics", "outbound", "packets", "processed", "unacknowledged", "window")

    def __init__(self, name: str, outbound: OutboundEdge) -> None:
        self.outbound: OutboundEdge | None = outbound
        """Where its items go; ``None`` when the sender is done."""
        self.packets: deque[memoryview] = deque()
        self.window = ReceiveWindow()
        self.processed = 0
        """Weight of what the local queues have accepted."""
        self.unacknowledged = 0
        """Weight of the packet that is still being handed to the queues."""
        self.metrics = EdgeMetrics(name)

    def limit(self, now: float) -> int:
        """What to tell the sender; from the network's thread."""
        limit = self.window.limit(self.processed, now, is_starved=not self.packets)
        self.metrics.window = self.window.size
        return limit


class ReceiverTasklet(Tasklet):
    """Unpickles packets and puts their items into the queues of the local processors.

    An item counts as processed, and is acknowledged, only when a queue has accepted it: so the
    window, and with it what a sender may have on its way, follows the speed of the processors.
    """

    def __init__(self, name: str, outbound: Mapping[int, OutboundEdge]) -> None:
        super().__init__()
        self.name = name
        self.lanes = {
            member: Lane(f"{name} from member {member}", edge) for member, edge in outbound.items()
        }
        self._open = list(self.lanes.values())

    def receive(self, member: int, packet: memoryview) -> None:
        """A packet has come; from the network's thread."""
        self.lanes[member].packets.append(packet)
        self.waker.wake()

    def call(self) -> ProgressState:
        made_progress = False
        for lane in self._open:
            for _ in range(PACKETS_PER_CALL):
                if not self._advance(lane):
                    break
                made_progress = True
        if made_progress:
            self._open = [lane for lane in self._open if lane.outbound is not None]
            return MADE_PROGRESS if self._open else progress.DONE
        return NO_PROGRESS if self._open else progress.DONE

    def _advance(self, lane: Lane) -> bool:
        """Hand over one packet, or more of the one before; true if anything moved."""
        outbound = lane.outbound
        if outbound is None:
            return False
        if not outbound.is_clear:
            before = outbound.backlog()
            if not outbound.flush():
                return outbound.backlog() != before
            return self._settle(lane)
        if not lane.packets:
            return False
        packet = lane.packets.popleft()
        _, count = decode_header(packet)
        items = decode_items(packet)
        metrics = lane.metrics
        metrics.packets += 1
        metrics.bytes += len(packet)
        if count == SPECIAL:
            lane.unacknowledged = weigh(len(packet), 1)
            is_clear = outbound.put_special(items)
            if items is DONE_ITEM:
                lane.unacknowledged = -1
        else:
            metrics.items += count
            lane.unacknowledged = weigh(len(packet), count)
            is_clear = outbound.put(items)
        if is_clear:
            self._settle(lane)
        return True

    @staticmethod
    def _settle(lane: Lane) -> bool:
        """All of the packet is in the queues."""
        if lane.unacknowledged < 0:
            lane.outbound = None
        else:
            lane.processed += lane.unacknowledged
            lane.metrics.sequence = lane.processed
        lane.unacknowledged = 0
        return True
