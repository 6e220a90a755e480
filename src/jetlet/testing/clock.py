"""ManualClock: time that passes only when a test says so.

Give it to whatever takes a :class:`~jetlet.core.Clock`, such as an engine or a
:class:`~jetlet.core.ProcessorContext`::

    clock = ManualClock()
    context = ProcessorContext(clock=clock)
    clock.advance(1.5)  # a second and a half later
"""

from __future__ import annotations

import threading

from jetlet.errors import InvalidArgumentError


class ManualClock:
    """A clock that stands still until it is advanced. Safe to use from any thread."""

    def __init__(self, time_ms: int = 0) -> None:
        self._start_ns = time_ms * 1_000_000
        self._elapsed_ns = 0
        self._lock = threading.Lock()

    def monotonic_ns(self) -> int:
        """Nanoseconds by which it has been advanced so far."""
        return self._elapsed_ns

    def time_ms(self) -> int:
        """The time it was made with, in milliseconds since 1970, plus what has passed since."""
        return (self._start_ns + self._elapsed_ns) // 1_000_000

    def advance(self, seconds: float = 0.0, *, ms: int = 0, ns: int = 0) -> None:
        """Let time pass; the amounts are added up."""
        step = round(seconds * 1_000_000_000) + ms * 1_000_000 + ns
        if step < 0:
            raise InvalidArgumentError(f"time does not go back: advance by {step} ns is negative")
        with self._lock:
            self._elapsed_ns += step

    def __repr__(self) -> str:
        return f"ManualClock(time_ms={self.time_ms()})"
