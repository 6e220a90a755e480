"""Idioms of other libraries: what somebody who knows them writes first, and what it is called here.

A stage without such a method, and :mod:`jetlet.agg` without such a function, tell of it in the
``AttributeError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

STAGE_IDIOMS: Mapping[str, str] = MappingProxyType(
    {
        "add_sink": ".write_to(sink)",
        "agg": ".aggregate(agg.counting()) or another operation of jetlet.agg",
        "alias": ".map(fn, name=...)",
        "assign_timestamps_and_watermarks": ".add_timestamps(fn, allowed_lag)",
        "async_map": ".map_async(fn)",
        "assignTimestampsAndWatermarks": ".add_timestamps(fn, allowed_lag)",
        "batch": ".map_batched(fn, max_batch)",
        "buffer": ".map_batched(fn, max_batch)",
        "cache": "nothing: a stage that several others read is computed once in a job",
        "coalesce": ".rebalance()",
        "cogroup": ".grouping_key(fn).aggregate2(op, other.grouping_key(fn), other_op)",
        "collect": ".write_to(out), where out = sinks.collect(); after the run look at out.items",
        "count": ".aggregate(agg.counting())",
        "drop_duplicates": ".distinct(), or .grouping_key(fn).distinct() for one item of each key",
        "dropDuplicates": ".distinct(), or .grouping_key(fn).distinct() for one item of each key",
        "emit_on": "nothing: a result comes when event time has passed its window",
        "explode": ".flat_map(fn)",
        "first": ".take(1)",
        "filter_map": ".map(fn) and .filter(fn)",
        "flatMap": ".flat_map(fn)",
        "fold": ".aggregate(agg.reducing(identity, fn))",
        "fold_window": ".window(definition).aggregate(agg.reducing(identity, fn))",
        "foreach": ".write_to(sink) to a sink of your own, such as sinks.builder(...)",
        "foreachBatch": ".write_to(sink) to a sink of your own, such as sinks.builder(...)",
        "foreach_batch": ".write_to(sink) to a sink of your own, such as sinks.builder(...)",
        "group_by": ".grouping_key(fn)",
        "group_by_key": ".grouping_key(fn)",
        "groupBy": ".grouping_key(fn)",
        "groupByKey": ".grouping_key(fn)",
        "groupby": ".grouping_key(fn)",
        "head": ".take(n)",
        "inspect": ".peek()",
        "join": ".hash_join(other, key_fn, other_key_fn), or behind grouping_key(...) "
        ".interval_join(...) of two streams",
        "key_by": ".grouping_key(fn)",
        "key_on": ".grouping_key(fn)",
        "keyBy": ".grouping_key(fn)",
        "limit": ".take(n)",
        "map_value": ".map(fn)",
        "map_values": ".map(fn)",
        "mapValues": ".map(fn)",
        "map_partitions": ".map_batched(fn), or .map_using_service(...) for what is made once",
        "mapPartitions": ".map_batched(fn), or .map_using_service(...) for what is made once",
        "max": ".aggregate(agg.max_by(key))",
        "mean": ".aggregate(agg.averaging(fn))",
        "min": ".aggregate(agg.min_by(key))",
        "order_by": ".sort(key)",
        "orderBy": ".sort(key)",
        "output": ".write_to(sink)",
        "partition_by": ".rebalance(key_fn)",
        "persist": "nothing: a stage that several others read is computed once in a job",
        "print": ".write_to(sinks.logger())",
        "reduce": ".aggregate(agg.reducing(identity, fn)), or .rolling_aggregate(...) in a stream",
        "reduce_by_key": ".grouping_key(fn).aggregate(agg.summing(fn)), or another operation",
        "reduceByKey": ".grouping_key(fn).aggregate(agg.summing(fn)), or another operation",
        "repartition": ".rebalance()",
        "scan": ".map_stateful(create, fn)",
        "select": ".map(fn), or of columns .map(record(a=col('a')))",
        "shuffle": ".rebalance()",
        "sink": ".write_to(sink)",
        "sort_by": ".sort(key)",
        "sortBy": ".sort(key)",
        "sum": ".aggregate(agg.summing(fn))",
        "tap": ".peek()",
        "to": ".write_to(sink)",
        "to_pandas": ".write_to(out), where out = sinks.collect(); then DataFrame(out.items)",
        "toPandas": ".write_to(out), where out = sinks.collect(); then DataFrame(out.items)",
        "union": ".merge(other)",
        "unionAll": ".merge(other)",
        "unique": ".distinct()",
        "where": ".filter(fn)",
        "watermark": ".add_timestamps(fn, allowed_lag)",
        "window_all": ".window(definition)",
        "with_timestamps": ".add_timestamps(fn, allowed_lag)",
        "with_watermark": ".add_timestamps(fn, allowed_lag)",
        "withWatermark": ".add_timestamps(fn, allowed_lag)",
        "with_column": ".map(fn)",
        "withColumn": ".map(fn)",
        "write": ".write_to(sink)",
        "zip_with_index": ".map_stateful(create, fn)",
    }
)
"""Methods of streams, tables and collections elsewhere, and what to write here."""

AGGREGATE_IDIOMS: Mapping[str, str] = MappingProxyType(
    {
        "approx_count_distinct": "agg.approx_distinct(fn)",
        "avg": "agg.averaging(fn)",
        "collect_list": "agg.to_list(fn)",
        "collect_set": "agg.to_set(fn)",
        "count": "agg.counting()",
        "count_distinct": "agg.to_set(fn).and_then(len), or agg.approx_distinct(fn)",
        "first": "agg.pick_any()",
        "fold": "agg.reducing(identity, fn)",
        "list": "agg.to_list(fn)",
        "max": "agg.max_by(key)",
        "median": "agg.approx_quantiles([0.5], fn)",
        "percentile": "agg.approx_quantiles(fractions, fn)",
        "maximum": "agg.max_by(key)",
        "mean": "agg.averaging(fn)",
        "min": "agg.min_by(key)",
        "minimum": "agg.min_by(key)",
        "percentile_approx": "agg.approx_quantiles(fractions, fn)",
        "quantiles": "agg.approx_quantiles(fractions, fn)",
        "reduce": "agg.reducing(identity, fn)",
        "set": "agg.to_set(fn)",
        "sum": "agg.summing(fn)",
        "total": "agg.summing(fn)",
    }
)
"""Aggregate functions elsewhere, and what they are here."""


MODULE_IDIOMS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "sources": {
            "dataframe": "sources.spark(frame_fn)",
            "delta": "sources.spark(frame_fn), with a function from a session to a DataFrame",
            "file": "sources.text(path)",
            "from_list": "sources.items(items)",
            "jdbc": 'sources.sql(url, query, split_by="id")',
            "json": "sources.json_lines(path)",
            "jsonl": "sources.json_lines(path)",
            "list": "sources.items(items)",
            "range": "sources.items(range(n))",
            "rate": "sources.item_stream(per_second)",
            "read_csv": "sources.csv(path)",
            "read_parquet": "sources.parquet(path)",
            "redis": "sources.redis_stream(streams, url)",
            "spark_frame": "sources.spark(frame_fn)",
            "table": "sources.spark(lambda spark: spark.table(name))",
        },
        "sinks": {
            "console": "sinks.logger()",
            "dataframe": "sinks.spark(writer_fn, schema)",
            "foreach": "sinks.client(fn), or sinks.builder(...) where the data is",
            "foreach_batch": "sinks.spark(writer_fn, schema), or sinks.builder(...)",
            "jdbc": "sinks.sql(url, table)",
            "json": "sinks.json_lines(directory)",
            "jsonl": "sinks.json_lines(directory)",
            "list": "sinks.collect()",
            "memory": "sinks.collect()",
            "print": "sinks.logger()",
            "redis": "sinks.redis_stream(stream, url)",
            "spark_frame": "sinks.spark(writer_fn, schema)",
            "stdout": "sinks.logger()",
        },
        "windows": {
            "fixed": "windows.tumbling(size)",
            "global_window": "nothing: without a window all items are one",
            "hop": "windows.sliding(size, slide)",
            "hopping": "windows.sliding(size, slide)",
            "session_window": "windows.session(gap)",
            "sessions": "windows.session(gap)",
            "tumble": "windows.tumbling(size)",
        },
    }
)
"""By module what others call its functions."""


def module_hint(module: str, name: str, known: Iterable[str]) -> str:
    """The same as :func:`hint`, for a name that one of our modules does not have."""
    return hint(name, MODULE_IDIOMS[module.rpartition(".")[2]], known)


def hint(name: str, idioms: Mapping[str, str], known: Iterable[str]) -> str:
    """What to write instead of ``name``, as the end of a message; empty if nobody knows."""
    if name in idioms:
        return f": write {idioms[name]}"
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f": did you mean {close[0]!r}?" if close else ""
