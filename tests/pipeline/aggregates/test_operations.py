"""Every stock operation against plain Python, whichever way its items are accumulated."""

import functools
import importlib.util
import math
import operator
import pickle
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import agg
from jetlet.errors import BadRecordError, InvalidArgumentError, MissingDependencyError
from jetlet.pipeline.functions import whole_item

# Items are pairs of a small number, which is also their key, and any number.
ITEMS = st.tuples(st.integers(-4, 4), st.integers(-(10**20), 10**20) | st.integers(-5, 5))
BATCHES = st.lists(st.lists(ITEMS, max_size=7), max_size=6)
quickly = settings(max_examples=15, deadline=None, derandomize=True)

key = operator.itemgetter(0)
value = operator.itemgetter(1)


def flat(batches):
    return [item for batch in batches for item in batch]


@dataclass(frozen=True)
class Case:
    name: str
    operation: agg.AggregateOperation[Any, Any, Any]
    expected: Callable[[list[Any]], Any]
    """The result for a list of items, in plain Python."""
    view: Callable[[Any], Any] = whole_item
    """What of the result does not depend on the order of the items."""


def slope(items):
    n = len(items)
    if len(set(map(key, items))) < 2:
        return None
    mean_x = Fraction(sum(map(key, items)), n)
    mean_y = Fraction(sum(map(value, items)), n)
    return float(
        sum((x - mean_x) * (y - mean_y) for x, y in items)
        / sum((x - mean_x) ** 2 for x, _ in items)
    )


def quantiles(items):
    ranked = sorted(map(float, map(key, items)))
    return [ranked[max(math.ceil(f * len(ranked)) - 1, 0)] if items else None for f in (0, 0.5, 1)]


def groups(items, of=list):
    table = defaultdict(list)
    for item in items:
        table[key(item)].append(item)
    return {k: of(group) for k, group in table.items()}


def average(items):
    return sum(map(value, items)) / len(items) if items else None


def sorted_groups(result):
    return {k: sorted(group) for k, group in result.items()}


own_mean = agg.of(
    create=lambda: [0, 0],
    accumulate=lambda acc, item: [acc[0] + 1, acc[1] + item[1]],
    combine=lambda left, right: [left[0] + right[0], left[1] + right[1]],
    deduct=lambda left, right: [left[0] - right[0], left[1] - right[1]],
    finish=lambda acc: acc[1] / acc[0] if acc[0] else None,
)

