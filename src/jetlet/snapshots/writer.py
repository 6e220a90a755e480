"""SnapshotWriter: brings the state of a member to a file, on a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from jetlet.snapshots.directory import SnapshotDirectory
from jetlet.snapshots.format import CHANGES, Chunk, StateFile, StateFileWriter

logger = logging.getLogger("jetlet.snapshots")

MAX_BACKLOG = 64 * 1024 * 1024
"""Bytes that may wait to be written; beyond that processors wait with what they have."""
CLOSE_LIMIT = 10.0
"""Seconds to wait for a storage that does not answer."""


@dataclass(frozen=True, slots=True)
class Written:
    """What has come of the state of a member."""

    file: StateFile | None = None
    """The file with the state that was written; ``None`` if there was none."""
    changes: StateFile | None = None
    """The same with what has changed of other state."""
    vertices: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By vertex, the number of entries of state, and of bytes, changes included."""
    error: str | None = None


OnWritten = Callable[[Written], None]


class SnapshotWriter:
    """Takes chunks without blocking and writes them one after the other.

    ``begin``, then ``put`` from any thread, then ``end``, which answers from the writer's thread.
    An error is kept for the answer: what follows it is dropped. The thread is started when it is
    needed first; :meth:`close` ends it.
    """

    def __init__(self, member: int, epoch: int, vertices: Sequence[str]) -> None:
        self._member = member
        self._epoch = epoch
        self._vertices = list(vertices)
        self._tasks: queue.SimpleQueue[Callable[[], None] | Chunk | None] = queue.SimpleQueue()
        self._backlog = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        # Of the thread:
        self._open: _OpenFile | None = None
        self._changes: _OpenFile | None = None

    def is_full(self) -> bool:
        """True if more waits than should; from any thread."""
        return self._backlog > MAX_BACKLOG

    def begin(self, snapshot_id: int, directory: SnapshotDirectory) -> None:
        """The chunks that follow belong to this snapshot; from any thread, also after the end."""
        with self._lock:
            if self._is_closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"jetlet-snapshots-{self._member}", daemon=True
                )
                self._thread.start()
        name = f"{snapshot_id:08d}-{self._epoch:04d}-member-{self._member}"
        header = {
            "snapshot": snapshot_id,
            "epoch": self._epoch,
            "member": self._member,
            "vertices": self._vertices,
        }
        self._tasks.put(
            lambda: self._begin(
                _OpenFile(directory, f"{name}.state", header),
                _OpenFile(directory.chain, f"{name}.changes", header),
            )
        )

    def put(self, chunk: Chunk) -> None:
        """Write a chunk soon; from any thread."""
        with self._lock:
            self._backlog += len(chunk.payload)
        self._tasks.put(chunk)

    def end(self, on_written: OnWritten) -> None:
        """All chunks have come; ``on_written`` is called when they are safe, or cannot be."""
        self._tasks.put(lambda: self._end(on_written))

    def close(self) -> None:
        """Drop what is not written yet and end the thread."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is None:
            return
        self._tasks.put(None)
        thread.join(CLOSE_LIMIT)
        if thread.is_alive():
            logger.warning("a file of a snapshot cannot be closed: its storage does not answer")

    # --- The thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if isinstance(task, Chunk):
                file = self._changes if task.kind == CHANGES else self._open
                if file is not None:
                    file.write(task)
                with self._lock:
                    self._backlog -= len(task.payload)
            else:
                task()
        for file in (self._open, self._changes):
            if file is not None:
                file.discard()

    def _begin(self, file: _OpenFile, changes: _OpenFile) -> None:
        self._open, self._changes = file, changes

    def _end(self, on_written: OnWritten) -> None:
        files = (self._open, self._changes)
        self._open = self._changes = None
        on_written(_written(*files))


def _written(file: _OpenFile | None, changes: _OpenFile | None) -> Written:
    """What has come of both files."""
    if file is None or changes is None:
        return Written()
    whole, changed = file.end(), changes.end()
    error = file.error or changes.error
    if error is not None:
        file.discard()
        changes.discard()
        return Written(error=error)
    sizes = dict(file.sizes)
    for vertex, (_, size) in changes.sizes.items():
        # How many entries there are now says the processor.
        entries, before = sizes.get(vertex, (0, 0))
        sizes[vertex] = (entries, before + size)
    return Written(whole, changed, sizes)


def member_of(name: str) -> int:
    """The member that has written a file of this name."""
    return int(name.rpartition("-")[2].partition(".")[0])


class _OpenFile:
    """The file of one snapshot; it is created with the first chunk."""

    def __init__(self, directory: SnapshotDirectory, name: str, header: dict[str, Any]) -> None:
        self._directory = directory
        self._name = name
        self._header = header
        self._file: BinaryIO | None = None
        self._writer: StateFileWriter | None = None
        self.sizes: dict[str, tuple[int, int]] = {}
        self.error: str | None = None

    def write(self, chunk: Chunk) -> None:
        if self.error is not None:
            return
        try:
            if self._writer is None:
                self._file = self._directory.create(self._name)
                self._writer = StateFileWriter(
                    self._file, self._name, self._header, self._directory.signer
                )
            self._writer.write(chunk)
        except Exception as error:
            self._fail(error)
            return
        entries, size = self.sizes.get(chunk.vertex, (0, 0))
        self.sizes[chunk.vertex] = (entries + chunk.entries, size + len(chunk.payload))

    def end(self) -> StateFile | None:
        """The file, whole; ``None`` if nothing was written, or it has failed."""
        if self._writer is None or self._file is None or self.error is not None:
            return None
        try:
            file = self._writer.end()
            self._directory.close_durably(self._file)
        except Exception as error:
            self._fail(error)
            return None
        return file

    def _fail(self, error: Exception) -> None:
        self.error = f"{self._directory.path}: {type(error).__name__}: {error}"
        self.discard()

    def discard(self) -> None:
        if self._file is not None:
            with suppress(Exception):
                self._file.close()
            self._file = None
            self._directory.discard(self._name)
