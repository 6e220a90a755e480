"""Transforms that keep nothing from one item, or batch of items, to the next."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, takewhile
from typing import Any

from jetlet.columns.arrow import is_for_columns
from jetlet.errors import MissingTimestampsError
from jetlet.pipeline.expressions.data_types import DataType, unified
from jetlet.pipeline.expressions.expression import Expression, node_of
from jetlet.pipeline.expressions.nodes import Node as ExpressionNode
from jetlet.pipeline.expressions.schemas import type_of_results
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.pipeline.sink import OnError
from jetlet.pipeline.transforms.base import Asked, KeyFn, Kind, Transform, asked_by, type_before


@dataclass(eq=False, kw_only=True)
class StatelessTransform(Transform):
    """One user function per item; runs of these are fused."""

    kind: Kind
    fn: Callable[[Any], Any]
    reported_as: str | None = None
    """Name of the stage that its errors belong to, if it is not a stage of its own."""

    passes_times = True

    @cached_property
    def item_type(self) -> DataType:
        before = type_before(self)
        return before if self.kind == "filter" else type_of_results(self.kind, self.fn, before)

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [(0, self.fn)]

    @property
    def first_filters(self) -> Sequence[ExpressionNode]:
        is_known = self.kind == "filter" and isinstance(self.fn, Expression)
        return [node_of(self.fn)] if is_known else []

    def takes_columns(self, ordinal: int) -> bool:
        return self.kind != "flat_map" and is_for_columns(self.fn)

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken

    def asks_for(self, ordinal: int) -> Asked | None:
        return asked_by(self.fn, go_on=self.kind == "filter") if self.takes_columns(0) else None

    @property
    def steps_on_error(self) -> Sequence[tuple[str | None, OnError]]:
        return ((self.reported_as, self.on_error),)

    def as_step(self, name: str) -> StatelessTransform:
        return replace(self, name=name, reported_as=self.reported_as or name)


@dataclass(eq=False, kw_only=True)
class FusedTransform(Transform):
    """Several stateless steps in one vertex; made by the planner."""

    steps: Sequence[StatelessTransform]

    passes_times = True

    @property
    def first_filters(self) -> Sequence[ExpressionNode]:
        filters = takewhile(bool, (step.first_filters for step in self.steps))
        return list(chain.from_iterable(filters))

    def takes_columns(self, ordinal: int) -> bool:
        return self.steps[0].takes_columns(ordinal)

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken and all(step.takes_columns(0) for step in self.steps)

    def asks_for(self, ordinal: int) -> Asked | None:
        fields: frozenset[str] = frozenset()
        for step in self.steps:
            asked = step.asks_for(0)
            if asked is None:
                return None
            fields |= asked.fields
            if not asked.go_on:
                return Asked(fields, go_on=False)
        return Asked(fields, go_on=True)

    @property
    def steps_on_error(self) -> Sequence[tuple[str | None, OnError]]:
        return [each for step in self.steps for each in step.steps_on_error]


@dataclass(eq=False, kw_only=True)
class BatchedTransform(Transform):
    """A user function per list of items."""

    fn: Callable[..., Any]
    max_batch: int
    max_wait: float = 0.0
    is_blocking: bool = False
    service: ServiceFactory[Any] | None = None
    max_concurrency: int = 1
    """Lists that a coroutine function is given at a time."""
    key_fn: KeyFn | None = None
    """Items come by this key."""

    def keeps_order(self, ordinal: int) -> bool:
        return self.key_fn is None

    @property
    def checked_keys(self) -> Sequence[KeyFn | None]:
        return (self.key_fn,)

    @property
    def is_async(self) -> bool:
        """True if it is a coroutine function."""
        return inspect.iscoroutinefunction(self.fn)


@dataclass(eq=False, kw_only=True)
class TableMapTransform(Transform):
    """A user function per batch, as a table of Arrow's."""

    fn: Callable[[Any], Any]
    schema: Any

    def takes_columns(self, ordinal: int) -> bool:
        return True

    def gives_columns(self, are_taken: bool) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class MergeTransform(Transform):
    """All items of all inputs."""

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken

    @cached_property
    def item_type(self) -> DataType:
        return unified(*(each.item_type for each in self.inputs))

    def check_events(self, name: str, takes: Sequence[bool]) -> None:
        if len(set(takes)) > 1:
            raise MissingTimestampsError(
                f"stage {name!r} merges stages with and without timestamps: write "
                f".add_timestamps(...) on all of them, or behind the merge"
            )


@dataclass(eq=False, kw_only=True)
class RebalanceTransform(Transform):
    """Spreads items over the whole job; becomes a property of the edge behind it."""

    key_fn: KeyFn | None

    breaks_order = True

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken

    @cached_property
    def item_type(self) -> DataType:
        return type_before(self)

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [(0, self.key_fn)]

    def keeps_order(self, ordinal: int) -> bool:
        return False

    def wanted_parallelism(self, default: int, before: int) -> int:
        return before

    @property
    def routing(self) -> RebalanceTransform:
        return self


@dataclass(eq=False, kw_only=True)
class SpoolTransform(Transform):
    """Holds all items back until its input has ended; made by the planner."""

    def absorbs(self, ordinal: int) -> bool:
        return True
