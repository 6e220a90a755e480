"""Windows: which events are aggregated together, by their event time.

``windows.tumbling(1000)``, ``windows.sliding(10_000, 1000)``, ``windows.session(5000)`` and others;
each takes durations in milliseconds, as ``timedelta`` or as text. ``.early_results(period)`` also
emits, every so often, what a window holds before it is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from math import gcd
from typing import Any, Generic, NamedTuple, Self, TypeVar
from zoneinfo import ZoneInfo

from jetlet.core.durations import Duration, to_ms
from jetlet.errors import InvalidArgumentError

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
        """True if the window is not complete yet."""
        return isinstance(self, EarlyWindowResult)

    @property
    def revision(self) -> int:
        """How many late items it has that no result before had a chance to have; 0 unless the
        window allows lateness, and more with each result that comes in the place of another.
        """
        return 0


class EarlyWindowResult(WindowResult[Any, Any]):
    """What a window holds so far; the final result follows."""


class RevisedWindowResult(WindowResult[Any, Any]):
    """What a window holds with items that came late; it takes the place of the result before."""

    def __new__(cls, start: int, end: int, key: Any, result: Any, revision: int = 1) -> Self:
        self = super().__new__(cls, start, end, key, result)
        self.number(revision)
        return self

    def number(self, revision: int) -> None:
        """Say which revision it is."""
        self.__dict__["revision"] = revision

    @property
    def revision(self) -> int:
        return self.__dict__["revision"]  # type: ignore[no-any-return]

    def _replace(self, **fields: Any) -> Self:
        changed = type(self)(*super()._replace(**fields))
        changed.number(self.revision)
        return changed

    def __reduce__(self) -> tuple[Any, ...]:
        return RevisedWindowResult, (*self, self.revision)


@dataclass(frozen=True, slots=True)
class Window:
    """Base of all window definitions."""

    early_period: int | None = None
    """Milliseconds between two early results."""
    lateness: int | None = None
    """Milliseconds for which a window takes late items after it was emitted."""

    def early_results(self, period: Duration) -> Self:
        """Also emit what each window holds so far, every ``period``."""
        return replace(self, early_period=to_ms("early_results: period", period, minimum=1))

    def allow_lateness(self, lateness: Duration) -> Self:
        """Take items that come late, up to so long after the window was complete.

        With the next watermark the result of their key comes again, with a ``revision`` that is
        higher than that of the one before, whose place it takes.
        """
        return replace(self, lateness=to_ms("allow_lateness: lateness", lateness, minimum=1))

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
class FrameWindow(Window):
    """Windows that do not depend on the events, put together from *frames*: times without a gap, of
    which none belongs to a window in part.
    """

    offset: int = 0
    """When one of the windows begins, in ms since 1970."""

    @property
    def frame_length(self) -> int | None:
        """The length of all frames, each of which begins at a multiple of it behind the offset;
        ``None`` if only :meth:`frame_at` knows them.
        """
        raise NotImplementedError

    def frame_at(self, time: int) -> tuple[int, int]:
        """When the frame with that time begins and ends."""
        length = self.frame_length
        assert length is not None
        start = time - (time - self.offset) % length
        return start, start + length

    @property
    def slides(self) -> bool:
        """True if a window has several frames."""
        raise NotImplementedError

    @property
    def has_gaps(self) -> bool:
        """True if there are times that belong to no window."""
        return False

    def is_in_gap(self, start: int) -> bool:
        """True if the frame which begins then belongs to no window."""
        return False

    @property
    def grows(self) -> bool:
        """True if windows that begin together follow each other, each with all that was before."""
        return False

    def next_end(self, time: int) -> int:
        """The end of the first window that ends after that time."""
        raise NotImplementedError

    def start_of(self, end: int) -> int:
        """When the window begins that ends at that time."""
        raise NotImplementedError

    def start_after(self, end: int) -> int:
        """When the window begins that follows the one which ends at that time."""
        raise NotImplementedError

    def last_end(self, frame_end: int) -> int:
        """A time up to which all windows have ended that have the frame which ends then."""
        raise NotImplementedError

    @property
    def has_frames(self) -> bool:
        return self.early_period is None and self.lateness is None

    @property
    def definition(self) -> dict[str, Any]:
        """What says which windows these are, for snapshots."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SlidingWindow(FrameWindow):
    """Windows of ``size`` that begin every ``slide``; tumbling if the two are equal.

    One begins at ``offset``, which is 1970 by default. If the slide is more than the size there is
    time between two windows, and what happens then is in none.
    """

    size: int = 1
    slide: int = 1

    @property
    def frame_length(self) -> int:
        return gcd(self.size, self.slide)

    @property
    def slides(self) -> bool:
        return self.size > self.frame_length

    @property
    def has_gaps(self) -> bool:
        return self.slide > self.size

    def is_in_gap(self, start: int) -> bool:
        return (start - self.offset) % self.slide >= self.size

    def next_end(self, time: int) -> int:
        return time + self.slide - (time - self.offset - self.size) % self.slide

    def start_of(self, end: int) -> int:
        return end - self.size

    def start_after(self, end: int) -> int:
        return end - self.size + self.slide

    def last_end(self, frame_end: int) -> int:
        return frame_end + self.size - self.frame_length

    @property
    def watermark_step(self) -> int:
        return gcd(self.frame_length, self.offset)

    @property
    def definition(self) -> dict[str, Any]:
        offset = {"offset": self.offset} if self.offset else {}
        return {"window": "sliding", "size": self.size, "slide": self.slide, **offset}


