"""Exchange: how batches of Python objects get from the tasks of one fragment to those of the next.

Objects cross the JVM as a few large binary values, never a row per object. A row is
``(target, at, channel, payload)``: the task it is for, a number that says which task it is from and
in which order they left there, the edge it belongs to, and a pickled batch of items. Spark shuffles
rows by ``target`` and sorts them by ``at``. Each target gets at least one row, from which a task
knows its number; it may have an empty payload.
Channels below zero are messages to the driver; they are passed on untouched. Items that a
DataFrame is made of have no payload: their columns follow, one struct for each such sink.

A task may be run again after others have read what it sent, so which target an item goes to must
not depend on timing: see :class:`ExchangeWriter`.
"""

from __future__ import annotations

import math
import pickle
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

from jetlet.core.edge import Routing
from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Outbox
from jetlet.core.partitioning import Partitioner, stable_hash
from jetlet.core.pickling import dump
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.table import Table
from jetlet.errors import ItemFailedError, JobFailedError, UnstableKeyError
from jetlet.execution.outbox import shorten
from jetlet.pipeline.source import BATCH_SIZE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

REPORTS = -1
"""Messages of processors to the hooks of their vertices: pickled (vertex, message)."""
METRICS = -2
"""Counters of one task: pickled (fragment, task, [(vertex, values)])."""
FIRST_CLIENT = -3
"""From here downwards: items for the sinks of the submitting process, a channel per vertex."""

COLUMNS = ("target", "at", "channel", "payload")
SEQUENCE_BITS = 32
"""Of ``at``: those for the number of a row within its task."""

CHUNK_ITEMS = 8192
"""Items per payload at the most: so many that a row's overhead does not show."""
CHUNK_BYTES = 1024 * 1024
"""Payloads are kept near this size, going by those before, so that large items do not pile up."""
LEAST_ROWS = 256
"""A table of fewer rows is gathered with other items."""
FIRST_CHUNK = 256
"""Items of the first payload, whose size nobody knows yet."""
BUFFERED_ITEMS = 256 * 1024
"""Items that wait in the buffers for all targets of an edge together."""
FLUSH_ROWS = 256
FLUSH_BYTES = 8 * 1024 * 1024
"""Rows are handed to Spark when there are this many of them, or this many bytes."""
MAX_WAITING = 4
"""Batches of rows that may wait for Spark to take them."""


def dump_items(items: Sequence[Any], vertex: str) -> bytes:
    """Pickle a batch; if it cannot be, say which item of which vertex is to blame."""
    try:
        return dump(items)
    except Exception as error:
        for item in items:
            try:
                dump(item)
            except Exception as e:
                raise _unpicklable(vertex, e, shorten(item)) from e
        raise _unpicklable(vertex, error, None) from error


def _unpicklable(vertex: str, error: Exception, item: str | None) -> JobFailedError:
    return JobFailedError(
        f"its items cannot be sent to another process: {type(error).__name__}: {error}; map them "
        f"to what pickle takes",
        vertex=vertex,
        item=item,
    )