CASES = [
    Case("counting", agg.counting(), len),
    Case("summing", agg.summing(value), lambda items: sum(map(value, items))),
    Case("averaging", agg.averaging(value), average),
    Case("linear_trend", agg.linear_trend(key, value), slope),
    Case("min_by", agg.min_by(), lambda items: min(items, default=None)),
    Case("max_by", agg.max_by(), lambda items: max(items, default=None)),
    Case(
        "min_by key",
        agg.min_by(value),
        lambda items: min(map(value, items), default=None),
        lambda item: item and item[1],
    ),
    Case(
        "max_by key",
        agg.max_by(value),
        lambda items: max(map(value, items), default=None),
        lambda item: item and item[1],
    ),
    Case("top_n", agg.top_n(3), lambda items: sorted(items, reverse=True)[:3]),
    Case("bottom_n", agg.bottom_n(3), lambda items: sorted(items)[:3]),
    Case(
        "top_n key",
        agg.top_n(1, value),
        lambda items: sorted(map(value, items), reverse=True)[:1],
        lambda result: list(map(value, result)),
    ),
    Case(
        "bottom_n key",
        agg.bottom_n(5, value),
        lambda items: sorted(map(value, items))[:5],
        lambda result: list(map(value, result)),
    ),
    Case("pick_any", agg.pick_any(), bool, lambda item: item is not None),
    Case(
        "reducing",
        agg.reducing(0, lambda acc, item: acc ^ item[0], operator.xor, operator.xor),
        lambda items: functools.reduce(operator.xor, map(key, items), 0),
    ),
    Case("to_list", agg.to_list(), sorted, sorted),
    Case("to_list fn", agg.to_list(value), lambda items: sorted(map(value, items)), sorted),
    Case("to_set", agg.to_set(), set),
    Case("to_set fn", agg.to_set(value), lambda items: set(map(value, items))),
    Case(
        "to_dict",
        agg.to_dict(key, value, merge=max),
        lambda items: groups(items, of=lambda group: max(map(value, group))),
    ),
    Case(
        "concatenating",
        agg.mapping(lambda item: str(item[0]), agg.concatenating(" ", "<", ">")),
        lambda items: Counter(str(k) for k, _ in items),
        lambda text: Counter(text[1:-1].split()),
    ),
    Case("sorting", agg.sorting(), sorted),
    Case(
        "sorting key",
        agg.sorting(value, reverse=True),
        lambda items: sorted(map(value, items), reverse=True),
        lambda result: list(map(value, result)),
    ),
    Case("grouping_by", agg.grouping_by(key), lambda i: groups(i, of=sorted), sorted_groups),
    Case(
        "grouping_by nested",
        agg.grouping_by(key, agg.grouping_by(value, agg.counting())),
        lambda items: groups(items, of=lambda group: Counter(map(value, group))),
    ),
    Case(
        "mapping",
        agg.mapping(value, agg.all_of(agg.summing(), agg.max_by())),
        lambda items: (sum(map(value, items)), max(map(value, items), default=None)),
    ),
    Case(
        "filtering",
        agg.filtering(key, agg.counting()),
        lambda items: sum(1 for k, _ in items if k),
    ),
    Case(
        "flat_mapping",
        agg.flat_mapping(lambda item: range(item[0]), agg.summing()),
        lambda items: sum(sum(range(k)) for k, _ in items),
    ),
    Case(
        "all_of",
        agg.all_of(agg.counting(), agg.summing(value), agg.averaging(value)),
        lambda items: (len(items), sum(map(value, items)), average(items)),
    ),
    Case(
        "all_of mixed",
        agg.all_of(
            agg.filtering(key, agg.to_set(value)),
            agg.flat_mapping(whole_item, agg.summing()),
            agg.all_of(agg.top_n(2), own_mean),
        ),
        lambda items: (
            {v for k, v in items if k},
            sum(map(sum, items)),
            (sorted(items, reverse=True)[:2], average(items)),
        ),
    ),
    Case("and_then", agg.counting().and_then(str), lambda items: str(len(items))),
    Case("of", own_mean, average),
]
# A new version of Python has to wait for this library.
HAS_SKETCHES = importlib.util.find_spec("datasketches") is not None
if HAS_SKETCHES:
    CASES += [
        Case("approx_distinct", agg.approx_distinct(), lambda items: len(set(items))),
        Case("approx_quantiles", agg.approx_quantiles([0, 0.5, 1], key), quantiles),
    ]

for_every_operation = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
for_every_invertible = pytest.mark.parametrize(
    "case", [case for case in CASES if case.operation.deduct], ids=lambda case: case.name
)


def accumulated(operation, items):
    acc = operation.create()
    for item in items:
        acc = operation.accumulate[0](acc, item)
    return acc


def result(case, acc):
    exported = case.view(case.operation.export(acc))
    assert case.view(case.operation.finish(acc)) == exported
    return exported


@for_every_operation
@quickly
@given(items=st.lists(ITEMS))
def test_accumulates_items_one_by_one(case, items):
    assert result(case, accumulated(case.operation, items)) == case.expected(items)


@for_every_operation
@quickly
@given(batches=BATCHES)
def test_accumulates_batches_and_leaves_them_alone(case, batches):
    before = deepcopy(batches)
    accumulate = case.operation.batch_accumulator()
    acc = case.operation.create()
    for batch in batches:
        acc = accumulate(acc, batch)
    assert result(case, acc) == case.expected(flat(batches))
    assert batches == before


@for_every_operation
@quickly
@given(batches=BATCHES)
def test_accumulates_by_key(case, batches):
    accumulate = case.operation.keyed_accumulator()
    table = {}
    for batch in batches:
        accumulate(table, map(key, batch), batch)
    assert {k: result(case, acc) for k, acc in table.items()} == groups(
        flat(batches), of=case.expected
    )


