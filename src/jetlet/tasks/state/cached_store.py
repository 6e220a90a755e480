"""CachedStore: a task's store as its task sees it, with typed keys and values.

What is put becomes bytes at once, so what cannot be stored is refused where it is put, and what is
changed afterwards does not matter. The bytes wait in memory until the commit, which writes them to
the changelog and to the local store in one go. Above that, objects that were put or read lately are
kept as they are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from jetlet.core.arguments import shortened
from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.tasks.state.changelog import Changelog, Cleaner
from jetlet.tasks.state.local_store import LocalStore, Position, SortedTable
from jetlet.tasks.state.serdes import Serde

K = TypeVar("K")
V = TypeVar("V")

CACHE_SIZE: Final = 10_000
WRITE_BUFFER: Final = 64 << 20

_PAGE: Final = 512
"""Entries that an iteration takes at a time."""
_OVERHEAD: Final = 150
"""Bytes of memory for a change, beside its key and value."""
_MISSING: Final[Any] = object()
_UNLOGGED: Final = Position(0)
"""The changelog position of a local store that has none."""


class CachedStore(Generic[K, V]):
    """A `KeyValueStore` that several threads may use.

    It takes over a local store that is restored already; ``end`` is where the changelog ends.
    """

    def __init__(
        self,
        name: str,
        local: LocalStore,
        key: Serde,
        value: Serde,
        *,
        changelog: Changelog | None = None,
        end: Position = _UNLOGGED,
        cache_size: int = CACHE_SIZE,
        write_buffer: int = WRITE_BUFFER,
        count: Callable[[str, int], None] = lambda name, amount: None,
    ) -> None:
        self.name = name
        self._local = local
        self._encode_key, self._decode_key = key.encode, key.decode
        self._encode_value, self._decode_value = value.encode, value.decode
        self._changelog = changelog
        self._end = end
        self._cleaner: Cleaner | None = None
        if changelog is not None and not changelog.cleans_itself:
            self._cleaner = Cleaner(changelog, self._page)
        self._cache_size = cache_size
        self._write_buffer = write_buffer
        self._count = count
        self._lock = threading.Lock()
        self._cache: OrderedDict[K, V] = OrderedDict()
        """Objects, the latest used last; ``_MISSING`` for keys that are known not to be there."""
        self._changes: SortedTable[bytes | None] = SortedTable()
        """What the local store does not have yet; ``None`` is a deletion."""
        self._buffered = 0
        self._flushed: dict[bytes, bytes | None] | None = None
        """What the last flush wrote to the changelog, until it is committed. If more is put
        meanwhile, the local store must not have that before it is in the changelog, too."""
        self._is_closed = False

    # --- Single entries ---------------------------------------------------------------------

    def get(self, key: K, default: Any = None) -> V | Any:
        """The value, or the default.

        It may be the very object that was put: if you change it, put it again.
        """
        with self._lock:
            cache = self._cache
            try:
                value: Any = cache[key]
                cache.move_to_end(key)
            except KeyError:
                encoded = self._key(key)
                data = self._changes.data.get(encoded, _MISSING)
                if data is _MISSING:
                    data = self._local.get(encoded)
                value = _MISSING if data is None else self._value(key, data)
                cache[key] = value
                if len(cache) > self._cache_size:
                    cache.popitem(last=False)
            except TypeError:
                self._key(key)  # says why
                raise
        return default if value is _MISSING else value

    def __contains__(self, key: K) -> bool:
        return self.get(key, _MISSING) is not _MISSING

    def put(self, key: K, value: V) -> None:
        """Set a value; ``None`` is not one."""
        if value is None:
            raise InvalidArgumentError(
                f"store {self.name!r}: put({shortened(key)}, None): write delete(key) instead"
            )
        try:
            data = self._encode_value(value)
        except Exception as error:
            raise BadRecordError(
                f"store {self.name!r}: the value of {shortened(key)}, {shortened(value)}, cannot "
                f"be stored: {error}"
            ) from error
        self._change(key, value, data)

    def delete(self, key: K) -> None:
        """Remove a key, if it is there."""
        self._change(key, _MISSING, None)

    def _change(self, key: K, value: V, data: bytes | None) -> None:
        try:
            encoded = self._encode_key(key)
        except Exception:
            encoded = self._key(key)  # says why
        with self._lock:
            cache, changes = self._cache, self._changes.data
            cache[key] = value
            cache.move_to_end(key)
            if len(cache) > self._cache_size:
                cache.popitem(last=False)
            if encoded in changes:
                changes[encoded] = data
                return
            self._changes.put(encoded, data)
            self._buffered += len(encoded) + len(data or b"") + _OVERHEAD
            if self._buffered > self._write_buffer:
                self._spill()

    # --- Many entries -----------------------------------------------------------------------

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """The entries of those keys that are there."""
        found: dict[K, Any] = {}
        missing: dict[bytes, K] = {}
        with self._lock:
            for key in keys:
                encoded = self._key(key)
                value = self._cache.get(key, found)
                if value is not found:
                    found[key] = value
                elif encoded in self._changes.data:
                    data = self._changes.data[encoded]
                    found[key] = _MISSING if data is None else self._value(key, data)
                else:
                    missing[encoded] = key
            if missing:
                values = self._local.get_many(list(missing))
                for key, data in zip(missing.values(), values, strict=True):
                    if data is not None:
                        found[key] = self._value(key, data)
        return {key: value for key, value in found.items() if value is not _MISSING}

    def put_many(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set several values, one after the other."""
        for key, value in entries.items() if isinstance(entries, Mapping) else entries:
            self.put(key, value)

    def delete_many(self, keys: Iterable[K]) -> None:
        """Remove several keys, one after the other, where they are there."""
        for key in keys:
            self.delete(key)

    def range(self, start: K | None = None, stop: K | None = None) -> Iterator[tuple[K, V]]:
        """The entries from ``start`` up to, not including, ``stop``, in the order of their keys.

        Without one of them, from the first, or to the last. The store may be changed meanwhile:
        what is put or deleted behind the place that the iterator has come to, it will see.
        """
        at = b"" if start is None else self._key(start)
        end = None if stop is None else self._key(stop)
        return self._entries(at, end)

    def all(self) -> Iterator[tuple[K, V]]:
        """All entries, in the order of their keys."""
        return self._entries(b"", None)

    def _entries(self, at: bytes, stop: bytes | None) -> Iterator[tuple[K, V]]:
        while True:
            with self._lock:
                entries = self._page(at, stop, _PAGE)
            for encoded, data in entries:
                key = self._decode_key(encoded)
                yield key, self._value(key, data)
            if len(entries) < _PAGE:
                return
            at = entries[-1][0] + b"\x00"

    def _page(self, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """The first entries, with the changes."""
        found: dict[bytes, bytes] = {}
        while True:
            stored = self._local.page(start, stop, limit)
            end = stored[-1][0] + b"\x00" if len(stored) == limit else stop
            merged: dict[bytes, bytes | None] = dict(stored)
            merged.update(self._changes.page(start, end))
            for key in sorted(merged):
                if (data := merged[key]) is not None:
                    found[key] = data
            if len(found) >= limit or end == stop:
                return list(found.items())[:limit]
            assert end is not None
            start = end

    # --- Commit -----------------------------------------------------------------------------

    def flush(self) -> int | None:
        """Write what was changed: to the changelog if there is one, else to the local store."""
        with self._lock:
            self._count(f"{self.name}.flushed", len(self._changes.data))
            if self._changelog is None:
                self._write(_UNLOGGED)
                return None
            self._log()
            self._flushed = dict(self._changes.data)
            return self._end.end

    def committed(self) -> None:
        """Write to the local store what is in the changelog.

        Only now, because it must not be ahead of the checkpoint: it could not go back.
        """
        with self._lock:
            if self._changelog is None:
                return
            flushed, self._flushed = self._flushed, None
            if flushed is None:
                return  # more was put than there is room for: the next commit settles all
            if flushed or self._local.position != self._end:
                self._local.write(flushed.items(), self._end)
                later = [
                    (key, data)
                    for key, data in self._changes.data.items()
                    if flushed.get(key, _MISSING) is not data
                ]
                self._changes.clear()
                self._buffered = 0
                for key, data in later:
                    self._changes.put(key, data)
                    self._buffered += len(key) + len(data or b"") + _OVERHEAD
            if self._cleaner is not None:
                self._cleaner.committed()

    def _spill(self) -> None:
        """There is too much to keep until the commit."""
        if self._changelog is None:
            self._write(_UNLOGGED)
        else:
            self._log()
            self._write(None)
            self._flushed = None

    def _log(self) -> None:
        assert self._changelog is not None
        changes = list(self._changes.data.items())
        if not changes:
            return
        if self._cleaner is not None:
            changes += self._cleaner.next_entries(self._end.end, len(changes))
        self._end = self._changelog.append(changes)

    def _write(self, position: Position | None) -> None:
        self._local.write(self._changes.data.items(), position)
        self._changes.clear()
        self._buffered = 0

    def close(self) -> None:
        """Release everything. What was not flushed is lost."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._local.close()
            finally:
                if self._changelog is not None:
                    self._changelog.close()

    # --- Bytes ------------------------------------------------------------------------------

    def _key(self, key: K) -> bytes:
        try:
            return self._encode_key(key)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"store {self.name!r}: {error}") from None
        except Exception as error:
            raise InvalidArgumentError(
                f"store {self.name!r}: {shortened(key)} cannot be a key: {error}"
            ) from error

    def _value(self, key: K, data: bytes) -> V:
        try:
            value: V = self._decode_value(data)
        except Exception as error:
            raise BadRecordError(
                f"store {self.name!r}: the value of {shortened(key)} cannot be read: {error}; was "
                "the store written with another type?"
            ) from error
        return value

    def __repr__(self) -> str:
        return f"CachedStore({self.name!r})"
