"""map_table: functions over tables, given items that are stored either way."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from jetlet import Pipeline, col, record, sinks, sources
from jetlet.core import Watermark
from jetlet.errors import InvalidArgumentError, JobFailedError
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.table_map import TableMapProcessor
from jetlet.testing import verify_processor

FAIL = ErrorPolicy("my-step")
ROWS = [{"k": f"k{i % 3}", "n": i} for i in range(30)]


def doubled(table):
    return table.append_column("twice", pc.multiply(table["n"], 2))


def odd_only(table):
    return table.filter(pc.equal(pc.bit_wise_and(table["n"], 1), 1))


def no_sevens(table):
    if 7 in table["n"].to_pylist():
        raise ValueError("seven")
    return table


def run(items, fn, **options):
    out = sinks.collect()
    p = Pipeline("tables")
    p.read_from(sources.items(items)).map_table(fn, **options).write_to(out)
    p.run(on="embedded")
    return out.items


def test_rows_of_the_table_that_is_returned_are_emitted_under_all_conditions():
    verify_processor(
        partial(TableMapProcessor, doubled, None, policy=FAIL),
        input=[*ROWS, Watermark(5)],
        expect_output=[*({**row, "twice": 2 * row["n"]} for row in ROWS), Watermark(5)],
    )


def test_timestamps_stay_if_there_are_as_many_rows():
    verify_processor(
        partial(TableMapProcessor, doubled, None, policy=FAIL, takes_events=True),
        input=[(i, row) for i, row in enumerate(ROWS)],
        expect_output=[(i, {**row, "twice": 2 * row["n"]}) for i, row in enumerate(ROWS)],
    )


def test_rows_that_cannot_be_told_apart_have_the_latest_timestamp():
    processor = TableMapProcessor(odd_only, None, policy=FAIL, takes_events=True)
    found = processor._results([(i, row) for i, row in enumerate(ROWS)])
    assert {time for table in found for time, _ in table} == {29}
    assert [row["n"] for table in found for _, row in table] == list(range(1, 30, 2))


def test_only_items_that_fail_alone_are_put_aside():
    verify_processor(
        partial(
            TableMapProcessor,
            no_sevens,
            None,
            policy=ErrorPolicy("my-step", "skip"),
        ),
        input=ROWS,
        expect_output=[row for row in ROWS if row["n"] != 7],
    )


@pytest.mark.parametrize("items", [ROWS, pa.Table.from_pylist(ROWS)])
def test_table_goes_in_and_comes_out_in_a_pipeline(items):
    assert run(items, doubled) == [{**row, "twice": 2 * row["n"]} for row in ROWS]
    assert run(items, lambda table: table.slice(0, 0)) == []


def test_columns_reach_the_function_as_they_are():
    seen = []
    table = pa.table({"n": pa.array(range(1000), pa.int16())})

    run(table, lambda table: seen.append(table.schema) or table)

    assert {str(schema.field("n").type) for schema in seen} == {"int16"}


def test_columns_that_expressions_make_are_taken_and_given_on():
    out = sinks.collect()
    p = Pipeline("tables")
    (
        p.read_from(sources.items(pa.Table.from_pylist(ROWS * 20)))
        .filter(col("n") > 5)
        .map_table(doubled)
        .map(record(n=col("twice") + 1))
        .write_to(out)
    )
    p.run(on="embedded")
    assert out.items == [{"n": 2 * row["n"] + 1} for row in ROWS * 20 if row["n"] > 5]


def test_schema_says_of_what_type_columns_are():
    seen = set()
    schema = pa.schema([("n", pa.float64())])

    found = run([{"n": 1}, {"n": None}], lambda t: seen.add(t.schema) or t, schema=schema)

    assert seen == {schema}
    assert found == [{"n": 1.0}, {"n": None}]


def test_frame_that_can_be_exported_is_a_table():
    class Frame:
        def __init__(self, table):
            self._table = table

        def __arrow_c_stream__(self, requested_schema=None):
            return self._table.__arrow_c_stream__(requested_schema)

    assert run(ROWS, Frame) == ROWS


@pytest.mark.parametrize(
    ("items", "fn", "said"),
    [
        ([1, 2], doubled, "items that are dicts"),
        (ROWS, lambda table: 5, "must return a table"),
    ],
)
def test_mistake_fails_the_job_and_says_what_to_write(items, fn, said):
    with pytest.raises(JobFailedError, match=said):
        run(items, fn)


def test_what_is_no_function_is_refused_at_once():
    with pytest.raises(InvalidArgumentError, match="map_table"):
        run(ROWS, 5)
    with pytest.raises(InvalidArgumentError, match=r"schema=pyarrow\.schema"):
        run(ROWS, doubled, schema={"n": int})