@for_every_operation
@quickly
@given(batches=BATCHES)
def test_items_may_be_their_own_keys(case, batches):
    accumulate = case.operation.keyed_accumulator()
    table = {}
    for batch in batches:
        accumulate(table, batch, batch)
    counts = Counter(flat(batches))
    assert {item: result(case, acc) for item, acc in table.items()} == {
        item: case.expected([item] * n) for item, n in counts.items()
    }


@for_every_operation
@quickly
@given(batches=BATCHES, more=st.lists(ITEMS, max_size=4))
def test_combines_partitions_without_changing_the_right_one(case, batches, more):
    operation = case.operation
    total = operation.create()
    rights = [accumulated(operation, batch) for batch in batches]
    for right in rights:
        total = operation.combine(total, right)
        # What the left one is given later must not show in the right one either.
        for item in more:
            total = operation.accumulate[0](total, item)
    assert result(case, total) == case.expected(flat(batches) + more * len(batches))
    assert [result(case, right) for right in rights] == list(map(case.expected, batches))


@for_every_invertible
@quickly
@given(kept=st.lists(ITEMS), removed=st.lists(ITEMS))
def test_deducts_what_was_combined(case, kept, removed):
    operation = case.operation
    left, right = accumulated(operation, kept), accumulated(operation, removed)
    left = operation.deduct(operation.combine(left, right), right)
    assert result(case, left) == case.expected(kept)
    assert result(case, right) == case.expected(removed)


@for_every_operation
@quickly
@given(items=st.lists(ITEMS), more=st.lists(ITEMS))
def test_export_neither_disturbs_nor_follows_the_accumulator(case, items, more):
    acc = accumulated(case.operation, items)
    early = case.operation.export(acc)
    copy = deepcopy(early)
    for item in more:
        acc = case.operation.accumulate[0](acc, item)
    assert early == copy
    assert case.view(early) == case.expected(items)
    assert result(case, acc) == case.expected(items + more)


@for_every_operation
@settings(max_examples=5, deadline=None, derandomize=True)
@given(items=st.lists(ITEMS), more=st.lists(ITEMS))
def test_operation_and_accumulator_can_be_pickled(case, items, more):
    operation = cloudpickle.loads(cloudpickle.dumps(case.operation))
    acc = pickle.loads(pickle.dumps(accumulated(operation, items)))
    acc = operation.batch_accumulator()(acc, more)
    table, again = {None: acc}, more[:2]
    cloudpickle.loads(cloudpickle.dumps(operation.keyed_accumulator()))(
        table, [None] * len(again), again
    )
    assert result(case, table[None]) == case.expected(items + more + again)


def test_which_operations_have_deduct():
    assert {case.name for case in CASES if case.operation.deduct is None} == {
        "min_by",
        "max_by",
        "min_by key",
        "max_by key",
        "top_n",
        "bottom_n",
        "top_n key",
        "bottom_n key",
        "pick_any",
        "to_list",
        "to_list fn",
        "to_set",
        "to_set fn",
        "to_dict",
        "concatenating",
        "sorting",
        "sorting key",
        "grouping_by",
        "grouping_by nested",
        "mapping",
        "all_of mixed",
        "approx_distinct",
        "approx_quantiles",
    } & {case.name for case in CASES}


def test_made_of_operations_without_combine_has_none():
    last = agg.reducing(None, lambda acc, item: item)
    assert last.combine is None
    for operation in (
        agg.all_of(agg.counting(), last),
        agg.co_aggregate(last, agg.counting()),
        agg.grouping_by(key, last),
        agg.mapping(key, last),
    ):
        assert operation.combine is None and operation.deduct is None


def test_none_is_an_item_and_a_key():
    items = [None, None]
    assert agg.to_list().batch_accumulator()([], items) == [None, None]
    acc = accumulated(agg.pick_any(), items)
    assert acc == (None,)
    table = {}
    agg.summing(lambda item: 1).keyed_accumulator()(table, items, items)
    assert table == {None: 2}


