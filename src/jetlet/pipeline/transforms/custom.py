"""The transform for a processor of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jetlet.core.processor import Processor
from jetlet.core.vertex import ProcessorSupplier, Vertex
from jetlet.pipeline.transforms.base import Transform


@dataclass(eq=False, kw_only=True)
class CustomTransform(Transform):
    """A processor of the user's own."""

    supplier: Callable[[], Processor] | ProcessorSupplier

    keeps_tables = True

    @cached_property
    def handles_times(self) -> bool:
        """True if the processor has declared that it takes items with their timestamps."""
        return Vertex(self.name, self.supplier).traits.handles_times

    @cached_property
    def has_timestamps(self) -> bool:
        return self.inputs[0].has_timestamps and self.handles_times

    def needs_items(self, ordinal: int) -> bool:
        return not self.handles_times
