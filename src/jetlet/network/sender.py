"""SenderTasklet: sends what goes over one distributed edge to one remote member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jetlet.core.items import DONE as DONE_ITEM
from jetlet.core.items import SpecialItem
from jetlet.errors import JobFailedError
from jetlet.execution import progress_state as progress
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.outbox import shorten
from jetlet.execution.progress_state import MADE_PROGRESS, NO_PROGRESS, ProgressState
from jetlet.execution.tasklet import Tasklet
from jetlet.execution.tuning import PACKET_LIMIT
from jetlet.metrics.edge_metrics import EdgeMetrics
from jetlet.network.connection import DATA
from jetlet.network.packets import (
    SPECIAL,
    Buffer,
    PacketBuilder,
    UnsendableItemError,
    encode,
    size_of,
)
from jetlet.network.receive_window import CLOSED, UNIT_BITS, compress, is_within, weigh, wrap

DRAIN = 4096
"""Items taken from the queues at a time."""
PACKETS_PER_CALL = 8
"""Then others get their turn: pickling this much takes well under a millisecond."""
MAX_BACKLOG = 4 * 1024 * 1024
"""Bytes that may wait in this process for the socket, on one connection."""


class Outlet(Protocol):
    """A connection, as far as a sender needs one."""

    backlog: int

    def send(self, kind: int, *parts: Buffer) -> None: ...


class SenderTasklet(Tasklet):
    """Packs items into packets and sends them while the receiver's window allows it.

    What waits in this process is bounded by the window and by the connection's backlog; beyond
    that the queues from the producers fill up, and hold them back.
    """

    def __init__(
        self,
        edge: int,
        name: str,
        member: int,
        inbound: InboundEdge,
        outlet: Outlet,
        packet_size: int = PACKET_LIMIT,
    ) -> None:
        super().__init__()
        self.name = f"{name} to member {member}"
        self.metrics = EdgeMetrics(name, "out", member)
        self._limit = 0
        """Compressed sequence number up to which the receiver takes data."""
        self._edge = edge
        self._inbound = inbound
        self._outlet = outlet
        self._builder = PacketBuilder(edge, packet_size)
        self._batch: Sequence[Any] = ()
        self._at = 0
        self._special: SpecialItem | None = None
        self._sent = 0
        self._is_unwanted = False
        """The receiver wants no more items."""

    def acknowledge(self, limit: int, window: int) -> None:
        """The receiver takes data up to ``limit``; from the network's thread."""
        self._limit = limit
        if window == CLOSED:
            self._is_unwanted = True
            window = 0
        metrics = self.metrics
        metrics.window = window << UNIT_BITS
        # The window starts at what was processed; only whole units of it are known.
        sent = self._sent
        ahead = wrap(compress(sent) - (limit - window))
        metrics.acknowledged = max(0, (sent >> UNIT_BITS) - ahead) << UNIT_BITS
        self.waker.wake()

    def call(self) -> ProgressState:
        made_progress = False
        for _ in range(PACKETS_PER_CALL):
            if not self._has_load():
                break
            if self._outlet.backlog > MAX_BACKLOG or not is_within(self._sent, self._limit):
                self.metrics.blocked.start()
                break
            self.metrics.blocked.stop()
            made_progress = True
            if self._at < len(self._batch):
                self._send_items()
            elif self._send_special():
                return progress.DONE
        return MADE_PROGRESS if made_progress else NO_PROGRESS

    def _has_load(self) -> bool:
        if self._at < len(self._batch) or self._special is not None:
            return True
        self._batch = self._inbound.drain(DRAIN)
        self._at = 0
        self._special = self._inbound.special
        if self._is_unwanted:
            self._inbound.close()
            self._batch = ()
        return bool(self._batch) or self._special is not None

    def _send_items(self) -> None:
        try:
            packet, count = self._builder.build(self._batch, self._at)
        except UnsendableItemError as error:
            raise JobFailedError(
                f"its output cannot be sent to another member: {error}",
                vertex=self.vertex_name or None,
                item=shorten(error.item),
            ) from error.__cause__
        self._at += count
        self.metrics.items += count
        self._send(packet, count)

    def _send_special(self) -> bool:
        item, self._special = self._special, None
        self._send(encode(self._edge, item, SPECIAL), 1)
        return item is DONE_ITEM

    def _send(self, packet: list[Buffer], count: int) -> None:
        size = size_of(packet)
        self._sent += weigh(size, count)
        self._outlet.send(DATA, *packet)
        metrics = self.metrics
        metrics.packets += 1
        metrics.bytes += size
        metrics.sequence = self._sent
