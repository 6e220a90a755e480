"""Streams of Redis as a sink of pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from jetlet.connectors.redis.client import (
    ANSWER_TIMEOUT,
    NO_REPLY,
    Command,
    RedisConnection,
    RedisServer,
    check_streams,
)
from jetlet.core.arguments import check_count, check_functions, check_name, shortened
from jetlet.core.partitioning import Partitioner
from jetlet.errors import (
    BadRecordError,
    InvalidArgumentError,
    ItemFailedError,
    JetletError,
    RestartableError,
    ServerUnreachableError,
)
from jetlet.pipeline.sink import Sink, SinkWriter

T = TypeVar("T")

BATCH: Final = 512
"""Entries that are sent before their replies are awaited."""
WAIT: Final = 0.05
"""Seconds between two looks at whether the job has ended, while the server is waited for."""

Fields = Mapping[Any, Any]

_PLAIN: Final = frozenset((str, bytes, int, float))


class RedisStreamSink(Sink[T]):
    """Add items to a stream of Redis, or to several, each as an entry with an id of the server's.

    ``fields(item)`` is a dict of strings, bytes or numbers; without it the item itself must be.
    With a list of ``streams``, items with equal ``key(item)`` go to one of them and keep their
    order; without ``key``, batches take the streams in turn. ``maxlen`` trims each stream to about
    so many entries. ``url`` and ``settings`` are as for ``sources.redis_stream``.

    There is no transaction: entries are visible as they come, stay when the job fails, and a
    restart adds some of them again, whatever the guarantee. Needs ``pip install 'jetlet[redis]'``.
    """

    is_blocking = True

    def __init__(
        self,
        streams: str | Sequence[str],
        url: str,
        *,
        fields: Callable[[T], Fields] | None = None,
        key: Callable[[T], Any] | None = None,
        maxlen: int | None = None,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        what = "sinks.redis_stream"
        self._server = RedisServer.of(what, url, settings)
        self._streams = check_streams(what, streams)
        check_functions(what, fields=fields, key=key)
        self._fields = fields
        self._key = key
        self._maxlen = check_count(f"{what}: maxlen", maxlen)
        self.name = check_name(what, name) or f"redis-sink({','.join(self._streams)})"

    def begin(self, run_id: str) -> None:
        connection = self._server.connection()
        connection.connect()
        try:
            for stream in self._streams:
                kind = connection.ask("TYPE", stream).decode()
                if kind not in ("none", "stream"):
                    raise InvalidArgumentError(
                        f"{self._server.what}({stream!r}): what Redis at {self._server.address} "
                        f"has there is a {kind}; write the key of a stream"
                    )
        finally:
            connection.close()

    def open(self, run_id: str, writer_id: str) -> SinkWriter[T]:
        connection = self._server.connection()
        connection.connect()
        return RedisStreamWriter(
            self.name, connection, self._streams, self._fields, self._key, self._maxlen
        )


class RedisStreamWriter(SinkWriter[T]):
    """Adds entries over a connection, which it closes. What is written is there at once."""

    def __init__(
        self,
        name: str,
        connection: RedisConnection,
        streams: Sequence[str],
        fields: Callable[[T], Fields] | None,
        key: Callable[[T], Any] | None,
        maxlen: int | None,
    ) -> None:
        self._name = name
        self._connection = connection
        # An approximate limit, because only that is cheap.
        limit = () if maxlen is None else ("MAXLEN", "~", maxlen)
        self._commands: list[Command] = [("XADD", stream, *limit, "*") for stream in streams]
        self._fields = fields
        self._partitioner = None if key is None else Partitioner(key, len(streams))
        self._turn = -1
        self._is_interrupted = False

    def write(self, batch: Sequence[T]) -> None:
        if self._partitioner is not None:
            try:
                targets = self._partitioner.partition_ids(batch)
            except Exception as error:
                raise ItemFailedError(self._partitioner.failed_item(batch), self._name) from error
        else:
            self._turn = (self._turn + 1) % len(self._commands)
            targets = [self._turn] * len(batch)
        for start in range(0, len(batch), BATCH):
            items = batch[start : start + BATCH]
            pairs = zip(items, targets[start : start + BATCH], strict=True)
            self._add([self._command(item, target) for item, target in pairs], items)

    def _command(self, item: T, target: int) -> Command:
        fields: Any
        try:
            fields = item if self._fields is None else self._fields(item)
            if not isinstance(fields, Mapping) or not fields:
                raise BadRecordError(
                    f"an entry has at least one field, and this would be {shortened(fields)}: "
                    "write fields=function, such as fields=lambda item: {'value': item}"
                )
        except Exception as error:
            raise ItemFailedError(item, self._name) from error
        command = [*self._commands[target]]
        for pair in fields.items():
            for each in pair:
                if type(each) not in _PLAIN:
                    raise ItemFailedError(item, self._name) from BadRecordError(
                        f"a field is made of strings, bytes and numbers, and {shortened(each)} is "
                        "neither: write fields=function that converts it"
                    )
            command += pair
        return command

    def _add(self, commands: Sequence[Command], items: Sequence[T]) -> None:
        from redis import ResponseError

        try:
            self._connection.send(commands)
            for item in items:
                try:
                    self._await_reply()
                except ResponseError as error:
                    raise ItemFailedError(item, self._name) from error
        except ServerUnreachableError as error:
            raise RestartableError(str(error)) from error

    def _await_reply(self) -> None:
        for _ in range(int(ANSWER_TIMEOUT / WAIT)):
            if self._connection.receive(WAIT) is not NO_REPLY:
                return
            if self._is_interrupted:
                raise JetletError(f"{self._name}: the job ended before all was written")
        raise ServerUnreachableError(f"{self._name}: no answer for {ANSWER_TIMEOUT:g} s")

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._connection.interrupt()

    def finish(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        self._connection.close()
