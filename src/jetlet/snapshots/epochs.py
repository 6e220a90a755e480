"""Epochs: the attempts at a job, as they are told apart in a directory that outlives them.

Layout, below the directory of the job::

    epochs/0007.claim        an attempt at the job has begun
    epochs/0007.json         what it goes on from
    epochs/0007.end          the job has completed: there is nothing to go on with

An attempt that was given up but is still alive may yet write. So each has a number, its epoch, in
the names of its files, and what it has written counts only as far as the next one knew of it. And
after it has written something that counts, it looks whether it was superseded, and if so ends.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

from jetlet.snapshots.directory import RecordInDoubtError, Storage, read_file, write_atomically

CLAIM: Final = ".claim"
ORIGIN: Final = ".json"
END: Final = ".end"


class SupersededError(RecordInDoubtError):
    """Another attempt at the job has begun: this one must neither commit nor roll back."""


class Epochs:
    """The attempts at one job. Used by one thread at a time; all methods may block."""

    def __init__(self, storage: Storage, directory: str, job_name: str) -> None:
        self._storage = storage
        self._job_directory = directory
        self._job_name = job_name
        self.directory = storage.join(directory, "epochs")

    def claim(self, after: int = 0) -> int:
        """Begin an attempt: its epoch is higher than ``after``, and than any that was claimed."""
        self._storage.make_directory(self.directory)
        epoch = max(after, *self._with(CLAIM), 0)
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

    def origins(self) -> dict[int, dict[str, Any]]:
        """What attempts have gone on from, as :meth:`write_origin` was told, by epoch."""
        return {
            epoch: json.loads(read_file(self._storage, self._path(epoch, ORIGIN)))
            for epoch in self._with(ORIGIN)
        }

    def write_origin(self, epoch: int, origin: dict[str, Any]) -> None:
        """Note what an attempt goes on from: values that JSON has."""
        self._write(epoch, ORIGIN, json.dumps(origin).encode())

    def complete(self, epoch: int) -> None:
        """The job has completed: one of this name begins anew."""
        self._write(epoch, END, b"")

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
        for entry in self._storage.entries(self.directory) or ():
            number = entry.name.partition(".")[0]
            if number.isdigit() and int(number) < oldest:
                with suppress(OSError):
                    self._storage.remove(self._storage.join(self.directory, entry.name))

    def _with(self, suffix: str) -> list[int]:
        entries = self._storage.entries(self.directory) or ()
        names = [e.name.removesuffix(suffix) for e in entries if e.name.endswith(suffix)]
        return [int(name) for name in names if name.isdigit()]

    def _path(self, epoch: int, suffix: str) -> str:
        return self._storage.join(self.directory, f"{epoch:04d}{suffix}")

    def _write(self, epoch: int, suffix: str, data: bytes) -> None:
        write_atomically(self._storage, self.directory, f"{epoch:04d}{suffix}", data)
