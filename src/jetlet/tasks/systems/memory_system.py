"""InMemorySystem: streams within this process, for tests and for applications beside each other.

::

    memory = systems.in_memory()
    memory.create("clicks", partitions=4)
    app = TaskApplication("count", Count, systems={"memory": memory}, inputs=["memory.clicks"], ...)
    memory.send("clicks", {"page": "/"}, key="/")
    memory.end("clicks")  # a stream may end; most do not
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jetlet.errors import InputNotFoundError, InvalidArgumentError
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
)

if TYPE_CHECKING:
    from jetlet.tasks.systems.memory_source import InMemorySource

Record = tuple[Any, Any, int]
"""A message with its key and timestamp."""


class MemoryStream:
    """One stream; whoever appends to it wakes those who listen."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.partitions: list[list[Record]] = [[] for _ in range(partitions)]
        self.is_ended = False
        self.lock = threading.Lock()
        self.spreading = Spreading(name, partitions)
        self._listeners: tuple[Callable[[], None], ...] = ()

    def append(self, batch: Sequence[OutgoingEnvelope]) -> None:
        now = time.time_ns() // 1_000_000
        with self.lock:
            if self.is_ended:
                raise InvalidArgumentError(f"stream {self.name!r} has ended: nothing can follow")
            for id, part in self.spreading.spread(batch).items():
                self.partitions[id].extend(
                    (e.message, e.key, now if e.timestamp is None else e.timestamp) for e in part
                )
        self.notify()

    def notify(self) -> None:
        """Wake those who listen."""
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call it, from any thread, when something is appended or the stream ends."""
        with self.lock:
            self._listeners = (*self._listeners, listener)

    def unlisten(self, listener: Callable[[], None] | None) -> None:
        """Do so no longer."""
        with self.lock:
            self._listeners = tuple(each for each in self._listeners if each is not listener)


class InMemorySystem(System):
    """Keeps every message as long as it lives. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._streams: dict[str, MemoryStream] = {}
        self._lock = threading.Lock()

    # --- For users --------------------------------------------------------------------------

    def create(self, stream: str, partitions: int = 1) -> None:
        """Make a stream; nothing happens if it is there with as many partitions."""
        if type(partitions) is not int or partitions < 1:
            raise InvalidArgumentError(
                f"create({stream!r}, partitions={partitions!r}): write a whole number of at least 1"
            )
        with self._lock:
            found = self._streams.setdefault(stream, MemoryStream(stream, partitions))
        if len(found.partitions) != partitions:
            raise InvalidArgumentError(
                f"create({stream!r}, partitions={partitions}): it has {len(found.partitions)}"
            )

    def send(
        self,
        stream: str,
        message: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Append a message."""
        self._stream(stream).append([OutgoingEnvelope(message, key, partition, timestamp)])

    def send_all(self, stream: str, messages: Iterable[Any], partition: int | None = None) -> None:
        """Append many at once, without keys."""
        self._stream(stream).append([OutgoingEnvelope(m, None, partition) for m in messages])

    def end(self, stream: str) -> None:
        """No more messages will follow."""
        found = self._stream(stream)
        found.is_ended = True
        found.notify()

    def messages(self, stream: str, partition: int | None = None) -> list[Any]:
        """What is in a stream now, or in one of its partitions."""
        partitions = self._stream(stream).partitions
        wanted = partitions if partition is None else [partitions[partition]]
        return [record[0] for part in wanted for record in part]

    def source(self, stream: str) -> InMemorySource:
        """The stream for a pipeline to read: ``p.read_from(memory.source("counts"))``."""
        from jetlet.tasks.systems.memory_source import InMemorySource

        return InMemorySource(self._stream(stream))

    # --- For containers ---------------------------------------------------------------------

    def partition_count(self, stream: str) -> int:
        return len(self._stream(stream).partitions)

    def newest(
        self, partitions: Sequence[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, Offset | None]:
        return {p: len(self.records(p)) - 1 if self.records(p) else None for p in partitions}

    def before(
        self, partitions: Sequence[SystemStreamPartition], time_ms: int
    ) -> Mapping[SystemStreamPartition, Offset]:
        return {
            key: next((i for i, r in enumerate(records) if r[2] >= time_ms), len(records)) - 1
            for key, records in ((key, self.records(key)) for key in partitions)
        }

    def prepare_output(self, stream: str, partitions: int | None, default: int) -> None:
        if partitions is not None or stream not in self._streams:
            self.create(stream, partitions or default)

    def consumer(self, starts: Mapping[SystemStreamPartition, Start]) -> InMemoryConsumer:
        return InMemoryConsumer(self, starts)

    def producer(self) -> InMemoryProducer:
        return InMemoryProducer(self)

    def records(self, partition: SystemStreamPartition) -> list[Record]:
        """The records of a partition, as they are kept."""
        return self._stream(partition.stream).partitions[partition.partition]

    def _stream(self, name: str) -> MemoryStream:
        try:
            return self._streams[name]
        except KeyError:
            raise InputNotFoundError(
                f"there is no stream {name!r} in memory; write create({name!r}, partitions=...)"
            ) from None

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            'systems.in_memory() lives in one process: run with on="embedded" and one member, or '
            "use systems.log()"
        )

    def __repr__(self) -> str:
        return "systems.in_memory()"


class InMemoryConsumer(SystemConsumer):
    """Never waits: whoever appends wakes it."""

    def __init__(
        self, system: InMemorySystem, starts: Mapping[SystemStreamPartition, Start]
    ) -> None:
        self._streams = {key: system._stream(key.stream) for key in starts}
        self._records = {key: system.records(key) for key in starts}
        self._next = {
            key: start.after + 1
            if isinstance(start.after, int)
            else len(self._records[key])
            if start.default == LATEST
            else 0
            for key, start in starts.items()
        }
        self._began = dict(self._next)
        self._wake: Callable[[], None] | None = None

    def start(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        for stream in set(self._streams.values()):
            stream.listen(wake)

    def poll(
        self, wanted: Collection[SystemStreamPartition], limit: int
    ) -> Sequence[Polled] | None:
        polled = []
        for key in wanted:
            # In this order: what is there once it has ended is all there will be.
            is_ended = self._streams[key].is_ended
            first = self._next[key]
            records = self._records[key][first : first + limit]
            if not records and not is_ended:
                continue
            self._next[key] = following = first + len(records)
            envelopes = [
                IncomingEnvelope(key, offset, message, sent_key, timestamp)
                for offset, (message, sent_key, timestamp) in enumerate(records, first)
            ]
            is_end = is_ended and following == len(self._records[key])
            polled.append(Polled(key, envelopes, is_end))
        return polled or None

    def lag(self, partition: SystemStreamPartition, after: Offset | None) -> int | None:
        first = after + 1 if isinstance(after, int) else self._began[partition]
        return len(self._records[partition]) - first

    def close(self) -> None:
        for stream in set(self._streams.values()):
            stream.unlisten(self._wake)


class InMemoryProducer(SystemProducer):
    """Appends at once."""

    def __init__(self, system: InMemorySystem) -> None:
        self._system = system

    def send(self, stream: str, batch: Sequence[OutgoingEnvelope]) -> None:
        self._system._stream(stream).append(batch)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
