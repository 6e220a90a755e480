"""Stopwatch: adds up the time in which something is so."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Started and stopped by one thread, without locks, read from any."""

    __slots__ = ("_now", "_since", "_total")

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._now = now
        self._total = 0
        self._since: int | None = None

    def start(self) -> None:
        """It is so from now on; no more happens if it was."""
        if self._since is None:
            self._since = self._now()

    def stop(self) -> None:
        """It is so no more."""
        since = self._since
        if since is not None:
            self._since = None
            self._total += self._now() - since

    @property
    def ns(self) -> int:
        """All of the time so far, in nanoseconds."""
        total, since = self._total, self._since
        return total if since is None else total + self._now() - since
