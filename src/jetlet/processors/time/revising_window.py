"""RevisingWindowProcessor: windows that stay open for late events, and tell again what they hold.

Frames are kept until no event can come for any of their windows. An event that comes behind the
watermark, and not by more than the lateness that is allowed, is added to its frame; with the next
watermark the windows that have been emitted, and have it, are emitted again for its key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import ProcessorContext, different_state
from jetlet.core.traits import Repeats
from jetlet.errors import ItemFailedError
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.functions import plain_function
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.windows import (
    EarlyWindowResult,
    FrameWindow,
    RevisedWindowResult,
    WindowResult,
)
from jetlet.processors.base import Output
from jetlet.processors.item_failure import lookup_error
from jetlet.processors.stable_keys import check_stable_key
from jetlet.processors.time.event_state import EventStateProcessor
from jetlet.snapshots.incremental import Table, TableChange, Tables
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.disk_table import DiskTable

KeyFn = Callable[[Any], Any]

VALUE, LATE, TOLD = 0, 1, 2
"""An entry of a frame: ``[accumulator, late events in it, those that results have told of]``."""


class RevisingWindowProcessor(EventStateProcessor):
    """Events in, windows out; the window has a ``lateness``, and the operation combines.

    ``key_fns`` has a function per input, or is ``None`` for windows over all events.
    """

    live = ("_frames", "_waiting", "_time")

    def __init__(
        self,
        window: FrameWindow,
        operation: AggregateOperation[Any, Any, Any],
        key_fns: Sequence[KeyFn] | None,
        *,
        emits_events: bool = True,
        late_ordinal: int | None = None,
        step: str = "window-and-aggregate",
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals, late_ordinal)
        assert window.lateness is not None
        self._window = window
        self._lateness = window.lateness
        self._operation = operation
        self._combine = operation.table_combiner(copies=True) if window.slides else None
        self._key_fns = [
            None if key_fns is None else plain_function(key_fns[i]) for i in range(operation.arity)
        ]
        self._emits_events = emits_events
        self._step = step
        # How often a result is revised depends on when watermarks come.
        self.traits = replace(self.traits, repeats=Repeats.NO)
        self._frames: defaultdict[int, Table] = defaultdict(dict)
        """By end: entries by key."""
        self._waiting: dict[int, dict[Any, None]] = {}
        """By frame: the keys that late events have come of since the last results."""
        self._next_early = 0

    def keep_on_disk(self, store: DiskStore) -> None:
        super().keep_on_disk(store)
        self._frames = defaultdict(store.table)

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        if self._window.early_period is not None:
            self._next_early = self._window.next_early(context.clock.time_ms())

    # --- Taking events ----------------------------------------------------------------------

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        window, done, touched = self._window, self._time, self.touched
        accumulate, create = self._operation.accumulate[ordinal], self._operation.create
        key_fn = self._key_fns[ordinal]
        late: list[Any] = []
        start, end = 1, 0
        item: Any = None
        try:
            for time, item in batch:
                if not start <= time < end:
                    start, end = window.frame_at(time)
                if window.is_in_gap(start):
                    continue
                if end + self._lateness <= done:
                    late.append(item)
                    continue
                key = None if key_fn is None else key_fn(item)
                if touched is not None:
                    touched[end][key] = None
                frame = self._frames[end]
                entry = frame.get(key)
                if entry is None:
                    check_stable_key(key)
                    entry = frame[key] = [accumulate(create(), item), 0, 0]
                else:
                    entry[VALUE] = accumulate(entry[VALUE], item)
                if end <= done:
                    entry[LATE] += 1
                    self._waiting.setdefault(end, {})[key] = None
        except Exception as error:
            raise ItemFailedError(item, self._step) from lookup_error(error, item, [key_fn])
        if late:
            self._drop_late(late)

    # --- Emitting ---------------------------------------------------------------------------

    def try_process_watermark(self, watermark: Watermark) -> bool:
        if self._emitting is None and watermark.timestamp > self._time:
            self._emitting = self._upto(watermark.timestamp)
        return self._emit() and self.outbox.offer(watermark)

    def complete(self) -> bool:
        if self._emitting is None and self._frames:
            self._emitting = self._upto(
                max(self._time + 1, *map(self._window.last_end, self._frames)), is_last=True
            )
        return self._emit()

    def _upto(self, time: int, *, is_last: bool = False) -> Output:
        yield from self._revised()
        yield from self._complete_windows(time)
        window = self._window
        for end in list(self._frames):
            if is_last or window.last_end(end) + self._lateness <= time:
                self._drop(end)
        self._time = time

    def _drop(self, end: int) -> None:
        if self.touched is not None:
            self.touched.drop(end)
        frame = self._frames.pop(end, None)
        self._waiting.pop(end, None)
        if isinstance(frame, DiskTable):
            frame.drop()

    def _revised(self) -> Output:
        """Windows that were emitted, and have something new since, for the keys that it is of."""
        window, waiting = self._window, self._waiting
        keys_of: dict[int, dict[Any, None]] = {}
        for frame_end, keys in waiting.items():
            end = window.next_end(frame_end - 1)
            while end <= self._time and window.start_of(end) < frame_end:
                keys_of.setdefault(end, {}).update(keys)
                end = window.next_end(end)
        for end in sorted(keys_of):
            yield from self._results(end, RevisedWindowResult, keys_of[end])
        for frame_end, keys in waiting.items():
            for key in keys:
                if self.touched is not None:
                    self.touched[frame_end][key] = None
                entry = self._frames[frame_end][key]
                entry[TOLD] = entry[LATE]
        waiting.clear()

    def _complete_windows(self, time: int) -> Output:
        for end in self._ends_after(self._time):
            if end > time:
                return
            yield from self._results(end, WindowResult)

    def _ends_after(self, time: int) -> Iterator[int]:
        """The ends of the windows that end later, and have any events."""
        window, ends = self._window, sorted(self._frames)
        while True:
            end = window.next_end(time)
            first = bisect_right(ends, window.start_of(end))
            if first == len(ends):
                return
            time = max(end, window.next_end(ends[first] - 1))
            yield time

    def _results(
        self, end: int, kind: type[WindowResult[Any, Any]], keys: Iterable[Any] | None = None
    ) -> Output:
        """The results of a window, of all keys or of some; those of revised ones are numbered."""
        start = self._window.start_of(end)
        length = self._window.frame_length
        ends = [end] if length is None else range(start + length, end + 1, length)
        frames = [self._frames[each] for each in ends if each in self._frames]
        wanted = dict.fromkeys(key for frame in frames for key in frame) if keys is None else keys
        batch: list[Any] = []
        for key in wanted:
            entries = [entry for frame in frames if (entry := frame.get(key)) is not None]
            value = self._combined([entry[VALUE] for entry in entries])
            try:
                result = kind(start, end, key, self._operation.export(value))
            except Exception as error:
                raise ItemFailedError(WindowResult(start, end, key, value), self._step) from error
            if isinstance(result, RevisedWindowResult):
                result.number(sum(entry[LATE] for entry in entries))
            batch.append((end - 1, result) if self._emits_events else result)
            if len(batch) >= BATCH_SIZE:
                yield batch
                batch = []
                if self.is_turn_over():
                    yield None
        if batch:
            yield batch

    def _combined(self, values: Sequence[Any]) -> Any:
        if self._combine is None or len(values) == 1:
            return values[0]
        table: dict[None, Any] = {}
        for value in values:
            self._combine(table, ((None, value),))
        return table[None]

    # --- Early results ----------------------------------------------------------------------

    def try_process(self) -> bool:
        if self._window.early_period is None:
            return True
        now = self.context.clock.time_ms()
        if self._emitting is None and now >= self._next_early:
            self._next_early = self._window.next_early(now)
            self._emitting = self._open_windows()
        return self._emit()

    def _open_windows(self) -> Output:
        for end in self._ends_after(self._time):
            yield from self._results(end, EarlyWindowResult)

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        # What is half emitted leaves before the barrier.
        return self._emit() and self._saver.save(self.outbox, self._entries)

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        for end, frame in self._frames.items():
            for key, entry in frame.items():
                yield key, (end, entry)
        yield self._time_entry()

    def state_definition(self) -> Mapping[str, Any]:
        operation = self._operation.definition
        return {**self._window.definition, "lateness": self._lateness, "of": operation}

    def restored_from(self, definition: Mapping[str, Any]) -> None:
        """Less lateness needs less than what was saved."""
        mine, lateness = self.state_definition(), definition.get("lateness", -1)
        if {**definition, "lateness": self._lateness} != mine or lateness < self._lateness:
            why = "events that are late by more would find nothing of those before them"
            raise different_state(definition, mine, why if lateness >= 0 else "")

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for key, saved in inbox:
            if isinstance(key, BroadcastKey):
                self._saved_time.restore(saved)
                continue
            end, entry = saved
            self._frames[end][key] = entry
            self._note(end, key, entry)

    def _note(self, end: int, key: Any, entry: list[Any]) -> None:
        """Know again what has not been told."""
        if entry[LATE] > entry[TOLD]:
            self._waiting.setdefault(end, {})[key] = None
        elif end in self._waiting:
            self._waiting[end].pop(key, None)

    # --- Changes ----------------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        return self._frames

    def saved_entries(self, table: Any, entries: dict[Any, Any]) -> dict[Any, Any]:
        return {key: (table, entry) for key, entry in entries.items()}

    def apply_change(self, change: TableChange) -> None:
        end = change.table
        if change.is_new and not change.entries:
            self._drop(end)
            return
        _ = self._frames[end]  # there from now on
        super().apply_change(change)
        for key, entry in change.entries.items():
            self._note(end, key, entry)
