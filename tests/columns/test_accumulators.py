"""Aggregation over columns: the processors behave under every condition, and combine both ways."""

from __future__ import annotations

from functools import partial

import pytest

import jetlet.columns.groups
import jetlet.columns.steps
from jetlet import agg, col
from jetlet.columns.accumulators import GroupedColumns, accumulator_of
from jetlet.columns.arrow import tree_of
from jetlet.columns.items import items_table
from jetlet.processors.aggregate import AccumulateByKeyProcessor, AccumulateProcessor
from jetlet.testing import verify_processor

ROWS = [{"k": f"key{i % 3}", "n": i, "x": i / 2} for i in range(40)]
OPERATION = agg.all_of(agg.counting(), agg.summing(col("n")), agg.averaging(col("x")))


@pytest.fixture(autouse=True)
def _columns_for_few_rows(monkeypatch):
    monkeypatch.setattr(jetlet.columns.steps, "LEAST_ROWS", 1)


def expected(rows):
    return (len(rows), sum(r["n"] for r in rows), sum(r["x"] for r in rows) / len(rows))


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1]])
def test_groups_are_the_same_under_all_conditions(rows):
    groups = {key: [r for r in rows if r["k"] == key] for key in {r["k"] for r in rows}}

    verify_processor(
        partial(AccumulateByKeyProcessor, [col("k")], OPERATION, is_final=True),
        input=rows,
        expect_output=[(key, expected(group)) for key, group in groups.items()],
        order_matters=False,
    )


def test_total_is_the_same_under_all_conditions():
    verify_processor(
        partial(AccumulateProcessor, OPERATION, is_final=True),
        input=ROWS,
        expect_output=[expected(ROWS)],
    )


def test_accumulators_are_those_of_the_operation():
    operation = agg.all_of(agg.counting(), agg.averaging(col("n")))
    table = items_table(ROWS)

    assert accumulator_of(operation.shape, table) == [40, [40, 780]]
    grouped = GroupedColumns(tree_of(col("k")), operation.shape)
    grouped.add(table)
    entries = dict(entry for batch in grouped.take(2) for entry in batch)
    assert entries["key0"] == [14, [14, sum(range(0, 40, 3))]]
    assert list(grouped.take(2)) == []


def test_groups_of_many_batches_are_one_for_each_key(monkeypatch):
    monkeypatch.setattr(jetlet.columns.groups, "ROWS_AT_ONCE", 10)
    grouped = GroupedColumns(tree_of(col("k")), OPERATION.shape)
    for start in range(0, 40, 4):
        grouped.add(items_table(ROWS[start : start + 4]))
    entries = [entry for batch in grouped.take(100) for entry in batch]
    assert sorted(key for key, _ in entries) == ["key0", "key1", "key2"]
    assert sum(acc[0] for _, acc in entries) == 40


def test_adapted_operation_is_not_taken_for_the_one_below():
    assert agg.filtering(col("n") > 1, agg.counting()).shape is None
    assert agg.mapping(col("n"), agg.summing()).shape is None
    assert agg.all_of(agg.counting(), agg.min_by(col("n"))).shape is None
