"""LimitedSessionProcessor: sessions that end at the latest some time after their first event.

Which events begin another session depends on all that come before them in event time. So events are
kept apart, by their time, until no older ones can come; then they are put together in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import reduce
from heapq import heappop, heappush
from typing import Any, Final

from jetlet.core.outbox import Ordinals
from jetlet.errors import ItemFailedError
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.windows import EarlyWindowResult, SessionWindow, WindowResult
from jetlet.processors.item_failure import lookup_error
from jetlet.processors.stable_keys import check_stable_key
from jetlet.processors.time.session_window import (
    END,
    START,
    VALUE,
    KeyFn,
    Session,
    SessionWindowProcessor,
    start_of,
)
from jetlet.snapshots.incremental import MAIN

MANY: Final = 64
"""Events of a key that have come, before those are put together that can be."""


class LimitedSessionProcessor(SessionWindowProcessor):
    """Events in, sessions out; a window with a ``max_length``.

    What it keeps of a key are the events of each time as a session of their own, in order, and
    before them what has been put together of the open session.
    """

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
        super().__init__(
            window,
            operation,
            key_fns,
            emits_events=emits_events,
            late_ordinal=late_ordinal,
            step=step,
            data_ordinals=data_ordinals,
        )
        assert window.max_length is not None
        self._longest = window.max_length
        self._combine_copies = operation.table_combiner(copies=True)

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        gap, watermark = self._window.gap, self._time
        accumulate, create = self._operation.accumulate[ordinal], self._operation.create
        key_fn, sessions = self._key_fns[ordinal], self._sessions
        late: list[Any] = []
        item: Any = None
        try:
            for time, item in batch:
                if time < watermark:
                    late.append(item)
                    continue
                key = item if key_fn is None else key_fn(item)
                mine = sessions.get(key)
                if mine is None:
                    check_stable_key(key)
                    mine = sessions[key] = []
                place = bisect_left(mine, time, key=start_of)
                if place < len(mine) and mine[place][START] == time:
                    mine[place][VALUE] = accumulate(mine[place][VALUE], item)
                    continue
                mine.insert(place, [time, time + gap, accumulate(create(), item)])
                if place == 0:
                    end = self._end_of(mine[0])
                    heappush(self._deadlines, (end, next(self._numbers), key))
                if not len(mine) % MANY:
                    self._put_together(mine, watermark)
        except Exception as error:
            raise ItemFailedError(item, self._step) from lookup_error(error, item, [key_fn])
        if self._far is not None:
            self._far.park(self._deadlines)
        if late:
            self._drop_late(late)

    def _put_together(self, mine: list[Session], before: int | None) -> None:
        """Make sessions of the events before a time, or of all."""
        whole: list[Session] = []
        for number, session in enumerate(mine):
            if before is not None and session[START] >= before:
                whole += mine[number:]
                break
            if whole and self._belongs(session, whole[-1]):
                last = whole[-1]
                last[END] = max(last[END], session[END])
                last[VALUE] = self._combine(last[VALUE], session[VALUE])
            else:
                whole.append(session)
        mine[:] = whole

    def _first_of(self, mine: list[Session], before: int | None) -> list[Session]:
        """What the first session consists of, as far as it has come before a time."""
        first = mine[:1]
        for session in mine[1:]:
            if before is not None and session[START] >= before:
                break
            if not self._belongs(session, self._spanned(first)):
                break
            first.append(session)
        return first

    def _belongs(self, session: Session, to: Session) -> bool:
        time: int = session[START]
        return bool(time <= to[END] and time < to[START] + self._longest)

    def _end_of(self, session: Session) -> int:
        start: int
        end: int
        start, end, _ = session
        return min(end, start + self._longest)

    def _ended(self, before: int | None) -> Iterator[Sequence[Any]]:
        deadlines, finish = self._deadlines, self._operation.finish
        batch: list[Any] = []
        while True:
            if self._far is not None:
                self._far.bring(deadlines)
            if not deadlines or (before is not None and deadlines[0][0] >= before):
                break
            _, _, key = heappop(deadlines)
            mine = self._sessions.get(key)
            if mine is None:
                continue
            while mine:
                first = self._first_of(mine, before)
                end = self._end_of(self._spanned(first))
                if before is not None and end >= before:
                    heappush(deadlines, (end, next(self._numbers), key))
                    break
                if self.touched is not None:
                    self.touched[MAIN][key] = None
                del mine[: len(first)]
                value = reduce(self._combine, [each[VALUE] for each in first])
                ended = [first[0][START], end, value]
                batch.append(self._result(WindowResult, key, ended, finish))
                if len(batch) >= BATCH_SIZE:
                    yield batch
                    batch = []
            else:
                del self._sessions[key]
        if batch:
            yield batch

    def _open_sessions(self) -> Iterator[Sequence[Any]]:
        export = self._operation.export
        for key, sessions in self._sessions.items():
            parts: list[list[Session]] = []
            for session in sessions:
                if parts and self._belongs(session, self._spanned(parts[-1])):
                    parts[-1].append(session)
                else:
                    parts.append([session])
            batch = []
            for part in parts:
                table: dict[None, Any] = {}
                self._combine_copies(table, ((None, each[VALUE]) for each in part))
                whole = self._spanned(part)
                shown = [whole[START], self._end_of(whole), table[None]]
                batch.append(self._result(EarlyWindowResult, key, shown, export))
            yield batch

    def _spanned(self, part: list[Session]) -> Session:
        return [part[0][START], part[-1][END], None]
