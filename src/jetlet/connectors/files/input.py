"""Files as input: what a path argument names, how files are cut into splits, how one is opened.

Every source of files subclasses :class:`FileSource`. Which files there are is found out when the
job is submitted; a :class:`FileSplit` then names a byte range of one file, and whoever reads it
opens the file anew with :func:`open_file`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, TypedDict, TypeVar

from jetlet.connectors.files.partitions import is_partition, keys_in, with_keys
from jetlet.core.arguments import check_count, check_encoding, check_name
from jetlet.errors import InputNotFoundError, InvalidArgumentError
from jetlet.interpreter import computing_threads
from jetlet.pipeline.checks import check_on_error
from jetlet.pipeline.errors import Rejected
from jetlet.pipeline.sink import OnError
from jetlet.pipeline.source import BatchSource
from jetlet.storage.compression import codec_of, decompressing
from jetlet.storage.file_systems import (
    FileInfo,
    Storage,
    has_wildcard,
    is_url,
    locate,
    without_credentials,
)

T = TypeVar("T")

Path = str | os.PathLike[str]
Paths = Path | Iterable[Path]

SUCCESS = "_SUCCESS"
"""The empty file that marks a directory as complete."""

MIN_SPLIT = 1 << 20
MAX_SPLIT = 64 << 20
SPLITS_PER_READER = 4
"""More splits than readers, so that a slow reader is left with less to do."""

REMOTE_READERS = 2
"""Two for what is not local, so that one can wait for the network while the other reads."""


@dataclass(frozen=True, slots=True)
class FileSplit:
    """The records of a file that start in ``[start, end)``; without ``end``, all from ``start``."""

    location: str
    start: int = 0
    end: int | None = None


@dataclass(frozen=True)
class FileSet:
    """The files that a path argument names.

    A path may be a file, a directory, a glob, or a URL of any of these. A directory, named or
    matched by a glob, stands for the files right in it, and in directories below it that are named
    by a key, such as ``day=2026-11-19``. Names that begin with ``_`` or ``.`` are
    left out unless they are written out, so ``_SUCCESS`` and unfinished output are never read.
    """

    what: str
    """The function that the path was given to, for messages."""
    patterns: tuple[str, ...]
    directory: str
    """What relative paths start from: the current directory when the source was made."""
    options: Mapping[str, Any] | None

    @classmethod
    def of(cls, what: str, path: object, options: Mapping[str, Any] | None) -> FileSet:
        several = isinstance(path, Iterable) and not isinstance(path, str | bytes | Mapping)
        given = list(path) if several else [path]  # type: ignore[call-overload]
        patterns = []
        for one in given:
            text = os.fspath(one) if isinstance(one, os.PathLike) else one
            if not isinstance(text, str) or not text:
                raise InvalidArgumentError(
                    f"{what}({path!r}): {one!r} is not a path; write a path, a glob like "
                    "'books/*.txt', a URL like 's3://bucket/books/*.txt', or a list of them"
                )
            patterns.append(text)
        if not patterns:
            raise InvalidArgumentError(f"{what}({path!r}): name at least one file")
        return cls(what, tuple(patterns), os.getcwd(), options)  # noqa: PTH109

    @property
    def label(self) -> str:
        """How the files are called in the name of a vertex."""
        first = without_credentials(self.patterns[0])
        more = len(self.patterns) - 1
        return f"{first}, +{more}" if more else first

    @property
    def is_remote(self) -> bool:
        return any(map(is_url, self.patterns))

    def list(self) -> list[FileInfo]:
        """The files, each once: in the order of the paths given, sorted by name within one."""
        found: dict[str, FileInfo] = {}
        for pattern in self.patterns:
            for file in self._find(pattern):
                found.setdefault(file.location, file)
        return [*found.values()]

    def keys_of(self, location: str) -> dict[str, str | None]:
        """What the directories of a file say that are below the path that was given."""
        if "=" not in location:
            return {}
        below: list[str] = []
        for pattern in self.patterns:
            base = self._where(pattern)
            if has_wildcard(base):
                base = re.split(r"[*?\[]", base, maxsplit=1)[0].rpartition("/")[0]
            base = base.rstrip("/") + "/"
            if location.startswith(base):
                below = max(below, location[len(base) :].split("/")[:-1], key=len)
        return keys_in(below)

    def _where(self, pattern: str) -> str:
        if is_url(pattern):
            return pattern
        where = os.path.join(self.directory, os.path.expanduser(pattern))  # noqa: PTH111, PTH118
        return re.sub(r"/(\./|/)+|/\.$", "/", where)  # not normpath: ".." may follow a link

    def _find(self, pattern: str) -> Iterable[FileInfo]:
        storage, path = locate(self._where(pattern), self.options)
        # A file may have a name that looks like a glob; then it is meant.
        if file := storage.stat(path):
            return [file]
        files = _files_in(storage, path)
        if files is None and has_wildcard(path):
            files = _matching(storage, path) or None
        if files is None:
            raise InputNotFoundError(self._not_found(pattern))
        if not files and not any(e.name == SUCCESS for e in storage.entries(path) or ()):
            shown = without_credentials(pattern).rstrip("/")
            raise InputNotFoundError(
                f"{self.what}({shown!r}): the directory holds no files; if they are in "
                f"directories below it, write {shown + '/**'!r}"
            )
        return files

    def _not_found(self, pattern: str) -> str:
        shown = without_credentials(pattern)
        problem = f"no file matches {shown!r}" if has_wildcard(shown) else f"there is no {shown!r}"
        if is_url(pattern) or os.path.isabs(os.path.expanduser(pattern)):  # noqa: PTH111, PTH117
            return f"{self.what}({shown!r}): {problem}; write a path or a glob of what exists"
        return (
            f"{self.what}({shown!r}): {problem} in the current directory, {self.directory}; "
            "write a path relative to it, or an absolute one"
        )


class FileOptions(TypedDict, total=False):
    """Options of every source of files."""

    name: str | None
    local_parallelism: int | None
    storage_options: Mapping[str, Any] | None


class LineOptions(FileOptions, total=False):
    """Options of sources of files that are made of lines."""

    encoding: str
    errors: str
    split_size: int | None


class RecordOptions(LineOptions, total=False):
    """Options of sources of files whose lines are records, which may be bad."""

    on_error: OnError


class FileSource(BatchSource[T]):
    """What sources of files have in common: which files, the vertex's name, cutting into splits."""

    kind: ClassVar[str]
    """What the function in ``sources`` is called."""

    def __init__(
        self,
        path: Paths,
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        split_size: int | None = None,
        on_error: OnError = "fail",
        name: str | None = None,
        local_parallelism: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        what = f"sources.{self.kind}"
        self.files = FileSet.of(what, path, storage_options)
        self._found: list[FileInfo] | None = None
        """What a look before the job was planned has found, for the plan."""
        self.split_size = check_count(f"{what}: split_size", split_size)
        self.encoding = check_encoding(what, encoding, errors)
        self.errors = errors
        check_on_error(what, on_error)
        self.on_error = on_error
        title = self.kind.replace("_", "-")
        self.name = check_name(what, name) or f"{title}-source({self.files.label})"
        self.is_blocking = self.files.is_remote
        readers = REMOTE_READERS if self.is_blocking else computing_threads()
        self.preferred_local_parallelism = (
            check_count(f"{what}: local_parallelism", local_parallelism) or readers
        )

    def __getstate__(self) -> dict[str, Any]:
        # Whoever reads need only know that bad records do not fail the job.
        on_error = self.on_error
        return {**self.__dict__, "on_error": on_error if isinstance(on_error, str) else "skip"}

    def check(self) -> None:
        if not self.is_blocking:
            self._found = self.files.list()

    def has_keys(self) -> bool:
        """True if directories name keys, which are fields besides what is in the first file."""
        try:
            return bool(self.files.keys_of(self.files.list()[0].location))
        except Exception:  # whoever reads it says why
            return False

    def keyed(self, location: str, batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """The items of a file, with the keys of its directory as fields."""
        keys = self.files.keys_of(location)
        if not keys:
            return batches
        return (
            batch if isinstance(batch, Rejected) else with_keys(keys, batch) for batch in batches
        )

    def cut(self, target: int, *, splittable: bool) -> list[FileSplit]:
        """The files as byte ranges; each in one piece if not splittable, or compressed."""
        files, self._found = self._found or self.files.list(), None
        size = self.split_size or _split_size(files, target)
        return [split for file in files for split in _cut(file, size if splittable else None)]


@contextmanager
def open_file(location: str, options: Mapping[str, Any] | None) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed if its ending says so."""
    storage, path = locate(location, options)
    with storage.open_read(path) as file:
        codec = codec_of(location)
        if codec is None:
            yield file
            return
        stream = decompressing(file, codec)
        try:
            yield stream
        finally:
            stream.close()


def _files_in(storage: Storage, path: str) -> list[FileInfo] | None:
    """The files of a directory that are there to be read; ``None`` if it is not a directory."""
    entries = storage.entries(path)
    if entries is None:
        return None
    files = []
    for entry in entries:
        if not entry.is_directory:
            if not _is_hidden(entry.name):
                files.append(entry.info)
        elif is_partition(entry.name):
            files += _files_in(storage, storage.join(path, entry.name)) or ()
    return files


def _matching(storage: Storage, path: str) -> list[FileInfo]:
    """The files that a glob matches."""
    parts = path.split("/")
    fixed = next(i for i, part in enumerate(parts) if has_wildcard(part))
    spelled_out = {part[0] for part in parts[fixed:] if _is_hidden(part)}
    files = []
    for match in storage.glob(path):
        found = match.split("/")[fixed:]
        if any(_is_hidden(part) and part[0] not in spelled_out for part in found):
            continue
        if file := storage.stat(match):
            files.append(file)
        else:
            files += _files_in(storage, match) or ()
    return sorted(files, key=lambda file: file.location)


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _split_size(files: list[FileInfo], target: int) -> int:
    total = sum(file.size or 0 for file in files)
    # Rounded up: a remainder would be a split more, and one reader would have it to read alone.
    size = -(-total // (max(target, 1) * SPLITS_PER_READER))
    return min(max(size, MIN_SPLIT), MAX_SPLIT)


def _cut(file: FileInfo, split_size: int | None) -> list[FileSplit]:
    """Ranges of about equal size. The last one has no end, so a file may grow until it is read."""
    if split_size is None or not file.size or codec_of(file.location):
        return [FileSplit(file.location)]
    count = -(-file.size // split_size)
    starts = [i * file.size // count for i in range(count)]
    return [
        FileSplit(file.location, start, end)
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]
