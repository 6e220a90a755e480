"""Following text files: the lines that are there, and those that are appended."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from jetlet.connectors.files.input import Paths
from jetlet.connectors.files.line_buffer import LineBuffer, check_line_encoding
from jetlet.core.arguments import check_choice, check_name
from jetlet.core.durations import Duration, to_ms
from jetlet.core.processor import ProcessorContext
from jetlet.errors import BadRecordError, InputNotFoundError, InvalidArgumentError
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.stream_source import Polled, Span, SpanPart, StreamReader, StreamSource
from jetlet.storage.compression import codec_of
from jetlet.storage.file_systems import has_wildcard, is_url

INTERVAL_MS: Final = 50
"""Milliseconds between two looks at whether files have grown, by default."""
GRACE_MS: Final = 2000
"""For how long a file that was renamed or removed is still read: its writer may not know yet."""
MAX_DUTY: Final = 20
"""Looking for new files takes a twentieth of the time at the most."""

FILES_PER_POLL: Final = 100
"""Files that a poll looks at: it must not take long, however many there are."""

_BLOCK: Final = 1 << 16
_HEAD: Final = 256
"""Bytes at the beginning of a file that it is known by."""

FileId = tuple[int, int]
"""Device and inode: a file keeps them when it is renamed."""


class FilePosition(NamedTuple):
    """How far a file was read; picklable."""

    id: FileId
    offset: int
    """The position in the file behind the last whole line that was read."""
    head_size: int
    head_crc: int


class TailSource(StreamSource[str]):
    """Lines of text files, those that are there and those that are appended later.

    ``path`` is a file, a directory, a glob, or a list of these; files may appear later. With
    ``from_start=False`` the lines that are there when the job is submitted are left out. A line
    counts once its line end has been written. A file that is renamed or replaced, as when logs are
    rotated, is read to its end, and the one that takes its place from its start; one that is
    truncated, from its start.

    With ``until="end"`` it ends where the files end when the job is submitted, as bounded input
    does.

    Files are looked at every ``interval``, in milliseconds. In a directory, and among what a glob
    matches, compressed files are left out.
    """

    is_replayable = True

    def __init__(
        self,
        path: Paths,
        *,
        from_start: bool = True,
        until: Literal["end"] | None = None,
        encoding: str = "utf-8",
        errors: str = "strict",
        interval: Duration = INTERVAL_MS,
        name: str | None = None,
    ) -> None:
        what = "sources.tail"
        given: Iterable[Any] = [path] if isinstance(path, str | os.PathLike) else _listed(path)
        patterns = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in given]
        if not patterns or not all(isinstance(each, str) and each for each in patterns):
            raise InvalidArgumentError(
                f"{what}({path!r}): write a path, a directory, a glob, or a list of these"
            )
        if any(map(is_url, patterns)):
            raise InvalidArgumentError(
                f"{what}({path!r}): only files of this machine can be followed; write a path"
            )
        # A relative path means the directory that the source was made in, also elsewhere.
        self._patterns = [os.path.abspath(os.path.expanduser(each)) for each in patterns]  # noqa: PTH100, PTH111
        if until is not None:
            check_choice(f"{what}: until", until, "end")
        self._from_start = from_start
        self._is_bounded = until is not None
        self._encoding = check_line_encoding(what, encoding, errors)
        self._errors = errors
        self._interval = to_ms(f"{what}: interval", interval, minimum=1)
        more = f", +{len(patterns) - 1}" if len(patterns) > 1 else ""
        self.name = check_name(what, name) or f"tail({patterns[0]}{more})"

    def partitions(self) -> Sequence[dict[FileId, int]]:
        # The end is where it is when the job is submitted: nothing is missed while it starts.
        if self._from_start:
            return [{}]
        return [{_id(found): found.st_size for _, found in _find(self._patterns)}]

    @property
    def is_bounded(self) -> bool:
        return self._is_bounded

    def spans(self) -> Sequence[Span]:
        if not self._from_start:
            return []
        return [Span((path, _id(found), 0), found.st_size) for path, found in _find(self._patterns)]

    def read_span(self, span: Span) -> Iterator[SpanPart[str]]:
        path, id, start = span.partition
        fd = self._reopen(path, id)
        try:
            lines = LineBuffer(path, self._encoding, self._errors, consumed=start)
            at = start
            while True:
                found = lines.take(BATCH_SIZE)
                if found:
                    rest = replace(span, partition=(path, id, lines.consumed))
                    yield SpanPart(found, None, rest)
                    continue
                data = os.pread(fd, min(_BLOCK, span.end - at), at)
                if not data:
                    if at < span.end:
                        raise BadRecordError(f"{path} was truncated while it was read")
                    return
                at += len(data)
                lines.add(data)
        finally:
            os.close(fd)

    def _reopen(self, path: str, id: FileId) -> int:
        """The file, which may have got another name since."""
        for name in (path, *(path for path, found in _find(self._patterns) if _id(found) == id)):
            with suppress(FileNotFoundError):
                fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
                if _id(os.fstat(fd)) == id:
                    return fd
                os.close(fd)
        raise InputNotFoundError(f"sources.tail: {path} was removed before it was read")

    def open(
        self, partitions: Sequence[dict[FileId, int]], context: ProcessorContext
    ) -> StreamReader[str]:
        return TailReader(
            self._patterns, partitions[0], self._encoding, self._errors, self._interval, context
        )


@dataclass(slots=True)
class _Followed:
    """A file that is being read."""

    fd: int
    path: str
    lines: LineBuffer
    read_to: int
    gone_at: int | None = None
    """When it was found to be no longer there under any name that is followed."""


class TailReader(StreamReader[str]):
    """Looks at the files at intervals, and in between only at those that have more to read."""

    def __init__(
        self,
        patterns: Sequence[str],
        starts: dict[FileId, int],
        encoding: str,
        errors: str,
        interval_ms: int,
        context: ProcessorContext,
    ) -> None:
        self._patterns = patterns
        self._starts = starts
        self._encoding = encoding
        self._errors = errors
        self._interval_ms = interval_ms
        self._clock = context.clock
        self._logger = context.logger
        self._files: dict[FileId, _Followed] = {}
        self._saved: dict[FileId, FilePosition] = {}
        """Positions of files that have not been found again yet."""
        self._busy: list[FileId] = []
        """Files that may have more to read right now."""
        self._next_look = self._next_search = self._now()

    def poll(self, limit: int) -> Sequence[Polled[str]]:
        now = self._now()
        if now >= self._next_look:
            self._next_look = now + self._interval_ms
            if now >= self._next_search:
                self._search(now)
            self._busy = list(self._files)
        if not self._busy:
            return ()
        lines: list[str] = []
        busy, self._busy = self._busy, []
        for i, id in enumerate(busy):
            if len(lines) >= limit or i == FILES_PER_POLL:
                self._busy += busy[i:]
                break
            if self._read(self._files[id], limit - len(lines), lines, now):
                self._busy.append(id)
        self._forget_gone(now, lines)
        return [Polled(0, lines)] if lines else ()

    def is_quiet(self, partition: int) -> bool:
        return not self._busy

    def save(self) -> Sequence[list[FilePosition]]:
        positions = [
            FilePosition(id, file.lines.consumed, *_head(file.fd, file.lines.consumed))
            for id, file in self._files.items()
        ]
        return [[*positions, *self._saved.values()]]

    def restore(self, positions: Sequence[list[FilePosition] | None]) -> None:
        if positions[0] is not None:
            self._saved = {position.id: position for position in positions[0]}
            # What is there now and was not then is new, and read from its start.
            self._starts = {}

    def close(self) -> None:
        for file in self._files.values():
            os.close(file.fd)
        self._files.clear()

    def _now(self) -> int:
        # Not the time of the day, which may be set back by hours.
        return self._clock.monotonic_ns() // 1_000_000

    # --- Files ------------------------------------------------------------------------------

    def _search(self, now: int) -> None:
        """Find the files there are: open new ones, note new names and what is gone."""
        started = self._clock.monotonic_ns()
        missing = set(self._files)
        for path, found in _find(self._patterns):
            id = _id(found)
            file = self._files.get(id)
            if file is None:
                self._open(id, path)
            else:
                missing.discard(id)
                file.gone_at = None
                file.path = file.lines.where = path
        for id in missing:
            file = self._files[id]
            if file.gone_at is None:
                file.gone_at = now
        took_ms = (self._clock.monotonic_ns() - started) // 1_000_000
        self._next_search = now + took_ms * MAX_DUTY
        self._saved.clear()  # what has not been found again is gone

    def _open(self, id: FileId, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:  # gone again
            return
        found = os.fstat(fd)
        if _id(found) != id:  # replaced just now: the next search finds what is there
            os.close(fd)
            return
        start = self._starts.pop(id, 0)
        saved = self._saved.pop(id, None)
        if saved is not None and _head(fd, saved.head_size) == (saved.head_size, saved.head_crc):
            start = saved.offset
        if start > found.st_size:
            start = 0
        lines = LineBuffer(path, self._encoding, self._errors, consumed=start)
        self._files[id] = _Followed(fd, path, lines, start)

    def _read(self, file: _Followed, limit: int, lines: list[str], now: int) -> bool:
        """Add the file's next lines; true if there may be more right now."""
        found = file.lines.take(limit)
        is_full = False
        if not found:
            data = os.pread(file.fd, _BLOCK, file.read_to)
            if data:
                is_full = len(data) == _BLOCK
                file.read_to += len(data)
                file.lines.add(data)
                found = file.lines.take(limit)
                if file.gone_at is not None:
                    file.gone_at = now  # its writer still writes
            elif os.fstat(file.fd).st_size < file.read_to:
                self._logger.warning("%s was truncated; read from its start", file.path)
                file.lines = LineBuffer(file.path, self._encoding, self._errors)
                file.read_to = 0
                return self._read(file, limit, lines, now)
        lines += found
        return bool(found) or is_full

    def _forget_gone(self, now: int, lines: list[str]) -> None:
        gone = [
            id
            for id, file in self._files.items()
            if file.gone_at is not None and now - file.gone_at >= GRACE_MS and id not in self._busy
        ]
        for id in gone:
            file = self._files.pop(id)
            # Nobody will complete its last line.
            lines += file.lines.take_rest()
            os.close(file.fd)