def test_an_accumulator_may_be_none():
    latest = agg.reducing(0, lambda acc, item: item)
    table = {}
    latest.keyed_accumulator()(table, "aaa", [1, None, 2])
    assert table == {"a": 2}
    fold = agg.reducing(5, lambda acc, item: None if acc == 5 else "second")
    table = {}
    fold.keyed_accumulator()(table, "aa", [1, 2])
    assert table == {"a": "second"}


def test_sum_of_booleans_is_a_number():
    table = {}
    agg.summing().keyed_accumulator()(table, "ab", [True, False])
    assert [type(total) for total in table.values()] == [int, int]


def test_sums_of_arrays_are_not_changed_after_they_were_given_out():
    np = pytest.importorskip("numpy")
    operation = agg.all_of(agg.summing(), agg.counting())
    accumulate = operation.keyed_accumulator()
    first = np.array([1, 2])
    table = {}
    accumulate(table, "a", [first])
    (early, _) = operation.export(table["a"])
    accumulate(table, "a", [first])
    assert early.tolist() == [1, 2]
    assert first.tolist() == [1, 2]
    assert operation.export(table["a"])[0].tolist() == [2, 4]


def test_top_n_keeps_few_items_and_never_compares_them():
    operation = agg.top_n(10, key=lambda item: item["rank"] % 7919)
    items = [{"rank": n * n} for n in range(2000)]
    acc = operation.create()
    for item in items:
        acc = operation.accumulate[0](acc, item)
        assert len(acc) <= 20
    best = sorted((item["rank"] % 7919 for item in items), reverse=True)[:10]
    assert [item["rank"] % 7919 for item in operation.finish(acc)] == best


def test_linear_trend_of_float_timestamps_is_exact():
    trend = agg.linear_trend(key, value)
    start = 1.7e9
    acc = accumulated(trend, [(start + n / 8, 3.0 * n) for n in range(100)])
    assert trend.export(acc) == 24.0


def test_a_point_that_is_not_finite_leaves_the_trend_with_its_frame():
    trend = agg.linear_trend(key, value)
    good = accumulated(trend, [(0, 0), (1, 2.5)])
    bad = accumulated(trend, [(2, math.inf), (math.nan, 1)])
    both = trend.combine(good, bad)
    assert math.isnan(trend.export(both))
    assert trend.export(trend.deduct(both, bad)) == 2.5


def test_linear_trend_refuses_what_is_no_number():
    with pytest.raises(TypeError, match=r"needs numbers, but got '1\.5'"):
        accumulated(agg.linear_trend(key, value), [(1, "1.5")])


def test_to_dict_refuses_a_key_that_comes_again():
    operation = agg.to_dict(key, value)
    accumulate = operation.accumulate[0]
    left, right = accumulated(operation, [(1, 10)]), accumulated(operation, [(1, 11)])
    for attempt in (
        lambda: accumulate(left, (1, 11)),
        lambda: operation.batch_accumulator()(operation.create(), [(1, 10), (2, 5), (1, 11)]),
        lambda: operation.combine(left, right),
    ):
        with pytest.raises(BadRecordError, match=r"key 1, with the values 10 and 11.*merge="):
            attempt()
    assert operation.export(right) == {1: 11}


def test_concatenating_says_what_it_cannot_join():
    operation = agg.concatenating(", ")
    with pytest.raises(BadRecordError, match=r"got 5 \(int\).*agg\.mapping\(str"):
        operation.export(accumulated(operation, ["a", 5]))


def test_a_key_whose_items_are_all_ignored_has_a_result():
    for operation in (
        agg.filtering(lambda item: False, agg.counting()),
        agg.flat_mapping(lambda item: [], agg.all_of(agg.counting(), agg.to_list())),
    ):
        table = {}
        operation.keyed_accumulator()(table, "ab", [1, 2])
        assert table == {"a": operation.create(), "b": operation.create()}


