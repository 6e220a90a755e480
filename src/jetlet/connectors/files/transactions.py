"""Transactions of file sinks: each is a part file, written aside and moved into place.

A transaction is a file in the run's staging directory. To prepare it is to bring it to the disk;
to commit it is to rename it. Its name in the output, ``part-00007-00001-2-<run>.csv``, has the
number of the transaction, the writer, the attempt and the run: parts sort by age, and no two runs
ever want the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

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
        self._sink = sink
        self._storage = storage
        self._target = target
        self._runs: dict[str, Beginning] = {}

    def publish(self, staged: StagedFile) -> bool:
        """Move a file into place, if that is not done yet; false if it is nowhere."""
        storage, sink, transaction = self._storage, self._sink, staged.transaction
        begun = self.replace(transaction.run_id)
        staging = sink.staging(storage, self._target, transaction.run_id)
        is_all_there = True
        for directory, name in staged.files:
            target = self._target
            if directory:
                target = storage.join(target, directory)
                storage.make_directory(target)
            part = storage.join(target, sink.part_of(transaction, begun.first, name))
            is_all_there &= any(
                storage.move_again(storage.join(staging, each), part)
                for each in (name, KEPT + name)
            )
            if directory:
                storage.sync_directory(target)
        return is_all_there

    def replace(self, run_id: str) -> Beginning:
        """Remove the files that a run replaces."""
        begun = self._runs.get(run_id)
        if begun is None:
            storage, target = self._storage, self._target
            begun = self._runs[run_id] = self._sink.beginning(storage, target, run_id)
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

    def prepare(self) -> StagedFile:
        part, transaction = self._part, self._transaction
        assert part is not None
        assert transaction is not None
        written: WrittenPart = part.finish()
        self._part = None
        self._storage.sync_directory(self._staging)
        return StagedFile(transaction, written.files)

    def keep(self, prepared: StagedFile) -> None:
        storage, staging = self._storage, self._staging
        for _, name in prepared.files:
            storage.move(storage.join(staging, name), storage.join(staging, KEPT + name))
        storage.sync_directory(staging)

    def commit(self, prepared: StagedFile) -> None:
        if not self._publication.publish(prepared):
            raise JobFailedError(
                f"{prepared.files[0][1]!r} was written to {self._staging!r}, and now it is neither "
                "there nor among the output: somebody has removed it",
                vertex=self._sink.name,
            )
        self._storage.sync_directory(self._target)

    def recover(self, prepared: Sequence[StagedFile]) -> None:
        storage = self._storage
        for each in prepared:
            # Neither here nor there means that it was published, and taken away by its readers.
            self._publication.publish(each)
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
