"""What is in a snapshot, for people: ``jetlet.snapshots.read(...)``.

A snapshot is found by the directory that jobs have as their ``snapshot_dir``. Nothing in it is
changed, and no attempt at the job is begun: it can be read while the job runs, but then the job may
remove it meanwhile, which is told as a file that is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from jetlet.core.items import BroadcastKey
from jetlet.errors import InvalidArgumentError, MissingDependencyError, SnapshotError
from jetlet.snapshots.chain.contents import Portion, latest, whole
from jetlet.snapshots.directory import SnapshotDirectory, file_name
from jetlet.snapshots.job_snapshots import absolute
from jetlet.snapshots.signing import Signer
from jetlet.snapshots.store import Exports, SnapshotStore, StoredSnapshot, open_export
from jetlet.storage.file_systems import Storage, locate

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SnapshotContents", "StateEntry", "read"]

_ANY: Final[Any] = object()


class StateEntry(NamedTuple):
    """An entry of the state of a vertex, as the vertex has saved it."""

    vertex: str
    """Name of the stage, or of the vertex of a DAG."""
    key: Any
    value: Any
    is_shared: bool = False
    """It belongs to no key, but to all processors of the vertex, such as how far a source has been
    read, or how far a window is in event time."""


Portions = Callable[
    [Callable[[str], bool], Callable[[str, Sequence[Any]], Sequence[bool]] | None],
    Iterator[Portion],
]


@dataclass(frozen=True)
class SnapshotContents:
    """A snapshot that was found. Iterating reads its files, each time anew."""

    job_name: str
    name: str
    """That of an export, or the number of the snapshot."""
    taken_ms: int
    """When it was complete, in milliseconds since 1970."""
    vertices: Sequence[str]
    """Those that have any state in it."""
    _portions: Portions
    _vertex: str | None
    _key: Any

    def __iter__(self) -> Iterator[StateEntry]:
        """Its entries, in no particular order."""
        vertex, key = self._vertex, self._key
        owns = None if key is _ANY else lambda vertex, keys: [_is_key(each, key) for each in keys]
        portions = self._portions(lambda name: vertex is None or name == vertex, owns)
        try:
            for portion in portions:
                for found, value in portion.entries:
                    is_shared = isinstance(found, BroadcastKey)
                    plain = found.key if is_shared else found
                    if key is _ANY or (plain == key and not is_shared):
                        yield StateEntry(portion.vertex, plain, value, is_shared)
        except (AttributeError, ImportError) as error:
            raise SnapshotError(
                f"the state of job {self.job_name!r} has objects of classes that cannot be "
                f"imported here ({error}): set PYTHONPATH so that they can, or call "
                f"jetlet.snapshots.read in the program that defines them"
            ) from error

    def to_arrow(self, value: Callable[[Any], Any] | None = None) -> pa.Table:
        """The entries that belong to keys, as a table with ``vertex``, ``key`` and ``value``.

        ``value`` makes of each value something that Arrow has a type for.
        """
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingDependencyError(
                "to_arrow needs a package: pip install 'jetlet[arrow]'"
            ) from None
        columns: dict[str, list[Any]] = {"vertex": [], "key": [], "value": []}
        for entry in self:
            if not entry.is_shared:
                columns["vertex"].append(entry.vertex)
                columns["key"].append(entry.key)
                columns["value"].append(entry.value if value is None else value(entry.value))
        arrays = {}
        for name, values in columns.items():
            try:
                arrays[name] = pa.array(values, pa.string() if name == "vertex" else None)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise InvalidArgumentError(
                    f"to_arrow: Arrow has no type for this {name} ({error}): read one vertex, with "
                    f"read(..., vertex=...), and make something simple of each value, with "
                    f".to_arrow(lambda value: ...)"
                ) from error
        return pa.table(arrays)


def read(
    directory: str | os.PathLike[str],
    vertex: str | None = None,
    *,
    key: Any = _ANY,
    job: str | None = None,
    snapshot: str | int | None = None,
    snapshot_key: bytes | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SnapshotContents:
    """Read the state that is in a snapshot: an iterator of entries, or ``.to_arrow()``.

    :param directory: the ``snapshot_dir`` of jobs, or the directory of one exported snapshot.
    :param vertex: only what this stage has saved.
    :param key: only what belongs to this key.
    :param job: which job's, if there are several in the directory.
    :param snapshot: the name of an exported snapshot, or the number of one of the job's own; by
        default the job's newest.
    :param snapshot_key: the secret by which the snapshots of the job are signed.
    :param storage_options: for the client of the directory's file system, as in ``JobConfig``.

    To read it is to unpickle it: do so only with snapshots of whom you trust, or of jobs that sign
    theirs. The classes of keys and values have to be importable.
    """
    location = absolute(os.fspath(directory))
    where = locate(location, storage_options)
    found = _find(location, where, job, snapshot, Signer(snapshot_key))
    if isinstance(found, StoredSnapshot):
        contents = _of_stored(found, vertex, key)
    else:
        contents = SnapshotContents(*found, vertex, key)
    if vertex is not None and vertex not in contents.vertices:
        known = ", ".join(map(repr, sorted(contents.vertices))) or "none"
        raise InvalidArgumentError(
            f"snapshot {contents.name} of job {contents.job_name!r} has no state of a stage "
            f"{vertex!r}; it has that of: {known}"
        )
    return contents


Found = tuple[str, str, int, Sequence[str], Portions]


def _find(
    location: str,
    where: tuple[Storage, str],
    job: str | None,
    snapshot: str | int | None,
    signer: Signer,
) -> StoredSnapshot | Found:
    storage, root = where
    if isinstance(snapshot, str):
        return Exports(storage, root, signer).find(snapshot)
    jobs = [unquote(e.name) for e in storage.entries(storage.join(root, "jobs")) or ()]
    if not jobs:
        stored = open_export(SnapshotDirectory(storage, root, signer))
        if stored is None:
            names = Exports(storage, root, signer).names()
            hint = f": write snapshot={names[0]!r}" if names else ""
            raise SnapshotError(f"there are no snapshots of any job in {location}{hint}")
        return stored
    if job is None and len(jobs) == 1:
        job = jobs[0]
    if job not in jobs:
        raise InvalidArgumentError(
            f"there are the snapshots of several jobs in {location}: write job=... with one of "
            f"{', '.join(map(repr, sorted(jobs)))}"
            if job is None
            else f"there are no snapshots of job {job!r} in {location}; there are those of "
            f"{', '.join(map(repr, sorted(jobs)))}"
        )
    stored_ones = SnapshotStore(storage, root, job, signer).snapshots()
    batches = None if snapshot is not None else _newest_batch(location, where, job, signer)
    if snapshot is not None:
        stored_ones = [each for each in stored_ones if each.record.snapshot_id == snapshot]
    newest = stored_ones[0] if stored_ones else None
    if batches is not None and (newest is None or newest.record.ended_ms < batches[2]):
        return batches
    if newest is None:
        what = "snapshot" if snapshot is None else f"snapshot {snapshot}"
        raise SnapshotError(f"job {job!r} has no {what} in {location}")
    return newest


def _newest_batch(
    location: str, where: tuple[Storage, str], job: str, signer: Signer
) -> Found | None:
    """The newest micro-batch of a job, if it has run in such."""
    storage, root = where
    if storage.entries(storage.join(root, "jobs", file_name(job), "batches")) is None:
        return None
    from jetlet.spark.micro_batch.contents import newest_batch

    found = newest_batch(location, job)
    if found is None:
        return None
    signer.check_signed(False, f"the state of job {job!r} in micro-batches")
    return job, f"batch {found.batch}", found.time_ms, found.vertices, found.portions


def _of_stored(stored: StoredSnapshot, vertex: str | None, key: Any) -> SnapshotContents:
    record, directory = stored.record, stored.directory

    def portions(
        is_wanted: Callable[[str], bool],
        owns: Callable[[str, Sequence[Any]], Sequence[bool]] | None,
    ) -> Iterator[Portion]:
        chunks = (chunk for file in record.files for chunk in directory.chunks(file))
        yield from whole(chunk for chunk in chunks if is_wanted(chunk.vertex))
        yield from latest(record, directory, lambda name, processor: is_wanted(name), owns)

    return SnapshotContents(
        record.job_name,
        record.name or str(record.snapshot_id),
        record.ended_ms,
        [name for name, state in record.vertices.items() if state.entries],
        portions,
        vertex,
        key,
    )


def _is_key(found: Any, key: Any) -> bool:
    return not isinstance(found, BroadcastKey) and bool(found == key)
