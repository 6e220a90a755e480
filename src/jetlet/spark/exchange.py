"""Exchange: how batches of Python objects get from the tasks of one fragment to those of the next.

Objects cross the JVM as a few large binary values, never a row per object. A row is
``(target, task, seq, channel, payload)``: the task it is for, the task it is from and its number
there, the edge it belongs to, and a pickled list of items. Spark shuffles rows by ``target``.
Channels below zero are messages to the driver; they are passed on untouched.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jetlet.core.edge import Routing
from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Outbox
from jetlet.core.partitioning import Partitioner
from jetlet.core.processor import Processor, ProcessorContext

if TYPE_CHECKING:
    import pyarrow as pa

REPORTS = -1
"""Messages of processors to the hooks of their vertices: pickled (vertex, message)."""
METRICS = -2
"""Counters of the processors of one task: pickled [(vertex, values)]."""
FIRST_CLIENT = -3
"""From here downwards: items for the sinks of the submitting process, a channel per vertex."""

SCHEMA = "target int, task int, seq int, channel int, payload binary"

CHUNK_ITEMS = 8192
"""Items per payload: large enough that a row's overhead does not show."""
FLUSH_ROWS = 256
FLUSH_BYTES = 8 * 1024 * 1024
"""Rows are handed to Spark when there are this many of them, or this many bytes."""
MAX_WAITING = 4
"""Batches of rows that may wait for Spark to take them."""


def dump(batch: Sequence[Any]) -> bytes:
    """Pickle a batch; what the standard pickler cannot do is left to cloudpickle."""
    try:
        return pickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        from pyspark import cloudpickle

        data: bytes = cloudpickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL)
        return data


class TaskOutput:
    """Rows on their way from the engine's threads in a task to the thread that Spark reads from."""

    def __init__(self, task: int) -> None:
        self._task = task
        self._seq = 0
        self._rows: list[tuple[int, int, int, bytes]] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._batches: queue.SimpleQueue[pa.RecordBatch | None] = queue.SimpleQueue()

    @property
    def is_congested(self) -> bool:
        """Spark does not take the rows as fast as they come: add no more for now."""
        return self._batches.qsize() >= MAX_WAITING

    def add(self, channel: int, target: int, payload: bytes) -> None:
        """Append a row; from any thread."""
        with self._lock:
            self._seq += 1
            self._rows.append((target, self._seq, channel, payload))
            self._bytes += len(payload)
            if len(self._rows) >= FLUSH_ROWS or self._bytes >= FLUSH_BYTES:
                self._flush()

    def close(self) -> None:
        """No more rows will come."""
        with self._lock:
            self._flush()
        self._batches.put(None)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as they come, in batches, up to the end."""
        return iter(self._batches.get, None)

    def _flush(self) -> None:
        if not self._rows:
            return
        import pyarrow as pa

        rows, self._rows, self._bytes = self._rows, [], 0
        targets, seqs, channels, payloads = zip(*rows, strict=True)
        self._batches.put(
            pa.RecordBatch.from_arrays(
                [
                    pa.array(targets, pa.int32()),
                    pa.array([self._task] * len(rows), pa.int32()),
                    pa.array(seqs, pa.int32()),
                    pa.array(channels, pa.int32()),
                    pa.array(payloads, pa.binary()),
                ],
                names=["target", "task", "seq", "channel", "payload"],
            )
        )


@dataclass(frozen=True, slots=True)
class OutputPort:
    """Where an edge leaves a fragment."""

    channel: int
    routing: Routing
    key_fn: Callable[[Any], Any] | None
    targets: int
    """Tasks of the fragment it leads to."""


class ExchangeWriter(Processor):
    """The end of a fragment's outgoing edge: collects items per target task and pickles them."""

    def __init__(self, output: TaskOutput, port: OutputPort) -> None:
        self._output = output
        self._channel = port.channel
        self._targets = port.targets
        self._port = port
        self._buffers: list[list[Any]] = [[] for _ in range(port.targets)]
        self._next = 0
        self._partitioner: Partitioner | None = None
        self._owners: list[int] = []

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        self._next = context.member_index % self._targets
        if self._port.routing is Routing.PARTITIONED:
            self._partitioner = Partitioner(self._port.key_fn, context.partition_count)
            self._owners = [p % self._targets for p in range(context.partition_count)]

    def process(self, ordinal: int, inbox: Inbox) -> None:
        self.is_waiting = self._output.is_congested
        if self.is_waiting:
            return
        batch = inbox.take()
        if self._partitioner is None:
            self._append(self._next, batch)
            return
        if self._targets == 1:
            self._partitioner.check(batch)
            self._append(0, batch)
            return
        shares = self._partitioner.route(batch, self._owners, self._targets)
        for target, share in enumerate(shares):
            if share:
                self._append(target, share)

    def _append(self, target: int, batch: Sequence[Any]) -> None:
        buffer = self._buffers[target]
        buffer.extend(batch)
        if len(buffer) >= CHUNK_ITEMS:
            self._flush(target)
            if self._port.routing is Routing.UNICAST:
                self._next = (target + 1) % self._targets

    def _flush(self, target: int) -> None:
        buffer = self._buffers[target]
        if buffer:
            self._output.add(self._channel, target, dump(buffer))
            self._buffers[target] = []

    def complete(self) -> bool:
        for target in range(self._targets):
            self._flush(target)
        return True


class ExchangeReader(Processor):
    """The beginning of a fragment: items from the rows that Spark hands to the task.

    It has an outbound edge for each incoming channel. A payload is unpickled only when its turn
    comes, and cut into batches of a size that suits the queues behind.
    """

    def __init__(
        self,
        rows: Iterable[tuple[int, bytes]],
        ordinals: dict[int, int],
        pass_on: Callable[[int, bytes], None],
    ) -> None:
        self._rows = iter(rows)
        self._ordinals = ordinals
        self._pass_on = pass_on
        self._items: list[Any] = []
        self._at = 0
        self._ordinal = 0
        self._batch: Sequence[Any] | None = None

    def complete(self) -> bool:
        if self._batch is None:
            while self._at >= len(self._items):
                for channel, payload in self._rows:
                    if channel < 0:
                        self._pass_on(channel, payload)
                        continue
                    self._ordinal = self._ordinals[channel]
                    self._items, self._at = pickle.loads(payload), 0
                    break
                else:
                    return True
            self._batch = self._items[self._at : self._at + 1024]
            self._at += 1024
        if self.outbox.offer_batch(self._batch, self._ordinal):
            self._batch = None
        return False


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

