"""The transform that writes to a sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jetlet.pipeline.sink import AnySink, Sink
from jetlet.pipeline.transforms.base import Transform


@dataclass(eq=False, kw_only=True)
class SinkTransform(Transform):
    """Writes to a sink."""

    sink: AnySink

    is_end = True

    def needs_items(self, ordinal: int) -> bool:
        return True

    def takes_columns(self, ordinal: int) -> bool:
        return isinstance(self.sink, Sink) and self.sink.takes_columns

    def wanted_parallelism(self, default: int, before: int) -> int:
        preferred = getattr(self.sink, "preferred_local_parallelism", 1)
        return self.local_parallelism or min(preferred, default)

    @property
    def sinks(self) -> Sequence[AnySink]:
        return [self.sink]

    @property
    def shared_vertex(self) -> object:
        return self.sink
