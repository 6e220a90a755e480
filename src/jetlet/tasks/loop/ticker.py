"""Ticker: when something that happens again and again is due."""

from __future__ import annotations

from typing import Final

NEVER: Final = 1 << 63
"""A time, in nanoseconds, that does not come."""


class Ticker:
    """Due every so many seconds from when it is made, or never."""

    __slots__ = ("interval_ns", "next_ns", "taken_ns")

    def __init__(self, interval: float | None, now_ns: int) -> None:
        self.interval_ns = NEVER if interval is None else max(1, round(interval * 1e9))
        self.next_ns = now_ns + self.interval_ns
        self.taken_ns = 0
        """Time that others have waited for what it makes due, since it was due."""

    def tick(self, now_ns: int) -> bool:
        """Whether it is due; what was missed is not made up for."""
        if now_ns < self.next_ns:
            return False
        self.taken_ns = 0
        self.next_ns += self.interval_ns
        if self.next_ns <= now_ns:
            self.next_ns = now_ns + self.interval_ns
        return True
