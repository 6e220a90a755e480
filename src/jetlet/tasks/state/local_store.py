"""LocalStore: where the bytes of one task's store are on this machine; and in memory.

A local store is what is below a :class:`~jetlet.tasks.state.cached_store.CachedStore`, which is its
only user and calls it from one thread at a time. It knows how much of the store's changelog is in
it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

Change = tuple[bytes, bytes | None]
"""A key with its new value, or with ``None`` if it was deleted."""

T = TypeVar("T")


class Position(NamedTuple):
    """How much of a changelog there is in a local store."""

    end: int
    """The offset behind the last record of the changelog that the store holds."""
    mark: int = 0
    """A checksum of that last one, to tell whether it is still the same changelog."""


class LocalStore(Protocol):
    """Sorted entries of bytes."""

    @property
    def position(self) -> Position | None:
        """As of the latest settled write; ``None`` if it cannot be relied on."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or ``None``."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each, or ``None``."""

    def page(self, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """The first entries, ``limit`` at the most, from a key up to, not including, another."""

    def write(self, changes: Iterable[Change], position: Position | None) -> None:
        """Apply changes with different keys, all or none.

        With a position they are settled, as is all that was written before. Without one they are
        seen by reads, but if the process ends before they are settled, the next one finds either
        none of them or no position.
        """

    def clear(self) -> None:
        """Remove everything, also the position."""

    def close(self) -> None:
        """Release everything; what is not settled may be lost. Idempotent."""


class SortedTable(Generic[T]):
    """A dict of bytes that can be asked for its keys in order.

    Sorting waits until somebody asks. A few new keys are then inserted one by one; many are sorted
    together, which is quick since most are in order already.
    """

    __slots__ = ("_keys", "_new", "data")

    def __init__(self) -> None:
        self.data: dict[bytes, T] = {}
        """Read it as you like; write by the methods."""
        self._keys: list[bytes] = []
        """In order; some may have been removed."""
        self._new: list[bytes] = []
        """Not in order; some may have been removed, some may be in ``_keys``."""

    def put(self, key: bytes, value: T) -> None:
        if key not in self.data:
            self._new.append(key)
            if len(self._new) > 2 * len(self.data) + _SLACK:  # mostly removed ones
                self._sort()
        self.data[key] = value

    def remove(self, key: bytes) -> None:
        self.data.pop(key, None)

    def clear(self) -> None:
        self.data.clear()
        self._keys.clear()
        self._new.clear()

    def page(
        self, start: bytes, stop: bytes | None, limit: int | None = None
    ) -> list[tuple[bytes, T]]:
        """The first entries, ``limit`` at the most, from a key up to, not including, another."""
        if self._new or len(self._keys) > 2 * len(self.data) + _SLACK:
            self._sort()
        keys, data = self._keys, self.data
        at = bisect_left(keys, start)
        end = len(keys) if stop is None else bisect_left(keys, stop, at)
        if limit is None:
            return [(key, data[key]) for key in keys[at:end] if key in data]
        found: list[tuple[bytes, T]] = []
        while at < end and (missing := limit - len(found)):
            found += [
                (key, data[key]) for key in keys[at : at + missing][: end - at] if key in data
            ]
            at += missing
        return found

    def _sort(self) -> None:
        keys, data = self._keys, self.data
        if 16 * len(self._new) < len(keys) < 2 * len(data) + _SLACK:
            for key in self._new:
                at = bisect_left(keys, key)
                if keys[at : at + 1] != [key]:
                    insort(keys, key, at, at)
        else:
            self._new.sort()
            keys += self._new
            keys.sort()  # two runs that are merged
            self._keys = [key for key in dict.fromkeys(keys) if key in data]
        self._new = []


_SLACK: Final = 1024


class MemoryStore:
    """A local store that ends with its process."""

    def __init__(self) -> None:
        self._table: SortedTable[bytes] = SortedTable()
        self.position: Position | None = None

    def get(self, key: bytes) -> bytes | None:
        return self._table.data.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._table.data.get, keys))

    def page(self, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        return self._table.page(start, stop, limit)

    def write(self, changes: Iterable[Change], position: Position | None) -> None:
        put, remove = self._table.put, self._table.remove
        for key, value in changes:
            if value is None:
                remove(key)
            else:
                put(key, value)
        if position is not None:
            self.position = position

    def clear(self) -> None:
        self._table.clear()
        self.position = None

    def close(self) -> None:
        pass
