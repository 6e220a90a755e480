"""The operation class, operations of one's own, and the code that is generated for them."""

import traceback
from dataclasses import FrozenInstanceError

import pytest

from jetlet import agg
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.functions import entry_key, entry_value, whole_item


def add(acc, item):
    return acc + item


def test_finish_is_export_unless_given():
    operation = AggregateOperation(create=int, accumulate=(add,), export=str)
    assert operation.finish(5) == "5"
    assert operation.arity == 1
    assert operation.batch_accumulator()(1, [2, 3]) == 6
    table = {"a": 1}
    operation.keyed_accumulator()(table, iter("ab"), [2, 3])
    assert table == {"a": 3, "b": 3}


def test_operations_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        agg.counting().name = "other"


def test_refuses_batch_functions_that_do_not_match_the_inputs():
    with pytest.raises(InvalidArgumentError, match="one per function in accumulate"):
        AggregateOperation(create=int, accumulate=(add, add), export=str, accumulate_batch=(None,))


def test_and_then_maps_export_and_finish():
    operation = agg.to_list().and_then(len)
    acc = operation.batch_accumulator()(operation.create(), "abc")
    assert operation.export(acc) == operation.finish(acc) == 3
    with pytest.raises(InvalidArgumentError, match="fn=lambda result"):
        agg.counting().and_then(2)


def test_without_deduct_keeps_everything_else():
    operation = agg.summing().without_deduct()
    assert operation.deduct is None
    assert operation.combine(1, 2) == 3


def test_own_operation_defaults_to_its_accumulator_as_result():
    operation = agg.of(create=list, accumulate=lambda acc, item: [*acc, item])
    acc = operation.accumulate[0](operation.create(), 1)
    early = operation.export(acc)
    acc.append(2)
    assert early == [1]
    assert operation.finish(acc) is acc
    assert operation.combine is None


def test_own_export_without_one_spares_the_accumulator_from_finish():
    operation = agg.of(
        create=list,
        accumulate=lambda acc, item: [*acc, item],
        finish=lambda acc: acc.pop(),
    )
    acc = operation.batch_accumulator()(operation.create(), [1, 2])
    assert operation.export(acc) == operation.export(acc) == operation.finish(acc) == 2
    assert acc == [1]


def test_own_batch_function_is_used():
    operation = agg.of(
        create=int, accumulate=add, accumulate_batch=lambda acc, batch: acc + 100 * len(batch)
    )
    assert operation.batch_accumulator()(0, [1, 1]) == 200


def test_own_operation_may_have_several_inputs():
    operation = agg.of(
        create=int,
        accumulate=[add, lambda acc, item: acc - item],
        accumulate_batch=[None, lambda acc, batch: acc - sum(batch)],
    )
    assert operation.arity == 2
    acc = operation.batch_accumulator(0)(operation.create(), [5, 6])
    acc = operation.batch_accumulator(1)(acc, [1])
    table = {"k": acc}
    operation.keyed_accumulator(1)(table, "kl", [2, 3])
    assert table == {"k": 8, "l": -3}


@pytest.mark.parametrize(
    "accumulate",
    [
        lambda operation: operation.accumulate[0]([], 1),
        lambda operation: operation.batch_accumulator()([], [1]),
        lambda operation: operation.keyed_accumulator()({}, "a", [1]),
        lambda operation: agg.all_of(operation).keyed_accumulator()({}, "a", [1]),
        lambda operation: agg.mapping(str, operation).keyed_accumulator()({}, "a", [1]),
    ],
)
def test_own_operation_that_forgets_to_return_is_told_so(accumulate):
    operation = agg.of(create=list, accumulate=lambda acc, item: acc.append(item))
    with pytest.raises(InvalidArgumentError, match="must return the accumulator"):
        accumulate(operation)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"create": [], "accumulate": add}, "create=list"),
        ({"create": int, "accumulate": []}, "one function each"),
        ({"create": int, "accumulate": [1]}, "accumulate=lambda acc, item"),
        ({"create": int, "accumulate": add, "combine": 1}, "combine=lambda left, right"),
        ({"create": int, "accumulate": add, "deduct": add}, "give both"),
        ({"create": int, "accumulate": add, "export": 1}, "export=tuple"),
        ({"create": int, "accumulate": add, "accumulate_batch": [None, None]}, "one per input"),
    ],
)
def test_own_operation_is_checked_early(arguments, advice):
    with pytest.raises(InvalidArgumentError, match=advice):
        agg.of(**arguments)


def test_traceback_through_a_generated_loop_names_the_users_function_and_shows_the_loop():
    def amount(item):
        return 1 / item

    accumulate = agg.all_of(agg.counting(), agg.summing(amount)).keyed_accumulator()
    with pytest.raises(ZeroDivisionError) as caught:
        accumulate({}, "aa", [1, 0])
    text = "".join(traceback.format_exception(caught.value))
    assert "in amount" in text
    assert "in all_of_keyed" in text
    assert "acc[1] = acc[1] + fn_" in text


def test_stock_functions():
    assert whole_item(None) is None
    assert entry_key(("k", 1)) == "k"
    assert entry_value(("k", 1)) == 1
