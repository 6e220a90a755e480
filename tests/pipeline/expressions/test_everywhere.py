"""An expression stands wherever a function can: each place with it, and with a lambda that says the
same; of items, and of a table."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from jetlet import JoinClause, Pipeline, agg, it, record, sinks, sources, windows

ROWS = [{"k": "abc"[n % 3], "n": n, "at": n * 10, "tags": [n, n + 1]} for n in range(200)]
KEY = (it.k, lambda row: row["k"])
NUMBER = (it.n * 2 - 1, lambda row: row["n"] * 2 - 1)
PARTS = (record(it.k, it.n % 2), lambda row: (row["k"], row["n"] % 2))
IS_SMALL = (it.n % 7 < 3, lambda row: row["n"] % 7 < 3)
RESULT = (it.result, lambda window: window.result)
BOTH = (record(it[0].n, it[1][1]), lambda row, other: (row["n"], other[1]))


def timed(s, f):
    return s.add_timestamps(f(it.at, lambda row: row["at"]))


async def later(row):
    await asyncio.sleep(0)
    return row["n"]


def names(s):
    return s._pipeline.read_from(sources.items([("a", 1), ("b", 2)], name="names"))


def total(state, key, row):
    state.append(row["n"])
    return (key, sum(state))


def tens(state):
    return len(state) == 10


PLACES = {
    "map": lambda s, f: s.map(f(*NUMBER)),
    "filter": lambda s, f: s.filter(f(*IS_SMALL)),
    "flat_map": lambda s, f: s.flat_map(f(it.tags.explode(), lambda row: row["tags"])),
    "on_error": lambda s, f: s.map(f(100 // it.n, lambda row: 100 // row["n"]), on_error="skip"),
    "sort": lambda s, f: s.sort(f(-it.n, lambda row: -row["n"])),
    "rebalance": lambda s, f: s.rebalance(f(*KEY)),
    "key": lambda s, f: s.grouping_key(f(*KEY)).aggregate(agg.counting()),
    "key of parts": lambda s, f: s.grouping_key(f(*PARTS)).aggregate(agg.counting()),
    "map_stateful": lambda s, f: s.grouping_key(f(*KEY)).map_stateful(list, total),
    "filter_stateful": lambda s, f: s.grouping_key(f(*PARTS)).filter_stateful(list, total),
    "flat_map_stateful": lambda s, f: s.grouping_key(f(*KEY)).flat_map_stateful(list, total),
    "drop_when": lambda s, f: s.grouping_key(f(*KEY)).map_stateful(list, total, drop_when=tens),
    "drop_when is one": lambda s, f: s.grouping_key(f(*KEY)).map_stateful(
        list, total, drop_when=f(it.len() == 10, tens)
    ),
    "on_end": lambda s, f: s.grouping_key(f(*KEY)).flat_map_stateful(
        list, lambda *_: (), on_end=lambda state, key: [(key, len(state))]
    ),
    "ttl": lambda s, f: timed(s, f).grouping_key(f(*KEY)).map_stateful(list, total, ttl=20),
    "without a key": lambda s, f: s.filter(f(*IS_SMALL)).map_stateful(
        list, lambda state, row: total(state, 0, row)
    ),
    "rolling": lambda s, f: s.grouping_key(f(*KEY)).rolling_aggregate(agg.summing(f(*NUMBER))),
    "keyed distinct": lambda s, f: (
        s.grouping_key(f(*PARTS)).distinct().map(lambda row: (row["k"], row["n"] % 2))
    ),
    "batch_by_key": lambda s, f: (
        s.grouping_key(f(*KEY)).batch_by_key(200).map(lambda group: (group[0], len(group[1])))
    ),
    "map_async": lambda s, f: s.grouping_key(f(*KEY)).map_async(lambda key, row: later(row)),
    "process": lambda s, f: s.grouping_key(f(*KEY)).process(
        lambda context, _, row: context.emit((context.key, row["n"]))
    ),
    "hash_join": lambda s, f: s.hash_join(
        names(s), f(*KEY), f(it[0], lambda name: name[0]), to_output=lambda row, name: (row, name)
    ),
    "inner_hash_join": lambda s, f: s.inner_hash_join(
        names(s), f(*KEY), f(*NAME), to_output=f(*BOTH)
    ),
    "JoinClause": lambda s, f: s.inner_hash_join(JoinClause(names(s), f(*KEY), f(*NAME))),
    "interval_join": lambda s, f: (
        timed(s, f)
        .grouping_key(f(*KEY))
        .interval_join(timed(s, f).grouping_key(f(*KEY)), -30, 30, f(*PAIR))
    ),
    "tumbling": lambda s, f: (
        timed(s, f)
        .grouping_key(f(*KEY))
        .window(windows.tumbling(100))
        .aggregate(agg.summing(f(*NUMBER)))
    ),
    "sliding": lambda s, f: (
        timed(s, f)
        .grouping_key(f(*PARTS))
        .window(windows.sliding(100, 20))
        .aggregate(agg.max_by(f(*NUMBER)))
    ),
    "session": lambda s, f: (
        timed(s, f)
        .grouping_key(f(*KEY))
        .window(windows.session(50))
        .aggregate(agg.to_list(f(*NUMBER)))
    ),
    "window of all": lambda s, f: (
        timed(s, f)
        .window(windows.tumbling(100))
        .aggregate(agg.averaging(f(*NUMBER)))
        .map(f(*RESULT))
    ),
    "window join": lambda s, f: (
        timed(s, f)
        .grouping_key(f(*KEY))
        .window(windows.tumbling(100))
        .inner_join(timed(s, f).grouping_key(f(*KEY)), f(*PAIR))
    ),
    "aggregate2": lambda s, f: s.grouping_key(f(*KEY)).aggregate2(
        agg.counting(), names(s).grouping_key(f(*NAME)), agg.summing(f(it[1], lambda name: name[1]))
    ),
    "to_dict": lambda s, f: s.aggregate(agg.to_dict(f(it.n, lambda row: row["n"]), f(*KEY))),
}
NAME = (it[0], lambda name: name[0])
PAIR = (record(it[0].n, it[1].n), lambda row, other: (row["n"], other["n"]))
OPERATIONS = {
    "averaging": lambda f: agg.averaging(f(*NUMBER)),
    "min_by": lambda f: agg.min_by(f(*NUMBER)),
    "max_by a tuple": lambda f: agg.max_by(f(record(it.k, -it.n), lambda r: (r["k"], -r["n"]))),
    "top_n": lambda f: agg.top_n(3, f(*NUMBER)),
    "bottom_n": lambda f: agg.bottom_n(3, f(*NUMBER)),
    "to_set": lambda f: agg.to_set(f(*KEY)),
    "sorting": lambda f: agg.sorting(f(*NUMBER)),
    "linear_trend": lambda f: agg.linear_trend(
        f(it.at, lambda row: row["at"]), f(it.n, lambda row: row["n"])
    ),
    "mapping": lambda f: agg.mapping(f(*NUMBER), agg.to_list()),
    "filtering": lambda f: agg.filtering(f(*IS_SMALL), agg.counting()),
    "flat_mapping": lambda f: agg.flat_mapping(f(it.tags, lambda row: row["tags"]), agg.summing()),
    "grouping_by": lambda f: agg.grouping_by(f(*KEY), agg.summing(f(*NUMBER))),
    "and_then": lambda f: agg.counting().and_then(f(it * 2, lambda n: n * 2)),
    "approx_distinct": lambda f: agg.approx_distinct(f(*NUMBER)),
    "approx_quantiles": lambda f: agg.approx_quantiles([0.5], f(*NUMBER)),
}
for name, operation in OPERATIONS.items():
    PLACES[f"agg.{name}"] = lambda s, f, op=operation: s.aggregate(op(f))
    PLACES[f"agg.{name} by key"] = lambda s, f, op=operation: s.grouping_key(f(*KEY)).aggregate(
        op(f)
    )


def results(place, choose, rows=ROWS):
    p, out = Pipeline("place"), sinks.collect()
    PLACES[place](p.read_from(sources.items(rows)), choose).write_to(out)
    p.run(on="embedded", workers=1)
    assert out.items
    return sorted(map(repr, out.items))


@pytest.mark.parametrize("place", PLACES)
def test_an_expression_does_what_a_lambda_does(place):
    by_lambda = results(place, lambda expression, function: function)

    assert results(place, lambda expression, function: expression) == by_lambda
    table = pa.Table.from_pylist(ROWS)
    assert results(place, lambda expression, function: expression, table) == by_lambda
