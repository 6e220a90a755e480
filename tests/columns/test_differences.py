"""What columns once did otherwise than items: rows enough for columns, in both forms."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jetlet import Pipeline, agg, col, it, record, sinks, sources, windows
from jetlet.errors import JobFailedError

ROWS = 300
BERLIN = ZoneInfo("Europe/Berlin")


def run(source, build):
    p, out = Pipeline("form"), sinks.collect()
    build(p.read_from(source)).write_to(out)
    p.run(on="embedded", workers=1)
    return out.items


def assert_alike(table, build):
    items, columns = (run(sources.items(x), build) for x in (table.to_pylist(), table))
    assert sorted(map(repr, columns)) == sorted(map(repr, items))
    return columns


def test_keys_of_extension_types_lose_nothing():
    keys = [uuid.UUID(int=n).bytes for n in range(3)]
    parts = [
        pa.table({"k": pa.array([keys[n % 3] for n in range(rows)], pa.uuid())})
        for rows in (60_000, 6_000)
    ]
    counts = run(
        sources.items(pa.concat_tables(parts)),
        lambda s: s.grouping_key(col("k")).aggregate(agg.counting()),
    )
    assert [count for _, count in counts] == [22_000] * 3


def test_keys_of_one_part_stay_tuples_in_windows():
    table = pa.table({"a": ["x", "y"] * 150, "at": range(ROWS)})
    found = assert_alike(
        table,
        lambda s: (
            s.add_timestamps(col("at"), allowed_lag=0)
            .grouping_key(record(col("a")))
            .window(windows.tumbling(10**6))
            .aggregate(agg.counting())
        ),
    )
    assert {window.key for window in found} == {("x",), ("y",)}


@pytest.mark.parametrize(
    "values",
    [
        pa.array([Decimal("4.00")] * ROWS, pa.decimal128(10, 2)),
        pa.array([dt.timedelta(seconds=4)] * ROWS, pa.duration("us")),
        pa.array([4, 5, None] * 100, pa.int8()),
    ],
    ids=lambda array: str(array.type),
)
def test_division_is_that_of_the_type(values):
    assert_alike(pa.table({"a": values}), lambda s: s.map(col("a") / 2))


@pytest.mark.parametrize(
    "when",
    [
        dt.datetime(2050, 7, 1, 10, tzinfo=dt.UTC),
        dt.datetime(2020, 7, 1, 10, tzinfo=dt.UTC),
        dt.datetime(1890, 7, 1, 10, tzinfo=dt.UTC),
    ],
    ids=lambda when: str(when.year),
)
def test_clocks_show_what_they_show_to_python(when):
    table = pa.table({"a": pa.array([when] * ROWS, pa.timestamp("us", "Europe/Berlin"))})
    assert_alike(table, lambda s: s.map(record(h=col("a").hour(), s=col("a").second())))


def test_times_in_the_hour_that_comes_twice_are_compared_as_python_does():
    kind = pa.timestamp("us", "Europe/Berlin")
    first = dt.datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN, fold=0)
    second = dt.datetime(2020, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)
    table = pa.table({"a": pa.array([first] * ROWS, kind), "b": pa.array([second] * ROWS, kind)})
    assert_alike(table, lambda s: s.map(col("a") < col("b")))


def test_a_range_beyond_64_bits_does_not_wrap_around():
    numbers = range(2**63 - 10, 2**63 + ROWS)
    assert run(sources.items(numbers), lambda s: s.filter(it != 3)) == list(numbers)


@pytest.mark.parametrize("rows", [ROWS, 256])
def test_a_sink_takes_of_columns_what_it_takes_of_items(tmp_path, rows):
    table = pa.table({"a": ["12"] * rows, "b": range(rows)})
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    p = Pipeline("sink")
    kept = p.read_from(sources.items(table)).filter(col("b") >= 0)
    kept.write_to(sinks.parquet(tmp_path / "out", schema=schema))
    with pytest.raises(JobFailedError):
        p.run(on="embedded")

    wide = Pipeline("wide")
    narrow = pa.table({"a": pa.array(range(rows), pa.int16())})
    target = sinks.parquet(tmp_path / "wide", schema=pa.schema([("a", pa.float64())]))
    wide.read_from(sources.items(narrow)).filter(col("a") >= 0).write_to(target)
    wide.run(on="embedded")
    assert pq.read_table(tmp_path / "wide").column("a").to_pylist() == list(range(rows))


def test_a_schema_of_map_table_goes_by_name():
    table = pa.table({"a": ["x"] * ROWS, "at": range(ROWS)})
    schema = pa.schema([("at", pa.int64())])
    assert_alike(table, lambda s: s.map_table(lambda t: t, schema=schema))
