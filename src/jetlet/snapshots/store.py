"""SnapshotStore: the snapshots of one job, and exports, in a directory that outlives its process.

Layout::

    jobs/<job>/area-0/ area-1/ ...      the snapshots: state files and a commit record
    jobs/<job>/chain/                   state files that several snapshots need
    jobs/<job>/epochs/                  the attempts at the job
    exports/<name>/                     a snapshot that is kept until it is deleted

Snapshots go to the areas in turn, and an area is written to only while newer good ones are in the
others: a failed snapshot never damages the last good one. ``keep`` good ones need one area more.
With the area that is written to next go the files of chains that no record in the others names.

Every attempt at a job claims its epoch before it looks for the snapshot to begin with. A record
counts only up to the one that the next attempt began with.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import unquote

from jetlet.errors import RestartableError, SnapshotError
from jetlet.snapshots.directory import (
    DamagedSnapshotError,
    RecordInDoubtError,
    SnapshotDirectory,
    Storage,
    file_name,
    record_name,
)
from jetlet.snapshots.epochs import Epochs, Order
from jetlet.snapshots.format import SnapshotRecord
from jetlet.snapshots.signing import UNSIGNED, Signer

logger = logging.getLogger("jetlet.snapshots")

AREA = "area-"
CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot that was found, with the place where it is."""

    record: SnapshotRecord
    directory: SnapshotDirectory
    area: int | None = None


