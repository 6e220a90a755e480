"""Transforms that give items timestamps, and take them off again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from jetlet.columns.arrow import is_for_columns
from jetlet.pipeline.expressions.data_types import DataType
from jetlet.pipeline.transforms.base import Asked, KeyFn, Transform, asked_by, type_before

TimestampKind = Literal["none", "native", "ingestion", "function"]
"""Where the timestamps of a stream come from."""
WhenIdle = Literal["advance", "wait"]
"""What event time does when all partitions are quiet."""
DEFAULT_IDLE_TIMEOUT = 60_000
"""Milliseconds after which a source partition that sends nothing is not waited for any more."""


@dataclass(eq=False, kw_only=True)
class TimestampTransform(Transform):
    """Gives items timestamps in mid-pipeline."""

    fn: Callable[[Any], int]
    allowed_lag: int
    idle_timeout: int = DEFAULT_IDLE_TIMEOUT
    when_idle: WhenIdle | None = None

    has_timestamps = True
    makes_times = True

    @cached_property
    def item_type(self) -> DataType:
        return type_before(self)

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [(0, self.fn)]

    def takes_columns(self, ordinal: int) -> bool:
        return is_for_columns(self.fn)

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken

    def asks_for(self, ordinal: int) -> Asked | None:
        return asked_by(self.fn, go_on=True)

    @property
    def reads_isolated(self) -> bool:
        # What is late is told by the items before it, and those of other processors have nothing
        # to do with it.
        return self.is_stream

    def needs_items(self, ordinal: int) -> bool:
        return True

    def emits_events(self, takes_events: bool, are_times_wanted: bool) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class StripTransform(Transform):
    """Takes the timestamps off again; made by the planner."""

    has_timestamps = False

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken

    def asks_for(self, ordinal: int) -> Asked:
        return Asked(frozenset(), go_on=True)

    @property
    def reads_isolated(self) -> bool:
        return True
