"""KeyBatches: the process behind ``batch_by_key``, so many items of a key at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jetlet.pipeline.keyed_process import KeyedProcess, ProcessContext, Timer

__all__ = ["KeyBatches"]

Batch = tuple[Any, list[Any]]
"""A key and items of it."""


@dataclass(frozen=True)
class KeyBatches(KeyedProcess[list[Any], Any, Batch]):
    """A batch is full with ``size`` items, or ``max_wait`` ms after its first one has come."""

    size: int
    max_wait: int | None

    def create(self) -> list[Any]:
        return []

    def on_item(self, ctx: ProcessContext[Batch], state: list[Any], item: Any) -> None:
        state.append(item)
        if len(state) >= self.size:  # it may have been larger when the state was saved
            self.on_end(ctx, state)
        elif len(state) == 1 and self.max_wait is not None:
            ctx.set_timer("wait", ctx.now + self.max_wait, processing_time=True)

    def on_timer(self, ctx: ProcessContext[Batch], state: list[Any], timer: Timer) -> None:
        self.on_end(ctx, state)

    def on_end(self, ctx: ProcessContext[Batch], state: list[Any]) -> None:
        ctx.emit((ctx.key, state))
        ctx.drop_state()
