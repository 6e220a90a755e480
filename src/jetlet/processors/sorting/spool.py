"""SpoolProcessor: takes all of its input, then gives it back in the same order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey
from jetlet.core.traits import Repeats, State, Traits
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.processors.base import BatchProcessor
from jetlet.processors.sorting.spill import (
    DEFAULT_MEMORY_LIMIT,
    SpilledChunk,
    SpillFile,
    average_size,
)
from jetlet.processors.state_saver import StateSaver

__all__ = ["SpoolProcessor"]

CHUNKS_PER_SAVE = 8
"""Chunks that are offered to a snapshot in one call."""


class SpoolProcessor(BatchProcessor):
    """Keeps its items until the input has ended: what comes before it is never held up.

    What exceeds ``memory_limit`` bytes, going by samples, is kept in a temporary file.
    """

    traits = Traits(state=State.SAVED, repeats=Repeats.BOTH, needs_index=False)

    def __init__(self, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> None:
        super().__init__()
        self._memory_limit = memory_limit
        self._memory = 0.0
        self._chunks: deque[list[Any] | SpilledChunk] = deque()
        self._latest: list[Any] = []
        """Items that are not many enough for a chunk of their own yet."""
        self._file: SpillFile | None = None
        self._saver = StateSaver()
        self._restored: list[tuple[tuple[int, int], list[Any]]] = []

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        self._latest += batch
        if len(self._latest) >= BATCH_SIZE:
            self._keep(self._latest)
            self._latest = []

    def _keep(self, chunk: list[Any]) -> None:
        if self._memory < self._memory_limit:
            self._memory += len(chunk) * average_size(chunk)
            self._chunks.append(chunk)
            return
        if self._file is None:
            self._file = SpillFile()
        self._chunks.append(self._file.append(chunk))

    def complete(self) -> bool:
        if not self.flush():
            return False
        if not self._chunks:
            latest, self._latest = self._latest, []
            self.send(latest)
            return self.flush()
        self.send(self._read(self._chunks.popleft()))
        self.flush()
        return False

    def _read(self, chunk: list[Any] | SpilledChunk) -> list[Any]:
        if isinstance(chunk, SpilledChunk):
            assert self._file is not None
            return self._file.read(chunk)
        return chunk

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        return self._saver.save(self.outbox, self._entries, CHUNKS_PER_SAVE)

    def _entries(self) -> Iterator[tuple[BroadcastKey, list[Any]]]:
        # Broadcast, so that the items of one processor can stay together and in order.
        index = self.context.global_index
        for number, chunk in enumerate((*self._chunks, self._latest)):
            yield BroadcastKey((index, number)), self._read(chunk)

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for key, chunk in inbox:
            if key.key[0] % self.context.total_parallelism == self.context.global_index:
                self._restored.append((key.key, chunk))

    def finish_snapshot_restore(self) -> bool:
        restored, self._restored = self._restored, []
        for _, chunk in sorted(restored, key=lambda entry: entry[0]):
            if chunk:
                self._keep(chunk)
        return True
