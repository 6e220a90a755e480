"""BatchLog: which batches of a job have been run, in a directory that outlives its process.

Layout, beside the snapshots that other ways of running the job would take::

    jobs/<job>/batches/epochs/                       the attempts at the job
    jobs/<job>/batches/life-0003/records/            a record of each batch: the decision point
    jobs/<job>/batches/life-0003/state/              the state of the processors
    jobs/<job>/batches/life-0003/spark/              Spark's own checkpoint

Spark notes which input a batch has before it runs, and that it has run afterwards; our record comes
in between. A batch that has a record is never run again, only committed; one that has none has left
nothing that anybody sees. A job that begins anew has a new life, with a directory of its own: so
Spark's checkpoint and ours always fit together.

Every attempt claims an epoch here. A record of an earlier attempt that was written after the later
one began does not count.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final
from zlib import crc32

from jetlet.errors import SnapshotError
from jetlet.snapshots.directory import file_name, naming, read_file, write_atomically
from jetlet.snapshots.epochs import Epochs
from jetlet.spark.micro_batch.state import Saved
from jetlet.storage.file_systems import is_url, locate

RECORD: Final = ".batch"
LIFE: Final = "life-"
RECORDS, STATE, CHECKPOINT = "records", "state", "spark"
MAGIC: Final = b"jetlet-batch-1\n"
_CRC: Final = struct.Struct(">I")
ADVICE: Final = "Put back a copy; or, to begin anew, write JobConfig(start_fresh=True)"
KEPT: Final = 2
"""Records that are kept: Spark may ask for the last batch again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """What is to be known of a batch that has been run."""

    batch: int
    epoch: int
    run_id: str
    time_ms: int
    tasks: dict[str, int]
    """Of each fragment that has the same number of them in all batches, by its name."""
    watermarks: dict[str, int] = field(default_factory=dict)
    """Watermarks after the batch, by the vertex that makes them."""
    states: dict[str, dict[int, Saved]] = field(default_factory=dict)
    """What the tasks have saved, by fragment and task."""
    prepared: dict[str, list[Any]] = field(default_factory=dict)
    """Transactions that sinks have to commit, by vertex."""
    digest: int | None = None
    """A digest of the batch's input, by which a repeated batch is known."""
    is_last: bool = False
    """True if the stream has ended with this batch."""
    definitions: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """What states are made by, by vertex, where that makes a difference."""

    def __setstate__(self, state: list[Any]) -> None:
        # Earlier versions have no definitions.
        for each, value in zip(fields(self), [*state, {}], strict=False):
            object.__setattr__(self, each.name, value)

    def to_bytes(self) -> bytes:
        """As it is stored."""
        data = pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
        return MAGIC + _CRC.pack(crc32(data)) + data

    @staticmethod
    def from_bytes(stored: bytes, name: str) -> BatchRecord:
        """The reverse; raises :class:`SnapshotError` if it is damaged."""
        begin = len(MAGIC) + _CRC.size
        data = stored[begin:]
        if not stored.startswith(MAGIC) or _CRC.pack(crc32(data)) != stored[len(MAGIC) : begin]:
            raise SnapshotError(f"{name} is damaged. {ADVICE}")
        try:
            record: BatchRecord = pickle.loads(data)
        except Exception as error:  # such as a class that is not there any more
            raise SnapshotError(
                f"{name} cannot be read: {type(error).__name__}: {error}. {ADVICE}"
            ) from error
        return record


@dataclass(frozen=True, slots=True)
class BatchInput:
    """What is known of the input of a batch."""

    time_ms: int | None = None
    """When the batch began for the first time."""
    digest: int | None = None
    """Of the places in the stream that it begins and ends with."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What an attempt goes on from."""

    life: int
    batch: int
    """The last batch that was recorded; -1 if none was."""
    run_id: str


