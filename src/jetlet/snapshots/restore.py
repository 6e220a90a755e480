"""Restore: brings what a snapshot has saved back to the processors of one member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jetlet.core.items import DONE as DONE_ITEM
from jetlet.core.items import BroadcastKey
from jetlet.core.partitioning import partition_ids
from jetlet.core.processor import Processor
from jetlet.errors import RestartableError, SnapshotError
from jetlet.execution import progress_state as progress
from jetlet.execution.outbound_edge import OutboundEdge
from jetlet.execution.progress_state import MADE_PROGRESS, NO_PROGRESS, ProgressState
from jetlet.execution.queue import BoundedQueue
from jetlet.execution.tasklet import Tasklet
from jetlet.metrics.tasklet_metrics import TaskletMetrics
from jetlet.snapshots.chain.contents import Portion, latest, whole
from jetlet.snapshots.directory import SnapshotDirectory, UnreadableError
from jetlet.snapshots.format import SnapshotRecord, VertexState
from jetlet.snapshots.state_sink import Entry

RESTORE_ORDINAL = -1
"""Of the edge over which a processor gets its state back."""
QUEUE_CAPACITY = 8192


@dataclass(frozen=True, slots=True)
class Route:
    """The way of a vertex's entries to its processors on this member."""

    queues: Sequence[BoundedQueue | None]
    """A queue for each processor, by local index; ``None`` for one that had completed."""
    places: Sequence[int | None]
    """By partition, the local index of its owner; ``None`` if that is on another member."""
    first: int | None = None
    """If there are as many processors as there were, and each gets its own entries back: the number
    of the first of this member."""

    def local_index(self, processor: int) -> int | None:
        """Of the only processor here that gets the entries of one; ``None`` if it is elsewhere."""
        assert self.first is not None
        local = processor - self.first
        return local if 0 <= local < len(self.queues) else None

    def is_wanted(self, processor: int) -> bool:
        """False if no processor here gets any entry of this one, but for those that all get."""
        return self.first is None or self.local_index(processor) is not None

    def owns(self, keys: Sequence[Any]) -> Sequence[bool]:
        """Which of the keys belong to processors here."""
        if self.first is not None:
            return [True] * len(keys)
        places = self.places
        return [places[partition] is not None for partition in partition_ids(keys, len(places))]


class Restore:
    """The snapshot that a member of ``member_count`` begins with."""

    def __init__(
        self, record: SnapshotRecord, directory: SnapshotDirectory, member_count: int
    ) -> None:
        self._record = record
        self._directory = directory
        self._member_count = member_count

    @property
    def snapshot_id(self) -> int:
        """Of the snapshot."""
        return self._record.snapshot_id

    def has_ended(self, vertex: str, processor: int, total: int) -> bool:
        """True if this processor, of ``total`` in the job, had completed."""
        state = self._record.vertices.get(vertex)
        if state is None:
            return False
        if state.has_ended:
            return True
        # If there are more or fewer of them now, each goes on with a part of what is left.
        return self.is_alike(vertex, total) and processor in state.ended

    def is_alike(self, vertex: str, total: int) -> bool:
        """True if the vertex has as many processors as it had, in the same places."""
        state = self._record.vertices.get(vertex)
        return (
            state is not None
            and state.processors == total
            and self._record.members == self._member_count
        )

    def saved_schema(self, vertex: str, processor: Processor) -> int | None:
        """The version of the vertex's state, if it is not that of the processor."""
        state = self._record.vertices.get(vertex)
        if state is None or state.schema_version == processor.schema_version:
            return None
        return state.schema_version

    def make_fit(self, vertex: str, processor: Processor) -> None:
        """Let a processor get ready for state of another definition than its own."""
        state = self._record.vertices.get(vertex)
        if state is not None:
            make_fit(vertex, processor, state)

    def tasklet(self, routes: Mapping[str, Route]) -> RestoreTasklet:
        """What feeds the restore edges."""
        return RestoreTasklet(self._portions(routes), routes)

    def _portions(self, routes: Mapping[str, Route]) -> Iterator[Portion]:
        directory, record = self._directory, self._record

        def is_wanted(vertex: str, processor: int) -> bool:
            return vertex in routes and routes[vertex].is_wanted(processor)

        def owns(vertex: str, keys: Sequence[Any]) -> Sequence[bool]:
            return routes[vertex].owns(keys)

        try:
            yield from whole(chunk for file in record.files for chunk in directory.chunks(file))
            yield from latest(record, directory, is_wanted, owns)
        except UnreadableError as error:
            raise RestartableError(f"snapshot {self.snapshot_id}: {error}") from error


