"""SnapshotDirectory: one place for the files of a snapshot and for its commit record."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote
from zlib import crc32

from jetlet.errors import InvalidArgumentError, SnapshotError
from jetlet.snapshots.format import (
    ChainFile,
    Chunk,
    SnapshotRecord,
    StateFile,
    UnknownFormatError,
    read_state_file,
)
from jetlet.snapshots.signing import UNSIGNED, Signer

BLOCK = 1 << 20
RECORD_SUFFIX = ".json"


class Storage(Protocol):
    """A file system, as far as snapshots need one."""

    def entries(self, path: str) -> Sequence[Any] | None: ...

    def join(self, *parts: str) -> str: ...

    def open_read(self, path: str) -> BinaryIO: ...

    def create(self, path: str) -> BinaryIO: ...

    def close_durably(self, file: BinaryIO) -> None: ...

    def make_directory(self, path: str) -> list[str]: ...

    def move(self, source: str, target: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...


class RecordInDoubtError(SnapshotError):
    """Nobody knows whether the commit record was written."""


class UnreadableError(SnapshotError):
    """A file that its storage cannot read at the moment, and may be whole."""


class DamagedSnapshotError(SnapshotError):
    """A snapshot of which something is missing, damaged or cannot be read."""

    def __init__(self, order: tuple[int, int] | None, cause: SnapshotError) -> None:
        super().__init__(str(cause))
        self.order = order
        """Its epoch and id, if they are known."""
        self.may_get_better = isinstance(cause, UnreadableError)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Turn whatever a storage raises into a :class:`SnapshotError` that names the file."""
    try:
        yield
    except SnapshotError:
        raise
    except FileNotFoundError as error:
        raise SnapshotError(f"{path} is missing") from error
    except Exception as error:
        raise UnreadableError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


LONGEST_NAME = 250
"""Bytes: file systems allow 255, and a file that is being written has an ending more."""


def file_name(name: str) -> str:
    """The name of a job or an export as that of a file."""
    quoted = quote(name, safe=" ")
    if len(quoted) > LONGEST_NAME:
        raise InvalidArgumentError(
            f"the name {name[:40] + '...'!r} is to be that of a directory with snapshots, and is "
            f"{len(quoted)} bytes long where file systems allow {LONGEST_NAME} (a letter beyond "
            f"ASCII takes six or more): choose a shorter one"
        )
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def write_atomically(storage: Storage, directory: str, name: str, data: bytes) -> None:
    """Write a small file that is there either whole or not at all; nothing may have its name."""
    aside = storage.join(directory, f"{name}.part")
    target = storage.join(directory, name)
    file = storage.create(aside)
    try:
        file.write(data)
        storage.close_durably(file)
    except BaseException:
        with suppress(Exception):
            file.close()
        with suppress(Exception):
            storage.remove(aside)
        raise
    storage.move(aside, target)
    storage.sync_directory(directory)


def read_file(storage: Storage, path: str) -> bytes:
    """A small file."""
    with storage.open_read(path) as file:
        parts = []
        while part := file.read(BLOCK):
            parts.append(part)
        return b"".join(parts)


def record_name(order: tuple[int, int]) -> str:
    """The file of the record of this epoch and id."""
    epoch, snapshot_id = order
    return f"{snapshot_id:08d}-{epoch:04d}{RECORD_SUFFIX}"


def order_of(name: str) -> tuple[int, int] | None:
    """Epoch and id of the record in a file, as its name has them."""
    snapshot_id, _, epoch = name.removesuffix(RECORD_SUFFIX).partition("-")
    if name.endswith(RECORD_SUFFIX) and snapshot_id.isdigit() and epoch.isdigit():
        return int(epoch), int(snapshot_id)
    return None


