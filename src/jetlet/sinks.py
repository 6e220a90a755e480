"""Where a pipeline writes to: ``sinks.csv("out/counts")`` and its like.

A sink of files takes a directory, as a path or as a URL that fsspec knows, and fills it with
``part-00000.csv`` and so on, a part per writer that had items, and an empty ``_SUCCESS``. All of
it appears when the job has succeeded; a job that fails leaves nothing, and keeps what was there.
``mode`` says what happens to a directory that holds something already:

- ``"overwrite"``, the default, replaces the output of an earlier run. A directory that holds
  anything else is refused.
- ``"append"`` adds parts.
- ``"error"`` refuses a directory that is not empty.

``compression`` is ``"gzip"``, ``"bz2"``, ``"xz"`` or ``"zstd"``.

In a job that takes snapshots the parts of each writer come one by one, as
``part-00000-00000-1-<job>.csv`` and so on, when a snapshot counts: with *exactly-once* each item is
in one of them, with *at-least-once* a restart may write some again. A stream without either has a
new part every 10 seconds, and the last one when it is cancelled. What was there is then replaced
when the first part comes.
"""

# Connectors are imported by the function that needs them, so that `import jetlet` stays quick.

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from jetlet.core.durations import Duration
from jetlet.pipeline.sink import Sink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from jetlet.connectors.client import CallbackSink, CollectSink, LoggerSink
    from jetlet.connectors.custom.builders import WriterContext

__all__ = [
    "builder",
    "client",
    "collect",
    "csv",
    "json_lines",
    "kafka",
    "log",
    "logger",
    "noop",
    "parquet",
    "redis_stream",
    "spark",
    "sql",
    "text",
]

S = TypeVar("S")
T = TypeVar("T")
Path = str | os.PathLike[str]
Mode = Literal["overwrite", "append", "error"]


