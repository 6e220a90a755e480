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
from jetlet.snapshots.format import Chunk, StateFile, StateFileWriter

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
    vertices: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Number of entries and of bytes that were saved, by vertex."""
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
        name = f"{snapshot_id:08d}-{self._epoch:04d}-member-{self._member}.state"
        header = {
            "snapshot": snapshot_id,
            "epoch": self._epoch,
            "member": self._member,
            "vertices": self._vertices,
        }
        self._tasks.put(lambda: self._begin(_OpenFile(directory, name, header)))

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
                if self._open is not None:
                    self._open.write(task)
                with self._lock:
                    self._backlog -= len(task.payload)
            else:
                task()
        if self._open is not None:
            self._open.discard()

    def _begin(self, file: _OpenFile) -> None:
        self._open = file

    def _end(self, on_written: OnWritten) -> None:
        file, self._open = self._open, None
        on_written(file.end() if file is not None else Written())


class _OpenFile:
    """The file of one snapshot; it is created with the first chunk."""

    def __init__(self, directory: SnapshotDirectory, name: str, header: dict[str, Any]) -> None:
        self._directory = directory
        self._name = name
        self._header = header
        self._file: BinaryIO | None = None
        self._writer: StateFileWriter | None = None
        self._sizes: dict[str, tuple[int, int]] = {}
        self._error: str | None = None

    def write(self, chunk: Chunk) -> None:
        if self._error is not None:
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
        entries, size = self._sizes.get(chunk.vertex, (0, 0))
        self._sizes[chunk.vertex] = (entries + chunk.entries, size + len(chunk.payload))

    def end(self) -> Written:
        if self._writer is None or self._file is None or self._error is not None:
            return Written(error=self._error)
        try:
            file = self._writer.end()
            self._directory.close_durably(self._file)
        except Exception as error:
            self._fail(error)
            return Written(error=self._error)
        return Written(file, self._sizes)

    def _fail(self, error: Exception) -> None:
        self._error = f"{self._directory.path}: {type(error).__name__}: {error}"
        self.discard()

    def discard(self) -> None:
        if self._file is not None:
            with suppress(Exception):
                self._file.close()
            self._file = None
            self._directory.discard(self._name)
