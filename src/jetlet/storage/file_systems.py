"""Where files are: this machine's file system, or whatever fsspec reaches by a URL.

:func:`locate` takes a path or a URL and gives the storage together with the path inside it. Local
paths never touch fsspec. A storage holds nothing open and can be pickled.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from jetlet.errors import InvalidArgumentError, MissingDependencyError
from jetlet.storage.replacement import sync_directory

_MAGIC = re.compile(r"[*?\[]")
_PASSWORD = re.compile(r"://[^/@]*@")

_PROTOCOL = re.compile(r"(?:^|::)([a-z0-9+.-]+)://")
_OBJECT_STORES = frozenset(
    ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "wasb", "wasbs", "oss", "cos", "obs")
)

WRITE_BUFFER = 1 << 18


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file to read. ``size`` is ``None`` for what has none, such as a pipe."""

    location: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Entry:
    """What a directory holds under one name."""

    name: str
    is_directory: bool
    info: FileInfo


class Storage(Protocol):
    """The few operations that sources and sinks need; paths are those that :func:`locate` gave."""

    def stat(self, path: str) -> FileInfo | None:
        """The file at this path, or ``None`` if there is no file."""

    def entries(self, path: str) -> list[Entry] | None:
        """What the directory holds, sorted by name; ``None`` if there is no such directory."""

    def glob(self, pattern: str) -> list[str]:
        """The paths that match, sorted; ``**`` matches any number of directories."""

    def join(self, *parts: str) -> str: ...

    def open_read(self, path: str) -> BinaryIO: ...

    def create(self, path: str) -> BinaryIO:
        """Open a new file for writing."""

    def close_durably(self, file: BinaryIO) -> None:
        """Close a file from :meth:`create`; what was written survives a crash."""

    def make_directory(self, path: str) -> list[str]:
        """Create a directory with its parents; return those that were missing, outermost first.

        A bucket of an object store is never created: one that is not there is refused.
        """

    def move(self, source: str, target: str) -> None:
        """Rename a file; a file that is at the target already is replaced."""

    def move_again(self, source: str, target: str) -> bool:
        """Rename a file, which may be done already, or half done; false if it is nowhere."""

    def sync_directory(self, path: str) -> None:
        """Make renames inside the directory durable."""

    def remove(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove a directory if it is there and empty."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it, if it is there."""


def is_url(path: str) -> bool:
    return "://" in path


def has_wildcard(path: str) -> bool:
    return _MAGIC.search(path) is not None


def without_credentials(path: str) -> str:
    """A path or URL as it may be shown: user and password are left out."""
    return _PASSWORD.sub("://", path)


def locate(path: str, options: Mapping[str, Any] | None = None) -> tuple[Storage, str]:
    """The storage of a path or URL, and the path inside it."""
    if not is_url(path):
        return LocalStorage(), path
    if find_spec("fsspec") is None:
        raise MissingDependencyError(
            f"{without_credentials(path)!r} is read through fsspec, which is not installed: "
            "pip install 'jetlet[fs]'"
        )
    storage = FsspecStorage(path, dict(options or {}))
    return storage, storage.root


class LocalStorage:
    """The file system of this machine."""

    def stat(self, path: str) -> FileInfo | None:
        try:
            status = os.stat(path)  # noqa: PTH116 - paths are strings all the way
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISDIR(status.st_mode):
            return None
        return FileInfo(path, status.st_size if stat.S_ISREG(status.st_mode) else None)

    def entries(self, path: str) -> list[Entry] | None:
        try:
            with os.scandir(path) as found:
                # A dangling symbolic link is no file; it still stands in a sink's way.
                listed = [
                    Entry(
                        entry.name,
                        entry.is_dir(),
                        self.stat(entry.path) or FileInfo(entry.path, None),
                    )
                    for entry in found
                ]
        except (FileNotFoundError, NotADirectoryError):
            return None
        return sorted(listed, key=lambda entry: entry.name)

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - strings, and "**"

    def join(self, *parts: str) -> str:
        return os.path.join(*parts)  # noqa: PTH118

    def open_read(self, path: str) -> BinaryIO:
        # Unbuffered: blocks are read whole.
        return cast(BinaryIO, open(path, "rb", buffering=0))  # noqa: PTH123

    def create(self, path: str) -> BinaryIO:
        return open(path, "xb", buffering=WRITE_BUFFER)  # noqa: PTH123

    def close_durably(self, file: BinaryIO) -> None:
        with file:
            file.flush()
            os.fsync(file.fileno())

    def make_directory(self, path: str) -> list[str]:
        target = Path(path)
        missing = [str(p) for p in (*reversed(target.parents), target) if not p.exists()]
        target.mkdir(parents=True, exist_ok=True)
        return missing

    def move(self, source: str, target: str) -> None:
        os.replace(source, target)  # noqa: PTH105

    def move_again(self, source: str, target: str) -> bool:
        try:
            self.move(source, target)
        except FileNotFoundError:
            return self.stat(target) is not None
        return True

    def sync_directory(self, path: str) -> None:
        sync_directory(path)

    def remove(self, path: str) -> None:
        os.remove(path)  # noqa: PTH107

    def remove_directory(self, path: str) -> None:
        with suppress(OSError):
            os.rmdir(path)  # noqa: PTH106

    def remove_tree(self, path: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(path)


class FsspecStorage:
    """Any file system that fsspec has a client for."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        from fsspec.core import url_to_fs

        self._url = url
        self._options = options
        try:
            self._fs, self.root = url_to_fs(url, **options)
        except ImportError as error:  # the client of one protocol, such as s3fs
            raise MissingDependencyError(
                f"{without_credentials(url)!r} needs another package: {error}"
            ) from error
        except ValueError as error:
            raise InvalidArgumentError(
                f"{without_credentials(url)!r}: {error}; write a URL that fsspec knows, such as "
                "'s3://bucket/path'"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return FsspecStorage, (self._url, self._options)

    @property
    def _is_object_store(self) -> bool:
        return not _OBJECT_STORES.isdisjoint(_PROTOCOL.findall(self._url))

    def stat(self, path: str) -> FileInfo | None:
        try:
            return self._file(self._fs.info(path))
        except FileNotFoundError:
            return None

    def entries(self, path: str) -> list[Entry] | None:
        # Listings may be cached, and others write here too.
        self._fs.invalidate_cache()
        if not self._fs.isdir(path):
            return None
        listed = []
        for info in self._fs.ls(path, detail=True):
            stored = info["name"].rstrip("/")
            if stored.strip("/") == path.strip("/"):
                continue  # an object store's placeholder for the directory itself
            is_directory = info["type"] == "directory"
            file = FileInfo(self._address(stored), info.get("size"))
            listed.append(Entry(stored.rpartition("/")[2], is_directory, file))
        return sorted(listed, key=lambda entry: entry.name)

    def glob(self, pattern: str) -> list[str]:
        return sorted(str(path).rstrip("/") for path in self._fs.glob(pattern))

    def join(self, *parts: str) -> str:
        return "/".join((parts[0].rstrip("/"), *parts[1:]))

    def open_read(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open(path, "rb"))

    def create(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open(path, "wb"))

    def close_durably(self, file: BinaryIO) -> None:
        file.close()

    def make_directory(self, path: str) -> list[str]:
        if self._is_object_store:
            # There are no directories, and a bucket is not ours to make, or to remove.
            bucket = path.strip("/").partition("/")[0]
            with suppress(PermissionError):  # whoever may write need not be allowed to look
                if not self._fs.exists(bucket):
                    raise InvalidArgumentError(
                        f"{without_credentials(self._url)!r}: there is no bucket {bucket!r}; "
                        "create it first, or write the name of one that there is"
                    )
            return []
        missing = []
        ancestor = path
        while ancestor.strip("/") and not self._fs.exists(ancestor):
            missing.append(ancestor)
            parent = self._fs._parent(ancestor)
            if parent == ancestor:
                break
            ancestor = parent
        self._fs.makedirs(path, exist_ok=True)
        return missing[::-1]

    def move(self, source: str, target: str) -> None:
        # Not every client replaces what is at the target.
        if self._fs.exists(target):
            self._fs.rm_file(target)
        self._fs.mv(source, target)

    def move_again(self, source: str, target: str) -> bool:
        # What is a copy and a removal for some may have been left between the two.
        self._fs.invalidate_cache()
        found, there = self.stat(source), self.stat(target)
        if found is None:
            return there is not None
        if there is not None and there.size == found.size:
            self.remove(source)
        else:
            self.move(source, target)
        return True

    def sync_directory(self, path: str) -> None:
        pass

    def remove(self, path: str) -> None:
        self._fs.rm_file(path)

    def remove_directory(self, path: str) -> None:
        # Object stores have no directories to remove; others refuse those that are not empty.
        with suppress(OSError, NotImplementedError, ValueError):
            if not self._fs.ls(path, detail=False):
                self._fs.rmdir(path)

    def remove_tree(self, path: str) -> None:
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            self._fs.rm(path, recursive=True)

    def _file(self, info: dict[str, Any]) -> FileInfo | None:
        if info["type"] == "directory":
            return None
        return FileInfo(self._address(info["name"]), info.get("size"))

    def _address(self, stored: str) -> str:
        """The URL of a stored path, so that a reader elsewhere can open it.

        A chained URL keeps its chain: ``zip://*.csv::s3://bucket/a.zip`` names a file inside
        another, ``simplecache::s3://bucket/*.csv`` a way to reach it.
        """
        first, chained, rest = self._url.partition("::")
        if not chained:
            return str(self._fs.unstrip_protocol(stored))
        if is_url(first):
            return f"{first.partition('://')[0]}://{stored}::{rest}"
        protocol = rest.rpartition("::")[2].partition("://")[0]
        way = rest.rpartition("::")[0]
        return "::".join(filter(None, (first, way, f"{protocol}://{stored}")))
