"""EdgeMetrics: counters of one end of a network edge."""

from __future__ import annotations

from typing import Any

from jetlet.metrics.stopwatch import Stopwatch


class EdgeMetrics:
    """Written by the tasklet's thread, without locks, read from any."""

    __slots__ = (
        "acknowledged",
        "blocked",
        "bytes",
        "direction",
        "edge",
        "items",
        "packets",
        "peer",
        "sequence",
        "window",
    )

    def __init__(self, edge: str, direction: str, peer: int) -> None:
        self.edge = edge
        """Names of the two vertices that the edge joins."""
        self.direction = direction
        """``out`` or ``in``, as seen from the member whose end this is."""
        self.peer = peer
        """The index of the member at the other end of the edge."""
        self.items = 0
        self.bytes = 0
        self.packets = 0
        self.sequence = 0
        """The total weight of what was sent, or has arrived, over this edge."""
        self.acknowledged = 0
        """Weight of it that the receiver's processors have taken, as far as this end knows."""
        self.window = 0
        """The size of the receive window, in bytes."""
        self.blocked = Stopwatch()
        """Runs while something is there that is not allowed to go on."""

    @property
    def in_flight(self) -> int:
        """Bytes sent, or arrived, that no processor has taken yet."""
        return max(0, self.sequence - self.acknowledged)

    def snapshot(self) -> dict[str, Any]:
        """The values now, as plain data."""
        return {
            "edge": self.edge,
            "direction": self.direction,
            "peer": self.peer,
            "items": self.items,
            "bytes": self.bytes,
            "packets": self.packets,
            "window": self.window,
            "in_flight": self.in_flight,
            "blocked_ns": self.blocked.ns,
        }
