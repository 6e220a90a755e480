"""SlidingWindowProcessor: windows of fixed size, sliding or tumbling, in one stage or two.

Events are accumulated into *frames*, by key, which have the length of the slide if the size is a
multiple of it. A window is the combination of the frames it covers: an event so costs one update,
however many windows it falls in. Where the operation has ``deduct``, the window slides by combining
its leading frames and deducting the trailing ones; otherwise its frames are combined anew.

In two stages the first one passes on complete frames, as tables, and the second one makes windows
of them: see :mod:`jetlet.processors.time.frames`. Windows of frames that are columns are columns,
too, as long as nothing else comes.

What is done for a window takes longer the more keys there are. So all of it happens in slices, and
when a turn's time is up the rest waits for the next one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final

from jetlet.columns.windows import ColumnWindows
from jetlet.core.inbox import Inbox
from jetlet.core.items import MIN_TIMESTAMP, BroadcastKey, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import ProcessorContext, different_state
from jetlet.core.table import Table as Columns
from jetlet.core.traits import Repeats
from jetlet.errors import ItemFailedError
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.windows import EarlyWindowResult, FrameWindow, SlidingWindow, WindowResult
from jetlet.processors.base import Output
from jetlet.processors.state_saver import is_plain
from jetlet.processors.time.frames import SLICE, FrameProcessor, KeyFn, Operation
from jetlet.processors.time.window_loops import ResultLoop, result_loop
from jetlet.snapshots.incremental import Table, TableChange, Tables
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.disk_table import DiskTable

ROWS_OUT: Final = 16 * 1024
"""Results in a batch of columns at the most."""

SLIDING: Final = "sliding"
LAST: Final = "last"
"""Names of tables that are not a frame."""


class SlidingWindowProcessor(FrameProcessor):
    """Events or frames in, frames or windows out.

    ``key_fns`` has a function per input, or is ``None`` for windows over all events. With
    ``takes_frames`` the input are frames of a first stage; with ``emits_frames`` this is it, and
    ``target_parallelism`` is the number of processors of the second one per member. Windows have
    timestamps, unless nobody needs them: ``emits_events`` is false. ``late_ordinal`` is the edge
    that late events leave over; without one they are only counted.
    """

    live = ("_frames", "_sliding", "_last", "_time")

    def __init__(
        self,
        window: FrameWindow,
        operation: Operation,
        key_fns: Sequence[KeyFn] | None,
        *,
        takes_frames: bool = False,
        emits_frames: bool = False,
        target_parallelism: int = 1,
        emits_events: bool = True,
        late_ordinal: int | None = None,
        step: str = "window-and-aggregate",
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(
            window,
            operation,
            key_fns,
            takes_frames=takes_frames,
            emits_frames=emits_frames,
            target_parallelism=target_parallelism,
            late_ordinal=late_ordinal,
            step=step,
            data_ordinals=data_ordinals,
        )
        self._takes_frames = takes_frames
        self.traits = replace(
            self.traits,
            # The second stage adds up what the first has emitted when a batch ended.
            spans_batches=not emits_frames,
            repeats=Repeats.BOTH if window.early_period is None else Repeats.NO,
        )
        self._slides = window.slides
        self._keeps = (
            self._slides
            and (window.grows or operation.deduct is not None)
            and operation.combine is not None
            and not emits_frames
        )
        """True if the current window is kept as a whole, and goes on from frame to frame."""
        self._deducts = self._keeps and not window.grows
        if operation.combine is not None:
            self._combine = operation.table_combiner()
            self._combine_copies = operation.table_combiner(copies=True)
        if self._deducts:
            self._deduct = operation.table_deductor()
        name = operation.name
        finish = operation.export if self._keeps else operation.finish
        self._results = result_loop(finish, name, emits_events=emits_events)
        self._early_results = result_loop(operation.export, name, emits_events=emits_events)
        self._sliding: Table = {}
        """What the current window holds, if it is kept."""
        self._last: Table = {}
        """With ``deduct``, if the operation does not count: the last frame that each key is in."""
        self._may_use_columns = (
            takes_frames
            and window.early_period is None
            and (self._keeps or not self._slides)
            and ColumnWindows.can_do(operation, slides=self._slides)
        )
        self._windows: ColumnWindows | None = None
        """What is otherwise in the tables, as columns."""
        self._emits_events = emits_events
        self._worked = 0
        """Keys since the last look at the clock."""
        self._next_early = 0
        self._was_other = False
        """True if the state to be restored is of a window with other frames."""
        self._later: list[tuple[int, Iterator[tuple[Any, Any]]]] = []
        """Frames that are saved while the processor goes on."""

    def keep_on_disk(self, store: DiskStore) -> None:
        super().keep_on_disk(store)
        self._sliding, self._last = store.table(), store.table()
        self._may_use_columns = False

    def _new_table(self) -> Table:
        return {} if self.store is None else self.store.table()

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        if self._window.early_period is not None:
            self._next_early = self._window.next_early(context.clock.time_ms())

    # --- Taking events and frames -----------------------------------------------------------

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if self._takes_frames:
            for frame in batch:
                self._add_frame(frame.end, frame.table)
            return
        self._add_events(ordinal, batch)

    def _add_frame(self, end: int, table: Table | Columns) -> None:
        if isinstance(table, Columns):
            if self._add_column_frame(end, table):
                return
            table = dict(table.items())
        elif self._add_few(end, table):
            return
        self._leave_columns()
        if end <= self._time:
            # The windows it belongs to are gone. Its items are not to be had any more.
            count = self._operation.item_count
            lost = len(table) if count is None else sum(map(count, table.values()))
            self.context.count("late_events", lost)
            return
        if self.touched is not None:
            self.touched.add(end, table)
        if self.store is None and end not in self._frames:
            self._frames[end] = table
        else:
            self._combine(self._frames[end], table.items())

    def _add_column_frame(self, end: int, table: Columns) -> bool:
        if not self._may_use_columns or self.touched is not None or end <= self._time:
            return False
        if self._windows is None:
            if self._frames or self._sliding:
                return False
            self._windows = ColumnWindows(self._operation, slides=self._slides)
        try:
            self._windows.add(end, table)
        except Exception:  # tables of Python's can hold all that columns cannot
            return False
        return True

    def _add_few(self, end: int, table: Table) -> bool:
        """Add a frame of a batch that was too small to be worth columns, where others are some.

        What leaves columns does not come back to them while there are any frames, which in a
        stream is always.
        """
        if self._windows is None or isinstance(table, DiskTable):
            return False
        try:
            columns = self._windows.table_of(table)
        except Exception:  # tables of Python's can hold all that columns cannot
            return False
        return self._add_column_frame(end, columns)

    def _leave_columns(self) -> None:
        """Make tables of what is in columns."""
        windows, self._windows = self._windows, None
        if windows is not None:
            self._frames.update(windows.tables())
            if self._keeps:
                self._sliding.update(windows.sliding())

    # --- Emitting ---------------------------------------------------------------------------

    def try_process_watermark(self, watermark: Watermark) -> bool:
        self._begin(watermark.timestamp)
        return self._emit() and self.outbox.offer(watermark)

    def try_process_idle(self) -> bool:
        self._begin_all_frames()
        return self._emit()

    def _begin_all_frames(self) -> None:
        """Begin to emit all that a first stage has: the second one adds up parts of frames."""
        if self._emits_frames and self._emitting is None and (self._frames or self._column_frames):
            self._emitting = chain(self._column_frames_out(), self._frames_out(list(self._frames)))

    def complete(self) -> bool:
        ends = [*self._frames, *(self._windows.frames if self._windows is not None else ())]
        if self._column_frames is not None and self._column_frames.last_end is not None:
            ends.append(self._column_frames.last_end)
        if ends:
            self._begin(self._window.last_end(max(ends)))
        return self._emit()

    def _begin(self, timestamp: int) -> None:
        """Begin to emit all that is complete at ``timestamp``."""
        upto, _ = self._window.frame_at(timestamp)
        if self._emitting is None and upto > self._time:
            self._emitting = (self._frames_upto if self._emits_frames else self._windows_upto)(upto)

    def _in_slices(self, table: Table, use: Callable[[Iterator[tuple[Any, Any]]], None]) -> Output:
        """Hand the entries of a table to ``use``, some at a time."""
        entries = iter(table.items())
        for start in range(0, len(table), SLICE):
            use(islice(entries, SLICE))
            self._worked += min(SLICE, len(table) - start)
            if self._worked >= SLICE:
                self._worked = 0
                if self.is_turn_over():
                    yield None

    # --- Windows ----------------------------------------------------------------------------

    def _windows_upto(self, upto: int) -> Output:
        """Batches of results, window after window."""
        window, columns = self._window, self._windows
        ends = sorted(self._frames if columns is None else columns.frames)
        # Frames from `tail` on, up to `head`, are in the next window, and have been led in.
        tail, head = 0, bisect_right(ends, self._time)
        while True:
            end = window.next_end(self._time)
            if tail == head:
                if head == len(ends):
                    break
                # No window before that one has any events.
                end = max(end, window.next_end(ends[head] - 1))
            if end > upto:
                break
            led, head = head, bisect_right(ends, end, head)
            yield from self._lead_all(ends[led:head])
            yield from self._window_out(window.start_of(end), end)
            left, tail = tail, bisect_right(ends, window.start_after(end), tail, head)
            for gone in ends[left:tail]:
                if columns is not None:
                    columns.trail(gone)
                    continue
                if self.touched is not None:
                    self.touched.drop(gone)
                trailing = self._frames.pop(gone)
                if self._keeps:
                    yield from self._trail(gone, trailing)
                self._drop(trailing)
            self._time = end
        # Between the ends of two windows, too, nothing is added to frames that are complete.
        yield from self._lead_all(ends[head : bisect_right(ends, upto, head)])
        self._time = max(self._time, upto)

    def _lead_all(self, ends: Sequence[int]) -> Output:
        """Frames are complete, and come into windows."""
        for end in ends:
            if self._windows is not None:
                self._windows.lead(end)
                if self.is_turn_over():
                    yield None
                continue
            self._check_keys(self._frames[end])
            if self._keeps:
                yield from self._lead(end, self._frames[end])

    def _window_out(self, start: int, end: int) -> Output:
        """The results of one window."""
        if self._windows is not None:
            yield from self._columns_out(self._windows, start, end)
            return
        combined = None
        if not self._slides:
            table = self._frames.get(end, {})
        elif self._keeps:
            table = self._sliding
        else:
            table = combined = self._new_table()
            yield from self._combine_frames(table, start, end)
        yield from self._results_of(table, WindowResult, start, end, self._results)
        if combined is not None:
            self._drop(combined)

    def _columns_out(self, windows: ColumnWindows, start: int, end: int) -> Output:
        results = windows.results(
            WindowResult, start, end, time=end - 1 if self._emits_events else None
        )
        if results is not None:
            for first in range(0, len(results), ROWS_OUT):
                yield results[first : first + ROWS_OUT]
            if self.is_turn_over():
                yield None

    def _results_of(
        self, table: Table, kind: type, start: int, end: int, make: ResultLoop
    ) -> Output:
        entries = iter(table.items())
        try:
            while batch := make(islice(entries, BATCH_SIZE), kind, start, end):
                yield batch
        except Exception as error:
            raise self._result_failure(table, start, end) from error

    def _result_failure(self, table: Table, start: int, end: int) -> ItemFailedError:
        for key, value in table.items():
            try:
                self._operation.export(value)
            except Exception:
                return ItemFailedError(WindowResult(start, end, key, value), self._step)
        return ItemFailedError(WindowResult(start, end, None, None), self._step)

    def _lead(self, end: int, frame: Table) -> Output:
        """The window slides over a new frame."""
        sliding, last = self._sliding, self._last
        self._touch_window(frame)
        needs_last = self._deducts and self._operation.item_count is None

        def lead(entries: Iterator[tuple[Any, Any]]) -> None:
            # Copies: the frame's own are needed once more, to be deducted.
            self._combine_copies(sliding, entries)

        yield from self._in_slices(frame, lead)
        if needs_last:
            yield from self._in_slices(
                frame, lambda entries: last.update(dict.fromkeys([key for key, _ in entries], end))
            )

    def _trail(self, end: int, frame: Table) -> Output:
        """The window leaves a frame behind."""
        self._touch_window(frame)
        sliding, last = self._sliding, self._last
        if not self._deducts:  # the next window begins with nothing
            return self._in_slices(frame, lambda entries: _remove(sliding, entries))
        deduct = self._deduct
        return self._in_slices(frame, lambda entries: deduct(sliding, entries, last, end))

    def _combine_frames(self, table: Table, start: int, end: int) -> Output:
        """Put all frames of a window into the table, without changing them."""
        length = self._window.frame_length
        assert length is not None
        for frame_end in range(start + length, end + 1, length):
            frame = self._frames.get(frame_end)
            if frame is not None:
                yield from self._in_slices(
                    frame, lambda entries: self._combine_copies(table, entries)
                )

    # --- Early results ----------------------------------------------------------------------

    def try_process(self) -> bool:
        period = self._window.early_period
        if period is None:
            return True
        now = self.context.clock.time_ms()
        if self._emitting is None and now >= self._next_early:
            self._next_early = self._window.next_early(now)
            self._emitting = self._open_windows()
        return self._emit()

    def _open_windows(self) -> Output:
        """What each window holds that is not complete and has any events."""
        window, frames = self._window, self._frames
        ends = sorted(frames)
        end = self._time
        while ends:
            end = window.next_end(end)
            first = bisect_right(ends, window.start_of(end))
            if first == len(ends):
                return
            end = max(end, window.next_end(ends[first] - 1))
            start = window.start_of(end)
            table = frames.get(end, {})
            if self._slides:
                table = self._new_table()
                yield from self._combine_frames(table, start, end)
            yield from self._results_of(table, EarlyWindowResult, start, end, self._early_results)
            if self._slides:
                self._drop(table)

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        # What is half emitted leaves before the barrier.
        if not self._emit():
            return False
        self._begin_all_frames()
        if not self._emit():
            return False
        if not self._saver.save(self.outbox, self._entries):
            return False
        later, self._later = self._later, []
        self.outbox.save_later(
            (key, (end, value)) for end, entries in later for key, value in entries
        )
        return True

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        """What has to be saved at once; the rest is put aside for later."""
        frames = self._frames if self._windows is None else dict(self._windows.tables())
        for end, table in frames.items():
            if isinstance(table, DiskTable) and table.is_on_disk:
                self._later.append((end, table.frozen()))
            elif end <= self._time:
                self._later.append((end, iter(table.items())))  # it does not change any more
            elif is_plain(table.values()):
                self._later.append((end, iter(dict(table).items())))
            else:
                for key, value in table.items():
                    yield key, (end, value)
        yield self._time_entry()

    def state_definition(self) -> Mapping[str, Any]:
        return {**self._window.definition, "of": self._operation.definition}

    def restored_from(self, definition: Mapping[str, Any]) -> None:
        """A window that is not longer, and slides in steps of whole frames, finds all it needs."""
        mine, window = self.state_definition(), self._window
        size, slide = definition.get("size", 0), definition.get("slide", 0)
        if not isinstance(window, SlidingWindow):
            raise different_state(definition, mine)
        if definition != {**mine, "size": size, "slide": slide}:
            raise different_state(definition, mine)
        if window.size > size or window.slide % slide or size % slide or window.size % window.slide:
            why = "what is saved suffices for windows that are not longer, and slide by a multiple"
            raise different_state(definition, mine, why)
        self._was_other = True

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        frames = self._frames
        for key, saved in inbox:
            if isinstance(key, BroadcastKey):
                self._saved_time.restore(saved)
                continue
            end, value = saved
            if self._was_other:
                end = self._window.next_end(end - 1)
            table = frames[end]
            if self._was_other and key in table:
                self._combine(table, [(key, value)])
            else:
                table[key] = value

    def finish_snapshot_restore(self) -> bool:
        super().finish_snapshot_restore()
        if self._was_other and self._time != MIN_TIMESTAMP:
            # The window that is next ends after the last one that was emitted, however that slid.
            self._time, _ = self._window.frame_at(self._time)
            outside = self._window.start_of(self._window.next_end(self._time))
            for end in [end for end in self._frames if end <= outside]:
                self._drop(self._frames.pop(end))
        if self._keeps and self._emitting is None and self.touched is None:
            self._emitting = self._rebuild()
        return self._emit()

    def _rebuild(self) -> Output:
        for end in sorted(end for end in self._frames if end <= self._time):
            yield from self._lead(end, self._frames[end])

    # --- Changes ----------------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        """The frames by their end, and what is derived from them: it would take long to redo."""
        if not (self._keeps and self.keeps_derived):
            return self._frames
        return {**self._frames, SLIDING: self._sliding, LAST: self._last}

    @property
    def saves_changes(self) -> bool:
        # A first stage has nothing to save; and columns are whole frames.
        return not (self._emits_frames or self._may_use_columns)

    def saved_entries(self, table: Any, entries: dict[Any, Any]) -> dict[Any, Any]:
        return {key: (table, value) for key, value in entries.items()}

    def track_changes(self) -> None:
        super().track_changes()
        self._add_keyed = self._frame_loops()

    def _touch_window(self, frame: Table) -> None:
        if self.touched is not None and self.keeps_derived:
            self.touched.add(SLIDING, frame)
            self.touched.add(LAST, frame)

    def apply_change(self, change: TableChange) -> None:
        name = change.table
        if isinstance(name, int):
            if change.is_new and not change.entries:
                self._drop(self._frames.pop(name, {}))
                return
            _ = self._frames[name]  # there from now on
        super().apply_change(change)


def _remove(table: Table, entries: Iterator[tuple[Any, Any]]) -> None:
    for key, _ in entries:
        table.pop(key, None)
