"""TimestampProcessor: gives items timestamps in mid-pipeline; StripProcessor takes them off.

On a stream it also makes the watermarks. Bounded input needs none: its splits are read in any
order, so no event can be called late, and all windows are complete at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jetlet.columns.times import ColumnTimes
from jetlet.core.inbox import Inbox
from jetlet.core.items import MIN_TIMESTAMP, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import ProcessorContext
from jetlet.core.table import Table
from jetlet.core.traits import BatchPart, Repeats, State, Traits
from jetlet.pipeline.functions import plain_function
from jetlet.processors.base import STATELESS, BatchProcessor, ErrorPolicy
from jetlet.processors.item_failure import item_at
from jetlet.processors.state_saver import SavedTime
from jetlet.processors.time.event_time import (
    BatchWatermark,
    EventTimePolicy,
    WatermarkSource,
    bad_timestamp,
    check_times,
    timestamp_loop,
)

_ONLY = 0
"""The number of the only partition: all input counts as one."""


class TimestampProcessor(BatchProcessor):
    """Items in, events out. Watermarks that come in are dropped: time begins anew here.

    Without a ``time_policy`` it makes no watermarks.
    """

    traits = Traits(
        state=State.SAVED,
        spans_batches=False,
        repeats=Repeats.BOTH,
        emits_at_end=False,
        needs_index=False,
    )
    makes_watermarks = True

    def __init__(
        self,
        fn: Callable[[Any], int],
        time_policy: EventTimePolicy | None,
        *,
        policy: ErrorPolicy,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        self._fn = plain_function(fn)
        self._times = timestamp_loop(fn)
        self._column_times = ColumnTimes(fn)
        self._time_policy = time_policy
        if time_policy is not None and time_policy.needs_clock:
            self.traits = replace(self.traits, needs_clock=True)
        self._policy = policy
        self._watermarks: WatermarkSource | None = None
        self._of_batch: BatchWatermark | None = None
        self._is_batch_over = False
        self._saved_time = SavedTime()
        self._had_input = False

    def join_micro_batch(self, part: BatchPart) -> None:
        if self._time_policy is not None:
            self._of_batch = BatchWatermark(self._time_policy, part.watermark)

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        if self._time_policy is not None and self._of_batch is None:
            now = context.clock.monotonic_ns()
            self._watermarks = WatermarkSource(self._time_policy, (_ONLY,), now)

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        self._had_input = True
        times: list[int] = []
        if self._of_batch is not None:
            self.send_watermarks(self._of_batch.begin())
        if batch.__class__ is Table and self._add_columns(batch):
            return
        if self._policy.fails:
            it = iter(batch)
            try:
                times = self._times(it)
            except Exception as error:
                raise self._policy.failure(item_at(batch, it)) from error
            check_times(times, batch, self._policy.step)
        else:
            times, batch = self._timed_or_rejected(batch)
        self.send(list(zip(times, batch, strict=True)))
        if times:
            self._observe(max(times))

    def _add_columns(self, table: Table) -> bool:
        """Give the rows of a table timestamps beside them; false if the items are to get theirs."""
        found = self._column_times.add_to(table)
        if found is None:
            return False
        self.send(found[0])
        self._observe(found[1])
        return True

    def _observe(self, highest: int) -> None:
        """Events have been sent, of which this is the latest time."""
        if self._of_batch is not None:
            self._of_batch.observe(highest)
        elif self._watermarks is not None:
            self.send_watermarks(self._watermarks.observe(_ONLY, highest))

    def _timed_or_rejected(self, batch: Sequence[Any]) -> tuple[list[int], list[Any]]:
        times: list[int] = []
        items: list[Any] = []
        for item in batch:
            try:
                time = self._fn(item)
                if type(time) is not int:
                    raise bad_timestamp(time)
            except Exception as error:
                self.reject(self._policy, item, error)
            else:
                times.append(time)
                items.append(item)
        return times, items

    def try_process(self) -> bool:
        if not self.flush():
            return False
        watermarks, context = self._watermarks, self.context
        if watermarks is not None:
            # Called before each inbox. Without one since the last time there was no input, unless
            # it is kept back until a barrier has come over other edges.
            is_quiet = not self._had_input and not context.has_input()
            self._had_input = False
            watermarks.polled(context.clock.monotonic_ns(), has_seen_all=is_quiet)
            self.send_watermarks(watermarks.check_idle())
        return self.flush()

    def try_process_watermark(self, watermark: Watermark) -> bool:
        return self.flush()

    def complete(self) -> bool:
        return self.flush()

    def save_to_snapshot(self) -> bool:
        if self._of_batch is not None and not self._is_batch_over:
            self._is_batch_over = True
            self.send_watermarks(self._of_batch.end(self.context.report))
        if not self.flush():
            return False
        if self._watermarks is None:
            return True
        time = self._watermarks.watermark_of(_ONLY)
        return self.outbox.offer_to_snapshot(*SavedTime.entry(self.context.global_index, time))

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for _, watermark in inbox:
            self._saved_time.restore(watermark)

    def finish_snapshot_restore(self) -> bool:
        if self._watermarks is not None:
            self._watermarks.restore(_ONLY, self._saved_time.restored(MIN_TIMESTAMP))
        return True


class StripProcessor(BatchProcessor):
    """Events in, items out. Watermarks pass: whoever does not need them ignores them."""

    traits = STATELESS

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if isinstance(batch, Table) and batch.times is not None:
            self.send(batch.without_times())
        else:
            self.send([event[1] for event in batch])
