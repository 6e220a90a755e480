"""WindowStage: a stage with a window: what is aggregated is what falls in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from jetlet.core.state_on_disk import StateKind
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.aggregates.adapters import co_aggregate
from jetlet.pipeline.aggregates.collections import to_list
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.aggregates.operations import pick_any
from jetlet.pipeline.checks import (
    check_key_function,
    check_late,
    check_operation,
    check_state,
    check_timestamps,
    co_arguments,
)
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.sink import ClientSink, OnError, Sink
from jetlet.pipeline.stages.join import check_pair_function, keyed_other
from jetlet.pipeline.transforms.joins import PairsTransform
from jetlet.pipeline.transforms.windows import WindowTransform
from jetlet.pipeline.windows import FrameWindow, SessionWindow, Window, WindowResult

if TYPE_CHECKING:
    from jetlet.pipeline.stages.keyed_stage import StageWithKey
    from jetlet.pipeline.stages.stage import Stage

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")
U = TypeVar("U")

LateSink = Sink[Any] | ClientSink[Any]


class WindowStage(Generic[T, K]):
    """Aggregates per window, and per key if there is one.

    Every method takes ``late``, a sink for the items that come too late for their window; without
    one they are dropped and counted as ``late_events`` in the job's metrics. On bounded input
    nothing is late. And every method takes ``state``, which is ``memory`` or ``disk``: where the
    windows are kept; by default where the job's configuration says.
    """

    __slots__ = ("_key_fn", "_stage", "_window")

    def __init__(
        self, stage: Stage[T], window: Window, key_fn: Callable[[T], K] | None = None
    ) -> None:
        if not isinstance(window, Window):
            raise InvalidArgumentError(
                f"window takes a window definition such as windows.tumbling(1000), not {window!r}"
            )
        check_timestamps(stage, "a window")
        self._stage = stage
        self._window = window
        self._key_fn = key_fn

    def __repr__(self) -> str:
        return f"{self._stage!r} with {self._window}"

    if not TYPE_CHECKING:  # to a type checker it has no such attributes, which is right

        def __getattr__(self, name: str) -> Any:
            from jetlet.pipeline.stages.stage import Stage

            hint = ""
            if hasattr(Stage, name):
                hint = (
                    f": write .{name}(...) before window(...), or behind a step that works per "
                    f"window, such as .aggregate(agg.counting())"
                )
            raise AttributeError(f"a stage with a window has no {name!r}{hint}")

    def grouping_key(self, fn: Callable[[T], Any]) -> WindowStage[T, Any]:
        """What follows is done per key ``fn(item)`` and window."""
        check_key_function("grouping_key", fn)
        return WindowStage(self._stage, self._window, fn)

    def aggregate(
        self,
        operation: AggregateOperation[T, Any, R],
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[WindowResult[K, R]]:
        """One :class:`~jetlet.WindowResult` for each window, and key, that has any items."""
        check_operation("aggregate", operation, 1)
        return self._aggregate((), operation, late, state, name, local_parallelism, on_error)

    def aggregate2(
        self,
        *arguments: Any,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[WindowResult[K, Any]]:
        """The items of two stages in one window: ``a.aggregate2(op_a, b, op_b)``, or
        ``a.aggregate2(b, operation)``. ``b`` is a stage with timestamps, with a grouping key where
        this one has one.
        """
        others, operation = co_arguments("aggregate2", arguments, 2)
        return self._aggregate(others, operation, late, state, name, local_parallelism, on_error)

    def aggregate3(
        self,
        *arguments: Any,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[WindowResult[K, Any]]:
        """Like :meth:`aggregate2` with two more stages."""
        others, operation = co_arguments("aggregate3", arguments, 3)
        return self._aggregate(others, operation, late, state, name, local_parallelism, on_error)

    def co_aggregate(
        self,
        *others: Any,
        operation: AggregateOperation[Any, Any, R],
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[WindowResult[K, R]]:
        """The items of any number of stages in one window."""
        check_operation("co_aggregate", operation, len(others) + 1)
        return self._aggregate(others, operation, late, state, name, local_parallelism, on_error)

    def distinct(
        self,
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> Stage[WindowResult[K, T]]:
        """One of each group of equal items in a window; with a key, one item of each key.

        Each comes as the result of a :class:`~jetlet.WindowResult`.
        """
        self._check_lateness("distinct", "aggregate(agg.pick_any())")
        name = name or "window-and-distinct"
        if self._key_fn is not None:
            return self._aggregate((), pick_any(), late, state, name, local_parallelism)
        # Who is equal to whom is found out by key; to the user the items have none.
        items = WindowStage(self._stage, self._window, whole_item)
        stage = items._aggregate((), pick_any(), late, state, name, local_parallelism)
        return stage.map(_without_key, name=f"{name}-items", local_parallelism=local_parallelism)

    @overload
    def inner_join(
        self,
        other: StageWithKey[U, K],
        to_output: None = None,
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[WindowResult[K, tuple[T, U]]]: ...
    @overload
    def inner_join(
        self,
        other: StageWithKey[U, K],
        to_output: Callable[[T, U], R],
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[WindowResult[K, R]]: ...
    def inner_join(
        self,
        other: StageWithKey[Any, K],
        to_output: Callable[[Any, Any], Any] | None = None,
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        """All pairs of items of two stages with the same key in the same window.

        Each pair comes as a :class:`~jetlet.WindowResult` of its own, whose result is
        ``to_output(item, other_item)``, by default the tuple of both. Write
        ``a.grouping_key(f).window(w).inner_join(b.grouping_key(g))``.
        """
        return self._join(
            "inner_join",
            other,
            to_output,
            late,
            state,
            name,
            local_parallelism,
            on_error,
            is_inner=True,
        )

    @overload
    def left_join(
        self,
        other: StageWithKey[U, K],
        to_output: None = None,
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[WindowResult[K, tuple[T, U | None]]]: ...
    @overload
    def left_join(
        self,
        other: StageWithKey[U, K],
        to_output: Callable[[T, U | None], R],
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[WindowResult[K, R]]: ...
    def left_join(
        self,
        other: StageWithKey[Any, K],
        to_output: Callable[[Any, Any], Any] | None = None,
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        """Like :meth:`inner_join`, but an item without a partner comes too, with ``None``."""
        return self._join(
            "left_join",
            other,
            to_output,
            late,
            state,
            name,
            local_parallelism,
            on_error,
            is_inner=False,
        )

    def _join(
        self,
        method: str,
        other: Any,
        to_output: Callable[[Any, Any], Any] | None,
        late: LateSink | None,
        state: StateKind | None,
        name: str | None,
        local_parallelism: int | None,
        on_error: OnError,
        *,
        is_inner: bool,
    ) -> Stage[Any]:
        if self._key_fn is None:
            raise InvalidArgumentError(
                f"{method} pairs items with the same key: write "
                f"stage.grouping_key(lambda item: ...).window(...).{method}(...)"
            )
        self._check_lateness(method, "aggregate2(...) with agg.to_list()")
        keyed_other(method, other, "other")
        check_pair_function(method, to_output)
        name = name or f"window-and-{method.replace('_', '-')}"
        both = co_aggregate(to_list(), to_list())
        stage = self._aggregate((other,), both, late, state, name, local_parallelism)
        return stage._add(
            PairsTransform(
                name=f"{name}-pairs",
                to_output=to_output,
                is_inner=is_inner,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    def _aggregate(
        self,
        others: Sequence[Any],
        operation: AggregateOperation[Any, Any, Any],
        late: LateSink | None,
        state: StateKind | None,
        name: str | None,
        local_parallelism: int | None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        self._check_combine(operation)
        check_late(late)
        check_state("a window", state)
        stages, key_fns = [self._stage], [self._key_fn]
        for other in others:
            stage, key_fn = self._other(other)
            stages.append(stage)
            key_fns.append(key_fn)
        inputs = [self._stage._transform_of(stage, "co-aggregation") for stage in stages]
        return self._stage._add(
            WindowTransform(
                name=name or "window-and-aggregate",
                inputs=inputs,
                window=self._window,
                operation=operation,
                key_fns=[fn for fn in key_fns if fn is not None] or None,
                late=late,
                state=state,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    def _other(self, other: Any) -> tuple[Stage[Any], Callable[[Any], Any] | None]:
        """A further input: a stage, or one with a key where this one has a key."""
        from jetlet.pipeline.stages.keyed_stage import StageWithKey
        from jetlet.pipeline.stages.stage import Stage

        key_fn = None
        if isinstance(other, StageWithKey):
            other, key_fn = other._stage, other._key_fn
        if not isinstance(other, Stage) or (key_fn is None) != (self._key_fn is None):
            wanted = "stage" if self._key_fn is None else "stage.grouping_key(...)"
            raise InvalidArgumentError(
                f"co-aggregation here takes a {wanted}, like the first input, not {other!r}"
            )
        check_timestamps(other, "a window")
        return other, key_fn

    def _check_lateness(self, method: str, instead: str) -> None:
        if self._window.lateness is not None:
            raise InvalidArgumentError(
                f"{method} gives items by themselves, and with allow_lateness all of a window "
                f"would come again: write .{instead}, whose results take the place of each other"
            )

    def _check_combine(self, operation: AggregateOperation[Any, Any, Any]) -> None:
        if operation.combine is not None:
            return
        window = self._window
        if isinstance(window, SessionWindow) or (isinstance(window, FrameWindow) and window.slides):
            raise InvalidArgumentError(
                f"{operation.name} has no combine function, which sliding, cumulative and session "
                f"windows need: give it one, agg.of(..., combine=...), or use windows.tumbling(...)"
            )


def _without_key(result: WindowResult[Any, Any]) -> WindowResult[Any, Any]:
    return result._replace(key=None)
