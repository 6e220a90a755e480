"""Stopwatch: adds up the time in which something is so."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Started and stopped by one thread, without locks, read from any."""

    __slots__ = ("_now", "_state")

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._now = now
        self._state: tuple[int, int | None] = (0, None)
        """The time so far, and since when it is so. Replaced as a whole: the two read apart could
        be of different moments, and the time go back."""

    def start(self) -> None:
        """It is so from now on; no more happens if it was."""
        total, since = self._state
        if since is None:
            self._state = (total, self._now())

    def stop(self) -> None:
        """It is so no more."""
        total, since = self._state
        if since is not None:
            self._state = (total + self._now() - since, None)

    @property
    def ns(self) -> int:
        """All of the time so far, in nanoseconds."""
        total, since = self._state
        return total if since is None else total + self._now() - since
