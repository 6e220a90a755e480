"""RedisSystem: streams that are streams of Redis.

A stream of Redis has no partitions: each partition is a stream of its own, ``views:0`` to
``views:3`` for the four of ``views``; with one partition it is ``views`` itself. A message is the
dict of an entry's fields, or, with a serde, what is in its field ``value``; its key is then in the
field ``key``. Offsets are the ids of entries.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from jetlet.connectors.redis.client import RedisConnection, RedisServer
from jetlet.connectors.redis.sink import RedisStreamWriter
from jetlet.connectors.redis.source import (
    BLOCK_MS,
    RedisDecoding,
    RedisEntry,
    RedisPartition,
    RedisStreamReader,
)
from jetlet.core.arguments import check_count
from jetlet.core.partitioning import PartitionId
from jetlet.core.processor import ProcessorContext
from jetlet.errors import (
    BadRecordError,
    InputNotFoundError,
    InvalidArgumentError,
    ItemFailedError,
    JetletError,
)
from jetlet.tasks.envelope import (
    IncomingEnvelope,
    Offset,
    OutgoingEnvelope,
    SystemStreamPartition,
)
from jetlet.tasks.state.serdes import Serde, value_serde
from jetlet.tasks.systems.spreading import Spreading
from jetlet.tasks.systems.system import (
    LATEST,
    Polled,
    Start,
    System,
    SystemConsumer,
    SystemProducer,
)

QUEUE_SIZE: Final = 10_000
"""Messages that wait to be sent, before whoever sends more has to wait."""
PARTIAL_BLOCK_MS: Final = 20
"""For how long the server waits for entries if it was not asked for all partitions: for so long
nobody looks at those that are wanted again."""

_FIRST: Final = "0-0"

Item = tuple[PartitionId, dict[str, Any]]
"""The fields of an entry, and which partition it is for."""


class RedisSystem(System):
    """The streams of a server. Picklable if the settings are."""

    is_blocking = True

    def __init__(
        self,
        url: str,
        *,
        partitions: int = 1,
        key: Any = str,
        value: Any = None,
        maxlen: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        what = "systems.redis"
        self._server = RedisServer.of(what, url, settings)
        check_count(f"{what}: partitions", partitions)
        self._partitions = partitions
        self._maxlen = check_count(f"{what}: maxlen", maxlen)
        self.codec = RedisCodec(
            value_serde(what, key), None if value is None else value_serde(what, value)
        )

    def partition_count(self, stream: str) -> int:
        if not any(self._kinds(stream)):
            raise InputNotFoundError(
                f"{self!r} has no stream {' or '.join(map(repr, self.keys(stream)))}; check the "
                "name and partitions=..., or add something to it first"
            )
        return self._partitions

    def newest(
        self, partitions: Sequence[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, Offset | None]:
        connection = self._connected()
        try:
            return {each: _newest(connection, self.key(each)) for each in partitions}
        finally:
            connection.close()

    def before(
        self, partitions: Sequence[SystemStreamPartition], time_ms: int
    ) -> Mapping[SystemStreamPartition, Offset]:
        # An id is the time at which the entry was added, and a number.
        return dict.fromkeys(partitions, f"{time_ms - 1}-{2**64 - 1}" if time_ms > 0 else "0-0")

    def order(self, offset: Offset) -> tuple[int, int]:
        milliseconds, _, sequence = str(offset).partition("-")
        return int(milliseconds), int(sequence)

    def prepare_output(self, stream: str, partitions: int | None, default: int) -> None:
        # A stream of Redis is made by its first entry.
        if partitions not in (None, self._partitions):
            raise InvalidArgumentError(
                f"stream {stream!r} of {self!r} has {self._partitions} partitions, not "
                f"{partitions}; write systems.redis(..., partitions={partitions})"
            )
        self._kinds(stream)

    def consumer(self, starts: Mapping[SystemStreamPartition, Start]) -> RedisConsumer:
        connection = self._connected()
        keys = {self.key(each): each for each in starts}
        try:
            positions = {
                key: _position(starts[each], connection, key) for key, each in keys.items()
            }
        finally:
            connection.close()
        return RedisConsumer(self._server, positions, keys, self.codec)

    def producer(self) -> RedisProducer:
        return RedisProducer(self)

    def keys(self, stream: str) -> list[str]:
        """Of the streams in Redis that are its partitions."""
        if self._partitions == 1:
            return [stream]
        return [f"{stream}:{i}" for i in range(self._partitions)]

    def key(self, partition: SystemStreamPartition) -> str:
        return self.keys(partition.stream)[partition.partition]

    def writer(self, stream: str) -> RedisStreamWriter[Item]:
        """A writer of fields for the partitions of a stream; waits until it is connected."""
        return RedisStreamWriter(
            stream,
            self._connected(),
            self.keys(stream),
            fields=lambda item: item[1],
            key=lambda item: item[0],
            maxlen=self._maxlen,
        )

    def _kinds(self, stream: str) -> list[bool]:
        """Of each partition, whether it is there; refuses what is not a stream."""
        connection = self._connected()
        try:
            kinds = [connection.ask("TYPE", key).decode() for key in self.keys(stream)]
        finally:
            connection.close()
        for key, kind in zip(self.keys(stream), kinds, strict=True):
            if kind not in ("none", "stream"):
                raise InvalidArgumentError(
                    f"{self!r}: what is at {key!r} is a {kind}; write the name of a stream"
                )
        return [kind == "stream" for kind in kinds]

    def _connected(self) -> RedisConnection:
        connection = self._server.connection()
        connection.connect()
        return connection

    def __repr__(self) -> str:
        return f"systems.redis({self._server.address!r})"


class RedisCodec:
    """Messages as fields of entries, and back."""

    def __init__(self, key: Serde, value: Serde | None) -> None:
        self._key = key
        self._value = value

    def fields(self, envelope: OutgoingEnvelope) -> dict[str, Any]:
        message = envelope.message
        if self._value is None:
            if not isinstance(message, Mapping):
                raise BadRecordError(
                    f"a message for Redis is a dict of fields, not a {type(message).__name__}; "
                    "write systems.redis(..., value=...) for other messages"
                )
            return dict(message)
        fields = {"value": self._value.encode(message)}
        if envelope.key is not None:
            fields["key"] = self._key.encode(envelope.key)
        return fields

    def decoded(self, fields: Mapping[bytes, bytes]) -> tuple[Any, Any]:
        """The message and its key."""
        if self._value is None:
            return {name.decode(): value.decode() for name, value in fields.items()}, None
        key = fields.get(b"key")
        return self._value.decode(fields[b"value"]), None if key is None else self._key.decode(key)


class SelectiveReader(RedisStreamReader):
    """Asks only for those of its streams that are wanted."""

    wanted: Collection[str] = ()

    def _ask(self, connection: RedisConnection, limit: int) -> None:
        streams = [each for each in self._streams if each in self.wanted]
        positions = [self._positions[self._indices[each.encode()]] for each in streams]
        block = BLOCK_MS if len(streams) == len(self._streams) else PARTIAL_BLOCK_MS
        question = ("XREAD", "COUNT", limit, "BLOCK", block, "STREAMS")
        connection.send([(*question, *streams, *positions)])
        self._asked_ns = self._now()


class RedisConsumer(SystemConsumer):
    """Reads over one connection, which is made again when it is lost."""

    def __init__(
        self,
        server: RedisServer,
        positions: Mapping[str, str],
        keys: Mapping[str, SystemStreamPartition],
        codec: RedisCodec,
    ) -> None:
        self._keys = keys
        self._codec = codec
        partitions = [RedisPartition(stream, at) for stream, at in positions.items()]
        decoding = RedisDecoding(encoding=None, project=self._envelope)
        self._reader = SelectiveReader(
            server, partitions, decoding, ProcessorContext(vertex_name="redis")
        )
        self._partitions = [keys[stream] for stream in positions]
        self._streams = {partition: stream for stream, partition in keys.items()}
        self._held: dict[SystemStreamPartition, list[IncomingEnvelope]] = {}
        """Read while it was not wanted any more: what the server was asked before that."""

    def poll(
        self, wanted: Collection[SystemStreamPartition], limit: int
    ) -> Sequence[Polled] | None:
        polled = [Polled(each, self._held.pop(each)) for each in wanted if each in self._held]
        if polled:
            return polled
        self._reader.wanted = {self._streams[each] for each in wanted}
        for found in self._reader.poll(limit):
            partition = self._partitions[found.partition]
            if partition in wanted:
                polled.append(Polled(partition, found.items))
            else:
                self._held.setdefault(partition, []).extend(found.items)
        return polled

    def _envelope(self, entry: RedisEntry) -> IncomingEnvelope:
        message, key = self._codec.decoded(entry.fields)
        return IncomingEnvelope(self._keys[entry.stream], entry.id, message, key, entry.timestamp)

    def interrupt(self) -> None:
        self._reader.interrupt()

    def close(self) -> None:
        self._reader.close()


class RedisProducer(SystemProducer):
    """A thread of its own sends what it is given, so that nobody waits for the server but a flush.

    It ends with the first failure, which every call from then on raises.
    """

    def __init__(self, system: RedisSystem) -> None:
        self._system = system
        self._spreadings: dict[str, Spreading] = {}
        self._changed = threading.Condition()
        self._queue: deque[tuple[str, list[Item]]] = deque()
        self._waiting = 0
        """Messages in the queue, or under way."""
        self._failure: BaseException | None = None
        self._is_closed = False
        self._writers: dict[str, RedisStreamWriter[Item]] = {}
        self._thread: threading.Thread | None = None

    def send(self, stream: str, batch: Sequence[OutgoingEnvelope]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting < QUEUE_SIZE or self._failure is not None)
            self._check()
            items = self._items(stream, batch)
            self._queue.append((stream, items))
            self._waiting += len(items)
            if self._thread is None:
                name = "jetlet-redis-producer"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _items(self, stream: str, batch: Sequence[OutgoingEnvelope]) -> list[Item]:
        spreading = self._spreadings.get(stream)
        if spreading is None:
            count = len(self._system.keys(stream))
            spreading = self._spreadings[stream] = Spreading(stream, count)
        return [
            (PartitionId(id), self._system.codec.fields(envelope))
            for id, part in spreading.spread(batch).items()
            for envelope in part
        ]

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._failure is not None)
            self._check()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            writers = list(self._writers.values())
        for writer in writers:
            writer.interrupt()
        if self._thread is not None:
            self._thread.join()

    def _check(self) -> None:
        if self._is_closed:
            raise JetletError(f"{self._system!r}: the producer is closed")
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                stream, items = work
                self._writer(stream).write(items)
                with self._changed:
                    self._waiting -= len(items)
                    self._changed.notify_all()
        except BaseException as error:
            if isinstance(error, ItemFailedError) and error.__cause__ is not None:
                error = BadRecordError(f"stream {stream!r}: {error.__cause__}")
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            for writer in self._writers.values():
                writer.abort()

    def _next(self) -> tuple[str, list[Item]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            return None if self._is_closed else self._queue.popleft()

    def _writer(self, stream: str) -> RedisStreamWriter[Item]:
        writer = self._writers.get(stream)
        if writer is None:
            writer = self._system.writer(stream)
            with self._changed:
                self._writers[stream] = writer
        return writer


def _newest(connection: RedisConnection, key: str) -> str | None:
    newest = connection.ask("XREVRANGE", key, "+", "-", "COUNT", 1)
    return newest[0][0].decode() if newest else None


def _position(start: Start, connection: RedisConnection, key: str) -> str:
    if start.after is not None:
        return str(start.after)
    return (_newest(connection, key) or _FIRST) if start.default == LATEST else _FIRST
