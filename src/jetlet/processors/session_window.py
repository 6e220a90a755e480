"""SessionWindowProcessor: windows that end when no event of the key has come for a while.

An event opens the interval from its time to its time plus the gap. Intervals of one key that
overlap or touch are one session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.items import MIN_TIMESTAMP, BroadcastKey, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError
from jetlet.pipeline.aggregate import AggregateOperation
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.windows import EarlyWindowResult, SessionWindow, WindowResult
from jetlet.processors.base import BatchProcessor
from jetlet.processors.state_saver import StateSaver

KeyFn = Callable[[Any], Any]

_START, _END, _VALUE = 0, 1, 2
Session = list[Any]
"""``[start, end, accumulator]``; ``end`` is the time of the last event plus the gap."""


class SessionWindowProcessor(BatchProcessor):
    """Events in, sessions out. The operation needs ``combine``, for sessions that grow together."""

    def __init__(
        self,
        window: SessionWindow,
        operation: AggregateOperation[Any, Any, Any],
        key_fns: Sequence[KeyFn] | None,
        *,
        late_ordinal: int | None = None,
        step: str = "window-and-aggregate",
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        self._step = step
        assert operation.combine is not None
        self._window = window
        self._operation = operation
        self._combine = operation.combine
        self._key_fns = (
            None if key_fns is None else [None if f is whole_item else f for f in key_fns]
        )
        self._late_ordinal = late_ordinal
        self._sessions: dict[Any, list[Session]] = {}
        """Open sessions by key, ordered by time; nearly always one."""
        self._deadlines: list[tuple[int, int, Any]] = []
        """A heap of (end, number, key); a session that has grown since has a later entry too."""
        self._numbers = count()
        self._watermark = MIN_TIMESTAMP
        self._emitting: Iterator[Sequence[Any]] | None = None
        self._next_early = 0
        self._saver = StateSaver()

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        if self._window.early_period is not None:
            self._next_early = context.clock.time_ms() + self._window.early_period

    # --- Taking events ----------------------------------------------------------------------

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        gap, watermark = self._window.gap, self._watermark
        accumulate, create = self._operation.accumulate[ordinal], self._operation.create
        key_fn = None if self._key_fns is None else self._key_fns[ordinal]
        has_keys = self._key_fns is not None
        sessions = self._sessions
        late: list[Any] = []
        item: Any = None
        try:
            for time, item in batch:
                if time < watermark:
                    late.append(item)
                    continue
                key = (item if key_fn is None else key_fn(item)) if has_keys else None
                mine = sessions.get(key)
                if mine is not None and len(mine) == 1:
                    session = mine[0]
                    if session[_START] <= time <= session[_END]:
                        # The usual case: it belongs to the only session there is.
                        session[_VALUE] = accumulate(session[_VALUE], item)
                        if time + gap > session[_END]:
                            session[_END] = time + gap
                        continue
                self._add(key, [time, time + gap, accumulate(create(), item)])
        except Exception as error:
            raise ItemFailedError(item, self._step) from error
        if late:
            self.context.count("late_events", len(late))
            if self._late_ordinal is not None:
                self._outgoing.append((late, self._late_ordinal))

    def _add(self, key: Any, session: Session) -> None:
        """Put a session among those of its key; join it with those that it meets."""
        mine = self._sessions.setdefault(key, [])
        apart = []
        for other in mine:
            if other[_END] < session[_START] or session[_END] < other[_START]:
                apart.append(other)
            else:
                first, second = sorted((other, session), key=_start)
                session = [
                    first[_START],
                    max(first[_END], second[_END]),
                    self._combine(first[_VALUE], second[_VALUE]),
                ]
        apart.append(session)
        apart.sort(key=_start)
        mine[:] = apart
        heappush(self._deadlines, (session[_END], next(self._numbers), key))

    # --- Emitting ---------------------------------------------------------------------------

    def try_process_watermark(self, watermark: Watermark) -> bool:
        if not self._emit(watermark.timestamp):
            return False
        self._watermark = watermark.timestamp
        return self.outbox.offer(watermark)

    def complete(self) -> bool:
        return self._emit(None)

    def _emit(self, before: int | None) -> bool:
        """Emit the sessions that end before a time, or all; true when they have left."""
        if not self.flush():
            return False
        if self._emitting is None:
            self._emitting = self._ended(before)
        for batch in self._emitting:
            self.send(batch)
            if not self.flush():
                return False
        self._emitting = None
        return True

    def _ended(self, before: int | None) -> Iterator[Sequence[Any]]:
        deadlines, finish = self._deadlines, self._operation.finish
        batch: list[Any] = []
        while deadlines and (before is None or deadlines[0][0] < before):
            end, _, key = heappop(deadlines)
            mine = self._sessions.get(key, ())
            for index, session in enumerate(mine):
                if session[_END] == end:
                    break
                if session[_START] <= end < session[_END]:
                    # It has grown since: look again when it ends.
                    heappush(deadlines, (session[_END], next(self._numbers), key))
                    index = -1
                    break
            else:
                continue  # joined with another, which has its own entry
            if index < 0:
                continue
            assert isinstance(mine, list)
            session = mine.pop(index)
            if not mine:
                del self._sessions[key]
            result = WindowResult(session[_START], end, key, finish(session[_VALUE]))
            batch.append((end - 1, result))
            if len(batch) >= BATCH_SIZE:
                yield batch
                batch = []
        if batch:
            yield batch

    def try_process(self) -> bool:
        if self._window.early_period is None:
            return True
        if not self.flush():
            return False
        now = self.context.clock.time_ms()
        if now >= self._next_early and self._emitting is None:
            self._next_early = now + self._window.early_period
            export = self._operation.export
            self.send(
                [
                    (s[_END] - 1, EarlyWindowResult(s[_START], s[_END], key, export(s[_VALUE])))
                    for key, sessions in self._sessions.items()
                    for s in sessions
                ]
            )
        return self.flush()

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        return self._saver.save(self.outbox, self._entries)

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        yield from self._sessions.items()
        yield BroadcastKey(("watermark", self.context.global_index)), self._watermark

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for key, state in inbox:
            if isinstance(key, BroadcastKey):
                self._watermark = max(self._watermark, state)
                continue
            self._sessions[key] = state
            for session in state:
                heappush(self._deadlines, (session[_END], next(self._numbers), key))


def _start(session: Session) -> Any:
    return session[_START]