class TaskOutput:
    """Rows on their way from the engine's threads in a task to the thread that Spark reads from."""

    def __init__(self, task: int, frames: dict[int, pa.StructType] | None = None) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Called when there is room again after somebody was told that there is none."""
        self._at = task << SEQUENCE_BITS
        self._frames = frames or {}
        self._rows: list[tuple[int, int, int, bytes]] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._batches: queue.SimpleQueue[pa.RecordBatch | None] = queue.SimpleQueue()
        self._was_refused = False

    @property
    def is_congested(self) -> bool:
        """Spark does not take the rows as fast as they come: add no more for now."""
        if self._batches.qsize() < MAX_WAITING:
            return False
        self._was_refused = True
        return True

    def add(self, channel: int, target: int, payload: bytes) -> None:
        """Append a row; from any thread."""
        with self._lock:
            self._at += 1
            self._rows.append((target, self._at, channel, payload))
            self._bytes += len(payload)
            if len(self._rows) >= FLUSH_ROWS or self._bytes >= FLUSH_BYTES:
                self._flush()

    def add_frame(self, channel: int, items: pa.StructArray) -> None:
        """Append rows of a DataFrame; from any thread."""
        import pyarrow as pa

        count = len(items)
        with self._lock:
            zero = pa.scalar(0, pa.int32())
            number = pa.scalar(channel, pa.int32())
            columns = [pa.repeat(zero, count), pa.nulls(count, pa.int64())]
            columns += [pa.repeat(number, count), pa.nulls(count, pa.binary())]
            self._put(columns, {channel: items})

    def close(self) -> None:
        """No more rows will come."""
        with self._lock:
            self._flush()
        self._batches.put(None)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as they come, in batches, up to the end."""
        while (batch := self._batches.get()) is not None:
            if self._was_refused:
                self._was_refused = False
                self.wake()
            yield batch

    def _flush(self) -> None:
        if not self._rows:
            return
        import pyarrow as pa

        rows, self._rows, self._bytes = self._rows, [], 0
        kinds = (pa.int32(), pa.int64(), pa.int32(), pa.binary())
        self._put(list(map(pa.array, zip(*rows, strict=True), kinds)), {})

    def _put(self, columns: list[pa.Array], frames: dict[int, pa.StructArray]) -> None:
        import pyarrow as pa

        names = list(COLUMNS)
        for channel, kind in self._frames.items():
            given = frames.get(channel)
            columns.append(pa.nulls(len(columns[0]), kind) if given is None else given)
            names.append(frame_column(channel))
        self._batches.put(pa.RecordBatch.from_arrays(columns, names=names))


class FrameOutput(TaskOutput):
    """The same where the rows are those of one DataFrame: its columns and nothing else.

    Messages to the driver are dropped, so it is for tasks that have none but their counters, which
    come over the accumulator as well.
    """

    def add(self, channel: int, target: int, payload: bytes) -> None:
        pass

    def add_frame(self, channel: int, items: pa.StructArray) -> None:
        import pyarrow as pa

        names = [field.name for field in items.type]
        self._batches.put(pa.RecordBatch.from_arrays(items.flatten(), names=names))


def frame_column(channel: int) -> str:
    """The column that holds the items of a sink which makes a DataFrame of them."""
    return f"frame{channel}"


def row_schema(frames: dict[int, StructType]) -> StructType:
    """What the rows of a fragment look like; ``frames`` are those of its sinks, by channel."""
    from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

    schema = StructType()
    kinds = (IntegerType(), LongType(), IntegerType(), BinaryType())
    for name, kind in zip(COLUMNS, kinds, strict=True):
        schema.add(name, kind)
    for channel, columns in frames.items():
        schema.add(frame_column(channel), columns)
    return schema


@dataclass(frozen=True, slots=True)
class OutputPort:
    """Where an edge leaves a fragment."""

    channel: int
    vertex: str
    """The vertex whose items leave there."""
    routing: Routing
    key_fn: Callable[[Any], Any] | None
    key_name: str
    """What the key is called in messages."""
    targets: int
    """Number of tasks of the fragment that the edge leads to."""
    checks_every_key: bool = False
    """No processor behind the edge finds unstable keys."""
    is_repeatable: bool = False
    """The items come in the same order each time that the task is run."""
    is_marking: bool = False
    """The first task sends a row without items to each target."""


