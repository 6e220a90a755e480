"""Epochs: the attempts at a job, as they are told apart in a directory that outlives them.

Layout, below the directory of the job::

    epochs/0007.claim             an attempt at the job has begun
    epochs/0007.json              what it goes on from
    epochs/0007.00000042.commit   this attempt has committed what snapshot 42 decided on
    epochs/0007.end               the job has completed: there is nothing to go on with

An attempt that was given up but is still alive may yet write. So each has a number, its epoch, in
the names of its files, and what it has written counts only as far as the next one knew of it. And
after it has written something that counts, it looks whether it was superseded, and if so ends.

Before anything is committed, that is noted here, apart from the snapshot itself: so a snapshot that
is deleted or damaged later is missed, and nobody commits a second time what it had decided on. A
note only has to outlive the snapshot being deleted, not a power failure, and is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, TypeVar

from jetlet.errors import SnapshotError
from jetlet.snapshots.directory import (
    RecordInDoubtError,
    Storage,
    naming,
    read_file,
    write_atomically,
)
from jetlet.snapshots.format import seal, unseal
from jetlet.snapshots.signing import UNSIGNED, Signer

CLAIM: Final = ".claim"
ORIGIN: Final = ".json"
COMMIT: Final = ".commit"
END: Final = ".end"

T = TypeVar("T")
Order = tuple[int, int]
"""Epoch and number of a snapshot: later ones have a higher one."""


class SupersededError(RecordInDoubtError):
    """Another attempt at the job has begun: this one must neither commit nor roll back."""


class Epochs:
    """The attempts at one job. Used by one thread at a time; all methods may block."""

    def __init__(
        self, storage: Storage, directory: str, job_name: str, signer: Signer = UNSIGNED
    ) -> None:
        self._storage = storage
        self._signer = signer
        self._job_directory = directory
        self._job_name = job_name
        self.directory = storage.join(directory, "epochs")
        self._noted: str | None = None
        """Name of the last note of a commit."""

    def claim(self, after: int = 0) -> int:
        """Begin an attempt: its epoch is higher than ``after``, and than any that was claimed."""
        self._storage.make_directory(self.directory)
        epoch = max(after, *(self._epoch_of(name) for name in self._names()), 0)
        while True:
            epoch += 1
            try:
                # Exclusive where the storage can be; elsewhere two claims at the very same moment
                # are taken for one.
                file = self._storage.create(self._path(epoch, CLAIM))
            except FileExistsError:
                continue
            self._storage.close_durably(file)
            return epoch

    def origins(self, keys: Collection[str], make: Callable[..., T]) -> dict[int, T]:
        """What attempts have gone on from, by epoch.

        ``make`` is given the values that :meth:`write_origin` was told, by their ``keys``.
        """
        found = {}
        for epoch in self._with(ORIGIN):
            path = self._path(epoch, ORIGIN)
            try:
                with naming(path):
                    values = unseal(
                        read_file(self._storage, path), path, self._signer, unsealed=keys
                    )
                    found[epoch] = make(**values)
            except SnapshotError as error:
                raise SnapshotError(
                    f"{error}. It says what an attempt at job {self._job_name!r} began with, "
                    f"without which nobody knows what to go on from: put back a copy of the file; "
                    f"or, to begin anew, write JobConfig(start_fresh=True)"
                ) from error
        return found

    def write_origin(self, epoch: int, origin: dict[str, Any]) -> None:
        """Note what an attempt goes on from: values that JSON has."""
        self._write(epoch, ORIGIN, seal(origin, self._signer))

    def complete(self, epoch: int) -> None:
        """The job has completed: one of this name begins anew."""
        self._write(epoch, END, b"")

    def note_commit(self, order: Order, place: str) -> None:
        """Note, before anything is committed, that a snapshot counts.

        ``place`` is where its record is, below the directory of the job.
        """
        self._storage.make_directory(self.directory)
        name = _commit_name(order)
        with self._storage.create(self._storage.join(self.directory, name)) as file:
            file.write(seal({"record": place}, self._signer))
        if self._noted is not None:
            self._remove(self._noted)
        self._noted = name

    def forget_commit(self, order: Order) -> None:
        """Take a note back: nothing is committed."""
        with suppress(FileNotFoundError):
            self._storage.remove(self._storage.join(self.directory, _commit_name(order)))

    def commits(self) -> dict[Order, str]:
        """What was noted to be committed, and where that is noted."""
        found = {}
        for name in self._names():
            epoch, _, number = name.removesuffix(COMMIT).partition(".")
            if name.endswith(COMMIT) and epoch.isdigit() and number.isdigit():
                found[int(epoch), int(number)] = self._storage.join(self.directory, name)
        return found

    def missing(self, order: Order, place: str) -> str:
        """Says of a snapshot that it was committed, and is not there any more.

        ``place`` is where its record might have been, if that was not noted.
        """
        noted = self.commits().get(order)
        with suppress(Exception):  # a note without its text is one all the same
            assert noted is not None
            place = unseal(read_file(self._storage, noted), noted, self._signer)["record"]
        told = "" if noted is None else f", as {noted} says"
        path = self._storage.join(self._job_directory, place)
        return f"{path} is missing, although it was committed{told}"

    def has_completed(self) -> bool:
        """True if the last attempt that knew what to begin with has ended the job."""
        return max(self._with(END), default=0) >= max(self._with(ORIGIN), default=1)

    def check_newest(self, epoch: int) -> None:
        """Raise :class:`SupersededError` if another attempt has begun after this one."""
        newest = max(self._with(CLAIM), default=epoch)
        if newest > epoch:
            raise SupersededError(
                f"another attempt at job {self._job_name!r} has begun in {self._job_directory}: "
                f"this one has number {epoch}, the other {newest}"
            )

    def forget_before(self, oldest: int) -> None:
        """Remove what earlier attempts have left here."""
        for name in self._names():
            if 0 < self._epoch_of(name) < oldest:
                self._remove(name)

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            self._storage.remove(self._storage.join(self.directory, name))

    def _names(self) -> list[str]:
        return [entry.name for entry in self._storage.entries(self.directory) or ()]

    @staticmethod
    def _epoch_of(name: str) -> int:
        number = name.partition(".")[0]
        return int(number) if number.isdigit() else 0

    def _with(self, suffix: str) -> list[int]:
        names = [name.removesuffix(suffix) for name in self._names() if name.endswith(suffix)]
        return [int(name) for name in names if name.isdigit()]

    def _path(self, epoch: int, suffix: str) -> str:
        return self._storage.join(self.directory, f"{epoch:04d}{suffix}")

    def _write(self, epoch: int, suffix: str, data: bytes) -> None:
        write_atomically(self._storage, self.directory, f"{epoch:04d}{suffix}", data)


def _commit_name(order: Order) -> str:
    epoch, number = order
    return f"{epoch:04d}.{number:08d}{COMMIT}"
