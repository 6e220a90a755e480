"""The files in which the state of a task is kept from one micro-batch to the next.

Each batch adds a file with what the batch has changed. The state is what a *chain* of files makes,
the newest last. What a task has saved names its chain; the driver records that with the batch, so
nothing else says which files count. The names of files are those of attempts: two attempts at the
same batch never meet, and what a failed one has written is never looked at.

No chain grows for ever, and nothing is ever rewritten at once: in each batch a task adds, to the
keys that the batch has touched, some that it has not, until it has been over all of them. Then the
files from before it began are not needed any more. See :class:`Sweep`.

What is in a file is described in :mod:`jetlet.snapshots.format`. The chunks of an incremental
processor hold ``(schema version, time, changes)``; those of the others hold entries, as in a
snapshot, and all of them: of such a processor only the newest file counts.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final, NamedTuple
from zlib import crc32

from jetlet.errors import SnapshotError
from jetlet.snapshots.directory import Storage, naming, read_file
from jetlet.snapshots.format import STATE, Chunk, StateFileWriter, read_state_file
from jetlet.snapshots.incremental import Incremental, TableChange
from jetlet.snapshots.state_sink import unpicklable
from jetlet.spark.micro_batch.state_pickle import dump_state

__all__ = [
    "MAX_CHAIN",
    "ChainFile",
    "SavedState",
    "Sweep",
    "apply_chunk",
    "change_chunks",
    "read_files",
    "slice_size",
    "write_file",
]

MAX_SWEEP: Final = 256
"""A sweep takes so many batches at the most: a chain is read within seconds, and a batch is longer
by less than a hundredth of what it would take to save everything."""
MIN_SLICE: Final = 1024
"""Keys that a sweep takes at once at the least: they cost about as much as the file itself."""
MAX_CHAIN: Final = 4 * MAX_SWEEP
"""A chain gets as long if no task lives long enough to end a sweep: then one does all at once."""
CHUNK_KEYS: Final = 1 << 14
READERS: Final = 8
"""Number of files that are fetched at the same time."""


class ChainFile(NamedTuple):
    """A file of a chain."""

    batch: int
    name: str
    size: int
    crc32: int


@dataclass(frozen=True)
class SavedState:
    """What a task has saved in a batch; picklable."""

    chain: bytes
    """Packed, since all tasks of a fragment are sent those of all, and each unpacks its own."""
    is_incremental: bool
    """True if all of the state belongs to incremental processors."""
    schemas: tuple[tuple[str, int], ...] = ()
    """Vertices of other processors whose state has another version than 1."""

    @staticmethod
    def pack(files: Sequence[ChainFile]) -> bytes:
        """A chain, the oldest file first."""
        return pickle.dumps([tuple(file) for file in files])

    @cached_property
    def files(self) -> tuple[ChainFile, ...]:
        """The chain."""
        return tuple(ChainFile(*file) for file in pickle.loads(self.chain))

    def __reduce__(self) -> tuple[Any, ...]:
        return SavedState, (self.chain, self.is_incremental, self.schemas)


class Sweep:
    """Takes all keys of a processor's state in turn, a few in every batch, as if they were touched.

    Keys that are added or changed meanwhile are saved with the batches that do so. So when it has
    come to its end, the files since :attr:`began` have everything.
    """

    def __init__(self, batch: int, processor: Incremental) -> None:
        touched = processor.touched
        assert touched is not None
        self.began = batch
        self._left: list[tuple[Any, list[Any]]] = []
        for name, table in processor.tables.items():
            with_batch = touched.get(name, ())
            self._left.append((name, [key for key in table if key not in with_batch]))

    def touch(self, processor: Incremental, count: int) -> bool:
        """Take the next keys; true if there are no more."""
        touched, tables = processor.touched, processor.tables
        assert touched is not None
        while self._left:
            name, keys = self._left[-1]
            if keys and count <= 0:
                break
            some = keys[-count:]
            del keys[-count:]
            count -= len(some)
            if not keys:
                self._left.pop()
            table = tables.get(name)
            if table is not None:
                touched.add(name, [key for key in some if key in table])
        return not self._left


def slice_size(processor: Incremental) -> int:
    """How many keys a sweep takes in a batch."""
    assert processor.touched is not None
    return max(processor.touched.key_count() // 4, processor.entry_count() // MAX_SWEEP, MIN_SLICE)


# --- Chunks ---------------------------------------------------------------------------------


def change_chunks(vertex: str, index: int, processor: Incremental) -> Iterator[Chunk]:
    """What a processor has changed. The first chunk is always there: it has the time."""
    some: list[TableChange] = []
    count = 0
    for change in processor.take_changes(CHUNK_KEYS):
        if count >= CHUNK_KEYS:
            yield _chunk(vertex, index, processor, some)
            some, count = [], 0
        some.append(change)
        count += len(change.entries) + len(change.gone) + 1
    yield _chunk(vertex, index, processor, some)


def _chunk(
    vertex: str, index: int, processor: Incremental, changes: Sequence[TableChange]
) -> Chunk:
    plain = [tuple(change) for change in changes]
    try:
        payload = dump_state((processor.schema_version, processor.time, plain))
    except Exception as error:
        entries = [entry for change in changes for entry in change.entries.items()]
        raise unpicklable(entries, error) from error
    return Chunk(STATE, vertex, index, len(changes), payload)


def apply_chunk(chunk: Chunk, processor: Incremental) -> None:
    """Bring a processor up to date."""
    schema, time, changes = pickle.loads(chunk.payload)
    for table, is_new, entries, gone in changes:
        if schema != processor.schema_version:
            upgrade = processor.upgrade
            entries = {key: upgrade(schema, value) for key, value in entries.items()}
        processor.apply_change(TableChange(table, is_new, entries, gone))
    if time is not None:
        processor.apply_time(time)


# --- Files ----------------------------------------------------------------------------------


def write_file(
    storage: Storage,
    directory: str,
    name: str,
    header: Mapping[str, Any],
    chunks: Iterable[Chunk],
) -> ChainFile:
    """Write a file; it survives a crash. Nothing is left of it if that fails."""
    path = storage.join(directory, name)
    try:
        file = storage.create(path)
    except FileNotFoundError:
        storage.make_directory(directory)
        file = storage.create(path)
    try:
        writer = StateFileWriter(file, name, header)
        for chunk in chunks:
            writer.write(chunk)
        written = writer.end()
        storage.close_durably(file)
        storage.sync_directory(directory)
    except BaseException:
        with suppress(Exception):
            file.close()
        with suppress(Exception):
            storage.remove(path)
        raise
    return ChainFile(header["batch"], name, written.size, written.crc32)


def read_files(
    storage: Storage, directory: str, files: Sequence[ChainFile]
) -> Iterator[list[Chunk]]:
    """The chunks of each file; raises :class:`SnapshotError` if one is missing or damaged.

    Several are fetched at once, since a storage that is far away takes its time for each.
    """
    fetch = partial(_fetch, storage, directory)
    if len(files) <= 2:
        for file in files:
            yield _chunks(storage.join(directory, file.name), file, fetch(file))
        return
    rest = iter(files)
    with ThreadPoolExecutor(READERS, "jetlet-state") as pool:
        ahead = deque((file, pool.submit(fetch, file)) for file in islice(rest, 2 * READERS))
        while ahead:
            file, data = ahead.popleft()
            yield _chunks(storage.join(directory, file.name), file, data.result())
            ahead.extend((file, pool.submit(fetch, file)) for file in islice(rest, 1))


def _fetch(storage: Storage, directory: str, file: ChainFile) -> bytes:
    path = storage.join(directory, file.name)
    with naming(path):
        return read_file(storage, path)


def _chunks(path: str, file: ChainFile, data: bytes) -> list[Chunk]:
    if (len(data), crc32(data)) != (file.size, file.crc32):
        raise SnapshotError(
            f"{path} is damaged: it is not what batch {file.batch} has saved, whose checksum is "
            f"another one"
        )
    return list(read_state_file(io.BytesIO(data), path))