class BatchLog:
    """The batches of one job; used by one thread, may block."""

    def __init__(self, location: str, job_name: str) -> None:
        storage, root = locate(location)
        self._storage = storage
        self._location = location
        self._job_name = job_name
        self._within = ("jobs", file_name(job_name), "batches")
        self.directory = storage.join(root, *self._within)
        self._epochs = Epochs(storage, self.directory, job_name)
        self.run_id = ""
        self.epoch = 0
        self._life = 0
        self.last: BatchRecord | None = None
        """The newest record, which is the one that counts."""

    # --- Attempts ---------------------------------------------------------------------------

    def begin_attempt(self, run_id: str, *, fresh: bool = False) -> None:
        """Claim an epoch and find out what to go on from; ``run_id`` is for a new life."""
        self.epoch = self._epochs.claim(self.epoch)
        is_new = fresh or self._epochs.has_completed()
        keys = [each.name for each in fields(Origin)]
        origins = {} if is_new else self._epochs.origins(keys, Origin)
        if not origins and not is_new and (noted := self._epochs.commits()):
            raise SnapshotError(
                f"{self._epochs.directory}/*.json is missing, which says what attempts at job "
                f"{self._job_name!r} began with, although there is {max(noted.values())}. "
                f"{ADVICE}"
            )
        is_new = not origins
        known = None if is_new else origins[max(origins)]
        self._life = self.epoch if known is None else known.life
        self.run_id = run_id if known is None else known.run_id
        self.last = None if known is None else self._newest(origins)
        batch = -1 if self.last is None else self.last.batch
        if known is not None:
            self._check_committed(batch, known)
        for name in (RECORDS, STATE, CHECKPOINT):
            self._storage.make_directory(self._place(name))
        self._epochs.write_origin(self.epoch, asdict(Origin(self._life, batch, self.run_id)))
        self._forget()

    def look(self) -> BatchRecord | None:
        """The newest record that counts, without an attempt at the job."""
        origins = self._epochs.origins([each.name for each in fields(Origin)], Origin)
        if not origins or self._epochs.has_completed():
            return None
        self._life = origins[max(origins)].life
        return self._newest(origins)

    def _check_committed(self, batch: int, known: Origin) -> None:
        """Refuse to run anything again that was committed, or may have been."""
        noted = [order for order in self._epochs.commits() if order[0] >= self._life]
        epoch, last = max([*noted, (0, known.batch)], key=lambda order: order[1])
        if batch < last:
            place = f"{_life(self._life)}/{RECORDS}/{last:08d}-*{RECORD}"
            raise SnapshotError(
                f"job {self._job_name!r} has run batch {last}: "
                f"{self._epochs.missing((epoch, last), place)}. {ADVICE}"
            )

    def _newest(self, origins: dict[int, Origin]) -> BatchRecord | None:
        """The newest record that counts."""
        for batch, epoch, name in sorted(self._names(), reverse=True):
            later = [o for e, o in origins.items() if e > epoch and o.life == self._life]
            if all(origin.batch >= batch for origin in later):
                path = self._storage.join(self._records, name)
                with naming(path):
                    return BatchRecord.from_bytes(read_file(self._storage, path), path)
        return None

    def _names(self) -> list[tuple[int, int, str]]:
        """Batch, epoch and file name of all records."""
        entries = self._storage.entries(self._records) or ()
        names = [e.name for e in entries if e.name.endswith(RECORD)]
        numbers = (name.removesuffix(RECORD).split("-") for name in names)
        return [
            (int(batch), int(epoch), n) for (batch, epoch), n in zip(numbers, names, strict=True)
        ]

    def _forget(self) -> None:
        """Remove what earlier attempts have left that nobody needs."""
        join, mine = self._storage.join, _life(self._life)
        self._epochs.forget_before(self.epoch if self.last is None else self.last.epoch)
        for entry in self._storage.entries(self._records) or ():
            if not entry.name.endswith(RECORD):
                self._remove(join(self._records, entry.name))
        for entry in self._storage.entries(self.directory) or ():
            if entry.name.startswith(LIFE) and entry.name != mine:
                with suppress(OSError):
                    self._storage.remove_tree(join(self.directory, entry.name))

    def _remove(self, path: str) -> None:
        with suppress(OSError):
            self._storage.remove(path)

    # --- Places -----------------------------------------------------------------------------

    def _place(self, name: str) -> str:
        return self._storage.join(self.directory, _life(self._life), name)

    @property
    def _records(self) -> str:
        return self._place(RECORDS)

    @property
    def state(self) -> str:
        """Where processors keep their state: a path, or a URL that fsspec knows."""
        return self._address(STATE)

    @property
    def checkpoint(self) -> str:
        """Where Spark keeps its own notes: a URL that Spark knows."""
        address = self._address(CHECKPOINT)
        if not is_url(address):
            return f"file://{address}"
        return address.replace("s3://", "s3a://", 1) if address.startswith("s3://") else address

    def input_of(self, batch: int) -> BatchInput:
        """What Spark has noted of a batch before it handed it over."""
        path = self._storage.join(self._place(CHECKPOINT), "offsets", str(batch))
        try:
            noted = read_file(self._storage, path)
        except OSError:
            return BatchInput()
        found = re.search(rb'"batchTimestampMs":\s*(\d+)', noted)
        return BatchInput(None if found is None else int(found[1]), crc32(noted))

    def _address(self, name: str) -> str:
        parts = (self._location.rstrip("/"), *self._within, _life(self._life), name)
        return "/".join(parts)

    # --- Records ----------------------------------------------------------------------------

    def write(self, record: BatchRecord) -> None:
        """Decide that a batch counts."""
        name = f"{record.batch:08d}-{record.epoch:04d}{RECORD}"
        write_atomically(self._storage, self._records, name, record.to_bytes())
        self._epochs.check_newest(record.epoch)
        self._epochs.note_commit(
            (record.epoch, record.batch), f"{_life(self._life)}/{RECORDS}/{name}"
        )
        self.last = record

    def clean(self) -> None:
        """Remove records that nobody will ask for."""
        assert self.last is not None
        for batch, _, name in self._names():
            if batch <= self.last.batch - KEPT:
                self._remove(self._storage.join(self._records, name))

    def complete(self) -> None:
        """The job has completed: one of this name begins anew."""
        self._epochs.complete(self.epoch)
        with suppress(OSError):
            self._storage.remove_tree(self._storage.join(self.directory, _life(self._life)))


def _life(number: int) -> str:
    return f"{LIFE}{number:04d}"
