"""What is in a snapshot: the entries of its chain, each key's newest, and those saved as a whole.

::

    for vertex, key, value in entries(record, directory):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jetlet.snapshots.directory import SnapshotDirectory
from jetlet.snapshots.format import CHANGES, STATE, Chunk, SnapshotRecord
from jetlet.snapshots.state_sink import Entry

__all__ = ["ChainReader", "Portion", "entries", "latest", "whole"]

IsWanted = Callable[[str, int], bool]
"""Asked whether the state of a processor of a vertex is of interest."""
Owns = Callable[[str, Sequence[Any]], Sequence[bool]]
"""Asked which of the keys of a vertex are of interest."""
Shape = Callable[[str, Any, list[Entry]], list[Entry]]
"""Told a vertex, a table of it, and entries of that: what becomes of them."""


class Portion(NamedTuple):
    """Some entries of the state of a processor."""

    vertex: str
    processor: int
    """The processor's index among all of its vertex in the whole job."""
    entries: list[Entry]


def entries(record: SnapshotRecord, directory: SnapshotDirectory) -> Iterator[tuple[str, Any, Any]]:
    """The vertex, key and value of all that is saved, as the processors get it back.

    A key may have several values. Entries that are for all processors of a vertex have a
    :class:`~jetlet.core.items.BroadcastKey`. Raises :class:`~jetlet.errors.SnapshotError`.
    """
    chunks = (chunk for file in record.files for chunk in directory.chunks(file))
    for portions in (whole(chunks), latest(record, directory)):
        for portion in portions:
            for key, value in portion.entries:
                yield portion.vertex, key, value


def whole(chunks: Iterator[Chunk]) -> Iterator[Portion]:
    """The entries in chunks of state."""
    for chunk in chunks:
        if chunk.kind == STATE:
            yield Portion(chunk.vertex, chunk.processor, chunk.items())


def latest(
    record: SnapshotRecord,
    directory: SnapshotDirectory,
    is_wanted: IsWanted = lambda vertex, processor: True,
    owns: Owns | None = None,
) -> Iterator[Portion]:
    """What the chain of a snapshot makes, the newest files first.

    Each entry comes once. What takes memory are the keys of the files but the oldest ones, so let
    ``is_wanted`` and ``owns`` say what is of interest.
    """
    chain = ChainReader(owns)
    oldest = min((file.number for file in record.chain), default=0)
    for file in sorted(record.chain, key=lambda file: file.number, reverse=True):
        for chunk in directory.chain.chunks(file):
            if chunk.kind == CHANGES and _is_alive(record, chunk):
                if is_wanted(chunk.vertex, chunk.processor):
                    found = chain.take(chunk, is_oldest=file.number == oldest)
                    if found:
                        yield Portion(chunk.vertex, chunk.processor, found)
        chain.end_file()


def _is_alive(record: SnapshotRecord, chunk: Chunk) -> bool:
    """False for what a processor has left that had completed when the snapshot was taken."""
    state = record.vertices.get(chunk.vertex)
    return state is not None and state.chained and chunk.processor not in state.ended


Name = tuple[str, int, Any]
"""Of a table: its vertex, its processor, and its name there."""


class ChainReader:
    """Finds the newest entry of each key in files that come the newest first."""

    def __init__(self, owns: Owns | None = None, shape: Shape | None = None) -> None:
        self._owns = owns
        self._shape = shape
        self._seen: dict[Name, set[Any]] = {}
        """Keys that were there, or gone."""
        self._closed: set[Name] = set()
        """Tables that were new: what older files have of them is gone."""
        self._closing: set[Name] = set()

    def take(self, chunk: Chunk, *, is_oldest: bool) -> list[Entry]:
        """Those entries of a chunk that are the newest of their keys.

        A file may have a key twice, and the first one counts; but not in a table that is new to it.
        So of the oldest file such tables need not be remembered, which are nearly all there is.
        """
        found: list[Entry] = []
        for _schema, _time, changes in chunk.pickles():
            for table, is_new, some, gone in changes:
                name = (chunk.vertex, chunk.processor, table)
                if name in self._closed:
                    continue
                if is_new:
                    self._closing.add(name)
                keys = self._owned(chunk.vertex, some)
                seen = self._seen.setdefault(name, set())
                if seen:
                    mine = [(key, some[key]) for key in keys if key not in seen]
                else:
                    mine = list(some.items()) if keys is some else [(k, some[k]) for k in keys]
                found += mine if self._shape is None else self._shape(chunk.vertex, table, mine)
                if not (is_oldest and is_new):
                    seen.update(keys)
                    seen.update(self._owned(chunk.vertex, gone))
        return found

    def _owned(self, vertex: str, keys: Any) -> Any:
        if self._owns is None or not keys:
            return keys
        listed = list(keys)
        return [
            key for key, is_own in zip(listed, self._owns(vertex, listed), strict=True) if is_own
        ]

    def end_file(self) -> None:
        """What follows is older."""
        self._closed |= self._closing
        self._closing.clear()
