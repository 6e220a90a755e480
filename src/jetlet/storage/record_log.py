"""RecordLog: a file to which records are appended, and whose gaps are used again.

It is divided into segments. A record that is written anew leaves a gap where it was; when half of
the file are gaps, the segments with the most of them are cleaned, a little with each write: what is
still needed is appended again, and the segment is free for other records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import IO, Final, Protocol
from weakref import WeakSet

from jetlet.errors import JetletError
from jetlet.storage.record_index import LOCATION, LOCATION_BITS, RecordIndex

__all__ = ["RecordLog", "View"]

UNIT_BITS: Final = 4
"""Records begin at multiples of sixteen bytes."""
_HEADER: Final = Struct("<QII")
"""The hash of its key, the number of its table, and the length of its data."""
HEADER_SIZE: Final = 16
_PADDING: Final = [bytes(-size & 15) for size in range(16)]

SIZES: Final = (0, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
"""What a slot says of the length of the data: which of these it does not exceed, if any. It is
never the first one, so that no slot is zero."""
LONG: Final = len(SIZES)
_KINDS: Final = bytes(
    next(n for n, most in enumerate(SIZES) if n and size <= most)
    for size in range(0, SIZES[-1] + 1, 16)
)
"""By length, in units."""
MOST_UNITS: Final = 1 << 30 - UNIT_BITS
"""Of a record."""

GARBAGE: Final = 0.5
"""The part of the file that may be gaps."""
LEAST_SEGMENTS: Final = 8
"""Fewer are not cleaned."""
SCANNED: Final = 3
"""Bytes that are looked at for each byte written while there is too much garbage. If not more than
two thirds of what is looked at is needed, the file does not grow."""
AT_ONCE: Final = 1 << 17
"""Bytes that are read at once."""


Record = tuple[int, int, int, bytes]
"""Its table, the hash of its key, its location, and its data."""


class Owner(Protocol):
    """The table of a record."""

    def move(self, records: list[tuple[int, int, bytes]]) -> None:
        """Append those records that are still needed again: their hashes, locations and data."""


class View:
    """The records of a table as they were, which stay where they are as long as it lives."""

    def __init__(self, index: RecordIndex, segments: list[tuple[int, int]]) -> None:
        self.index = index
        self.segments = segments


class RecordLog:
    """In segments of ``segment_size`` bytes, a power of two. Used by one thread at a time.

    A place, which an index has, is a location and what is known of the length.
    """

    def __init__(
        self, file: IO[bytes], segment_size: int, owner: Callable[[int], Owner | None]
    ) -> None:
        self._file = file
        self._fd = file.fileno()
        self._owner = owner
        self._buffer = bytearray()
        self._start = 0
        """Where what is in the buffer goes."""
        self._next = 0
        self._end = 0
        """Of the segment that records are appended to."""
        self.segment_shift = segment_size.bit_length() - 1 - UNIT_BITS
        self._open = -1
        self.needed: list[int] = []
        """By segment, how many of its records are needed."""
        self._total: list[int] = []
        """By segment, how many records it has."""
        self._used: list[int] = []
        """By segment, the units that are filled. A long record may go on in the next ones."""
        self._span: list[int] = []
        """By segment, how many segments begin here: 0 if it is free or the rest of another one."""
        self._free: list[int] = []
        self._held: list[int] = []
        """They would be free if there were no views."""
        self._views: WeakSet[View] = WeakSet()
        self._is_cleaning = False
        self._victim = -1
        """The segment that is being cleaned."""
        self._cleaned = 0
        """How far."""

    # --- Writing ----------------------------------------------------------------------------

    def append(self, table: int, numbers: Iterable[int], datas: Iterable[bytes]) -> list[int]:
        """Add records; returns their places. They are in the file after :meth:`flush`."""
        places: list[int] = []
        buffer, pack = self._buffer, _HEADER.pack
        location, end, counted = self._next, self._end, 0
        for number, data in zip(numbers, datas, strict=True):
            size = len(data)
            units = size + HEADER_SIZE + 15 >> UNIT_BITS
            if location + units > end:
                self._next = location
                self._count(len(places) - counted)
                location = self._open_segment(units)
                end, counted = self._end, len(places)
            kind = _KINDS[size + 15 >> UNIT_BITS] if size <= SIZES[-1] else LONG
            places.append(kind << LOCATION_BITS | location)
            location += units
            buffer += pack(number, table, size)
            buffer += data
            buffer += _PADDING[size & 15]
        self._next = location
        self._count(len(places) - counted)
        return places

    def _count(self, records: int) -> None:
        """So many have been added to the open segment."""
        if records:
            self.needed[self._open] += records
            self._total[self._open] += records

    def leave(self, slots: Iterable[int]) -> None:
        """Records are not needed any more."""
        needed, shift = self.needed, self.segment_shift
        for slot in slots:
            needed[(slot & LOCATION) >> shift] -= 1

    def flush(self) -> None:
        """Write what has been appended."""
        buffer = self._buffer
        if not buffer:
            return
        rest, at = memoryview(buffer), self._start << UNIT_BITS
        with rest:
            while rest:
                written = os.pwrite(self._fd, rest, at)
                rest, at = rest[written:], at + written
            rest.release()
        buffer.clear()
        self._start = self._next

    def _open_segment(self, units: int) -> int:
        """Begin a segment in which there is room for this; returns where."""
        if units > MOST_UNITS:
            raise JetletError("the state of one key is larger than a gigabyte when it is pickled")
        self.flush()
        if self._open >= 0:
            self._used[self._open] = self._next - (self._open << self.segment_shift)
        self._free_empty()
        self._judge()
        span = (units - 1 >> self.segment_shift) + 1
        if span == 1 and self._free:
            self._open = self._free.pop()
        else:
            self._open = len(self.needed)
            for column in (self.needed, self._total, self._used, self._span):
                column += [0] * span
        self._span[self._open] = span
        self._next = self._start = self._open << self.segment_shift
        self._end = self._open + span << self.segment_shift
        if self._end > LOCATION:
            raise JetletError("a processor has more state on disk than a terabyte")
        if span > 1:
            self._end = self._next + units  # nothing else goes there
        return self._next

    # --- Reading ----------------------------------------------------------------------------

    def read(self, slot: int) -> bytes:
        """The data of a record, with more behind it. Its slot may have a part of the hash, too."""
        kind = slot >> LOCATION_BITS & 15
        if kind != LONG:
            return os.pread(self._fd, SIZES[kind], ((slot & LOCATION) << 4) + HEADER_SIZE)
        at = (slot & LOCATION) << UNIT_BITS
        size = _HEADER.unpack(os.pread(self._fd, HEADER_SIZE, at))[2]
        return self._piece(at + HEADER_SIZE, size)

    def read_all(self, slots: Iterable[int]) -> Iterator[bytes | None]:
        """The same for many; ``None`` where there is no slot."""
        fd, pread, sizes = self._fd, os.pread, SIZES
        for slot in slots:
            if not slot:
                yield None
            elif (kind := slot >> LOCATION_BITS & 15) == LONG:
                yield self.read(slot)
            else:
                yield pread(fd, sizes[kind], ((slot & LOCATION) << UNIT_BITS) + HEADER_SIZE)

    def _piece(self, at: int, size: int) -> bytes:
        data = os.pread(self._fd, size, at)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), at + len(data))
            if not more:
                raise EOFError("the file of state on disk ends too early")
            data += more
        return data

    def view(self, index: RecordIndex) -> View:
        """See to it that the records of an index stay where they are."""
        self.flush()
        if self._open >= 0:
            self._used[self._open] = self._next - (self._open << self.segment_shift)
        segments = [(n, self._used[n]) for n, count in enumerate(self.needed) if count]
        view = View(index, segments)
        self._views.add(view)
        return view

    @property
    def record_count(self) -> int:
        """Records in the file, with those that are not needed."""
        return sum(self._total)

    def records(self, segment: int, units: int) -> Iterator[Record]:
        """The records of a segment."""
        location = segment << self.segment_shift
        end = location + units
        while location < end:
            found, location = self._some(location, end)
            yield from found

    def _some(self, location: int, end: int) -> tuple[list[Record], int]:
        """Some records from a location on, and where the next one is."""
        at = location << UNIT_BITS
        chunk = self._piece(at, min(AT_ONCE, (end << UNIT_BITS) - at))
        size = _HEADER.unpack_from(chunk)[2]
        if HEADER_SIZE + size > len(chunk):
            chunk = self._piece(at, HEADER_SIZE + size)
        found = []
        offset, last = 0, len(chunk) - HEADER_SIZE
        unpack = _HEADER.unpack_from
        while offset <= last:
            number, table, size = unpack(chunk, offset)
            begin = offset + HEADER_SIZE
            if begin + size > len(chunk):
                break
            found.append((table, number, location, chunk[begin : begin + size]))
            units = size + HEADER_SIZE + 15 >> UNIT_BITS
            location += units
            offset += units << UNIT_BITS
        return found, location

    # --- Cleaning ---------------------------------------------------------------------------

    def clean(self, written: int) -> None:
        """Do as much as is due for so many bytes that have been written."""
        if not self._is_cleaning:
            return
        due = written * SCANNED >> UNIT_BITS
        while due > 0:
            if self._victim < 0 and not self._choose():
                return
            end = (self._victim << self.segment_shift) + self._used[self._victim]
            found, after = self._some(self._cleaned, end)
            for table, records in groupby(found, key=itemgetter(0)):
                owner = self._owner(table)
                if owner is not None:
                    owner.move([record[1:] for record in records])
            due -= after - self._cleaned
            self._cleaned = after
            self.flush()
            if after >= end:
                assert not self.needed[self._victim]
                self._release(self._victim)
                self._victim = -1

    def _judge(self) -> None:
        """Find out whether there is too much garbage."""
        used = sum(self._used)
        needed = sum(
            units * some // count
            for units, some, count in zip(self._used, self.needed, self._total, strict=True)
            if count
        )
        most = max(needed / (1 - GARBAGE), LEAST_SEGMENTS << self.segment_shift)
        self._is_cleaning = used > most

    def _choose(self) -> bool:
        """Choose the segment of which the least is needed."""
        parts = [
            (some / count, n)
            for n, (some, count) in enumerate(zip(self.needed, self._total, strict=True))
            if count and n != self._open
        ]
        if not parts or min(parts)[0] > 1 - GARBAGE / 2:
            self._is_cleaning = False
            return False
        self._victim = min(parts)[1]
        self._cleaned = self._victim << self.segment_shift
        return True

    def _free_empty(self) -> None:
        for n, count in enumerate(self._total):
            if count and not self.needed[n] and n not in (self._open, self._victim):
                self._release(n)
        if not self._views:
            self._free += self._held
            self._held.clear()

    def _release(self, segment: int) -> None:
        span = self._span[segment]
        self._total[segment] = self._used[segment] = self._span[segment] = 0
        (self._held if self._views else self._free).extend(range(segment, segment + span))
