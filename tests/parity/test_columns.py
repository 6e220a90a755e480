"""Batches that are stored as columns, on every engine: the same as lists give embedded."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jetlet import EmbeddedEngine, Pipeline, agg, col, it, record, sinks, sources, when, windows

ROWS = [
    {
        "id": i,
        "at": i * 7 % 900 + i // 2,
        "user": f"user{i % 13}" if i % 50 else None,
        "price": i * 0.25,
        "quantity": i % 5,
    }
    for i in range(4000)
]


def bag(items):
    return sorted(map(repr, items))


def build(source):
    """Pipelines over the rows, and the sinks of each."""
    p = Pipeline("columns")
    rows = p.read_from(source)
    names = "steps mixed dead letters tables routed keyed total window"
    out = {name: sinks.collect(name=name) for name in names.split()}
    rows.filter(col("quantity") > 1).map(
        record(user=col("user").fill_null("?"), cents=col("price") * col("quantity"))
    ).write_to(out["steps"])
    rows.map(when(col("id") % 2 == 0).then(col("id")).otherwise(-col("id"))).map(
        lambda n: n + 1
    ).write_to(out["mixed"])
    rows.map(100 // col("quantity"), on_error=out["letters"]).write_to(out["dead"])
    rows.map_table(lambda table: table.select(["id"]).slice(0)).write_to(out["tables"])
    rows.rebalance(col("user")).map(col("id") // 3).write_to(out["routed"])
    operation = agg.all_of(agg.counting(), agg.summing(col("id")), agg.averaging(col("price")))
    rows.grouping_key(col("user")).aggregate(operation).write_to(out["keyed"])
    rows.aggregate(operation).write_to(out["total"])
    (
        rows.add_timestamps(col("at"), 0)
        .grouping_key(col("user"))
        .window(windows.sliding(400, 100))
        .aggregate(agg.all_of(agg.counting(), agg.summing(col("quantity"))))
        .filter(it.result[0] > 1)
        .write_to(out["window"])
    )
    return p, out


def results(out):
    found = {name: bag(sink.items) for name, sink in out.items() if name != "letters"}
    letters = sorted((letter.item["id"], letter.error) for letter in out["letters"].items)
    return found | {"letters": letters}


@pytest.fixture(scope="module")
def expected():
    p, out = build(sources.items(ROWS))
    with EmbeddedEngine(workers=1) as engine:
        engine.submit(p).join()
    found = results(out)
    assert all(found.values())
    return found


def test_arrow_table_gives_what_the_list_gives(engine, expected):
    p, out = build(sources.items(pa.Table.from_pylist(ROWS)))

    engine.run(p)

    assert results(out) == expected


def test_parquet_file_gives_what_the_list_gives(engine, expected, tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet", row_group_size=700)
    p, out = build(sources.parquet(tmp_path / "rows.parquet"))

    engine.run(p)

    assert results(out) == expected
