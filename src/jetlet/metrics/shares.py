"""Shares: what a processor does with its time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shares:
    """Three shares of a time, which add up to one."""

    busy: float
    """In calls that got something done."""
    blocked: float
    """Waiting for room in a queue behind it."""
    waiting: float
    """Waiting for input, or for its turn on a core that it shares."""

    @classmethod
    def of(cls, elapsed_ns: int, busy_ns: int, blocked_ns: int) -> Shares | None:
        """Those of a time in nanoseconds; ``None`` if there was none."""
        if elapsed_ns <= 0:
            return None
        # The three are read while they change, and delivering what waits counts as busy, too.
        busy = min(1.0, max(0.0, busy_ns / elapsed_ns))
        blocked = min(1.0 - busy, max(0.0, blocked_ns / elapsed_ns))
        return cls(busy, blocked, 1.0 - busy - blocked)
