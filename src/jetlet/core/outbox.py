"""Where a processor puts its output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

Ordinals = int | Sequence[int] | None
"""One outbound edge, several of them, or ``None`` for all."""


class Outbox(Protocol):
    """The output of one processor. Nothing here blocks.

    Any offer may be refused by returning ``False``. The processor must then return from its
    callback, keep its state, and offer *the same* item or batch to *the same* ordinals when it is
    called again. Offering anything else is a breach of the contract and fails the job.
    """

    @property
    def edge_count(self) -> int:
        """How many outbound edges there are."""

    def offer(self, item: Any, ordinal: Ordinals = None) -> bool:
        """Offer one item, or a :class:`~jetlet.core.items.Watermark`."""

    def offer_batch(self, batch: Sequence[Any], ordinal: Ordinals = None) -> bool:
        """Offer many user items at once, by far the cheaper way.

        The batch passes into the engine's hands: the processor must not change it afterwards.
        """

    def offer_to_snapshot(self, key: Any, value: Any) -> bool:
        """Offer a part of the processor's state to the snapshot being taken.

        A key may have several parts. All of them come back, in any order.
        """

    def offer_batch_to_snapshot(self, entries: Sequence[tuple[Any, Any]]) -> bool:
        """Offer many ``(key, value)`` parts of the state at once, by far the cheaper way.

        They are serialised at once; the processor may change them afterwards.
        """

    def save_later(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Let parts of the state be serialised bit by bit, between later calls; never refused.

        For a large state: the processor goes on at once. Until they are saved neither the entries
        nor anything that the iterable reads may change. So pass the items of a copy of a table
        whose values are never changed in place, such as numbers.
        """

    def has_unfinished_item(self) -> bool:
        """True if something was refused and has not been offered again yet."""
