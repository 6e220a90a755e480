"""FrameProcessor: events are accumulated into frames, which may go on to a second stage.

Events that come as columns, with a key and an operation that are for columns, are accumulated so.

A table goes to the second stage whole, if that is a single processor: then it is neither copied nor
looked at. Otherwise it is divided among the processors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from jetlet.columns.accumulators import accumulator_of, can_accumulate
from jetlet.columns.arrow import is_for_columns, tree_of
from jetlet.columns.best import BestRows
from jetlet.columns.function import column_function
from jetlet.columns.steps import Attempts
from jetlet.columns.windows import ColumnFrames, by_frame, frame_ends
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.partitioning import Partitioner, PartitionId, stable_hash
from jetlet.core.processor import ProcessorContext
from jetlet.core.table import Table as Columns
from jetlet.errors import ItemFailedError
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.functions import entry_key
from jetlet.pipeline.windows import FrameWindow
from jetlet.processors.base import Output
from jetlet.processors.item_failure import item_failure, lookup_error
from jetlet.processors.time.event_state import EventStateProcessor
from jetlet.processors.time.window_loops import FrameLoop, frame_loop
from jetlet.snapshots.incremental import Table
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.disk_table import DiskTable

if TYPE_CHECKING:
    import numpy as np

Operation = AggregateOperation[Any, Any, Any]
KeyFn = Callable[[Any], Any]
SLICE: Final = 1024
"""Keys between two looks at the clock."""
PLAIN_TYPES: Final = frozenset({str, bytes, int, bool, NoneType})
"""Keys that can be routed whatever their value is."""


@dataclass(slots=True)
class Frame:
    """A frame, or a part of one, on its way to the second stage, which then owns the table."""

    key: PartitionId
    """A key that says which processor the frame is for."""
    end: int
    table: Table | Columns
    """Accumulators by key; those that were worked out over columns are a table of such pairs."""


_ANYWHERE: Final = PartitionId(0)
"""The key of all frames if only one processor takes them."""


def frame_key(frame: Frame) -> PartitionId:
    """The key function of the edge between the two stages."""
    return frame.key


class FrameProcessor(EventStateProcessor):
    """What a processor of windows does with events, and with frames as a whole.

    ``key_fns`` has a function per input, or is ``None`` for windows over all events. With
    ``takes_frames`` the input are frames of a first stage; with ``emits_frames`` this is it, and
    ``target_parallelism`` is the number of processors of the second one per member.
    """

    def __init__(
        self,
        window: FrameWindow,
        operation: Operation,
        key_fns: Sequence[KeyFn] | None,
        *,
        takes_frames: bool,
        emits_frames: bool,
        target_parallelism: int,
        late_ordinal: int | None,
        step: str,
        data_ordinals: Ordinals,
    ) -> None:
        super().__init__(data_ordinals, late_ordinal)
        self._step = step
        self._window = window
        self._operation = operation
        self._key_fns = key_fns
        self._emits_frames = emits_frames
        self._target_parallelism = target_parallelism
        self._add_keyed = self._frame_loops()
        self._add_all = [operation.batch_accumulator(i) for i in range(operation.arity)]
        # Windows that end up to the processor's time have been emitted; so have frames.
        self._frames: defaultdict[int, Table] = defaultdict(dict)
        """By end: accumulators by key of those that are still to come in a window, and those in
        the current one; without keys there is one, of the key ``None``."""
        self._column_frames = self._new_column_frames()
        """In a first stage: events that are columns."""
        self._best = None if takes_frames else BestRows.of(operation, key_fns)
        self._sums = (
            key_fns is None and operation.combine is not None and can_accumulate(operation.shape)
        )
        """True if all that is in a frame can be worked out over columns."""
        self._attempts = Attempts()
        self._partitioner: Partitioner | None = None
        self._checks_keys = False

    def keep_on_disk(self, store: DiskStore) -> None:
        super().keep_on_disk(store)
        self._frames = defaultdict(store.table)
        self._column_frames = None

    @staticmethod
    def _drop(table: Table) -> None:
        """Nobody needs the table any more."""
        if isinstance(table, DiskTable):
            table.drop()

    def _new_column_frames(self) -> ColumnFrames | None:
        window, shape, key_fns = self._window, self._operation.shape, self._key_fns
        if not self._emits_frames or window.has_gaps or key_fns is None or len(key_fns) > 1:
            return None
        if window.frame_length is None:
            return None
        tree = tree_of(key_fns[0])
        if tree is None or not is_for_columns(key_fns[0]) or not can_accumulate(shape):
            return None
        assert shape is not None
        return ColumnFrames(tree, shape, window.frame_length, window.offset)

    def _frame_loops(self) -> list[FrameLoop]:
        operation, window = self._operation, self._window
        return [
            frame_loop(operation.loop_body(i), key_fn, window, operation.name, self.touched)
            for i, key_fn in enumerate(self._key_fns or ())
        ]

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        if self._key_fns is not None:
            self._targets = context.member_count * self._target_parallelism
            if self._targets > 1 and self._emits_frames:
                self._partitioner = Partitioner(None, context.partition_count)
                self._row_partitioner = Partitioner(
                    column_function(entry_key), context.partition_count
                )
            # With several processors the edge before has done it for each item.
            self._checks_keys = context.local_parallelism == 1

    # --- Taking events ----------------------------------------------------------------------

    def _add_events(self, ordinal: int, batch: Sequence[Any]) -> None:
        if batch.__class__ is Columns:
            if self._best is not None:
                batch = self._best_of(self._best, batch)
            elif self._add_columns(batch) or self._add_sums(batch):
                return
        if self._key_fns is None:
            self._add_unkeyed(ordinal, batch)
            return
        events = iter(batch)
        try:
            late = self._add_keyed[ordinal](self._frames, events, self._time)
        except Exception as error:
            item = item_failure(batch, events, self._step).item[1]  # type: ignore[index]
            cause = lookup_error(error, item, [self._key_fns[ordinal]])
            raise ItemFailedError(item, self._step) from cause
        if late:
            self._drop_late(late)

    def _add_columns(self, events: Columns) -> bool:
        """Add events as columns; false if the items are to be added."""
        columns = self._column_frames
        if columns is None or self.touched is not None or events.times is None:
            return False
        if not self._attempts.begin(events):
            return False
        try:
            late = columns.add(events, self._time)
        except Exception:  # the items tell which of them it was
            self._attempts.end(has_worked=False)
            return False
        self._attempts.end(has_worked=True)
        if late:
            self._drop_late(late.without_times().items())
        return True

    def _frame_ends(self, events: Columns) -> np.ndarray[Any, Any] | None:
        """When the frame of each event ends; ``None`` if the items are to tell."""
        window = self._window
        if window.has_gaps or window.frame_length is None or events.times is None:
            return None
        ends = frame_ends(events.times, window.frame_length, window.offset)
        return ends if ends is not None and ends.min() > self._time else None

    def _best_of(self, best: BestRows, events: Columns) -> Columns:
        """The events that come into question; all of them, if any of them is late."""
        ends = self._frame_ends(events)
        return events if ends is None else best.among(events, ends)

    def _add_sums(self, events: Columns) -> bool:
        """Add events without keys as columns; false if the items are to be added."""
        if not self._sums or not self._attempts.begin(events):
            return False
        operation = self._operation
        assert operation.shape is not None
        assert operation.combine is not None
        ends = self._frame_ends(events)
        try:
            parts = [] if ends is None else by_frame(events, ends)
            values = [(end, accumulator_of(operation.shape, part)) for end, part in parts]
        except Exception:  # the items tell which of them it was
            values = []
        self._attempts.end(has_worked=bool(values))
        for end, value in values:
            table = self._frames[end]
            if self.touched is not None:
                self.touched[end][None] = None
            table[None] = operation.combine(table[None], value) if table else value
        return bool(values)

    def _add_unkeyed(self, ordinal: int, batch: Sequence[Any]) -> None:
        times = [event[0] for event in batch]
        start, end = self._window.frame_at(min(times))
        if max(times) < end:  # the usual case: all in one frame
            self._add_items(ordinal, start, end, [event[1] for event in batch])
            return
        by_frame: dict[tuple[int, int], list[Any]] = {}
        for time, item in batch:
            if not start <= time < end:
                start, end = self._window.frame_at(time)
            by_frame.setdefault((start, end), []).append(item)
        for (start, end), items in by_frame.items():
            self._add_items(ordinal, start, end, items)

    def _add_items(self, ordinal: int, start: int, end: int, items: Sequence[Any]) -> None:
        if self._window.is_in_gap(start):
            return
        if end <= self._time:
            self._drop_late(items)
            return
        table = self._frames[end]
        if self.touched is not None:
            self.touched[end][None] = None
        value = table[None] if table else self._operation.create()
        try:
            table[None] = self._add_all[ordinal](value, items)
        except Exception as error:
            raise ItemFailedError(self._culprit(ordinal, items), self._step) from error

    def _culprit(self, ordinal: int, items: Sequence[Any]) -> Any:
        """The item that failed, found by doing it again one by one."""
        accumulate, value = self._operation.accumulate[ordinal], self._operation.create()
        for item in items:
            try:
                value = accumulate(value, item)
            except Exception:
                return item
        return items[0]

    # --- Emitting frames --------------------------------------------------------------------

    def _frames_upto(self, upto: int) -> Output:
        # Columns first: what others have added to a frame joins them, but not the other way round.
        yield from self._column_frames_out(upto)
        yield from self._frames_out([end for end in self._frames if end <= upto])
        self._time = upto

    def _column_frames_out(self, upto: int | None = None) -> Output:
        if self._column_frames is None:
            return
        frames: list[Frame] = []
        for end, table in self._column_frames.take(upto):
            if self.is_turn_over():
                if frames:
                    yield frames
                yield None
                frames = []
            if self._partitioner is None:
                frames.append(Frame(_ANYWHERE, end, table))
                continue
            # Who owns a partition depends on this remainder only.
            owners = [p % self._targets for p in range(self._partitioner.partition_count)]
            shares = self._row_partitioner.route(table, owners, self._targets)
            for target, share in enumerate(shares):
                if share:
                    assert isinstance(share, Columns)
                    frames.append(Frame(PartitionId(target), end, share))
        if frames:
            yield frames

    def _frames_out(self, ends: Sequence[int]) -> Output:
        if self._partitioner is not None:
            for end in sorted(ends):
                table = self._frames.pop(end)
                yield from self._frame_in_parts(end, table, self._partitioner)
                self._drop(table)
        elif self.store is not None:
            for end in sorted(ends):
                table = self._frames.pop(end)
                self._check_keys(table)
                entries = iter(table.items())
                while part := dict(islice(entries, SLICE)):
                    yield [Frame(_ANYWHERE, end, part)]
                self._drop(table)
        elif ends:
            tables = [(end, self._frames.pop(end)) for end in sorted(ends)]
            for _, table in tables:
                self._check_keys(table)
            yield [Frame(_ANYWHERE, end, table) for end, table in tables]

    def _frame_in_parts(self, end: int, table: Table, partitioner: Partitioner) -> Output:
        entries = iter(table.items())
        while part := dict(islice(entries, SLICE)):
            shares: dict[int, Table] = {}
            ids = partitioner.partition_ids(list(part))
            for partition, (key, value) in zip(ids, part.items(), strict=True):
                # Who owns a partition depends on this remainder only.
                target = partition % self._targets
                if target in shares:
                    shares[target][key] = value
                else:
                    shares[target] = {key: value}
            yield [Frame(PartitionId(target), end, share) for target, share in shares.items()]

    def _check_keys(self, table: Table) -> None:
        """Refuse a key that could not be routed, also where there is nothing to route."""
        if not self._checks_keys:
            return
        kinds = table.key_types if isinstance(table, DiskTable) else map(type, table)
        if PLAIN_TYPES.issuperset(kinds):
            return
        keys = list(table)
        it = iter(keys)
        try:
            for key in it:
                stable_hash(key)
        except Exception as error:
            raise item_failure(keys, it, self._step) from error
