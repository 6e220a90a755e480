"""LogSystem: streams in embedded logs, one log for each stream.

A pipeline reads what tasks write with ``sources.log("data/counts")``, and tasks read what it writes
with ``sinks.log("data/clicks", partitions=4)``.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from jetlet.core.clock import SYSTEM_CLOCK
from jetlet.errors import InputNotFoundError, InvalidArgumentError
from jetlet.log.blocks import Serializer, check_serializer
from jetlet.log.log import Log, LogOptions
from jetlet.log.reader import PartitionReader, end_offset, offset_at
from jetlet.log.segments import partition_directory
from jetlet.log.watch import LogWatch, watch
from jetlet.pipeline.sink import WriterPlace
from jetlet.tasks.envelope import (
    IncomingEnvelope,
    Offset,
    OutgoingEnvelope,
    SystemStreamPartition,
)
from jetlet.tasks.systems.spreading import Spreading
from jetlet.tasks.systems.system import (
    LATEST,
    Polled,
    Start,
    System,
    SystemConsumer,
    SystemProducer,
    TransactionalProducer,
)


class LogSystem(System):
    """A directory of logs.

    Records are the messages themselves; a key only says which partition a message goes to. With
    ``keyed`` they are pairs ``(key, message)``, and a task that reads them gets the key back.
    """

    has_transactions = True

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keyed: bool = False,
        fsync: bool = False,
        serializer: Serializer | None = None,
    ) -> None:
        # Checked, and made absolute: containers may have another working directory.
        self._directory = LogOptions.of("systems.log", directory).directory
        self._keyed = keyed
        self._fsync = fsync
        check_serializer("systems.log", serializer)
        self._serializer = serializer

    def partition_count(self, stream: str) -> int:
        try:
            with self._open(stream) as log:
                return log.partition_count
        except InputNotFoundError:
            path = self._path(stream)
            raise InputNotFoundError(
                f"there is no log in {path}, so there is no stream {stream!r} in {self!r}: make it "
                f"with jetlet.log.Log({path!r}, partitions=...), or let somebody write "
                f"to it first"
            ) from None

    def newest(
        self, partitions: Sequence[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, Offset | None]:
        ends = {key: end_offset(self.partition_path(key)) for key in partitions}
        return {key: end - 1 if end else None for key, end in ends.items()}

    def before(
        self, partitions: Sequence[SystemStreamPartition], time_ms: int
    ) -> Mapping[SystemStreamPartition, Offset]:
        return {key: offset_at(self.partition_path(key), time_ms) - 1 for key in partitions}

    def prepare_output(self, stream: str, partitions: int | None, default: int) -> None:
        path = self._path(stream)
        options = LogOptions.of(
            "systems.log",
            path,
            partitions=partitions,
            default_partitions=default,
            serializer=self._serializer,
        )
        Log.with_options("systems.log", options).close()

    def consumer(self, starts: Mapping[SystemStreamPartition, Start]) -> LogConsumer:
        return LogConsumer(self, starts, keyed=self._keyed)

    def producer(self) -> LogProducer:
        return LogProducer(self, keyed=self._keyed, fsync=self._fsync)

    def transactional_producer(self, application: str, task: str) -> TransactionalProducer:
        from jetlet.tasks.systems.log_transactions import LogTransactions

        place = WriterPlace(application, task, attempt=uuid.uuid4().hex, index=0, count=1)
        return LogTransactions(self._open, place, keyed=self._keyed, fsync=self._fsync)

    def _open(self, stream: str) -> Log:
        path = self._path(stream)
        options = LogOptions.of("systems.log", path, serializer=self._serializer)
        return Log.with_options("systems.log", options)

    def _path(self, stream: str) -> str:
        if stream in (".", "..") or "/" in stream:
            raise InvalidArgumentError(
                f"stream {stream!r} of systems.log: write the name of a directory in "
                f"{self._directory}"
            )
        return os.path.join(self._directory, stream)  # noqa: PTH118 - a string is what logs take

    def partition_path(self, partition: SystemStreamPartition) -> str:
        """The directory of a partition."""
        return partition_directory(self._path(partition.stream), partition.partition)

    def __repr__(self) -> str:
        return f"systems.log({self._directory!r})"


class LogConsumer(SystemConsumer):
    """Reading a log never waits, so it need not have a thread of its own."""

    def __init__(
        self,
        system: LogSystem,
        starts: Mapping[SystemStreamPartition, Start],
        *,
        keyed: bool,
    ) -> None:
        self._system = system
        self._keyed = keyed
        self._logs = {name: system._open(name) for name in {key.stream for key in starts}}
        self._readers = {key: self._reader(key, start) for key, start in starts.items()}
        self._began = {key: reader.offset for key, reader in self._readers.items()}
        self._watch: LogWatch | None = None

    def start(self, wake: Callable[[], None]) -> None:
        self._watch = watch([self._system.partition_path(key) for key in self._readers], wake)

    def _reader(self, key: SystemStreamPartition, start: Start) -> PartitionReader:
        offset: int | None = None
        if start.after is not None:
            offset = int(start.after) + 1
        elif start.default == LATEST:
            offset = end_offset(self._system.partition_path(key))
        return self._logs[key.stream].reader(key.partition, offset, on_gap="skip")

    def poll(
        self, wanted: Collection[SystemStreamPartition], limit: int
    ) -> Sequence[Polled] | None:
        if self._watch is not None and self._watch.has_woken:
            self._watch.has_woken = False
            for reader in self._readers.values():
                reader.look_around()
        polled = []
        for key in wanted:
            records = self._readers[key].poll(limit)
            if records is None:
                continue
            first = records.offset
            pairs = zip(records.items, records.timestamps, strict=True)
            if self._keyed:
                envelopes = [
                    IncomingEnvelope(key, offset, item[1], item[0], timestamp)
                    for offset, (item, timestamp) in enumerate(pairs, first)
                ]
            else:
                envelopes = [
                    IncomingEnvelope(key, offset, item, None, timestamp)
                    for offset, (item, timestamp) in enumerate(pairs, first)
                ]
            polled.append(Polled(key, envelopes))
        if polled or self._watch is None:
            return polled
        if not all(self._readers[key].is_at_end for key in wanted):
            return polled
        self._watch.arm()
        return None

    def lag(self, partition: SystemStreamPartition, after: Offset | None) -> int | None:
        end = end_offset(self._system.partition_path(partition))
        return end - (self._began[partition] if after is None else int(after) + 1)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        for reader in self._readers.values():
            reader.close()
        for log in self._logs.values():
            log.close()


class LogProducer(SystemProducer):
    """What is appended survives the end of the process; with ``fsync``, a flush waits for the disk.

    The collector hands over one batch at a time.
    """

    def __init__(self, system: LogSystem, *, keyed: bool, fsync: bool) -> None:
        self._system = system
        self._keyed = keyed
        self._fsync = fsync
        self._logs: dict[str, tuple[Log, Spreading]] = {}

    def send(self, stream: str, batch: Sequence[OutgoingEnvelope]) -> None:
        found = self._logs.get(stream)
        if found is None:
            log = self._system._open(stream)
            found = self._logs[stream] = (log, Spreading(stream, log.partition_count))
        log, spreading = found
        for id, items, times in records(spreading, batch, keyed=self._keyed):
            log.append(items, partition=id, timestamps=times)

    def flush(self) -> None:
        if self._fsync:
            for log, _ in list(self._logs.values()):
                log.sync()

    def close(self) -> None:
        for log, _ in self._logs.values():
            log.close()
        self._logs.clear()


def records(
    spreading: Spreading, batch: Sequence[OutgoingEnvelope], *, keyed: bool
) -> Iterator[tuple[int, list[Any], list[int]]]:
    """Messages as a log keeps them: partition, records and their timestamps."""
    now = SYSTEM_CLOCK.time_ms()
    for id, part in spreading.spread(batch).items():
        items = [(e.key, e.message) if keyed else e.message for e in part]
        yield id, items, [now if e.timestamp is None else e.timestamp for e in part]
