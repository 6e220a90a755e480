"""PartitionReader: follows one partition of a log, through its segments, without ever waiting.

It keeps the segment that it is in open, so a poll that finds nothing new costs one system call, and
a segment that retention deletes is read to its end. Any number of readers can follow a partition.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from jetlet.errors import BadRecordError, JetletError
from jetlet.log.blocks import SEAL, Block, Serializer, decode, timestamps_of
from jetlet.log.segments import (
    BlockCursor,
    list_segments,
    place_of_offset,
    place_of_time,
    scan,
    seal_of,
    segment_path,
)

OnGap = Literal["skip", "fail"]

CHECK_EVERY: Final = 128
"""Polls without anything new, between two looks at whether the partition goes on elsewhere."""
LONGEST_PAUSE: Final = 31
"""Polls that are skipped at the most when half a block is at the end: it costs more to look at."""

BLOCKS_PER_POLL: Final = 256
"""Blocks that a poll decodes: of those with a record each, more would take over a millisecond."""

logger = logging.getLogger("jetlet.log.log")


@dataclass(frozen=True, slots=True)
class Records:
    """Records that follow each other in one partition."""

    offset: int
    """The offset of the first record; those of the others follow without a gap."""
    items: Sequence[Any]
    timestamps: Sequence[int]

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.items)

    def __len__(self) -> int:
        return len(self.items)


NO_RECORDS: Final = Records(0, (), ())


class PartitionReader:
    """Reads on from an offset. Used by one thread at a time.

    ``offset=None`` is the first record that is there. What happens if the records at the offset are
    gone, or damaged, is up to ``on_gap``: ``"skip"`` goes on with the next that there are and logs
    a warning, ``"fail"`` raises. ``on_skip`` is told how many records were skipped. With
    ``on_bad``, blocks whose records cannot be decoded are skipped, and it is told the offset, the
    bytes and the reason.
    """

    def __init__(
        self,
        directory: str,
        offset: int | None,
        serializer: Serializer,
        *,
        on_gap: OnGap = "fail",
        on_skip: Callable[[int], object] | None = None,
        on_bad: Callable[[int, bytes, BadRecordError], object] | None = None,
    ) -> None:
        self._directory = directory
        self._on_bad = on_bad
        self._serializer = serializer
        self._on_gap = on_gap
        self._on_skip = on_skip
        self._base = -1
        self._cursor: BlockCursor | None = None
        self._is_sealed = False
        """The segment is read to its end; the next one may not be there yet."""
        self._next_base = 0
        self._held: tuple[Sequence[Any], Sequence[int], int] | None = None
        """A block's records, and how many of them have been handed out."""
        self._skip_to = 0
        """Records of the next block before this offset are not wanted."""
        self._empty_polls = 0
        self._pause = self._paused = 0
        self.has_looked = False
        """Whether the last poll has looked for what is new; now and then one leaves it out."""
        self.offset = 0
        """The offset of the next record."""
        self.seek(offset)

    def poll(self, limit: int) -> Records | None:
        """The next records, ``limit`` at the most, maybe less; ``None`` if there are none yet."""
        first = self.offset
        blocks = 0
        items: list[Any] = []
        timestamps: list[int] = []
        while len(items) < limit and blocks < BLOCKS_PER_POLL:
            blocks += 1
            if self._held is None and not self._load():
                break
            assert self._held is not None
            part, times, at = self._held
            if not items:
                first = self.offset  # later than before, if something was skipped
            elif first + len(items) != self.offset:
                break  # something was skipped: not in the middle of a batch
            wanted = limit - len(items)
            if at or len(part) > wanted:
                end = min(at + wanted, len(part))
                self._held = (part, times, end) if end < len(part) else None
                part, times = part[at:end], times[at:end]
            else:
                self._held = None
            self.offset += len(part)
            if not items and len(part) == wanted:
                return Records(first, part, times)  # a block as it is: nothing is copied
            items += part
            timestamps += times
        if not items:
            return None
        return Records(first, items, timestamps)

    @property
    def is_at_end(self) -> bool:
        """True if the last poll found that nothing was written behind the last record.

        Otherwise there may be half a block, or another segment to come, and polling helps.
        """
        cursor = self._cursor
        return not (self._is_sealed or self._held or cursor is None or cursor.has_rest)

    def look_around(self) -> None:
        """Something has changed: if there is nothing new here, see whether it goes on elsewhere."""
        self._empty_polls = CHECK_EVERY - 1

    def seek(self, offset: int | None) -> None:
        """Go on from this offset; ``None`` is the first record that is there."""
        while True:
            bases = self._segments()
            start = bases[0] if offset is None else offset
            if start < bases[0]:
                self._report_gap(start, bases[0], "retention has deleted them")
                start = bases[0]
            base = bases[bisect_right(bases, start) - 1]
            try:
                self._enter(base)
                break
            except FileNotFoundError:  # deleted just now
                continue
        self._skip_to = self.offset = start
        assert self._cursor is not None
        place = place_of_offset(self._directory, base, self._cursor.fd, start)
        position, next_offset = place.position, place.offset
        for at, block in scan(self._cursor.fd, place.position, place.offset):
            if block.kind == SEAL or block.offset + block.records > start:
                position, next_offset = at, block.offset
                break
            position, next_offset = at + block.size, block.offset + block.records
        self._cursor.position = position
        if next_offset < start and base == bases[-1] and self._peek() is None:
            self._report_gap(next_offset, start, "the log ends before them")
            self._skip_to = self.offset = next_offset

    def close(self) -> None:
        if self._cursor is not None:
            os.close(self._cursor.fd)
            self._cursor = None
            self._base = -1

    # --- Blocks -----------------------------------------------------------------------------

    def _load(self) -> bool:
        """Decode the next block that has records; false if there is none yet."""
        self.has_looked = not self._paused
        if self._paused:
            self._paused -= 1
            return False
        cursor = self._cursor
        if cursor is None:
            raise JetletError("the reader of the log is closed")
        while True:
            block = None if self._is_sealed else cursor.next()
            if block is None:
                if not self._go_elsewhere():
                    return False
            elif block.kind == SEAL:
                self._is_sealed = True
                self._next_base = block.offset
            elif block.offset + block.records > self._skip_to:
                if self._hold(block, cursor.data):
                    return True
            cursor = self._cursor
            assert cursor is not None

    def _hold(self, block: Block, data: bytes) -> bool:
        self._pause = self._empty_polls = 0
        try:
            items, timestamps = decode(block, data, self._serializer)
        except BadRecordError as error:
            path = segment_path(self._directory, self._base)
            bad = BadRecordError(f"{path}: {error}")
            bad.__cause__ = error.__cause__
            if self._on_bad is not None:
                raw = bytes(data[block.start : block.start + block.length])
                self._on_bad(block.offset, raw, bad)
                self.offset = block.offset + block.records
                return False
            self.seek(self.offset)  # whoever goes on shall not miss it
            raise bad from error.__cause__
        self._held = items, timestamps, max(self._skip_to - block.offset, 0)
        self.offset = max(block.offset, self._skip_to)
        return True

    def _peek(self) -> Block | None:
        assert self._cursor is not None
        return BlockCursor(self._cursor.fd, self._cursor.position).next()

    # --- Segments ---------------------------------------------------------------------------

    def _go_elsewhere(self) -> bool:
        """No block here: see whether there is another segment to go to; true if it was entered."""
        cursor = self._cursor
        assert cursor is not None
        if self._is_sealed:
            try:
                self._enter(self._next_base)
                return True
            except FileNotFoundError:
                pass  # not there yet, or deleted already
        elif not cursor.has_rest:
            self._empty_polls += 1
            if self._empty_polls % CHECK_EVERY:
                return False
        later = [base for base in self._segments() if base > self._base]
        if not later:
            if not os.fstat(cursor.fd).st_nlink and not self._is_sealed:
                raise JetletError(f"the log in {self._directory} was removed while it was read")
            if self._is_sealed or cursor.has_rest:
                self._paused = self._pause
                self._pause = min(2 * self._pause + 1, LONGEST_PAUSE)
            return False
        # Since a later segment is there, this one is complete: look again, it may have grown.
        if not self._is_sealed and self._peek() is not None:
            return True
        if later[0] != self.offset:
            why = "retention has deleted them"
            if not self._is_sealed:
                path = segment_path(self._directory, self._base)
                why = f"{path} is damaged at byte {cursor.position}"
            self._report_gap(self.offset, later[0], why)
        try:
            self._enter(later[0])
        except FileNotFoundError:
            return False  # deleted just now: look again at the next poll
        self._skip_to = self.offset = later[0]
        return True

    def _enter(self, base: int) -> None:
        fd = os.open(segment_path(self._directory, base), os.O_RDONLY | os.O_CLOEXEC)
        if self._cursor is not None:
            os.close(self._cursor.fd)
        self._cursor = BlockCursor(fd, 0)
        self._base = base
        self._is_sealed = False
        self._held = None
        self._pause = self._paused = self._empty_polls = 0

    def _segments(self) -> list[int]:
        try:
            bases = list_segments(self._directory)
        except FileNotFoundError:
            bases = []
        if not bases:
            raise JetletError(f"the log in {self._directory} was removed")
        return bases

    def _report_gap(self, start: int, end: int, why: str) -> None:
        if self._on_gap == "fail":
            raise BadRecordError(
                f"{self._directory}: there are no records with the offsets {start} to {end - 1}: "
                f"{why}; start at another offset, or write on_gap='skip'"
            )
        logger.warning("%s: skipped the offsets %d to %d: %s", self._directory, start, end - 1, why)
        if self._on_skip is not None:
            self._on_skip(end - start)


