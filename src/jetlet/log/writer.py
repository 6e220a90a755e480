"""PartitionWriter: appends to one partition of a log, beside any number of other writers.

Writers take turns by a lock on the partition's ``lock`` file. In it is the state after the latest
append: which segment, how long it is, which offset is next. A writer that finds the segment as the
state says goes on at once; any difference means that somebody died in the middle. It then goes
through the segment, keeps every block that is whole, and cuts off what is not.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from jetlet.core.clock import Clock
from jetlet.errors import JetletError
from jetlet.log.blocks import NO_TIMESTAMP, SEAL, EncodedBlock, find, seal, tag_of
from jetlet.log.segments import (
    INDEX_INTERVAL,
    LOCK,
    BlockCursor,
    IndexEntry,
    index_path,
    list_segments,
    place_of_offset,
    scan,
    seal_of,
    segment_path,
)
from jetlet.storage.replacement import sync_directory

logger = logging.getLogger("jetlet.log.log")

SEGMENTS_PER_AGE: Final = 8
"""With a ``max_age`` a segment covers this part of it at the most, since whole ones expire."""

WRITE_SIZE: Final = 1 << 22
"""Bytes of a large append that are collected before they are written."""

_NEVER: Final = 1 << 63
_STATE: Final = struct.Struct("<4sQQQqqQ8s")
_CRC: Final = struct.Struct("<I")
_STATE_MAGIC: Final = b"JLS\x01"


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How a partition is written."""

    segment_bytes: int
    """A segment that would become larger is sealed, and the next one begins."""
    sync_interval: int | None = None
    """Milliseconds between two syncs to the disk: 0 with every append, ``None`` never."""
    max_age: int | None = None
    """Milliseconds for which records are kept."""
    max_bytes: int | None = None
    """Bytes of the partition that are kept."""


class _State(NamedTuple):
    """The end of the partition."""

    base: int
    """The base offset of the segment that is written to."""
    position: int
    """The length of the segment that is written to, in bytes."""
    offset: int
    """The offset of the next record."""
    first_timestamp: int
    """The timestamp of the first record in the segment."""
    max_timestamp: int
    """The highest timestamp in the segment."""
    indexed: int
    """The position in the segment that the latest entry of its index points to."""

    def packed(self) -> bytes:
        data = _STATE.pack(_STATE_MAGIC, *self, _boot_id())
        return data + _CRC.pack(crc32(data))

    @classmethod
    def unpacked(cls, data: bytes) -> _State | None:
        """``None`` if it is damaged, or from before the machine was started.

        After a power failure a file may have its old length and zeros where data was not yet
        written, so only a check of the segment tells where it ends.
        """
        if len(data) != _STATE.size + _CRC.size:
            return None
        magic, *values, boot = _STATE.unpack_from(data)
        crc = _CRC.unpack_from(data, _STATE.size)[0]
        if magic != _STATE_MAGIC or boot != _boot_id() or crc32(data[: _STATE.size]) != crc:
            return None
        return cls(*values)


