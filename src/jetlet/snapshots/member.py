"""MemberSnapshots: takes part in the snapshots of a job on behalf of all tasklets of a member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jetlet.snapshots.context import ActiveSnapshot, SnapshotContext
from jetlet.snapshots.directory import SnapshotDirectory
from jetlet.snapshots.member_report import EndedProcessor, MemberReport
from jetlet.snapshots.state_sink import StateSink
from jetlet.snapshots.writer import SnapshotWriter, Written


class MemberSnapshots:
    """Joins the tasklets, which save their state, with the writer, which brings it to a file.

    Who drives it says ``begin`` and ``finish``, each after the answer to the one before.
    """

    def __init__(self, context: SnapshotContext, writer: SnapshotWriter) -> None:
        self.context = context
        self.schema_versions: dict[str, int] = {}
        """Schema versions of the vertices whose state has another one than 1."""
        self.definitions: dict[str, Mapping[str, Any]] = {}
        """What states are made by, by vertex, where that makes a difference."""
        self._writer = writer
        self._told = 0

    def all_ended(self) -> tuple[EndedProcessor, ...]:
        """All processors that have completed so far.

        Also those of which reports on snapshots tell: the last one may be late, or never come.
        """
        return tuple(self.context.ended)

    def _newly_ended(self) -> tuple[EndedProcessor, ...]:
        """Processors that have completed, each of them once."""
        ended = tuple(self.context.ended[self._told :])
        self._told += len(ended)
        return ended

    def sink(self, vertex: str, processor: int) -> StateSink:
        """Where a processor saves its state."""
        return StateSink(vertex, processor, self._writer.put, self._writer.is_full)

    def begin(
        self,
        snapshot: ActiveSnapshot,
        directory: SnapshotDirectory,
        on_saved: Callable[[MemberReport], None],
    ) -> None:
        """Let all save; ``on_saved`` is called, from any thread, when it is on disk or failed."""
        self._writer.begin(snapshot.snapshot_id, directory)
        self.context.begin(snapshot, lambda: self._all_saved(on_saved))

    def _all_saved(self, on_saved: Callable[[MemberReport], None]) -> None:
        # Those that completed by now belong to this snapshot; those that complete from now on
        # have saved for it, and are waiting for its outcome.
        ended = self._newly_ended()
        slowest = self.context.slowest

        def on_written(written: Written) -> None:
            on_saved(
                MemberReport(
                    written.error,
                    written.file,
                    written.vertices,
                    self.schema_versions,
                    self.definitions,
                    slowest,
                    ended,
                )
            )

        self._writer.end(on_written)

    def finish(self, snapshot_id: int, *, success: bool, on_done: Callable[[], None]) -> None:
        """Let all commit or roll back; ``on_done`` is called, from any thread, when they have."""
        self.context.finish(snapshot_id, success=success, on_done=on_done)

    def close(self) -> None:
        """Nothing more will be saved; may block."""
        self._writer.close()
