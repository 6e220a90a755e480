"""Clock: the only way the engine learns what time it is, so that a test can be the clock."""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    """Two readings of time. Safe to call from any thread."""

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back; for durations."""

    def time_ms(self) -> int:
        """Milliseconds since 1970; for time stamps."""


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    monotonic_ns = staticmethod(time.perf_counter_ns)

    @staticmethod
    def time_ms() -> int:
        return time.time_ns() // 1_000_000

    def __repr__(self) -> str:
        return "SystemClock()"


SYSTEM_CLOCK: Final[Clock] = SystemClock()