class Chunks:
    """How many items the payloads of one edge or sink should have."""

    def __init__(self, targets: int = 1) -> None:
        self._most = max(1, min(CHUNK_ITEMS, BUFFERED_ITEMS // targets))
        self.size = min(FIRST_CHUNK, self._most)

    def learn(self, items: int, size: int) -> None:
        """Take a payload's size into account."""
        if items:
            self.size = max(1, min(self._most, CHUNK_BYTES * items // max(size, 1)))


class ExchangeWriter(Processor):
    """The end of a fragment's outgoing edge: collects items per target task and pickles them.

    A partitioned edge sends an item where its key belongs, an isolated one sends all that this task
    has to one target. Any other spreads the items: in turns if a task that is run again sees them
    in the same order, otherwise by what they are. Else an item could, after an executor was lost,
    go to a target that has been done without it, or to two.
    """

    def __init__(self, output: TaskOutput, port: OutputPort) -> None:
        self._output = output
        self._port = port
        self._targets = port.targets
        self._buffers: list[list[Any]] = [[] for _ in range(port.targets)]
        self._chunks = Chunks(port.targets)
        self._first = 0
        self._partitioner: Partitioner | None = None
        self._owners: list[int] = []
        self._route: Callable[[Sequence[Any]], None] = self._to_first
        self._left = iter(range(port.targets))

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        port = self._port
        self._first = context.member_index % self._targets
        if port.is_marking and context.member_index == 0:
            for target in range(self._targets):
                self._output.add(port.channel, target, b"")
        if port.routing is Routing.PARTITIONED:
            self._partitioner = Partitioner(
                port.key_fn,
                context.partition_count,
                name=port.key_name,
                checks_all=port.checks_every_key,
            )
            self._owners = [p % self._targets for p in range(context.partition_count)]
            self._route = self._by_key
        elif port.routing is Routing.UNICAST and self._targets > 1:
            self._route = self._in_turns if port.is_repeatable else self._by_content

    def process(self, ordinal: int, inbox: Inbox) -> None:
        self.is_waiting = self._output.is_congested
        if not self.is_waiting:
            self._route(inbox.take())

    def _to_first(self, batch: Sequence[Any]) -> None:
        self._append(self._first, batch)

    def _by_key(self, batch: Sequence[Any]) -> None:
        partitioner = self._partitioner
        assert partitioner is not None
        try:
            if self._targets == 1:
                partitioner.check(batch)
                shares: Sequence[Sequence[Any]] = [batch]
            else:
                shares = partitioner.route(batch, self._owners, self._targets)
        except Exception as error:
            raise ItemFailedError(partitioner.failed_item(batch), partitioner.name) from error
        for target, share in enumerate(shares):
            if share:
                self._append(target, share)

    def _in_turns(self, batch: Sequence[Any]) -> None:
        targets = self._targets
        for offset in range(min(targets, len(batch))):
            self._append((self._first + offset) % targets, batch[offset::targets])
        self._first = (self._first + len(batch)) % targets

    def _by_content(self, batch: Sequence[Any]) -> None:
        shares: list[list[Any]] = [[] for _ in range(self._targets)]
        for item in batch:
            shares[_content_hash(item, self._port.vertex) % self._targets].append(item)
        for target, share in enumerate(shares):
            if share:
                self._append(target, share)

    def _append(self, target: int, batch: Sequence[Any]) -> None:
        buffer = self._buffers[target]
        if batch.__class__ is Table and len(batch) >= LEAST_ROWS:
            if buffer:
                self._buffers[target] = []
                self._send(target, buffer)
            self._send_table(target, batch)
            return
        buffer.extend(batch)
        while len(buffer) >= self._chunks.size:
            size = self._chunks.size
            # Much more than a chunk only if chunks have just become smaller.
            chunk, rest = (buffer, []) if len(buffer) < 2 * size else (buffer[:size], buffer[size:])
            self._buffers[target] = buffer = rest
            self._send(target, chunk)

    def _send(self, target: int, chunk: Sequence[Any]) -> None:
        payload = dump_items(chunk, self._port.vertex)
        self._chunks.learn(len(chunk), len(payload))
        self._output.add(self._port.channel, target, payload)

    def _send_table(self, target: int, table: Sequence[Any]) -> None:
        """Columns travel as they are, not gathered with others."""
        for start in range(0, len(table), CHUNK_ITEMS):
            payload = dump_items(table[start : start + CHUNK_ITEMS], self._port.vertex)
            self._output.add(self._port.channel, target, payload)

    def complete(self) -> bool:
        # A target per call: pickling what waits for all of them takes long.
        if self._output.is_congested:
            return False
        for target in self._left:
            buffer, self._buffers[target] = self._buffers[target], []
            if buffer:
                self._send(target, buffer)
                return False
        return True


def _content_hash(item: Any, vertex: str) -> int:
    """A number that depends on nothing but the item's value."""
    try:
        return stable_hash(item)
    except UnstableKeyError:
        return crc32(dump_items((item,), vertex))


class RowStream:
    """The rows that Spark hands to a task, shared by its readers.

    Rows are sorted by the rank of their channel; there is a reader for each rank, perhaps on a
    thread of its own.
    """

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch],
        ranks: dict[int, int],
        pass_on: Callable[[int, bytes], None],
    ) -> None:
        self._rows = _rows(batches)
        self._ranks = ranks
        self._pass_on = pass_on
        self._head: tuple[int, bytes] | None = None
        self._rank: float = -1
        """Of the row that is next; infinite at the end."""
        self._lock = threading.Lock()

    def take(self, rank: int) -> tuple[int, bytes] | None:
        """The next row, if it is one of this rank."""
        with self._lock:
            if self._rank < 0:
                self._advance()
            if self._rank != rank:
                return None
            head, self._head, self._rank = self._head, None, -1
            return head

    def is_past(self, rank: int) -> bool:
        """True if there are no more rows of this rank."""
        return self._rank > rank

    def _advance(self) -> None:
        """Go to the next row with items; messages are passed on."""
        for channel, payload in self._rows:
            if channel < 0:
                self._pass_on(channel, payload)
            elif payload:
                self._head = (channel, payload)
                self._rank = self._ranks[channel]
                return
        self._head = None
        self._rank = math.inf


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        yield from zip(
            batch.column("channel").to_pylist(), batch.column("payload").to_pylist(), strict=True
        )


class ExchangeReader(Processor):
    """The beginning of a fragment: items from the rows of one rank.

    It has an outbound edge for each channel of that rank. A payload is unpickled only when its turn
    comes, and cut into batches of a size that suits the queues behind.
    """

    def __init__(self, stream: RowStream, rank: int, ordinals: dict[int, int]) -> None:
        self._stream = stream
        self._rank = rank
        self._ordinals = ordinals
        self._items: Sequence[Any] = ()
        self._at = 0
        self._ordinal = 0
        self._batch: Sequence[Any] | None = None

    def complete(self) -> bool:
        if self._batch is None:
            if self._at >= len(self._items):
                row = self._stream.take(self._rank)
                if row is None:
                    return self._stream.is_past(self._rank)  # or it is another's turn
                channel, payload = row
                self._ordinal = self._ordinals[channel]
                self._items, self._at = self._load(channel, payload), 0
            size = len(self._items) if self._items.__class__ is Table else BATCH_SIZE
            self._batch = self._items[self._at : self._at + size]
            self._at += size
        if self.outbox.offer_batch(self._batch, self._ordinal):
            self._batch = None
        return False

    def _load(self, channel: int, payload: bytes) -> Sequence[Any]:
        items: Sequence[Any] = pickle.loads(payload)
        return items


class BroadcastReader(Processor):
    """The beginning of a broadcast edge in each task that reads it."""

    def __init__(self, load: Callable[[], Iterable[bytes]]) -> None:
        self._load = load
        self._payloads: Iterator[bytes] = iter(())
        self._batch: Sequence[Any] | None = None

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        self._payloads = iter(self._load())

    def complete(self) -> bool:
        if self._batch is None:
            payload = next(self._payloads, None)
            if payload is None:
                return True
            self._batch = pickle.loads(payload)
        if self.outbox.offer_batch(self._batch):
            self._batch = None
        return False
