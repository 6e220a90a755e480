"""IdleStrategy: what a worker does when none of its tasklets made progress."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from jetlet.errors import InvalidArgumentError

Backoff = tuple[float, float]

COOPERATIVE_BACKOFF: Backoff = (25e-6, 1e-3)
"""First and longest sleep of a cooperative worker, in seconds."""
BLOCKING_BACKOFF: Backoff = (50e-6, 5e-3)
"""The same for a thread with a single, non-cooperative tasklet."""
MAX_DUTY = 40
"""A worker that finds nothing to do sleeps up to this many times longer than it was busy."""
RESTING = 50e-3
"""Longest sleep of a worker whose tasklets all wait to be woken, in seconds."""
PARKED = 0.1
"""Longest sleep of a worker that has no tasklets, in seconds; it is woken when it gets one."""


def check_backoff(backoff: Backoff) -> None:
    """Refuse limits between which nothing lies."""
    first, longest = backoff
    if not 0 < first <= longest:
        raise InvalidArgumentError(
            f"backoff={backoff!r}: write the first and the longest pause of a worker that has "
            f"nothing to do, in seconds, such as (25e-6, 1e-3)"
        )


class IdleStrategy(Protocol):
    """Owned by one worker; only ``wake`` may be called from other threads."""

    def idle(self, count: int) -> None:
        """Called after the ``count``-th pass in a row without progress."""

    def rest(self) -> None:
        """The same, where all tasklets have said that they wait to be woken."""

    def park(self) -> None:
        """Called by a worker that has nothing to pass over."""

    def wake(self) -> None:
        """End the sleep that is under way, or prevent the next one."""

    @property
    def idle_ns(self) -> int:
        """Time spent asleep so far."""


class BackoffIdleStrategy:
    """Sleeps twice as long each time, up to a limit, until something is done or it is woken.

    With very many tasklets, or on a machine where waking up is itself dear, the limit grows with
    the processor time that a pass takes: an idle worker then still leaves the core alone, and who
    hands over data from another thread wakes it anyway.
    """

    __slots__ = (
        "_busy",
        "_cpu_ns",
        "_first",
        "_idle_ns",
        "_is_asleep",
        "_is_signalled",
        "_longest",
        "_parking",
    )

    def __init__(self, first: float = 25e-6, longest: float = 1e-3) -> None:
        self._first = first
        self._longest = longest
        self._parking = threading.Lock()
        self._parking.acquire()
        self._is_asleep = False
        self._is_signalled = False
        self._idle_ns = 0
        self._cpu_ns = 0
        self._busy = 0.0

    @property
    def idle_ns(self) -> int:
        return self._idle_ns

    def idle(self, count: int) -> None:
        pause = self._first * (1 << min(count - 1, 20))
        if pause >= self._longest:
            # The time this thread computed since the last time, not the time that passed: others
            # may have had the core, or the interpreter, in between.
            before, last = self._cpu_ns, self._busy
            self._cpu_ns = time.thread_time_ns()
            self._busy = (self._cpu_ns - before) * 1e-9 if before else 0.0
            # Of two passes the cheaper: one in which the garbage was collected says nothing.
            pause = min(pause, max(self._longest, min(self._busy, last) * MAX_DUTY))
        else:
            self._cpu_ns = 0
        self._sleep(pause)

    def rest(self) -> None:
        self._cpu_ns = 0
        self._sleep(RESTING)

    def park(self) -> None:
        self._cpu_ns = 0
        self._sleep(PARKED)

    def _sleep(self, pause: float) -> None:
        start = time.perf_counter_ns()
        # Whoever signals sets the flag first and looks whether we sleep second; we do it the
        # other way round. So a signal between the last look at the queues and here is not lost.
        self._is_asleep = True
        if not self._is_signalled:
            self._parking.acquire(timeout=pause)
        self._is_asleep = False
        self._is_signalled = False
        self._idle_ns += time.perf_counter_ns() - start

    def wake(self) -> None:
        self._is_signalled = True
        if self._is_asleep:
            try:
                self._parking.release()
            except RuntimeError:
                # Another thread was faster; one wake-up is enough.
                return
