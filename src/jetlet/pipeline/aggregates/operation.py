"""What an aggregate operation is: :class:`AggregateOperation`, and :func:`of` to make one.

``jetlet.agg`` has the stock operations. A processor that has a batch does not accumulate item by
item: it asks once for ``batch_accumulator()`` or ``keyed_accumulator()`` and uses what it got for
every batch.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar, cast, overload

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.aggregates.loop import KeyedLoop, LoopBody, keyed_loop
from jetlet.pipeline.aggregates.shape import Best, Shape
from jetlet.pipeline.aggregates.tables import (
    TableCombiner,
    TableDeductor,
    combine_loop,
    deduct_loop,
)
from jetlet.pipeline.expressions.expression import check_results
from jetlet.pipeline.functions import whole_item

__all__ = [
    "AggregateOperation",
    "check_function",
    "check_operation",
    "check_whole_number",
    "of",
]

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
A = TypeVar("A")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")


_OwnBatch: TypeAlias = (
    Callable[[A, Sequence[T]], A] | Sequence[Callable[[A, Sequence[Any]], A] | None] | None
)


def _same_as_export(accumulator: Any) -> Any:
    raise NotImplementedError  # only stands for "not given"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AggregateOperation(Generic[T_contra, A, R_co]):
    """How many items become one result, in steps that an engine can spread and repeat.

    An accumulator lives in one thread at a time. It is pickled when it travels between processes
    and into snapshots. ``None`` items are items like any other. An operation itself is immutable
    and is pickled to where it runs.
    """

    create: Callable[[], A]
    """Makes a new accumulator that has seen no items."""
    accumulate: tuple[Callable[[A, Any], A], ...]
    """Adds an item, one function per input: returns the accumulator, changed or another one."""
    export: Callable[[A], R_co]
    """The result so far. The accumulator is used further, so the result shares no state with it."""
    finish: Callable[[A], R_co] = _same_as_export
    """The final result; may use up the accumulator. ``export`` if not given."""
    combine: Callable[[A, A], A] | None = None
    """Adds what the right accumulator has seen to the left one, which it may change and return.

    It never changes the right one, nor keeps parts of it that a later call would change. Without
    ``combine`` there is no two-stage aggregation and there are no sliding windows.
    """
    deduct: Callable[[A, A], A] | None = None
    """Undoes ``combine`` with the same right accumulator. Makes sliding windows cheaper."""
    accumulate_batch: tuple[Callable[[A, Sequence[Any]], A] | None, ...] | None = None
    """Adds a batch, one function per input; use :meth:`batch_accumulator`."""
    accumulate_keyed: tuple[KeyedLoop | None, ...] | None = None
    """Adds a batch by key, one function per input; use :meth:`keyed_accumulator`."""
    loop_bodies: tuple[LoopBody | None, ...] | None = None
    """What :meth:`keyed_accumulator` compiles where ``accumulate_keyed`` has no function."""
    item_count: Callable[[A], int] | None = None
    """How many items the accumulator has seen, if it knows. A sliding window then need not keep
    count itself to tell when a key has none left."""
    shape: Shape | None = None
    """What an accumulator is made of, if it is sums and counts: then it can be worked out over
    columns."""
    best: Best | None = None
    """Which item an accumulator is, if it is one of them: then all others need not become items."""
    has_plain_result: bool = False
    """True if the result is what the accumulator is, with tuples for lists."""
    name: str = "aggregate"
    item_functions: tuple[tuple[int, Callable[[Any], Any]], ...] = ()
    """The functions that it calls with items as they come, each with the number of the input."""
    made_of: tuple[str, ...] = ()
    """What, besides the name, says what an accumulator is: the definitions of the operations that
    this one is made of, and parameters such as the ``n`` of ``top_n``."""

    def __post_init__(self) -> None:
        if self.finish is _same_as_export:
            object.__setattr__(self, "finish", self.export)
        for field in ("accumulate_batch", "accumulate_keyed", "loop_bodies"):
            functions = getattr(self, field)
            if functions is not None and len(functions) != self.arity:
                raise InvalidArgumentError(
                    f"{self.name}: {field} has {len(functions)} entries for {self.arity} "
                    "input(s). Write one per function in accumulate, None where there is none."
                )

    def __repr__(self) -> str:
        return f"<AggregateOperation {self.name}>"

    @property
    def definition(self) -> str:
        """What accumulators are made by, for snapshots: others do not go on with them."""
        return f"{self.name}({', '.join(self.made_of)})"

    @property
    def arity(self) -> int:
        """How many inputs it aggregates; 1 but for co-aggregation."""
        return len(self.accumulate)

    def batch_accumulator(self, index: int = 0) -> Callable[[A, Sequence[Any]], A]:
        """The function that adds a batch of input ``index`` to an accumulator and returns it."""
        own = self.accumulate_batch[index] if self.accumulate_batch is not None else None
        if own is not None:
            return own
        accumulate = self.accumulate[index]

        def accumulate_each(acc: A, batch: Sequence[Any]) -> A:
            return functools.reduce(accumulate, batch, acc)

        return accumulate_each

    def keyed_accumulator(self, index: int = 0) -> KeyedLoop:
        """The function ``(table, keys, batch)`` that adds a batch of input ``index`` by key.

        ``table`` is a plain dict of accumulators. ``keys`` is parallel to ``batch`` and is read
        once; it may be an iterator, or the batch itself. Every key gets an accumulator, even if
        the operation ignores all of its items. Ask once and keep the function: it is compiled.
        """
        own = self.accumulate_keyed[index] if self.accumulate_keyed is not None else None
        return own if own is not None else keyed_loop(self.loop_body(index), self.name)

    def loop_body(self, index: int = 0) -> LoopBody:
        """How input ``index`` is written into generated loops."""
        own = self.loop_bodies[index] if self.loop_bodies is not None else None
        return own if own is not None else LoopBody.calling(self.create, self.accumulate[index])

    def table_combiner(self, *, copies: bool = False) -> TableCombiner:
        """The function that adds entries, pairs of key and accumulator, to a table by key.

        With ``copies`` the accumulators stay the caller's, otherwise the table may keep them. Ask
        once and keep the function, as for all of these.
        """
        assert self.combine is not None
        return combine_loop(self.create, self.combine, self.name, copies=copies)

    def table_deductor(self) -> TableDeductor:
        """The function that takes entries off a table to which they had been added before."""
        assert self.deduct is not None
        return deduct_loop(self.deduct, self.item_count, self.name)

    def and_then(self, fn: Callable[[R_co], S]) -> AggregateOperation[T_contra, A, S]:
        """The same operation with ``fn`` applied to its result."""
        check_function(fn, "AggregateOperation.and_then", "fn", "lambda result: round(result, 2)")
        export, finish = self.export, self.finish

        def export_then(acc: A) -> S:
            return fn(export(acc))

        def finish_then(acc: A) -> S:
            return fn(finish(acc))

        mapped = replace(
            self,
            export=cast(Any, export_then),
            finish=cast(Any, finish_then),
            has_plain_result=False,
        )
        return cast("AggregateOperation[T_contra, A, S]", mapped)

    def without_deduct(self) -> AggregateOperation[T_contra, A, R_co]:
        """The same operation without ``deduct``: sliding windows combine all frames each time.

        Slower, but a rounding error, an infinity or a NaN leaves the result with its item. Sums of
        integers, decimals and fractions have no such trouble.
        """
        return replace(self, deduct=None)


@overload
def of(
    *,
    create: Callable[[], A],
    accumulate: Callable[[A, T], A] | Sequence[Callable[[A, Any], A]],
    combine: Callable[[A, A], A] | None = None,
    deduct: Callable[[A, A], A] | None = None,
    export: None = None,
    finish: None = None,
    accumulate_batch: _OwnBatch[A, T] = None,
) -> AggregateOperation[T, Any, A]: ...
@overload
def of(
    *,
    create: Callable[[], A],
    accumulate: Callable[[A, T], A] | Sequence[Callable[[A, Any], A]],
    combine: Callable[[A, A], A] | None = None,
    deduct: Callable[[A, A], A] | None = None,
    export: Callable[[A], R],
    finish: Callable[[A], R] | None = None,
    accumulate_batch: _OwnBatch[A, T] = None,
) -> AggregateOperation[T, Any, R]: ...
@overload
def of(
    *,
    create: Callable[[], A],
    accumulate: Callable[[A, T], A] | Sequence[Callable[[A, Any], A]],
    combine: Callable[[A, A], A] | None = None,
    deduct: Callable[[A, A], A] | None = None,
    export: None = None,
    finish: Callable[[A], R],
    accumulate_batch: _OwnBatch[A, T] = None,
) -> AggregateOperation[T, Any, R]: ...
def of(
    *,
    create: Callable[[], A],
    accumulate: Callable[[A, T], A] | Sequence[Callable[[A, Any], A]],
    combine: Callable[[A, A], A] | None = None,
    deduct: Callable[[A, A], A] | None = None,
    export: Callable[[A], Any] | None = None,
    finish: Callable[[A], Any] | None = None,
    accumulate_batch: _OwnBatch[A, T] = None,
) -> AggregateOperation[T, A, Any]:
    """An aggregate operation of your own; see :class:`AggregateOperation` for each function.

    Only ``create`` and ``accumulate`` are needed::

        longest = agg.of(
            create=str,
            accumulate=lambda acc, line: line if len(line) > len(acc) else acc,
            combine=lambda left, right: right if len(right) > len(left) else left,
        )

    - ``accumulate`` returns the accumulator, also if it changed it in place, and never ``None``.
      A list of functions makes an operation for that many inputs.
    - Without ``export`` the result so far is that of ``finish`` for a deep copy of the accumulator;
      without either, the result is the accumulator.
    - ``combine`` allows aggregation in two stages and sliding windows; ``deduct`` makes the latter
      faster.
    """
    where = "agg.of"
    check_function(create, where, "create", "list")
    accumulators: tuple[Callable[[A, Any], A], ...] = (
        (accumulate,) if callable(accumulate) else tuple(accumulate)
    )
    batches: tuple[Callable[[A, Sequence[Any]], A] | None, ...]
    if accumulate_batch is None:
        batches = (None,) * len(accumulators)
    else:
        batches = (accumulate_batch,) if callable(accumulate_batch) else tuple(accumulate_batch)
    if not accumulators:
        raise InvalidArgumentError("agg.of(accumulate=[]) has no input: give one function each.")
    if len(batches) != len(accumulators):
        raise InvalidArgumentError(
            f"agg.of(): accumulate_batch has {len(batches)} functions, accumulate "
            f"{len(accumulators)}. Give one per input, None where there is none."
        )
    for function in accumulators:
        check_function(function, where, "accumulate", "lambda acc, item: acc + item")
    for parameter, optional, example in (
        ("combine", combine, "lambda left, right: left + right"),
        ("deduct", deduct, "lambda left, right: left - right"),
        ("export", export, "tuple"),
        ("finish", finish, "tuple"),
        *(("accumulate_batch", batch, "lambda acc, batch: acc + sum(batch)") for batch in batches),
    ):
        if optional is not None:
            check_function(optional, where, parameter, example)
    if deduct is not None and combine is None:
        raise InvalidArgumentError("agg.of(deduct=...) is of use only with combine=...: give both.")
    if finish is None:
        finish = export if export is not None else whole_item
    if export is None:
        export = _finish_of_copy(finish)
    return AggregateOperation(
        create=create,
        accumulate=tuple(map(_checked, accumulators)),
        export=export,
        finish=finish,
        combine=combine,
        deduct=deduct,
        accumulate_batch=tuple(
            batch if batch is not None else _checked_batch(function)
            for function, batch in zip(accumulators, batches, strict=True)
        ),
        loop_bodies=tuple(
            LoopBody.calling(create, function, forbid_none=_fail_on_none)
            for function in accumulators
        ),
        name="of",
        made_of=(create.__qualname__,) if isinstance(create, type) else (),
    )


def _finish_of_copy(finish: Callable[[A], R]) -> Callable[[A], R]:
    def export(acc: A) -> R:
        return finish(copy.deepcopy(acc))

    return export


def _checked(accumulate: Callable[[A, Any], A]) -> Callable[[A, Any], A]:
    def checked(acc: A, item: Any) -> A:
        acc = accumulate(acc, item)
        if acc is None:
            _fail_on_none()
        return acc

    return checked


def _checked_batch(accumulate: Callable[[A, Any], A]) -> Callable[[A, Sequence[Any]], A]:
    def checked(acc: A, batch: Sequence[Any]) -> A:
        for item in batch:
            acc = accumulate(acc, item)
            if acc is None:
                _fail_on_none()
        return acc

    return checked


def _fail_on_none() -> None:
    raise InvalidArgumentError(
        "The function accumulate of agg.of() returned None. It must return the accumulator, also "
        "after changing it in place: write `def add(acc, item): acc.append(item); return acc` "
        "instead of `lambda acc, item: acc.append(item)`."
    )


def check_function(value: object, where: str, parameter: str, example: str) -> None:
    """Refuse what cannot be called on an item."""
    check_results(where, value)
    if not callable(value):
        raise InvalidArgumentError(
            f"{where}({parameter}=...) takes a function, not {_shortened(value)}. "
            f"Write for example {parameter}={example}."
        )
    if inspect.iscoroutinefunction(value):
        raise InvalidArgumentError(
            f"{where}({parameter}=...) takes a plain function, not a coroutine function. "
            "Await what you need before the aggregation, with .map_async(...)."
        )


def check_operation(value: object, where: str) -> None:
    """Refuse what is not an aggregate operation with one input."""
    if not isinstance(value, AggregateOperation):
        hint = ""
        if inspect.isfunction(value) and str(value.__module__).startswith("jetlet."):
            hint = f" Write agg.{value.__name__}(...), with its parentheses."
        raise InvalidArgumentError(
            f"{where} takes an aggregate operation, such as agg.counting(), "
            f"not {_shortened(value)}.{hint}"
        )
    if value.arity != 1:
        raise InvalidArgumentError(
            f"{where} takes operations with one input; {value.name} has {value.arity}. "
            "Pass an operation for several inputs to a co-aggregation as it is."
        )


def check_whole_number(
    value: object, where: str, parameter: str, least: int, most: int | None = None
) -> None:
    """Refuse what is not an int within the limits."""
    if isinstance(value, int) and not isinstance(value, bool):
        if least <= value and (most is None or value <= most):
            return
    limits = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InvalidArgumentError(
        f"{where}({parameter}=...) takes a whole number {limits}, not {_shortened(value)}."
    )


def _shortened(value: object, limit: int = 60) -> str:
    text = repr(value)
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    return f"{text} ({type(value).__name__})"
