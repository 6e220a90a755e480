"""Streams of Redis as a source of pipelines."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple, TypedDict, TypeVar, Unpack, overload

from jetlet.connectors.redis.client import (
    ANSWER_TIMEOUT,
    NO_REPLY,
    RedisConnection,
    RedisServer,
    check_streams,
)
from jetlet.core.arguments import (
    check_count,
    check_encoding,
    check_functions,
    check_name,
    check_start,
    time_to_ms,
)
from jetlet.core.durations import Duration, to_ms
from jetlet.core.processor import ProcessorContext
from jetlet.errors import (
    BadRecordError,
    InputNotFoundError,
    InvalidArgumentError,
    ServerUnreachableError,
)
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.stream_source import Polled, Span, SpanPart, StreamReader, StreamSource
from jetlet.processors.item_failure import item_at

T = TypeVar("T")

Start = Literal["earliest", "latest"] | Mapping[str, str] | int | datetime
Until = Literal["end"] | Mapping[str, str] | int | datetime

DISCOVERY_MS: Final = 5000
"""Milliseconds between two looks for streams that match a pattern, by default."""
SCANNED: Final = 1000
"""Keys that the server looks at before it answers."""
POLL_TIMEOUT: Final = 0.05
"""Seconds that a poll waits for entries."""
BLOCK_MS: Final = 1000
"""For how long the server waits for entries before it answers that there are none."""
FIRST_PAUSE_MS: Final = 100
"""Before connecting again; each further pause is twice as long."""
MAX_PAUSE_MS: Final = 10_000

_FIRST: Final = "0-0"
_LAST_SEQUENCE: Final = (1 << 64) - 1
_ID: Final = re.compile(r"\d{1,20}(-\d{1,20})?")


class RedisEntry(NamedTuple):
    """An entry of a stream."""

    stream: str
    id: str
    fields: dict[Any, Any]
    """Strings, or bytes if there is no encoding."""

    @property
    def timestamp(self) -> int:
        """The time in its id, in milliseconds since 1970 unless the writer chose otherwise."""
        return int(self.id.partition("-")[0])


@dataclass(frozen=True, slots=True)
class RedisPartition:
    """A stream to read, and the id behind which to begin."""

    stream: str
    position: str


@dataclass(frozen=True, slots=True)
class RedisDecoding:
    """What becomes of an entry."""

    encoding: str | None = "utf-8"
    project: Callable[[RedisEntry], Any] | None = None

    def item(self, stream: str, id: bytes, fields: Sequence[bytes]) -> Any:
        """From what the server sends to an item."""
        encoding = self.encoding
        values: Sequence[Any] = (
            fields if encoding is None else [each.decode(encoding) for each in fields]
        )
        found = dict(zip(values[::2], values[1::2], strict=True))
        project = self.project
        return found if project is None else project(RedisEntry(stream, id.decode(), found))


class RedisOptions(TypedDict, total=False):
    """Options of a source of Redis that do not decide what an item is."""

    start: Start
    until: Until | None
    must_exist: bool
    match: bool
    discovery_interval: Duration
    settings: Mapping[str, Any] | None
    name: str | None
    local_parallelism: int | None


class RedisStreamSource(StreamSource[T]):
    """Entries of streams of Redis, those that are there and those that are added later.

    ``streams`` is the key of a stream, or a list of keys; each is a partition. An item is the dict
    of an entry's fields, as strings, or as bytes with ``encoding=None``. For more write
    ``project``, which gets a ``RedisEntry`` with ``stream``, ``id``, ``timestamp`` and ``fields``.
    The time in an entry's id is its native timestamp.

    ``start`` is ``"earliest"``, ``"latest"`` (only what is added from now on), a dict from streams
    to the ids behind which to begin, or a time: milliseconds since 1970 or a ``datetime``. Entries
    that are trimmed before they were read are missed. With ``must_exist=False`` streams may be
    made later.

    With ``match=True`` the keys are patterns, as Redis has them, such as ``"events:*"``: those that
    match later are found while the job runs, within ``discovery_interval``, and read from their
    beginning whatever ``start`` says; those that are deleted end.

    With ``until`` it ends, as bounded input does: ``"end"`` is behind the newest entry of each
    stream when the job is submitted; an id for a stream, in a dict, or a time, is the first that is
    no longer read.

    ``url`` is ``"redis://user:password@host:port/database"``, ``"rediss://..."`` for TLS or
    ``"unix:///path"``, ``settings`` the options of a connection of redis-py. When the connection is
    lost, it is made again. Needs ``pip install 'jetlet[redis]'``.
    """

    has_native_timestamps = True
    is_replayable = True
    is_blocking = True

    @overload
    def __init__(
        self: RedisStreamSource[dict[bytes, bytes]],
        streams: str | Sequence[str],
        url: str,
        *,
        encoding: None,
        **options: Unpack[RedisOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: RedisStreamSource[dict[str, str]],
        streams: str | Sequence[str],
        url: str,
        *,
        encoding: str = "utf-8",
        **options: Unpack[RedisOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        streams: str | Sequence[str],
        url: str,
        *,
        encoding: str | None = "utf-8",
        project: Callable[[RedisEntry], T],
        **options: Unpack[RedisOptions],
    ) -> None: ...

    def __init__(
        self,
        streams: str | Sequence[str],
        url: str,
        *,
        encoding: str | None = "utf-8",
        project: Callable[[RedisEntry], Any] | None = None,
        start: Start = "earliest",
        until: Until | None = None,
        must_exist: bool = True,
        match: bool = False,
        discovery_interval: Duration = DISCOVERY_MS,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> None:
        what = "sources.redis_stream"
        self._server = RedisServer.of(what, url, settings)
        self._streams = check_streams(what, streams)
        if encoding is not None:
            check_encoding(what, encoding)
        check_functions(what, project=project)
        self._decoding = RedisDecoding(encoding, project)
        check_start(what, start, "streams to ids", "earliest", "latest")
        if until is not None:
            check_start(what, until, "streams to ids", "end", parameter="until")
        for parameter, given in (("start", start), ("until", until)):
            if isinstance(given, Mapping):
                for stream, id in given.items():
                    known = [stream] if match else self._streams
                    _check_position(f"{what}: {parameter}", known, stream, id)
        self._start = start
        self._until = until
        self._must_exist = must_exist and not match
        self._match = match
        interval = to_ms(f"{what}: discovery_interval", discovery_interval, minimum=1)
        if match and until is None:
            self.discovery_ms, self.beginning = interval, _FIRST
        self.name = check_name(what, name) or f"redis-source({','.join(self._streams)})"
        self.preferred_local_parallelism = (
            check_count(f"{what}: local_parallelism", local_parallelism) or 1
        )

    def partitions(self) -> Sequence[RedisPartition]:
        # "Latest" is when the job is submitted: what is added while it starts is not missed.
        connection = self._server.connection()
        connection.connect()
        try:
            streams = self._there(connection)
            return [RedisPartition(each, self._position(connection, each)) for each in streams]
        finally:
            connection.close()

    def look_for_partitions(self) -> Iterator[Sequence[str]]:
        connection = self._server.connection()
        connection.connect()
        with closing(connection):
            while True:
                yield self._there(connection)

    def partition_of(self, key: str) -> RedisPartition | None:
        if self._match and any(fnmatchcase(key, pattern) for pattern in self._streams):
            return RedisPartition(key, _FIRST)
        return None

    def _there(self, connection: RedisConnection) -> list[str]:
        """The keys of the streams to read now."""
        if not self._match:
            return self._streams
        found: set[bytes] = set()
        for pattern in self._streams:
            cursor: bytes | None = None
            while cursor != b"0":
                question = (cursor or 0, "MATCH", pattern, "COUNT", SCANNED, "TYPE", "stream")
                cursor, keys = connection.ask("SCAN", *question)
                found.update(keys)
        return sorted(key.decode() for key in found)

    def _position(self, connection: RedisConnection, stream: str) -> str:
        """Where to begin in a stream, which is there, or may come."""
        what, address = self._server.what, self._server.address
        kind = connection.ask("TYPE", stream).decode()
        if kind == "none" and self._must_exist:
            raise InputNotFoundError(
                f"{what}({stream!r}): Redis at {address} has no such stream; check its key, or "
                "write must_exist=False to wait for it"
            )
        if kind not in ("none", "stream"):
            raise InvalidArgumentError(
                f"{what}({stream!r}): what Redis at {address} has there is a {kind}; write the key "
                "of a stream"
            )
        start = self._start
        if isinstance(start, Mapping):
            return start.get(stream, _FIRST)
        if isinstance(start, int | datetime):
            time = time_to_ms(start)
            return f"{time - 1}-{_LAST_SEQUENCE}" if time > 0 else _FIRST
        if start == "earliest" or kind == "none":
            return _FIRST
        return _newest(connection, stream)

    @property
    def is_bounded(self) -> bool:
        return self._until is not None

    def spans(self) -> Sequence[Span]:
        connection = self._server.connection()
        connection.connect()
        with closing(connection):
            streams = self._there(connection)
            starts = [self._position(connection, each) for each in streams]
            ends = [self._end(connection, each) for each in streams]
        partitions = map(RedisPartition, streams, starts)
        return [Span(*each) for each in zip(partitions, ends, strict=True)]

    def _end(self, connection: RedisConnection, stream: str) -> str:
        """Up to where to read, as a range says it."""
        newest = _newest(connection, stream)
        until = self._until
        if isinstance(until, int | datetime):
            id = f"{time_to_ms(until)}-0"
        elif isinstance(until, Mapping) and stream in until:
            id = until[stream]
        else:
            return newest
        # What is added later is not there to be read, whatever its id.
        return f"({id}" if _order(id) <= _order(newest) else newest

    def read_span(self, span: Span) -> Iterator[SpanPart[T]]:
        position, stream = span.partition.position, span.partition.stream
        connection = self._server.connection()
        connection.connect()
        with closing(connection):
            while True:
                question = (stream, f"({position}", span.end, "COUNT", BATCH_SIZE)
                entries = connection.ask("XRANGE", *question)
                if not entries:
                    return
                items = _decoded(stream, entries, self._decoding.item)
                position = entries[-1][0].decode()
                rest = replace(span, partition=RedisPartition(stream, position))
                yield SpanPart(items, _times(entries), rest)

    def partition_key(self, number: int, partition: RedisPartition) -> str:
        # The list of streams may be another when the job is resumed.
        return partition.stream

    def open(
        self, partitions: Sequence[RedisPartition], context: ProcessorContext
    ) -> StreamReader[T]:
        return RedisStreamReader(self._server, partitions, self._decoding, context)


class RedisStreamReader(StreamReader[Any]):
    """Reads all its streams over one connection, which it makes again when it is lost.

    A question stays with the server until there are entries, over as many polls as it takes.
    """

    def __init__(
        self,
        server: RedisServer,
        partitions: Sequence[RedisPartition],
        decoding: RedisDecoding,
        context: ProcessorContext,
    ) -> None:
        self._server = server
        self._streams = [partition.stream for partition in partitions]
        self._indices = {stream.encode(): i for i, stream in enumerate(self._streams)}
        self._positions = [partition.position for partition in partitions]
        self._decode = decoding.item
        self._now = context.clock.monotonic_ns
        self._logger = context.logger
        self._interrupted = threading.Event()
        self._connection: RedisConnection | None = None
        self._attempt: _Attempt | None = None
        """The attempt to connect, which runs on a thread of its own."""
        self._pause_ms = FIRST_PAUSE_MS
        self._retry_ns = 0
        self._asked_ns: int | None = None
        """Since when a question has been with the server."""

    def poll(self, limit: int) -> Sequence[Polled[Any]]:
        if self._interrupted.is_set():
            return ()
        if not self._indices:
            self._interrupted.wait(POLL_TIMEOUT)
            return ()
        connection = self._connection or self._connect()
        if connection is None:
            return ()
        try:
            if self._asked_ns is None:
                self._ask(connection, limit)
            reply = connection.receive(POLL_TIMEOUT)
        except ServerUnreachableError as error:
            self._lose(error)
            return ()
        if reply is NO_REPLY:
            self._check_patience()
            return ()
        self._asked_ns = None
        self._pause_ms = FIRST_PAUSE_MS
        return [
            self._polled(self._indices[stream], entries)
            for stream, entries in reply or ()
            if stream in self._indices
        ]

    def is_quiet(self, partition: int) -> bool:
        # Without a connection nobody knows.
        return self._connection is not None

    def _ask(self, connection: RedisConnection, limit: int) -> None:
        self._asked_ns = self._now()
        count = max(1, limit // len(self._indices))
        question = ("XREAD", "COUNT", count, "BLOCK", BLOCK_MS, "STREAMS")
        positions = [self._positions[index] for index in self._indices.values()]
        connection.send([(*question, *self._indices, *positions)])

    def _polled(self, index: int, entries: Sequence[Any]) -> Polled[Any]:
        name = self._streams[index]
        items = _decoded(name, entries, self._decode)
        self._positions[index] = entries[-1][0].decode()
        return Polled(index, items, _times(entries))

    def save(self) -> Sequence[str]:
        return list(self._positions)

    def restore(self, positions: Sequence[str | None]) -> None:
        for index, position in enumerate(positions):
            if position is not None:
                self._positions[index] = position

    def add(self, partition: RedisPartition, position: str | None) -> None:
        # It is asked for with the next question.
        self._indices[partition.stream.encode()] = len(self._streams)
        self._streams.append(partition.stream)
        self._positions.append(partition.position if position is None else position)

    def remove(self, partition: int) -> None:
        del self._indices[self._streams[partition].encode()]

    def interrupt(self) -> None:
        self._interrupted.set()
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def close(self) -> None:
        if self._attempt is not None:
            self._attempt.abandon()
        if self._connection is not None:
            self._connection.close()

    # --- Connecting -------------------------------------------------------------------------

    def _connect(self) -> RedisConnection | None:
        """A connection, once there is one; waits no longer than a poll may."""
        attempt = self._attempt
        if attempt is None:
            left_ms = (self._retry_ns - self._now()) // 1_000_000
            if left_ms > 0:
                self._interrupted.wait(min(POLL_TIMEOUT, left_ms / 1000))
                return None
            attempt = self._attempt = _Attempt(self._server.connection())
        if not attempt.has_ended.wait(POLL_TIMEOUT):
            return None
        self._attempt = None
        if attempt.error is not None:
            self._lose(attempt.error)
        else:
            self._connection = attempt.connection
        return self._connection

    def _check_patience(self) -> None:
        """A server that has not answered for much longer than it was to wait is lost."""
        assert self._asked_ns is not None
        waited_ms = (self._now() - self._asked_ns) // 1_000_000
        if waited_ms > BLOCK_MS + ANSWER_TIMEOUT * 1000:
            self._lose(TimeoutError(f"no answer for {waited_ms / 1000:.1f} s"))

    def _lose(self, error: Exception) -> None:
        if self._interrupted.is_set():
            return
        self._logger.warning("%s; connecting again in %.1f s", error, self._pause_ms / 1000)
        self._retry_ns = self._now() + self._pause_ms * 1_000_000
        self._pause_ms = min(2 * self._pause_ms, MAX_PAUSE_MS)
        self._asked_ns = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Attempt:
    """Connects on a thread, because looking up a host and connecting cannot be interrupted."""

    def __init__(self, connection: RedisConnection) -> None:
        self.connection = connection
        self.error: Exception | None = None
        self.has_ended = threading.Event()
        self._lock = threading.Lock()
        self._is_abandoned = False
        threading.Thread(target=self._run, name="jetlet-redis-connect", daemon=True).start()

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._is_abandoned = True
            if self.has_ended.is_set():
                self.connection.close()

    def _run(self) -> None:
        try:
            self.connection.connect()
        except Exception as error:
            self.error = error
        with self._lock:
            self.has_ended.set()
            if self._is_abandoned:
                self.connection.close()


def _decoded(
    stream: str, entries: Sequence[Any], decode: Callable[[str, bytes, Sequence[bytes]], Any]
) -> list[Any]:
    it = iter(entries)
    try:
        return [decode(stream, id, fields) for id, fields in it]
    except Exception as error:
        bad = item_at(entries, it)[0].decode()
        advice = "; write encoding=None" if isinstance(error, UnicodeDecodeError) else ""
        raise BadRecordError(
            f"stream {stream!r}, entry {bad}: cannot be decoded: {type(error).__name__}: "
            f"{error}{advice}"
        ) from error


def _times(entries: Sequence[Any]) -> list[int]:
    return [int(id[: id.index(b"-")]) for id, _ in entries]


def _newest(connection: RedisConnection, stream: str) -> str:
    newest = connection.ask("XREVRANGE", stream, "+", "-", "COUNT", 1)
    return newest[0][0].decode() if newest else _FIRST


def _order(id: str) -> tuple[int, int]:
    time, _, number = id.partition("-")
    return int(time), int(number or 0)


def _check_position(what: str, streams: Sequence[str], stream: Any, id: Any) -> None:
    if stream not in streams:
        raise InvalidArgumentError(
            f"{what}: {stream!r} is not read; write some of {', '.join(map(repr, streams))}"
        )
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidArgumentError(
            f"{what}: {stream!r}: {id!r}: write the id of an entry, such as '1700000000000-0'"
        )
