"""Segments: the files of one partition of a log.

A partition is a directory. A segment is a file of blocks, named after the offset of its first
record, ``00000000000000000000.log``; the last one is written to, the others end with a seal. Beside
each is an index, ``.index``: every 64 KiB or so, which offset is where, and the highest timestamp
before it. The index only saves reading: entries that do not fit the segment are not believed.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from jetlet.log.blocks import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    SEAL,
    Block,
    block_size,
    parse,
)

LOCK: Final = "lock"
INDEX_INTERVAL: Final = 1 << 16
"""Bytes of a segment between two entries of its index."""

_SUFFIX: Final = ".log"
_ENTRY: Final = struct.Struct("<QQq")
_CRC: Final = struct.Struct("<I")
INDEX_ENTRY_SIZE: Final = _ENTRY.size + _CRC.size
_FIRST_READ: Final = 1 << 16
_LARGEST_READ: Final = 1 << 20


def partition_directory(directory: str, partition: int) -> str:
    return f"{directory}/{partition:05}"


def segment_path(directory: str, base: int) -> str:
    """The segment whose first record has the offset ``base``."""
    return f"{directory}/{base:020}{_SUFFIX}"


def index_path(directory: str, base: int) -> str:
    return f"{directory}/{base:020}.index"


def list_segments(directory: str) -> list[int]:
    """The first offsets of the segments that are there, in order."""
    return sorted(
        int(name[: -len(_SUFFIX)])
        for name in os.listdir(directory)  # noqa: PTH208
        if name.endswith(_SUFFIX) and name[: -len(_SUFFIX)].isdigit()
    )


class BlockCursor:
    """Goes through the blocks of an open segment, from a position that a block starts at.

    It may be at the end of a segment that grows: then ``next`` gives ``None`` and can be called
    again later. Bytes that are not a whole block are read anew every time, since a writer that
    recovers from a crash replaces them.
    """

    __slots__ = ("_at", "_read_size", "data", "fd", "has_rest", "position")

    def __init__(self, fd: int, position: int) -> None:
        self.fd = fd
        self.position = position
        """In the segment, behind the latest block."""
        self.data = b""
        """The file that holds the latest block."""
        self.has_rest = False
        """True if there are bytes at the position, which are not a block (or not yet)."""
        self._at = 0
        self._read_size = _FIRST_READ

    def next(self) -> Block | None:
        """The next block, if it is there; its payload is in ``data``."""
        block = parse(self.data, self._at)
        if block is None:
            block = self._read()
            if block is None:
                return None
        self._at = block.start + block.length
        self.position += block.size
        return block

    def _read(self) -> Block | None:
        size, self._read_size = self._read_size, _FIRST_READ
        self.data, self._at = b"", 0
        while True:
            data = os.pread(self.fd, size, self.position)
            if not data:  # nothing new, which is what most polls find
                self.has_rest = False
                return None
            block = parse(data, 0)
            if block is not None:
                self.data = data
                if len(data) == size:  # there is much to catch up with
                    self._read_size = min(size * 2, _LARGEST_READ)
                self.has_rest = False
                return block
            needed = block_size(data)
            left = os.fstat(self.fd).st_size - self.position if needed > size else 0
            if not size < needed <= left:
                self.has_rest = True
                return None
            size = needed


def scan(fd: int, position: int, offset: int) -> Iterator[tuple[int, Block]]:
    """The blocks from a position on, with theirs; up to the seal, or to what is not a block."""
    cursor = BlockCursor(fd, position)
    while True:
        position = cursor.position
        block = cursor.next()
        if block is None or block.offset != offset:
            return
        yield position, block
        if block.kind == SEAL:
            return
        offset += block.records


def seal_of(fd: int) -> Block | None:
    """The seal at the end of a segment that is full."""
    end = os.fstat(fd).st_size
    if end < HEADER_SIZE:
        return None
    block = parse(os.pread(fd, HEADER_SIZE, end - HEADER_SIZE), 0)
    return block if block is not None and block.kind == SEAL else None


# --- Index ----------------------------------------------------------------------------------


class IndexEntry(NamedTuple):
    """A place in a segment that a block starts at."""

    offset: int
    position: int
    max_timestamp: int
    """The highest timestamp in the segment before it."""

    def packed(self) -> bytes:
        data = _ENTRY.pack(*self)
        return data + _CRC.pack(crc32(data))


def read_index(directory: str, base: int) -> list[IndexEntry]:
    """The entries of a segment's index, up to a damaged one; none if it is missing."""
    try:
        with open(index_path(directory, base), "rb") as file:  # noqa: PTH123
            data = file.read()
    except FileNotFoundError:
        return []
    entries = []
    for at in range(0, len(data) - INDEX_ENTRY_SIZE + 1, INDEX_ENTRY_SIZE):
        entry = data[at : at + _ENTRY.size]
        if crc32(entry) != _CRC.unpack_from(data, at + _ENTRY.size)[0]:
            break
        entries.append(IndexEntry(*_ENTRY.unpack(entry)))
    return entries


def place_of_offset(directory: str, base: int, fd: int, offset: int) -> IndexEntry:
    """A place at the offset or before it, as near as the index knows."""
    entries = read_index(directory, base)
    return _believable(entries, bisect_right(entries, offset, key=lambda e: e.offset), base, fd)


def place_of_time(directory: str, base: int, fd: int, timestamp: int) -> IndexEntry:
    """A place before which every record is earlier than the timestamp."""
    entries = read_index(directory, base)
    # The highest timestamp so far only grows, so it can be searched, in whatever order the
    # records' own timestamps are.
    index = bisect_right(entries, timestamp - 1, key=lambda e: e.max_timestamp)
    return _believable(entries, index, base, fd)


def _believable(entries: list[IndexEntry], index: int, base: int, fd: int) -> IndexEntry:
    """The entry before ``index``, or the nearest before it that is where a block starts."""
    for entry in reversed(entries[:index]):
        block = BlockCursor(fd, entry.position).next()
        if block is not None and block.offset == entry.offset:
            return entry
    return IndexEntry(base, 0, NO_TIMESTAMP)
