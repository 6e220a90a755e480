"""DiskTable: objects by key, of which those that were used last are in memory.

It does what a ``dict`` does, but for the order: objects in memory come first. It is a part of a
:class:`~jetlet.storage.disk_store.DiskStore`, which says how long an object that was handed out may
be changed in place.

What is in memory is in four dictionaries. What is looked up is *fresh*; if it is again, it becomes
*young*. Sooner or later what was fresh is *stale*, what was young is *old*, and if it is not looked
up by then it is written: see :class:`~jetlet.storage.disk_store.DiskStore`. On disk an entry is
found by the hash of its key, which is the same as long as the process lives.
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
from jetlet.storage.record_index import ALL_BITS, FACTOR, LOCATION, RecordIndex

if TYPE_CHECKING:
    from jetlet.storage.disk_store import DiskStore
    from jetlet.storage.record_log import View

__all__ = ["DiskTable", "subscripted"]

_MISSING: Final[Any] = object()
AT_ONCE: Final = 256
"""Entries that are written at once."""
MOSTLY: Final = 0.25
"""If a table has such a part of all records, it is read from the beginning to the end of the file,
and otherwise record by record."""
_PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, NoneType})
"""Types of values that cannot be changed in place."""


class DiskTable(MutableMapping[Any, Any]):
    """A table of a store. Iterating goes over what there is at that moment.

    What ``items()`` and ``values()`` give may be copies.
    """

    def __init__(self, store: DiskStore, number: int, create: Callable[[], Any] | None) -> None:
        self._store = store
        self._number = number
        self._create = create
        self.key_types: set[type] = set()
        """The types of all keys that there were."""
        self.young = _Young(self)
        """What is young. Its subscripts are those of the table, and fast where they find it."""
        self._begin()

    def _begin(self) -> None:
        self._count = 0
        self.young.clear()
        self.old: dict[Any, Any] = {}
        self.fresh: dict[Any, Any] = {}
        self.stale: dict[Any, Any] = {}
        self._clean: set[Any] = set()
        """Keys in memory whose value is the one on disk."""
        self._new: set[Any] = set()
        """Keys in memory that are not on disk. Those of all others are."""
        self._guests: list[Any] = []
        """Keys that are young for the time being, and then fresh."""
        self._index = RecordIndex()
        self.is_on_disk = False
        """True if anything has been written."""

    # --- As a mapping -----------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        value = self.young.get(key, _MISSING)
        if value is _MISSING:
            value = self._find(key)
            if value is _MISSING:
                return default
        return value

    def __getitem__(self, key: Any) -> Any:
        return self.young[key]

    def find_or_create(self, key: Any) -> Any:
        """The value of a key that is not young; then it is."""
        value = self._find(key)
        if value is _MISSING:
            if self._create is None:
                raise KeyError(key)
            value = self._create()
            self._add(key, value)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        if key in self.young:
            self.young[key] = value
        elif key in self.fresh or self._find(key) is not _MISSING:
            (self.young if key in self.young else self.fresh)[key] = value
        else:
            self._add(key, value)
            return
        self._clean.discard(key)

    def __delitem__(self, key: Any) -> None:
        if self.pop(key, _MISSING) is _MISSING:
            raise KeyError(key)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        value = self._in_memory(key)
        if value is _MISSING:
            value = self._find(key)
            if value is _MISSING:
                if default is _MISSING:
                    raise KeyError(key)
                return default
        for entries in self._parts:
            entries.pop(key, None)
        self._count -= 1
        self._clean.discard(key)
        if key in self._new:
            self._new.discard(key)
        else:
            number = _number(key)
            slot = self._slot_of(key, number)
            self._index.forget_copies()
            self._index.remove(number, slot)
            self._store.log.leave((slot,))
        return value

    def __contains__(self, key: object) -> bool:
        return key in self.young or self._find(key) is not _MISSING

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
            value = self._in_memory(key)
            if value is _MISSING and self.is_on_disk:
                value = self._read(key)
            if value is not _MISSING:
                found[key] = value
        return found

    def update(self, other: Any = (), /, **more: Any) -> None:
        pairs = other.items() if isinstance(other, Mapping) else other
        for key, value in chain(pairs, more.items()):
            self[key] = value

    def load(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """The same as ``update``, for many that are not needed at once.

        As soon as memory is full they are written without having been there.
        """
        each = iter(entries)
        for key, value in each:
            self[key] = value
            if self.is_on_disk:
                break
        while some := list(islice(each, AT_ONCE)):
            self._load(some)

    def _load(self, entries: list[tuple[Any, Any]]) -> None:
        """Write those that are surely new, without having them in memory."""
        new = self._new
        others: list[tuple[Any, Any]] = []
        if not new.isdisjoint([key for key, _ in entries]):
            others = [entry for entry in entries if entry[0] in new]
            entries = [entry for entry in entries if entry[0] not in new]
        log, index = self._store.log, self._index
        index.forget_copies()
        with self._store.writing():
            numbers = [hash(key) * FACTOR & ALL_BITS for key, _ in entries]
            datas = _all_dumped(entries)
            places = log.append(self._number, numbers, datas)
            unsure = index.add_all(numbers, places)
            log.leave(places[n] for n in unsure)
            self._store.end_writing(datas)
        self._count += len(entries) - len(unsure)
        self.key_types.update(type(key) for key, _ in entries)
        for key, value in chain(others, (entries[n] for n in unsure)):
            self[key] = value

    def clear(self) -> None:
        if self.is_on_disk:
            self._store.log.leave(self._index)
        self._begin()

    def drop(self) -> None:
        """Nobody needs the table any more."""
        self._store.forget(self._number)
        self.clear()

    # --- In memory --------------------------------------------------------------------------

    @property
    def _parts(self) -> tuple[dict[Any, Any], ...]:
        return self.young, self.fresh, self.old, self.stale

    def _in_memory(self, key: Any) -> Any:
        for entries in self._parts:
            value = entries.get(key, _MISSING)
            if value is not _MISSING:
                return value
        return _MISSING

    def _find(self, key: Any) -> Any:
        """The value of a key that is not young; then it is, or fresh if it was on disk."""
        store = self._store
        value = self.fresh.pop(key, _MISSING)
        if value is _MISSING:
            value = self.stale.pop(key, _MISSING)
            if value is _MISSING:
                value = self.old.pop(key, _MISSING)
                if value is _MISSING:
                    if self.is_on_disk:
                        value = self._read(key)
                        if value is not _MISSING:
                            if type(value) in _PLAIN:
                                self._clean.add(key)
                            store.fresh += 1
                            if store.fresh > store.fresh_limit:
                                store.limit_fresh()
                            self.fresh[key] = value
                    return value
                store.fresh += 1
        store.fresh -= 1
        store.young += 1
        if store.young > store.young_limit:
            store.limit_young()
        self.young[key] = value
        return value

    def _add(self, key: Any, value: Any) -> None:
        """A key that is not there."""
        store = self._store
        store.fresh += 1
        if store.fresh > store.fresh_limit:
            store.limit_fresh()
        self.fresh[key] = value
        self._count += 1
        self.key_types.add(type(key))
        self._new.add(key)

    def prepare(self, keys: Iterable[Any], count: int) -> None:
        """So many keys, or fewer, are about to be looked up: have in memory what they have."""
        store = self._store
        if self._guests:
            self._dismiss()
        if not self.is_on_disk or count > store.most_at_once:
            return
        if store.fresh > store.fresh_limit:
            store.limit_fresh()
        if store.young > store.young_limit:
            store.limit_young()
        young = self.young
        missing = {key for key in keys if key not in young}
        for part in (self.fresh, self.stale, self.old):
            found = part.keys() & missing
            for key in found:
                young[key] = part.pop(key)
            missing -= found
            store.young += len(found)
            if part is not self.old:
                store.fresh -= len(found)
        guests = self._read_all(list(missing))
        store.fresh += len(guests)
        self._guests = list(guests)
        young.update(guests)

    def _dismiss(self) -> None:
        fresh, young = self.fresh, self.young
        for key in self._guests:
            value = young.pop(key, _MISSING)
            if value is not _MISSING:
                fresh[key] = value
        self._guests.clear()

    def sample(self, count: int) -> list[tuple[Any, Any]]:
        """Some of the entries in memory."""
        found: list[tuple[Any, Any]] = []
        for entries in (self.young, self.fresh):
            step = max(1, 2 * len(entries) // count)
            found += islice(entries.items(), 0, None, step)
        return found

    def age(self) -> list[Any]:
        """What is young is old now; nothing is old before. Returns the keys."""
        self._dismiss()
        self.old = self.young.copy()
        self.young.clear()
        return list(self.old)

    def let_stale(self) -> list[Any]:
        """What is fresh is stale now; nothing is stale before. Returns the keys."""
        self.stale, self.fresh = self.fresh, {}
        return list(self.stale)

    def let_go(self, entries: dict[Any, Any], keys: Iterable[Any]) -> int:
        """Write those of the keys that still are in a part of the table, and forget them.

        Returns how many there were.
        """
        clean = self._clean
        pop = entries.pop
        some = [(key, value) for key in keys if (value := pop(key, _MISSING)) is not _MISSING]
        count = len(some)
        if clean:
            some = [entry for entry in some if entry[0] not in clean]
            clean.difference_update(keys)
        self._write(some)
        return count

    # --- On disk ----------------------------------------------------------------------------

    def _read_all(self, keys: list[Any]) -> dict[Any, Any]:
        """What is on disk of some keys, none of which is in memory."""
        index = self._index
        numbers = [hash(key) * FACTOR & ALL_BITS for key in keys]
        slots, unsure = index.find_all(numbers)
        found = {}
        for key, data in zip(keys, self._store.log.read_all(slots), strict=True):
            if data is not None:
                other, value = pickle.loads(data)
                if other is key or other == key:
                    found[key] = value
        for n in unsure:
            value = self._read(keys[n])
            if value is not _MISSING:
                found[keys[n]] = value
        if not _PLAIN.isdisjoint(map(type, found.values())):
            self._clean.update([key for key, value in found.items() if type(value) in _PLAIN])
        return found

    def _read(self, key: Any) -> Any:
        read = self._store.log.read
        for slot in self._index.find(_number(key)):
            other, value = pickle.loads(read(slot))
            if other is key or other == key:
                return value
        return _MISSING

    def _slot_of(self, key: Any, number: int) -> int:
        """The slot of a key that is on disk."""
        slots = self._index.find(number)
        if len(slots) == 1:
            return slots[0]
        log = self._store.log
        log.flush()
        for slot in slots:
            other = pickle.loads(log.read(slot))[0]
            if other is key or other == key:
                return slot
        raise AssertionError(f"state of {key!r} is not on disk")

    def _write(self, entries: list[tuple[Any, Any]]) -> None:
        if not entries:
            return
        log, new = self._store.log, self._new
        if not self.is_on_disk:
            self.is_on_disk = True
            self._index = RecordIndex(self._count)
        index = self._index
        index.forget_copies()
        with self._store.writing():
            datas = _all_dumped(entries)
            numbers = [hash(key) * FACTOR & ALL_BITS for key, _ in entries]
            places = log.append(self._number, numbers, datas)
            which: Iterable[int] = range(len(entries))
            if not new.isdisjoint([key for key, _ in entries]):
                which = []
                for n, (key, _) in enumerate(entries):
                    if key in new:
                        new.discard(key)
                        index.add(numbers[n], places[n])
                    else:
                        which.append(n)
            before, unsure = index.replace_all(numbers, places, which)
            for n in unsure:
                slot = self._slot_of(entries[n][0], numbers[n])
                index.replace(numbers[n], slot, places[n])
                before.append(slot)
            log.leave(before)
            self._store.end_writing(datas)

    def move(self, records: list[tuple[int, int, bytes]]) -> None:
        """Append those records that are still needed again: their hashes, locations and data."""
        index, log = self._index, self._store.log
        index.forget_copies()
        needed = [
            (number, slot, data)
            for number, location, data in records
            for slot in index.find(number)
            if slot & LOCATION == location
        ]
        if not needed:
            return
        numbers, slots, datas = zip(*needed, strict=True)
        for number, slot, place in zip(
            numbers, slots, log.append(self._number, numbers, datas), strict=True
        ):
            index.replace(number, slot, place)
        log.leave(slots)

    @property
    def index_size(self) -> int:
        """Bytes of memory that it takes to know where all is."""
        return self._index.size

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Keys and values that there are now, whatever is added or removed meanwhile."""
        in_memory = {**self.old, **self.stale, **self.fresh, **self.young}
        if not self.is_on_disk:
            return iter(in_memory.items())
        others = (entry for entry in self._on_disk() if entry[0] not in in_memory)
        return chain(in_memory.items(), others)

    def keys_in_turn(self) -> Iterator[Any]:
        """All keys that are there now and stay, each once; others may be among them.

        Nothing is held meanwhile but the keys of what is not on disk yet.
        """
        mine = frozenset(self._new)
        return chain(mine, (key for key in self._keys_on_disk(self._index) if key not in mine))

    def _keys_on_disk(self, index: RecordIndex) -> Iterator[Any]:
        address: int | None = 0
        while address is not None and index is self._index:
            slots, address = index.slots_from(address)
            # All of them now: in a moment they may be elsewhere.
            yield from [pickle.loads(self._store.log.read(slot))[0] for slot in slots]

    def frozen(self) -> Iterator[tuple[Any, Any]]:
        """The same as they are now, whatever becomes of the values meanwhile."""
        clean = self._clean
        for entries in self._parts:
            changed = (entry for entry in entries.items() if entry[0] not in clean)
            while some := list(islice(changed, AT_ONCE)):
                self._write(some)
                # What was handed out and can be changed will be written again.
                clean.update([key for key, value in some if type(value) in _PLAIN])
        return self._on_disk() if self.is_on_disk else iter(())

    def _on_disk(self) -> Iterator[tuple[Any, Any]]:
        """What is on disk now."""
        log = self._store.log
        return self._records(log.view(self._index.copy()))

    def _records(self, view: View) -> Iterator[tuple[Any, Any]]:
        log, index, mine = self._store.log, view.index, self._number
        if self._count < log.record_count * MOSTLY:
            for slot in index:
                yield pickle.loads(log.read(slot))
            return
        for segment, units in view.segments:
            for table, number, location, data in log.records(segment, units):
                if table == mine and index.has(number, location):
                    yield pickle.loads(data)


