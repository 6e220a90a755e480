"""The transform that aggregates per window."""

from __future__ import annotations

from dataclasses import dataclass

from jetlet.pipeline.transforms.aggregates import AggregatingTransform
from jetlet.pipeline.windows import Window


@dataclass(eq=False, kw_only=True)
class WindowTransform(AggregatingTransform):
    """Aggregates per window."""

    window: Window

    def takes_columns(self, ordinal: int) -> bool:
        return self.has_two_stages and self.adds_columns(ordinal)

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken and self.operation.has_plain_result

    def keeps_order(self, ordinal: int) -> bool:
        return False

    def emits_events(self, takes_events: bool, are_times_wanted: bool) -> bool:
        return are_times_wanted  # results need not be given what is taken off again

    @property
    def watermark_step(self) -> int:
        return self.window.watermark_step

    @property
    def has_two_stages(self) -> bool:
        return self.window.has_frames and self.operation.combine is not None

    def output_parallelism(self, parallelism: int) -> int:
        return 1 if self.key_fns is None else parallelism
