"""ExecutionPlan: a DAG laid out on one member as processors with queues between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from jetlet.core.arguments import error_line
from jetlet.core.clock import SYSTEM_CLOCK, Clock
from jetlet.core.dag import DAG, key_name
from jetlet.core.edge import Edge, Routing
from jetlet.core.partitioning import DEFAULT_PARTITION_COUNT, Partitioner, assign
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.vertex import Vertex
from jetlet.errors import (
    InvalidDagError,
    JobFailedError,
    ProcessorContractError,
    UnsupportedFeatureError,
    kind_of_failure,
)
from jetlet.execution.inbound_edge import InboundEdge, OrderedInboundEdge
from jetlet.execution.outbound_edge import (
    BroadcastEdge,
    FanoutEdge,
    NearEdge,
    OutboundEdge,
    PartitionedEdge,
    SingleTargetEdge,
    UnicastEdge,
)
from jetlet.execution.processor_tasklet import ProcessorTasklet, run_at_once
from jetlet.execution.queue import BoundedQueue
from jetlet.execution.tasklet import Tasklet
from jetlet.execution.tasklet_supplier import TaskletSupplier
from jetlet.execution.tuning import CALL_TARGET_NS
from jetlet.execution.watermark_origins import WatermarkOrigins
from jetlet.snapshots.context import EXACTLY_ONCE, NONE
from jetlet.snapshots.incremental import Incremental
from jetlet.snapshots.restore import EndedTasklet
from jetlet.snapshots.wiring import Recovery, Saving, SnapshotWiring
from jetlet.storage.disk_store import DiskStore

logger = logging.getLogger("jetlet.execution")


class NetworkEdges(Protocol):
    """Makes the tasklets of distributed edges; edges are known by their number in the DAG."""

    def sender(self, edge: int, member: int, name: str, inbound: InboundEdge) -> Tasklet:
        """What sends the items of all local producers to a remote member."""

    def receiver(self, edge: int, name: str, outbound: Mapping[int, OutboundEdge]) -> Tasklet:
        """What takes items from remote members; ``outbound`` has a way in for each of them."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The queues of one edge on this member."""

    local: list[dict[int, BoundedQueue]]
    """Queues between processors of this member, by producer, then by consumer."""
    outgoing: dict[int, list[BoundedQueue]]
    """Queues to the senders, by remote member, then by producer."""
    incoming: dict[int, list[BoundedQueue]]
    """Queues from the receiver, by remote member, then by consumer."""
    near_edges: list[NearEdge] = field(default_factory=list)
    """The ends of the producers that have consumers of their own, who look at each other."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the processors of one run share; by default that of a run nobody listens to."""

    job_name: str = "job"
    run_id: str = "run"
    attempt: str = ""
    """Sets apart several attempts at the same part of a run, where an engine makes them."""
    processing_guarantee: str = NONE
    clock: Clock = SYSTEM_CLOCK
    report: Callable[[str, Any], None] = lambda vertex, message: None
    """Takes (vertex, message) for the vertex's hook in the submitting process."""
    send_to_client: Callable[[str, Sequence[Any]], bool] = lambda vertex, batch: True
    """Takes (vertex, batch) for the vertex's hook; ``False`` means "not now"."""
    closer: Callable[[Callable[[], None], Callable[[], None]], None] = run_at_once
    crosses_threads: bool = True
    """False if all tasklets run on one thread, which need not be woken by its own tasklets."""
    network: NetworkEdges | None = None
    """What joins distributed edges with other members; needed if there are any."""
    snapshots: Saving | None = None
    """What takes snapshots, if any are taken."""
    restore: Recovery | None = None
    """What the run begins with, if not anew."""
    call_target_ns: int = CALL_TARGET_NS
    """How long a call of a processor should take: more where nobody waits for single items."""
    marker_period_ns: int = 0
    """Time between two latency markers of a source; 0 if there are none."""


