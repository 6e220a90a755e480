"""Where a pipeline reads from: ``sources.text("books/*.txt")`` and its like.

Every source of files takes a path, a directory, a glob (``**`` goes into directories), a list of
these, or a URL that fsspec knows (``s3://bucket/*.csv``; ``storage_options`` are for its client).
A directory, named or matched, stands for the files right in it; names that begin with ``_`` or
``.`` are left out. Files are read in the order of their names; those that end in ``.gz``,
``.bz2``, ``.xz`` or ``.zst`` are decompressed. Relative paths start from the directory that the
source is made in.
"""

# Connectors are imported by the function that needs them, so that `import jetlet` stays quick.

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

from jetlet.core.durations import Duration
from jetlet.pipeline.source import BatchSource
from jetlet.pipeline.stream_source import StreamSource

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

    from jetlet.connectors.custom.stream_builder import StreamBuffer, StreamContext
    from jetlet.connectors.kafka.consumer import KafkaRecord
    from jetlet.connectors.redis.source import RedisEntry

__all__ = [
    "batch",
    "csv",
    "item_stream",
    "items",
    "json_lines",
    "kafka",
    "log",
    "parquet",
    "redis_stream",
    "socket",
    "spark",
    "stream",
    "tail",
    "text",
]

S = TypeVar("S")
T = TypeVar("T")
Split = TypeVar("Split")
Path = str | os.PathLike[str]
RedisStart: TypeAlias = "Literal['earliest', 'latest'] | Mapping[str, str] | int | datetime"
KafkaStart: TypeAlias = (
    "Literal['earliest', 'latest', 'committed'] | Mapping[Any, int] | int | datetime"
)


