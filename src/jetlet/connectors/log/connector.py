"""An embedded log as a source and as a sink of pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypeVar

from jetlet.connectors.log.transactions import LogStaging, LogTransactionWriter
from jetlet.connectors.typed_records import TypedRecords
from jetlet.core.arguments import (
    check_choice,
    check_count,
    check_functions,
    check_name,
    check_start,
    shortened,
    time_to_ms,
)
from jetlet.core.durations import Duration
from jetlet.core.processor import ProcessorContext
from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.log.blocks import Serializer
from jetlet.log.log import SEGMENT_BYTES, Directory, Log, LogOptions
from jetlet.log.reader import NO_RECORDS, OnGap, PartitionReader, Records
from jetlet.pipeline.checks import check_on_error
from jetlet.pipeline.errors import RawRecord, Rejected
from jetlet.pipeline.expressions.data_types import ANY, DataType
from jetlet.pipeline.sink import OnError, SinkWriter, TransactionalSink, WriterPlace
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.stream_source import Polled, Span, SpanPart, StreamReader, StreamSource

T = TypeVar("T")

Start = Literal["earliest", "latest"] | Mapping[int, int] | int | datetime
Until = Literal["end"] | Mapping[int, int] | int | datetime


@dataclass(frozen=True, slots=True)
class LogPartition:
    """A partition to read, and where to begin."""

    index: int
    offset: int | None
    """``None`` is the first record that is there."""


class LogSource(StreamSource[Any]):
    """Records of an embedded log, those that are there and those that are appended later.

    ``start`` is ``"earliest"``, ``"latest"`` (only what is appended from now on), a dict from
    partitions to offsets, or a time: milliseconds since 1970 or a ``datetime``. Records that are
    gone, because retention has deleted them before they were read, are skipped with a warning;
    with ``on_gap="fail"`` the job fails.

    Records that cannot be decoded fail the job, too. With ``on_error="skip"`` those that were
    appended together with one are left out and counted, with a sink it gets a
    :class:`~jetlet.DeadLetter` whose ``item`` has their first ``offset``, and their bytes as
    ``raw``.

    With ``until`` it ends, as bounded input does: ``"end"`` is where each partition ends when the
    job is submitted, a dict from partitions to offsets, or a time, is what is no longer read. It
    then runs on every engine, and stages that wait for the end are welcome.

    With a ``schema`` (a dataclass, ``TypedDict``, msgspec ``Struct`` or ``pyarrow.Schema``) records
    of another type are treated as ones that cannot be decoded, expressions are checked against it,
    and for stages that work on columns many records become a table, if all fields are numbers,
    texts or truth values.

    There must be a log, unless ``partitions`` says how many one is to have that is made now. By
    default records are plain values; objects of classes take ``serializer="pickle"``, here and
    where they are written: say it if you trust all who can write to the log.
    """

    has_native_timestamps = True
    is_replayable = True

    def __init__(
        self,
        directory: Directory,
        *,
        start: Start = "earliest",
        until: Until | None = None,
        on_gap: OnGap = "skip",
        partitions: int | None = None,
        serializer: Serializer | None = None,
        schema: Any = None,
        on_error: OnError = "fail",
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> None:
        what = "sources.log"
        options = LogOptions.of(what, directory, partitions=partitions, serializer=serializer)
        check_start(what, start, "partitions to offsets", "earliest", "latest")
        if until is not None:
            check_start(what, until, "partitions to offsets", "end", parameter="until")
        check_choice(f"{what}: on_gap", on_gap, "skip", "fail")
        check_on_error(what, on_error)
        self._options = options
        self._typed = None if schema is None else TypedRecords(what, schema)
        self.has_columns = self._typed is not None and self._typed.has_columns
        self._in_columns = False
        self.on_error = on_error
        self._start = start
        self._until = until
        self._on_gap: OnGap = on_gap
        self.name = check_name(what, name) or f"log-source({options.directory.split('/')[-1]})"
        self.preferred_local_parallelism = (
            check_count(f"{what}: local_parallelism", local_parallelism) or 1
        )

    def __getstate__(self) -> dict[str, Any]:
        # Whoever reads need only know that bad records do not fail the job.
        on_error = self.on_error
        return {**self.__dict__, "on_error": on_error if isinstance(on_error, str) else "skip"}

    def item_type(self) -> DataType:
        return ANY if self._typed is None else self._typed.type

    def in_columns(self) -> LogSource:
        twin = copy(self)
        twin._in_columns = self.has_columns
        return twin

    def partitions(self) -> Sequence[LogPartition]:
        # "Latest" is when the job is submitted: what is appended while it starts is not missed.
        with Log.with_options("sources.log", self._options) as log:
            return self._partitions_of(log)

    def _partitions_of(self, log: Log) -> list[LogPartition]:
        count = range(log.partition_count)
        start = self._start
        offsets: Sequence[int | None]
        if start == "earliest":
            offsets = [None for _ in count]
        elif start == "latest":
            offsets = log.end_offsets()
        elif isinstance(start, Mapping):
            _check_partitions("start", start, count)
            offsets = [start.get(i) for i in count]
        else:
            assert isinstance(start, int | datetime)
            offsets = [log.offset_at(i, time_to_ms(start)) for i in count]
        return [LogPartition(i, offset) for i, offset in enumerate(offsets)]

    @property
    def is_bounded(self) -> bool:
        return self._until is not None

    def spans(self) -> Sequence[Span]:
        with Log.with_options("sources.log", self._options) as log:
            ends = log.end_offsets()
            until = self._until
            if isinstance(until, Mapping):
                _check_partitions("until", until, range(len(ends)))
                for partition, offset in until.items():
                    if offset > ends[partition]:
                        raise InvalidArgumentError(
                            f"sources.log: until={until!r}: partition {partition} ends at offset "
                            f"{ends[partition]} now; write that, or until='end'"
                        )
                ends = [until.get(i, end) for i, end in enumerate(ends)]
            elif isinstance(until, int | datetime):
                ends = [log.offset_at(i, time_to_ms(until)) for i in range(len(ends))]
            return [
                Span(each, end) for each, end in zip(self._partitions_of(log), ends, strict=True)
            ]

    def read_span(self, span: Span) -> Iterator[SpanPart[Any]]:
        rejected = Rejected()
        directory = self._options.directory

        def reject(offset: int, raw: bytes, error: BadRecordError) -> None:
            rejected.add(RawRecord(directory, None, offset, raw), error)

        def reject_item(offset: int, item: Any, error: BadRecordError) -> None:
            rejected.add(RawRecord(directory, None, offset, item), error)

        with Log.with_options("sources.log", self._options) as log:
            reader = log.reader(
                span.partition.index,
                span.partition.offset,
                on_gap=self._on_gap,
                on_bad=None if self.on_error == "fail" else reject,
            )
            with closing(reader):
                while reader.offset < span.end:
                    limit = min(BATCH_SIZE, span.end - reader.offset)
                    records = reader.poll(limit)
                    if records is None:
                        reader.look_around()  # all that is to be read has been written
                    found = records or NO_RECORDS
                    if self._typed is not None and records is not None:
                        found = typed_records(
                            self._typed, found, None if self.on_error == "fail" else reject_item
                        )
                    behind = replace(span.partition, offset=reader.offset)
                    part = SpanPart(
                        found.items, found.timestamps, replace(span, partition=behind), rejected
                    )
                    rejected = Rejected()
                    yield part

    def open(
        self, partitions: Sequence[LogPartition], context: ProcessorContext
    ) -> StreamReader[Any]:
        return LogStreamReader(
            Log.with_options("sources.log", self._options),
            partitions,
            self._on_gap,
            context,
            rejects=self.on_error != "fail",
            typed=self._typed,
            in_columns=self._in_columns,
        )


def _check_partitions(parameter: str, given: Mapping[int, int], count: range) -> None:
    if unknown := set(given) - set(count):
        raise InvalidArgumentError(
            f"sources.log: {parameter}={given!r}: the log has no partition "
            f"{min(unknown, key=repr)!r}; write partitions from 0 to {len(count) - 1}"
        )


def typed_records(
    typed: TypedRecords,
    records: Records,
    reject: Callable[[int, Any, BadRecordError], None] | None,
) -> Records:
    """Those that have the type; the others are rejected, or fail."""
    items: list[Any] = []
    times: list[int] = []
    for i, (item, time) in enumerate(zip(records.items, records.timestamps, strict=True)):
        error = typed.error(item)
        if error is None:
            items.append(item)
            times.append(time)
            continue
        offset = records.offset + i
        bad = BadRecordError(
            f"the record at offset {offset} does not go with the schema: {error}: {shortened(item)}"
        )
        if reject is None:
            raise bad
        reject(offset, item, bad)
    return Records(records.offset, items, times)


class LogStreamReader(StreamReader[Any]):
    """Polls its partitions in turn."""

    def __init__(
        self,
        log: Log,
        partitions: Sequence[LogPartition],
        on_gap: OnGap,
        context: ProcessorContext,
        *,
        rejects: bool = False,
        typed: TypedRecords | None = None,
        in_columns: bool = False,
    ) -> None:
        self._typed = typed
        self._in_columns = in_columns
        self._log = log
        self._rejects = rejects
        self._rejected = Rejected()
        self._partitions = partitions
        self._on_gap: OnGap = on_gap
        self._context = context
        self._starts = [partition.offset for partition in partitions]
        self._readers: list[tuple[int, PartitionReader]] = []
        self._turn = 0

    def poll(self, limit: int) -> Sequence[Polled[Any]]:
        readers = self._readers or self._open()
        polled: list[Polled[Any]] = []
        # Another one comes first each time, so that none has to wait for busier ones.
        self._turn = (self._turn + 1) % len(readers)
        for index, reader in readers[self._turn :] + readers[: self._turn]:
            records = reader.poll(limit)
            count = 0 if records is None else len(records)
            batch: Polled[Any] | None = None
            if records is not None:
                batch = self._batch(index, records)
            if self._rejected:
                polled.append(Polled(index, (), rejected=self._rejected))
                self._rejected = Rejected()
            if batch is not None:
                polled.append(batch)
                limit -= count
                if limit <= 0:
                    break
        return polled

    def _batch(self, index: int, records: Records) -> Polled[Any]:
        if self._typed is not None:
            if self._in_columns:
                table = self._typed.table(records.items)
                if table is not None:
                    return Polled(index, table, records.timestamps)
            records = typed_records(self._typed, records, self._reject if self._rejects else None)
        return Polled(index, records.items, records.timestamps)

    def is_quiet(self, partition: int) -> bool:
        return self._readers[partition][1].has_looked

    def save(self) -> Sequence[int]:
        return [reader.offset for _, reader in self._readers or self._open()]

    def restore(self, positions: Sequence[int | None]) -> None:
        self._starts = [
            partition.offset if position is None else position
            for partition, position in zip(self._partitions, positions, strict=True)
        ]

    def close(self) -> None:
        for _, reader in self._readers:
            reader.close()
        self._log.close()

    def _open(self) -> list[tuple[int, PartitionReader]]:
        for i, (partition, start) in enumerate(zip(self._partitions, self._starts, strict=True)):
            reader = self._log.reader(
                partition.index,
                start,
                on_gap=self._on_gap,
                on_skip=self._count_skipped,
                on_bad=self._reject if self._rejects else None,
            )
            self._readers.append((i, reader))
        return self._readers

    def _reject(self, offset: int, raw: Any, error: BadRecordError) -> None:
        self._rejected.add(RawRecord(self._log.directory, None, offset, raw), error)

    def _count_skipped(self, count: int) -> None:
        self._context.count("skipped_offsets", count)


class LogSink(TransactionalSink[T]):
    """Append items to an embedded log, which is made if there is none; see ``sources.log``.

    Items with equal ``key(item)`` go to one partition and keep their order; without ``key``,
    batches take the partitions in turn. ``timestamp(item)`` is in milliseconds since 1970; without
    it, it is the time of writing. A new log has one partition unless ``partitions`` says otherwise.
    The other options are those of :class:`jetlet.log.Log`.

    Items are visible as they come, stay when the job fails, and a restart appends some of them
    again. In a job with the guarantee *exactly-once* they are written aside, and appended when a
    snapshot counts, each once.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        key: Callable[[T], Any] | None = None,
        timestamp: Callable[[T], int] | None = None,
        partitions: int | None = None,
        serializer: Serializer | None = None,
        fsync: Literal["none", "batch"] | Duration = "none",
        segment_bytes: int = SEGMENT_BYTES,
        max_age: Duration | None = None,
        max_bytes: int | None = None,
        name: str | None = None,
    ) -> None:
        what = "sinks.log"
        options = LogOptions.of(
            what,
            directory,
            partitions=partitions,
            default_partitions=1,
            serializer=serializer,
            segment_bytes=segment_bytes,
            fsync=fsync,
            max_age=max_age,
            max_bytes=max_bytes,
        )
        check_functions(what, key=key, timestamp=timestamp)
        self._options = options
        self._key = key
        self._timestamp = timestamp
        self.name = check_name(what, name) or f"log-sink({options.directory.split('/')[-1]})"
        self.is_blocking = options.sync_interval is not None

    def begin(self, run_id: str) -> None:
        self._open().close()

    def open(self, run_id: str, writer_id: str) -> SinkWriter[T]:
        return _LogWriter(self._open(), self._key, self._timestamp)

    def open_transactional(self, place: WriterPlace) -> LogTransactionWriter[T]:
        staging = LogStaging(self._open(), syncs=self._options.sync_interval is not None)
        return LogTransactionWriter(staging, self._key, self._timestamp, place)

    def commit_last(self, run_id: str, vertex: str, prepared: Sequence[Any]) -> None:
        with self._open() as log:
            staging = LogStaging(log, syncs=self._options.sync_interval is not None)
            for each in prepared:
                staging.append(each)
            staging.forget(run_id, vertex)

    def _open(self) -> Log:
        return Log.with_options("sinks.log", self._options)


class _LogWriter(SinkWriter[T]):
    def __init__(
        self,
        log: Log,
        key: Callable[[T], Any] | None,
        timestamp: Callable[[T], int] | None,
    ) -> None:
        self._log = log
        self._key = key
        self._timestamp = timestamp

    def write(self, batch: Sequence[T]) -> None:
        timestamp = self._timestamp
        times = None if timestamp is None else [timestamp(item) for item in batch]
        self._log.append(batch, key=self._key, timestamps=times)

    def finish(self) -> None:
        self._log.close()

    def abort(self) -> None:
        self._log.close()