def text(
    directory: Path,
    *,
    to_str: Callable[[Any], str] = str,
    encoding: str = "utf-8",
    compression: str | None = None,
    mode: Mode = "overwrite",
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Sink[Any]:
    """Text files: a line per item, as ``to_str`` gives it."""
    from jetlet.connectors.files.text import TextSink

    return TextSink(
        directory,
        to_str=to_str,
        encoding=encoding,
        compression=compression,
        mode=mode,
        name=name,
        storage_options=storage_options,
    )


def csv(
    directory: Path,
    *,
    header: bool | Sequence[str] | None = None,
    delimiter: str = ",",
    quotechar: str | None = '"',
    escapechar: str | None = None,
    encoding: str = "utf-8",
    compression: str | None = None,
    mode: Mode = "overwrite",
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Sink[Any]:
    """CSV files: a row per item.

    A tuple or list is a row; so are a dict, a dataclass and a named tuple, which also give the
    header; anything else is a row of one column. ``header=[...]`` names the columns (and of a dict
    picks them), ``header=False`` leaves the header out. ``None`` is written as an empty field.
    """
    from jetlet.connectors.files.csv import CsvSink

    return CsvSink(
        directory,
        header=header,
        delimiter=delimiter,
        quotechar=quotechar,
        escapechar=escapechar,
        encoding=encoding,
        compression=compression,
        mode=mode,
        name=name,
        storage_options=storage_options,
    )


def json_lines(
    directory: Path,
    *,
    default: Callable[[Any], Any] | None = None,
    compression: str | None = None,
    mode: Mode = "overwrite",
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Sink[Any]:
    """JSON Lines files: a value per item.

    Dataclasses and named tuples become objects, dates and times ISO strings, decimals and UUIDs
    strings, sets arrays. ``default`` takes the place of these rules: it gets a value that JSON has
    no form for, and returns one that it has.
    """
    from jetlet.connectors.files.jsonl import JsonLinesSink

    return JsonLinesSink(
        directory,
        default=default,
        compression=compression,
        mode=mode,
        name=name,
        storage_options=storage_options,
    )


def parquet(
    directory: Path,
    *,
    schema: pa.Schema | Sequence[str] | None = None,
    compression: str | None = "snappy",
    mode: Mode = "overwrite",
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Sink[Any]:
    """Parquet files: a row per item; what a row may be is as for `csv`.

    Without a ``schema`` each part takes the types from its first rows; columns of tuples are then
    called ``_1``, ``_2`` and so on. A list of names as ``schema`` names the columns. Needs
    ``pip install 'jetlet[arrow]'``.
    """
    from jetlet.connectors.files.parquet import ParquetSink

    return ParquetSink(
        directory,
        schema=schema,
        compression=compression,
        mode=mode,
        name=name,
        storage_options=storage_options,
    )


def spark(
    writer_fn: Callable[[DataFrame], object] | Callable[[DataFrame, int], object],
    schema: str | StructType,
    *,
    name: str | None = None,
) -> Sink[Any]:
    """Hand the items to Spark as a DataFrame, so write whatever Spark can; on Spark only.

    ``writer_fn(df)`` is called in this process when all else is done, and writes the DataFrame
    once: ``lambda df: df.write.mode("overwrite").parquet(path)``. Spark's own commit protocol
    applies. ``schema`` has the columns as Spark writes them: ``"word string, count long"``.

    In micro-batches it is called for each of them. If it takes a second argument, that is the
    number of the batch, which is the same when a batch is run again after a crash: so it can tell
    what it has written before.

    A dict, a dataclass, a named tuple and a ``Row`` fill the columns of their names, and a missing
    one is null; a tuple goes by position, anything else is the value of the only column. An item
    that does not fit fails the job.
    """
    from jetlet.spark.frame_sink import FrameSink

    return FrameSink(writer_fn, schema, name=name)


def collect(*, name: str | None = None) -> CollectSink[Any]:
    """Keep the items here: ``sink.items`` has those of the latest run once its job has ended.

    A restart brings some of them again, whatever the guarantee; so it does with `logger` and
    `client`.
    """
    from jetlet.connectors.client import CollectSink

    return CollectSink(name=name)


def logger(
    prefix: str = "", formatter: Callable[[Any], str] = str, *, name: str | None = None
) -> LoggerSink:
    """Print a line per item to the standard output of this process."""
    from jetlet.connectors.client import LoggerSink

    return LoggerSink(prefix, formatter, name=name)


def client(fn: Callable[[T], object], *, name: str | None = None) -> CallbackSink[T]:
    """Call ``fn(item)`` in this process, wherever the job runs."""
    from jetlet.connectors.client import CallbackSink

    return CallbackSink(fn, name=name)


def noop(*, name: str | None = None) -> Sink[Any]:
    """Drop the items."""
    from jetlet.connectors.client import NoopSink

    return NoopSink(name=name)


def builder(
    name: str,
    *,
    create: Callable[[WriterContext], S],
    receive: Callable[[S, T], object] | None = None,
    receive_batch: Callable[[S, Sequence[T]], object] | None = None,
    flush: Callable[[S], object] | None = None,
    destroy: Callable[[S], object] | None = None,
    blocking: bool = False,
    preferred_local_parallelism: int = 1,
) -> Sink[T]:
    """A sink of your own, made of functions that run where the data is.

    ``create(context)`` makes the state of a writer, such as a connection. ``receive(state, item)``
    or ``receive_batch(state, items)`` takes items, ``flush(state)`` follows every batch, and
    ``destroy(state)`` ends the writer, however the job ended. ``blocking=True`` gives each writer
    a thread of its own; say it when it waits for a network.

    There is no transaction: what was written before a failure stays, and a restart writes some of
    it again, whatever the guarantee.
    """
    from jetlet.connectors.custom.builders import BuiltSink

    return BuiltSink(
        name,
        create=create,
        receive=receive,
        receive_batch=receive_batch,
        flush=flush,
        destroy=destroy,
        blocking=blocking,
        preferred_local_parallelism=preferred_local_parallelism,
    )


def log(
    directory: Path,
    *,
    key: Callable[[T], Any] | None = None,
    timestamp: Callable[[T], int] | None = None,
    partitions: int | None = None,
    serializer: Literal["pickle", "json", "bytes"] | None = None,
    fsync: Literal["none", "batch"] | Duration = "none",
    segment_bytes: int = 64 << 20,
    max_age: Duration | None = None,
    max_bytes: int | None = None,
    name: str | None = None,
) -> Sink[T]:
    """Append items to an embedded log, which is made if there is none; see ``sources.log``.

    Items with equal ``key(item)`` go to one partition and keep their order; without ``key``,
    batches take the partitions in turn. ``timestamp(item)`` is in milliseconds since 1970; without
    it, it is the time of writing. A new log has one partition unless ``partitions`` says otherwise.
    The other options are those of :class:`jetlet.log.Log`.

    Items are visible as they come, stay when the job fails, and a restart appends some of them
    again. In a job with the guarantee *exactly-once* they are written aside, and appended when a
    snapshot counts, each once.
    """
    from jetlet.connectors.log.connector import LogSink
    from jetlet.log.log import LogOptions

    options = LogOptions.of(
        "sinks.log",
        directory,
        partitions=partitions,
        default_partitions=1,
        serializer=serializer,
        segment_bytes=segment_bytes,
        fsync=fsync,
        max_age=max_age,
        max_bytes=max_bytes,
    )
    return LogSink(options, key=key, timestamp=timestamp, name=name)


def kafka(
    topic: str,
    servers: str | Sequence[str],
    *,
    value: Callable[[T], bytes | str | None] | None = None,
    key: Callable[[T], bytes | str | None] | None = None,
    timestamp: Callable[[T], int] | None = None,
    headers: Callable[[T], Mapping[str, Any] | Sequence[tuple[str, Any]] | None] | None = None,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Sink[T]:
    """Send items to a topic of Kafka, which must be there.

    Each of the functions takes an item. The ``value`` and the ``key`` of a record are bytes or a
    string; without ``value`` the item itself must be. Records with equal keys go to one partition,
    the same as with Kafka's own clients, and keep their order. The ``timestamp`` is in milliseconds
    since 1970; without it, it is the time of sending. ``servers`` are ``"host:port"`` of some
    brokers, ``settings`` those of librdkafka, such as ``{"linger.ms": 0}``.

    Each record is sent once and in order, whatever the connection does; one that is not delivered
    in time fails the job (``"message.timeout.ms"``, 5 minutes). Records are visible as they come,
    stay when the job fails, and a restart sends some of them again; all have arrived before a
    snapshot counts. In a job with the guarantee *exactly-once* they are kept until the next
    snapshot, saved in it, and sent when it counts, in a transaction of Kafka's, each once: for
    consumers with ``"isolation.level": "read_committed"``. Needs ``pip install 'jetlet[kafka]'``.
    """
    from jetlet.connectors.kafka.client import KafkaServers
    from jetlet.connectors.kafka.sink import KafkaEncoding, KafkaSink

    return KafkaSink(
        topic,
        KafkaServers.of("sinks.kafka", servers, settings),
        encoding=KafkaEncoding(value, key, timestamp, headers),
        name=name,
    )


def redis_stream(
    streams: str | Sequence[str],
    url: str,
    *,
    fields: Callable[[T], Mapping[Any, Any]] | None = None,
    key: Callable[[T], Any] | None = None,
    maxlen: int | None = None,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Sink[T]:
    """Add items to a stream of Redis, or to several, each as an entry with an id of the server's.

    ``fields(item)`` is a dict of strings, bytes or numbers; without it the item itself must be.
    With a list of ``streams``, items with equal ``key(item)`` go to one of them and keep their
    order; without ``key``, batches take the streams in turn. ``maxlen`` trims each stream to about
    so many entries. ``url`` and ``settings`` are as for ``sources.redis_stream``.

    There is no transaction: entries are visible as they come, stay when the job fails, and a
    restart adds some of them again, whatever the guarantee. Needs ``pip install 'jetlet[redis]'``.
    """
    from jetlet.connectors.redis.client import RedisServer
    from jetlet.connectors.redis.sink import RedisStreamSink

    return RedisStreamSink(
        streams,
        RedisServer.of("sinks.redis_stream", url, settings),
        fields=fields,
        key=key,
        maxlen=maxlen,
        name=name,
    )


def sql(
    url: str,
    table: str | None = None,
    *,
    statement: str | None = None,
    columns: Sequence[str] | None = None,
    key: str | Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Sink[Any]:
    """Write items as rows to a table of a SQL database, which must be there.

    ``url`` is one of SQLAlchemy, such as ``"postgresql://user@host/database"`` or
    ``"sqlite:///file.db"``; ``settings`` are arguments for ``sqlalchemy.create_engine``. A dict, a
    dataclass and a named tuple fill the columns of their names, a tuple or a list the ``columns``
    in their order, by default all of the table.

    With a ``key``, which must be the primary key or unique, a row that is there is replaced, so
    writing it again does no harm. Rows with equal keys keep their order if they come from one
    processor, as they do behind ``grouping_key``; otherwise write ``.rebalance(key_fn)`` before.
    Instead of a table there may be a ``statement`` with parameters:
    ``"UPDATE stock SET number = number - :sold WHERE id = :id"``.

    Each batch is written in a transaction of its own: rows are visible as they come, stay when the
    job fails, and a restart writes some of them again. In a job with the guarantee *exactly-once*
    rows are kept until the next snapshot, tried out, saved in it, and written when it counts,
    together with a row of the table ``jetlet_transactions``, which is made if need be: so none is
    written twice. Needs ``pip install 'jetlet[sql]'``.
    """
    from jetlet.connectors.sql.database import SqlDatabase
    from jetlet.connectors.sql.sink import SqlSink
    from jetlet.connectors.sql.target import SqlTarget

    return SqlSink(
        SqlDatabase.of("sinks.sql", url, settings),
        SqlTarget.of("sinks.sql", table, statement, columns, key),
        name=name,
    )
