"""SnapshotStore: the snapshots of one job, and exports, in a directory that outlives its process.

Layout::

    jobs/<job>/area-0/ area-1/ ...      the snapshots: state files and a commit record
    jobs/<job>/epochs/                  the attempts at the job
    exports/<name>/                     a snapshot that is kept until it is deleted

Snapshots go to the areas in turn, and an area is written to only while newer good ones are in the
others: a failed snapshot never damages the last good one. ``keep`` good ones need one area more.

Every attempt at a job claims its epoch before it looks for the snapshot to begin with. A record
counts only up to the one that the next attempt began with.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import unquote

from jetlet.errors import SnapshotError
from jetlet.snapshots.directory import RecordInDoubtError, SnapshotDirectory, Storage, file_name
from jetlet.snapshots.epochs import Epochs
from jetlet.snapshots.format import SnapshotRecord

logger = logging.getLogger("jetlet.snapshots")

AREA = "area-"


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot that was found, with the place where it is."""

    record: SnapshotRecord
    directory: SnapshotDirectory
    area: int | None = None


class Origin(NamedTuple):
    """What is known of the beginning of an attempt."""

    job_id: str
    restored: tuple[int, int] | None
    """Epoch and id of the snapshot that it began with."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an attempt at a job begins with."""

    epoch: int
    job_id: str
    """Of the run that it is an attempt at."""
    restored: StoredSnapshot | None
    """The snapshot to restore; ``None`` to begin anew."""
    good_areas: tuple[int, ...]
    """Where good snapshots are, the newest first."""
    next_id: int


class SnapshotStore:
    """The snapshots of one job. Used by one thread at a time; all methods may block."""

    def __init__(self, storage: Storage, root: str, job_name: str) -> None:
        self._storage = storage
        self._root = root
        self._job_name = job_name
        self.directory = storage.join(root, "jobs", file_name(job_name))
        self._epochs = Epochs(storage, self.directory, job_name)

    def area(self, number: int) -> SnapshotDirectory:
        """One of the areas."""
        return SnapshotDirectory(
            self._storage, self._storage.join(self.directory, f"{AREA}{number}")
        )

    # --- Attempts ---------------------------------------------------------------------------

    def begin_attempt(
        self,
        job_id: str = "",
        *,
        fresh: bool = False,
        initial: StoredSnapshot | None = None,
        after: int = 0,
        must_restore: bool = False,
    ) -> Attempt:
        """Claim the next epoch and find the newest snapshot that is whole.

        ``fresh`` leaves aside what is there; ``initial`` is restored if nothing is. ``job_id`` is
        for a run that begins with this attempt. The epoch is higher than ``after``, and than any
        that has left a trace. Raises :class:`SnapshotError` if there are snapshots and all of them
        are damaged; with ``must_restore``, also if there are none.
        """
        recorded = [stored.record.epoch for stored in self._find()[0]]
        epoch = self._epochs.claim(max(after, *recorded, 0))
        restored: StoredSnapshot | None = None
        good: list[StoredSnapshot] = []
        ids = [0]
        if not fresh and not self._epochs.has_completed():
            found, damaged = self._find()
            ids += [stored.record.snapshot_id for stored in found]
            for stored in found:
                try:
                    stored.directory.verify(stored.record)
                except SnapshotError as error:
                    damaged.append(error)
                    self._warn(stored.record, error)
                else:
                    good.append(stored)
            origin = self._last_origin()
            known = None if origin is None else origin.restored
            if good:
                job_id = good[0].record.job_id
            elif origin is not None:
                # Attempts may have left something under its name, although no snapshot.
                job_id = origin.job_id or job_id
            if not good and (damaged or known is not None or must_restore):
                raise self._nothing_left(damaged)
            restored = good[0] if good else initial
            if good and known is not None and good[0].record.order < known:
                logger.warning(
                    "job %s: snapshot %d, which it had gone on from before, is gone; snapshot %d "
                    "is used",
                    self._job_name,
                    known[1],
                    good[0].record.snapshot_id,
                )
        else:
            restored = initial
        order = restored.record.order if restored is not None and restored in good else None
        self._epochs.write_origin(epoch, {"restored": order, "job_id": job_id})
        if restored is None or not good:
            self._clear_areas()
        areas = tuple(stored.area for stored in good if stored.area is not None)
        return Attempt(epoch, job_id, restored, areas, max(ids) + 1)

    def _origins(self) -> dict[int, Origin]:
        """By epoch, what it began with."""
        return {
            epoch: Origin(
                values.get("job_id", ""),
                None if (known := values["restored"]) is None else (known[0], known[1]),
            )
            for epoch, values in self._epochs.origins().items()
        }

    def _find(self) -> tuple[list[StoredSnapshot], list[SnapshotError]]:
        """Records that count, the newest first, and what is wrong with others."""
        origins = self._origins()
        found: list[StoredSnapshot] = []
        damaged: list[SnapshotError] = []
        for number in self._areas():
            directory = self.area(number)
            for record in directory.records():
                if isinstance(record, SnapshotError):
                    damaged.append(record)
                    logger.warning("job %s: %s", self._job_name, record)
                elif _counts(record, origins):
                    found.append(StoredSnapshot(record, directory, number))
        found.sort(key=lambda stored: stored.record.order, reverse=True)
        return found, damaged

    def _areas(self) -> list[int]:
        entries = self._storage.entries(self.directory) or ()
        names = [e.name.removeprefix(AREA) for e in entries if e.name.startswith(AREA)]
        return sorted(int(name) for name in names if name.isdigit())

    def _last_origin(self) -> Origin | None:
        """What the last attempt began with."""
        origins = self._origins()
        return origins[max(origins)] if origins else None

    def _warn(self, record: SnapshotRecord, error: SnapshotError) -> None:
        logger.warning(
            "job %s: snapshot %d cannot be used, the one before it is: %s",
            self._job_name,
            record.snapshot_id,
            error,
        )

    def _nothing_left(self, damaged: Sequence[SnapshotError]) -> SnapshotError:
        reasons = "; ".join(map(str, damaged)) or "all are gone"
        return SnapshotError(
            f"job {self._job_name!r} has no snapshot left in {self.directory} that can be used: "
            f"{reasons}. To begin anew, write JobConfig(start_fresh=True)"
        )

    # --- Writing ----------------------------------------------------------------------------

    def write_record(self, directory: SnapshotDirectory, record: SnapshotRecord) -> None:
        """Decide that a snapshot counts.

        If it raises, it does not; unless it raises :class:`RecordInDoubtError`.
        """
        directory.write_record(record)
        try:
            self._epochs.check_newest(record.epoch)
        except RecordInDoubtError:
            raise
        except Exception as error:
            raise RecordInDoubtError(f"cannot read {self._epochs.directory}: {error}") from error

    def complete(self, epoch: int) -> None:
        """The job has completed: a job of this name begins anew."""
        self._epochs.complete(epoch)
        self._clear_areas()

    def _clear_areas(self) -> None:
        for number in self._areas():
            self.area(number).remove()

    def forget_epochs(self, epoch: int) -> None:
        """Remove what attempts have left that no record refers to any more."""
        oldest = min((stored.record.epoch for stored in self._find()[0]), default=epoch)
        self._epochs.forget_before(oldest)

    # --- Looking ----------------------------------------------------------------------------

    def snapshots(self) -> list[StoredSnapshot]:
        """Those of the job that count, the newest first; not verified."""
        return self._find()[0]


