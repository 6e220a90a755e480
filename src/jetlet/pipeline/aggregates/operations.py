"""Stock aggregate operations that compute a value: counts, sums, extremes, folds, a trend.

Users write ``from jetlet import agg``; that module's documentation has the table of all operations.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar, overload

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.aggregates.adapters import all_of
from jetlet.pipeline.aggregates.loop import GeneratedCode, LoopBody
from jetlet.pipeline.aggregates.operation import (
    AggregateOperation,
    check_function,
    check_whole_number,
)
from jetlet.pipeline.aggregates.shape import Best, Part
from jetlet.pipeline.functions import call_each, whole_item

__all__ = [
    "averaging",
    "bottom_n",
    "counting",
    "linear_trend",
    "max_by",
    "min_by",
    "pick_any",
    "reducing",
    "summing",
    "top_n",
]

T = TypeVar("T")
N = TypeVar("N")
A = TypeVar("A")


def counting() -> AggregateOperation[Any, int, int]:
    """The number of items."""
    return AggregateOperation(
        create=int,
        accumulate=(_count_one,),
        export=whole_item,
        combine=operator.add,
        deduct=operator.sub,
        accumulate_batch=(_count_batch,),
        accumulate_keyed=(_count_keyed,),
        loop_bodies=(LoopBody(_zero, _write_count, _write_first_count),),
        item_count=whole_item,
        shape=Part("count"),
        has_plain_result=True,
        name="counting",
    )


def _count_one(acc: int, item: object) -> int:
    return acc + 1


def _count_batch(acc: int, batch: Sequence[object]) -> int:
    return acc + len(batch)


# What `collections.Counter` counts with: in CPython the whole loop runs in C.
_count_elements: Callable[[dict[Any, int], Iterable[Any]], None] = collections._count_elements  # type: ignore[attr-defined]


def _count_keyed(table: dict[Any, int], keys: Iterable[Any], batch: Sequence[object]) -> None:
    _count_elements(table, keys)


def _zero(code: GeneratedCode) -> str:
    return "0"


def _write_count(code: GeneratedCode, acc: str, item: str) -> None:
    code.line(f"{acc} += 1")


def _write_first_count(code: GeneratedCode, item: str) -> str:
    return "1"


@overload
def summing() -> AggregateOperation[T, Any, T]: ...
@overload
def summing(fn: Callable[[T], N]) -> AggregateOperation[T, Any, N]: ...
def summing(fn: Callable[[Any], Any] = whole_item) -> AggregateOperation[Any, Any, Any]:
    """The sum of ``fn(item)``; 0 if there are no items.

    Whatever can be added to 0 can be summed; for other types write for example
    ``reducing(timedelta(), operator.add, operator.add, operator.sub)``. A sum of floats depends in
    its last digits on the order of the items, which is not the same in every run, and in a sliding
    window an infinity or a NaN outlives its item: see ``without_deduct``, or sum decimals.
    """
    check_function(fn, "agg.summing", "fn", "lambda item: item.amount")

    def accumulate(acc: Any, item: Any) -> Any:
        return acc + fn(item)

    def accumulate_batch(acc: Any, batch: Sequence[Any]) -> Any:
        return acc + sum(call_each(fn, batch))

    def accumulate_keyed(table: dict[Any, Any], keys: Iterable[Any], batch: Sequence[Any]) -> None:
        get = table.get
        for key, item in zip(keys, batch, strict=True):
            table[key] = get(key, 0) + fn(item)

    # Never `+=`, which would change an array that was already given out as a result.
    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        code.line(f"{acc} = {acc} + {code.value(fn, item)}")

    def write_first(code: GeneratedCode, item: str) -> str:
        return f"0 + {code.value(fn, item)}"

    return AggregateOperation(
        create=int,
        accumulate=(operator.add if fn is whole_item else accumulate,),
        export=whole_item,
        combine=operator.add,
        deduct=operator.sub,
        accumulate_batch=(_sum_batch if fn is whole_item else accumulate_batch,),
        accumulate_keyed=(_sum_keyed if fn is whole_item else accumulate_keyed,),
        loop_bodies=(LoopBody(_zero, write_add, write_first),),
        shape=Part("sum", fn),
        has_plain_result=True,
        item_functions=((0, fn),),
        name="summing",
    )


def _sum_batch(acc: Any, batch: Sequence[Any]) -> Any:
    return acc + sum(batch)


def _sum_keyed(table: dict[Any, Any], keys: Iterable[Any], batch: Sequence[Any]) -> None:
    get = table.get
    for key, item in zip(keys, batch, strict=True):
        table[key] = get(key, 0) + item


@overload
def averaging() -> AggregateOperation[float, list[Any], float | None]: ...
@overload
def averaging(
    fn: Callable[[T], float],
) -> AggregateOperation[T, list[Any], float | None]: ...
def averaging(fn: Callable[[Any], Any] = whole_item) -> AggregateOperation[Any, list[Any], Any]:
    """The arithmetic mean of ``fn(item)``; ``None`` if there are no items."""
    check_function(fn, "agg.averaging", "fn", "lambda item: item.amount")
    both = all_of(counting(), summing(fn))
    return replace(both, export=_mean, finish=_mean, has_plain_result=False, name="averaging")


def _mean(acc: list[Any]) -> Any:
    count, total = acc
    return total / count if count else None


def min_by(
    key: Callable[[T], Any] = whole_item,
) -> AggregateOperation[T, Any, T | None]:
    """The item with the least ``key(item)``; ``None`` if there are no items.

    Of several such items any may be the result: not the same one in every run.
    """
    return _extreme("min_by", key, "<")


def max_by(
    key: Callable[[T], Any] = whole_item,
) -> AggregateOperation[T, Any, T | None]:
    """The item with the greatest ``key(item)``; ``None`` if there are no items.

    Of several such items any may be the result: not the same one in every run.
    """
    return _extreme("max_by", key, ">")


def _extreme(
    name: str, key: Callable[[T], Any], symbol: str
) -> AggregateOperation[T, Any, T | None]:
    """An accumulator is the pair of the best item and its key, or empty."""
    check_function(key, f"agg.{name}", "key", "lambda item: item.amount")
    is_better = operator.lt if symbol == "<" else operator.gt
    best_of: Callable[..., Any] = min if symbol == "<" else max
    if key is not whole_item:
        best_of = functools.partial(best_of, key=key)

    def accumulate(acc: tuple[Any, ...], item: T) -> tuple[Any, ...]:
        rank = key(item)
        return (item, rank) if not acc or is_better(rank, acc[1]) else acc

    def accumulate_batch(acc: tuple[Any, ...], batch: Sequence[T]) -> tuple[Any, ...]:
        return accumulate(acc, best_of(batch)) if batch else acc

    def combine(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
        return right if right and (not left or is_better(right[1], left[1])) else left

    def write_create(code: GeneratedCode) -> str:
        return "()"

    def write_add(code: GeneratedCode, acc: str, item: str) -> None:
        rank = code.evaluate(key, item)
        with code.block(f"if not {acc} or {rank} {symbol} {acc}[1]:"):
            code.line(f"{acc} = ({item}, {rank})")

    def write_first(code: GeneratedCode, item: str) -> str:
        rank = code.evaluate(key, item)
        return f"({item}, {rank})"

    return AggregateOperation(
        create=tuple,
        accumulate=(accumulate,),
        export=_first_or_none,
        combine=combine,
        accumulate_batch=(accumulate_batch,),
        loop_bodies=(LoopBody(write_create, write_add, write_first),),
        best=Best(key, is_largest=symbol == ">"),
        item_functions=((0, key),),
        name=name,
    )


def _first_or_none(acc: tuple[Any, ...]) -> Any:
    return acc[0] if acc else None


def top_n(n: int, key: Callable[[T], Any] = whole_item) -> AggregateOperation[T, Any, list[T]]:
    """The ``n`` items with the greatest ``key(item)``, greatest first.

    Keeps at most ``2 * n`` items between batches. Of items with equal keys at the end of the list
    any may be in it: not the same ones in every run.
    """
    return _ranking("top_n", n, key, largest=True)


def bottom_n(n: int, key: Callable[[T], Any] = whole_item) -> AggregateOperation[T, Any, list[T]]:
    """The ``n`` items with the least ``key(item)``, least first; otherwise as :func:`top_n`."""
    return _ranking("bottom_n", n, key, largest=False)


def _ranking(
    name: str, n: int, key: Callable[[T], Any], *, largest: bool
) -> AggregateOperation[T, Any, list[T]]:
    """An accumulator is a list of ``(key, item)``.

    As soon as it has ``n`` entries, the first ``n`` are sorted, best first, and the ``n``-th is the
    bar that a new one must pass. Entries that do are appended, and sorted in when there are ``n``
    of them: all comparing happens in C, items are never compared, and each direction is served by
    ``reverse``, whatever the type of the keys.
    """
    check_function(key, f"agg.{name}", "key", "lambda item: item.amount")
    check_whole_number(n, f"agg.{name}", "n", 1)
    passes = operator.gt if largest else operator.lt

    def trim(acc: list[tuple[Any, T]]) -> None:
        if len(acc) >= n:
            acc.sort(key=_rank, reverse=largest)
            del acc[n:]

    def accumulate(acc: list[tuple[Any, T]], item: T) -> list[tuple[Any, T]]:
        rank = key(item)
        size = len(acc)
        if size < n:
            acc.append((rank, item))
            if size + 1 == n:
                trim(acc)
        elif passes(rank, acc[n - 1][0]):
            acc.append((rank, item))
            if size + 1 == 2 * n:
                trim(acc)
        return acc

    def accumulate_batch(acc: list[tuple[Any, T]], batch: Sequence[T]) -> list[tuple[Any, T]]:
        entries = zip(call_each(key, batch), batch, strict=True)
        if len(acc) < n:
            acc.extend(entries)
        else:
            bar = acc[n - 1][0]
            acc.extend([entry for entry in entries if passes(entry[0], bar)])
        trim(acc)
        return acc

    def combine(left: list[tuple[Any, T]], right: list[tuple[Any, T]]) -> list[tuple[Any, T]]:
        left.extend(right)
        trim(left)
        return left

    def export(acc: list[tuple[Any, T]]) -> list[T]:
        return [item for _, item in sorted(acc, key=_rank, reverse=largest)[:n]]

    return AggregateOperation(
        create=list,
        accumulate=(accumulate,),
        export=export,
        combine=combine,
        accumulate_batch=(accumulate_batch,),
        loop_bodies=(LoopBody.calling(list, accumulate, in_place=True),),
        item_functions=((0, key),),
        name=name,
        made_of=(str(n),),
    )


_rank = operator.itemgetter(0)


def pick_any() -> AggregateOperation[T, Any, T | None]:
    """Any one of the items; ``None`` if there are no items. Not the same one in every run."""
    return AggregateOperation(
        create=tuple,
        accumulate=(_pick,),
        export=_first_or_none,
        combine=_either,
        accumulate_batch=(_pick_from_batch,),
        name="pick_any",
    )


def _pick(acc: tuple[Any, ...], item: Any) -> tuple[Any, ...]:
    return acc or (item,)


def _pick_from_batch(acc: tuple[Any, ...], batch: Sequence[Any]) -> tuple[Any, ...]:
    return acc or tuple(batch[:1])


def _either(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    return left or right


def reducing(
    identity: A,
    fn: Callable[[A, T], A],
    combine: Callable[[A, A], A] | None = None,
    deduct: Callable[[A, A], A] | None = None,
) -> AggregateOperation[T, Any, A]:
    """``fn(... fn(fn(identity, item1), item2) ..., itemN)``; ``identity`` if there are no items.

    ``fn`` returns a new value and leaves the old one alone. ``combine(left, right)`` merges two
    values, each of which began with ``identity``, and ``deduct(left, right)`` undoes that. Items
    come in an order that is not the same in every run.
    """
    where = "agg.reducing"
    check_function(fn, where, "fn", "lambda acc, item: acc * item.factor")
    if combine is not None:
        check_function(combine, where, "combine", "operator.mul")
    if deduct is not None:
        check_function(deduct, where, "deduct", "operator.truediv")
        if combine is None:
            raise InvalidArgumentError(f"{where}(deduct=...) is of use only with combine=...")
    try:
        hash(identity)
    except TypeError:
        raise InvalidArgumentError(
            f"{where}(identity={identity!r}) is a {type(identity).__name__}, which can change, and "
            "all accumulators would share it. Write agg.of(create=lambda: ..., accumulate=...)."
        ) from None

    def create() -> A:
        return identity

    def accumulate_batch(acc: A, batch: Sequence[T]) -> A:
        return functools.reduce(fn, batch, acc)

    return AggregateOperation(
        create=create,
        accumulate=(fn,),
        export=whole_item,
        combine=combine,
        deduct=deduct,
        accumulate_batch=(accumulate_batch,),
        name="reducing",
    )


def linear_trend(
    x_fn: Callable[[T], float], y_fn: Callable[[T], float]
) -> AggregateOperation[T, list[Any], float | None]:
    """The slope of the least-squares line through the points ``(x_fn(item), y_fn(item))``.

    ``None`` if there is no such line: fewer than two different x. A NaN if a coordinate is infinite
    or a NaN. Sums are kept exactly, as integers or fractions, so large x such as timestamps lose
    nothing, and neither the order of the items nor a sliding window changes a digit. Integers are
    several times faster than floats here.
    """
    check_function(x_fn, "agg.linear_trend", "x_fn", "lambda item: item.timestamp")
    check_function(y_fn, "agg.linear_trend", "y_fn", "lambda item: item.price")

    def accumulate(acc: list[Any], item: T) -> list[Any]:
        x: Any = x_fn(item)
        y: Any = y_fn(item)
        if type(x) is not int or type(y) is not int:
            try:
                x, y = _exact(x), _exact(y)
            except (OverflowError, ValueError):  # infinite or NaN
                acc[5] += 1
                return acc
        acc[0] += 1
        acc[1] += x
        acc[2] += y
        acc[3] += x * y
        acc[4] += x * x
        return acc

    return AggregateOperation(
        create=_no_points,
        accumulate=(accumulate,),
        export=_slope,
        combine=_add_points,
        deduct=_subtract_points,
        loop_bodies=(LoopBody.calling(_no_points, accumulate, in_place=True),),
        item_functions=((0, x_fn), (0, y_fn)),
        name="linear_trend",
    )


def _exact(value: Any) -> int | Fraction:
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return Fraction(*value.as_integer_ratio())
    except AttributeError:
        raise TypeError(f"agg.linear_trend needs numbers, but got {value!r}") from None


def _no_points() -> list[Any]:
    """Number of points, sums of x, y, x*y and x*x, number of points that are not finite."""
    return [0, 0, 0, 0, 0, 0]


def _add_points(left: list[Any], right: list[Any]) -> list[Any]:
    left[:] = map(operator.add, left, right)
    return left


def _subtract_points(left: list[Any], right: list[Any]) -> list[Any]:
    left[:] = map(operator.sub, left, right)
    return left


def _slope(acc: list[Any]) -> float | None:
    n, x, y, xy, xx, not_finite = acc
    if not_finite:
        return float("nan")
    spread = n * xx - x * x
    return float(Fraction(n * xy - x * y) / spread) if spread else None