@dataclass(frozen=True, slots=True)
class CumulativeWindow(FrameWindow):
    """Windows that begin together, every ``size``, and end every ``step`` until the next begin."""

    size: int = 1
    step: int = 1

    @property
    def frame_length(self) -> int:
        return self.step

    @property
    def slides(self) -> bool:
        return self.size > self.step

    def is_in_gap(self, start: int) -> bool:
        """True if the frame which begins then belongs to no window."""
        return False

    @property
    def grows(self) -> bool:
        return True

    def next_end(self, time: int) -> int:
        return self.frame_at(time)[1]

    def start_of(self, end: int) -> int:
        return self.start_after(end - 1)

    def start_after(self, end: int) -> int:
        return end - (end - self.offset) % self.size

    def last_end(self, frame_end: int) -> int:
        return self.start_of(frame_end) + self.size

    @property
    def watermark_step(self) -> int:
        return gcd(self.step, self.offset)

    @property
    def definition(self) -> dict[str, Any]:
        offset = {"offset": self.offset} if self.offset else {}
        return {"window": "cumulative", "size": self.size, "step": self.step, **offset}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000
_FIRST, _LAST = -62_135_000_000_000, 253_402_000_000_000
"""Between these times there is a calendar."""


@dataclass(frozen=True, slots=True)
class CalendarDayWindow(FrameWindow):
    """The days of a calendar: from midnight to midnight by the clocks of a time zone."""

    zone: str = "UTC"

    @property
    def frame_length(self) -> None:
        return None

    def frame_at(self, time: int) -> tuple[int, int]:
        if not _FIRST <= time < _LAST:  # no calendar goes so far
            return time - time % _DAY, time - time % _DAY + _DAY
        zone = _zone(self.zone)
        day = (_EPOCH + timedelta(milliseconds=time)).astimezone(zone).date()
        if time >= _midnight(day + timedelta(days=1), zone):
            day += timedelta(days=1)  # it has begun already, before clocks were set back behind it
        return _midnight(day, zone), _midnight(day + timedelta(days=1), zone)

    @property
    def slides(self) -> bool:
        return False

    def next_end(self, time: int) -> int:
        return self.frame_at(time)[1]

    def start_of(self, end: int) -> int:
        return self.frame_at(end - 1)[0]

    def start_after(self, end: int) -> int:
        return end

    def last_end(self, frame_end: int) -> int:
        return frame_end

    @property
    def watermark_step(self) -> int:
        return 1000  # clocks are set by whole seconds

    @property
    def definition(self) -> dict[str, Any]:
        return {"window": "calendar days", "zone": self.zone}


