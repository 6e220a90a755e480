"""StateSink: turns the state of one processor into chunks, at the moment it is offered."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any

from jetlet.core.items import BroadcastKey
from jetlet.core.partitioning import stable_hash
from jetlet.core.pickling import dump
from jetlet.errors import SnapshotError
from jetlet.snapshots.format import STATE, Chunk

CHUNK_SIZE = 256 * 1024
"""Bytes after which a chunk is handed over."""

Entry = tuple[Any, Any]
"""A key and a value of a processor's state."""


class StateSink:
    """Serialises at once, since processors go on to change their state in place.

    Used by the thread that calls the processor. ``put`` takes finished chunks and never blocks.
    """

    __slots__ = (
        "_dumps",
        "_entries",
        "_pickles",
        "_processor",
        "_size",
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
        self._pickles: list[bytes] = []
        self._entries = self._size = 0

    def add(self, entries: Sequence[Entry]) -> int:
        """Take entries; returns how many bytes they have become."""
        if not entries:
            return 0
        # Who restores it goes by the hash of the key: going by the first of them, it has one.
        key = entries[0][0]
        stable_hash(key.key if isinstance(key, BroadcastKey) else key)
        try:
            data = self._dumps(list(entries))
        except Exception as error:
            raise unpicklable(entries, error) from error
        self._pickles.append(data)
        self._entries += len(entries)
        self._size += len(data)
        if self._size >= CHUNK_SIZE:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Hand over what there is."""
        if not self._pickles:
            return
        payload = b"".join(self._pickles)
        self.put(Chunk(STATE, self._vertex, self._processor, self._entries, payload))
        self._pickles = []
        self._entries = self._size = 0


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
