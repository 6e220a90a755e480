"""StreamReadProcessor: reads its share of the partitions of an unbounded source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jetlet.columns.times import ColumnTimes, with_times
from jetlet.core.clock import Clock
from jetlet.core.inbox import Inbox
from jetlet.core.items import MIN_TIMESTAMP, BroadcastKey
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.partitioning import stable_hash
from jetlet.core.processor import PartitionTime, Processor, ProcessorContext
from jetlet.core.table import Table, warm_up
from jetlet.core.traits import BatchPart, State, Traits
from jetlet.core.vertex import StreamSupplier
from jetlet.errors import ProcessorContractError
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource
from jetlet.pipeline.transforms.timestamps import TimestampKind
from jetlet.processors.base import BatchProcessor, ErrorPolicy
from jetlet.processors.ends.partition_finder import PartitionFinder
from jetlet.processors.item_failure import item_failure
from jetlet.processors.state_saver import StateSaver
from jetlet.processors.time.event_time import (
    BatchWatermark,
    EventTimePolicy,
    WatermarkSource,
    check_times,
    timestamp_loop,
)
from jetlet.snapshots.context import NONE

ROWS_PER_POLL: Final = 8 * 1024
"""Items that are polled at once where they may come as columns: the more, the less each costs."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """Where the timestamps of a stream come from; picklable."""

    kind: TimestampKind = "none"
    fn: Callable[[Any], int] | None = None
    policy: EventTimePolicy = field(default_factory=EventTimePolicy)


class StreamReadSupplier(StreamSupplier):
    """Finds the partitions where the job is submitted, and takes them along to the readers."""

    def __init__(
        self,
        source: StreamSource[Any],
        timestamps: Timestamps,
        data_ordinals: Ordinals = None,
        policy: ErrorPolicy | None = None,
        *,
        in_columns: bool = False,
    ) -> None:
        self.source = source
        self._in_columns = in_columns
        self._data_ordinals = data_ordinals
        self._policy = policy
        self.partitions: Sequence[Any] = ()
        self.timestamps = timestamps

    def prepare(self, total_parallelism: int) -> None:
        self.partitions = self.source.partitions()
        if self._in_columns:
            warm_up()

    def traits(self) -> Traits:
        return Traits(
            state=State.SAVED,
            emits_at_end=False,
            is_stream=True,
            needs_clock=self.timestamps.policy.needs_clock,
        )

    def get(self) -> Processor:
        return StreamReadProcessor(
            self.source,
            self.partitions,
            self.timestamps,
            self._data_ordinals,
            self._policy,
            in_columns=self._in_columns,
        )

    def batch_reader(self, batches: Iterator[Sequence[Any]]) -> Processor:
        return BatchReadProcessor(batches, self.timestamps)


class StreamReadProcessor(BatchProcessor):
    """Polls a reader for what is new; emits items, or events and watermarks.

    It has every n-th partition, where n is the number of readers, and of those that are found later
    what their keys say, since nobody knows in which order others find them. If the source can be
    replayed, positions and watermarks go into snapshots, by the key of the partition.
    """

    makes_watermarks = True

    def __init__(
        self,
        source: StreamSource[Any],
        partitions: Sequence[Any],
        timestamps: Timestamps,
        data_ordinals: Ordinals = None,
        policy: ErrorPolicy | None = None,
        *,
        in_columns: bool = False,
    ) -> None:
        super().__init__(data_ordinals)
        self._in_columns = in_columns
        self._limit = ROWS_PER_POLL if in_columns else BATCH_SIZE
        self._policy = policy or ErrorPolicy("")
        self.is_cooperative = not source.is_blocking
        self._source = source
        self._partitions = partitions
        self._timestamps = timestamps
        if timestamps.fn is not None:
            self._times = timestamp_loop(timestamps.fn)
            self._column_times = ColumnTimes(timestamps.fn)
        self._mine: list[Any] = []
        """Keys of its partitions. The reader knows them by their index in here."""
        self._names: list[str] = []
        self._reader: StreamReader[Any] | None = None
        self._watermarks: WatermarkSource | None = None
        self._is_at_end = False
        self._restored: dict[Any, tuple[Any, int | None]] = {}
        self._finder: PartitionFinder | None = None
        self._known: set[Any] = set()
        """Keys of all partitions that there are."""
        self._missing: set[Any] = set()
        """Those of them that were not there at the last look."""
        self._gone: set[int] = set()
        """Indexes of its partitions that are not there any more."""
        self._has_begun = False
        self._highest: dict[int, int] = {}
        """The latest times of partitions whose items have no order."""
        self._saver = StateSaver()

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        source, partitions = self._source, self._partitions
        promises = context.processing_guarantee != NONE
        if promises and not source.is_replayable and context.global_index == 0:
            context.logger.warning(
                "%s cannot be read again from where it was: what it has handed over since the last "
                "snapshot is lost when the job fails, whatever the guarantee",
                source.name,
            )
        mine = range(context.global_index, len(partitions), context.total_parallelism)
        finds = source.discovery_ms is not None
        if not mine and not finds:
            return
        self._mine = [source.partition_key(i, partitions[i]) for i in mine]
        self._names = [source.partition_name(i, partitions[i]) for i in mine]
        if self._in_columns:
            warm_up()  # in the process that reads, which need not be the one that has submitted
        self._reader = source.open([partitions[i] for i in mine], context)
        if self._timestamps.kind != "none":
            self._watermarks = WatermarkSource(
                self._timestamps.policy, range(len(self._mine)), context.clock.monotonic_ns()
            )
        self._known = {source.partition_key(i, each) for i, each in enumerate(partitions)}
        if finds:
            self._finder = PartitionFinder(source, context.wake, context.logger)

    def close(self) -> None:
        if self._finder is not None:
            self._finder.close()
        if self._reader is not None:
            self._reader.close()

    def partition_times(self) -> Sequence[PartitionTime]:
        watermarks = self._watermarks
        if watermarks is None:
            return ()
        names = tuple(self._names)  # it may grow meanwhile
        times = map(watermarks.watermark_of, range(len(names)))
        return [
            PartitionTime(name, None if time == MIN_TIMESTAMP else time, watermarks.is_idle(index))
            for index, (name, time) in enumerate(zip(names, times, strict=True))
        ]

    def interrupt(self) -> None:
        """The job is ending; from any thread."""
        if self._finder is not None:
            self._finder.stop()
        if self._reader is not None:
            self._reader.interrupt()

    def complete(self) -> bool:
        if not self.flush():
            return False
        if self._is_at_end or self._reader is None:
            return True
        if self._finder is not None and (found := self._finder.take()) is not None:
            self._take_over(found, self._reader)
        polled = self._reader.poll(self._limit)
        if polled is None:
            self._is_at_end = True
            return True
        for each in polled:
            for record, error in each.rejected:
                self.reject(self._policy, record, error)
        if self._watermarks is None:
            for each in polled:
                self.send(each.items)
        else:
            watermarks, clock = self._watermarks, self.context.clock
            if not self._has_begun:
                self._has_begun = True
                self.send_watermarks(watermarks.begin())
            # With as many as it was asked for it may have left out partitions.
            has_seen_all = sum(len(each.items) for each in polled) < self._limit
            watermarks.polled(clock.monotonic_ns(), has_seen_all=has_seen_all)
            for each in polled:
                if each.items:
                    self._send_events(each, clock, watermarks)
                if each.is_end:
                    if (highest := self._highest.pop(each.partition, None)) is not None:
                        self.send_watermarks(watermarks.observe(each.partition, highest))
                    self.send_watermarks(watermarks.end(each.partition))
            self.send_watermarks(watermarks.check_idle(self._reader.is_quiet))
        self.flush()
        return False

    def _send_events(self, polled: Polled[Any], clock: Clock, watermarks: WatermarkSource) -> None:
        items = polled.items
        highest = self._send_rows(items, polled, clock) if isinstance(items, Table) else None
        if highest is None:
            highest = self._send_items(polled, clock)
        if polled.has_order:
            self.send_watermarks(watermarks.observe(polled.partition, highest))
        else:
            before = self._highest.get(polled.partition, highest)
            self._highest[polled.partition] = max(highest, before)

    def _send_rows(self, table: Table, polled: Polled[Any], clock: Clock) -> int | None:
        """Send what has come as columns; the latest time, or ``None`` if items are to be sent."""
        kind = self._timestamps.kind
        if kind == "function":
            found = self._column_times.add_to(table)
        elif kind == "ingestion":
            found = with_times(table, [clock.time_ms()] * len(table))
        elif polled.timestamps is not None:
            found = with_times(table, polled.timestamps)
        else:
            return None
        if found is None:
            return None
        self.send(found[0])
        return found[1]

    def _send_items(self, polled: Polled[Any], clock: Clock) -> int:
        """Send items with their times, of which this is the latest."""
        kind, items = self._timestamps.kind, polled.items
        times: Sequence[int]
        if kind == "ingestion":
            times = [clock.time_ms()] * len(items)
        elif kind == "native":
            if polled.timestamps is None:
                raise ProcessorContractError(
                    f"{self._source.name} says that it has native timestamps, but its reader gave "
                    f"none: write Polled(partition, items, timestamps)"
                )
            times = polled.timestamps
        else:
            it = iter(items)
            try:
                times = self._times(it)
            except Exception as error:
                raise item_failure(items, it, self.context.vertex_name) from error
        check_times(times, items, self.context.vertex_name)
        self.send(list(zip(times, items, strict=True)))
        return max(times)

    # --- Partitions that come and go --------------------------------------------------------

    def _take_over(self, found: Sequence[Any], reader: StreamReader[Any]) -> None:
        """Read what is new of the partitions that there are, and not what is gone."""
        there = set(found)
        for key in found:
            self._learn(key, None, reader)
        missing = self._known - there
        gone = missing & self._missing  # seen twice: who answers may have just been started
        self._missing = missing - gone
        self._known -= gone
        for index, key in enumerate(self._mine):
            if key in gone and index not in self._gone:
                self._gone.add(index)
                self.context.logger.warning("%s is not there any more", self._names[index])
                reader.remove(index)
                if self._watermarks is not None:
                    self.send_watermarks(self._watermarks.end(index))

    def _learn(
        self, key: Any, restored: tuple[Any, int | None] | None, reader: StreamReader[Any]
    ) -> None:
        """There is a partition; read it if it is new, and ours."""
        if key in self._known:
            return
        partition = self._source.partition_of(key)
        if partition is None:
            return
        self._known.add(key)
        if stable_hash(key) % self.context.total_parallelism != self.context.global_index:
            return
        index = len(self._mine)
        self._mine.append(key)
        name = self._source.partition_name(index, partition)
        self.context.logger.info("%s is new", name)
        position, time = restored or (None, None)
        reader.add(partition, position)
        if self._watermarks is not None:
            self._watermarks.add(index)
            if time is not None:
                self._watermarks.restore(index, time)
        self._names.append(name)  # the last: who asks for times meanwhile goes by the names

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        # What was polled leaves before the barrier: positions are behind it.
        return self.flush() and self._saver.save(self.outbox, self._entries)

    def _entries(self) -> Sequence[tuple[Any, Any]]:
        if self._reader is None or not self._source.is_replayable:
            return ()
        watermarks = self._watermarks
        states = {
            key: (position, None if watermarks is None else watermarks.watermark_of(index))
            for index, (key, position) in enumerate(
                zip(self._mine, self._reader.save(), strict=True)
            )
            if index not in self._gone
        }
        return [(BroadcastKey(("partition", key)), state) for key, state in states.items()]

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for key, state in inbox:
            self._restored[key.key[1]] = state

    def finish_snapshot_restore(self) -> bool:
        restored, self._restored = self._restored, {}
        if self._reader is None or not restored:
            return True
        new = (self._source.beginning,)
        self._reader.restore([restored.get(key, new)[0] for key in self._mine])
        for index, key in enumerate(self._mine):
            watermark = restored[key][1] if key in restored else None
            if self._watermarks is not None and watermark is not None:
                self._watermarks.restore(index, watermark)
        # Not all of them need be among those that there were when the job was started.
        for key, state in restored.items():
            self._learn(key, state, self._reader)
        return True


class BatchReadProcessor(BatchProcessor):
    """Emits a part of a micro-batch: items, or events and watermarks."""

    traits = Traits(state=State.NONE, emits_at_end=False)
    ends_early = False  # time goes on by what is in the batch
    makes_watermarks = True

    def __init__(self, batches: Iterator[Sequence[Any]], timestamps: Timestamps) -> None:
        super().__init__()
        self._batches = batches
        self._timestamps = timestamps
        if timestamps.fn is not None:
            self._times = timestamp_loop(timestamps.fn)
        self._watermark: BatchWatermark | None = None
        self._is_read = self._has_told = False

    def join_micro_batch(self, part: BatchPart) -> None:
        self._part = part
        if self._timestamps.kind != "none":
            self._watermark = BatchWatermark(self._timestamps.policy, part.watermark)

    def complete(self) -> bool:
        if self.flush() and not self._has_told:
            if self._is_read:
                self._has_told = True
                self._part.has_read()
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
                self.send_watermarks(watermark.end(self.context.report))
        elif watermark is None:
            self.send(batch)
        else:
            times = self._times_of(batch)
            self.send_watermarks(watermark.begin())
            self.send(list(zip(times, batch, strict=True)))
            watermark.observe(max(times))

    def _times_of(self, batch: Sequence[Any]) -> Sequence[int]:
        if self._timestamps.kind == "ingestion":
            return [self._part.now_ms] * len(batch)
        it = iter(batch)
        try:
            times = self._times(it)
        except Exception as error:
            raise item_failure(batch, it, self.context.vertex_name) from error
        check_times(times, batch, self.context.vertex_name)
        return times
