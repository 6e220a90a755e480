"""Transforms that read a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jetlet.columns.arrow import is_for_columns
from jetlet.pipeline.expressions.data_types import DataType
from jetlet.pipeline.source import BatchSource
from jetlet.pipeline.stream_source import StreamSource
from jetlet.pipeline.transforms.base import Transform
from jetlet.pipeline.transforms.timestamps import DEFAULT_IDLE_TIMEOUT, TimestampKind, WhenIdle


@dataclass(eq=False, kw_only=True)
class SourceTransform(Transform):
    """Reads a bounded source."""

    source: BatchSource[Any]

    @cached_property
    def item_type(self) -> DataType:
        return self.source.item_type()

    def gives_columns(self, are_taken: bool) -> bool:
        return self.source.has_columns

    def wanted_parallelism(self, default: int, before: int) -> int:
        return self.local_parallelism or min(self.source.preferred_local_parallelism, default)


@dataclass(eq=False, kw_only=True)
class StreamSourceTransform(Transform):
    """Reads an unbounded source."""

    source: StreamSource[Any]
    timestamps: TimestampKind = "none"
    timestamp_fn: Callable[[Any], int] | None = None
    allowed_lag: int = 0
    idle_timeout: int = DEFAULT_IDLE_TIMEOUT
    when_idle: WhenIdle | None = None

    is_stream = True
    makes_times = True

    @cached_property
    def item_type(self) -> DataType:
        return self.source.item_type()

    @property
    def has_timestamps(self) -> bool:
        return self.timestamps != "none"

    def gives_columns(self, are_taken: bool) -> bool:
        fn = self.timestamp_fn
        return self.source.has_columns and (fn is None or is_for_columns(fn))

    def emits_events(self, takes_events: bool, are_times_wanted: bool) -> bool:
        return self.has_timestamps

    def wanted_parallelism(self, default: int, before: int) -> int:
        return self.local_parallelism or min(self.source.preferred_local_parallelism, default)
