"""Transactions on an embedded log: written aside, and appended when they are committed.

A transaction is a file of blocks in the log's directory, outside its partitions, so nobody reads
it. To commit it is to append its blocks to the partitions. Each has the transaction's tag, by which
a commit that was cut off goes on where it was; one that has come to its end has removed the file.
"""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, BinaryIO, Generic, TypeVar
from urllib.parse import quote

from jetlet.connectors.staging import KEPT, leftovers, stem
from jetlet.errors import JetletError
from jetlet.log import Log
from jetlet.log.blocks import (
    HEADER_SIZE,
    TAG_SIZE,
    EncodedBlock,
    again,
    block_size,
    parse,
)
from jetlet.log.reader import end_offset
from jetlet.log.segments import partition_directory
from jetlet.pipeline.sink import TransactionId, TransactionWriter, WriterPlace
from jetlet.storage.replacement import sync_directory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What a transaction has for one partition."""

    partition: int
    since: int
    """Offset that the partition ended with when the transaction was prepared."""
    blocks: array[int]
    """Positions in the file at which its blocks start."""


@dataclass(frozen=True, slots=True)
class StagedAppend:
    """A prepared transaction."""

    transaction: TransactionId
    name: str
    """The name of the transaction's file."""
    parts: tuple[StagedPart, ...]


class LogStaging:
    """The transactions that wait in a log's directory. ``syncs`` waits for the disk each time."""

    def __init__(self, log: Log, *, syncs: bool) -> None:
        self.log = log
        self.syncs = syncs

    def directory(self, run_id: str, vertex: str) -> str:
        """Where those of a run are, that are from one of its vertices."""
        name = blake2b(vertex.encode(), digest_size=4).hexdigest()
        return f"{self.log.directory}/staged-{quote(run_id, safe='')}-{name}"

    def append(self, staged: StagedAppend) -> bool:
        """Append a transaction to the log, if that is not done yet; false if its file is gone."""
        directory = self.directory(staged.transaction.run_id, staged.transaction.vertex)
        for name in (staged.name, KEPT + staged.name):
            path = f"{directory}/{name}"
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                break
        else:
            return False
        try:
            for part in staged.parts:
                blocks = (_block_at(fd, position, path) for position in part.blocks)
                tag = tag_for(staged.transaction)
                self.log.append_once(part.partition, tag, blocks, part.since)
            if self.syncs:
                self.log.sync()
        finally:
            os.close(fd)
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
        return True

    def forget(self, run_id: str, vertex: str) -> None:
        """Remove all that a vertex of a run has left."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.directory(run_id, vertex))


class LogTransactionWriter(TransactionWriter[T], Generic[T]):
    """Encodes items as the log will have them, and keeps them in a file until they are committed.

    Closes the log in the end.
    """

    def __init__(
        self,
        staging: LogStaging,
        key: Callable[[T], Any] | None,
        timestamp: Callable[[T], int] | None,
        place: WriterPlace,
    ) -> None:
        self._staging = staging
        self._key = key
        self._timestamp = timestamp
        self._place = place
        self._directory = staging.directory(place.run_id, place.vertex)
        self._transaction: TransactionId | None = None
        self._tag = b""
        self._file: BinaryIO | None = None
        self._blocks: dict[int, array[int]] = {}
        self._size = 0

    def begin(self, transaction: TransactionId) -> None:
        os.makedirs(self._directory, exist_ok=True)  # noqa: PTH103
        self._transaction = transaction
        self._tag = tag_for(transaction)
        self._file = open(self._path(stem(transaction)), "xb")  # noqa: PTH123, SIM115
        self._blocks = {}
        self._size = 0

    def write(self, batch: Sequence[T]) -> None:
        timestamp = self._timestamp
        times = None if timestamp is None else [timestamp(item) for item in batch]
        self.stage(self._staging.log.encode(batch, key=self._key, timestamps=times))

    def stage(self, encoded: Iterable[tuple[int, Sequence[EncodedBlock]]]) -> None:
        """Write blocks to the open transaction, by the partitions that they are for."""
        file = self._file
        assert file is not None
        for partition, blocks in encoded:
            starts = self._blocks.setdefault(partition, array("Q"))
            for block in blocks:
                tagged = block.tagged(self._tag)
                file.write(tagged.header(0))
                file.write(tagged.payload)
                starts.append(self._size)
                self._size += tagged.size

    def prepare(self) -> StagedAppend:
        file, transaction = self._file, self._transaction
        assert file is not None
        assert transaction is not None
        file.flush()
        if self._staging.syncs:
            os.fsync(file.fileno())
            sync_directory(self._directory)
        parts = [
            StagedPart(id, end_offset(partition_directory(self._staging.log.directory, id)), starts)
            for id, starts in sorted(self._blocks.items())
        ]
        file.close()
        self._file = None
        return StagedAppend(transaction, stem(transaction), tuple(parts))

    def keep(self, prepared: StagedAppend) -> None:
        os.replace(self._path(prepared.name), self._path(KEPT + prepared.name))  # noqa: PTH105

    def commit(self, prepared: StagedAppend) -> None:
        if not self._staging.append(prepared):
            raise JetletError(
                f"{prepared.name!r} was written to {self._directory!r}, and it is not there any "
                "more: somebody has removed it"
            )

    def recover(self, prepared: Sequence[StagedAppend]) -> None:
        for each in prepared:
            self._staging.append(each)  # if its file is gone, that was done
        try:
            names = os.listdir(self._directory)  # noqa: PTH208
        except FileNotFoundError:
            names = []
        for name in leftovers(names, self._place):
            with suppress(FileNotFoundError):
                os.unlink(self._path(name))  # noqa: PTH108

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # a full disk may be why we are here
                file.close()
            with suppress(FileNotFoundError):
                os.unlink(file.name)  # noqa: PTH108
        self._staging.log.close()

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def tag_for(transaction: TransactionId) -> bytes:
    """What the blocks of a transaction are known by."""
    return blake2b(repr(tuple(transaction)).encode(), digest_size=TAG_SIZE).digest()


def _block_at(fd: int, position: int, path: str) -> EncodedBlock:
    size = block_size(os.pread(fd, HEADER_SIZE, position))
    data = os.pread(fd, size, position)
    block = parse(data, 0)
    if block is None:
        raise JetletError(f"{path} is damaged at byte {position}, so it cannot be committed")
    return again(block, data)
