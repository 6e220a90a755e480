"""Aggregate operations made of others: adapters for the items, and several operations at once.

What is made of operations with ``combine`` (``deduct``) has ``combine`` (``deduct``) itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast, overload

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.aggregates.loop import GeneratedCode, LoopBody, MergeText, with_text
from jetlet.pipeline.aggregates.operation import AggregateOperation, check_function, check_operation
from jetlet.pipeline.functions import call_each

__all__ = ["all_of", "co_aggregate", "filtering", "flat_mapping", "mapping"]

T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")
R = TypeVar("R")
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")
R5 = TypeVar("R5")

_Operation = AggregateOperation[Any, Any, Any]


def mapping(
    fn: Callable[[T], U], downstream: AggregateOperation[U, A, R]
) -> AggregateOperation[T, A, R]:
    """``downstream`` over ``fn(item)``."""
    check_function(fn, "agg.mapping", "fn", "lambda item: item.amount")
    check_operation(downstream, "agg.mapping(downstream=...)")
    add, add_batch = downstream.accumulate[0], downstream.batch_accumulator()
    body = downstream.loop_body()
    body_first = body.first

    def accumulate(acc: A, item: T) -> A:
        return add(acc, fn(item))

    def accumulate_batch(acc: A, batch: Sequence[T]) -> A:
        return add_batch(acc, call_each(fn, batch))

    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        body.add(code, acc, code.evaluate(fn, item))

    def write_first(code: GeneratedCode, item: str) -> str:
        assert body_first is not None
        return body_first(code, code.evaluate(fn, item))

    return _adapted(
        "mapping",
        downstream,
        accumulate,
        accumulate_batch,
        replace(body, add=write_add, first=write_first if body_first is not None else None),
        (fn,),
    )


def filtering(
    pred: Callable[[T], object], downstream: AggregateOperation[T, A, R]
) -> AggregateOperation[T, A, R]:
    """``downstream`` over the items for which ``pred(item)`` is true.

    A key all of whose items are filtered out still has a result, that of no items.
    """
    check_function(pred, "agg.filtering", "pred", "lambda item: item.amount > 0")
    check_operation(downstream, "agg.filtering(downstream=...)")
    add, add_batch = downstream.accumulate[0], downstream.batch_accumulator()
    body = downstream.loop_body()

    def accumulate(acc: A, item: T) -> A:
        return add(acc, item) if pred(item) else acc

    def accumulate_batch(acc: A, batch: Sequence[T]) -> A:
        return add_batch(acc, [item for item in batch if pred(item)])

    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        with code.block(f"if {code.value(pred, item)}:"):
            body.add(code, acc, item)

    return _adapted(
        "filtering",
        replace(downstream, item_count=None),  # it has not seen those that were filtered out
        accumulate,
        accumulate_batch,
        replace(body, add=write_add, first=None),
        (pred, *(each for _, each in downstream.item_functions)),
    )


def flat_mapping(
    fn: Callable[[T], Iterable[U]], downstream: AggregateOperation[U, A, R]
) -> AggregateOperation[T, A, R]:
    """``downstream`` over all items of the iterable ``fn(item)``."""
    check_function(fn, "agg.flat_mapping", "fn", "lambda item: item.tags")
    check_operation(downstream, "agg.flat_mapping(downstream=...)")
    add, add_batch = downstream.accumulate[0], downstream.batch_accumulator()
    body = downstream.loop_body()

    def accumulate(acc: A, item: T) -> A:
        for part in fn(item):
            acc = add(acc, part)
        return acc

    def accumulate_batch(acc: A, batch: Sequence[T]) -> A:
        return add_batch(acc, [part for item in batch for part in fn(item)])

    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        part = code.local()
        with code.block(f"for {part} in {code.value(fn, item)}:"):
            body.add(code, acc, part)

    return _adapted(
        "flat_mapping",
        replace(downstream, item_count=None),  # it has seen parts of items
        accumulate,
        accumulate_batch,
        replace(body, add=write_add, first=None),
        (fn,),
    )


def _adapted(
    name: str,
    downstream: AggregateOperation[Any, A, R],
    accumulate: Callable[[A, T], A],
    accumulate_batch: Callable[[A, Sequence[T]], A],
    body: LoopBody,
    item_functions: Iterable[Callable[[Any], Any]],
) -> AggregateOperation[T, A, R]:
    adapted = replace(
        downstream,
        accumulate=(accumulate,),
        accumulate_batch=(accumulate_batch,),
        accumulate_keyed=None,
        loop_bodies=(body,),
        # What these say goes for what comes out of the adapter, and not for items.
        shape=None,
        best=None,
        item_functions=tuple((0, each) for each in item_functions),
        name=f"{name}_{downstream.name}",
        made_of=(downstream.definition,),
    )
    return cast("AggregateOperation[T, A, R]", adapted)


@overload
def all_of(op1: AggregateOperation[T, Any, R1], /) -> AggregateOperation[T, Any, tuple[R1]]: ...
@overload
def all_of(
    op1: AggregateOperation[T, Any, R1], op2: AggregateOperation[T, Any, R2], /
) -> AggregateOperation[T, Any, tuple[R1, R2]]: ...
@overload
def all_of(
    op1: AggregateOperation[T, Any, R1],
    op2: AggregateOperation[T, Any, R2],
    op3: AggregateOperation[T, Any, R3],
    /,
) -> AggregateOperation[T, Any, tuple[R1, R2, R3]]: ...
@overload
def all_of(
    op1: AggregateOperation[T, Any, R1],
    op2: AggregateOperation[T, Any, R2],
    op3: AggregateOperation[T, Any, R3],
    op4: AggregateOperation[T, Any, R4],
    /,
) -> AggregateOperation[T, Any, tuple[R1, R2, R3, R4]]: ...
@overload
def all_of(
    op1: AggregateOperation[T, Any, R1],
    op2: AggregateOperation[T, Any, R2],
    op3: AggregateOperation[T, Any, R3],
    op4: AggregateOperation[T, Any, R4],
    op5: AggregateOperation[T, Any, R5],
    /,
) -> AggregateOperation[T, Any, tuple[R1, R2, R3, R4, R5]]: ...
@overload
def all_of(
    op1: AggregateOperation[T, Any, Any],
    op2: AggregateOperation[T, Any, Any],
    op3: AggregateOperation[T, Any, Any],
    op4: AggregateOperation[T, Any, Any],
    op5: AggregateOperation[T, Any, Any],
    op6: AggregateOperation[T, Any, Any],
    /,
    *more: AggregateOperation[T, Any, Any],
) -> AggregateOperation[T, Any, tuple[Any, ...]]: ...
def all_of(*operations: _Operation) -> _Operation:
    """Several operations over the same items; the result is the tuple of their results."""
    _check_operations("all_of", operations, 1)
    add_batches = [operation.batch_accumulator() for operation in operations]

    def accumulate_batch(acc: list[Any], batch: Sequence[Any]) -> list[Any]:
        for index, add_batch in enumerate(add_batches):
            acc[index] = add_batch(acc[index], batch)
        return acc

    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        for index, operation in enumerate(operations):
            operation.loop_body().add(code, f"{acc}[{index}]", item)

    firsts = [operation.loop_body().first for operation in operations]

    def write_first(code: GeneratedCode, item: str) -> str:
        return "[" + ", ".join(first(code, item) for first in firsts if first is not None) + "]"

    body = LoopBody(
        _write_create(operations),
        write_add,
        None if None in firsts else write_first,
        in_place=True,
    )
    operation = _side_by_side("all_of", operations, (_accumulate(body),), (body,))
    shapes = tuple(each.shape for each in operations if each.shape is not None)
    return replace(
        operation,
        accumulate_batch=(accumulate_batch,),
        item_count=_count_of_one(operations),
        item_functions=tuple(each for op in operations for each in op.item_functions),
        shape=shapes if len(shapes) == len(operations) else None,
        has_plain_result=all(each.has_plain_result for each in operations),
    )


@overload
def co_aggregate(
    op1: AggregateOperation[Any, Any, R1], op2: AggregateOperation[Any, Any, R2], /
) -> AggregateOperation[Any, Any, tuple[R1, R2]]: ...
@overload
def co_aggregate(
    op1: AggregateOperation[Any, Any, R1],
    op2: AggregateOperation[Any, Any, R2],
    op3: AggregateOperation[Any, Any, R3],
    /,
) -> AggregateOperation[Any, Any, tuple[R1, R2, R3]]: ...
@overload
def co_aggregate(
    op1: _Operation, op2: _Operation, op3: _Operation, op4: _Operation, /, *more: _Operation
) -> AggregateOperation[Any, Any, tuple[Any, ...]]: ...
def co_aggregate(*operations: _Operation) -> _Operation:
    """One operation per input of a co-aggregation; the result is the tuple of their results."""
    _check_operations("co_aggregate", operations, 2)
    create = _write_create(operations)
    bodies = tuple(_slot_body(index, op, create) for index, op in enumerate(operations))
    operation = _side_by_side("co_aggregate", operations, tuple(map(_accumulate, bodies)), bodies)
    return replace(
        operation,
        accumulate_batch=tuple(_slot_batch(index, op) for index, op in enumerate(operations)),
        item_count=_count_of_all(operations),
        item_functions=tuple(
            (index, fn) for index, op in enumerate(operations) for _, fn in op.item_functions
        ),
    )


def _slot_body(
    index: int, operation: _Operation, create: Callable[[GeneratedCode], str]
) -> LoopBody:
    body = operation.loop_body()

    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        body.add(code, f"{acc}[{index}]", item)

    return LoopBody(create, write_add, in_place=True)


def _slot_batch(
    index: int, operation: _Operation
) -> Callable[[list[Any], Sequence[Any]], list[Any]]:
    add_batch = operation.batch_accumulator()

    def accumulate_batch(acc: list[Any], batch: Sequence[Any]) -> list[Any]:
        acc[index] = add_batch(acc[index], batch)
        return acc

    return accumulate_batch


# An accumulator of several operations is a list with theirs. All functions over it are generated,
# so that a part of it costs a subscript, not a turn of a loop.


def _side_by_side(
    name: str,
    operations: Sequence[_Operation],
    accumulate: tuple[Callable[[list[Any], Any], list[Any]], ...],
    bodies: tuple[LoopBody, ...],
) -> _Operation:
    creating = GeneratedCode()
    creating.line(f"return {_write_create(operations)(creating)}")
    combines = [operation.combine for operation in operations]
    deducts = [operation.deduct for operation in operations]
    return AggregateOperation(
        create=creating.compile("create", ""),
        accumulate=accumulate,
        export=_each("export", [operation.export for operation in operations]),
        finish=_each("finish", [operation.finish for operation in operations]),
        combine=None if None in combines else _pairwise("combine", operations, combines),
        deduct=None if None in deducts else _pairwise("deduct", operations, deducts),
        loop_bodies=bodies,
        name=name,
        made_of=tuple(operation.definition for operation in operations),
    )


def _write_create(operations: Sequence[_Operation]) -> Callable[[GeneratedCode], str]:
    creates = [operation.loop_body().create for operation in operations]

    def write(code: GeneratedCode) -> str:
        return "[" + ", ".join(create(code) for create in creates) + "]"

    return write


def _accumulate(body: LoopBody) -> Callable[[list[Any], Any], list[Any]]:
    code = GeneratedCode()
    body.add(code, "acc", "item")
    code.line("return acc")
    return code.compile("accumulate", "acc, item")


def _each(name: str, functions: Sequence[Callable[[Any], Any]]) -> Callable[[list[Any]], Any]:
    def write(code: GeneratedCode, acc: str) -> str:
        results = [code.call(function, f"{acc}[{i}]") for i, function in enumerate(functions)]
        return f"({', '.join(results)},)"

    return _expression(name, write)


def _expression(
    name: str, write: Callable[[GeneratedCode, str], str]
) -> Callable[[list[Any]], Any]:
    code = GeneratedCode()
    code.line(f"return {write(code, 'acc')}")
    return with_text(code.compile(name, "acc"), write)


def _pairwise(
    name: str, operations: Sequence[_Operation], functions: Sequence[Any]
) -> Callable[[list[Any], list[Any]], list[Any]]:
    def write(code: GeneratedCode, left: str, right: str) -> None:
        for index, function in enumerate(functions):
            code.merge(function, f"{left}[{index}]", f"{right}[{index}]")

    def copy(code: GeneratedCode, value: str) -> str:
        copies = [
            code.copy(operation.create, cast(Any, operation.combine), f"{value}[{index}]")
            for index, operation in enumerate(operations)
        ]
        return f"[{', '.join(copies)}]"

    code = GeneratedCode()
    write(code, "left", "right")
    code.line("return left")
    return with_text(code.compile(name, "left, right"), MergeText(write, copy))


def _count_of_one(operations: Sequence[_Operation]) -> Callable[[list[Any]], int] | None:
    """How many items all of the operations have seen, by the word of one of them."""
    counts = [operation.item_count for operation in operations]
    index = next((i for i, count in enumerate(counts) if count is not None), None)
    if index is None:
        return None

    def write(code: GeneratedCode, acc: str) -> str:
        return code.call(cast(Any, counts[index]), f"{acc}[{index}]")

    return _expression("item_count", write)


def _count_of_all(operations: Sequence[_Operation]) -> Callable[[list[Any]], int] | None:
    """The same where each operation sees items of its own."""
    counts = [operation.item_count for operation in operations]
    if any(count is None for count in counts):
        return None

    def write(code: GeneratedCode, acc: str) -> str:
        parts = [code.call(cast(Any, count), f"{acc}[{i}]") for i, count in enumerate(counts)]
        return f"({' + '.join(parts)})"

    return _expression("item_count", write)


def _check_operations(name: str, operations: Sequence[object], least: int) -> None:
    if len(operations) < least:
        raise InvalidArgumentError(
            f"agg.{name} takes at least {least} operation(s), not {len(operations)}: write for "
            f"example agg.{name}(agg.counting(), agg.summing())."
        )
    for operation in operations:
        check_operation(operation, f"agg.{name}")
