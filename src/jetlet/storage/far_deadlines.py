"""FarDeadlines: those of a heap that are far away, on disk and in order.

A heap of (time, number, key) has an entry for every key that will have to be looked at. Where the
keys do not fit in memory their deadlines do not either: those that come first stay in the heap, and
the others wait here, in files that are each in order. Of those with as many deadlines, some are
merged into a larger one when there are too many.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

from jetlet.core.pickling import dump

if TYPE_CHECKING:
    from pathlib import Path

    from jetlet.storage.disk_store import DiskStore

__all__ = ["FarDeadlines"]

MOST_ALIKE: Final = 16
"""Files that have been merged as often as each other."""
MOST_AT_ONCE: Final = 1024
"""Deadlines that are read at once."""

Deadline = tuple[int, int, Any]


class FarDeadlines:
    """Of one heap, which has at most ``limit`` deadlines after each :meth:`park`."""

    def __init__(self, store: DiskStore, limit: int) -> None:
        self._store = store
        self._limit = limit
        self._page = max(1, min(MOST_AT_ONCE, limit // 4))
        self._files: list[_File] = []
        """A heap: the one whose deadlines come first is the first one."""
        self._numbers = count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def park(self, heap: list[Any]) -> None:
        """Take the far half of a heap that is too large."""
        if len(heap) <= self._limit:
            return
        heap.sort()
        far = heap[self._limit // 2 :]
        del heap[self._limit // 2 :]
        self._add(0, far)
        self._count += len(far)

    def bring(self, heap: list[Any]) -> None:
        """See to it that the first deadline of all is the first one in the heap."""
        files = self._files
        if not files or (heap and heap[0][:2] <= files[0].first):
            return
        file = heapq.heappop(files)
        page = file.take()
        self._count -= len(page)
        if file.pages:
            heapq.heappush(files, file)
        heap += page
        heapq.heapify(heap)

    def _add(self, level: int, deadlines: Iterable[Deadline]) -> None:
        path = self._store.directory / f"deadlines-{id(self)}-{next(self._numbers)}"
        with self._store.writing():
            heapq.heappush(self._files, _File(path, level, deadlines, self._page))
        alike = [file for file in self._files if file.level == level]
        if len(alike) >= MOST_ALIKE:
            self._files = [file for file in self._files if file.level != level]
            heapq.heapify(self._files)
            self._add(level + 1, heapq.merge(*map(_rest, alike)))


class _File:
    """Deadlines in order, of which the first ones may have been taken."""

    def __init__(self, path: Path, level: int, deadlines: Iterable[Deadline], page: int) -> None:
        self._path = path
        self.level = level
        self.pages: list[tuple[tuple[int, int], int, int]] = []
        """Of each portion: time and number of its first deadline, where it is, and its size."""
        each = iter(deadlines)
        with path.open("wb") as out:
            while some := list(islice(each, page)):
                data = dump(some)
                self.pages.append((some[0][:2], out.tell(), len(data)))
                out.write(data)
        self.pages.reverse()

    @property
    def first(self) -> tuple[int, int]:
        """Time and number of the first deadline."""
        return self.pages[-1][0]

    def __lt__(self, other: _File) -> bool:
        return self.first < other.first

    def take(self) -> list[Deadline]:
        """Remove the first portion."""
        _, at, size = self.pages.pop()
        with self._path.open("rb") as file:
            file.seek(at)
            page: list[Deadline] = pickle.loads(file.read(size))
        if not self.pages:
            self._path.unlink()
        return page


def _rest(file: _File) -> Iterator[Deadline]:
    while file.pages:
        yield from file.take()
