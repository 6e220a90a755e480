"""RocksDbStore: the entries of a task's store in RocksDB, for stores of many gigabytes.

Changes and the position in the changelog are written as one batch. RocksDB cannot take back what
was written without a position; the store then has none until it is settled, so a process that ends
in between leaves a copy that the next one does not use.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jetlet.errors import JetletError, MissingDependencyError
from jetlet.tasks.state.local_store import Change, Position

if TYPE_CHECKING:
    from rocksdict import Rdict, WriteBatch

_POSITION: Final = b"\x00position"
_ENTRY: Final = b"\x01"
_BEHIND_ENTRIES: Final = b"\x02"
_PACKED: Final = struct.Struct("<QI")


class RocksDbStore:
    """A local store in a directory, which it alone has open. See `LocalStore`."""

    def __init__(self, path: Path) -> None:
        try:
            from rocksdict import Options, Rdict
        except ImportError:
            raise MissingDependencyError(
                "stores.rocksdb needs a package: pip install 'jetlet[rocksdb]'"
            ) from None
        self._path = path
        try:
            self._db: Rdict = Rdict(str(path), Options(raw_mode=True))
        except Exception as error:
            raise JetletError(
                f"{path} cannot be opened: {error}; a task's store is open in one process at a time"
            ) from error
        self._is_closed = False
        found: Any = self._db.get(_POSITION)
        self.position: Position | None = Position(*_PACKED.unpack(found)) if found else None

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(_ENTRY + key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: Any = self._db.get([_ENTRY + key for key in keys])
        found: list[bytes | None] = values
        return found

    def page(self, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        end = _BEHIND_ENTRIES if stop is None else _ENTRY + stop
        entries: Any = self._db.items(from_key=_ENTRY + start)
        within = takewhile(lambda entry: entry[0] < end, entries)
        return [(key[1:], value) for key, value in islice(within, limit)]

    def write(self, changes: Iterable[Change], position: Position | None) -> None:
        batch = self._batch()
        for key, value in changes:
            if value is None:
                batch.delete(_ENTRY + key)
            else:
                batch.put(_ENTRY + key, value)
        if position is None:
            batch.delete(_POSITION)
        else:
            batch.put(_POSITION, _PACKED.pack(*position))
        try:
            self._db.write(batch)
        except Exception as error:
            raise JetletError(f"{self._path} cannot be written: {error}") from error
        self.position = position

    def clear(self) -> None:
        batch = self._batch()
        batch.delete_range(_POSITION, _BEHIND_ENTRIES)
        self._db.write(batch)
        self.position = None

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._db.close()

    @staticmethod
    def _batch() -> WriteBatch:
        from rocksdict import WriteBatch

        return WriteBatch(raw_mode=True)