class _Young(dict[Any, Any]):
    """The dictionary of what is young, which looks for what is not."""

    __slots__ = ("_table",)

    def __init__(self, table: DiskTable) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, key: Any) -> Any:
        return self._table.find_or_create(key)


def subscripted(table: MutableMapping[Any, Any]) -> MutableMapping[Any, Any]:
    """What has the same subscripts as a table, as fast as can be."""
    return table.young if isinstance(table, DiskTable) else table


class _Items(ItemsView[Any, Any]):
    _mapping: DiskTable

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._mapping.entries()


class _Values(ValuesView[Any]):
    _mapping: DiskTable

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping.entries())


def _number(key: Any) -> int:
    """What the index goes by."""
    return hash(key) * FACTOR & ALL_BITS


def _all_dumped(entries: list[tuple[Any, Any]]) -> list[bytes]:
    dumps = pickle.dumps
    try:
        return [dumps(entry, 5) for entry in entries]
    except Exception:
        return [_dumped(entry) for entry in entries]


def _dumped(entry: tuple[Any, Any]) -> bytes:
    try:
        return dump(entry)
    except Exception as error:
        raise JetletError(
            f"the state of key {entry[0]!r} cannot be pickled, which state on disk has to be: "
            f"{type(error).__name__}: {error}"
        ) from error
