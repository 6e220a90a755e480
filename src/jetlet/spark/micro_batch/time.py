"""Time in micro-batches: the watermark moves once per batch, at its end.

Within a batch nothing has an order: its parts are read side by side. So events of a batch can be
late only with respect to the batches before. At the end of a batch the watermark becomes the lowest
of those of the tasks that have seen any events in it, each of which is the highest timestamp that
the task has seen, less the allowed lag. It never goes back.

The clock stands still, too: it shows the time of the batch before until all has been read, then
that of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jetlet.core.clock import SYSTEM_CLOCK
from jetlet.core.items import IDLE, Watermark
from jetlet.processors.base import BatchProcessor
from jetlet.processors.event_time import EventTimePolicy, check_times, timestamp_loop
from jetlet.processors.item_failure import item_failure
from jetlet.processors.stream_read import Timestamps
from jetlet.processors.timestamps import TimestampProcessor
from jetlet.spark.frames import frame_items

if TYPE_CHECKING:
    import pyarrow as pa


class BatchClock:
    """The clock of a batch."""

    monotonic_ns = staticmethod(SYSTEM_CLOCK.monotonic_ns)

    def __init__(self, before_ms: int, now_ms: int) -> None:
        self._time_ms = before_ms
        self._now_ms = now_ms

    def time_ms(self) -> int:
        return self._time_ms

    def advance(self) -> None:
        """All has been read."""
        self._time_ms = self._now_ms


class BatchEnd:
    """Told by the readers of a task when they have read all of a batch; then calls back once."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._reading = 0

    def expect(self) -> None:
        """A reader begins."""
        self._reading += 1

    def arrive(self) -> None:
        """A reader has come to its end."""
        self._reading -= 1
        if not self._reading:
            self._on_end()


class BatchWatermark:
    """Makes the watermark of one processor in one batch; ``before`` is that of the last one."""

    def __init__(self, policy: EventTimePolicy, before: int | None) -> None:
        self._policy = policy
        self._before = before
        self._highest: int | None = None

    def first(self) -> Sequence[Watermark]:
        """What precedes the first events of the batch."""
        return () if self._before is None else (Watermark(self._before),)

    def observe(self, highest: int) -> None:
        """Events have come, of which this is the latest time."""
        self._highest = highest if self._highest is None else max(self._highest, highest)

    def last(self) -> Sequence[Watermark]:
        """What follows the last events of the batch."""
        if self._highest is None:
            return (IDLE,)
        watermark = self.now
        return () if watermark == self._before else (Watermark(watermark),)

    @property
    def now(self) -> int:
        """How far event time has come with the events of the batch."""
        assert self._highest is not None
        step = self._policy.step
        watermark = (self._highest - self._policy.allowed_lag) // step * step
        return watermark if self._before is None else max(self._before, watermark)

    @property
    def has_events(self) -> bool:
        return self._highest is not None


class StreamFrameReader(BatchProcessor):
    """Reads its part of a batch; emits items, or events and watermarks."""

    makes_watermarks = True

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        form: str,
        timestamps: Timestamps,
        now_ms: int,
        before: int | None,
        end: BatchEnd,
    ) -> None:
        super().__init__()
        self._batches = frame_items(batches, form)
        self._timestamps = timestamps
        self._now_ms = now_ms
        if timestamps.fn is not None:
            self._times = timestamp_loop(timestamps.fn)
        self._watermark: BatchWatermark | None = None
        if timestamps.kind != "none":
            self._watermark = BatchWatermark(timestamps.policy, before)
        self._end = end
        self._is_read = self._has_arrived = False
        end.expect()

    def complete(self) -> bool:
        if self.flush() and not self._has_arrived:
            if self._is_read:
                self._has_arrived = True
                self._end.arrive()
            else:
                self._read()
                self.flush()
        return False  # the end of a batch is not that of the stream

    def _read(self) -> None:
        batch = next(self._batches, None)
        watermark = self._watermark
        if batch is None:
            self._is_read = True
            if watermark is not None:
                self.send_watermarks(watermark.last())
                if watermark.has_events:
                    self.context.report(Watermark(watermark.now))
        elif watermark is None:
            self.send(batch)
        else:
            times = self._times_of(batch)
            if not watermark.has_events:
                self.send_watermarks(watermark.first())
            self.send(list(zip(times, batch, strict=True)))
            watermark.observe(max(times))

    def _times_of(self, batch: Sequence[Any]) -> Sequence[int]:
        if self._timestamps.kind == "ingestion":
            return [self._now_ms] * len(batch)
        it = iter(batch)
        try:
            times = self._times(it)
        except Exception as error:
            raise item_failure(batch, it, self.context.vertex_name) from error
        check_times(times, batch, self.context.vertex_name)
        return times


class BatchTimestampProcessor(TimestampProcessor):
    """Gives items timestamps in mid-pipeline."""

    def __init__(
        self, before: int | None, fn: Any, time_policy: EventTimePolicy, **options: Any
    ) -> None:
        super().__init__(fn, None, **options)
        self._watermark = BatchWatermark(time_policy, before)
        self._has_begun = self._has_ended = False

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.send_watermarks(self._watermark.first())
        super().process_batch(ordinal, batch)

    def _observe(self, highest: int) -> None:
        self._watermark.observe(highest)

    def save_to_snapshot(self) -> bool:
        if not self._has_ended:
            self._has_ended = True
            self.send_watermarks(self._watermark.last())
            if self._watermark.has_events:
                self.context.report(Watermark(self._watermark.now))
        return self.flush()
