"""Approximate aggregate operations over sketches of the ``datasketches`` package.

The package is imported when an operation is made (it is the extra ``sketches``). Accumulators wrap
a sketch, because sketches themselves cannot be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from numbers import Complex, Real
from typing import Any, TypeVar
from uuid import UUID

from jetlet.errors import InvalidArgumentError, MissingDependencyError
from jetlet.pipeline.aggregates.loop import LoopBody
from jetlet.pipeline.aggregates.operation import (
    AggregateOperation,
    check_function,
    check_whole_number,
)
from jetlet.pipeline.functions import call_each, whole_item

__all__ = ["DistinctSketch", "QuantilesSketch", "approx_distinct", "approx_quantiles"]

T = TypeVar("T")


def approx_distinct(
    fn: Callable[[T], Any] = whole_item, lg_k: int = 12
) -> AggregateOperation[T, DistinctSketch, int]:
    """About how many different ``fn(item)`` there are.

    The standard error is about ``1.04 / sqrt(2 ** lg_k)``, 1.6 % by default; a few hundred are
    counted exactly. An accumulator takes up to ``2 ** lg_k`` bytes. The result depends on the set
    of values only, not on their order or on who counted them. Equal values count once whatever
    their type (``1``, ``1.0``, ``True``); the types allowed are those of grouping keys, and a NaN.
    """
    where = "agg.approx_distinct"
    _require_datasketches(where)
    check_function(fn, where, "fn", "lambda item: item.user")
    check_whole_number(lg_k, where, "lg_k", 7, 21)

    def create() -> DistinctSketch:
        return DistinctSketch.empty(lg_k)

    def accumulate(acc: DistinctSketch, item: T) -> DistinctSketch:
        acc.sketch.update(countable(fn(item)))
        return acc

    def accumulate_batch(acc: DistinctSketch, batch: Sequence[T]) -> DistinctSketch:
        update = acc.sketch.update
        for item in batch:
            update(countable(fn(item)))
        return acc

    return AggregateOperation(
        create=create,
        accumulate=(accumulate,),
        export=DistinctSketch.estimate,
        combine=DistinctSketch.combine,
        accumulate_batch=(accumulate_batch,),
        loop_bodies=(LoopBody.calling(create, accumulate, in_place=True),),
        item_functions=((0, fn),),
        name="approx_distinct",
        made_of=(str(lg_k),),
    )


def approx_quantiles(
    fractions: Sequence[float], fn: Callable[[T], Any] = whole_item, k: int = 200
) -> AggregateOperation[T, QuantilesSketch, list[float | None]]:
    """About the values below which the given fractions of all ``fn(item)`` lie.

    ``approx_quantiles([0.5, 0.99])`` gives the list of the median and the 99th percentile, and
    ``None`` for each if there are no items. A value's rank is off by about 1.3 % of the number of
    items with the default ``k``, less with a greater one; up to ``k`` items are exact. NaNs are
    left out. The sketch is randomised, so the same items may give slightly different results.
    """
    where = "agg.approx_quantiles"
    _require_datasketches(where)
    check_function(fn, where, "fn", "lambda item: item.latency")
    check_whole_number(k, where, "k", 8, 65535)
    ranks = _checked_fractions(where, fractions)

    def create() -> QuantilesSketch:
        return QuantilesSketch.empty(k)

    def accumulate(acc: QuantilesSketch, item: T) -> QuantilesSketch:
        acc.sketch.update(float(fn(item)))
        return acc

    def accumulate_batch(acc: QuantilesSketch, batch: Sequence[T]) -> QuantilesSketch:
        import numpy as np  # a dependency of datasketches

        acc.sketch.update(np.fromiter(call_each(fn, batch), np.float64, len(batch)))
        return acc

    def export(acc: QuantilesSketch) -> list[float | None]:
        if acc.sketch.is_empty():
            return [None] * len(ranks)
        return list(acc.sketch.get_quantiles(ranks, inclusive=True))

    return AggregateOperation(
        create=create,
        accumulate=(accumulate,),
        export=export,
        combine=QuantilesSketch.combine,
        accumulate_batch=(accumulate_batch,),
        loop_bodies=(LoopBody.calling(create, accumulate, in_place=True),),
        item_functions=((0, fn),),
        name="approx_quantiles",
        made_of=(str(k),),
    )


class DistinctSketch:
    """An accumulator that counts different values: a HyperLogLog sketch that can be pickled."""

    __slots__ = ("sketch",)

    def __init__(self, sketch: Any) -> None:
        self.sketch = sketch

    @staticmethod
    def empty(lg_k: int) -> DistinctSketch:
        from datasketches import hll_sketch

        return DistinctSketch(hll_sketch(lg_k))

    @staticmethod
    def restore(data: bytes) -> DistinctSketch:
        from datasketches import hll_sketch

        return DistinctSketch(hll_sketch.deserialize(data))

    def __reduce__(self) -> tuple[Any, ...]:
        return DistinctSketch.restore, (self.sketch.serialize_compact(),)

    def combine(self, other: DistinctSketch) -> DistinctSketch:
        from datasketches import tgt_hll_type

        self.sketch = self._united_with(other).get_result(tgt_hll_type.HLL_8)
        return self

    def estimate(self) -> int:
        # A sketch that was never merged estimates from the order in which values came, a merged
        # one from what it holds. Merged with itself it always does the latter, so that the result
        # does not depend on the number of members or on the engine.
        estimate: float = self._united_with(self).get_estimate()
        return round(estimate)

    def _united_with(self, other: DistinctSketch) -> Any:
        from datasketches import hll_union

        union = hll_union(self.sketch.lg_config_k)
        union.update(self.sketch)
        union.update(other.sketch)
        return union


class QuantilesSketch:
    """An accumulator for quantiles: a KLL sketch of floats that can be pickled."""

    __slots__ = ("sketch",)

    def __init__(self, sketch: Any) -> None:
        self.sketch = sketch

    @staticmethod
    def empty(k: int) -> QuantilesSketch:
        from datasketches import kll_doubles_sketch

        return QuantilesSketch(kll_doubles_sketch(k))

    @staticmethod
    def restore(data: bytes) -> QuantilesSketch:
        from datasketches import kll_doubles_sketch

        return QuantilesSketch(kll_doubles_sketch.deserialize(data))

    def __reduce__(self) -> tuple[Any, ...]:
        return QuantilesSketch.restore, (self.sketch.serialize(),)

    def combine(self, other: QuantilesSketch) -> QuantilesSketch:
        self.sketch.merge(other.sketch)
        return self


def countable(value: Any) -> int | str:
    """What a sketch is given for a value: equal for equal values, in every process.

    Integers of 64 bits and text go as they are. Everything else becomes text that begins with a
    zero character, also the empty string, which sketches ignore.
    """
    kind = type(value)
    if kind is str:
        return value or "\0"
    if kind is int and -(2**63) <= value < 2**63:
        return value  # type: ignore[no-any-return]
    if isinstance(value, (Complex, Decimal)):  # Complex is the type of all numbers but Decimal
        return _countable_number(value)
    if isinstance(value, str):
        return str.__str__(value) or "\0"
    if isinstance(value, bytes):
        return "\0b" + value.decode("latin-1")
    if isinstance(value, tuple):
        # With lengths, so that no two tuples of strings run together into the same text.
        parts = [repr(countable(part)) for part in value]
        return "\0t" + "".join([f"{len(part)}:{part}" for part in parts])
    if kind.__module__ == "numpy" and kind.__name__ in {"bool", "bool_"}:
        return int(value)
    if isinstance(value, UUID):
        return f"\0u{value.int}"
    # A number of 32 bits: among a million values it takes some hundred for others, which is far
    # less than the error of the sketch.
    from jetlet.core.partitioning import stable_hash

    return f"\0h{stable_hash(value)}"


def _countable_number(value: Any) -> int | str:
    if value != value:  # noqa: PLR0124 - a NaN
        return "\0nan"
    if isinstance(value, Complex) and value.imag == 0:
        value = value.real
    number: Any = value
    try:
        whole = int(number) if isinstance(value, (Real, Decimal)) else None
    except OverflowError:  # infinite
        whole = None
    if whole is None or whole != value:
        return f"\0n{hash(value)}"  # the language defines it by the value, for all types alike
    return whole if -(2**63) <= whole < 2**63 else f"\0i{whole}"


def _require_datasketches(where: str) -> None:
    try:
        import datasketches  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"{where} needs the datasketches package: pip install 'jetlet[sketches]'"
        ) from error


def _checked_fractions(where: str, fractions: Sequence[float]) -> list[float]:
    advice = f"Write for example {where}([0.5, 0.99])."
    if isinstance(fractions, (int, float, str)):
        raise InvalidArgumentError(f"{where}(fractions={fractions!r}) must be a list. {advice}")
    ranks: list[Any] = list(fractions)
    for rank in ranks:
        if not isinstance(rank, (int, float)) or not 0 <= rank <= 1:
            raise InvalidArgumentError(
                f"{where}(fractions=...) must be numbers from 0 to 1, not {rank!r}. {advice}"
            )
    if not ranks:
        raise InvalidArgumentError(f"{where}(fractions=[]) asks for nothing. {advice}")
    return [float(rank) for rank in ranks]
