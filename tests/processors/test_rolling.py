from __future__ import annotations

from functools import partial

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import agg
from jetlet.errors import ItemFailedError, UnstableKeyError
from jetlet.pipeline.errors import DeadLetter
from jetlet.pipeline.functions import whole_item
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.rolling import RollingAggregateProcessor
from jetlet.testing import verify_processor

OPERATIONS = {
    "counting": agg.counting(),
    "summing": agg.summing(),
    "averaging": agg.averaging(),
    "max_by": agg.max_by(whole_item),
    "to_list": agg.to_list(),
    "to_set": agg.to_set(),
    "all_of": agg.all_of(agg.counting(), agg.summing(lambda item: 2 * item)),
    "top_n": agg.top_n(2, whole_item),
    "own": agg.of(create=list, accumulate=lambda acc, item: [*acc, item], export=tuple),
    "in_place": agg.of(create=list, accumulate=lambda acc, item: acc.append(item) or acc),
}


def parity(item):
    return item % 2


def plain(operation, items, key_fn=None):
    """What a loop written by hand gives."""
    table: dict[object, object] = {}
    results = []
    for item in items:
        key = key_fn(item) if key_fn is not None else None
        accumulator = table[key] if key in table else operation.create()
        table[key] = operation.accumulate[0](accumulator, item)
        result = operation.export(table[key])
        results.append(result if key_fn is None else (key, result))
    return results


@pytest.mark.parametrize("action", ["fail", "skip"])
@pytest.mark.parametrize("key_fn", [None, parity, whole_item])
def test_results_of_events_have_their_times(key_fn, action):
    for operation in (OPERATIONS["counting"], OPERATIONS["own"], OPERATIONS["in_place"]):
        verify_processor(
            partial(
                RollingAggregateProcessor,
                operation,
                key_fn,
                policy=ErrorPolicy("rolling", action, takes_events=True),
            ),
            input=[(7, 3), (5, 1), (9, 4)],
            expect_output=list(zip([7, 5, 9], plain(operation, [3, 1, 4], key_fn), strict=True)),
        )


@pytest.mark.parametrize("action", ["fail", "skip"])
@pytest.mark.parametrize("key_fn", [None, parity, whole_item])
@pytest.mark.parametrize("name", OPERATIONS)
def test_emits_the_result_so_far(name, key_fn, action):
    items = [3, 1, 4, 1, 5, 9, 2, 6]
    operation = OPERATIONS[name]
    verify_processor(
        partial(
            RollingAggregateProcessor, operation, key_fn, policy=ErrorPolicy("rolling", action)
        ),
        input=items,
        expect_output=plain(operation, items, key_fn),
    )


@given(items=st.lists(st.integers(-50, 50)), name=st.sampled_from(sorted(OPERATIONS)))
def test_results_are_those_of_a_plain_loop(items, name):
    operation = OPERATIONS[name]
    verify_processor(
        partial(RollingAggregateProcessor, operation, parity),
        input=items,
        expect_output=plain(operation, items, parity),
        snapshots=False,
    )


def test_a_running_total_by_account():
    verify_processor(
        partial(RollingAggregateProcessor, agg.summing(lambda t: t[1]), lambda t: t[0]),
        input=[("a", 5), ("b", 1), ("a", -2)],
        expect_output=[("a", 5), ("b", 1), ("a", 3)],
    )


def test_results_do_not_change_afterwards():
    verify_processor(
        partial(RollingAggregateProcessor, agg.to_list()),
        input=[1, None],
        expect_output=[[1], [1, None]],
    )


@pytest.mark.parametrize("key_fn", [None, whole_item, lambda item: "key"])
def test_a_failing_operation_names_the_item(key_fn):
    operation = agg.summing(lambda item: 1 / item)
    with pytest.raises(ItemFailedError, match="totals failed") as raised:
        verify_processor(
            partial(RollingAggregateProcessor, operation, key_fn, policy=ErrorPolicy("totals")),
            input=[1, 0, 2],
            expect_output=[],
        )
    assert raised.value.item == 0
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_failing_key_names_the_item():
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(
            partial(RollingAggregateProcessor, agg.counting(), lambda item: 1 / item),
            input=[1, 0, 2],
            expect_output=[],
        )
    assert raised.value.item == 0


def test_a_key_that_cannot_be_looked_up_is_explained():
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(
            partial(RollingAggregateProcessor, agg.counting(), lambda item: {item}),
            input=[7],
            expect_output=[],
        )
    assert raised.value.item == 7
    assert isinstance(raised.value.__cause__, UnstableKeyError)


@pytest.mark.parametrize(("key_fn", "results"), [(None, [1, 1.5]), (parity, [(1, 1), (0, 0.5)])])
def test_dead_letters_leave_by_their_edge(key_fn, results):
    verify_processor(
        partial(
            RollingAggregateProcessor,
            agg.summing(lambda item: 1 / item),
            key_fn,
            policy=ErrorPolicy("totals", "dead-letter", 1),
            data_ordinals=0,
        ),
        input=[1, 0, 2],
        expect_outputs=[
            results,
            [DeadLetter(0, "totals", "ZeroDivisionError", "division by zero")],
        ],
    )


def test_arguments_travel_pickled():
    supplier = cloudpickle.loads(
        cloudpickle.dumps(lambda: RollingAggregateProcessor(agg.counting(), lambda item: item[0]))
    )
    verify_processor(supplier, input=["ab", "ac"], expect_output=[("a", 1), ("a", 2)])
