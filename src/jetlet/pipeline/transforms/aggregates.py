"""Transforms that aggregate, and the one that aggregates all there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jetlet.columns.accumulators import can_accumulate, parts_of
from jetlet.columns.arrow import is_for_columns
from jetlet.columns.best import BestRows
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.functions import can_be_added
from jetlet.pipeline.sink import AnySink, ClientSink, Sink
from jetlet.pipeline.transforms.base import Asked, KeyFn, Transform, Trial, asked_by


@dataclass(eq=False, kw_only=True)
class AggregatingTransform(Transform):
    """What aggregates have in common, per key where ``key_fns`` has a function for each input.

    An item that fails when it is added would leave half of itself behind. So where errors are not
    to end the job each is added to an accumulator of its own before, and ``on_error`` is for that.
    """

    operation: AggregateOperation[Any, Any, Any]
    key_fns: Sequence[KeyFn] | None

    steps_on_error = ()

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [*enumerate(self.key_fns or ()), *self.operation.item_functions]

    def adds_columns(self, ordinal: int) -> bool:
        """True if the operation works on columns of that input, and the key as well."""
        operation = self.operation
        return (can_accumulate(operation.shape) or BestRows.can_do(operation)) and (
            self.key_fns is None or is_for_columns(self.key_fns[ordinal])
        )

    def asks_for(self, ordinal: int) -> Asked | None:
        shape = self.operation.shape
        if shape is None or not self.takes_columns(ordinal):
            return None
        sums = [part.fn for part in parts_of(shape) if part.kind == "sum"]
        keys = [] if self.key_fns is None else [self.key_fns[ordinal]]
        return asked_by(*keys, *sums, go_on=False)

    @property
    def trials(self) -> Sequence[Trial | None]:
        key_fns = self.key_fns or (None,) * self.operation.arity
        return [
            partial(can_be_added, self.operation, ordinal, key_fn)
            for ordinal, key_fn in enumerate(key_fns)
        ]

    @property
    def sinks(self) -> Sequence[AnySink]:
        return [each for each in (self.on_error, self.late) if isinstance(each, Sink | ClientSink)]


@dataclass(eq=False, kw_only=True)
class AggregateTransform(AggregatingTransform):
    """Aggregates all items, or all of a key."""

    emits_empty: bool = True
    """Without a key, there is a result also of no items."""

    has_timestamps = False

    @property
    def keeps_tables(self) -> bool:
        return self.key_fns is not None

    def takes_columns(self, ordinal: int) -> bool:
        return self.adds_columns(ordinal)

    def keeps_order(self, ordinal: int) -> bool:
        return False

    def reads_in_order(self, ordinal: int) -> bool:
        # So that lists and the like are in order; with a key, the edge goes by key.
        return self.key_fns is None

    def needs_items(self, ordinal: int) -> bool:
        return True

    def needs_bounded(self, ordinal: int) -> bool:
        return True

    def absorbs(self, ordinal: int) -> bool:
        return True

    @property
    def has_two_stages(self) -> bool:
        return self.operation.combine is not None

    def output_parallelism(self, parallelism: int) -> int:
        return 1 if self.key_fns is None else parallelism
