"""Sweep: goes over all of a state, a few keys at a time, so that older files are not needed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from jetlet.snapshots.incremental import Incremental
from jetlet.storage.disk_table import DiskTable

__all__ = ["MAX_CHAIN", "Sweep", "slice_size"]

MAX_SWEEP: Final = 256
"""A sweep takes so many snapshots at the most: a chain is read within seconds, and a snapshot takes
longer by less than a hundredth of what it would take to save everything."""
MIN_SLICE: Final = 1024
"""Keys that a sweep takes at once at the least: they cost about as much as the file itself."""
MAX_CHAIN: Final = 4 * MAX_SWEEP
"""A chain gets as long if nobody lives long enough to end a sweep: then one does all at once."""
LISTED: Final = 1 << 14
"""Keys that are listed in one step."""


class Sweep:
    """Takes all keys of a processor's state in turn, a few in every snapshot, as if touched.

    Keys that are added or changed meanwhile are saved with the snapshots that find them touched. So
    when it has come to its end, the files since :attr:`began` have everything.
    """

    def __init__(self, number: int) -> None:
        self.began = number
        self._left: list[tuple[Any, Iterator[Any]]] = []

    def list_keys(self, processor: Incremental) -> Iterator[None]:
        """Find out which keys there are, in steps, between which the state must not change."""
        for name, table in processor.tables.items():
            if isinstance(table, DiskTable):
                self._left.append((name, table.keys_in_turn()))
                continue
            keys: list[Any] = []
            rest = iter(table)
            while some := list(islice(rest, LISTED)):
                keys += some
                yield
            self._left.append((name, iter(keys)))

    def touch(self, processor: Incremental, count: int) -> bool:
        """Take the next keys; true if there are no more."""
        touched, tables = processor.touched, processor.tables
        assert touched is not None
        while count > 0 and (taken := self.take(count)) is not None:
            name, keys = taken
            count -= len(keys)
            table = tables.get(name)
            if isinstance(table, DiskTable):
                touched.add(name, keys)  # nothing is read in order to see which are gone
            elif table is not None:
                touched.add(name, [key for key in keys if key in table])
        return self.is_over

    def take(self, count: int) -> tuple[Any, list[Any]] | None:
        """The next keys of a table, some of which may be gone; ``None`` if there are no more."""
        while self._left:
            name, keys = self._left[-1]
            some = list(islice(keys, count))
            if len(some) < count:
                self._left.pop()
            if some:
                return name, some
        return None

    @property
    def is_over(self) -> bool:
        """True if it is known that there are no more keys."""
        return not self._left


def slice_size(processor: Incremental, others: int = 0) -> int:
    """How many keys a sweep takes for a snapshot, which also has so many others than touched."""
    assert processor.touched is not None
    changed = processor.touched.key_count() + others
    return max(changed // 4, processor.entry_count() // MAX_SWEEP, MIN_SLICE)