class ExecutionPlan:
    """How many processors and queues a DAG becomes on each member. Print it to see them.

    The DAG has been validated, where it was submitted.
    """

    def __init__(
        self,
        dag: DAG,
        *,
        default_parallelism: int = 1,
        member_index: int = 0,
        member_count: int = 1,
        partition_count: int = DEFAULT_PARTITION_COUNT,
    ) -> None:
        if member_count > 1:
            _check_members(dag)
        self.dag = dag
        self.member_index = member_index
        self.member_count = member_count
        self.partition_count = partition_count
        self.parallelism = {v.name: v.parallelism(default_parallelism) for v in dag}
        if member_index > 0:
            # A vertex with a single processor in the whole job lives on the first member.
            self.parallelism |= {v.name: 0 for v in dag if v.is_single}
        self._default_parallelism = default_parallelism
        self._initialised: list[Vertex] = []

    def connections(self, edge: Edge) -> list[list[int]]:
        """For each upstream processor the downstream ones on this member that it has a queue to."""
        if edge.routing is Routing.ISOLATED:
            return self._partners(edge)
        everybody = list(range(self.parallelism[edge.dest.name]))
        return [everybody for _ in range(self.parallelism[edge.source.name])]

    def _partners(self, edge: Edge) -> list[list[int]]:
        """Covers every pair of sizes: each processor on either side has at least one partner."""
        up, down = self.parallelism[edge.source.name], self.parallelism[edge.dest.name]
        return [[i for i in range(down) if i % up == p % down] for p in range(up)]

    def __str__(self) -> str:
        lines = [f"execution plan of {self.dag.name!r} on each of {self.member_count} member(s)"]
        lines += [f"  vertex {v.name!r}: {self.parallelism[v.name]} processor(s)" for v in self.dag]
        for vertex in self.dag:
            for edge in self.dag.outbound(vertex):
                queues = sum(map(len, self.connections(edge)))
                priority = f", priority {edge.priority_value}" if edge.priority_value else ""
                lines.append(
                    f"  edge {edge.source.name!r} -> {edge.dest.name!r}: "
                    f"{edge.label or Routing.UNICAST.value}{priority}, "
                    f"{queues} queue(s) of {edge.queue_capacity}"
                )
        return "\n".join(lines)

    def prepare(self) -> None:
        """Let the suppliers plan their work; once, where the job is submitted."""
        for vertex in self.dag:
            members = 1 if vertex.is_single else self.member_count
            vertex.supplier.prepare(self.parallelism[vertex.name] * members)

    def build(self, run: RunContext) -> list[Tasklet]:
        """Make the processors, queues and tasklets. Runs the suppliers' ``init``."""
        if all(isinstance(vertex.supplier, TaskletSupplier) for vertex in self.dag):
            return self._own_tasklets(run)
        wirings = {edge: self._wire(edge) for edge in self.dag.edges}
        by_vertex: dict[str, list[Tasklet]] = {}
        snapshots = SnapshotWiring(
            self.member_index, run.processing_guarantee, run.snapshots, run.restore
        )
        processors = {
            vertex.name: self._make_processors(vertex, run, snapshots) for vertex in self.dag
        }
        makers = [
            name
            for name, made in processors.items()
            if any(p is not None and p.makes_watermarks for p in made)
        ]
        origins = WatermarkOrigins(self.dag, self.member_count, self._default_parallelism, makers)
        for vertex in self.dag:
            mine = by_vertex[vertex.name] = []
            for index, processor in enumerate(processors[vertex.name]):
                outbound = [
                    self._outbound(edge, wirings[edge], index) for edge in self.dag.outbound(vertex)
                ]
                if processor is None:
                    mine.append(EndedTasklet(vertex.name, index, outbound))
                    continue
                context = self._context(vertex, index, run)
                inbound = [
                    self._inbound(edge, wirings[edge], index, run, origins)
                    for edge in self.dag.inbound(vertex)
                ]
                mine.append(
                    ProcessorTasklet(
                        processor,
                        context,
                        inbound + snapshots.restore_edges(context),
                        outbound,
                        snapshots=snapshots.part(processor, context),
                        closer=run.closer,
                        call_target_ns=run.call_target_ns,
                        marker_period_ns=run.marker_period_ns,
                    )
                )
        tasklets: list[Tasklet] = [t for mine in by_vertex.values() for t in mine]
        for number, edge in enumerate(self.dag.edges):
            wiring = wirings[edge]
            producers, consumers = by_vertex[edge.source.name], by_vertex[edge.dest.name]
            for producer, row in zip(producers, wiring.local, strict=True):
                for index, queue in row.items():
                    _join(queue, producer, consumers[index], run)
                    consumer = consumers[index]
                    if isinstance(consumer, ProcessorTasklet):
                        consumer.feeders.append(producer)
            tasklets += self._network_tasklets(
                number, edge, wiring, producers, consumers, run, origins
            )
        return tasklets + snapshots.restore_tasklets(
            by_vertex,
            lambda name: self._assignment(self.dag[name]),
            lambda queue, producer, consumer: _join(queue, producer, consumer, run),
        )

    def _own_tasklets(self, run: RunContext) -> list[Tasklet]:
        """The tasklets of a DAG whose vertices bring them."""
        if run.processing_guarantee != NONE:
            raise UnsupportedFeatureError(
                f"{self.dag.name!r} has tasks, which are committed to checkpoints of their own: "
                f"leave out processing_guarantee={run.processing_guarantee!r}"
            )
        tasklets: list[Tasklet] = []
        for vertex in self.dag:
            assert isinstance(vertex.supplier, TaskletSupplier)
            tasklets += vertex.supplier.tasklets(self._context(vertex, 0, run))
        return tasklets

    def _network_tasklets(
        self,
        number: int,
        edge: Edge,
        wiring: Wiring,
        producers: Sequence[Tasklet],
        consumers: Sequence[Tasklet],
        run: RunContext,
        origins: WatermarkOrigins,
    ) -> list[Tasklet]:
        """The sender for each remote member, and the receiver, of a distributed edge."""
        if not wiring.outgoing and not wiring.incoming:
            return []
        assert run.network is not None
        name = f"{edge.source.name} -> {edge.dest.name}"
        tasklets: list[Tasklet] = []
        for member, queues in wiring.outgoing.items():
            inbound = _merging(
                edge,
                0,
                queues,
                [origins.of(edge.source, self.member_index, p) for p in range(len(queues))],
                run,
            )
            sender = run.network.sender(number, member, name, inbound)
            sender.vertex_name = edge.source.name
            for producer, queue in zip(producers, queues, strict=True):
                _join(queue, producer, sender, run)
            tasklets.append(sender)
        if wiring.incoming:
            outbound = {
                member: self._arrival_routing(edge, queues)
                for member, queues in wiring.incoming.items()
            }
            receiver = run.network.receiver(number, name, outbound)
            receiver.vertex_name = edge.dest.name
            for queues in wiring.incoming.values():
                for consumer, queue in zip(consumers, queues, strict=True):
                    _join(queue, receiver, consumer, run)
            tasklets.append(receiver)
        return tasklets

    def _make_processors(
        self, vertex: Vertex, run: RunContext, snapshots: SnapshotWiring
    ) -> list[Processor | None]:
        """The processors; ``None`` in the place of each that had completed before."""
        contexts = [
            self._context(vertex, index, run) for index in range(self.parallelism[vertex.name])
        ]
        has_ended = [
            snapshots.has_ended(vertex, c.global_index, c.total_parallelism) for c in contexts
        ]
        if has_ended and all(has_ended):
            return [None] * len(has_ended)
        try:
            self._initialised.append(vertex)
            vertex.supplier.init(self._context(vertex, 0, run))
            processors = [vertex.supplier.get() for ended in has_ended if not ended]
            _check_processors(vertex, processors)
            self._keep_on_disk(vertex, processors)
            made = iter(processors)
            return [None if ended else next(made) for ended in has_ended]
        except Exception as error:
            raise JobFailedError(
                f"its supplier failed: {error_line(error)}", vertex=vertex.name
            ) from error

    def _keep_on_disk(self, vertex: Vertex, processors: Sequence[Processor]) -> None:
        """Give processors a store each, if they are to keep their state on disk."""
        if vertex.disk is None:
            return
        sharers = sum(self.parallelism[each.name] for each in self.dag if each.disk is not None)
        for processor in processors:
            assert isinstance(processor, Incremental)
            processor.keep_on_disk(DiskStore(vertex.disk, sharers))

    def close(self, error: BaseException | None) -> None:
        """Close the suppliers that were initialised, after all processors have been closed.

        All are closed, even if one fails; its failure is raised if there is no other ``error``.
        """
        failure: JobFailedError | None = None
        for vertex in self._initialised:
            try:
                vertex.supplier.close(error)
            except Exception as e:
                if error is None and failure is None:
                    failure = kind_of_failure(e)(
                        f"its supplier failed to close: {error_line(e)}", vertex=vertex.name
                    )
                    failure.__cause__ = e
                else:
                    logger.exception("the supplier of vertex %s failed to close", vertex.name)
        self._initialised.clear()
        if failure is not None:
            raise failure

    def _wire(self, edge: Edge) -> Wiring:
        def queues(count: int) -> list[BoundedQueue]:
            return [BoundedQueue(edge.queue_capacity, takes_whole=True) for _ in range(count)]

        local = [
            {index: BoundedQueue(edge.queue_capacity, takes_whole=True) for index in row}
            for row in self.connections(edge)
        ]
        if not edge.is_distributed or self.member_count == 1:
            return Wiring(local, {}, {})
        producers = self.parallelism[edge.source.name]
        consumers = self.parallelism[edge.dest.name]
        others = [m for m in range(self.member_count) if m != self.member_index]
        outgoing = {m: queues(producers) for m in others if _is_on(edge.dest, m)}
        incoming = {m: queues(consumers) for m in others if _is_on(edge.source, m)}
        return Wiring(local, outgoing if producers else {}, incoming if consumers else {})

    def _context(self, vertex: Vertex, index: int, run: RunContext) -> ProcessorContext:
        return ProcessorContext(
            vertex_name=vertex.name,
            job_name=run.job_name,
            run_id=run.run_id,
            attempt=run.attempt,
            local_index=index,
            local_parallelism=self.parallelism[vertex.name],
            member_index=self.member_index,
            # A vertex with a single processor has no share of anything: it has all of it.
            member_count=1 if vertex.is_single else self.member_count,
            processing_guarantee=run.processing_guarantee,
            takes_snapshots=run.snapshots is not None,
            partition_count=self.partition_count,
            clock=run.clock,
            report=partial(run.report, vertex.name),
            send_to_client=partial(run.send_to_client, vertex.name),
        )

    def _inbound(
        self, edge: Edge, wiring: Wiring, index: int, run: RunContext, origins: WatermarkOrigins
    ) -> InboundEdge:
        producers = [p for p, row in enumerate(wiring.local) if index in row]
        queues = [wiring.local[p][index] for p in producers]
        queues += [mine[index] for mine in wiring.incoming.values()]
        all_origins = [
            *(origins.of(edge.source, self.member_index, p) for p in producers),
            *(origins.of_all(edge.source, member) for member in wiring.incoming),
        ]
        return _merging(edge, edge.dest_ordinal, queues, all_origins, run)

    def _outbound(self, edge: Edge, wiring: Wiring, index: int) -> OutboundEdge:
        """The routing of one producer, to local consumers and to senders."""
        local = list(wiring.local[index].values())
        remote = [queues[index] for queues in wiring.outgoing.values()]
        if not remote:
            if len(local) > 1 and edge.takes_anybody:
                is_for_all = edge.routing is Routing.UNICAST and edge.is_distributed
                return NearEdge(
                    local,
                    range(len(local)) if is_for_all else self._partners(edge)[index],
                    wiring.near_edges,
                    self._partitioner(edge) if edge.routing is Routing.PARTITIONED else None,
                )
            return self._local_routing(edge, local)
        targets = [*local, *remote]
        if edge.routing is Routing.PARTITIONED:
            partitioner = self._partitioner(edge)
            if len(targets) == 1:
                return SingleTargetEdge(targets[0], partitioner)
            positions = {m: len(local) + i for i, m in enumerate(wiring.outgoing)}
            return PartitionedEdge(
                targets,
                partitioner,
                [
                    place if member == self.member_index else positions[member]
                    for member, place in self._assignment(edge.dest)
                ],
            )
        if edge.routing is Routing.BROADCAST:
            return BroadcastEdge(targets)
        if edge.routing is Routing.FANOUT:
            return FanoutEdge(local, remote)
        return UnicastEdge(targets) if len(targets) > 1 else SingleTargetEdge(targets[0])

    def _local_routing(self, edge: Edge, targets: Sequence[BoundedQueue]) -> OutboundEdge:
        """The routing among the consumers on this member."""
        partitioner = None
        if edge.routing is Routing.PARTITIONED:
            partitioner = self._partitioner(edge)
        if len(targets) == 1:
            return SingleTargetEdge(targets[0], partitioner)
        if partitioner is not None:
            return PartitionedEdge(
                targets, partitioner, [place for _, place in self._assignment(edge.dest)]
            )
        if edge.routing is Routing.BROADCAST:
            return BroadcastEdge(targets)
        return UnicastEdge(targets)

    def _arrival_routing(self, edge: Edge, targets: Sequence[BoundedQueue]) -> OutboundEdge:
        """The routing among them of what comes from another member, which has seen the keys."""
        if len(targets) == 1:
            return SingleTargetEdge(targets[0])
        return self._local_routing(edge, targets)

    def _partitioner(self, edge: Edge) -> Partitioner:
        return Partitioner(
            edge.key_fn,
            self.partition_count,
            name=key_name(edge),
            checks_all=edge.checks_every_key,
        )

    def _assignment(self, vertex: Vertex) -> list[tuple[int, int]]:
        """Member and processor that own each partition of the vertex."""
        if vertex.is_single:
            return [(0, 0)] * self.partition_count
        parallelism = vertex.parallelism(self._default_parallelism)
        return assign(self.partition_count, self.member_count, parallelism)


