"""Transforms that join stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jetlet.pipeline.transforms.base import KeyFn, Transform, tenth


@dataclass(eq=False, kw_only=True)
class HashJoinTransform(Transform):
    """Joins ``inputs[0]`` with tables made of the other inputs."""

    probe_key_fns: Sequence[KeyFn]
    build_key_fns: Sequence[KeyFn]
    to_output: Callable[..., Any] | None
    are_inner: Sequence[bool]
    """Of each of the other inputs: whether items without a match there are dropped."""

    keeps_tables = True

    bounded_hint = "the stages it is joined with are kept in memory, so they must be bounded"

    @cached_property
    def has_timestamps(self) -> bool:
        return self.inputs[0].has_timestamps

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [
            *((0, fn) for fn in self.probe_key_fns),
            *enumerate(self.build_key_fns, 1),
        ]

    def keeps_order(self, ordinal: int) -> bool:
        return ordinal == 0

    def needs_items(self, ordinal: int) -> bool:
        return ordinal > 0

    def needs_bounded(self, ordinal: int) -> bool:
        return ordinal > 0

    def reads_first(self, ordinal: int) -> bool:
        return ordinal > 0


@dataclass(eq=False, kw_only=True)
class IntervalJoinTransform(Transform):
    """Pairs of items of two inputs with equal keys, by how far apart they are in time."""

    key_fns: Sequence[KeyFn]
    lower: int
    upper: int
    to_output: Callable[[Any, Any], Any] | None

    def keeps_order(self, ordinal: int) -> bool:
        return False

    @property
    def checked_keys(self) -> Sequence[KeyFn | None]:
        return self.key_fns

    @property
    def watermark_step(self) -> int:
        return tenth(self.upper - self.lower + 1)


@dataclass(eq=False, kw_only=True)
class PairsTransform(Transform):
    """The pairs of the two lists in each result of a window; made by the joins of windows."""

    to_output: Callable[[Any, Any], Any] | None
    is_inner: bool

    passes_times = True