class PartitionWriter:
    """Appends blocks. Safe to use from several threads, and in a process that was forked."""

    def __init__(self, directory: str, options: WriterOptions, clock: Clock) -> None:
        self._directory = directory
        self._options = options
        self._clock = clock
        self._segment_bytes = options.segment_bytes
        if options.max_bytes is not None:
            # A few segments at the least, so that not everything goes at once.
            self._segment_bytes = max(min(options.segment_bytes, options.max_bytes // 4), 1)
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self._lock_fd = -1
        self._segment_fd = -1
        self._index_fd = -1
        self._base = -1
        """The base offset of the segment whose files are open."""
        self._is_dirty = False
        self._synced_ns = clock.monotonic_ns()
        self._next_retention = 0

    def append(self, blocks: Sequence[EncodedBlock]) -> range:
        """Append blocks, together; returns the offsets that their records got."""
        return self._append(lambda: blocks)

    def append_once(self, tag: bytes, blocks: Iterable[EncodedBlock], since: int) -> range:
        """Append the blocks of a transaction, as far as they are not there yet.

        They all have its ``tag``, and are not before the offset ``since``.
        """
        return self._append(lambda: islice(blocks, self._count(tag, since), None))

    def _append(self, blocks: Callable[[], Iterable[EncodedBlock]]) -> range:
        with self._owned():
            with self._locked():
                before = self._current()
                after = self._write(before, blocks())
                # Not if it fails: the next writer then finds out what was written of it.
                os.pwrite(self._lock_fd, after.packed(), 0)
                self._is_dirty = True
                if self._has_retention and self._clock.time_ms() >= self._next_retention:
                    self._retain(self._options.max_age, self._options.max_bytes)
            interval = self._options.sync_interval
            if interval is not None and (
                self._clock.monotonic_ns() - self._synced_ns >= interval * 1_000_000
            ):
                self._sync()
            return range(before.offset, after.offset)

    def retain(self, max_age: int | None, max_bytes: int | None) -> int:
        """Delete the segments of which all is older, and the oldest beyond so many bytes.

        Returns the number of segments deleted. The one that is written to stays, unless all of it
        is too old.
        """
        with self._owned(), self._locked():
            return self._retain(max_age, max_bytes)

    def discard_before(self, offset: int) -> int:
        """Delete the segments of which all is before the offset; returns how many.

        The one that is written to stays.
        """
        with self._owned(), self._locked():
            deleted = 0
            for base, following in pairwise(list_segments(self._directory)):
                if following > offset:
                    break
                self._delete(base)
                deleted += 1
            return deleted

    def sync(self) -> None:
        """Wait until what this writer has appended is on the disk."""
        with self._owned():
            if self._is_dirty:
                self._sync()

    def close(self) -> None:
        with self._owned():
            try:
                if self._is_dirty and self._options.sync_interval is not None:
                    self._sync()
            finally:
                self._close_segment()
                if self._lock_fd >= 0:
                    os.close(self._lock_fd)
                    self._lock_fd = -1

    # --- Turns ------------------------------------------------------------------------------

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """For this thread. The lock of the file is shared by all that have its descriptor."""
        if self._pid != os.getpid():
            # A fork: the child must not share its parent's lock, nor wait for its threads.
            self._mutex = threading.Lock()
            self._pid = os.getpid()
            self._is_dirty = False
            self._close_segment()
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1
        with self._mutex:
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """For this process. The holder needs microseconds, unless it recovers."""
        if self._lock_fd < 0:
            path = f"{self._directory}/{LOCK}"
            self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    # --- Under the lock ---------------------------------------------------------------------

    def _current(self) -> _State:
        """The end of the partition; makes it whole if it is not."""
        state = _State.unpacked(os.pread(self._lock_fd, _STATE.size + _CRC.size, 0))
        if state is not None:
            try:
                self._open_segment(state.base)
            except FileNotFoundError:
                state = None
            else:
                found = os.fstat(self._segment_fd)
                if not found.st_nlink:
                    raise JetletError(
                        f"the log in {self._directory} was removed while it was written to"
                    )
                if found.st_size == state.position:
                    return state
        return self._recover()

    def _recover(self) -> _State:
        bases = list_segments(self._directory)
        if not bases:
            raise JetletError(
                f"{self._directory} has no segments: the log was removed or is damaged"
            )
        base = bases[-1]
        self._open_segment(base)
        fd = self._segment_fd
        state = _State(base, 0, base, NO_TIMESTAMP, NO_TIMESTAMP, 0)
        entries = []
        is_sealed = False
        for position, block in scan(fd, 0, base):
            if block.kind == SEAL:
                is_sealed = True
                break
            if position - state.indexed >= INDEX_INTERVAL:
                entries.append(IndexEntry(block.offset, position, state.max_timestamp))
                state = state._replace(indexed=position)
            state = state._replace(
                position=position + block.size,
                offset=block.offset + block.records,
                first_timestamp=state.first_timestamp if position else block.first_timestamp,
                max_timestamp=max(state.max_timestamp, block.max_timestamp),
            )
        os.ftruncate(self._index_fd, 0)
        _write_all(self._index_fd, b"".join(entry.packed() for entry in entries))
        if is_sealed:
            return self._begin_segment(state.offset)
        self._cut_off(state.position)
        return state

    def _cut_off(self, position: int) -> None:
        """Drop what follows the last whole block; keep a copy if it is more than a torn write."""
        path = segment_path(self._directory, self._base)
        rest = os.fstat(self._segment_fd).st_size - position
        if not rest:
            return
        data = os.pread(self._segment_fd, rest, position)
        if find(data, 1) is not None:
            # Blocks behind a damaged one cannot be served, since offsets have no gaps.
            aside = Path(f"{path}.damaged-{position}")
            aside.write_bytes(data)
            logger.error(
                "%s is damaged at byte %d; it ends there now, and what followed is in %s",
                path,
                position,
                aside.name,
            )
        else:
            logger.warning(
                "%s ended in %d bytes of an append that was not completed; dropped", path, rest
            )
        os.ftruncate(self._segment_fd, position)

    def _count(self, tag: bytes, since: int) -> int:
        """How many blocks of a transaction are there, at an offset or behind it."""
        count = 0
        bases = list_segments(self._directory)
        for base in bases[max(bisect_right(bases, since) - 1, 0) :]:
            fd = os.open(segment_path(self._directory, base), os.O_RDONLY | os.O_CLOEXEC)
            try:
                place = place_of_offset(self._directory, base, fd, since)
                cursor = BlockCursor(fd, place.position)
                while (block := cursor.next()) is not None:
                    count += tag_of(block, cursor.data) == tag
            finally:
                os.close(fd)
        return count

    def _write(self, state: _State, blocks: Iterable[EncodedBlock]) -> _State:
        base, position, offset, first, highest, indexed = state
        written = position
        buffers: list[bytes] = []
        entries: list[bytes] = []
        for block in blocks:
            is_full = bool(position) and self._is_full(position, first, block)
            if is_full or position - written >= WRITE_SIZE:
                _write_all(self._segment_fd, b"".join(buffers))
                _write_all(self._index_fd, b"".join(entries))
                buffers.clear()
                entries.clear()
                written = position
            if is_full:
                self._seal(offset, highest)
                base, position, offset, first, highest, indexed = self._begin_segment(offset)
                written = 0
            if not position:
                first = block.first_timestamp
            elif position - indexed >= INDEX_INTERVAL:
                entries.append(IndexEntry(offset, position, highest).packed())
                indexed = position
            buffers += (block.header(offset), block.payload)
            position += block.size
            offset += block.records
            highest = max(highest, block.max_timestamp)
        _write_all(self._segment_fd, b"".join(buffers))
        if entries:
            _write_all(self._index_fd, b"".join(entries))
        return _State(base, position, offset, first, highest, indexed)

    def _is_full(self, position: int, first_timestamp: int, block: EncodedBlock) -> bool:
        if position + block.size > self._segment_bytes:
            return True
        max_age = self._options.max_age
        return max_age is not None and (
            block.max_timestamp - first_timestamp > max_age // SEGMENTS_PER_AGE
        )

    def _seal(self, offset: int, max_timestamp: int) -> None:
        _write_all(self._segment_fd, seal(max_timestamp).header(offset))
        if self._options.sync_interval is not None:
            # Before the next segment is there: else a power failure could leave a hole.
            self._sync()

    def _begin_segment(self, base: int) -> _State:
        path = segment_path(self._directory, base)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        self._open_segment(base)
        if self._options.sync_interval is not None:
            sync_directory(self._directory)
        self._next_retention = 0
        return _State(base, 0, base, NO_TIMESTAMP, NO_TIMESTAMP, 0)

    def _retain(self, max_age: int | None, max_bytes: int | None) -> int:
        now = self._clock.time_ms()
        state = self._current()
        oldest = NO_TIMESTAMP if max_age is None else now - max_age
        if state.position and state.max_timestamp < oldest:
            self._seal(state.offset, state.max_timestamp)
            state = self._begin_segment(state.offset)
        os.pwrite(self._lock_fd, state.packed(), 0)

        bases = [base for base in list_segments(self._directory) if base < state.base]
        sizes = {base: _size(segment_path(self._directory, base)) for base in bases}
        total = sum(sizes.values()) + state.position
        deleted = 0
        for base in bases:
            is_too_much = max_bytes is not None and total > max_bytes
            if not is_too_much and not self._is_older(base, oldest):
                break
            self._delete(base)
            total -= sizes[base]
            deleted += 1
        if self._options.max_age is not None:
            self._next_retention = now + max(self._options.max_age // SEGMENTS_PER_AGE, 1)
        else:
            self._next_retention = _NEVER  # until the next segment begins
        return deleted

    def _delete(self, base: int) -> None:
        # The segment first: an index without one does no harm.
        Path(segment_path(self._directory, base)).unlink()
        Path(index_path(self._directory, base)).unlink(missing_ok=True)

    @property
    def _has_retention(self) -> bool:
        return self._options.max_age is not None or self._options.max_bytes is not None

    def _is_older(self, base: int, oldest: int) -> bool:
        fd = os.open(segment_path(self._directory, base), os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = seal_of(fd)
        finally:
            os.close(fd)
        return found is not None and found.max_timestamp < oldest

    # --- Files ------------------------------------------------------------------------------

    def _open_segment(self, base: int) -> None:
        if self._base == base:
            return
        if self._is_dirty and self._options.sync_interval is not None:
            self._sync()  # another writer has begun the next segment
        self._close_segment()
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        self._segment_fd = os.open(segment_path(self._directory, base), flags)
        self._index_fd = os.open(index_path(self._directory, base), flags | os.O_CREAT, 0o666)
        self._base = base

    def _close_segment(self) -> None:
        for fd in (self._segment_fd, self._index_fd):
            if fd >= 0:
                os.close(fd)
        self._segment_fd = self._index_fd = self._base = -1

    def _sync(self) -> None:
        os.fsync(self._segment_fd)
        self._is_dirty = False
        self._synced_ns = self._clock.monotonic_ns()


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data) if data else 0
    while written < len(data):  # a disk that is nearly full, or a signal
        written += os.write(fd, memoryview(data)[written:])


def _size(path: str) -> int:
    return os.stat(path).st_size  # noqa: PTH116


@cache
def _boot_id() -> bytes:
    """Differs each time the machine is started, where the system says so."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return bytes(8)
    return bytes.fromhex(text.replace("-", "").strip())[:8]
