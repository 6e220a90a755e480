"""TimerQueue: which timers of which keys are due.

The timers themselves belong to the state of their keys: a :class:`SetTimer` by name. The queue has
an entry for each, and some of timers that are gone. A timer that is moved to a later time, as most
are again and again, leaves its entry where it is: when that comes up the timer goes back into the
queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

from jetlet.processors.coroutines.deadlines import MAX_STALE, Deadline
from jetlet.storage.far_deadlines import FarDeadlines

__all__ = ["SetTimer", "TimerQueue", "Timers"]

SetTimer = list[Any]
"""When a timer is due, whether that is in processing time, and where its entry in the queue is."""
_AT: Final = 0
_IS_PROCESSING_TIME: Final = 1
_QUEUED: Final = 2

Timers = dict[str, SetTimer]
"""Those of a key, by name."""


class TimerQueue:
    """Those in one kind of time; ``find(key)`` gives all timers of a key, if it has any."""

    __slots__ = (
        "_at_hand",
        "_far",
        "_find",
        "_heap",
        "_held",
        "_is_processing_time",
        "_last",
        "_limit",
        "_numbers",
    )

    def __init__(
        self,
        find: Callable[[Any], Timers | None],
        *,
        is_processing_time: bool,
        far: FarDeadlines | None = None,
    ) -> None:
        self._find = find
        self._is_processing_time = is_processing_time
        self._heap: list[Deadline] = []
        self._far = far
        """With state on disk: the entries that are far away."""
        self._at_hand: int | None = None
        """Time of the timer that is being dealt with."""
        self._held: list[Deadline] = []
        """Set meanwhile to that time or before: due the next time, or it might never end."""
        self._numbers = count()
        self._last = 0
        """Number of the entry made last."""
        self._limit = MAX_STALE
        """With more entries than that it is time to look which are of timers that are gone."""

    def __len__(self) -> int:
        return len(self._heap) + (0 if self._far is None else len(self._far))

    def is_due(self, now: int) -> bool:
        """True if there is something to do at that time."""
        if self._far is not None:
            self._far.bring(self._heap)
        return bool(self._heap) and self._heap[0][0] <= now

    def set(self, timers: Timers, key: Any, name: str, at: int) -> None:
        """Set or move a timer of a key, whose timers these are."""
        old = timers.get(name)
        if (
            old is not None
            and old[_IS_PROCESSING_TIME] is self._is_processing_time
            and old[_QUEUED] <= at
        ):
            old[_AT] = at
            return
        timers[name] = [at, self._is_processing_time, at]
        self._push(at, key, name)

    def add(self, key: Any, timers: Timers) -> None:
        """Queue those of a key's timers that are of this kind."""
        for name, timer in timers.items():
            if timer[_IS_PROCESSING_TIME] is self._is_processing_time:
                timer[_QUEUED] = timer[_AT]
                self._push(timer[_AT], key, name)

    def due(self, upto: int | None) -> Iterator[tuple[Any, str, int]]:
        """Key, name and time of each timer up to that time, in order.

        Also of those set meanwhile to a time that is still to come. ``None`` is for all those that
        are set when the first is asked for, and no others. Each is of the past when it comes.
        """
        heap, far, last = self._heap, self._far, self._last
        try:
            while True:
                if far is not None:
                    far.bring(heap)
                if not heap or (upto is not None and heap[0][0] > upto):
                    break
                queued, number, (key, name) = heappop(heap)
                if upto is None and number > last:
                    continue
                timer = self._timer(key, name, queued)
                if timer is None:
                    continue
                if timer[_AT] > queued:
                    timer[_QUEUED] = timer[_AT]
                    heappush(heap, (timer[_AT], number, (key, name)))
                    continue
                self._at_hand = queued
                yield key, name, queued
        finally:
            self._at_hand = None
            held, self._held = self._held, []
            for entry in held:
                heappush(heap, entry)

    def _timer(self, key: Any, name: str, queued: int) -> SetTimer | None:
        """The timer that an entry is of, if there is one."""
        timer = (self._find(key) or {}).get(name)
        if timer is None or timer[_IS_PROCESSING_TIME] is not self._is_processing_time:
            return None
        return timer if timer[_QUEUED] == queued else None

    def _is_set(self, entry: Deadline) -> bool:
        queued, _, (key, name) = entry
        return self._timer(key, name, queued) is not None

    def _push(self, at: int, key: Any, name: str) -> None:
        heap = self._heap
        if self._at_hand is not None and at <= self._at_hand:
            self._last = next(self._numbers)
            self._held.append((at, self._last, (key, name)))
            return
        if self._far is not None:
            self._far.park(heap)
        elif len(heap) > self._limit:
            entries = {(entry[0], entry[2]): entry for entry in heap}
            heap[:] = [entry for entry in entries.values() if self._is_set(entry)]
            heapify(heap)
            self._limit = MAX_STALE + 2 * len(heap)
        self._last = next(self._numbers)
        heappush(heap, (at, self._last, (key, name)))
