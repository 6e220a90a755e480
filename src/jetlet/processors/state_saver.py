"""StateSaver: how the stock processors offer their state to a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jetlet.core.outbox import Outbox

__all__ = ["GLOBAL_KEY", "StateSaver"]

GLOBAL_KEY = None
"""Snapshot key of state that belongs to no key of the user's: the key of an all-to-one edge, so
that the state is restored where the items go."""

MAX_ENTRIES = 1024
"""Small entries that are offered in one call, however many the outbox would take."""


class StateSaver:
    """Offers entries one after the other, over as many calls as the outbox takes.

    The state must not change meanwhile, and the engine sees to that. What is offered may be
    changed by the processor as soon as the snapshot is complete: the outbox serialises it at once.
    """

    __slots__ = ("_entries", "_refused")

    def __init__(self) -> None:
        self._entries: Iterator[tuple[Any, Any]] | None = None
        self._refused: tuple[Any, Any] | None = None

    def save(
        self,
        outbox: Outbox,
        entries: Callable[[], Iterable[tuple[Any, Any]]],
        limit: int = MAX_ENTRIES,
    ) -> bool:
        """One call of ``save_to_snapshot``; ``entries`` is asked at the first one."""
        if self._entries is None:
            self._entries = iter(entries())
        for _ in range(limit):
            entry = self._refused or next(self._entries, None)
            if entry is None:
                self._entries = None
                return True
            if not outbox.offer_to_snapshot(*entry):
                self._refused = entry
                return False
            self._refused = None
        return False
