"""TakeProcessor: the first items, and then no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from jetlet.core.inbox import Inbox
from jetlet.core.traits import Repeats, State, Traits
from jetlet.processors.base import STATELESS, BatchProcessor
from jetlet.processors.state_saver import GLOBAL_KEY

__all__ = ["TakeProcessor"]

_FINAL: Final = Traits(
    state=State.SAVED, repeats=Repeats.IN_ORDER, emits_at_end=False, needs_index=False
)
_PRELIMINARY: Final = replace(STATELESS, repeats=Repeats.IN_ORDER)


class TakeProcessor(BatchProcessor):
    """Passes on the first ``count`` items that come to it, and then has enough.

    Several may go before the one that counts, so that few items travel far. These are not
    ``is_final`` and save nothing: it does no harm if they pass on more.
    """

    def __init__(self, count: int, *, is_final: bool = True) -> None:
        super().__init__()
        self.traits = _FINAL if is_final else _PRELIMINARY
        self._left = count
        self._is_final = is_final

    def process_batch(self, ordinal: int, batch: Sequence[object]) -> None:
        first = batch if len(batch) <= self._left else batch[: self._left]
        self.send(first)
        self._left -= len(first)
        self.has_enough = self._left == 0

    def save_to_snapshot(self) -> bool:
        return not self._is_final or self.outbox.offer_to_snapshot(GLOBAL_KEY, self._left)

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for _, self._left in inbox.take():
            self.has_enough = self._left == 0
