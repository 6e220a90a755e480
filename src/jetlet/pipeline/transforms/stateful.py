"""Transforms that remember what came before, by key or for all items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.expressions.data_types import DataType
from jetlet.pipeline.keyed_process import KeyedProcess
from jetlet.pipeline.transforms.base import KeyFn, Kind, Transform, tenth, type_before

TIMER_STEP = 100
"""Milliseconds of event time that a timer may be late."""


@dataclass(eq=False, kw_only=True)
class KeyedTransform(Transform):
    """What the transforms have in common that read by key, or without one by one processor."""

    key_fn: KeyFn | None

    def keeps_order(self, ordinal: int) -> bool:
        return self.key_fn is None

    def reads_in_order(self, ordinal: int) -> bool:
        return False  # its edge goes by key, or from all to one

    @property
    def checked_keys(self) -> Sequence[KeyFn | None]:
        return (self.key_fn,)


@dataclass(eq=False, kw_only=True)
class StatefulTransform(KeyedTransform):
    """A user function with state, per key or one for all items."""

    kind: Kind
    create: Callable[[], Any]
    fn: Callable[..., Any]
    ttl: int | None = None
    drop_when: Callable[[Any], object] | None = None
    on_evict: Callable[..., Any] | None = None
    on_end: Callable[..., Any] | None = None

    @property
    def watermark_step(self) -> int:
        return tenth(self.ttl)


@dataclass(eq=False, kw_only=True)
class ProcessTransform(KeyedTransform):
    """A user's process, with state and timers per key."""

    key_fn: KeyFn
    create: Callable[[], KeyedProcess[Any, Any, Any]]
    takes_late: bool = False
    """Nothing comes too late."""

    watermark_step = TIMER_STEP


@dataclass(eq=False, kw_only=True)
class RollingTransform(KeyedTransform):
    """An aggregate that emits its value after each item."""

    operation: AggregateOperation[Any, Any, Any]
    ttl: int | None = None

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [*enumerate(self.checked_keys), *self.operation.item_functions]

    @property
    def watermark_step(self) -> int:
        return tenth(self.ttl)


@dataclass(eq=False, kw_only=True)
class DistinctTransform(KeyedTransform):
    """The first item of each key."""

    key_fn: KeyFn

    bounded_hint = (
        "write .window(windows.tumbling(1000)).distinct(), for those of each window; or forget "
        "what was seen after a while, with .grouping_key(...).filter_stateful(..., ttl=...)"
    )

    @cached_property
    def item_type(self) -> DataType:
        return type_before(self)

    def needs_bounded(self, ordinal: int) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class SortTransform(Transform):
    """All items in order."""

    key: KeyFn | None
    is_reverse: bool
    memory_limit: int

    makes_order = True
    bounded_hint = (
        "sort what is in a window, with .window(windows.tumbling(1000)).aggregate("
        "agg.sorting()); all of a stream cannot be sorted, since an item that is less may always "
        "come"
    )

    @cached_property
    def item_type(self) -> DataType:
        return type_before(self)

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [(0, self.key)]

    def reads_in_order(self, ordinal: int) -> bool:
        return False

    def needs_bounded(self, ordinal: int) -> bool:
        return True

    def absorbs(self, ordinal: int) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class TakeTransform(Transform):
    """The first so many items."""

    count: int

    passes_times = True
    has_two_stages = True

    @cached_property
    def item_type(self) -> DataType:
        return type_before(self)

    def output_parallelism(self, parallelism: int) -> int:
        return 1