@lru_cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _midnight(day: date, zone: ZoneInfo) -> int:
    """When a day begins. Where clocks are set forward at midnight, that is the moment itself."""
    start = datetime(day.year, day.month, day.day, tzinfo=zone)
    return (start - _EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class SessionWindow(Window):
    """Windows that end when no event has come for ``gap``, or when they are ``max_length`` long."""

    gap: int = 1
    max_length: int | None = None

    def allow_lateness(self, lateness: Duration) -> Self:
        raise InvalidArgumentError(
            "allow_lateness: a late item may join two sessions that were emitted, so no result "
            "would take the place of another: write a larger allowed_lag where the timestamps come "
            "from, .early_results(period) to see sessions earlier, or late=... for late items"
        )

    @property
    def watermark_step(self) -> int:
        return min(100, max(1, self.gap // 100))


def tumbling(size: Duration, *, offset: Duration = 0) -> SlidingWindow:
    """Windows of a fixed size, one after the other.

    They are aligned to 1970, in UTC: one begins at every multiple of the size, or ``offset`` later.
    So days that begin at six are ``tumbling("1d", offset="6h")``.
    """
    length = to_ms("tumbling: size", size, minimum=1)
    start = _offset("tumbling", offset, length)
    return SlidingWindow(size=length, slide=length, offset=start)


def sliding(size: Duration, slide: Duration, *, offset: Duration = 0) -> SlidingWindow:
    """Windows of a fixed size, of which one begins every ``slide``.

    They overlap if the slide is less than the size. If it is more, events between two windows are
    in none. It costs least if the size is a multiple of the slide. They are aligned to 1970, in
    UTC: one begins at every multiple of the slide, or ``offset`` later.
    """
    length = to_ms("sliding: size", size, minimum=1)
    step = to_ms("sliding: slide", slide, minimum=1)
    return SlidingWindow(size=length, slide=step, offset=_offset("sliding", offset, step))


def cumulative(size: Duration, step: Duration, *, offset: Duration = 0) -> CumulativeWindow:
    """Windows that grow: every ``step`` one ends that has all since the last multiple of ``size``.

    ``cumulative("1d", "1h")`` gives 24 windows a day, each from midnight (UTC) to a full hour; with
    an ``offset`` they begin so much later.
    """
    length = to_ms("cumulative: size", size, minimum=1)
    part = to_ms("cumulative: step", step, minimum=1)
    if length % part:
        raise InvalidArgumentError(
            f"cumulative: the size, {length} ms, is no multiple of the step, {part} ms: write such "
            f"as windows.cumulative('1d', '1h')"
        )
    return CumulativeWindow(size=length, step=part, offset=_offset("cumulative", offset, length))


def calendar_days(zone: str) -> CalendarDayWindow:
    """Days from midnight to midnight by the clocks of a time zone, such as ``"Europe/Berlin"``.

    A day on which clocks are changed has 23 or 25 hours.
    """
    try:
        _zone(zone)
    except Exception as error:
        raise InvalidArgumentError(
            f"calendar_days({zone!r}): no such time zone is known here: write a name such as "
            f"'Europe/Berlin'; if the system has none at all, install tzdata"
        ) from error
    return CalendarDayWindow(zone=zone)


def session(gap: Duration, *, max_length: Duration | None = None) -> SessionWindow:
    """Windows that end when no event of the key has come for ``gap``.

    With ``max_length`` a session ends at the latest that long after its first event, and the next
    event begins another one. In which order events come does not matter for that, so they are kept
    apart until none can come before them any more.
    """
    longest = None
    if max_length is not None:
        longest = to_ms("session: max_length", max_length, minimum=1)
    return SessionWindow(gap=to_ms("session: gap", gap, minimum=1), max_length=longest)


def _offset(window: str, offset: Duration, period: int) -> int:
    """An offset, as the first time from 1970 on at which a window begins."""
    return to_ms(f"{window}: offset", offset, minimum=-(2**62)) % period
