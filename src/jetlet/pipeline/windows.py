"""Windows: which events are aggregated together, by their event time.

``windows.tumbling(1000)``, ``windows.sliding(10_000, 1000)``, ``windows.session(5000)``; each takes
durations in milliseconds, as ``timedelta`` or as text. ``.early_results(period)`` also emits,
every so often, what a window holds before it is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Generic, NamedTuple, Self, TypeVar

from jetlet.core.durations import Duration, to_ms

K = TypeVar("K")
R = TypeVar("R")


class WindowResult(NamedTuple, Generic[K, R]):
    """What was aggregated from ``start`` (inclusive) to ``end`` (exclusive), for one key."""

    start: int
    end: int
    key: K
    """The key of the group; ``None`` for a window without keys."""
    result: R

    @property
    def is_early(self) -> bool:
        """True if the window may still change."""
        return isinstance(self, EarlyWindowResult)


class EarlyWindowResult(WindowResult[Any, Any]):
    """What a window holds so far; the final result follows."""


@dataclass(frozen=True, slots=True)
class Window:
    """Base of all window definitions."""

    early_period: int | None = None
    """Milliseconds between two early results."""

    def early_results(self, period: Duration) -> Self:
        """Also emit what each window holds so far, every ``period``."""
        return replace(self, early_period=to_ms("early_results: period", period, minimum=1))

    def next_early(self, now_ms: int) -> int:
        """When early results are due next: at every multiple of the period."""
        assert self.early_period is not None
        return now_ms - now_ms % self.early_period + self.early_period

    @property
    def watermark_step(self) -> int:
        """How many ms apart the watermarks may be that it is closed by."""
        raise NotImplementedError

    @property
    def has_frames(self) -> bool:
        """True if it can be put together from parts that several processors aggregate."""
        return False


@dataclass(frozen=True, slots=True)
class SlidingWindow(Window):
    """Windows of ``size`` that begin every ``slide``; tumbling if the two are equal.

    They are aligned to 1970: one begins at every multiple of ``slide``. If that is more than the
    size there is time between two windows, and what happens then is in none.
    """

    size: int = 1
    slide: int = 1

    @property
    def frame(self) -> int:
        """The length of the parts that all windows can be put together from."""
        return gcd(self.size, self.slide)

    @property
    def has_gaps(self) -> bool:
        """True if there are times that belong to no window."""
        return self.slide > self.size

    def next_end(self, time: int) -> int:
        """The end of the first window that ends after that time."""
        return time + self.slide - (time - self.size) % self.slide

    @property
    def watermark_step(self) -> int:
        return self.frame

    @property
    def has_frames(self) -> bool:
        return self.early_period is None


@dataclass(frozen=True, slots=True)
class SessionWindow(Window):
    """Windows that end when no event has come for ``gap``."""

    gap: int = 1

    @property
    def watermark_step(self) -> int:
        return min(100, max(1, self.gap // 100))


def tumbling(size: Duration) -> SlidingWindow:
    """Windows of a fixed size, one after the other."""
    length = to_ms("tumbling: size", size, minimum=1)
    return SlidingWindow(size=length, slide=length)


def sliding(size: Duration, slide: Duration) -> SlidingWindow:
    """Windows of a fixed size, of which one begins every ``slide``.

    They overlap if the slide is less than the size. If it is more, events between two windows are
    in none. It costs least if the size is a multiple of the slide.
    """
    length = to_ms("sliding: size", size, minimum=1)
    return SlidingWindow(size=length, slide=to_ms("sliding: slide", slide, minimum=1))


def session(gap: Duration) -> SessionWindow:
    """Windows that end when no event of the key has come for ``gap``."""
    return SessionWindow(gap=to_ms("session: gap", gap, minimum=1))
