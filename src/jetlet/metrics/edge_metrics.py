"""EdgeMetrics: counters of one end of a network edge."""

from __future__ import annotations

from typing import Any


class EdgeMetrics:
    """Written by the tasklet's thread, without locks, read from any."""

    __slots__ = ("blocked_calls", "bytes", "items", "name", "packets", "sequence", "window")

    def __init__(self, name: str) -> None:
        self.name = name
        self.items = 0
        self.bytes = 0
        self.packets = 0
        self.sequence = 0
        """Weight of what was sent, or processed."""
        self.window = 0
        """Receiver: size of the window in units of 64 KiB. Sender: the limit it may send up to."""
        self.blocked_calls = 0
        """Calls in which there was something to send and it was not allowed."""

    def snapshot(self) -> dict[str, Any]:
        """The values now, as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}
