"""The files in which the state of a task is kept from one micro-batch to the next.

They are a chain as those of snapshots are, see :mod:`jetlet.snapshots.chain`. What a task has saved
names its chain; the driver records that with the batch, so nothing else says which files count. The
names of files are those of attempts: two attempts at the same batch never meet, and what a failed
one has written is never looked at.

What is in a file is described in :mod:`jetlet.snapshots.format`. Chunks of changes are those of
incremental processors. Those of the others hold entries, as in a snapshot, and all of them: of such
a processor only the newest file counts.
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
from typing import Any, Final
from zlib import crc32

from jetlet.errors import SnapshotError
from jetlet.snapshots.directory import Storage, naming, read_file
from jetlet.snapshots.format import ChainFile, Chunk, StateFileWriter, read_state_file
from jetlet.snapshots.incremental import Incremental, TableChange

__all__ = ["SavedState", "apply_chunk", "read_files", "write_file"]

READERS: Final = 8
"""Number of files that are fetched at the same time."""


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


# --- Chunks ---------------------------------------------------------------------------------


def apply_chunk(chunk: Chunk, processor: Incremental) -> None:
    """Bring a processor up to date."""
    for schema, time, changes in chunk.pickles():
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
            f"{path} is damaged: it is not what batch {file.number} has saved, whose checksum is "
            f"another one"
        )
    return list(read_state_file(io.BytesIO(data), path))
