"""DiskTable: objects by key, of which those that were used last are in memory.

It does what a ``dict`` does, but for the order: objects in memory come first. It is a part of a
:class:`~jetlet.storage.disk_store.DiskStore`, which says how long an object that was handed out may
be changed in place.

On disk an entry is found by the hash of its key, which is the same as long as the process lives.
The few keys that share one are kept together.
"""

from __future__ import annotations

import pickle
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    ValuesView,
)
from itertools import chain, islice
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from jetlet.core.pickling import dump
from jetlet.errors import JetletError

if TYPE_CHECKING:
    from jetlet.storage.disk_store import DiskStore

__all__ = ["DiskTable"]

_MISSING: Final[Any] = object()
_MASK: Final = (1 << 64) - 1
AT_ONCE: Final = 256
"""Entries that are read at once where only their keys matter."""
_PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, NoneType})
"""Types of values that cannot be changed in place."""


class DiskTable(MutableMapping[Any, Any]):
    """A table of a store. Iterating goes over what there is at that moment.

    What ``items()`` and ``values()`` give may be copies.
    """

    def __init__(self, store: DiskStore, create: Callable[[], Any] | None) -> None:
        self._store = store
        self._create = create
        self._count = 0
        self.key_types: set[type] = set()
        """The types of all keys that there were."""
        self._crowded: set[int] = set()
        """Hashes of more than one key."""
        self._begin()

    def _begin(self) -> None:
        self._prefix = self._store.prefix()
        self._young: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}
        self._clean: set[Any] = set()
        """Keys in memory whose value is the one on disk."""
        self._new: set[int] = set()
        """Hashes of keys in memory that are not on disk."""
        self._absent: set[Any] = set()
        """Keys that are known not to be there, whatever is on disk."""
        self._gone: dict[Any, None] = {}
        """Of these, the ones that are still on disk."""
        self.is_on_disk = False
        """True if anything has been written."""

    # --- As a mapping -----------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._young.get(key, _MISSING)
        if value is _MISSING:
            value = self._find(key)
            if value is _MISSING:
                return default
        return value

    def __getitem__(self, key: Any) -> Any:
        value = self._young.get(key, _MISSING)
        if value is _MISSING:
            value = self._find(key)
            if value is _MISSING:
                if self._create is None:
                    raise KeyError(key)
                value = self._create()
                self._add(key, value)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self._young and self._find(key) is _MISSING:
            self._add(key, value)
            return
        self._young[key] = value
        self._clean.discard(key)

    def __delitem__(self, key: Any) -> None:
        if self.pop(key, _MISSING) is _MISSING:
            raise KeyError(key)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        value = self._young.get(key, _MISSING)
        if value is _MISSING:
            value = self._find(key)
            if value is _MISSING:
                if default is _MISSING:
                    raise KeyError(key)
                return default
        del self._young[key]
        self._count -= 1
        self._clean.discard(key)
        number = hash(key)
        if number in self._new and number not in self._crowded:
            self._new.discard(number)
        else:
            self._gone[key] = None
        self._absent.add(key)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._young or self._find(key) is not _MISSING

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.entries())

    def items(self) -> ItemsView[Any, Any]:
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        return _Values(self)

    def peek(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """What those of the keys have that are there, without any effect on what is in memory."""
        found = {}
        for key in keys:
            value = self._young.get(key, _MISSING)
            if value is _MISSING:
                value = self._old.get(key, _MISSING)
            if value is _MISSING and self.is_on_disk and key not in self._absent:
                value = self._read(key)
            if value is not _MISSING:
                found[key] = value
        return found

    def update(self, other: Any = (), /, **more: Any) -> None:
        pairs = other.items() if isinstance(other, Mapping) else other
        make_room, is_new = self._store.make_room, self._is_new
        for key, value in chain(pairs, more.items()):
            make_room()  # before it is looked whether there is another key with its hash on disk
            if is_new(key):
                self._add(key, value)
            else:
                self[key] = value

    def load(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """The same as ``update``, for many that are not needed at once.

        As soon as memory is full they are written without having been there.
        """
        each = iter(entries)
        for key, value in each:
            if self.is_on_disk:
                self._load(chain(((key, value),), each))
            else:
                self.update(((key, value),))

    def _load(self, entries: Iterator[tuple[Any, Any]]) -> None:
        prefix, get, kinds = self._prefix, self._store.db.get, self.key_types
        batch, placed = self._batch(), dict[int, None]()
        for key, value in entries:
            number = hash(key)
            place = prefix + (number & _MASK).to_bytes(8, "big")
            if (
                number in placed
                or number in self._new
                or number in self._crowded
                or get(place) is not None
            ):
                self._store.write(batch)  # there is this key, or another one with its hash
                batch = self._batch()
                placed.clear()
                self[key] = value
                continue
            placed[number] = None
            self._absent.discard(key)
            self._count += 1
            kinds.add(type(key))
            try:
                data = pickle.dumps((key, value), 5)
            except Exception:
                data = _dumped((key, value))
            batch.put(place, data)
        self._store.write(batch)

    def clear(self) -> None:
        if self.is_on_disk:
            batch = self._batch()
            batch.delete_range(self._prefix, self._prefix + b"\xff" * 9)
            self._store.write(batch)
        self._count = 0
        self._crowded.clear()
        self._begin()

    def drop(self) -> None:
        """Nobody needs the table any more."""
        self._store.forget(self)
        self.clear()

    # --- In memory --------------------------------------------------------------------------

    def _find(self, key: Any) -> Any:
        """The value of a key that is not young; then it is."""
        self._store.make_room()
        value = self._old.pop(key, _MISSING)
        if value is _MISSING:
            if not self.is_on_disk or key in self._absent:
                return _MISSING
            value = self._read(key)
            if value is _MISSING:
                self._absent.add(key)
                return _MISSING
            if type(value) in _PLAIN:
                self._clean.add(key)
        self._young[key] = value
        return value

    def _is_new(self, key: Any) -> bool:
        """True if nothing has this key, or its hash: as it is with most that are restored."""
        if key in self._young or key in self._old:
            return False
        return not self.is_on_disk or self._store.db.get(self._place(hash(key))) is None

    def _add(self, key: Any, value: Any) -> None:
        """A key that is not there."""
        self._young[key] = value
        self._count += 1
        self._absent.discard(key)
        self.key_types.add(type(key))
        number = hash(key)
        if number in self._new:
            self._crowded.add(number)
        self._new.add(number)

    # --- On disk ----------------------------------------------------------------------------

    def _place(self, number: int) -> bytes:
        return self._prefix + (number & _MASK).to_bytes(8, "big")

    def _bucket(self, number: int) -> list[Any]:
        """Keys and values, in turns, of all keys on disk with that hash."""
        data: Any = self._store.db.get(self._place(number))
        return [] if data is None else list(pickle.loads(data))

    def _read(self, key: Any) -> Any:
        number = hash(key)
        data: Any = self._store.db.get(self._place(number))
        if data is None:
            return _MISSING
        found = pickle.loads(data)
        if len(found) == 2 and (found[0] is key or found[0] == key):
            return found[1]
        self._crowded.add(number)
        for other, value in _pairs(found):
            if other == key:
                return value
        return _MISSING

    @property
    def young_count(self) -> int:
        """How many keys are young, with those that are known not to be there."""
        return len(self._young) + len(self._absent)

    def sample(self, count: int) -> list[tuple[Any, Any]]:
        """Some of the entries in memory."""
        step = max(1, len(self._young) // count)
        return list(islice(self._young.items(), 0, None, step))

    def age(self) -> None:
        """What is old goes to disk, and what is young is old."""
        self._write(self._old)
        self._old = self._young
        self._young = {}
        self._absent.clear()

    def _write(self, entries: dict[Any, Any]) -> None:
        if not entries and not self._gone:
            return
        batch, new, clean, crowded = self._batch(), self._new, self._clean, self._crowded
        prefix, put = self._prefix, batch.put
        dumps = pickle.dumps
        several: list[tuple[Any, Any]] = []
        for key in self._gone:
            if hash(key) in crowded:
                several.append((key, _MISSING))
            else:
                batch.delete(self._place(hash(key)))
        self._gone.clear()
        for key, value in entries.items():
            if key in clean:
                clean.discard(key)
                continue
            number = hash(key)
            if number in crowded:
                several.append((key, value))
                continue
            new.discard(number)
            try:
                data = dumps((key, value), 5)
            except Exception:
                data = _dumped((key, value))
            put(prefix + (number & _MASK).to_bytes(8, "big"), data)
        self._store.write(batch)
        self.is_on_disk = True
        for key, value in several:
            self._write_crowded(key, value)

    def _write_crowded(self, key: Any, value: Any) -> None:
        number = hash(key)
        self._new.discard(number)
        kept: list[Any] = []
        for other, its_value in _pairs(self._bucket(number)):
            if other != key:
                kept += other, its_value
        if value is not _MISSING:
            kept += key, value
        batch = self._batch()
        if kept:
            batch.put(self._place(number), _dumped(tuple(kept)))
        else:
            batch.delete(self._place(number))
        self._store.write(batch)

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Keys and values that there are now, whatever is added or removed meanwhile."""
        in_memory = {**self._old, **self._young}
        if not self.is_on_disk:
            return iter(in_memory.items())
        gone = set(self._gone)
        others = (
            entry for entry in self._on_disk() if entry[0] not in in_memory and entry[0] not in gone
        )
        return chain(in_memory.items(), others)

    def keys_in_turn(self) -> Iterator[Any]:
        """All keys that are there now and stay, each once; others may be among them.

        Nothing is held meanwhile but the keys of what is not on disk yet.
        """
        unsure = self._new | self._crowded
        mine = [key for key in chain(self._old, self._young) if hash(key) in unsure]
        in_memory = frozenset(mine)
        others = self._keys_on_disk() if self.is_on_disk else iter(())
        return chain(mine, (key for key in others if key not in in_memory))

    def _keys_on_disk(self) -> Iterator[Any]:
        start = prefix = self._prefix
        while start:
            # An iterator of RocksDB's keeps what has been overwritten since it began.
            entries = list(islice(self._store.entries(prefix, start), AT_ONCE))
            for _, data in entries:
                for key, _value in _pairs(pickle.loads(data)):
                    yield key
            start = entries[-1][0] + b"\0" if len(entries) == AT_ONCE else b""

    def frozen(self) -> Iterator[tuple[Any, Any]]:
        """The same as they are now, whatever becomes of the values meanwhile."""
        # What was handed out may still be changed, so it will be written again.
        self._write(self._old)
        self._write(self._young)
        # A key that is not there may have the hash of one that is on disk only now.
        self._absent.clear()
        return self._on_disk()

    def _on_disk(self) -> Iterator[tuple[Any, Any]]:
        entries = self._store.entries(self._prefix)
        return chain.from_iterable(_pairs(pickle.loads(data)) for _, data in entries)

    @staticmethod
    def _batch() -> Any:
        from rocksdict import WriteBatch

        return WriteBatch(raw_mode=True)


class _Items(ItemsView[Any, Any]):
    _mapping: DiskTable

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._mapping.entries()


class _Values(ValuesView[Any]):
    _mapping: DiskTable

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping.entries())


def _pairs(found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    each = iter(found)
    return zip(each, each, strict=True)


def _dumped(pairs: tuple[Any, ...]) -> bytes:
    try:
        return dump(pairs)
    except Exception as error:
        raise JetletError(
            f"the state of key {pairs[0]!r} cannot be pickled, which state on disk has to be: "
            f"{type(error).__name__}: {error}"
        ) from error