def test_co_aggregation_has_one_operation_per_input():
    operation = agg.co_aggregate(agg.counting(), agg.summing(value), agg.to_list())
    assert operation.arity == 3
    acc = operation.create()
    acc = operation.accumulate[0](acc, "x")
    acc = operation.batch_accumulator(1)(acc, [(0, 5), (0, 6)])
    acc = operation.accumulate[2](acc, None)
    assert operation.export(acc) == (1, 11, [None])
    table = {}
    operation.keyed_accumulator(1)(table, "ab", [(0, 5), (0, 6)])
    operation.keyed_accumulator(0)(table, "bc", "yz")
    operation.keyed_accumulator(2)(table, "a", "w")
    assert {k: operation.finish(acc) for k, acc in table.items()} == {
        "a": (0, 5, ["w"]),
        "b": (1, 6, []),
        "c": (1, 0, []),
    }
    assert operation.and_then(sum).arity == 3


def test_co_aggregation_combines_and_deducts_input_by_input():
    operation = agg.co_aggregate(agg.counting(), agg.averaging())
    left = operation.accumulate[1](operation.create(), 4)
    right = operation.accumulate[1](operation.accumulate[0](operation.create(), "x"), 8)
    both = operation.combine(left, right)
    assert operation.export(both) == (1, 6.0)
    assert operation.export(operation.deduct(both, right)) == (0, 4.0)
    assert operation.export(right) == (1, 8.0)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: agg.summing("amount"), "fn=lambda item: item.amount"),
        (lambda: agg.averaging(3), "fn=lambda item: item.amount"),
        (lambda: agg.min_by(None), "key=lambda"),
        (lambda: agg.top_n(0), "at least 1, not 0"),
        (lambda: agg.top_n(True), "whole number"),
        (lambda: agg.bottom_n(2.5), "whole number"),
        (lambda: agg.top_n(lambda item: item), "whole number"),
        (lambda: agg.to_list("name"), "fn=lambda item: item.name"),
        (lambda: agg.to_set(()), "fn=lambda"),
        (lambda: agg.to_dict("id", value), "key_fn=lambda"),
        (lambda: agg.to_dict(key, value, merge=1), "merge=lambda old, new"),
        (lambda: agg.concatenating(key), r"agg\.mapping"),
        (lambda: agg.sorting(key=1), "key=lambda"),
        (lambda: agg.grouping_by("country"), "key_fn=lambda"),
        (lambda: agg.grouping_by(key, agg.counting), r"agg\.counting\(\.\.\.\)"),
        (lambda: agg.reducing([], operator.add), r"agg\.of\(create"),
        (lambda: agg.reducing(0, None), "fn=lambda acc, item"),
        (lambda: agg.reducing(0, operator.add, deduct=operator.sub), "combine"),
        (lambda: agg.linear_trend(1, key), "x_fn=lambda"),
        (lambda: agg.mapping(1, agg.counting()), "fn=lambda"),
        (lambda: agg.filtering(None, agg.counting()), "pred=lambda"),
        (lambda: agg.flat_mapping(key, len), "an aggregate operation"),
        (agg.all_of, "at least 1 operation"),
        (lambda: agg.co_aggregate(agg.counting()), "at least 2 operation"),
        (lambda: agg.all_of(agg.counting(), agg.summing), r"agg\.summing\(\.\.\.\)"),
        (
            lambda: agg.all_of(agg.co_aggregate(agg.counting(), agg.counting())),
            "operations with one input",
        ),
    ],
)
def test_refuses_arguments_that_cannot_work(make, advice):
    with pytest.raises(InvalidArgumentError, match=advice):
        make()


@pytest.mark.skipif(not HAS_SKETCHES, reason="datasketches is not installed")
@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: agg.approx_distinct(lg_k=30), "from 7 to 21"),
        (lambda: agg.approx_quantiles(0.5), r"approx_quantiles\(\[0\.5, 0\.99\]\)"),
        (lambda: agg.approx_quantiles([50]), "from 0 to 1"),
        (lambda: agg.approx_quantiles([]), "asks for nothing"),
    ],
)
def test_refuses_sketches_that_cannot_work(make, advice):
    with pytest.raises(InvalidArgumentError, match=advice):
        make()


def test_refuses_coroutine_functions():
    async def amount(item):
        return item

    with pytest.raises(InvalidArgumentError, match="map_async"):
        agg.summing(amount)


@pytest.mark.parametrize("make", [agg.approx_distinct, lambda: agg.approx_quantiles([0.5])])
def test_sketches_need_their_package(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[sketches\]'"):
        make()