def _merging(
    edge: Edge,
    ordinal: int,
    queues: Sequence[BoundedQueue],
    origins: Sequence[frozenset[Any]],
    run: RunContext,
) -> InboundEdge:
    """The end of an edge that merges these queues."""
    priority = edge.priority_value
    if edge.sort_key is not None:
        return OrderedInboundEdge(
            ordinal, queues, edge.sort_key, priority=priority, origins=origins
        )
    exactly_once = run.processing_guarantee == EXACTLY_ONCE
    return InboundEdge(
        ordinal, queues, priority=priority, exactly_once=exactly_once, origins=origins
    )


def _check_members(dag: DAG) -> None:
    """Refuse edges that cannot work when the job has several members."""
    for edge in dag.edges:
        if edge.dest.is_single and not edge.source.is_single and not edge.is_distributed:
            raise InvalidDagError(
                f"{edge}: the only processor of {edge.dest.name!r} is on one member, and items of "
                f"the others could not reach it; write .all_to_one()"
            )


def _is_on(vertex: Vertex, member: int) -> bool:
    return member == 0 or not vertex.is_single


def _join(queue: BoundedQueue, producer: Tasklet, consumer: Tasklet, run: RunContext) -> None:
    """Let the two wake each other where they may be on different threads."""
    if run.crosses_threads or not (producer.is_cooperative and consumer.is_cooperative):
        queue.consumer = consumer.waker
        queue.producer = producer.waker


def _check_processors(vertex: Vertex, processors: Sequence[object]) -> None:
    for processor in processors:
        if not isinstance(processor, Processor):
            raise ProcessorContractError(
                f"it returned {processor!r}, which is not a Processor; write "
                f"Vertex({vertex.name!r}, lambda: MyProcessor(...))"
            )
    if len({id(processor) for processor in processors}) < len(processors):
        raise ProcessorContractError(
            "it returned one processor several times; return a new one from each call"
        )
