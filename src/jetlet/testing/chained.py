"""Chained: lets the harness take snapshots of an incremental processor as chains of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jetlet.core.pickling import dump
from jetlet.snapshots.chain.contents import ChainReader
from jetlet.snapshots.chain.part import ChainPart
from jetlet.snapshots.context import ActiveSnapshot
from jetlet.snapshots.format import CHANGES, Chunk
from jetlet.snapshots.incremental import Incremental
from jetlet.snapshots.state_sink import StateSink
from jetlet.testing.outbox import CheckedOutbox

__all__ = ["Chained"]

FAILS_EVERY = 4
"""One snapshot of so many does not count."""


class Chained:
    """The chain of one processor, with sweeps that take a key at a time."""

    def __init__(self, processor: Incremental, outbox: CheckedOutbox) -> None:
        self._outbox = outbox
        self._chunks: list[Chunk] = []
        self._sink = StateSink("vertex", 0, self._chunks.append, lambda: False, dump)
        self._part = ChainPart("vertex", 0, processor, self._sink, self, None, lambda processor: 1)
        self._files: dict[int, list[Chunk]] = {}
        self._number = 0
        self._since = 0
        self._deferred: list[Iterator[None]] = []
        self.made_progress = False

    def note_part(
        self, vertex: str, processor: int, since: int, entries: int, snapshot_id: int
    ) -> None:
        self._since = since

    def offer_batch_to_snapshot(self, entries: list[tuple[Any, Any]]) -> bool:
        return self._outbox.offer_batch_to_snapshot(entries)

    def defer(self, steps: Iterator[None]) -> None:
        self._deferred.append(steps)

    def save(self, until: Callable[[Callable[[], bool]], None]) -> list[tuple[Any, Any]]:
        """Take a snapshot; returns the entries of the tables. ``until`` calls until it is true."""
        self._number += 1
        snapshot = ActiveSnapshot(self._number, is_export=self._number % 5 == 0)
        until(lambda: self._part.save(snapshot, self))
        deferred, self._deferred = self._deferred, []
        for steps in deferred:
            for _ in steps:
                pass
        self._sink.flush()
        chunks = [chunk for chunk in self._chunks if chunk.kind == CHANGES]
        self._chunks.clear()
        if snapshot.is_export:
            return _entries({self._number: chunks})
        files = {**self._files, self._number: chunks}
        success = self._number % FAILS_EVERY != 0
        self._part.finish(success=success)
        if success:
            self._files = {n: f for n, f in files.items() if n >= self._since}
        return _entries(files)


def _entries(files: dict[int, list[Chunk]]) -> list[tuple[Any, Any]]:
    reader = ChainReader()
    found: list[tuple[Any, Any]] = []
    for number in sorted(files, reverse=True):
        for chunk in files[number]:
            found += reader.take(chunk, is_oldest=number == min(files))
        reader.end_file()
    return found
