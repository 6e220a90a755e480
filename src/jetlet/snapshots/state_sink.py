"""StateSink: turns the state of one processor into chunks, at the moment it is offered."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any

from jetlet.core.items import BroadcastKey
from jetlet.core.partitioning import stable_hash
from jetlet.core.pickling import dump
from jetlet.errors import SnapshotError
from jetlet.snapshots.format import CHANGES, STATE, Chunk
from jetlet.snapshots.incremental import TableChange

CHUNK_SIZE = 256 * 1024
"""Bytes after which a chunk is handed over."""

Entry = tuple[Any, Any]
"""A key and a value of a processor's state."""


class StateSink:
    """Serialises entries, or changes, at once, since processors change their state in place.

    Used by the thread that calls the processor. ``put`` takes finished chunks and never blocks.
    """

    __slots__ = (
        "_dumps",
        "_gathered",
        "_processor",
        "_vertex",
        "is_full",
        "put",
    )

    def __init__(
        self,
        vertex: str,
        processor: int,
        put: Callable[[Chunk], None],
        is_full: Callable[[], bool],
        dumps: Callable[[Any], bytes] = dump,
    ) -> None:
        self._dumps = dumps
        self._vertex = vertex
        self._processor = processor
        self.put = put
        self.is_full = is_full
        """True if too much waits to be written: offer again later."""
        self._gathered = {kind: _Gathered() for kind in (STATE, CHANGES)}

    def add(self, entries: Sequence[Entry]) -> int:
        """Take entries; returns how many bytes they have become."""
        if not entries:
            return 0
        _check_key(entries[0][0])
        try:
            data = self._dumps(list(entries))
        except Exception as error:
            raise unpicklable(entries, error) from error
        self._gather(STATE, len(entries), data)
        return len(data)

    def add_changes(
        self, changes: Sequence[TableChange], schema: int, time: int | None = None
    ) -> None:
        """Take changes of state of this schema version, as of this time of the processor's."""
        data = self.pickled(changes, schema, time)
        self.add_pickled(sum(len(change.entries) for change in changes), data)

    def pickled(
        self, changes: Sequence[TableChange], schema: int, time: int | None = None
    ) -> bytes:
        """The same changes as they are written."""
        for change in changes:
            for key in change.entries:
                _check_key(key)
                break
        try:
            return self._dumps((schema, time, [tuple(change) for change in changes]))
        except Exception as error:
            entries = [entry for change in changes for entry in change.entries.items()]
            raise unpicklable(entries, error) from error

    def add_pickled(self, entries: int, data: bytes) -> None:
        """Take changes of so many entries, pickled."""
        self._gather(CHANGES, entries, data)

    def _gather(self, kind: int, entries: int, data: bytes) -> None:
        gathered = self._gathered[kind]
        gathered.pickles.append(data)
        gathered.entries += entries
        gathered.size += len(data)
        if gathered.size >= CHUNK_SIZE:
            self._hand_over(kind)

    def flush(self) -> None:
        """Hand over what there is."""
        for kind, gathered in self._gathered.items():
            if gathered.pickles:
                self._hand_over(kind)

    def _hand_over(self, kind: int) -> None:
        gathered, self._gathered[kind] = self._gathered[kind], _Gathered()
        payload = b"".join(gathered.pickles)
        self.put(Chunk(kind, self._vertex, self._processor, gathered.entries, payload))


class _Gathered:
    """What will be a chunk."""

    __slots__ = ("entries", "pickles", "size")

    def __init__(self) -> None:
        self.pickles: list[bytes] = []
        self.entries = self.size = 0


def _check_key(key: Any) -> None:
    """Who restores state goes by the hash of its keys: going by one of them, they have one."""
    stable_hash(key.key if isinstance(key, BroadcastKey) else key)


def unpicklable(entries: Sequence[Entry], error: Exception) -> SnapshotError:
    """The error that names the entry which cannot be pickled."""
    for key, value in entries:
        try:
            dump((key, value))
        except Exception as e:
            return SnapshotError(
                f"the state of key {reprlib.repr(key)} cannot be pickled: it is "
                f"{reprlib.repr(value)}: {type(e).__name__}: {e}"
            )
    # Each alone can: then it is something like memory.
    return SnapshotError(f"the state cannot be pickled: {type(error).__name__}: {error}")