class SnapshotDirectory:
    """Files are written under names that no other snapshot, attempt or member uses.

    Files of chains belong to several snapshots: ``chain`` is the directory of theirs, if it is
    another one. Methods may block and raise ``OSError``, or whatever the storage raises.
    """

    def __init__(
        self, storage: Storage, path: str, signer: Signer = UNSIGNED, chain: str | None = None
    ) -> None:
        self._storage = storage
        self.path = path
        self.signer = signer
        self._chain = chain

    @property
    def chain(self) -> SnapshotDirectory:
        """Where the files of chains are."""
        if self._chain is None:
            return self
        return SnapshotDirectory(self._storage, self._chain, self.signer)

    def names(self) -> list[str]:
        """The files that are there."""
        return [entry.name for entry in self._storage.entries(self.path) or ()]

    def clear(self) -> None:
        """Make room: from now on it exists and is empty."""
        entries = self._storage.entries(self.path)
        if entries is None:
            self._storage.make_directory(self.path)
            return
        # The record first: without it the rest means nothing.
        for entry in sorted(entries, key=lambda e: not e.name.endswith(RECORD_SUFFIX)):
            self._storage.remove(self._storage.join(self.path, entry.name))

    def remove(self) -> None:
        """Remove it with all that is in it."""
        self._storage.remove_tree(self.path)

    # --- State files ------------------------------------------------------------------------

    def create(self, name: str) -> BinaryIO:
        """A new state file, to be closed with :meth:`close_durably`."""
        return self._storage.create(self._storage.join(self.path, name))

    def close_durably(self, file: BinaryIO) -> None:
        """What was written to the file survives a crash."""
        self._storage.close_durably(file)

    def discard(self, name: str) -> None:
        """Remove a file that is of no use, if that is possible."""
        with suppress(Exception):
            self._storage.remove(self._storage.join(self.path, name))

    def chunks(self, file: StateFile | ChainFile) -> Iterator[Chunk]:
        """What is in a state file; raises :class:`SnapshotError` where it is damaged."""
        path = self._storage.join(self.path, file.name)
        with naming(path), self._open(path) as opened:
            yield from read_state_file(opened, path, self.signer)

    def _open(self, path: str) -> BinaryIO:
        raw = self._storage.open_read(path)
        # Local files come unbuffered; chunks have small headers.
        return io.BufferedReader(raw, BLOCK) if isinstance(raw, io.RawIOBase) else raw

    # --- Records ----------------------------------------------------------------------------

    def write_record(self, record: SnapshotRecord) -> None:
        """The decision point: from here on the snapshot counts.

        If it raises, the record is not there; unless it raises :class:`RecordInDoubtError`.
        """
        try:
            if record.chain:
                self._storage.sync_directory(self.chain.path)
            data = record.to_bytes(self.signer)
            write_atomically(self._storage, self.path, record_name(record.order), data)
        except Exception as error:
            self.remove_record(record.order, error)
            raise

    def remove_record(self, order: tuple[int, int], reason: Exception) -> None:
        """Take a record back that nobody has acted upon; or else raise that it is in doubt."""
        name = record_name(order)
        if not self._is_gone(name):
            path = self._storage.join(self.path, name)
            raise RecordInDoubtError(f"{path} may have been written: {reason}") from reason

    def _is_gone(self, name: str) -> bool:
        """Remove the record; true if it is certainly not there."""
        try:
            entries = self._storage.entries(self.path)
            if entries is None:
                return True
            if any(entry.name == name for entry in entries):
                self._storage.remove(self._storage.join(self.path, name))
                self._storage.sync_directory(self.path)
        except Exception:
            return False
        return True

    def recorded(self) -> list[tuple[int, int]]:
        """Epoch and id of all records, as their names say: nothing is read."""
        entries = self._storage.entries(self.path) or ()
        return [order for entry in entries if (order := order_of(entry.name)) is not None]

    def records(self) -> Iterator[SnapshotRecord | DamagedSnapshotError]:
        """All that can be read, and an error for each that cannot."""
        for entry in self._storage.entries(self.path) or ():
            if not entry.name.endswith(RECORD_SUFFIX):
                continue
            path = self._storage.join(self.path, entry.name)
            try:
                with naming(path):
                    data = read_file(self._storage, path)
                    yield SnapshotRecord.from_bytes(data, path, self.signer)
            except UnknownFormatError:
                raise
            except SnapshotError as error:
                yield DamagedSnapshotError(order_of(entry.name), error)

    def verify(self, record: SnapshotRecord) -> None:
        """Read all files; raises :class:`SnapshotError` if any is missing or damaged."""
        for path, file in self._all_files(record):
            size = crc = 0
            with naming(path), self._storage.open_read(path) as opened:
                while block := opened.read(BLOCK):
                    size += len(block)
                    crc = crc32(block, crc)
            if size != file.size:
                raise SnapshotError(f"{path} is damaged: it has {size:,} bytes, not {file.size:,}")
            if crc != file.crc32:
                raise SnapshotError(f"{path} is damaged: it has another checksum")

    def copy_to(self, target: SnapshotDirectory, record: SnapshotRecord) -> None:
        """Copy the files of a snapshot; the record is for the caller to write."""
        for source, file in self._all_files(record):
            with self._storage.open_read(source) as opened:
                copy = target.create(file.name)
                try:
                    while block := opened.read(BLOCK):
                        copy.write(block)
                finally:
                    target.close_durably(copy)

    def _all_files(self, record: SnapshotRecord) -> Iterator[tuple[str, StateFile | ChainFile]]:
        """The files of a snapshot, with their paths."""
        for file in record.files:
            yield self._storage.join(self.path, file.name), file
        for link in record.chain:
            yield self._storage.join(self.chain.path, link.name), link
