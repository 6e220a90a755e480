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
        "batch": ".map_batched(fn, max_batch)",
        "cache": "nothing: a stage that several others read is computed once in a job",
        "coalesce": ".rebalance()",
        "cogroup": ".grouping_key(fn).aggregate2(op, other.grouping_key(fn), other_op)",
        "collect": ".write_to(out), where out = sinks.collect(); after the run look at out.items",
        "count": ".aggregate(agg.counting())",
        "drop_duplicates": ".distinct(), or .grouping_key(fn).distinct() for one item of each key",
        "dropDuplicates": ".distinct(), or .grouping_key(fn).distinct() for one item of each key",
        "explode": ".flat_map(fn)",
        "filter_map": ".map(fn) and .filter(fn)",
        "flatMap": ".flat_map(fn)",
        "fold": ".aggregate(agg.reducing(identity, fn))",
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
        "map_partitions": ".map_batched(fn), or .map_using_service(...) for what is made once",
        "mapPartitions": ".map_batched(fn), or .map_using_service(...) for what is made once",
        "max": ".aggregate(agg.max_by(key))",
        "mean": ".aggregate(agg.averaging(fn))",
        "min": ".aggregate(agg.min_by(key))",
        "order_by": ".sort(key)",
        "orderBy": ".sort(key)",
        "output": ".write_to(sink)",
        "partition_by": ".rebalance(key_fn)",
        "print": ".write_to(sinks.logger())",
        "reduce": ".aggregate(agg.reducing(identity, fn)), or .rolling_aggregate(...) in a stream",
        "reduce_by_key": ".grouping_key(fn).aggregate(agg.summing(fn)), or another operation",
        "reduceByKey": ".grouping_key(fn).aggregate(agg.summing(fn)), or another operation",
        "repartition": ".rebalance()",
        "scan": ".map_stateful(create, fn)",
        "select": ".map(fn)",
        "shuffle": ".rebalance()",
        "sink": ".write_to(sink)",
        "sort_by": ".sort(key)",
        "sortBy": ".sort(key)",
        "sum": ".aggregate(agg.summing(fn))",
        "tap": ".peek()",
        "to": ".write_to(sink)",
        "union": ".merge(other)",
        "unionAll": ".merge(other)",
        "unique": ".distinct()",
        "where": ".filter(fn)",
        "window_all": ".window(definition)",
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


def hint(name: str, idioms: Mapping[str, str], known: Iterable[str]) -> str:
    """What to write instead of ``name``, as the end of a message; empty if nobody knows."""
    if name in idioms:
        return f": write {idioms[name]}"
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f": did you mean {close[0]!r}?" if close else ""
