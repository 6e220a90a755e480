"""WindowStage: a stage with a window: what is aggregated is what falls in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jetlet.errors import InvalidArgumentError, MissingTimestampsError
from jetlet.pipeline.aggregate import AggregateOperation
from jetlet.pipeline.checks import check_key_function, check_operation, co_arguments
from jetlet.pipeline.sink import ClientSink, Sink
from jetlet.pipeline.transforms import WindowTransform
from jetlet.pipeline.windows import SessionWindow, SlidingWindow, Window, WindowResult

if TYPE_CHECKING:
    from jetlet.pipeline.stage import Stage

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")

LateSink = Sink[Any] | ClientSink[Any]


class WindowStage(Generic[T, K]):
    """Aggregates per window, and per key if there is one.

    Every method takes ``late``, a sink for the items that come too late for their window; without
    one they are dropped and counted as ``late_events`` in the job's metrics. On bounded input
    nothing is late.
    """

    __slots__ = ("_key_fn", "_stage", "_window")

    def __init__(
        self, stage: Stage[T], window: Window, key_fn: Callable[[T], K] | None = None
    ) -> None:
        if not isinstance(window, Window):
            raise InvalidArgumentError(
                f"window takes a window definition such as windows.tumbling(1000), not {window!r}"
            )
        if not stage.has_timestamps:
            raise MissingTimestampsError(
                f"stage {stage.name!r} has no timestamps, and a window needs them: write "
                f".add_timestamps(lambda item: ..., allowed_lag=0) before .window(...)"
            )
        self._stage = stage
        self._window = window
        self._key_fn = key_fn

    def __repr__(self) -> str:
        return f"{self._stage!r} with {self._window}"

    if not TYPE_CHECKING:  # to a type checker it has no such attributes, which is right

        def __getattr__(self, name: str) -> Any:
            from jetlet.pipeline.stage import Stage

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
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> Stage[WindowResult[K, R]]:
        """One :class:`~jetlet.WindowResult` for each window, and key, that has any items."""
        check_operation("aggregate", operation, 1)
        return self._aggregate((), operation, late, name, local_parallelism)

    def aggregate2(
        self,
        *arguments: Any,
        late: LateSink | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> Stage[WindowResult[K, Any]]:
        """The items of two stages in one window: ``a.aggregate2(op_a, b, op_b)``, or
        ``a.aggregate2(b, operation)``. ``b`` is a stage with timestamps, with a grouping key where
        this one has one.
        """
        others, operation = co_arguments("aggregate2", arguments, 2)
        return self._aggregate(others, operation, late, name, local_parallelism)

    def aggregate3(
        self,
        *arguments: Any,
        late: LateSink | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> Stage[WindowResult[K, Any]]:
        """Like :meth:`aggregate2` with two more stages."""
        others, operation = co_arguments("aggregate3", arguments, 3)
        return self._aggregate(others, operation, late, name, local_parallelism)

    def co_aggregate(
        self,
        *others: Any,
        operation: AggregateOperation[Any, Any, R],
        late: LateSink | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> Stage[WindowResult[K, R]]:
        """The items of any number of stages in one window."""
        check_operation("co_aggregate", operation, len(others) + 1)
        return self._aggregate(others, operation, late, name, local_parallelism)

    def _aggregate(
        self,
        others: Sequence[Any],
        operation: AggregateOperation[Any, Any, Any],
        late: LateSink | None,
        name: str | None,
        local_parallelism: int | None,
    ) -> Stage[Any]:
        self._check_combine(operation)
        if late is not None and not isinstance(late, Sink | ClientSink):
            raise InvalidArgumentError(
                f"late takes a sink such as sinks.json_lines(...), not {late!r}"
            )
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
                local_parallelism=local_parallelism,
            )
        )

    def _other(self, other: Any) -> tuple[Stage[Any], Callable[[Any], Any] | None]:
        """A further input: a stage, or one with a key where this one has a key."""
        from jetlet.pipeline.keyed_stage import StageWithKey
        from jetlet.pipeline.stage import Stage

        key_fn = None
        if isinstance(other, StageWithKey):
            other, key_fn = other._stage, other._key_fn
        if not isinstance(other, Stage) or (key_fn is None) != (self._key_fn is None):
            wanted = "stage" if self._key_fn is None else "stage.grouping_key(...)"
            raise InvalidArgumentError(
                f"co-aggregation here takes a {wanted}, like the first input, not {other!r}"
            )
        if not other.has_timestamps:
            raise MissingTimestampsError(
                f"stage {other.name!r} has no timestamps, and a window needs them: write "
                f".add_timestamps(lambda item: ..., allowed_lag=0)"
            )
        return other, key_fn

    def _check_combine(self, operation: AggregateOperation[Any, Any, Any]) -> None:
        if operation.combine is not None:
            return
        window = self._window
        if isinstance(window, SessionWindow) or (
            isinstance(window, SlidingWindow) and window.size != window.slide
        ):
            raise InvalidArgumentError(
                f"{operation.name} has no combine function, which sliding and session windows "
                f"need: give it one, agg.of(..., combine=...), or use windows.tumbling(...)"
            )
