"""What the newest micro-batch of a job has left as state, for whoever looks into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from jetlet.errors import SnapshotError
from jetlet.snapshots.chain.contents import ChainReader, Owns, Portion, whole
from jetlet.snapshots.format import CHANGES, Chunk
from jetlet.snapshots.state_sink import Entry
from jetlet.spark.micro_batch.batch_log import BatchLog, BatchRecord
from jetlet.spark.micro_batch.state_chain import SavedState, read_files
from jetlet.storage.file_systems import locate

__all__ = ["BatchContents", "newest_batch"]


@dataclass(frozen=True)
class BatchContents:
    """The state after a batch."""

    _record: BatchRecord
    _location: str

    @property
    def batch(self) -> int:
        """Its number."""
        return self._record.batch

    @property
    def time_ms(self) -> int:
        """When it began."""
        return self._record.time_ms

    @property
    def vertices(self) -> Sequence[str]:
        """Those that have any state."""
        found = {chunk.vertex: None for saved in self._saved() for chunk in self._newest(saved)}
        return list(found)

    def portions(self, is_wanted: Callable[[str], bool], owns: Owns | None) -> Iterator[Portion]:
        """The entries of vertices, as those of snapshots are."""
        for saved in self._saved():
            reader = ChainReader(owns, partial(_as_saved, self._record.definitions))
            files = saved.files[::-1]
            for number, chunks in enumerate(read_files(*locate(self._location), files), 1):
                wanted = [chunk for chunk in chunks if is_wanted(chunk.vertex)]
                for chunk in wanted:
                    if chunk.kind == CHANGES:
                        found = reader.take(chunk, is_oldest=number == len(files))
                        yield Portion(chunk.vertex, chunk.processor, found)
                reader.end_file()
                if number == 1:
                    yield from whole(iter(wanted))

    def _saved(self) -> Iterator[SavedState]:
        for tasks in self._record.states.values():
            yield from filter(None, tasks.values())

    def _newest(self, saved: SavedState) -> list[Chunk]:
        return next(read_files(*locate(self._location), saved.files[-1:]), [])


def _as_saved(
    definitions: Mapping[str, Mapping[str, Any]], vertex: str, table: Any, entries: list[Entry]
) -> list[Entry]:
    """The entries of a table as a snapshot has them."""
    definition = definitions.get(vertex, {})
    if definition.get("window") == "sliding":
        # What is derived from the frames is a table, too.
        return [(key, (table, value)) for key, value in entries] if isinstance(table, int) else []
    if definition.get("join") == "interval":
        if table == 0:
            return [(key, (kept, None)) for key, kept in entries]
        return [(key, (None, kept)) for key, kept in entries]
    return entries


def newest_batch(location: str, job_name: str) -> BatchContents | None:
    """What the newest batch that counts has left; ``None`` if none was run."""
    log = BatchLog(location, job_name)
    with suppress(FileNotFoundError):
        record = log.look()
        return None if record is None else BatchContents(record, log.state)
    raise SnapshotError(f"the batches of job {job_name!r} in {location} are being removed")
