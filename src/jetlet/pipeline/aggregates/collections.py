"""Stock aggregate operations that gather items: lists, sets, dicts, text.

Users write ``from jetlet import agg``; that module's documentation has the table of all operations.
All of these hold every item they were given, or one per group, until the result is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast, overload

from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.pipeline.aggregates.loop import GeneratedCode, LoopBody
from jetlet.pipeline.aggregates.operation import AggregateOperation, check_function, check_operation
from jetlet.pipeline.functions import call_each, whole_item

__all__ = ["concatenating", "grouping_by", "sorting", "to_dict", "to_list", "to_set"]

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


@overload
def to_list() -> AggregateOperation[T, Any, list[T]]: ...
@overload
def to_list(fn: Callable[[T], U]) -> AggregateOperation[T, Any, list[U]]: ...
def to_list(fn: Callable[[Any], Any] = whole_item) -> AggregateOperation[Any, Any, Any]:
    """The list of ``fn(item)``, in an order that is not the same in every run."""
    check_function(fn, "agg.to_list", "fn", "lambda item: item.name")
    return _listing("to_list", fn, export=list, finish=whole_item)


def _listing(
    name: str,
    fn: Callable[[Any], Any],
    export: Callable[[list[Any]], Any],
    finish: Callable[[list[Any]], Any],
) -> AggregateOperation[Any, list[Any], Any]:
    """The operations whose accumulator is the list of all ``fn(item)``."""

    def accumulate(acc: list[Any], item: Any) -> list[Any]:
        acc.append(fn(item))
        return acc

    def accumulate_batch(acc: list[Any], batch: Sequence[Any]) -> list[Any]:
        acc.extend(batch if fn is whole_item else call_each(fn, batch))
        return acc

    def write_create(code: GeneratedCode) -> str:
        return "[]"

    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        code.line(f"{acc}.append({code.value(fn, item)})")

    def write_first(code: GeneratedCode, item: str) -> str:
        return f"[{code.value(fn, item)}]"

    return AggregateOperation(
        create=list,
        accumulate=(accumulate,),
        export=export,
        finish=finish,
        combine=_extend,
        accumulate_batch=(accumulate_batch,),
        loop_bodies=(LoopBody(write_create, write_add, write_first, in_place=True),),
        item_functions=((0, fn),),
        name=name,
    )


def _extend(left: list[Any], right: list[Any]) -> list[Any]:
    left.extend(right)
    return left


@overload
def to_set() -> AggregateOperation[T, Any, set[T]]: ...
@overload
def to_set(fn: Callable[[T], U]) -> AggregateOperation[T, Any, set[U]]: ...
def to_set(fn: Callable[[Any], Any] = whole_item) -> AggregateOperation[Any, Any, Any]:
    """The set of ``fn(item)``."""
    check_function(fn, "agg.to_set", "fn", "lambda item: item.name")

    def accumulate(acc: set[Any], item: Any) -> set[Any]:
        acc.add(fn(item))
        return acc

    def accumulate_batch(acc: set[Any], batch: Sequence[Any]) -> set[Any]:
        acc.update(batch if fn is whole_item else call_each(fn, batch))
        return acc

    def write_create(code: GeneratedCode) -> str:
        return "set()"

    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        code.line(f"{acc}.add({code.value(fn, item)})")

    def write_first(code: GeneratedCode, item: str) -> str:
        return f"{{{code.value(fn, item)}}}"

    return AggregateOperation(
        create=set,
        accumulate=(accumulate,),
        export=set,
        finish=whole_item,
        combine=_update,
        accumulate_batch=(accumulate_batch,),
        loop_bodies=(LoopBody(write_create, write_add, write_first, in_place=True),),
        item_functions=((0, fn),),
        name="to_set",
    )


def _update(left: set[Any], right: set[Any]) -> set[Any]:
    left.update(right)
    return left


def to_dict(
    key_fn: Callable[[T], K],
    value_fn: Callable[[T], V],
    merge: Callable[[V, V], V] | None = None,
) -> AggregateOperation[T, Any, dict[K, V]]:
    """The dict of ``key_fn(item)`` to ``value_fn(item)``.

    ``merge(old, new)`` gives the value for a key that comes again, and leaves both as they are;
    without it such a key is an error. The order of the items, so which value is the old one, is
    not the same in every run.
    """
    where = "agg.to_dict"
    check_function(key_fn, where, "key_fn", "lambda item: item.id")
    check_function(value_fn, where, "value_fn", "lambda item: item.name")
    if merge is not None:
        check_function(merge, where, "merge", "lambda old, new: new")

    def put(acc: dict[K, V], key: K, value: V) -> None:
        if key not in acc:
            acc[key] = value
        elif merge is not None:
            acc[key] = merge(acc[key], value)
        else:
            raise BadRecordError(
                f"agg.to_dict: two items have the key {key!r}, with the values {acc[key]!r} and "
                f"{value!r}. Say what to do with them, for example "
                "agg.to_dict(key_fn, value_fn, merge=lambda old, new: new)."
            )

    def accumulate(acc: dict[K, V], item: T) -> dict[K, V]:
        put(acc, key_fn(item), value_fn(item))
        return acc

    def accumulate_batch(acc: dict[K, V], batch: Sequence[T]) -> dict[K, V]:
        for item in batch:
            put(acc, key_fn(item), value_fn(item))
        return acc

    def combine(left: dict[K, V], right: dict[K, V]) -> dict[K, V]:
        for key, value in right.items():
            put(left, key, value)
        return left

    return AggregateOperation(
        create=dict,
        accumulate=(accumulate,),
        export=dict,
        finish=whole_item,
        combine=combine,
        accumulate_batch=(accumulate_batch,),
        loop_bodies=(LoopBody.calling(dict, accumulate, in_place=True),),
        item_functions=((0, key_fn), (0, value_fn)),
        name="to_dict",
    )


def concatenating(
    separator: str = "", prefix: str = "", suffix: str = ""
) -> AggregateOperation[str, list[str], str]:
    """The items, which are strings, joined by ``separator``, between ``prefix`` and ``suffix``.

    Their order is not the same in every run.
    """
    for parameter, text in (("separator", separator), ("prefix", prefix), ("suffix", suffix)):
        if not isinstance(text, str):
            raise InvalidArgumentError(
                f"agg.concatenating({parameter}={text!r}) must be a str. To say what to join, "
                "write agg.mapping(lambda item: item.name, agg.concatenating(', '))."
            )

    def join(acc: list[str]) -> str:
        try:
            return f"{prefix}{separator.join(acc)}{suffix}"
        except TypeError:
            other = next(item for item in cast("list[object]", acc) if not isinstance(item, str))
            raise BadRecordError(
                f"agg.concatenating() joins strings, but got {other!r} "
                f"({type(other).__name__}). Write agg.mapping(str, agg.concatenating(...))."
            ) from None

    return _listing("concatenating", whole_item, export=join, finish=join)


def sorting(
    key: Callable[[T], Any] | None = None, reverse: bool = False
) -> AggregateOperation[T, Any, list[T]]:
    """The sorted list of all items. To sort a whole stage, use its ``sort``, which can spill."""
    if key is not None:
        check_function(key, "agg.sorting", "key", "lambda item: item.amount")
    rank: Callable[[Any], Any] | None = None if key is whole_item else key

    def export(acc: list[Any]) -> list[Any]:
        return sorted(acc, key=rank, reverse=reverse)

    def finish(acc: list[Any]) -> list[Any]:
        acc.sort(key=rank, reverse=reverse)
        return acc

    operation = _listing("sorting", whole_item, export=export, finish=finish)
    return replace(operation, item_functions=((0, whole_item if key is None else key),))


@overload
def grouping_by(
    key_fn: Callable[[T], K],
) -> AggregateOperation[T, Any, dict[K, list[T]]]: ...
@overload
def grouping_by(
    key_fn: Callable[[T], K], downstream: AggregateOperation[T, Any, R]
) -> AggregateOperation[T, Any, dict[K, R]]: ...
def grouping_by(
    key_fn: Callable[[Any], Any], downstream: AggregateOperation[Any, Any, Any] | None = None
) -> AggregateOperation[Any, Any, Any]:
    """The dict of ``key_fn(item)`` to the result of ``downstream``, by default the list of items.

    For many groups use ``grouping_key`` of a stage instead: this dict is one item, in one process.
    """
    check_function(key_fn, "agg.grouping_by", "key_fn", "lambda item: item.country")
    if downstream is None:
        downstream = to_list()
    check_operation(downstream, "agg.grouping_by(downstream=...)")
    create, add, export, finish = (
        downstream.create,
        downstream.accumulate[0],
        downstream.export,
        downstream.finish,
    )
    add_keyed = downstream.keyed_accumulator()
    combine = downstream.combine

    def accumulate(acc: dict[Any, Any], item: Any) -> dict[Any, Any]:
        key = key_fn(item)
        acc[key] = add(acc[key] if key in acc else create(), item)
        return acc

    def accumulate_batch(acc: dict[Any, Any], batch: Sequence[Any]) -> dict[Any, Any]:
        add_keyed(acc, batch if key_fn is whole_item else call_each(key_fn, batch), batch)
        return acc

    def export_groups(acc: dict[Any, Any]) -> dict[Any, Any]:
        return {key: export(group) for key, group in acc.items()}

    def finish_groups(acc: dict[Any, Any]) -> dict[Any, Any]:
        return {key: finish(group) for key, group in acc.items()}

    def combine_groups(left: dict[Any, Any], right: dict[Any, Any]) -> dict[Any, Any]:
        assert combine is not None
        for key, group in right.items():
            # A new accumulator, not the right one's: the left one will change it later.
            left[key] = combine(left[key] if key in left else create(), group)
        return left

    return AggregateOperation(
        create=dict,
        accumulate=(accumulate,),
        export=export_groups,
        finish=finish_groups,
        combine=combine_groups if combine is not None else None,
        accumulate_batch=(accumulate_batch,),
        loop_bodies=(LoopBody.calling(dict, accumulate, in_place=True),),
        item_functions=((0, key_fn), *downstream.item_functions),
        name="grouping_by",
        made_of=(downstream.definition,),
    )
