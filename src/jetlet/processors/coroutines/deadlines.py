"""Deadlines: heaps of (time, number, key) that say which keys have to be looked at, and when."""

from __future__ import annotations

from heapq import heapify, heappush
from typing import Any

__all__ = ["MAX_STALE", "Deadline", "push_all"]

Deadline = tuple[int, int, Any]
"""A time, a number that no other one of the heap has, and a key."""


MAX_STALE = 1024
"""If a heap has more than twice as many deadlines as there are keys, and so many beyond that, most
of them are of keys that are gone: it is made anew."""


def push_all(heap: list[Deadline], deadlines: list[Deadline], *, is_all: bool = False) -> None:
    """Add many at once; they replace those that are there if they are all there should be."""
    if is_all:
        heap.clear()
    if len(deadlines) > len(heap) // 8:
        heap += deadlines
        heapify(heap)
        return
    for deadline in deadlines:
        heappush(heap, deadline)
