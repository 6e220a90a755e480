"""SessionWindowProcessor: windows that end when no event of the key has come for a while.

An event opens the interval from its time to its time plus the gap. Intervals of one key that
overlap or touch are one session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import ProcessorContext
from jetlet.core.traits import Repeats
from jetlet.errors import ItemFailedError
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.functions import plain_function, whole_item
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.windows import EarlyWindowResult, SessionWindow, WindowResult
from jetlet.processors.coroutines.deadlines import MAX_STALE, push_all
from jetlet.processors.item_failure import lookup_error
from jetlet.processors.stable_keys import check_stable_key
from jetlet.processors.time.event_state import EventStateProcessor
from jetlet.snapshots.incremental import MAIN, Table, TableChange, Tables
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.far_deadlines import FarDeadlines

KeyFn = Callable[[Any], Any]

START, END, VALUE = 0, 1, 2
Session = list[Any]
"""``[start, end, accumulator]``; ``end`` is the time of the last event plus the gap."""


class SessionWindowProcessor(EventStateProcessor):
    """Events in, sessions out. The operation needs ``combine``, for sessions that grow together.

    ``key_fns`` has a function per input, or is ``None`` for sessions of all events. Results have
    timestamps, unless nobody needs them: ``emits_events`` is false. ``late_ordinal`` is the edge
    that late events leave over; without one they are only counted.
    """

    live = ("_sessions", "_deadlines", "_far", "_numbers", "_time")

    def __init__(
        self,
        window: SessionWindow,
        operation: AggregateOperation[Any, Any, Any],
        key_fns: Sequence[KeyFn] | None,
        *,
        emits_events: bool = True,
        late_ordinal: int | None = None,
        step: str = "window-and-aggregate",
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals, late_ordinal)
        assert operation.combine is not None
        self._step = step
        self._window = window
        self.traits = replace(
            self.traits, repeats=Repeats.BOTH if window.early_period is None else Repeats.NO
        )
        self._operation = operation
        self._combine = operation.combine
        self._key_fns: Sequence[KeyFn | None] = (
            [_no_key] * operation.arity
            if key_fns is None
            else [None if fn is whole_item else plain_function(fn) for fn in key_fns]
        )
        self._emits_events = emits_events
        self._sessions: Table = {}
        """Open sessions by key, ordered by time; nearly always one."""
        self._deadlines: list[tuple[int, int, Any]] = []
        """A heap of (end, number, key); a session that has grown since is put there again."""
        self._far: FarDeadlines | None = None
        """With state on disk: the deadlines that are far away."""
        self._numbers = count()
        self._next_early = 0

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        if self._window.early_period is not None:
            self._next_early = self._window.next_early(context.clock.time_ms())

    def keep_on_disk(self, store: DiskStore) -> None:
        super().keep_on_disk(store)
        self._sessions = store.table()
        self._far = store.deadlines()

    # --- Taking events ----------------------------------------------------------------------

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        gap, watermark = self._window.gap, self._time
        accumulate, create = self._operation.accumulate[ordinal], self._operation.create
        key_fn = self._key_fns[ordinal]
        sessions = self._sessions
        late: list[Any] = []
        item: Any = None
        try:
            for time, item in batch:
                if time < watermark:
                    late.append(item)
                    continue
                key = item if key_fn is None else key_fn(item)
                mine = sessions.get(key)
                if mine is not None and len(mine) == 1:
                    session = mine[0]
                    if session[START] <= time <= session[END]:
                        # The usual case: it belongs to the only session there is.
                        session[VALUE] = accumulate(session[VALUE], item)
                        session[END] = max(session[END], time + gap)
                        continue
                self._add(key, [time, time + gap, accumulate(create(), item)])
        except Exception as error:
            raise ItemFailedError(item, self._step) from lookup_error(error, item, [key_fn])
        if late:
            self._drop_late(late)

    def _add(self, key: Any, session: Session) -> None:
        """Put a session among those of its key; join it with those that it meets."""
        mine = self._sessions.get(key)
        if mine is None:
            # Refuse a key that could not be routed, also where there is nothing to route.
            check_stable_key(key)
            mine = self._sessions[key] = []
        apart = []
        for other in mine:
            if other[END] < session[START] or session[END] < other[START]:
                apart.append(other)
            else:
                first, second = sorted((other, session), key=start_of)
                session = [
                    first[START],
                    max(first[END], second[END]),
                    self._combine(first[VALUE], second[VALUE]),
                ]
        apart.append(session)
        apart.sort(key=start_of)
        mine[:] = apart
        heappush(self._deadlines, (session[END], next(self._numbers), key))
        if self._far is not None:
            self._far.park(self._deadlines)

    # --- Emitting ---------------------------------------------------------------------------

    def try_process_watermark(self, watermark: Watermark) -> bool:
        # A session that ends at the watermark may still be joined by an event of that time.
        if self._emitting is None and watermark.timestamp > self._time:
            self._emitting = self._ended(watermark.timestamp)
        if not self._emit():
            return False
        self._time = max(self._time, watermark.timestamp)
        return self.outbox.offer(watermark)

    def complete(self) -> bool:
        if self._emitting is None and self._sessions:
            self._emitting = self._ended(None)
        return self._emit()

    def _ended(self, before: int | None) -> Iterator[Sequence[Any]]:
        """Sessions that end before a time, or all of them."""
        deadlines, finish = self._deadlines, self._operation.finish
        far = self._far
        batch: list[Any] = []
        while True:
            if far is not None:
                far.bring(deadlines)
            if not deadlines or (before is not None and deadlines[0][0] >= before):
                break
            end, _, key = heappop(deadlines)
            session = self._take_ended(key, end)
            if session is None:
                continue
            batch.append(self._result(WindowResult, key, session, finish))
            if len(batch) >= BATCH_SIZE:
                yield batch
                batch = []
        if batch:
            yield batch

    def _take_ended(self, key: Any, end: int) -> Session | None:
        """Remove and return the session that ends at ``end``, if there is one."""
        mine: list[Session] = self._sessions.get(key, [])
        for index, session in enumerate(mine):
            if session[END] == end:
                if self.touched is not None:
                    self.touched[MAIN][key] = None
                del mine[index]
                if not mine:
                    del self._sessions[key]
                return session
            if session[START] <= end < session[END]:
                # It has grown since: look again when it ends.
                heappush(self._deadlines, (session[END], next(self._numbers), key))
                return None
        return None  # joined with another, which has its own entry

    def _result(
        self, kind: type[WindowResult[Any, Any]], key: Any, session: Session, finish: KeyFn
    ) -> Any:
        start, end, value = session
        try:
            result = kind(start, end, key, finish(value))
        except Exception as error:
            raise ItemFailedError(WindowResult(start, end, key, value), self._step) from error
        return (end - 1, result) if self._emits_events else result

    # --- Early results ----------------------------------------------------------------------

    def try_process(self) -> bool:
        period = self._window.early_period
        if period is None:
            return True
        now = self.context.clock.time_ms()
        if self._emitting is None and now >= self._next_early:
            self._next_early = self._window.next_early(now)
            self._emitting = self._open_sessions()
        return self._emit()

    def _open_sessions(self) -> Iterator[Sequence[Any]]:
        export = self._operation.export
        batch: list[Any] = []
        for key, sessions in self._sessions.items():
            for session in sessions:
                batch.append(self._result(EarlyWindowResult, key, session, export))
                if len(batch) >= BATCH_SIZE:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def _end_of(self, session: Session) -> int:
        """When a session ends if nothing else comes."""
        end: int = session[END]
        return end

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        # What is half emitted leaves before the barrier.
        return self._emit() and self._saver.save(self.outbox, self._entries)

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        yield from self._sessions.items()
        yield self._time_entry()

    def state_definition(self) -> Mapping[str, Any]:
        operation = self._operation.definition
        longest = self._window.max_length
        limit = {} if longest is None else {"max_length": longest}
        return {"window": "session", "gap": self._window.gap, **limit, "of": operation}

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for key, state in inbox:
            if isinstance(key, BroadcastKey):
                self._saved_time.restore(state)
                continue
            self._sessions[key] = state
            for session in state:
                heappush(self._deadlines, (self._end_of(session), next(self._numbers), key))
        if self._far is not None:
            self._far.park(self._deadlines)

    # --- Changes ----------------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        return {MAIN: self._sessions}

    def track_changes(self) -> None:
        super().track_changes()
        assert self.touched is not None
        # Every event that is not late has its key looked up.
        self._key_fns = [_touching(fn, self.touched[MAIN]) for fn in self._key_fns]

    def apply_change(self, change: TableChange) -> None:
        # A session that is there, or was before it grew, has its deadline.
        known = self._sessions
        fresh = {
            key: [
                session
                for session in sessions
                if not any(
                    session[START] <= old[START] and old[END] <= session[END]
                    for old in known.get(key, ())
                )
            ]
            for key, sessions in change.entries.items()
        }
        super().apply_change(change)
        is_crowded = self._far is None and len(self._deadlines) > MAX_STALE + 3 * len(known)
        push_all(
            self._deadlines,
            [
                (self._end_of(session), next(self._numbers), key)
                for key, sessions in (known if is_crowded else fresh).items()
                for session in sessions
            ],
            is_all=is_crowded,
        )
        if self._far is not None:
            self._far.park(self._deadlines)


def start_of(session: Session) -> Any:
    return session[START]


def _touching(key_fn: KeyFn | None, touched: dict[Any, Any]) -> KeyFn:
    """The same key function; the keys it has given are those that are touched."""

    def touch(item: Any) -> Any:
        key = item if key_fn is None else key_fn(item)
        touched[key] = None
        return key

    return touch


def _no_key(item: Any) -> None:
    """The key of windows without keys."""
