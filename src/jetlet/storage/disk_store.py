"""DiskStore: the state of one processor, of which only so much is in memory.

It has tables, :class:`~jetlet.storage.disk_table.DiskTable`, and queues of far deadlines. What does
not fit in memory goes to files in a private directory: the records of tables to one file, see
:class:`~jetlet.storage.record_log.RecordLog`. They survive nothing: what a job goes on from is its
snapshot. As long as all fits there are no files.

The objects that tables have in memory are *fresh* or, if they were looked up again, *young*, so
that those that are needed once do not drive out those that are needed often. When there is no room
for more fresh ones, they are *stale*, and written in the order in which they came, while others
become fresh. When there is no room for more young ones, they are *old*; and when there are some
young ones again, the old ones are written, a little at a time, such that none are left when there
is no room again. What is looked up meanwhile is young. So an object that was handed out stays
valid, and may be changed in place, while some others are looked up: never fewer than :data:`LEAST`.

The memory is for objects, going by the size of a sample of them, and for the indexes of what is on
disk.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from types import NoneType
from typing import IO, TYPE_CHECKING, Any, Final

from jetlet.errors import RestartableError
from jetlet.storage.disk_table import DiskTable
from jetlet.storage.far_deadlines import FarDeadlines
from jetlet.storage.private_directory import PrivateDirectory
from jetlet.storage.record_log import RecordLog

if TYPE_CHECKING:
    from pathlib import Path

    from jetlet.core.state_on_disk import StateOnDisk

__all__ = ["DiskStore"]

LEAST: Final = 3
"""Keys that may be looked up while an object is in use."""
FIRST_LOOK: Final = 1024
"""Entries in memory when their size is looked at for the first time; then when they have doubled.
"""
STEP: Final = 128
"""Keys that are looked up before some are written."""
FRESH: Final = 0.3
"""The part of the entries in memory that may be fresh or stale, if there are enough young ones."""
GRACE: Final = 0.25
"""How many entries are young before the first old ones are written: a part of all of them."""
SPARE: Final = 0.12
"""The part of the memory that nothing is put in: memory that was freed cannot always be used."""
MOST_BUFFERS: Final = 1 << 19
"""Bytes for what is being written. If there is little memory it is an eighth of that."""
SAMPLE: Final = 64
ENTRY_OVERHEAD: Final = 150
"""Bytes that an entry takes of the dictionaries, sets and lists that it is in."""
SEGMENTS: Final = (12, 26)
"""The least and the largest size of a segment, as powers of two."""
DEADLINE_SIZE: Final = 256
DEEPEST: Final = 12
WIDEST: Final = 64
"""Elements of a container whose size is taken; the others are as large."""


class DiskStore:
    """For one of ``sharers`` processors. Used by one thread at a time."""

    def __init__(self, place: StateOnDisk, sharers: int = 1) -> None:
        self._place = place
        self._memory = place.memory // max(1, sharers)
        self._tables: dict[int, DiskTable] = {}
        self._numbers = count(1)
        self._room = 0
        """Entries that there may be in memory."""
        self.fresh = 0
        """Entries that are fresh or stale, of all tables."""
        self.fresh_limit = 0
        """If there are more, some are to be written: see :meth:`limit_fresh`."""
        self._leaving: Iterator[Portion] = iter(())
        """What is stale."""
        self.young = 0
        """Entries that are young."""
        self.young_limit = 0
        """If there are more, something is to be done: see :meth:`limit_young`."""
        self._aging: Iterator[Portion] = iter(())
        """What is old."""
        self._old = 0
        """How many keys are in that."""
        self._most_young = 0
        """Entries that may be young."""
        self._measure()
        self.fresh_limit, self.young_limit = self._most_fresh(), self._most_young
        self._log: RecordLog | None = None
        self._file: IO[bytes] | None = None
        self._directory: PrivateDirectory | None = None

    # --- What is in it ----------------------------------------------------------------------

    def table(self, create: Any = None) -> DiskTable:
        """A new table; with ``create`` it makes what is missing, as a ``defaultdict`` does."""
        number = next(self._numbers)
        table = self._tables[number] = DiskTable(self, number, create)
        return table

    def forget(self, number: int) -> None:
        """A table is dropped."""
        del self._tables[number]

    def deadlines(self) -> FarDeadlines:
        """What takes the far deadlines of a heap."""
        return FarDeadlines(self, max(4, self._memory // 8 // DEADLINE_SIZE))

    # --- For what is in it ------------------------------------------------------------------

    def limit_fresh(self) -> None:
        """Another entry is about to be fresh, and there are more than there may be."""
        while self.fresh > (most := self._most_fresh()):
            portion = next(self._leaving, None)
            if portion is not None:
                table, keys = portion
                self.fresh -= table.let_go(table.stale, keys)
                continue
            tables = list(self._tables.values())
            self.fresh = sum(len(table.fresh) for table in tables) + 1
            self._measure()
            if self.fresh > self._most_fresh():
                self._leaving = _portions([(table, table.let_stale()) for table in tables])
                # Some of them may be in use, whichever table is the first.
                self.fresh_limit = self.fresh + max(LEAST, min(STEP, most // 16))
                return
        self.fresh_limit = most + min(STEP, most // 16)

    @property
    def most_at_once(self) -> int:
        """Keys whose entries may be brought into memory together."""
        return self._room // 8

    def _most_fresh(self) -> int:
        """Entries that may be fresh or stale."""
        return max(int(self._room * FRESH), self._room - self.young - self._old, 2 * LEAST)

    def limit_young(self) -> None:
        """Another entry is about to be young, and there are more than there may be, or old ones."""
        step = max(1, min(STEP, self._most_young // 4))
        if self._old:
            left = max(step, self._most_young - self.young)
            due = -(-self._old * step // left)
            while due > 0 and (portion := next(self._aging, None)) is not None:
                table, keys = portion
                table.let_go(table.old, keys)
                due -= len(keys)
                self._old -= len(keys)
            self.young_limit = self.young + step if self._old else self._most_young
            return
        tables = list(self._tables.values())
        self.young = sum(len(table.young) for table in tables) + 1
        self._measure()
        if self.young > self._most_young:
            self._old = self.young - 1
            self._aging = _portions([(table, table.age()) for table in tables])
            self.young = 1
            self.young_limit = max(LEAST, int(self._most_young * GRACE))
        else:
            self.young_limit = self._most_young

    def _measure(self) -> None:
        """Find out how much room there is, going by the entries that are there."""
        tables = list(self._tables.values())
        sample = [entry for table in tables for entry in table.sample(SAMPLE)]
        size = sum(map(_size, sample)) / len(sample) if sample else 0.0
        memory = self._memory * (1 - SPARE) - min(self._memory >> 3, MOST_BUFFERS)
        memory -= sum(table.index_size for table in tables)
        known = max(FIRST_LOOK, 2 * (self.fresh + self.young + self._old))
        self._room = min(known, int(memory / (size + ENTRY_OVERHEAD)))
        most = max(self._room * (1 - FRESH), self._room - self.fresh) / (1 + GRACE)
        self._most_young = max(2 * LEAST, int(most))

    @property
    def log(self) -> RecordLog:
        """The file of records, which is made when it is asked for."""
        if self._log is None:
            least, most = SEGMENTS
            size = 1 << min(max((self._memory >> 4).bit_length() - 1, least), most)
            with self.writing():
                self._file = (self.directory / "records").open("w+b", buffering=0)
            weakref.finalize(self, self._file.close)
            self._log = RecordLog(self._file, size, self._tables.get)
        return self._log

    @property
    def directory(self) -> Path:
        """Where files may be, until the store is closed."""
        if self._directory is None:
            self._directory = PrivateDirectory(self._place.directory, "state")
        return self._directory.path

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Something is written."""
        try:
            yield
        except OSError as error:
            place = self._place.directory or "the directory for temporary files"
            raise RestartableError(f"state cannot be written to {place}: {error}") from error

    def end_writing(self, datas: Iterable[bytes]) -> None:
        """Records with this in them have been appended."""
        self.log.flush()
        self.log.clean(sum(map(len, datas)))

    def close(self) -> None:
        """Forget all. It also happens by itself, when nobody has the store any more."""
        self._log = None
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._directory is not None:
            self._directory.close()
            self._directory = None


Portion = tuple[DiskTable, list[Any]]


def _portions(parts: Iterable[Portion]) -> Iterator[Portion]:
    """The same in smaller pieces."""
    for table, keys in parts:
        for n in range(0, len(keys), STEP):
            yield table, keys[n : n + STEP]


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