def text(
    path: Path | Iterable[Path],
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    split_size: int | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BatchSource[str]:
    r"""Lines of text files, without the line end (``\n`` or ``\r\n``; a lone ``\r`` is none).

    Several readers share a file that is not compressed, in pieces of ``split_size`` bytes (by
    default 1 to 64 MiB, going by the size of the input). Bytes that are not of the encoding fail
    the job, with the file and the offset, unless ``errors`` says otherwise. A byte-order mark at
    the start of a file is dropped.
    """
    from jetlet.connectors.files.text import TextSource

    return TextSource(
        path,
        encoding=encoding,
        errors=errors,
        split_size=split_size,
        name=name,
        local_parallelism=local_parallelism,
        storage_options=storage_options,
    )


class CsvOptions(TypedDict, total=False):
    """Those of :func:`csv` that do not decide what an item is."""

    delimiter: str
    quotechar: str | None
    escapechar: str | None
    strict: bool
    multiline: bool
    encoding: str
    errors: str
    split_size: int | None
    name: str | None
    local_parallelism: int | None
    storage_options: Mapping[str, Any] | None


@overload
def csv(
    path: Path | Iterable[Path],
    *,
    header: Literal[False],
    fields: None = None,
    types: Mapping[int, Callable[[str], Any]] | None = None,
    **options: Unpack[CsvOptions],
) -> BatchSource[tuple[Any, ...]]: ...


@overload
def csv(
    path: Path | Iterable[Path],
    *,
    header: bool = True,
    fields: Sequence[str],
    types: Mapping[str, Callable[[str], Any]] | None = None,
    **options: Unpack[CsvOptions],
) -> BatchSource[dict[str, Any]]: ...


@overload
def csv(
    path: Path | Iterable[Path],
    *,
    header: Literal[True] = True,
    fields: None = None,
    types: Mapping[str, Callable[[str], Any]] | None = None,
    **options: Unpack[CsvOptions],
) -> BatchSource[dict[str, Any]]: ...


def csv(
    path: Path | Iterable[Path],
    *,
    header: bool = True,
    fields: Sequence[str] | None = None,
    types: Mapping[Any, Callable[[str], Any]] | None = None,
    delimiter: str = ",",
    quotechar: str | None = '"',
    escapechar: str | None = None,
    strict: bool = True,
    multiline: bool = True,
    encoding: str = "utf-8",
    errors: str = "strict",
    split_size: int | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BatchSource[Any]:
    """Rows of CSV files, as dicts of strings; as tuples with ``header=False`` and no ``fields``.

    The names come from the first row of each file, or from ``fields``. ``types`` converts columns:
    ``types={"age": int}`` (without names, by the column's number from 0). Blank lines are skipped;
    a row with another number of columns fails the job, with the file and the line. ``strict``
    refuses misplaced and unclosed quotes. ``quotechar=None`` means that nothing is quoted.

    A quoted field may have line ends in it, so a file is read by one reader. If there are none,
    say ``multiline=False``: several readers then share a big file, in pieces of ``split_size``.
    """
    from jetlet.connectors.files.csv import CsvSource

    return CsvSource(
        path,
        header=header,
        delimiter=delimiter,
        quotechar=quotechar,
        escapechar=escapechar,
        fields=fields,
        types=types,
        strict=strict,
        multiline=multiline,
        encoding=encoding,
        errors=errors,
        split_size=split_size,
        name=name,
        local_parallelism=local_parallelism,
        storage_options=storage_options,
    )


def json_lines(
    path: Path | Iterable[Path],
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    split_size: int | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BatchSource[Any]:
    """The value on each line of JSON Lines files. Blank lines are skipped; splits as in `text`."""
    from jetlet.connectors.files.jsonl import JsonLinesSource

    return JsonLinesSource(
        path,
        encoding=encoding,
        errors=errors,
        split_size=split_size,
        name=name,
        local_parallelism=local_parallelism,
        storage_options=storage_options,
    )


def parquet(
    path: Path | Iterable[Path],
    *,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | Sequence[Any] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BatchSource[dict[str, Any]]:
    """Rows of Parquet files, as dicts. Several readers share a file by its row groups.

    ``columns`` are the ones to read, ``filters`` the rows: an expression of pyarrow such as
    ``pc.field("age") > 30``, or a list such as ``[("age", ">", 30)]``. Row groups whose statistics
    rule a match out are not read. Needs ``pip install 'jetlet[arrow]'``.
    """
    from jetlet.connectors.files.parquet import ParquetSource

    return ParquetSource(
        path,
        columns=columns,
        filters=filters,
        name=name,
        local_parallelism=local_parallelism,
        storage_options=storage_options,
    )


def items(items: Iterable[T], *, name: str | None = None) -> BatchSource[T]:
    """Items that you have: a list, tuple or range, or any iterable that ends.

    An iterator or generator is read to its end when a job is submitted, and its items are kept, so
    that the pipeline can run again.
    """
    from jetlet.connectors.items import ItemsSource

    return ItemsSource(items, name=name)


@overload
def batch(
    name: str,
    read_fn: Callable[[Split], Iterable[Sequence[T]]],
    splits: Sequence[Split] | Callable[[int], Sequence[Split]] | None = None,
    *,
    batched: Literal[True],
    blocking: bool = False,
    local_parallelism: int | None = None,
) -> BatchSource[T]: ...


@overload
def batch(
    name: str,
    read_fn: Callable[[Split], Iterable[T]],
    splits: Sequence[Split] | Callable[[int], Sequence[Split]] | None = None,
    *,
    batched: Literal[False] = False,
    blocking: bool = False,
    local_parallelism: int | None = None,
) -> BatchSource[T]: ...


def batch(
    name: str,
    read_fn: Callable[[Any], Iterable[Any]],
    splits: Sequence[Any] | Callable[[int], Sequence[Any]] | None = None,
    *,
    batched: bool = False,
    blocking: bool = False,
    local_parallelism: int | None = None,
) -> BatchSource[Any]:
    """A source of your own: ``read_fn(split)`` returns an iterable of the split's items.

    ``splits`` is a list of whatever ``read_fn`` understands, or a function from the number of
    readers to such a list; without it there is one split, ``None``. With ``batched=True`` the
    iterable gives lists of items. A generator is closed when reading stops, so it may hold a
    connection in a ``with``. ``blocking=True`` gives each reader a thread of its own; say it when
    ``read_fn`` waits for a network.
    """
    from jetlet.connectors.custom.builders import BuiltBatchSource

    return BuiltBatchSource(
        name,
        read_fn,
        splits=splits,
        batched=batched,
        blocking=blocking,
        local_parallelism=local_parallelism,
    )


@overload
def spark(
    frame_fn: Callable[[SparkSession], DataFrame],
    *,
    columns: Sequence[str] | None = None,
    items: Literal["dict"] = "dict",
    name: str | None = None,
) -> BatchSource[dict[str, Any]]: ...


@overload
def spark(
    frame_fn: Callable[[SparkSession], DataFrame],
    *,
    columns: Sequence[str] | None = None,
    items: Literal["tuple"],
    name: str | None = None,
) -> BatchSource[tuple[Any, ...]]: ...


def spark(
    frame_fn: Callable[[SparkSession], DataFrame],
    *,
    columns: Sequence[str] | None = None,
    items: str = "dict",
    name: str | None = None,
) -> BatchSource[Any]:
    """Rows of a Spark DataFrame, so whatever Spark can read; on Spark only.

    ``frame_fn`` gets the session when the job is submitted, for example
    ``lambda spark: spark.read.orc("events").where("day > '2024-01-01'")``. ``columns`` are the
    ones to read. With ``items="tuple"`` an item is a tuple in the order of the columns. Spark
    decides in how many tasks the DataFrame is read. Values are as pyarrow gives them: a timestamp
    is a ``datetime`` with the session's time zone, a map a list of pairs.
    """
    from jetlet.spark.frames import FrameSource

    return FrameSource(frame_fn, columns=columns, items=items, name=name)


# --- Streams --------------------------------------------------------------------------------


@overload
def spark_stream(
    frame_fn: Callable[[SparkSession], DataFrame],
    *,
    columns: Sequence[str] | None = None,
    items: Literal["dict"] = "dict",
    interval: Duration | None = None,
    available_now: bool = False,
    name: str | None = None,
) -> StreamSource[dict[str, Any]]: ...


@overload
def spark_stream(
    frame_fn: Callable[[SparkSession], DataFrame],
    *,
    columns: Sequence[str] | None = None,
    items: Literal["tuple"],
    interval: Duration | None = None,
    available_now: bool = False,
    name: str | None = None,
) -> StreamSource[tuple[Any, ...]]: ...


def spark_stream(
    frame_fn: Callable[[SparkSession], DataFrame],
    *,
    columns: Sequence[str] | None = None,
    items: str = "dict",
    interval: Duration | None = None,
    available_now: bool = False,
    name: str | None = None,
) -> StreamSource[Any]:
    """Rows of a streaming DataFrame, so any stream that Spark can read; on Spark only.

    ``frame_fn`` gets the session when the job is submitted, for example
    ``lambda spark: spark.readStream.schema("user string, at timestamp").json("events")``. The
    rows come in micro-batches: a new one begins when the last has ended, at most one in each
    ``interval``. With ``available_now=True`` the stream ends with what is there when the job
    starts, and so does the job. ``columns`` and ``items`` are as in `spark`.
    """
    from jetlet.spark.stream_frames import SparkStreamSource

    return SparkStreamSource(
        frame_fn,
        columns=columns,
        items=items,
        interval=interval,
        available_now=available_now,
        name=name,
    )


@overload
def stream(
    name: str,
    *,
    create: Callable[[StreamContext], S],
    fill: Callable[[S, StreamBuffer[T]], object],
    partitions: int | Sequence[Any] = 1,
    timestamps: bool = False,
    save: Callable[[S], Any] | None = None,
    restore: Callable[[S, Any], object] | None = None,
    destroy: Callable[[S], object] | None = None,
    blocking: bool = False,
    local_parallelism: int | None = None,
) -> StreamSource[T]: ...


@overload
def stream(
    name: str,
    *,
    create: Callable[[StreamContext], S],
    generator: Callable[[S], Iterator[tuple[T, int] | None]],
    timestamps: Literal[True],
    partitions: int | Sequence[Any] = 1,
    save: Callable[[S], Any] | None = None,
    restore: Callable[[S, Any], object] | None = None,
    destroy: Callable[[S], object] | None = None,
    blocking: bool = False,
    local_parallelism: int | None = None,
) -> StreamSource[T]: ...


@overload
def stream(
    name: str,
    *,
    create: Callable[[StreamContext], S],
    generator: Callable[[S], Iterator[T | None]],
    timestamps: Literal[False] = False,
    partitions: int | Sequence[Any] = 1,
    save: Callable[[S], Any] | None = None,
    restore: Callable[[S, Any], object] | None = None,
    destroy: Callable[[S], object] | None = None,
    blocking: bool = False,
    local_parallelism: int | None = None,
) -> StreamSource[T]: ...


def stream(
    name: str,
    *,
    create: Callable[[StreamContext], S],
    fill: Callable[[S, StreamBuffer[Any]], object] | None = None,
    generator: Callable[[S], Iterator[Any]] | None = None,
    partitions: int | Sequence[Any] = 1,
    timestamps: bool = False,
    save: Callable[[S], Any] | None = None,
    restore: Callable[[S, Any], object] | None = None,
    destroy: Callable[[S], object] | None = None,
    blocking: bool = False,
    local_parallelism: int | None = None,
) -> StreamSource[Any]:
    """A stream of your own, made of functions that run where it is read.

    ``create(context)`` makes the state of a partition, such as a connection; ``context.partition``
    says which: a number, or one of the list that you give as ``partitions``. Then either

    - ``fill(state, buffer)`` is called again and again. It adds what is new with
      ``buffer.add(item)``, about ``buffer.room`` items at the most, or nothing if nothing is; and
      ends the stream with ``buffer.close()``. Or
    - ``generator(state)`` returns an iterator of the items. It gives ``None`` when there is nothing
      now. If it ends, so does the stream.

    With ``timestamps=True`` each item has one: ``buffer.add(item, timestamp)``, or
    ``yield (item, timestamp)``. ``destroy(state)`` ends a partition, however the job ended.

    A function must not wait for anything, unless you say ``blocking=True``: the functions of each
    partition then have a thread of their own. A job that is cancelled does not wait for them.

    ``save(state)`` returns how far a partition was read, picklable, and ``restore(state, saved)``
    goes on behind that in another run; a stream that has both can be resumed.
    """
    from jetlet.connectors.custom.stream_builder import BuiltStreamSource

    return BuiltStreamSource(
        name,
        create=create,
        fill=fill,
        generator=generator,
        partitions=partitions,
        timestamps=timestamps,
        save=save,
        restore=restore,
        destroy=destroy,
        blocking=blocking,
        local_parallelism=local_parallelism,
    )


@overload
def item_stream(
    per_second: float, create: None = None, *, name: str | None = None
) -> StreamSource[int]: ...


@overload
def item_stream(
    per_second: float, create: Callable[[int, int], T], *, name: str | None = None
) -> StreamSource[T]: ...


def item_stream(
    per_second: float,
    create: Callable[[int, int], Any] | None = None,
    *,
    name: str | None = None,
) -> StreamSource[Any]:
    """Items at a steady rate: ``create(sequence, timestamp)``, or the numbers 0, 1, 2, ...

    The timestamp is the time at which an item is due, in milliseconds. What becomes due while the
    pipeline is held up follows at once when it goes on, with the timestamps that it should have
    had: so the delay can be measured.
    """
    from jetlet.connectors.item_stream import ItemStreamSource

    return ItemStreamSource(per_second, create, name=name)


def tail(
    path: Path | Iterable[Path],
    *,
    from_start: bool = True,
    encoding: str = "utf-8",
    errors: str = "strict",
    interval: Duration = 50,
    name: str | None = None,
) -> StreamSource[str]:
    """Lines of text files, those that are there and those that are appended later.

    ``path`` is a file, a directory, a glob, or a list of these; files may appear later. With
    ``from_start=False`` the lines that are there when the job is submitted are left out. A line
    counts once its line end has been written. A file that is renamed or replaced, as when logs are
    rotated, is read to its end, and the one that takes its place from its start; one that is
    truncated, from its start.

    Files are looked at every ``interval``, in milliseconds. In a directory, and among what a glob
    matches, compressed files are left out.
    """
    from jetlet.connectors.files.tail import TailSource

    return TailSource(
        path,
        from_start=from_start,
        encoding=encoding,
        errors=errors,
        interval=interval,
        name=name,
    )


def socket(
    host: str,
    port: int,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    reconnect: bool = True,
    max_pause: Duration = 10_000,
    name: str | None = None,
) -> StreamSource[str]:
    """Lines of text from a TCP server, to which the source connects.

    When the connection ends, or cannot be made, it connects again after 0.1 s, then 0.2 s and so
    on, up to ``max_pause``; lines that the server sends meanwhile are missed. With
    ``reconnect=False`` the stream ends with the connection.
    """
    from jetlet.connectors.socket_stream import SocketSource

    return SocketSource(
        host,
        port,
        encoding=encoding,
        errors=errors,
        reconnect=reconnect,
        max_pause=max_pause,
        name=name,
    )


def log(
    directory: Path,
    *,
    start: Literal["earliest", "latest"] | Mapping[int, int] | int | datetime = "earliest",
    on_gap: Literal["skip", "fail"] = "skip",
    partitions: int | None = None,
    serializer: Literal["pickle", "json", "bytes"] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
) -> StreamSource[Any]:
    """Records of an embedded log, those that are there and those that are appended later.

    ``start`` is ``"earliest"``, ``"latest"`` (only what is appended from now on), a dict from
    partitions to offsets, or a time: milliseconds since 1970 or a ``datetime``. Records that are
    gone, because retention has deleted them before they were read, are skipped with a warning;
    with ``on_gap="fail"`` the job fails.

    There must be a log, unless ``partitions`` says how many one is to have that is made now. A log
    that others write to should be opened with its ``serializer``: what is pickled is then refused
    rather than run.
    """
    from jetlet.connectors.log.connector import LogSource
    from jetlet.log.log import LogOptions

    options = LogOptions.of("sources.log", directory, partitions=partitions, serializer=serializer)
    return LogSource(
        options, start=start, on_gap=on_gap, name=name, local_parallelism=local_parallelism
    )


@overload
def kafka(
    topic: str | Sequence[str],
    servers: str | Sequence[str],
    *,
    value: None = None,
    start: KafkaStart = "earliest",
    group: str | None = None,
    on_gap: Literal["skip", "fail"] = "skip",
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
) -> StreamSource[bytes | None]: ...


@overload
def kafka(
    topic: str | Sequence[str],
    servers: str | Sequence[str],
    *,
    value: Callable[[bytes], T],
    start: KafkaStart = "earliest",
    group: str | None = None,
    on_gap: Literal["skip", "fail"] = "skip",
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
) -> StreamSource[T]: ...


@overload
def kafka(
    topic: str | Sequence[str],
    servers: str | Sequence[str],
    *,
    value: Callable[[bytes], Any] | None = None,
    key: Callable[[bytes], Any] | None = None,
    project: Callable[[KafkaRecord], T],
    start: KafkaStart = "earliest",
    group: str | None = None,
    on_gap: Literal["skip", "fail"] = "skip",
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
) -> StreamSource[T]: ...


def kafka(
    topic: str | Sequence[str],
    servers: str | Sequence[str],
    *,
    value: Callable[[bytes], Any] | None = None,
    key: Callable[[bytes], Any] | None = None,
    project: Callable[[KafkaRecord], Any] | None = None,
    start: KafkaStart = "earliest",
    group: str | None = None,
    on_gap: Literal["skip", "fail"] = "skip",
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
) -> StreamSource[Any]:
    """Records of topics of Kafka, those that are there and those that are sent later.

    An item is the value of a record, as bytes or as ``value(bytes)`` makes it, such as
    ``value=json.loads``. For more than the value write ``project``, which gets a ``KafkaRecord``
    with ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``value`` and ``headers``;
    ``key(bytes)`` then deserialises the key. Neither is called for what is ``None``. A record that
    cannot be decoded fails the job; to have it in a dead-letter sink, read bytes and decode them
    in ``.map(..., on_error=...)``.

    ``start`` is ``"earliest"``, ``"latest"`` (only what is sent from now on), ``"committed"`` (what
    ``group`` has committed; the earliest where it has not), a dict from partitions to offsets
    (with several topics, from ``(topic, partition)``), or a time: milliseconds since 1970 or a
    ``datetime``. Nothing is committed: how far a job has read is in its snapshots. Records that are
    gone, because retention has deleted them before they were read, are skipped with a warning;
    with ``on_gap="fail"`` the job fails.

    ``servers`` are ``"host:port"`` of some brokers, ``settings`` those of librdkafka, such as
    ``{"security.protocol": "SSL"}``. Partitions are shared among the readers; those that a topic
    gets later are found when the job is started again. Needs ``pip install 'jetlet[kafka]'``.
    """
    from jetlet.connectors.kafka.client import KafkaServers
    from jetlet.connectors.kafka.source import KafkaDecoding, KafkaSource

    return KafkaSource(
        topic,
        KafkaServers.of("sources.kafka", servers, settings),
        start=start,
        group=group,
        on_gap=on_gap,
        decoding=KafkaDecoding(key, value, project),
        name=name,
        local_parallelism=local_parallelism,
    )


@overload
def redis_stream(
    streams: str | Sequence[str],
    url: str,
    *,
    encoding: None,
    start: RedisStart = "earliest",
    must_exist: bool = True,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
) -> StreamSource[dict[bytes, bytes]]: ...


@overload
def redis_stream(
    streams: str | Sequence[str],
    url: str,
    *,
    encoding: str = "utf-8",
    start: RedisStart = "earliest",
    must_exist: bool = True,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
) -> StreamSource[dict[str, str]]: ...


@overload
def redis_stream(
    streams: str | Sequence[str],
    url: str,
    *,
    encoding: str | None = "utf-8",
    project: Callable[[RedisEntry], T],
    start: RedisStart = "earliest",
    must_exist: bool = True,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
) -> StreamSource[T]: ...


def redis_stream(
    streams: str | Sequence[str],
    url: str,
    *,
    encoding: str | None = "utf-8",
    project: Callable[[RedisEntry], Any] | None = None,
    start: RedisStart = "earliest",
    must_exist: bool = True,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    local_parallelism: int | None = None,
) -> StreamSource[Any]:
    """Entries of streams of Redis, those that are there and those that are added later.

    ``streams`` is the key of a stream, or a list of keys; each is a partition. An item is the dict
    of an entry's fields, as strings, or as bytes with ``encoding=None``. For more write
    ``project``, which gets a ``RedisEntry`` with ``stream``, ``id``, ``timestamp`` and ``fields``.
    The time in an entry's id is its native timestamp.

    ``start`` is ``"earliest"``, ``"latest"`` (only what is added from now on), a dict from streams
    to the ids behind which to begin, or a time: milliseconds since 1970 or a ``datetime``. Entries
    that are trimmed before they were read are missed. With ``must_exist=False`` streams may be
    made later.

    ``url`` is ``"redis://user:password@host:port/database"``, ``"rediss://..."`` for TLS or
    ``"unix:///path"``, ``settings`` the options of a connection of redis-py. When the connection is
    lost, it is made again. Needs ``pip install 'jetlet[redis]'``.
    """
    from jetlet.connectors.redis.client import RedisServer
    from jetlet.connectors.redis.source import RedisDecoding, RedisStreamSource

    return RedisStreamSource(
        streams,
        RedisServer.of("sources.redis_stream", url, settings),
        start=start,
        must_exist=must_exist,
        decoding=RedisDecoding(encoding, project),
        name=name,
        local_parallelism=local_parallelism,
    )
