"""Aggregate operations made of others: adapters for the items, and several operations at once.

What is made of operations with ``combine`` (``deduct``) has ``combine`` (``deduct``) itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar, cast, overload

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.aggregate import AggregateOperation, check_function, check_operation
from jetlet.pipeline.aggregate_loop import GeneratedCode, LoopBody

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
        return add_batch(acc, list(map(fn, batch)))

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
        return add_batch(acc, list(filter(pred, batch)))

    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        with code.block(f"if {code.call(pred, item)}:"):
            body.add(code, acc, item)

    return _adapted(
        "filtering",
        downstream,
        accumulate,
        accumulate_batch,
        replace(body, add=write_add, first=None),
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
        return add_batch(acc, list(chain.from_iterable(map(fn, batch))))

    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        part = code.local()
        with code.block(f"for {part} in {code.call(fn, item)}:"):
            body.add(code, acc, part)

    return _adapted(
        "flat_mapping",
        downstream,
        accumulate,
        accumulate_batch,
        replace(body, add=write_add, first=None),
    )


def _adapted(
    name: str,
    downstream: AggregateOperation[Any, A, R],
    accumulate: Callable[[A, T], A],
    accumulate_batch: Callable[[A, Sequence[T]], A],
    body: LoopBody,
) -> AggregateOperation[T, A, R]:
    adapted = replace(
        downstream,
        accumulate=(accumulate,),
        accumulate_batch=(accumulate_batch,),
        accumulate_keyed=None,
        loop_bodies=(body,),
        name=f"{name}_{downstream.name}",
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
    return replace(operation, accumulate_batch=(accumulate_batch,))


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
        combine=None if None in combines else _pairwise("combine", combines),
        deduct=None if None in deducts else _pairwise("deduct", deducts),
        loop_bodies=bodies,
        name=name,
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
    code = GeneratedCode()
    results = [code.call(function, f"acc[{index}]") for index, function in enumerate(functions)]
    code.line(f"return ({', '.join(results)},)")
    return code.compile(name, "acc")


def _pairwise(name: str, functions: Sequence[Any]) -> Callable[[list[Any], list[Any]], list[Any]]:
    code = GeneratedCode()
    for index, function in enumerate(functions):
        left, right = f"left[{index}]", f"right[{index}]"
        if function is operator.add:
            code.line(f"{left} = {left} + {right}")
        elif function is operator.sub:
            code.line(f"{left} = {left} - {right}")
        else:
            code.line(f"{left} = {code.bind(function)}({left}, {right})")
    code.line("return left")
    return code.compile(name, "left, right")


def _check_operations(name: str, operations: Sequence[object], least: int) -> None:
    if len(operations) < least:
        raise InvalidArgumentError(
            f"agg.{name} takes at least {least} operation(s), not {len(operations)}: write for "
            f"example agg.{name}(agg.counting(), agg.summing())."
        )
    for operation in operations:
        check_operation(operation, f"agg.{name}")