def _counts(record: SnapshotRecord, origins: dict[int, Origin]) -> bool:
    """False if a later attempt did not know of it, and went on from an earlier one."""
    return all(
        origin.restored is not None and record.order <= origin.restored
        for epoch, origin in origins.items()
        if epoch > record.epoch
    )


class Exports:
    """Named snapshots, of any job, in the directory that several jobs may share."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._exports = storage.join(root, "exports")

    def directory(self, name: str) -> SnapshotDirectory:
        """Where the export of this name is, or would be."""
        return SnapshotDirectory(self._storage, self._storage.join(self._exports, file_name(name)))

    def prepare(self, name: str) -> SnapshotDirectory:
        """Make room for an export; raises :class:`SnapshotError` if there is one of this name."""
        directory = self.directory(name)
        if any(directory.records()):
            raise SnapshotError(
                f"there is a snapshot named {name!r} in {directory.path}: choose another name, or "
                f"delete it first"
            )
        directory.clear()
        return directory

    def names(self) -> list[str]:
        """Those that are there."""
        entries = self._storage.entries(self._exports) or ()
        return [unquote(e.name) for e in entries if any(self.directory(unquote(e.name)).records())]

    def find(self, name: str) -> StoredSnapshot:
        """The export of this name, verified; raises :class:`SnapshotError`."""
        stored = open_export(self.directory(name))
        if stored is None:
            known = ", ".join(map(repr, self.names())) or "none"
            raise SnapshotError(
                f"there is no snapshot named {name!r} in {self._exports}; there are: {known}"
            )
        return stored

    def copy(self, stored: StoredSnapshot, name: str) -> None:
        """Export a snapshot that was taken before."""
        target = self.prepare(name)
        stored.directory.verify(stored.record)
        stored.directory.copy_to(target, stored.record)
        target.write_record(replace(stored.record, name=name))

    def delete(self, name: str) -> None:
        """Remove the export of this name."""
        directory = self.directory(name)
        if not any(directory.records()):
            raise SnapshotError(f"there is no snapshot named {name!r} in {self._exports}")
        directory.clear()
        directory.remove()


def open_export(directory: SnapshotDirectory) -> StoredSnapshot | None:
    """The exported snapshot in a directory, verified; ``None`` if there is none."""
    for record in directory.records():
        if isinstance(record, SnapshotError):
            raise record
        directory.verify(record)
        return StoredSnapshot(record, directory)
    return None
