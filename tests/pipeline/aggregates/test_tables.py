"""Tables of accumulators are combined and deducted as single accumulators are."""

from __future__ import annotations

import operator
from collections import Counter

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import agg

ITEMS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3)), max_size=12)


def value(item):
    return item[1]


def own():
    return agg.of(
        create=Counter,
        accumulate=lambda acc, item: acc + Counter([item[1]]),
        combine=lambda left, right: left + right,
        deduct=lambda left, right: left - right,
        export=dict,
    )


OPERATIONS = {
    "counting": agg.counting(),
    "summing": agg.summing(value),
    "averaging": agg.averaging(value),
    "all": agg.all_of(agg.counting(), agg.summing(value), agg.linear_trend(value, value)),
    "nested": agg.all_of(agg.summing(value), agg.all_of(agg.averaging(value), agg.counting())),
    "filtered": agg.filtering(lambda item: item[1] > 0, agg.counting()),
    "mapped": agg.mapping(value, agg.all_of(agg.summing(), agg.counting())),
    "flat": agg.flat_mapping(lambda item: range(abs(item[1])), agg.counting()),
    "all with filtered": agg.all_of(
        agg.filtering(lambda item: item[1] > 0, agg.counting()), agg.summing(value)
    ),
    "reducing": agg.reducing(10, lambda a, i: a + i[1], lambda a, b: a + b - 10, None),
    "reducing by add": agg.reducing(0, lambda a, i: a + i[1], operator.add, operator.sub),
    "then": agg.all_of(agg.counting(), agg.summing(value)).and_then(list),
    "own": own(),
    "list": agg.all_of(agg.to_list(value).and_then(sorted), agg.counting()),
}
DEDUCTING = [name for name, operation in OPERATIONS.items() if operation.deduct is not None]


def table_of(operation, items):
    table = {}
    operation.keyed_accumulator()(table, [item[0] for item in items], items)
    return table


def exported(operation, table):
    return {key: operation.export(acc) for key, acc in table.items()}


def one_by_one(operation, items):
    """The results by key, by the plain functions of the operation."""
    accs = {}
    for item in items:
        acc = accs.get(item[0])
        accs[item[0]] = operation.accumulate[0](operation.create() if acc is None else acc, item)
    return exported(operation, accs)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
@given(first=ITEMS, second=ITEMS, third=ITEMS)
def test_combining(name, copies, first, second, third):
    operation = OPERATIONS[name]
    combine = operation.table_combiner(copies=copies)
    tables = [table_of(operation, items) for items in (first, second, third)]
    before = [exported(operation, table) for table in tables]
    total = {}
    for table in tables:
        combine(total, table.items())
    assert exported(operation, total) == one_by_one(operation, first + second + third)
    if copies:
        assert [exported(operation, table) for table in tables] == before


@pytest.mark.parametrize("name", DEDUCTING)
@given(frames=st.lists(ITEMS, max_size=5))
def test_deducting(name, frames):
    operation = OPERATIONS[name]
    combine, deduct = operation.table_combiner(copies=True), operation.table_deductor()
    tables = [table_of(operation, items) for items in frames]
    total, last = {}, {}
    for number, table in enumerate(tables):
        combine(total, table.items())
        last.update(dict.fromkeys(table, number))
    for number, table in enumerate(tables):
        deduct(total, table.items(), last, number)
        rest = [item for items in frames[number + 1 :] for item in items]
        # A key that has no items left is gone, one that has some is there, whatever its value.
        assert exported(operation, total) == one_by_one(operation, rest)
    assert total == {}
    if operation.item_count is None:
        assert last == {}


@pytest.mark.parametrize(
    ("name", "knows"),
    [
        ("counting", True),
        ("averaging", True),
        ("nested", True),
        ("mapped", True),
        ("then", True),
        ("summing", False),
        ("filtered", False),
        ("flat", False),
        ("all with filtered", False),
    ],
)
def test_which_operations_know_how_many_items_they_have_seen(name, knows):
    operation = OPERATIONS[name]
    assert (operation.item_count is not None) == knows
    if knows:
        table = table_of(operation, [("a", 1), ("a", -1), ("b", 2)])
        assert {key: operation.item_count(acc) for key, acc in table.items()} == {"a": 2, "b": 1}


def test_a_co_aggregation_knows_if_all_of_its_parts_do():
    both = agg.co_aggregate(agg.counting(), agg.averaging())
    acc = both.accumulate[1](both.accumulate[0](both.create(), "x"), 5)
    assert both.item_count(acc) == 2
    assert agg.co_aggregate(agg.counting(), agg.summing()).item_count is None


def test_operations_travel_with_their_texts():
    operation = cloudpickle.loads(cloudpickle.dumps(OPERATIONS["nested"]))
    table = table_of(operation, [("a", 1), ("a", 3)])
    operation.table_combiner(copies=True)(table, table_of(operation, [("a", 2)]).items())
    assert exported(operation, table) == {"a": (6, (2.0, 3))}
    operation.table_deductor()(table, table_of(operation, [("a", 2)]).items(), {}, 0)
    assert exported(operation, table) == {"a": (4, (2.0, 2))}
