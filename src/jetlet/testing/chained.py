"""Chained: lets the harness take snapshots of an incremental processor as chains of changes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

from jetlet.core.pickling import dump
from jetlet.errors import ProcessorContractError
from jetlet.snapshots.chain.contents import ChainReader
from jetlet.snapshots.chain.part import ChainPart
from jetlet.snapshots.context import ActiveSnapshot
from jetlet.snapshots.format import CHANGES, Chunk
from jetlet.snapshots.incremental import Incremental
from jetlet.snapshots.state_sink import StateSink
from jetlet.testing.outbox import CheckedOutbox, shorten

__all__ = ["Chained"]

FAILS_EVERY = 4
"""One snapshot of so many does not count."""


class Chained:
    """The chain of one processor, with sweeps that take a key at a time.

    What need not be saved at once is saved as late as can be: when the next snapshot begins. Then
    it must be what the state was.
    """

    def __init__(self, processor: Incremental, outbox: CheckedOutbox) -> None:
        self._outbox = outbox
        self._processor = processor
        self._chunks: list[Chunk] = []
        self._sink = StateSink("vertex", 0, self._chunks.append, lambda: False, dump)
        self._part = ChainPart("vertex", 0, processor, self._sink, self, None, lambda *_: 1, 1)
        self._files: dict[int, list[Chunk]] = {}
        self._number = self._calls = 0
        self._since = 0
        self._deferred: list[Iterator[None]] = []
        self._active: ActiveSnapshot | None = None
        """The snapshot that is being taken."""
        self._state: dict[Any, list[bytes]] = {}
        """What the state was when it began."""
        self.made_progress = False

    def note_part(
        self, vertex: str, processor: int, since: int, entries: int, snapshot_id: int
    ) -> None:
        self._since = since

    def offer_batch_to_snapshot(self, entries: list[tuple[Any, Any]]) -> bool:
        return self._outbox.offer_batch_to_snapshot(entries)

    def defer(self, steps: Iterator[None]) -> None:
        self._deferred.append(steps)

    def idle(self) -> bool:
        """Nothing waits. True if there is to be no snapshot, since something was saved early."""
        self._calls += 1
        if self._calls % 2:
            return False
        self._complete()
        self._part.save_early(self)
        return True

    def save(
        self, until: Callable[[Callable[[], bool]], None], *, at_once: bool
    ) -> list[tuple[Any, Any]]:
        """Take a snapshot. ``until`` calls until it is true.

        If it has to be complete ``at_once``, the entries of the tables are returned.
        """
        self._complete()
        self._number += 1
        snapshot = ActiveSnapshot(self._number, is_export=self._number % 5 == 0)
        until(lambda: self._part.save(snapshot, self))
        self._active = snapshot
        self._state = self._state_now()
        return self._complete() if at_once else []

    def _state_now(self) -> dict[Any, list[bytes]]:
        """By key, what is in the tables, pickled."""
        processor = self._processor
        state: dict[Any, list[bytes]] = {}
        for name, table in processor.tables.items():
            entries = dict(table.items())
            for key, value in processor.saved_entries(name, entries).items():
                state.setdefault(key, []).append(dump(value))
        return state

    def _complete(self) -> list[tuple[Any, Any]]:
        """End the snapshot that is being taken, if there is one."""
        snapshot, self._active = self._active, None
        if snapshot is None:
            return []
        deferred, self._deferred = self._deferred, []
        for steps in deferred:
            for _ in steps:
                pass
        self._sink.flush()
        chunks = [chunk for chunk in self._chunks if chunk.kind == CHANGES]
        self._chunks.clear()
        if snapshot.is_export:
            entries = _entries({snapshot.snapshot_id: chunks})
        else:
            files = {**self._files, snapshot.snapshot_id: chunks}
            success = snapshot.snapshot_id % FAILS_EVERY != 0
            self._part.finish(success=success)
            if success:
                self._files = {n: f for n, f in files.items() if n >= self._since}
            entries = _entries(files)
        self._compare(entries)
        return entries

    def _compare(self, entries: list[tuple[Any, Any]]) -> None:
        state = self._state
        if len(entries) != sum(map(len, state.values())):
            raise ProcessorContractError(
                f"a snapshot has {len(entries)} entries where there were "
                f"{sum(map(len, state.values()))}: touch a key before you change it"
            )
        for key, value in entries:
            if not any(_is_same(value, saved) for saved in state.get(key, ())):
                raise ProcessorContractError(
                    f"a snapshot has {shorten(value)} for key {shorten(key)}, which was something "
                    f"else when the snapshot began: touch a key before you change it"
                )


def _is_same(value: Any, saved: bytes) -> bool:
    was = pickle.loads(saved)
    return dump(value) == saved or dump(value) == dump(was) or bool(value == was)


def _entries(files: dict[int, list[Chunk]]) -> list[tuple[Any, Any]]:
    reader = ChainReader()
    found: list[tuple[Any, Any]] = []
    for number in sorted(files, reverse=True):
        for chunk in files[number]:
            found += reader.take(chunk, is_oldest=number == min(files))
        reader.end_file()
    return found
