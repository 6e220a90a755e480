"""Where a pipeline writes to: ``sinks.csv("out/counts")`` and its like.

A sink of files takes a directory, as a path or as a URL that fsspec knows, and fills it with
``part-00000.csv`` and so on, a part per writer that had items, and an empty ``_SUCCESS``. All of
it appears when the job has succeeded; a job that fails leaves nothing, and keeps what was there.
``mode`` says what happens to a directory that holds something already:

- ``"overwrite"``, the default, replaces the output of an earlier run. A directory that holds
  anything else is refused.
- ``"append"`` adds parts.
- ``"error"`` refuses a directory that is not empty.

``compression`` is ``"gzip"``, ``"bz2"``, ``"xz"`` or ``"zstd"``. ``partition_by`` names a field, or
several, or is a function from item to a dict: then files go to directories such as
``day=2026-11-19``.

In a job that takes snapshots the parts of each writer come one by one, as
``part-00000-00000-1-<job>.csv`` and so on, when a snapshot counts: with *exactly-once* each item is
in one of them, with *at-least-once* a restart may write some again. A stream without either has a
new part every 10 seconds, and the last one when it is cancelled. What was there is then replaced
when the first part comes. With ``roll_size``, such as ``"128 MiB"``, or ``roll_interval``, such as
``"10m"``, what is written waits until there is so much, or the first of it has waited for so long,
and becomes one part.

``help(sinks.csv)`` says what a sink takes.
"""

# ruff: noqa: N813 - the classes are what types are checked against, the functions what is called

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetlet._lazy import lazy
from jetlet.connectors.constructors import constructor, hints

if TYPE_CHECKING:
    from jetlet.connectors.client import CallbackSink as client
    from jetlet.connectors.client import CollectSink as collect
    from jetlet.connectors.client import LoggerSink as logger
    from jetlet.connectors.client import NoopSink as noop
    from jetlet.connectors.custom.builders import BuiltSink as builder
    from jetlet.connectors.files.csv import CsvSink as csv
    from jetlet.connectors.files.jsonl import JsonLinesSink as json_lines
    from jetlet.connectors.files.parquet import ParquetSink as parquet
    from jetlet.connectors.files.text import TextSink as text
    from jetlet.connectors.kafka.sink import KafkaSink as kafka
    from jetlet.connectors.log.connector import LogSink as log
    from jetlet.connectors.redis.sink import RedisStreamSink as redis_stream
    from jetlet.connectors.sql.sink import SqlSink as sql
    from jetlet.spark.frame_sink import FrameSink as spark

_HOMES: Final = {
    "builder": "connectors.custom.builders:BuiltSink",
    "client": "connectors.client:CallbackSink",
    "collect": "connectors.client:CollectSink",
    "csv": "connectors.files.csv:CsvSink",
    "json_lines": "connectors.files.jsonl:JsonLinesSink",
    "kafka": "connectors.kafka.sink:KafkaSink",
    "log": "connectors.log.connector:LogSink",
    "logger": "connectors.client:LoggerSink",
    "noop": "connectors.client:NoopSink",
    "parquet": "connectors.files.parquet:ParquetSink",
    "redis_stream": "connectors.redis.sink:RedisStreamSink",
    "spark": "spark.frame_sink:FrameSink",
    "sql": "connectors.sql.sink:SqlSink",
    "text": "connectors.files.text:TextSink",
}

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

__getattr__, __dir__ = lazy(__name__, _HOMES, constructor, hints(__name__, _HOMES))
