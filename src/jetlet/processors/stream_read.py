"""StreamReadProcessor: reads its share of the partitions of an unbounded source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jetlet.core.outbox import Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.vertex import ProcessorSupplier
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.stream_source import StreamReader, StreamSource
from jetlet.processors.base import BatchProcessor
from jetlet.processors.event_time import EventTimePolicy, WatermarkSource
from jetlet.processors.item_failure import item_failure
from jetlet.processors.timestamps import IDLE_CHECK_MS

TimestampKind = Literal["none", "native", "ingestion", "function"]


@dataclass(frozen=True, slots=True)
class Timestamps:
    """Where the timestamps of a stream come from; picklable."""

    kind: TimestampKind = "none"
    fn: Callable[[Any], int] | None = None
    policy: EventTimePolicy = EventTimePolicy()


class StreamReadSupplier(ProcessorSupplier):
    """Finds the partitions where the job is submitted, and takes them along to the readers."""

    def __init__(self, source: StreamSource[Any], timestamps: Timestamps) -> None:
        self.source = source
        self.partitions: Sequence[Any] = ()
        self._timestamps = timestamps

    def prepare(self, total_parallelism: int) -> None:
        self.partitions = self.source.partitions()

    def get(self) -> Processor:
        return StreamReadProcessor(self.source, self.partitions, self._timestamps)


class StreamReadProcessor(BatchProcessor):
    """Polls a reader for what is new; emits items, or events and watermarks."""

    def __init__(
        self, source: StreamSource[Any], partitions: Sequence[Any], timestamps: Timestamps
    ) -> None:
        super().__init__()
        self.is_cooperative = not source.is_blocking
        self._source = source
        self._partitions = partitions
        self._timestamps = timestamps
        self._reader: StreamReader[Any] | None = None
        self._watermarks: WatermarkSource | None = None
        self._next_check = 0
        self._is_at_end = False

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        mine = self._partitions[context.global_index :: context.total_parallelism]
        if mine:
            self._reader = self._source.open(mine, context)
        now = context.clock.time_ms()
        self._next_check = now + IDLE_CHECK_MS
        if self._timestamps.kind != "none" and mine:
            self._watermarks = WatermarkSource(self._timestamps.policy, range(len(mine)), now)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def interrupt(self) -> None:
        """The job is ending; from any thread."""
        if self._reader is not None:
            self._reader.interrupt()

    def complete(self) -> bool:
        if not self.flush():
            return False
        if self._is_at_end or self._reader is None:
            return True
        polled = self._reader.poll(BATCH_SIZE)
        now = self.context.clock.time_ms()
        if polled is None:
            self._is_at_end = True
            return True
        for each in polled:
            if each.items:
                self._emit(each.partition, each.items, each.timestamps, now)
        if self._watermarks is not None and now >= self._next_check:
            self._next_check = now + IDLE_CHECK_MS
            self.send_watermarks(self._watermarks.check_idle(now))
        self.flush()
        return False

    def _emit(
        self, partition: int, items: Sequence[Any], native: Sequence[int] | None, now: int
    ) -> None:
        watermarks = self._watermarks
        if watermarks is None:
            self.send(items)
            return
        kind, fn = self._timestamps.kind, self._timestamps.fn
        if kind == "native":
            assert native is not None
            events = list(zip(native, items, strict=True))
            highest = max(native)
        elif kind == "ingestion":
            events = [(now, item) for item in items]
            highest = now
        else:
            assert fn is not None
            it = iter(items)
            try:
                events = [(fn(item), item) for item in it]
            except Exception as error:
                raise item_failure(items, it, self.context.vertex_name) from error
            highest = max(event[0] for event in events)
        self.send(events)
        self.send_watermarks(watermarks.observe(partition, highest, now))
