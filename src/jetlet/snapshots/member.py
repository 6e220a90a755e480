"""MemberSnapshots: takes part in the snapshots of a job on behalf of all tasklets of a member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jetlet.core.processor import Processor
from jetlet.snapshots.chain.part import ChainPart
from jetlet.snapshots.context import ActiveSnapshot, SnapshotContext
from jetlet.snapshots.directory import SnapshotDirectory
from jetlet.snapshots.incremental import Incremental
from jetlet.snapshots.member_report import EndedProcessor, MemberReport
from jetlet.snapshots.state_sink import StateSink
from jetlet.snapshots.writer import SnapshotWriter, Written


class MemberSnapshots:
    """Joins the tasklets, which save their state, with the writer, which brings it to a file.

    Who drives it says ``begin`` and ``finish``, each after the answer to the one before. With
    ``since`` the chains of the snapshot that is restored go on: they have everything from there on.
    """

    def __init__(
        self, context: SnapshotContext, writer: SnapshotWriter, since: int | None = None
    ) -> None:
        self.context = context
        self._since = since
        self.schema_versions: dict[str, int] = {}
        """Schema versions of the vertices whose state has another one than 1."""
        self.definitions: dict[str, Mapping[str, Any]] = {}
        """What states are made by, by vertex, where that makes a difference."""
        self._writer = writer
        self._told = 0
        self._parts: dict[tuple[str, int], tuple[int, int, int]] = {}
        """By vertex and processor, of the last snapshot with changes: its id, the one since which
        the chain has everything, and how many entries that is."""

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

    def chain_part(
        self, vertex: str, index: int, processor: Processor, sink: StateSink
    ) -> ChainPart | None:
        """What hands over the changes of a processor's state; ``None`` if it saves all of it."""
        if isinstance(processor, Incremental) and processor.saves_changes:
            return ChainPart(vertex, index, processor, sink, self, self._since)
        return None

    def note_part(
        self, vertex: str, processor: int, since: int, entries: int, snapshot_id: int
    ) -> None:
        """A processor takes part in a snapshot with what has changed; from its thread."""
        self._parts[vertex, processor] = (snapshot_id, since, entries)

    def begin(
        self,
        snapshot: ActiveSnapshot,
        directory: SnapshotDirectory,
        on_saved: Callable[[MemberReport], None],
    ) -> None:
        """Let all save; ``on_saved`` is called, from any thread, when it is on disk or failed."""
        self._writer.begin(snapshot.snapshot_id, directory)
        self.context.begin(snapshot, lambda: self._all_saved(snapshot.snapshot_id, on_saved))

    def _all_saved(self, snapshot_id: int, on_saved: Callable[[MemberReport], None]) -> None:
        # Those that completed by now belong to this snapshot; those that complete from now on
        # have saved for it, and are waiting for its outcome.
        ended = self._newly_ended()
        slowest = self.context.slowest
        parts = {name: part[1:] for name, part in self._parts.items() if part[0] == snapshot_id}

        def on_written(written: Written) -> None:
            on_saved(
                MemberReport(
                    written.error,
                    written.file,
                    _with_entries(written.vertices, parts),
                    self.schema_versions,
                    self.definitions,
                    slowest,
                    ended,
                    written.changes,
                    min((since for since, _ in parts.values()), default=None),
                    tuple({vertex for vertex, _ in parts}),
                )
            )

        self._writer.end(on_written)

    def finish(self, snapshot_id: int, *, success: bool, on_done: Callable[[], None]) -> None:
        """Let all commit or roll back; ``on_done`` is called, from any thread, when they have."""
        self.context.finish(snapshot_id, success=success, on_done=on_done)

    def close(self) -> None:
        """Nothing more will be saved; may block."""
        self._writer.close()


def _with_entries(
    vertices: Mapping[str, tuple[int, int]], parts: Mapping[tuple[str, int], tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """What was saved, with the entries of processors that have saved what has changed of them."""
    sizes = dict(vertices)
    for (vertex, _), (_, entries) in parts.items():
        saved, size = sizes.get(vertex, (0, 0))
        sizes[vertex] = (saved + entries, size)
    return sizes
