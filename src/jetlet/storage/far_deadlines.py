"""FarDeadlines: those of a heap that are far away, on disk and in order.

A heap of (time, number, key) has an entry for every key that will have to be looked at. Where the
keys do not fit in memory their deadlines do not either: those that come first stay in the heap, and
the others wait here.
"""

from __future__ import annotations

import pickle
from heapq import heapify
from itertools import islice
from typing import TYPE_CHECKING, Any

from jetlet.core.pickling import dump

if TYPE_CHECKING:
    from jetlet.storage.disk_store import DiskStore

__all__ = ["FarDeadlines"]

_OFFSET = 1 << 72
"""Makes numbers of any sign such that their bytes are in their order."""


class FarDeadlines:
    """Of one heap, which has at most ``limit`` deadlines after each :meth:`park`."""

    def __init__(self, store: DiskStore, limit: int) -> None:
        self._store = store
        self._prefix = store.prefix()
        self._limit = limit
        self._first: tuple[int, int] | None = None
        """Time and number of the first one here."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def park(self, heap: list[Any]) -> None:
        """Take the far half of a heap that is too large."""
        if len(heap) <= self._limit:
            return
        from rocksdict import WriteBatch

        heap.sort()
        far = heap[self._limit // 2 :]
        del heap[self._limit // 2 :]
        batch = WriteBatch(raw_mode=True)
        for time, number, key in far:
            batch.put(self._place(time, number), dump((time, number, key)))
        self._store.write(batch)
        self._count += len(far)
        first = far[0][:2]
        self._first = first if self._first is None else min(first, self._first)

    def bring(self, heap: list[Any]) -> None:
        """See to it that the first deadline of all is the first one in the heap."""
        if self._first is None or (heap and heap[0][:2] <= self._first):
            return
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        # Not from the beginning: RocksDB would go over all that was there before.
        entries = self._store.entries(self._prefix, self._place(*self._first))
        self._first = None
        for place, data in islice(entries, max(1, self._limit // 4)):
            heap.append(pickle.loads(data))
            batch.delete(place)
            self._count -= 1
        for _, data in islice(entries, 1):
            self._first = pickle.loads(data)[:2]
        heapify(heap)
        self._store.write(batch)

    def _place(self, time: int, number: int) -> bytes:
        return self._prefix + (time + _OFFSET).to_bytes(10, "big") + number.to_bytes(8, "big")
