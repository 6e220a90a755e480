"""Transactions of file sinks: each is a part file, written aside and moved into place.

A transaction is a file in the run's staging directory. To prepare it is to bring it to the disk;
to commit it is to rename it. Its name in the output, ``part-00007-00001-2-<run>.csv``, has the
number of the transaction, the writer, the attempt and the run: parts sort by age, and no two runs
ever want the same name. With a roll policy several become one: :mod:`.rolling`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from jetlet.connectors.files.rolling import (
    Gathered,
    Piece,
    RollPolicy,
    by_directory,
    groups_of,
    publish,
)
from jetlet.connectors.files.sink import remove_part
from jetlet.connectors.staging import KEPT, StagedFile, leftovers, stem
from jetlet.errors import JobFailedError
from jetlet.pipeline.sink import SinkWriter, TransactionId, TransactionWriter, WriterPlace

if TYPE_CHECKING:
    from jetlet.connectors.files.sink import Beginning, FileSink, WrittenPart
    from jetlet.storage.file_systems import Storage

T = TypeVar("T")


class Publication:
    """Moves staged files into place, in the stead of those that were there before the run."""

    def __init__(self, sink: FileSink[Any], storage: Storage, target: str) -> None:
        self.sink = sink
        self.storage = storage
        self.target = target
        self._runs: dict[str, Beginning] = {}

    def publish_all(self, prepared: Sequence[StagedFile | Gathered]) -> None:
        """Move all that transactions have left into place, unless that was done."""
        for each in prepared:
            if isinstance(each, StagedFile):
                self.publish(each)
        for pieces in groups_of(prepared):
            publish(self, pieces)

    def publish(self, staged: StagedFile) -> bool:
        """Move a file into place, if that is not done yet; false if it is nowhere."""
        storage, sink, transaction = self.storage, self.sink, staged.transaction
        begun = self.replace(transaction.run_id)
        staging = sink.staging(storage, self.target, transaction.run_id)
        is_all_there = True
        for directory, name in staged.files:
            target = self.directory(directory)
            part = storage.join(target, sink.part_of(transaction, begun.first, name))
            is_all_there &= any(
                storage.move_again(storage.join(staging, each), part)
                for each in (name, KEPT + name)
            )
            if directory:
                storage.sync_directory(target)
        return is_all_there

    def directory(self, name: str) -> str:
        """The path of a directory of the output, which is made if it has to be."""
        if not name:
            return self.target
        path = self.storage.join(self.target, name)
        self.storage.make_directory(path)
        return path

    def replace(self, run_id: str) -> Beginning:
        """Remove the files that a run replaces."""
        begun = self._runs.get(run_id)
        if begun is None:
            storage, target = self.storage, self.target
            begun = self._runs[run_id] = self.sink.beginning(storage, target, run_id)
            for name in begun.replaced:
                with suppress(FileNotFoundError):
                    remove_part(storage, target, name)
        return begun


class FileTransactionWriter(TransactionWriter[T]):
    """Writes a part file for each transaction."""

    def __init__(self, sink: FileSink[T], place: WriterPlace) -> None:
        self._sink = sink
        self._place = place
        self._storage, self._target = sink.locate()
        self._staging = sink.staging(self._storage, self._target, place.run_id)
        self._publication = Publication(sink, self._storage, self._target)
        self._transaction: TransactionId | None = None
        self._part: SinkWriter[T] | None = None

    def begin(self, transaction: TransactionId) -> None:
        self._transaction = transaction
        self._part = self._sink.writer(self._storage, self._staging, stem(transaction))

    def write(self, batch: Sequence[T]) -> None:
        assert self._part is not None
        self._part.write(batch)

    def prepare(self) -> StagedFile | Gathered:
        return self._finished()[0]

    def _finished(self) -> tuple[StagedFile, Sequence[bytes]]:
        """The open transaction, closed, and the forms of its files."""
        part, transaction = self._part, self._transaction
        assert part is not None
        assert transaction is not None
        written: WrittenPart = part.finish()
        self._part = None
        self._storage.sync_directory(self._staging)
        return StagedFile(transaction, written.files), written.forms

    def keep(self, prepared: StagedFile | Gathered) -> None:
        assert isinstance(prepared, StagedFile)
        storage, staging = self._storage, self._staging
        for _, name in prepared.files:
            storage.move(storage.join(staging, name), storage.join(staging, KEPT + name))
        storage.sync_directory(staging)

    def commit(self, prepared: StagedFile | Gathered) -> None:
        if isinstance(prepared, StagedFile):
            names = [] if self._publication.publish(prepared) else [prepared.files[0][1]]
        else:
            groups = prepared.due
            names = [group[0].name for group in groups if not publish(self._publication, group)]
        if names:
            raise JobFailedError(
                f"{names[0]!r} was written to {self._staging!r}, and now it is neither "
                "there nor among the output: somebody has removed it",
                vertex=self._sink.name,
            )
        self._storage.sync_directory(self._target)

    def recover(self, prepared: Sequence[StagedFile | Gathered]) -> None:
        storage = self._storage
        # Neither here nor there means that it was published, and taken away by its readers.
        self._publication.publish_all(prepared)
        if prepared:
            storage.sync_directory(self._target)
        names = [entry.name for entry in storage.entries(self._staging) or ()]
        for name in leftovers(names, self._place):
            with suppress(FileNotFoundError):
                storage.remove(storage.join(self._staging, name))

    def close(self) -> None:
        if self._part is not None:
            self._part.abort()
            self._part = None


class RollingWriter(FileTransactionWriter[T]):
    """Gathers what transactions have written until there is enough for a part file."""

    def __init__(
        self,
        sink: FileSink[T],
        place: WriterPlace,
        policy: RollPolicy,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(sink, place)
        self._policy = policy
        self._now_ns = now_ns
        self._held: list[Piece] = []

    @property
    def holds_back(self) -> bool:
        return bool(self._held)

    def prepare(self) -> Gathered:
        staged, forms = self._finished()
        storage, now = self._storage, self._now_ns()
        for (directory, name), form in zip(staged.files, forms, strict=True):
            info = storage.stat(storage.join(self._staging, name))
            size = (info.size if info else None) or 0
            self._held.append(Piece(staged.transaction, directory, name, form, size, now))
        groups = by_directory(self._held)
        due = tuple(pieces for pieces in groups if self._policy.is_due(pieces, now))
        gone = {piece.name for pieces in due for piece in pieces}
        self._held = [piece for piece in self._held if piece.name not in gone]
        return Gathered(due, tuple(self._held))

    def keep(self, prepared: StagedFile | Gathered) -> None:
        if isinstance(prepared, StagedFile):
            super().keep(prepared)
            return
        storage, staging = self._storage, self._staging
        for piece in (*(piece for due in prepared.due for piece in due), *prepared.held):
            kept = storage.join(staging, KEPT + piece.name)
            # The transaction before may have kept it.
            storage.move_again(storage.join(staging, piece.name), kept)
        storage.sync_directory(staging)

    def release(self) -> None:
        held, self._held = self._held, []
        for pieces in by_directory(held):
            publish(self._publication, pieces)
        self._storage.sync_directory(self._target)
