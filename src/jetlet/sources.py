"""Where a pipeline reads from: ``sources.text("books/*.txt")`` and its like.

Every source of files takes a path, a directory, a glob (``**`` goes into directories), a list of
these, or a URL that fsspec knows (``s3://bucket/*.csv``; ``storage_options`` are for its client).
A directory, named or matched, stands for the files right in it; names that begin with ``_`` or
``.`` are left out. Files are read in the order of their names; those that end in ``.gz``,
``.bz2``, ``.xz`` or ``.zst`` are decompressed. Relative paths start from the directory that the
source is made in.

``help(sources.csv)`` says what a source takes.
"""

# ruff: noqa: N813 - the classes are what types are checked against, the functions what is called

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetlet._lazy import lazy
from jetlet.connectors.constructors import constructor, hints

if TYPE_CHECKING:
    from jetlet.connectors.custom.builders import BuiltBatchSource as batch
    from jetlet.connectors.custom.stream_builder import BuiltStreamSource as stream
    from jetlet.connectors.files.arriving import FilesStream as files_stream
    from jetlet.connectors.files.csv import CsvSource as csv
    from jetlet.connectors.files.jsonl import JsonLinesSource as json_lines
    from jetlet.connectors.files.parquet import ParquetSource as parquet
    from jetlet.connectors.files.tail import TailSource as tail
    from jetlet.connectors.files.text import TextSource as text
    from jetlet.connectors.item_stream import ItemStreamSource as item_stream
    from jetlet.connectors.items import ItemsSource as items
    from jetlet.connectors.kafka.source import KafkaSource as kafka
    from jetlet.connectors.log.connector import LogSource as log
    from jetlet.connectors.redis.source import RedisStreamSource as redis_stream
    from jetlet.connectors.socket_stream import SocketSource as socket
    from jetlet.connectors.sql.source import SqlSource as sql
    from jetlet.spark.frames import FrameSource as spark
    from jetlet.spark.stream_frames import SparkStreamSource as spark_stream

_HOMES: Final = {
    "batch": "connectors.custom.builders:BuiltBatchSource",
    "csv": "connectors.files.csv:CsvSource",
    "files_stream": "connectors.files.arriving:FilesStream",
    "item_stream": "connectors.item_stream:ItemStreamSource",
    "items": "connectors.items:ItemsSource",
    "json_lines": "connectors.files.jsonl:JsonLinesSource",
    "kafka": "connectors.kafka.source:KafkaSource",
    "log": "connectors.log.connector:LogSource",
    "parquet": "connectors.files.parquet:ParquetSource",
    "redis_stream": "connectors.redis.source:RedisStreamSource",
    "socket": "connectors.socket_stream:SocketSource",
    "spark": "spark.frames:FrameSource",
    "spark_stream": "spark.stream_frames:SparkStreamSource",
    "sql": "connectors.sql.source:SqlSource",
    "stream": "connectors.custom.stream_builder:BuiltStreamSource",
    "tail": "connectors.files.tail:TailSource",
    "text": "connectors.files.text:TextSource",
}

__all__ = [
    "batch",
    "csv",
    "files_stream",
    "item_stream",
    "items",
    "json_lines",
    "kafka",
    "log",
    "parquet",
    "redis_stream",
    "socket",
    "spark",
    "spark_stream",
    "sql",
    "stream",
    "tail",
    "text",
]

__getattr__, __dir__ = lazy(__name__, _HOMES, constructor, hints(__name__, _HOMES))
