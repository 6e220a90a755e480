"""Time in micro-batches: the watermark moves once per batch, at its end.

Within a batch nothing has an order: its parts are read side by side. So events of a batch can be
late only with respect to the batches before. At the end of a batch the watermark becomes the lowest
of those of the tasks that have seen any events in it, each of which is the highest timestamp that
the task has seen, less the allowed lag. It never goes back.

The clock stands still, too: it shows the time of the batch before until all has been read, then
that of this one.
"""

from __future__ import annotations

from collections.abc import Callable

from jetlet.core.clock import SYSTEM_CLOCK


class BatchClock:
    """The clock of a batch."""

    monotonic_ns = staticmethod(SYSTEM_CLOCK.monotonic_ns)

    def __init__(self, before_ms: int, now_ms: int) -> None:
        self._time_ms = before_ms
        self._now_ms = now_ms

    def time_ms(self) -> int:
        return self._time_ms

    def advance(self) -> None:
        """All has been read."""
        self._time_ms = self._now_ms


class BatchEnd:
    """Told by the readers of a task when they have read all of a batch; then calls back once."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._reading = 0

    def expect(self) -> None:
        """A reader begins."""
        self._reading += 1

    def arrive(self) -> None:
        """A reader has come to its end."""
        self._reading -= 1
        if not self._reading:
            self._on_end()
