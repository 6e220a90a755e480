"""Expressions over columns give what their Python functions give, or leave it to them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from expression_cases import (
    Failed,
    batches,
    check_columns,
    check_python,
    expected,
    expressions,
    random_batch,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlet import col, it, lit, record, when
from jetlet.columns.arrow import evaluate, tree_of
from jetlet.columns.items import items_table
from jetlet.columns.kernels import LeaveToPython
from jetlet.columns.steps import ColumnSteps
from jetlet.core.table import VALUE, Entry, Table


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches, st.lists(expressions, min_size=10, max_size=10))
def test_columns_give_what_python_gives_or_leave_it_to_python(number, chosen):
    """That is 100,000 cases and more."""
    table = Table.of(random_batch(number, 200))
    items = table.items()
    for expression in chosen:
        wanted = expected(expression, items)
        check_python(expression, items, wanted)
        check_columns(expression, table, wanted)
        good = [i for i, value in enumerate(wanted) if value is not Failed]
        part = table.take(pa.array(good, pa.int64()))
        check_columns(expression, part, [wanted[i] for i in good])


@pytest.mark.parametrize(
    "expression",
    [
        it * 3 + 1,
        it // 7,
        it % 3 != 0,
        -it // 4,
        record(n=it, half=it / 2),
        record(it, record(it + 1, lit(2))),
        when(it % 2 == 0).then(it).otherwise(-it),
        (it > 10) & ~(it == 12),
    ],
)
def test_what_should_be_done_over_columns_is(expression):
    items = list(range(-50, 50))

    assert evaluate(tree_of(expression), items_table(items)).items() == list(map(expression, items))


def test_parts_of_pairs_and_structs_are_columns():
    pairs = [("a", (1, 2.5)), ("b", (2, 0.5))]
    table = items_table(pairs)
    assert evaluate(tree_of(it[1][0] * 2), table).items() == [2, 4]
    assert evaluate(tree_of(it[1]), table).form == Entry((VALUE, VALUE))
    nested = Table.of(pa.record_batch({"at": pa.array([{"x": 1}, None])}))
    assert evaluate(tree_of(col("at")["x"] + 1), nested).items() == [2, None]


@pytest.mark.parametrize("expression", [it + 1, 10 // it, it * 2**62])
def test_what_fails_for_an_item_is_left_to_python(expression):
    table = items_table([0, 5, 2**63 - 1])

    with pytest.raises((LeaveToPython, pa.ArrowException)):
        evaluate(tree_of(expression), table)


def test_steps_are_taken_up_to_the_first_that_is_not_for_columns():
    steps = [("map", it + 1), ("filter", it % 2 == 0), ("map", lambda x: x), ("map", it)]
    columns = ColumnSteps(steps)
    assert len(columns) == 2
    table = items_table(list(range(1000)))
    assert columns.apply(table).items() == list(range(2, 1001, 2))


def test_few_rows_are_left_to_python():
    assert ColumnSteps([("map", it + 1)]).apply(items_table([1, 2, 3])) is None


def test_filter_keeps_what_is_true():
    numbers = Table.of_arrays([pa.array([0, 1, None, 2] * 100)], VALUE)

    assert ColumnSteps([("filter", it)]).apply(numbers).items() == [1, 2] * 100
    assert ColumnSteps([("filter", it > 1)]).apply(numbers).items() == [2] * 100


def test_timestamps_stay_with_their_items():
    table = Table.of_arrays([pa.array(range(200))], VALUE, pa.array(range(1000, 1200)))

    behind = ColumnSteps([("filter", it >= 198), ("map", it * 2)]).apply(table)

    assert behind.items() == [(1198, 396), (1199, 398)]


@pytest.mark.parametrize("words", [["a"], ["a", "b"], ["a", "b", "c"], ["b", "c"], []])
@pytest.mark.parametrize("expression", [it == "a", it != "a", ~(it == "a"), it.is_in(["a", "c"])])
def test_what_is_asked_of_words_is_the_same_for_their_rows(words, expression):
    rows = [*words * 3, None, *words]
    column = pa.array(rows, pa.string()).dictionary_encode()

    found = evaluate(tree_of(expression), Table.of_arrays([column], VALUE))

    assert found.items() == [expression(each) for each in rows]
