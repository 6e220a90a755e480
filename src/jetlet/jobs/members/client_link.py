"""ClientLink: how the processors of a member send items to the submitting process."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any

from jetlet.errors import JobFailedError
from jetlet.execution.outbox import shorten
from jetlet.jobs.members.client_delivery import WINDOW
from jetlet.jobs.members.messages import CLIENT
from jetlet.network.packets import PacketBuilder, UnsendableItemError, size_of
from jetlet.network.sender import Outlet

CLIENT_PACKET = 256 * 1024
"""Bytes of a packet: there is no latency to win here by small ones."""
ACK = struct.Struct("!HQ")
"""The form of an acknowledgement: number of the vertex and bytes taken in all."""


class ClientLink:
    """Sends batches while the submitting process keeps up. From any thread.

    Each vertex has a window of its own, so a sink that is slow over there holds up its own
    processors only.
    """

    def __init__(self, outlet: Outlet, vertices: Sequence[str]) -> None:
        self._outlet = outlet
        self._channels = {name: _Channel(number) for number, name in enumerate(vertices)}
        self._numbered = list(self._channels.values())

    def send(self, vertex: str, batch: Sequence[Any]) -> bool:
        """Send a batch for the vertex's hook; ``False`` means "not now"."""
        channel = self._channels[vertex]
        with channel.lock:
            if channel.sent - channel.taken > WINDOW or self._outlet.backlog > WINDOW:
                return False
            at = 0
            while at < len(batch):
                try:
                    packet, count = channel.builder.build(batch, at)
                except UnsendableItemError as error:
                    raise JobFailedError(
                        f"its items cannot be sent to the submitting process: {error}",
                        vertex=vertex,
                        item=shorten(error.item),
                    ) from error.__cause__
                channel.sent += size_of(packet)
                self._outlet.send(CLIENT, *packet)
                at += count
        return True

    def acknowledge(self, body: memoryview) -> None:
        """The submitting process has taken something; from the network's thread."""
        number, taken = ACK.unpack(body)
        self._numbered[number].taken = taken


class _Channel:
    """What goes from one vertex of this member to its hook."""

    __slots__ = ("builder", "lock", "sent", "taken")

    def __init__(self, number: int) -> None:
        self.builder = PacketBuilder(number, CLIENT_PACKET)
        self.lock = threading.Lock()
        """Held while sending, since several processors of a vertex may send at a time."""
        self.sent = 0
        self.taken = 0
