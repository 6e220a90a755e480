"""StateSaver: how the stock processors offer their state to a snapshot; SavedTime: its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import NoneType
from typing import Any

from jetlet.core.items import BroadcastKey
from jetlet.core.outbox import Outbox
from jetlet.storage.disk_table import DiskTable

__all__ = ["GLOBAL_KEY", "SavedTime", "StateSaver", "is_plain"]

GLOBAL_KEY = None
"""Snapshot key of state that belongs to no key of the user's: the key of an all-to-one edge, so
that the state is restored where the items go."""

PLAIN_TYPES = frozenset({bool, int, float, complex, str, bytes, NoneType})
BATCH = 512
"""Small entries that are offered at once: less than a millisecond's worth."""


class StateSaver:
    """Offers entries in batches, one in each call.

    The state must not change meanwhile, and the engine sees to that. What is offered may be
    changed by the processor as soon as the snapshot is complete: the outbox serialises it at once.
    """

    __slots__ = ("_entries", "_refused")

    def __init__(self) -> None:
        self._entries: Iterator[tuple[Any, Any]] | None = None
        self._refused: list[tuple[Any, Any]] | None = None

    def save(
        self,
        outbox: Outbox,
        entries: Callable[[], Iterable[tuple[Any, Any]]],
        limit: int = BATCH,
    ) -> bool:
        """One call of ``save_to_snapshot``; ``entries`` is asked at the first one."""
        if self._entries is None:
            self._entries = iter(entries())
        batch = self._refused or list(islice(self._entries, limit))
        if batch and not outbox.offer_batch_to_snapshot(batch):
            self._refused = batch
            return False
        self._refused = None
        if len(batch) == limit:
            return False
        self._entries = None
        return True

    def save_table(self, outbox: Outbox, table: Mapping[Any, Any]) -> bool:
        """The same for all of a table, which may change as soon as this has returned ``True``.

        If it is large, and its values are of types that cannot be changed, a copy of it is saved
        while the processor goes on; and so is what is on disk.
        """
        if isinstance(table, DiskTable) and table.is_on_disk:
            outbox.save_later(table.frozen())
            return True
        if self._entries is None and len(table) > BATCH and is_plain(table.values()):
            outbox.save_later(dict(table).items())
            return True
        return self.save(outbox, table.items)


def is_plain(values: Iterable[Any]) -> bool:
    """True if none of the values can be changed, going by their types."""
    return PLAIN_TYPES.issuperset(map(type, values))


class SavedTime:
    """How far a processor is in event time, on its way through a snapshot.

    Every processor gets the entries of all. They had seen the same watermarks, or else nothing was
    promised but that nothing is lost: so each goes on from the lowest.
    """

    __slots__ = ("_lowest",)

    def __init__(self) -> None:
        self._lowest: int | None = None

    @staticmethod
    def entry(global_index: int, time: int) -> tuple[BroadcastKey, int]:
        """The entry of a processor that is at ``time``."""
        return BroadcastKey(("time", global_index)), time

    def restore(self, time: int) -> None:
        """Take an entry, which is known by its :class:`~jetlet.core.items.BroadcastKey`."""
        self._lowest = time if self._lowest is None else min(self._lowest, time)

    def restored(self, default: int) -> int:
        """Where to go on."""
        return default if self._lowest is None else self._lowest
