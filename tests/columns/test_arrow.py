"""Expressions over columns give what their Python functions give, or leave it to them."""

from __future__ import annotations

import datetime as dt
import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import col, it, lit, record, when
from jetlet.columns.arrow import LeaveToPython, can_compile, evaluate, tree_of
from jetlet.columns.items import items_table
from jetlet.columns.steps import ColumnSteps
from jetlet.core.table import VALUE, Entry, Table

EXTREMES = [0, 1, -1, 2, 3, -7, 10, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
integers = st.sampled_from(EXTREMES) | st.integers(-100, 100) | st.none()
floats = (
    st.sampled_from([0.0, -0.0, 1.0, -1.5, 0.1, 1e308, math.inf, -math.inf, math.nan])
    | st.floats(-100, 100)
    | st.none()
)
texts = st.text(st.sampled_from("aAbß\u0130\u03c3\u03a3 é\x1c\u2003z"), max_size=6) | st.none()
moments = (
    st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))  # noqa: DTZ001
    | st.none()
)
TYPES = {
    "i": (integers, pa.int64()),
    "j": (integers, pa.int64()),
    "small": (st.integers(-128, 127) | st.none(), pa.int8()),
    "f": (floats, pa.float64()),
    "g": (floats, pa.float64()),
    "s": (texts, pa.string()),
    "t": (texts, pa.large_string()),
    "b": (st.booleans() | st.none(), pa.bool_()),
    "c": (st.booleans() | st.none(), pa.bool_()),
    "at": (moments, pa.timestamp("us")),
}


@st.composite
def tables(draw):
    size = draw(st.integers(1, 6))
    columns = {
        name: pa.array(draw(st.lists(values, min_size=size, max_size=size)), kind)
        for name, (values, kind) in TYPES.items()
    }
    return Table.of(pa.record_batch(columns))


def numbers(depth):
    leaf = st.sampled_from([col("i"), col("j"), col("small"), col("f"), col("g"), col("b")])
    leaf |= st.sampled_from([lit(0), lit(1), lit(3), lit(-7), lit(2**62), lit(0.5), lit(True)])
    leaf |= st.sampled_from(
        [
            col("s").len(),
            col("at").year(),
            col("at").microsecond(),
            col("at").epoch_ms(),
            col("at").weekday(),
        ]
    )
    if depth == 0:
        return leaf
    inner = numbers(depth - 1)
    return (
        leaf
        | st.builds(lambda a, b: a + b, inner, inner)
        | st.builds(lambda a, b: a - b, inner, inner)
        | st.builds(lambda a, b: a * b, inner, inner)
        | st.builds(lambda a, b: a / b, inner, inner)
        | st.builds(lambda a, b: a // b, inner, inner)
        | st.builds(lambda a, b: a % b, inner, inner)
        | st.builds(lambda a: -a, inner)
        | st.builds(abs, inner)
        | st.builds(lambda a, b: a.fill_null(b), inner, inner)
        | st.builds(lambda a: a.cast(int), inner)
        | st.builds(lambda a: a.cast(float), inner)
        | st.builds(lambda c, a, b: when(c).then(a).otherwise(b), truths(depth - 1), inner, inner)
    )


def truths(depth):
    leaf = st.sampled_from([col("b"), col("c"), col("i").is_null(), col("s").is_in(["a", "b"])])
    leaf |= st.sampled_from([col("i").is_in([1, 2**62]), col("s").startswith("a")])
    leaf |= st.sampled_from([col("t").contains("ß"), col("s") < col("t"), col("s") == "a"])
    leaf |= st.sampled_from([col("i") == col("f"), col("s").endswith("A"), col("i").cast(bool)])
    if depth == 0:
        return leaf
    inner, number = truths(depth - 1), numbers(depth - 1)
    return (
        leaf
        | st.builds(lambda a, b: a & b, inner, inner)
        | st.builds(lambda a, b: a | b, inner, inner)
        | st.builds(lambda a: ~a, inner)
        | st.builds(lambda a, b: a < b, number, number)
        | st.builds(lambda a, b: a >= b, number, number)
        | st.builds(lambda a, b: a != b, number, number)
    )


words = st.sampled_from(
    [
        col("s").upper(),
        col("s").lower(),
        col("s").strip(),
        col("t").strip("aA"),
        col("s").replace("a", "bb"),
        col("s")[1:3],
        col("s")[2:],
        col("s") + col("t"),
        col("s").concat("-", col("t")),
        col("i").cast(str),
        col("s").fill_null("none"),
    ]
)


def exactly(value):
    """Told apart by type, and -0.0 from 0.0, while a NaN is like another."""
    return type(value), repr(value)


@settings(max_examples=400)
@given(tables(), numbers(2) | truths(2) | words)
def test_columns_give_what_python_gives_or_leave_it_to_python(table, expression):
    tree = tree_of(expression)
    assert can_compile(tree)
    try:
        found = evaluate(tree, table)
    except (LeaveToPython, pa.ArrowException, OverflowError):
        return
    expected = [expression(item) for item in table.items()]
    assert list(map(exactly, found.items())) == list(map(exactly, expected))


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