class RestoreTasklet(Tasklet):
    """Reads all state files and gives each processor its entries, then ends. Has its own thread."""

    is_cooperative = False
    name = "restore"

    def __init__(self, portions: Iterator[Portion], routes: Mapping[str, Route]) -> None:
        super().__init__()
        self._portions = portions
        self._routes = routes
        self._pending: list[tuple[BoundedQueue, Any, int]] = []
        """(queue, entries or the done item, position)."""
        self._has_ended = False

    def call(self) -> ProgressState:
        if self._pending:
            before = self._pending
            self._pending = []
            moved = False
            for blocked in before:
                moved |= self._send(*blocked)
            return MADE_PROGRESS if moved else NO_PROGRESS
        if self._has_ended:
            return progress.DONE
        portion = next(self._portions, None)
        if portion is None:
            self._has_ended = True
            for route in self._routes.values():
                for each in route.queues:
                    if each is not None:
                        self._send(each, DONE_ITEM, 0)
        else:
            self._restore(portion)
        return MADE_PROGRESS

    def _restore(self, portion: Portion) -> None:
        route = self._routes.get(portion.vertex)
        if route is None:
            return
        entries = portion.entries
        for_all = [entry for entry in entries if type(entry[0]) is BroadcastKey]
        if for_all:
            entries = [entry for entry in entries if type(entry[0]) is not BroadcastKey]
        shares: list[list[Any]] = [for_all] * len(route.queues)
        if route.first is not None:
            local = route.local_index(portion.processor)
            if local is not None:
                shares[local] = for_all + entries
        elif entries:
            for local, own in enumerate(_split(route, entries)):
                shares[local] = for_all + own
        for queue, share in zip(route.queues, shares, strict=True):
            if share and queue is not None:
                self._send(queue, share, 0)

    def _send(self, queue: BoundedQueue, load: Any, position: int) -> bool:
        """Send as much as there is room for; true if there was any."""
        if load is DONE_ITEM:
            moved = queue.offer_special(DONE_ITEM)
            if not moved:
                self._pending.append((queue, load, 0))
            return moved
        taken = queue.offer(load, position)
        if position + taken < len(load):
            self._pending.append((queue, load, position + taken))
        return taken > 0


def make_fit(vertex: str, processor: Processor, state: VertexState) -> None:
    """Let a processor get ready for state of another definition, or raise that it cannot be."""
    saved = state.definition
    if saved is None or not state.entries or saved == processor.state_definition():
        return
    try:
        processor.restored_from(saved)
    except SnapshotError as error:
        raise SnapshotError(
            f"the state of {vertex!r} cannot be restored: {error}. Let it be what it was; or give "
            f"it another name, with name=..., and write JobConfig(allow_changed_stages=True), and "
            f"it begins without any"
        ) from error


def _split(route: Route, entries: list[Entry]) -> list[list[Entry]]:
    """The entries of each processor of this member, by the partitions of their keys."""
    shares: list[list[Entry]] = [[] for _ in route.queues]
    places = route.places
    partitions = partition_ids([key for key, _ in entries], len(places))
    for partition, entry in zip(partitions, entries, strict=True):
        place = places[partition]
        if place is not None:
            shares[place].append(entry)
    return shares


class EndedTasklet(Tasklet):
    """Stands for a processor that had completed when the snapshot was taken."""

    def __init__(self, vertex: str, index: int, outbound: Sequence[OutboundEdge]) -> None:
        super().__init__()
        self.vertex_name = vertex
        self.name = f"{vertex}#{index} (completed)"
        self._metrics = TaskletMetrics(vertex, index, (), outbound)
        self._left = list(outbound)
        self._is_begun = False

    def metrics_rows(self) -> list[tuple[str, dict[str, Any]]]:
        return [(self.vertex_name, self._metrics.snapshot())]

    def call(self) -> ProgressState:
        if not self._is_begun:
            self._is_begun = True
            self._left = [edge for edge in self._left if not edge.put_special(DONE_ITEM)]
        else:
            self._left = [edge for edge in self._left if not edge.flush()]
        return NO_PROGRESS if self._left else progress.DONE
