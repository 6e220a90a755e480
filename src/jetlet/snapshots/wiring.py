"""SnapshotWiring: joins the tasklets of a member with what takes and restores snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.vertex import Vertex
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.queue import BoundedQueue
from jetlet.execution.tasklet import Tasklet
from jetlet.snapshots.chain.part import ChainPart
from jetlet.snapshots.context import SnapshotContext
from jetlet.snapshots.restore import QUEUE_CAPACITY, RESTORE_ORDINAL, RestoreTasklet, Route
from jetlet.snapshots.state_sink import StateSink
from jetlet.snapshots.tasklet import TaskletSnapshots

Assignment = Sequence[tuple[int, int]]
"""By partition, the member and the local processor that own it."""


class Saving(Protocol):
    """Takes the state of the processors of a member, or of a task of Spark's."""

    context: SnapshotContext
    schema_versions: dict[str, int]
    """Of the vertices whose state has another version than 1."""
    definitions: dict[str, Mapping[str, Any]]
    """What states are made by, by vertex, where that makes a difference."""

    def sink(self, vertex: str, processor: int) -> StateSink | None:
        """Where a processor saves its state; ``None`` if it has none to save."""

    def chain_part(
        self, vertex: str, index: int, processor: Processor, sink: StateSink
    ) -> ChainPart | None:
        """What hands over the changes of a processor's state; ``None`` if it saves all of it."""


class Recovery(Protocol):
    """What the processors of a member, or of a task of Spark's, begin with."""

    def has_ended(self, vertex: str, processor: int, total: int) -> bool:
        """True if this processor, of ``total`` in the job, had completed."""

    def is_alike(self, vertex: str, total: int) -> bool:
        """True if the vertex has as many processors as it had, in the same places."""

    def saved_schema(self, vertex: str, processor: Processor) -> int | None:
        """The version of the vertex's state, if it is not that of the processor."""

    def make_fit(self, vertex: str, processor: Processor) -> None:
        """Let a processor get ready for state of another definition than its own."""

    def tasklet(self, routes: Mapping[str, Route]) -> RestoreTasklet:
        """What feeds the restore edges."""


class SnapshotWiring:
    """Used once, while the tasklets of a run are made."""

    def __init__(
        self,
        member_index: int,
        guarantee: str,
        snapshots: Saving | None,
        restore: Recovery | None,
    ) -> None:
        self._member_index = member_index
        self._snapshots = snapshots
        self._context = SnapshotContext(guarantee) if snapshots is None else snapshots.context
        self._restore = restore
        self._queues: dict[str, dict[int, BoundedQueue]] = {}
        self._contexts: dict[str, ProcessorContext] = {}

    def has_ended(self, vertex: Vertex, processor: int, total: int) -> bool:
        """True if the processor had completed when the snapshot was taken."""
        return self._restore is not None and self._restore.has_ended(vertex.name, processor, total)

    def restore_edges(self, context: ProcessorContext) -> list[InboundEdge]:
        """Over what a processor gets its state back."""
        if self._restore is None:
            return []
        queue = BoundedQueue(QUEUE_CAPACITY)
        self._contexts[context.vertex_name] = context
        self._queues.setdefault(context.vertex_name, {})[context.local_index] = queue
        return [InboundEdge(RESTORE_ORDINAL, [queue], is_restore=True)]

    def part(self, processor: Processor, context: ProcessorContext) -> TaskletSnapshots:
        """The part that a processor's tasklet has in snapshots."""
        vertex = context.vertex_name
        snapshots = self._snapshots
        if snapshots is None:
            return TaskletSnapshots(self._context)
        if processor.schema_version != 1:
            snapshots.schema_versions[vertex] = processor.schema_version
        definition = processor.state_definition()
        if definition is not None:
            snapshots.definitions[vertex] = definition
        if self._restore is not None:
            self._restore.make_fit(vertex, processor)
        index = context.global_index
        sink = snapshots.sink(vertex, index)
        return TaskletSnapshots(
            self._context,
            sink,
            changes=(
                None if sink is None else snapshots.chain_part(vertex, index, processor, sink)
            ),
            saved_schema=(
                None if self._restore is None else self._restore.saved_schema(vertex, processor)
            ),
        )

    def restore_tasklets(
        self,
        by_vertex: Mapping[str, Sequence[Tasklet]],
        assignment: Callable[[str], Assignment],
        join: Callable[[BoundedQueue, Tasklet, Tasklet], None],
    ) -> list[Tasklet]:
        """What feeds the restore edges."""
        if self._restore is None:
            return []
        routes = {}
        for vertex, queues in self._queues.items():
            context = self._contexts[vertex]
            routes[vertex] = Route(
                [queues.get(index) for index in range(len(by_vertex[vertex]))],
                [
                    place if member == self._member_index else None
                    for member, place in assignment(vertex)
                ],
                context.global_index - context.local_index
                if self._restore.is_alike(vertex, context.total_parallelism)
                else None,
            )
        tasklet = self._restore.tasklet(routes)
        for vertex, queues in self._queues.items():
            for index, queue in queues.items():
                join(queue, tasklet, by_vertex[vertex][index])
        return [tasklet]
