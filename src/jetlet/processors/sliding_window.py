"""SlidingWindowProcessor: windows of fixed size, sliding or tumbling, in one stage or two.

Events are accumulated into *frames* of the length of the slide, by key. A window is the combination
of the frames it covers: an event so costs one update, however many windows it falls in. Where the
operation has ``deduct``, the window slides by combining its leading frame and deducting the
trailing one; otherwise its frames are combined anew.

In two stages the first one passes on complete frames, as tables, and the second one makes windows
of them. A table goes to the second stage whole, if that is a single processor: then it is neither
copied nor looked at. Otherwise it is divided by partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.items import MIN_TIMESTAMP, BroadcastKey, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.partitioning import PartitionId, Partitioner
from jetlet.core.processor import ProcessorContext
from jetlet.pipeline.aggregate import AggregateOperation
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.windows import EarlyWindowResult, SlidingWindow, WindowResult
from jetlet.processors.base import BatchProcessor
from jetlet.processors.item_failure import item_failure
from jetlet.processors.state_saver import StateSaver

Operation = AggregateOperation[Any, Any, Any]
KeyFn = Callable[[Any], Any]
Table = dict[Any, Any]
"""Accumulators by key; without keys there is one, of the key ``None``."""

_result = WindowResult._make
_early = EarlyWindowResult._make


@dataclass(frozen=True, slots=True)
class Frame:
    """A complete frame on its way to the second stage; ``key`` is the partition it is for."""

    key: PartitionId
    end: int
    table: Table


def frame_key(frame: Frame) -> PartitionId:
    """The key function of the edge between the two stages."""
    return frame.key


class SlidingWindowProcessor(BatchProcessor):
    """Events or frames in, frames or windows out.

    ``key_fns`` has a function per input, or is ``None`` for windows over all events. With
    ``takes_frames`` the input are frames of a first stage; with ``emits_frames`` this is it.
    ``late_ordinal`` is the edge that late events leave over; without one they are only counted.
    """

    def __init__(
        self,
        window: SlidingWindow,
        operation: Operation,
        key_fns: Sequence[KeyFn] | None,
        *,
        takes_frames: bool = False,
        emits_frames: bool = False,
        target_parallelism: int = 1,
        late_ordinal: int | None = None,
        step: str = "window-and-aggregate",
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        self._step = step
        self._window = window
        self._operation = operation
        self._key_fns = (
            None if key_fns is None else [None if f is whole_item else f for f in key_fns]
        )
        self._takes_frames = takes_frames
        self._emits_frames = emits_frames
        self._target_parallelism = target_parallelism
        self._late_ordinal = late_ordinal
        self._accumulate = [operation.keyed_accumulator(i) for i in range(operation.arity)]
        self._accumulate_all = [operation.batch_accumulator(i) for i in range(operation.arity)]
        self._frames: dict[int, Table] = {}
        self._sliding: Table = {}
        """With ``deduct``: what the current window holds."""
        self._frame_counts: dict[Any, int] = {}
        """With ``deduct``: in how many frames of the current window each key is."""
        self._done_upto = MIN_TIMESTAMP
        """Windows that end up to here have been emitted; so have frames."""
        self._emitting: Iterator[Sequence[Any]] | None = None
        self._emitting_upto = MIN_TIMESTAMP
        self._next_early = 0
        self._partitioner: Partitioner | None = None
        self._saver = StateSaver()

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        if context.member_count * self._target_parallelism > 1 and self._key_fns is not None:
            self._partitioner = Partitioner(None, context.partition_count)
        if self._window.early_period is not None:
            self._next_early = context.clock.time_ms() + self._window.early_period

    # --- Taking events ----------------------------------------------------------------------

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if self._takes_frames:
            for frame in batch:
                self._add_frame(frame.end, frame.table)
            return
        slide = self._window.slide
        times = [event[0] for event in batch]
        items = [event[1] for event in batch]
        lowest, highest = min(times), max(times)
        first = lowest - lowest % slide + slide
        if highest < first:
            # The usual case: all in one frame.
            self._add_events(ordinal, first, items, batch)
            return
        by_frame: dict[int, list[Any]] = {}
        for start, event in zip([t - t % slide for t in times], batch, strict=True):
            if start in by_frame:
                by_frame[start].append(event)
            else:
                by_frame[start] = [event]
        for start, events in by_frame.items():
            self._add_events(ordinal, start + slide, [event[1] for event in events], events)

    def _add_events(
        self, ordinal: int, end: int, items: Sequence[Any], events: Sequence[Any]
    ) -> None:
        if end <= self._done_upto:
            self._drop_late(events)
            return
        table = self._frames.get(end)
        if table is None:
            table = self._frames[end] = {}
        if self._key_fns is None:
            value = table[None] if None in table else self._operation.create()
            table[None] = self._accumulate_all[ordinal](value, items)
            return
        key_fn = self._key_fns[ordinal]
        keys = items
        if key_fn is not None:
            it = iter(items)
            try:
                keys = [key_fn(item) for item in it]
            except Exception as error:
                raise item_failure(items, it, self._step) from error
        self._accumulate[ordinal](table, keys, items)

    def _drop_late(self, events: Sequence[Any]) -> None:
        self.context.count("late_events", len(events))
        if self._late_ordinal is not None:
            self._outgoing.append(([event[1] for event in events], self._late_ordinal))

    def _add_frame(self, end: int, table: Table) -> None:
        mine = self._frames.get(end)
        if mine is None:
            self._frames[end] = table  # it was made for us
            return
        combine = self._operation.combine
        assert combine is not None
        for key, value in table.items():
            mine[key] = combine(mine[key], value) if key in mine else value

    # --- Emitting ---------------------------------------------------------------------------

    def try_process_watermark(self, watermark: Watermark) -> bool:
        return self._emit_upto(watermark.timestamp) and self.outbox.offer(watermark)

    def complete(self) -> bool:
        if not self._frames and self._emitting is None:
            return self.flush()
        last = max(self._frames, default=self._done_upto)
        return self._emit_upto(last + self._window.size)

    def _emit_upto(self, timestamp: int) -> bool:
        """Emit all that is complete at ``timestamp``; true when it has left."""
        if not self.flush():
            return False
        slide = self._window.slide
        upto = timestamp - timestamp % slide
        if self._emitting is None:
            if upto <= self._done_upto:
                return True
            make = self._frames_upto if self._emits_frames else self._windows_upto
            self._emitting, self._emitting_upto = make(upto), upto
        for batch in self._emitting:
            self.send(batch)
            if not self.flush():
                return False
        self._emitting = None
        self._done_upto = max(self._done_upto, self._emitting_upto)
        return True

    def _frames_upto(self, upto: int) -> Iterator[Sequence[Any]]:
        for end in sorted(end for end in self._frames if end <= upto):
            table = self._frames.pop(end)
            if self._partitioner is None:
                yield [Frame(PartitionId(0), end, table)]
                continue
            shares: dict[int, Table] = {}
            keys = list(table)
            for partition, key in zip(self._partitioner.partition_ids(keys), keys, strict=True):
                if partition in shares:
                    shares[partition][key] = table[key]
                else:
                    shares[partition] = {key: table[key]}
            yield [Frame(PartitionId(p), end, share) for p, share in shares.items()]

    def _windows_upto(self, upto: int) -> Iterator[Sequence[Any]]:
        """Batches of results, window after window."""
        size, slide = self._window.size, self._window.slide
        while self._frames or self._sliding:
            end = self._done_upto + slide
            if not self._sliding:
                first = min(self._frames)
                if end < first:
                    end = first  # nothing between: no window there has any events
            if end > upto:
                return
            start = end - size
            if size == slide:
                table = self._frames.pop(end, {})
                yield from self._results(table, start, end, self._operation.finish)
            elif self._operation.deduct is not None:
                self._lead(self._frames.get(end))
                yield from self._results(self._sliding, start, end, self._operation.export)
                self._trail(self._frames.pop(start + slide, None))
            else:
                yield from self._results(
                    self._combined(start, end), start, end, self._operation.finish
                )
                self._frames.pop(start + slide, None)
            self._done_upto = end

    def _results(
        self, table: Table, start: int, end: int, finish: Callable[[Any], Any], make: Any = _result
    ) -> Iterator[list[tuple[int, Any]]]:
        time = end - 1
        entries = iter(table.items())
        while batch := [
            (time, make((start, end, key, finish(value))))
            for key, value in islice(entries, BATCH_SIZE)
        ]:
            yield batch

    def _lead(self, table: Table | None) -> None:
        """The window has slid over a new frame."""
        combine, create = self._operation.combine, self._operation.create
        assert combine is not None
        sliding, counts = self._sliding, self._frame_counts
        for key, value in (table or {}).items():
            if key in sliding:
                sliding[key] = combine(sliding[key], value)
                counts[key] += 1
            else:
                # Not the frame's own: that is needed once more, to be deducted.
                sliding[key] = combine(create(), value)
                counts[key] = 1

    def _trail(self, table: Table | None) -> None:
        """The window leaves a frame behind."""
        deduct = self._operation.deduct
        assert deduct is not None
        sliding, counts = self._sliding, self._frame_counts
        for key, value in (table or {}).items():
            # By count and not by value: a sum of zero may still have items.
            left = counts[key] - 1
            if left:
                counts[key] = left
                sliding[key] = deduct(sliding[key], value)
            else:
                del counts[key], sliding[key]

    def _combined(self, start: int, end: int) -> Table:
        """All frames of a window, without changing them."""
        combine, create = self._operation.combine, self._operation.create
        assert combine is not None
        table: Table = {}
        for frame in range(start + self._window.slide, end + 1, self._window.slide):
            for key, value in self._frames.get(frame, {}).items():
                table[key] = combine(table[key] if key in table else create(), value)
        return table

    # --- Early results ----------------------------------------------------------------------

    def try_process(self) -> bool:
        if self._window.early_period is None:
            return True
        if not self.flush():
            return False
        now = self.context.clock.time_ms()
        if now >= self._next_early and self._emitting is None:
            self._next_early = now + self._window.early_period
            for batch in self._early_results():
                self.send(batch)
        return self.flush()

    def _early_results(self) -> Iterator[Sequence[Any]]:
        if not self._frames:
            return
        size, slide = self._window.size, self._window.slide
        end = max(min(self._frames), self._done_upto + slide)
        last = max(self._frames) + size - slide
        while end <= last:
            start = end - size
            table = self._frames.get(end, {}) if size == slide else self._combined(start, end)
            yield from self._results(table, start, end, self._operation.export, _early)
            end += slide

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        return self._saver.save(self.outbox, self._entries)

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        by_key: dict[Any, list[tuple[int, Any]]] = {}
        for end, table in self._frames.items():
            for key, value in table.items():
                by_key.setdefault(key, []).append((end, value))
        yield from by_key.items()
        yield BroadcastKey(("done-upto", self.context.global_index)), self._done_upto

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for key, state in inbox:
            if isinstance(key, BroadcastKey):
                # All processors saw the same watermarks before the barrier, or none yet.
                self._done_upto = max(self._done_upto, state)
                continue
            for end, value in state:
                self._frames.setdefault(end, {})[key] = value

    def finish_snapshot_restore(self) -> bool:
        if self._operation.deduct is not None and not self._emits_frames:
            size, slide = self._window.size, self._window.slide
            if size > slide and self._done_upto != MIN_TIMESTAMP:
                for end in range(self._done_upto - size + 2 * slide, self._done_upto + 1, slide):
                    self._lead(self._frames.get(end))
        return True
