"""A pipeline gives the same whether its batches are lists or tables."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import Pipeline, WindowResult, agg, col, it, lit, record, sinks, sources, when, windows
from jetlet.errors import JobFailedError

ROWS = [
    {"id": i, "user": f"user{i % 7}", "price": i * 0.5, "quantity": i % 5, "note": None}
    for i in range(5000)
]


PAIR = record(col("user"), col("quantity"))
"""A key of two parts."""


def rows_of(items, build):
    out = sinks.collect()
    p = Pipeline("columns")
    build(p.read_from(sources.items(items))).write_to(out)
    p.run(on="embedded")
    return out.items


def both(build, rows=ROWS):
    """What comes of the rows as a list, and of the same as a table."""
    table = pa.Table.from_pylist(rows)
    return rows_of(rows, build), rows_of(table, build)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.filter(col("id") % 3 == 0).map(record(user=col("user"), n=col("id") * 2)),
        lambda s: s.map(col("price") * col("quantity")).filter(it > 10.0),
        lambda s: s.filter(col("quantity") > 1).map(lambda row: row["user"]).filter(it != "user3"),
        lambda s: s.map(lambda row: row["id"]).map(it + 1),
        lambda s: s.map(when(col("quantity") == 0).then("none").otherwise(col("user"))),
        lambda s: s.map(it),
        lambda s: s.filter(col("note").is_null()).flat_map(lambda row: [row["id"]] * 2),
        lambda s: s.rebalance(col("user")).map(col("id")),
        lambda s: s.map(10 // col("quantity"), on_error="skip"),
    ],
)
def test_tables_give_what_lists_give(build):
    of_list, of_table = both(build)

    assert sorted(map(repr, of_table)) == sorted(map(repr, of_list))
    assert of_list


def test_error_in_a_table_names_the_item_as_in_a_list():
    messages = []
    for items in (ROWS, pa.Table.from_pylist(ROWS)):
        with pytest.raises(JobFailedError) as caught:
            rows_of(items, lambda s: s.map(1 // (col("id") - 3000), name="divide"))
        messages.append((caught.value.vertex, str(caught.value).split("\n")[0]))
    assert messages[0] == messages[1]


def test_dead_letters_of_a_table_are_those_of_a_list():
    letters = []
    for items in (ROWS, pa.Table.from_pylist(ROWS)):
        bad = sinks.collect()
        rows_of(items, lambda s, bad=bad: s.map(10 // col("quantity"), on_error=bad))
        letters.append(sorted((letter.item["id"], letter.error) for letter in bad.items))
    assert letters[0] == letters[1]
    assert len(letters[0]) == 1000


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 400), st.integers(1, 50))
def test_range_gives_its_numbers_however_it_is_stored(start, step):
    numbers = range(start, 100_000, step)

    found = rows_of(numbers, lambda s: s.map(it * 2).filter(it % 3 != 0))

    assert found == [n * 2 for n in numbers if n * 2 % 3 != 0]


def test_range_beyond_64_bits_stays_a_list():
    numbers = range(2**64, 2**64 + 300)

    assert rows_of(numbers, lambda s: s.filter(it > 2**64)) == list(numbers)[1:]


@pytest.mark.parametrize(
    "operation",
    [
        agg.counting(),
        agg.summing(col("quantity")),
        agg.summing(col("price")),
        agg.averaging(col("quantity")),
        agg.all_of(agg.counting(), agg.summing(col("id") * 2), agg.averaging(col("price"))),
        agg.all_of(agg.counting(), agg.summing(lambda row: row["id"])),
        agg.all_of(agg.summing(col("id") * 2**45), agg.counting()),
        agg.mapping(col("quantity"), agg.summing()),
        agg.counting().and_then(str),
        agg.max_by(col("price")),
        agg.min_by(record(col("quantity"), -col("id"))),
        agg.max_by(col("quantity")).and_then(it.id),
        agg.min_by(col("user")),
        agg.max_by(record(col("quantity") > 2, col("price"))),
        agg.filtering(col("quantity") > 2, agg.max_by(-col("id"))),
        agg.filtering(col("user") == "user1", agg.summing(col("id"))),
        agg.mapping(record(id=-col("id")), agg.max_by(col("id"))),
    ],
)
@pytest.mark.parametrize(
    "key", [None, col("user"), col("quantity"), col("id") % 1000, col("note"), col("price"), PAIR]
)
def test_aggregate_of_a_table_is_that_of_the_list(operation, key):
    def build(stage):
        return (stage if key is None else stage.grouping_key(key)).aggregate(operation)

    of_list, of_table = both(build)

    assert sorted(map(repr, of_table)) == sorted(map(repr, of_list))


def test_sums_beyond_64_bits_are_those_of_python():
    rows = [{"k": i % 2, "n": 2**62 - i} for i in range(1000)]

    of_list, of_table = both(
        lambda s: s.grouping_key(col("k")).aggregate(agg.summing(col("n"))), rows
    )

    assert sorted(of_list) == sorted(of_table)
    assert max(total for _, total in of_table) > 2**64


def test_null_in_a_sum_fails_in_a_table_as_in_a_list():
    rows = [{"n": i if i != 700 else None} for i in range(1000)]
    messages = []
    for items in (rows, pa.Table.from_pylist(rows)):
        with pytest.raises(JobFailedError) as caught:
            rows_of(items, lambda s: s.grouping_key(lit(1)).aggregate(agg.summing(col("n"))))
        messages.append(str(caught.value).split("\n")[0])
    assert messages[0] == messages[1]
    assert "None" in messages[0]


def run_parquet(source, target, build):
    p = Pipeline("files")
    build(p.read_from(sources.parquet(source))).write_to(sinks.parquet(target))
    p.run(on="embedded")
    return pq.read_table(target)


def test_columns_go_from_file_to_file_without_items(tmp_path):
    table = pa.Table.from_pylist(ROWS).drop(["note"])
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=1000)
    build = lambda s: s.filter(col("id") < 4000).map(
        record(user=col("user"), cents=col("price") * 100, id=col("id"))
    )
    plain = lambda s: s.filter(lambda r: r["id"] < 4000).map(
        lambda r: {"user": r["user"], "cents": r["price"] * 100, "id": r["id"]}
    )

    columns = run_parquet(tmp_path / "rows.parquet", tmp_path / "columns", build)
    items = run_parquet(tmp_path / "rows.parquet", tmp_path / "items", plain)

    assert columns.schema == items.schema
    assert columns.sort_by("id") == items.sort_by("id")


def test_types_of_columns_become_what_items_would_have_made_of_them(tmp_path):
    small = pa.table({"n": pa.array([1, None] * 200, pa.int16()), "f": pa.array([0.5] * 400)})
    pq.write_table(small, tmp_path / "small.parquet")

    columns = run_parquet(tmp_path / "small.parquet", tmp_path / "columns", lambda s: s.map(it))
    items = run_parquet(
        tmp_path / "small.parquet", tmp_path / "items", lambda s: s.map(lambda row: row)
    )

    assert columns.equals(items)
    assert columns.schema.field("n").type == pa.int64()


def test_few_rows_take_the_path_of_items():
    assert rows_of(pa.table({"n": [1, 2, 3]}), lambda s: s.map(col("n") + 1)) == [2, 3, 4]


def test_a_rank_that_has_no_order_fails_in_a_table_as_in_a_list():
    rows = [{"n": i if i != 700 else None} for i in range(1000)]
    messages = []
    for items in (rows, pa.Table.from_pylist(rows)):
        with pytest.raises(JobFailedError) as caught:
            rows_of(items, lambda s: s.aggregate(agg.max_by(col("n"))))
        messages.append(str(caught.value).split("\n")[0])
    assert messages[0] == messages[1]


def test_global_sum_is_that_of_the_items():
    of_list, of_table = both(lambda s: s.map(col("quantity")).aggregate(agg.summing()))
    assert of_list == of_table == [sum(row["quantity"] for row in ROWS)]


EVENTS = [
    {"at": i * 7 % 5000 + i // 3, "key": f"k{i % 11}", "value": i % 100, "x": i / 4}
    for i in range(6000)
]


@pytest.mark.parametrize(
    "operation",
    [
        agg.counting(),
        agg.all_of(agg.counting(), agg.summing(col("value"))),
        agg.summing(col("value")),
        agg.averaging(col("value")),
        agg.all_of(agg.counting(), agg.summing(col("x")), agg.averaging(col("value"))),
        agg.all_of(agg.counting(), agg.summing(col("value"))).without_deduct(),
        agg.max_by(record(col("value"), col("x"))),
        agg.min_by(-col("x")),
        agg.filtering(col("value") > 2, agg.max_by(-col("x"))),
        agg.mapping(record(x=-col("x")), agg.max_by(col("x"))),
    ],
)
@pytest.mark.parametrize("key", [col("key"), None])
@pytest.mark.parametrize(
    "window",
    [
        windows.tumbling(1000),
        windows.sliding(1000, 100),
        windows.sliding(1000, 300),
        windows.sliding(100, 1000),
    ],
)
def test_windows_of_a_table_are_those_of_the_list(operation, window, key):
    def build(stage):
        events = stage.add_timestamps(col("at"), 0)
        keyed = events if key is None else events.grouping_key(key)
        return keyed.window(window).aggregate(operation)

    of_list, of_table = both(build, EVENTS)

    assert sorted(map(repr, of_table)) == sorted(map(repr, of_list))
    assert of_list
    assert {type(result) for result in of_table} == {WindowResult}


def test_steps_behind_a_window_are_done_over_its_columns():
    def build(stage):
        return (
            stage.add_timestamps(col("at"), 0)
            .filter(col("value") > 10)
            .grouping_key(col("key"))
            .window(windows.sliding(2000, 500))
            .aggregate(agg.all_of(agg.counting(), agg.summing(col("value"))))
            .filter(it.result[0] > 20)
            .map(record(key=it.key, end=it.end, total=it.result[1]))
        )

    of_list, of_table = both(build, EVENTS)

    assert sorted(map(repr, of_table)) == sorted(map(repr, of_list))
    assert of_list


def test_timestamps_that_are_none_are_refused_alike():
    rows = [{"at": i if i != 500 else None} for i in range(1000)]
    messages = []
    for items in (rows, pa.Table.from_pylist(rows)):
        with pytest.raises(JobFailedError) as caught:
            rows_of(items, lambda s: s.add_timestamps(col("at"), 0).map(it))
        messages.append(str(caught.value).split("\n")[0])
    assert messages[0] == messages[1]