class Origin(NamedTuple):
    """What is known of the beginning of an attempt."""

    restored: Order | None
    """Epoch and id of the snapshot that the attempt began with."""
    job_id: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an attempt at a job begins with."""

    epoch: int
    job_id: str
    """The id of the run that this is an attempt at."""
    restored: StoredSnapshot | None
    """The snapshot to restore; ``None`` to begin anew."""
    good_areas: tuple[int, ...]
    """Where good snapshots are, the newest first."""
    next_id: int


class SnapshotStore:
    """The snapshots of one job. Used by one thread at a time; all methods may block."""

    def __init__(
        self, storage: Storage, root: str, job_name: str, signer: Signer = UNSIGNED
    ) -> None:
        self._storage = storage
        self._signer = signer
        self._job_name = job_name
        self.directory = storage.join(root, "jobs", file_name(job_name))
        self._epochs = Epochs(storage, self.directory, job_name, signer)
        self._chains: dict[int, frozenset[str]] = {}
        """By area, the files of chains that its record names, as far as that is known."""

    def area(self, number: int) -> SnapshotDirectory:
        """One of the areas."""
        return SnapshotDirectory(
            self._storage,
            self._storage.join(self.directory, f"{AREA}{number}"),
            self._signer,
            self._storage.join(self.directory, CHAIN),
        )

    # --- Attempts ---------------------------------------------------------------------------

    def begin_attempt(
        self,
        job_id: str = "",
        *,
        fresh: bool = False,
        initial: StoredSnapshot | None = None,
        after: int = 0,
        committed: Order | None = None,
        may_go_back: bool = False,
    ) -> Attempt:
        """Claim the next epoch and find the newest snapshot that is whole.

        ``fresh`` leaves aside what is there; ``initial`` is restored if nothing is. ``job_id`` is
        for a run that begins with this attempt. The epoch is higher than ``after``, and than any
        that has left a trace. ``committed`` is a snapshot that the job knows to have been
        committed, besides those of which the directory tells.

        Raises :class:`SnapshotError` if what was committed cannot be gone on from: if there is
        nothing left, or, unless it ``may_go_back``, only an older snapshot.
        """
        recorded = [epoch for n in self._areas() for epoch, _ in self.area(n).recorded()]
        epoch = self._epochs.claim(max(after, *recorded, 0))
        self._chains.clear()
        good: list[StoredSnapshot] = []
        ids = [0]
        if not fresh and not self._epochs.has_completed():
            origins = self._origins()
            found, damaged = self._find(origins)
            ids += [stored.record.snapshot_id for stored in found]
            for stored in found:
                try:
                    stored.directory.verify(stored.record)
                except SnapshotError as error:
                    damaged.append(DamagedSnapshotError(stored.record.order, error))
                else:
                    good.append(stored)
            origin = origins[max(origins)] if origins else None
            noted = [order for order in self._epochs.commits() if _counts(order, origins)]
            known = [committed, origin.restored if origin is not None else None, *noted]
            lost = [error.order for error in damaged]
            ids += [order[1] for order in (*known, *lost) if order is not None]
            self._check_committed(good, damaged, list(filter(None, known)), may_go_back=may_go_back)
            if good:
                job_id = good[0].record.job_id
            elif origin is not None:
                # Attempts may have left something under its name, although no snapshot.
                job_id = origin.job_id or job_id
        order = good[0].record.order if good else None
        self._epochs.write_origin(epoch, {"restored": order, "job_id": job_id})
        if not good:
            self._clear_areas()
            self._epochs.forget_before(epoch)
        areas = tuple(stored.area for stored in good if stored.area is not None)
        return Attempt(epoch, job_id, good[0] if good else initial, areas, max(ids) + 1)

    def _check_committed(
        self,
        good: Sequence[StoredSnapshot],
        damaged: Sequence[DamagedSnapshotError],
        known: Sequence[Order],
        *,
        may_go_back: bool,
    ) -> None:
        """Refuse to go on from anything older than what was, or may have been, committed."""
        newest = good[0].record if good else None
        lost = [e for e in damaged if newest is None or e.order is None or e.order > newest.order]
        reasons = list(map(str, lost))
        last = max(known, default=None)
        if last is not None and (newest is None or last > newest.order):
            if last not in [error.order for error in lost]:
                place = f"{AREA}*/{record_name(last)}"
                reasons.append(self._epochs.missing(last, place))
        if not reasons:
            return
        told = "; ".join(reasons)
        if newest is None:
            text = (
                f"job {self._job_name!r} has no snapshot left in {self.directory} that can be "
                f"used: {told}. Put back a copy; or, to begin anew, write "
                f"JobConfig(start_fresh=True)"
            )
        else:
            taken = datetime.fromtimestamp(newest.ended_ms / 1000, UTC)
            repeated = (
                f"snapshot {newest.snapshot_id}, of {taken:%Y-%m-%d %H:%M:%S} UTC: what the job "
                f"has written between then and the last commit"
            )
            if may_go_back:
                logger.warning(
                    "job %s: %s. It goes on from %s is written again",
                    self._job_name,
                    told,
                    repeated,
                )
                return
            text = (
                f"job {self._job_name!r} cannot go on from its last snapshot: {told}. The one "
                f"before it is {repeated} would be written again. Put back a copy of what is "
                f"missing or damaged; or, to go on from there all the same, write "
                f"JobConfig(allow_older_snapshot=True)"
            )
        # A storage may answer again.
        may_get_better = any(error.may_get_better for error in lost)
        raise RestartableError(text) if may_get_better else SnapshotError(text)

    def _origins(self) -> dict[int, Origin]:
        """By epoch, what it began with."""

        def origin(restored: Sequence[int] | None, job_id: str = "") -> Origin:
            return Origin(None if restored is None else (restored[0], restored[1]), job_id)

        return self._epochs.origins(Origin._fields, origin)

    def _find(
        self, origins: Mapping[int, Origin]
    ) -> tuple[list[StoredSnapshot], list[DamagedSnapshotError]]:
        """Records that count, the newest first, and what is wrong with others."""
        found: list[StoredSnapshot] = []
        damaged: list[DamagedSnapshotError] = []
        for number in self._areas():
            directory = self.area(number)
            for record in directory.records():
                if record.order is not None and not _counts(record.order, origins):
                    continue
                if isinstance(record, SnapshotError):
                    damaged.append(record)
                else:
                    found.append(StoredSnapshot(record, directory, number))
        found.sort(key=lambda stored: stored.record.order, reverse=True)
        return found, damaged

    def _areas(self) -> list[int]:
        entries = self._storage.entries(self.directory) or ()
        names = [e.name.removeprefix(AREA) for e in entries if e.name.startswith(AREA)]
        return sorted(int(name) for name in names if name.isdigit())

    # --- Writing ----------------------------------------------------------------------------

    def write_record(self, directory: SnapshotDirectory, record: SnapshotRecord) -> None:
        """Decide that a snapshot counts, and note it if something will be committed.

        If it raises, it does not; unless it raises :class:`RecordInDoubtError`.
        """
        directory.write_record(record)
        try:
            self._epochs.check_newest(record.epoch)
        except RecordInDoubtError:
            raise
        except Exception as error:
            raise RecordInDoubtError(f"cannot read {self._epochs.directory}: {error}") from error
        if record.name is not None:
            return
        area = directory.path.removeprefix(self.directory).strip("/")
        try:
            self._epochs.note_commit(record.order, f"{area}/{record_name(record.order)}")
        except Exception as error:
            try:
                self._epochs.forget_commit(record.order)
            except Exception as second:
                raise RecordInDoubtError(f"cannot note a commit: {second}") from error
            directory.remove_record(record.order, error)
            raise

    def make_room(self, number: int, epoch: int) -> SnapshotDirectory:
        """Clear an area for the next snapshot, and remove what no record needs any more."""
        area = self.area(number)
        area.clear()
        self._chains.pop(number, None)
        chain = area.chain
        names = chain.names()
        if not names:
            self._storage.make_directory(chain.path)
            return area
        others = [other for other in self._areas() if other != number]
        for other in others:
            if other not in self._chains:
                records = list(self.area(other).records())
                if any(isinstance(record, SnapshotError) for record in records):
                    return area  # somebody may put it right
                self._chains[other] = _names_in_chains(records)
        needed = frozenset().union(*(self._chains[other] for other in others))
        for name in names:
            # Another attempt may have begun since: what it writes is not to be touched.
            if name not in needed and _epoch_of(name) <= epoch:
                chain.discard(name)
        return area

    def complete(self, epoch: int) -> None:
        """The job has completed: a job of this name begins anew."""
        self._epochs.complete(epoch)
        self._clear_areas()

    def _clear_areas(self) -> None:
        for number in self._areas():
            self.area(number).remove()
        chain = self.area(0).chain
        if chain.names():
            chain.remove()
        self._chains.clear()

    def forget_epochs(self, epoch: int) -> None:
        """Remove what attempts have left that no record refers to any more."""
        oldest = min((stored.record.epoch for stored in self.snapshots()), default=epoch)
        self._epochs.forget_before(oldest)

    # --- Looking ----------------------------------------------------------------------------

    def snapshots(self) -> list[StoredSnapshot]:
        """Those of the job that count, the newest first; not verified."""
        found, damaged = self._find(self._origins())
        for error in damaged:
            logger.warning("job %s: %s", self._job_name, error)
        return found


def _names_in_chains(records: Sequence[SnapshotRecord | SnapshotError]) -> frozenset[str]:
    return frozenset(
        file.name
        for record in records
        if isinstance(record, SnapshotRecord)
        for file in record.chain
    )


def _epoch_of(name: str) -> int:
    """The attempt that has written a file of a chain; of others, one that never comes."""
    number = name.partition("-")[2].partition("-")[0]
    return int(number) if number.isdigit() else sys.maxsize


def _counts(order: Order, origins: Mapping[int, Origin]) -> bool:
    """False if a later attempt did not know of this snapshot, and went on from an earlier one."""
    return all(
        origin.restored is not None and order <= origin.restored
        for epoch, origin in origins.items()
        if epoch > order[0]
    )


class Exports:
    """Named snapshots, of any job, in the directory that several jobs may share."""

    def __init__(self, storage: Storage, root: str, signer: Signer = UNSIGNED) -> None:
        self._storage = storage
        self._signer = signer
        self._exports = storage.join(root, "exports")

    def directory(self, name: str) -> SnapshotDirectory:
        """Where the export of this name is, or would be."""
        path = self._storage.join(self._exports, file_name(name))
        return SnapshotDirectory(self._storage, path, self._signer)

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
