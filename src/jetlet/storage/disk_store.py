"""DiskStore: the state of one processor, of which only so much is in memory.

It has tables, :class:`~jetlet.storage.disk_table.DiskTable`, and queues of far deadlines. What does
not fit in memory goes to a RocksDB in a private directory. That has no log and survives nothing:
what a job goes on from is its snapshot. As long as all fits there is no database.

The objects that tables have in memory are in two generations. When the young one is full, what is
in the old one is written, and the young one takes its place; what is used meanwhile is young again.
So an object that was handed out stays valid, and may be changed in place, until as many other keys
have been looked up as a generation has: never fewer than :data:`LEAST`.

Most of the memory is for objects, going by the size of a sample of them; the rest is for what
RocksDB caches and has not written yet. That also needs two or three bytes for each key on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from jetlet.errors import MissingDependencyError, RestartableError
from jetlet.storage.disk_table import DiskTable
from jetlet.storage.far_deadlines import FarDeadlines
from jetlet.storage.private_directory import PrivateDirectory

if TYPE_CHECKING:
    from rocksdict import Rdict

    from jetlet.core.state_on_disk import StateOnDisk

__all__ = ["DiskStore", "check_disk"]

LEAST: Final = 2
"""Entries of a generation at the least."""
FIRST_LOOK: Final = 1024
"""Young entries when their size is looked at for the first time; then when they have doubled."""
OBJECTS: Final = 0.65
"""The part of the memory that objects may take."""
SAMPLE: Final = 64
ENTRY_OVERHEAD: Final = 200
"""Bytes that an entry takes in the dictionaries of its table."""
DEADLINE_SIZE: Final = 256
DEEPEST: Final = 12
WIDEST: Final = 64
"""Elements of a container whose size is taken; the others are as large."""
PREFIX_SIZE: Final = 4


def check_disk() -> None:
    """Refuse to keep state on disk where what that takes is not installed."""
    try:
        import rocksdict  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "state on disk needs a package: pip install 'jetlet[rocksdb]'"
        ) from None


class DiskStore:
    """For one of ``sharers`` processors. Used by one thread at a time."""

    def __init__(self, place: StateOnDisk, sharers: int = 1) -> None:
        self._place = place
        self._memory = place.memory // max(1, sharers)
        self._tables: dict[int, DiskTable] = {}
        self._prefixes = 0
        self._count = 0
        """Entries that are young, of all tables."""
        self._limit = self._most(FIRST_LOOK, ENTRY_OVERHEAD)
        self._db: Rdict | None = None
        self._directory: PrivateDirectory | None = None

    # --- What is in it ----------------------------------------------------------------------

    def table(self, create: Any = None) -> DiskTable:
        """A new table; with ``create`` it makes what is missing, as a ``defaultdict`` does."""
        table = DiskTable(self, create)
        self._tables[id(table)] = table
        return table

    def forget(self, table: DiskTable) -> None:
        """A table is dropped."""
        del self._tables[id(table)]

    def deadlines(self) -> FarDeadlines:
        """What takes the far deadlines of a heap."""
        return FarDeadlines(self, max(2 * LEAST, self._memory // 8 // DEADLINE_SIZE))

    # --- For what is in it ------------------------------------------------------------------

    def prefix(self) -> bytes:
        """The beginning of the keys of a new table or queue."""
        self._prefixes += 1
        return self._prefixes.to_bytes(PREFIX_SIZE, "big")

    def make_room(self) -> None:
        """Another entry becomes young."""
        if self._count >= self._limit:
            self._age()
        self._count += 1

    def _age(self) -> None:
        """A generation is full, going by the size its entries were thought to have."""
        tables = list(self._tables.values())
        self._count = sum(table.young_count for table in tables)
        sample = [entry for table in tables for entry in table.sample(SAMPLE)]
        if sample:
            size = sum(map(_size, sample)) / len(sample) + ENTRY_OVERHEAD
            self._limit = self._most(max(FIRST_LOOK, 2 * self._count), size)
        if self._count < self._limit:
            return
        self._count = 0
        for table in tables:
            table.age()

    def _most(self, count: int, size: float) -> int:
        """So many entries of that size, or as many as there is room for."""
        return max(LEAST, min(count, int(self._memory * OBJECTS / 2 / size)))

    @property
    def db(self) -> Rdict:
        """The database, which is made when it is asked for."""
        if self._db is None:
            self._directory = PrivateDirectory(self._place.directory, "state")
            self._db = _opened(str(self._directory.path / "db"), self._memory)
        return self._db

    def write(self, batch: Any) -> None:
        """Write a batch of changes."""
        db = self.db
        try:
            db.write(batch)
        except Exception as error:
            place = self._place.directory or "the directory for temporary files"
            raise RestartableError(f"state cannot be written to {place}: {error}") from error

    def entries(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """What begins so at this moment, in order; with ``start`` from that key on."""
        entries: Any = self.db.items(from_key=prefix if start is None else start)
        return takewhile(lambda entry: entry[0].startswith(prefix), entries)

    def close(self) -> None:
        """Forget all. It also happens by itself, when nobody has the store any more."""
        if self._db is not None:
            # To close it would write what is still in memory, which nobody needs, or fail to.
            self._db.cancel_all_background(True)
            self._db = None
        if self._directory is not None:
            self._directory.close()
            self._directory = None


def _opened(path: str, memory: int) -> Rdict:
    from rocksdict import (
        BlockBasedOptions,
        Cache,
        ChecksumType,
        DataBlockIndexType,
        DBCompressionType,
        Options,
        Rdict,
        WriteOptions,
    )

    blocks = BlockBasedOptions()
    # What is read is in the cache of the operating system, too.
    blocks.set_block_cache(Cache(max(1 << 20, memory // 16)))
    blocks.set_bloom_filter(10, False)
    blocks.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    blocks.set_checksum_type(ChecksumType.xxh3())
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    # Two are being written to disk while a third one is filled.
    options.set_write_buffer_size(min(64 << 20, max(256 << 10, memory // 24)))
    options.set_max_write_buffer_number(3)
    options.set_level_zero_slowdown_writes_trigger(32)
    options.set_level_zero_stop_writes_trigger(64)
    options.set_compression_type(DBCompressionType.none())
    options.set_max_open_files(512)
    options.set_keep_log_file_num(1)
    db = Rdict(path, options)
    unlogged = WriteOptions()
    unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
    db.set_write_options(unlogged)
    return db


# --- Sizes ----------------------------------------------------------------------------------

_LEAVES: Final = frozenset({bool, int, float, complex, str, bytes, bytearray, NoneType})


def _size(value: Any, depth: int = 0) -> int:
    """About how many bytes an object takes in memory, with what it refers to."""
    size = sys.getsizeof(value, 64)
    kind = type(value)
    if kind in _LEAVES or depth > DEEPEST:
        return size
    if isinstance(value, dict):
        return (
            size
            + _sizes(value.keys(), len(value), depth)
            + _sizes(value.values(), len(value), depth)
        )
    if isinstance(value, list | tuple | set | frozenset) or kind.__name__ == "deque":
        return size + _sizes(value, len(value), depth)
    attributes = getattr(value, "__dict__", None)
    if attributes:
        size += _size(attributes, depth + 1)
    slots: Sequence[str] = getattr(kind, "__slots__", ())
    for name in (slots,) if isinstance(slots, str) else slots:
        size += _size(getattr(value, name, None), depth + 1)
    return size


def _sizes(values: Any, count: int, depth: int) -> int:
    some = [_size(value, depth + 1) for value in islice(values, WIDEST)]
    return sum(some) * count // len(some) if some else 0