# --- What there is --------------------------------------------------------------------------


def _find(patterns: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    """The files that the patterns name, in the order of their age, each with what it is."""
    found: dict[FileId, tuple[str, os.stat_result]] = {}
    for pattern in patterns:
        for path in _paths(pattern):
            with suppress(FileNotFoundError, NotADirectoryError):
                status = os.stat(path)  # noqa: PTH116
                if stat.S_ISREG(status.st_mode):
                    found.setdefault(_id(status), (path, status))
    return iter(sorted(found.values(), key=lambda each: (each[1].st_mtime_ns, each[0])))


def _paths(pattern: str) -> Iterable[str]:
    if os.path.isdir(pattern):  # noqa: PTH112
        return _files_in(pattern)
    if not has_wildcard(pattern) or os.path.exists(pattern):  # noqa: PTH110
        return [pattern]
    paths = []
    for path in glob.glob(pattern, recursive=True):  # noqa: PTH207
        if os.path.isdir(path):  # noqa: PTH112
            paths += _files_in(path)
        elif not codec_of(path):
            paths.append(path)
    return paths


def _files_in(directory: str) -> list[str]:
    """Those that are there to be read; a compressed one was followed before it was compressed."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return [
            f"{directory}/{name}"
            for name in os.listdir(directory)  # noqa: PTH208
            if not re.match(r"[._]", name) and not codec_of(name)
        ]
    return []


def _id(found: os.stat_result) -> FileId:
    return found.st_dev, found.st_ino


def _head(fd: int, size: int) -> tuple[int, int]:
    """What a file is known by: so many of its first bytes, and their checksum."""
    data = os.pread(fd, min(size, _HEAD), 0)
    return len(data), crc32(data)


def _listed(path: object) -> Iterable[Any]:
    return path if isinstance(path, Iterable) and not isinstance(path, bytes) else ()