# --- Searching ------------------------------------------------------------------------------


def start_offset(directory: str) -> int:
    """The offset of the first record that is there."""
    return list_segments(directory)[0]


def end_offset(directory: str) -> int:
    """The offset that the next record will have."""
    while True:
        base = list_segments(directory)[-1]
        try:
            fd = os.open(segment_path(directory, base), os.O_RDONLY | os.O_CLOEXEC)
            break
        except FileNotFoundError:  # too old as a whole, and deleted just now
            continue
    try:
        place = place_of_offset(directory, base, fd, _LAST_OFFSET)
        offset = place.offset
        for _, block in scan(fd, place.position, place.offset):
            offset = block.offset + block.records
        return offset
    finally:
        os.close(fd)


def offset_at(directory: str, timestamp: int) -> int:
    """The offset of the first record at the timestamp or later; the end if there is none."""
    end = 0
    for base in list_segments(directory):
        try:
            fd = os.open(segment_path(directory, base), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # deleted just now
            continue
        try:
            end = base
            sealed = seal_of(fd)
            if sealed is not None and sealed.max_timestamp < timestamp:
                end = sealed.offset
                continue
            place = place_of_time(directory, base, fd, timestamp)
            cursor = BlockCursor(fd, place.position)
            while (block := cursor.next()) is not None:
                if block.kind != SEAL and block.max_timestamp >= timestamp:
                    times = timestamps_of(block, cursor.data)
                    return block.offset + next(
                        i for i, time in enumerate(times) if time >= timestamp
                    )
                end = block.offset + block.records
        finally:
            os.close(fd)
    return end


_LAST_OFFSET: Final = (1 << 64) - 1
