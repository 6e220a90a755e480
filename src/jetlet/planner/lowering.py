"""Lowering: one function per transform that adds its vertices and edges to the DAG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, singledispatchmethod
from typing import Any

from jetlet.core.dag import DAG, PREPARE_SUFFIX
from jetlet.core.edge import Edge, Routing, from_
from jetlet.core.outbox import Ordinals
from jetlet.core.processor import Processor
from jetlet.core.vertex import USE_DEFAULT, ProcessorSupplier, RunHook, Vertex
from jetlet.errors import PlanningError
from jetlet.pipeline.functions import entry_key, whole_item
from jetlet.pipeline.sink import ClientSink, Sink
from jetlet.pipeline.transforms import (
    AggregateTransform,
    AsyncTransform,
    BatchedTransform,
    CustomTransform,
    DistinctTransform,
    FusedTransform,
    HashJoinTransform,
    MergeTransform,
    OnError,
    RebalanceTransform,
    RollingTransform,
    ServiceTransform,
    SinkTransform,
    SortTransform,
    SourceTransform,
    StatefulTransform,
    StatelessTransform,
    Transform,
)
from jetlet.planner.graph import Graph, Node
from jetlet.processors.aggregate import (
    AccumulateByKeyProcessor,
    AccumulateProcessor,
    CombineByKeyProcessor,
    CombineProcessor,
)
from jetlet.processors.async_map import AsyncMapSupplier
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.batched import BatchedProcessor
from jetlet.processors.distinct import DistinctProcessor
from jetlet.processors.fused import FusedFunction, FusedProcessor, IdentityProcessor, Step
from jetlet.processors.hash_join import HashJoinProcessor
from jetlet.processors.read import ReadSupplier
from jetlet.processors.rolling import RollingAggregateProcessor
from jetlet.processors.service import ServiceSupplier
from jetlet.processors.sort import SortProcessor
from jetlet.processors.stateful import StatefulProcessor
from jetlet.processors.write import ClientSinkHook, ClientSinkProcessor, SinkHook, WriteProcessor

KeyFn = Callable[[Any], Any]
Supplier = Callable[[], Processor] | ProcessorSupplier

BUILD_PRIORITY = -1
"""Build sides of a join are read to the end before its other input."""


@dataclass
class Output:
    """Where a node's items come out, and how many edges leave there so far."""

    vertex: Vertex
    parallelism: int | None
    edges: int = 0


@dataclass
class Lowering:
    """Adds the nodes of a graph to a DAG, one after the other."""

    graph: Graph
    dag: DAG
    outputs: dict[int, Output] = field(default_factory=dict)
    sinks: dict[int, tuple[Vertex, int]] = field(default_factory=dict)
    """Vertex and number of inbound edges of each sink: one sink is one vertex, however often it
    is written to."""
    letters: dict[int, list[tuple[int, OnError]]] = field(default_factory=dict)

    def run(self) -> None:
        """Add all nodes."""
        for node in self.graph.nodes:
            self.lower(node.transform, node)
        # Dead letters leave over the last ordinals, behind all ordinary edges.
        for node in self.graph.nodes:
            for ordinal, sink in self.letters.get(id(node), []):
                self._write(self.outputs[id(node)].vertex, ordinal, sink)

    # --- Tools ------------------------------------------------------------------------------

    def vertex(
        self, node: Node, supplier: Supplier, *, suffix: str = "", is_single: bool = False
    ) -> Vertex:
        """Add a vertex for the node; ``is_single`` if it has one processor in the whole job."""
        count = USE_DEFAULT if node.parallelism is None else node.parallelism
        return self.dag.vertex(Vertex(node.name + suffix, supplier, count, is_single=is_single))

    def connect(self, node: Node, ordinal: int, dest: Vertex, dest_ordinal: int = 0) -> Edge:
        """Add an edge from the node's input ``ordinal``; configure what is returned."""
        source = node.inputs[ordinal]
        rebalance = None
        while isinstance(source.transform, RebalanceTransform):
            rebalance = rebalance or source.transform
            source = source.inputs[0]
        output = self.outputs[id(source)]
        edge = from_(output.vertex, output.edges).to(dest, dest_ordinal)
        output.edges += 1
        if rebalance is not None:
            edge.distributed()
            if rebalance.is_keyed:
                edge.partitioned(_key(rebalance.key_fn))
        elif node.keeps_order:
            edge.isolated()
        self.dag.edge(edge)
        return edge

    def by_key(self, edge: Edge, key_fn: KeyFn, *, distributed: bool = True) -> None:
        """Equal keys to the same processor."""
        edge.partitioned(_key(key_fn))
        if distributed:
            edge.distributed()

    def emit(self, node: Node, vertex: Vertex) -> None:
        """The node's items come out of ``vertex``."""
        self.outputs[id(node)] = Output(vertex, node.parallelism)

    def chain(self, node: Node, supplier: Supplier) -> None:
        """The common case: one vertex that reads the only input."""
        vertex = self.vertex(node, supplier)
        self.connect(node, 0, vertex)
        self.emit(node, vertex)

    def policy(self, node: Node, transform: Transform) -> ErrorPolicy:
        """What the processor is to do about errors; reserves an edge for dead letters."""
        on_error = transform.on_error
        if isinstance(on_error, str):
            return ErrorPolicy(transform.name, on_error)
        letters = self.letters.setdefault(id(node), [])
        ordinal = self._fanout(node) + len(letters)
        letters.append((ordinal, on_error))
        return ErrorPolicy(transform.name, "dead-letter", ordinal)

    def data_ordinals(self, node: Node) -> Ordinals:
        """The edges of the ordinary output: all, unless some are for dead letters."""
        return tuple(range(self._fanout(node))) if id(node) in self.letters else None

    def _fanout(self, node: Node) -> int:
        """How many ordinary edges will leave the node."""
        return sum(
            self._fanout(n) if isinstance(n.transform, RebalanceTransform) else 1
            for n in self.graph.outputs(node)
        )

    def _write(self, vertex: Vertex, ordinal: int, sink: Any) -> None:
        dest, inbound = self._sink_vertex(sink, None, None)
        self.dag.edge(from_(vertex, ordinal).to(dest, inbound))

    def _sink_vertex(
        self, sink: Sink[Any] | ClientSink[Any], name: str | None, parallelism: int | None
    ) -> tuple[Vertex, int]:
        known = self.sinks.get(id(sink))
        if known is None:
            supplier: Supplier
            hook: RunHook
            if isinstance(sink, Sink):
                supplier, hook = partial(WriteProcessor, sink), SinkHook(sink)
                preferred = sink.preferred_local_parallelism
            else:
                supplier, hook = ClientSinkProcessor, ClientSinkHook(sink)
                parallelism = preferred = 1
            vertex = Vertex(
                name or self._free_name(sink.name),
                supplier,
                USE_DEFAULT if parallelism is None else parallelism,
                preferred_parallelism=preferred,
                hook=hook,
            )
            self.dag.vertex(vertex)
            known = (vertex, 0)
        vertex, inbound = known
        self.sinks[id(sink)] = (vertex, inbound + 1)
        return vertex, inbound

    def _free_name(self, name: str) -> str:
        taken = {node.name for node in self.graph.nodes}
        number, free = 1, name
        while free in taken or free in self.dag:
            number += 1
            free = f"{name}-{number}"
        return free

    # --- The transforms ---------------------------------------------------------------------

    @singledispatchmethod
    def lower(self, transform: Transform, node: Node) -> None:
        """Add the vertices and edges of one node."""
        raise PlanningError(f"stage {node.name!r}: no engine knows {type(transform).__name__}")

    @lower.register
    def _(self, transform: SourceTransform, node: Node) -> None:
        self.emit(node, self.vertex(node, ReadSupplier(transform.source)))

    @lower.register
    def _(self, transform: StatelessTransform, node: Node) -> None:
        step = Step(transform.kind, transform.fn, self.policy(node, transform))
        self._fused(node, [step])

    @lower.register
    def _(self, transform: FusedTransform, node: Node) -> None:
        self._fused(node, [Step(s.kind, s.fn, self.policy(node, s)) for s in transform.steps])

    def _fused(self, node: Node, steps: list[Step]) -> None:
        function = FusedFunction(steps)
        self.chain(node, partial(FusedProcessor, function, self.data_ordinals(node)))

    @lower.register
    def _(self, transform: ServiceTransform, node: Node) -> None:
        policy = self.policy(node, transform)
        self.chain(
            node,
            ServiceSupplier(
                transform.kind,
                transform.fn,
                transform.service,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )

    @lower.register
    def _(self, transform: AsyncTransform, node: Node) -> None:
        policy = self.policy(node, transform)
        self.chain(
            node,
            AsyncMapSupplier(
                transform.fn,
                max_concurrency=transform.max_concurrency,
                ordered=transform.is_ordered,
                timeout=transform.timeout,
                retries=transform.retries,
                backoff=transform.backoff,
                flat=transform.is_flat,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )

    @lower.register
    def _(self, transform: BatchedTransform, node: Node) -> None:
        policy = self.policy(node, transform)
        self.chain(
            node,
            partial(
                BatchedProcessor,
                transform.fn,
                transform.max_batch,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )

    @lower.register
    def _(self, transform: CustomTransform, node: Node) -> None:
        self.chain(node, transform.supplier)

    @lower.register
    def _(self, transform: StatefulTransform, node: Node) -> None:
        policy = self.policy(node, transform)
        self._keyed(
            node,
            partial(
                StatefulProcessor,
                transform.kind,
                transform.create,
                transform.fn,
                transform.key_fn,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
            transform.key_fn,
        )

    @lower.register
    def _(self, transform: RollingTransform, node: Node) -> None:
        policy = self.policy(node, transform)
        self._keyed(
            node,
            partial(
                RollingAggregateProcessor,
                transform.operation,
                transform.key_fn,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
            transform.key_fn,
        )

    @lower.register
    def _(self, transform: DistinctTransform, node: Node) -> None:
        self._keyed(node, partial(DistinctProcessor, transform.key_fn), transform.key_fn)

    @lower.register
    def _(self, transform: SortTransform, node: Node) -> None:
        policy = self.policy(node, transform)
        self._keyed(
            node,
            partial(
                SortProcessor,
                transform.key,
                reverse=transform.is_reverse,
                memory_limit=transform.memory_limit,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
            None,
        )

    def _keyed(self, node: Node, supplier: Supplier, key_fn: KeyFn | None) -> None:
        """A vertex fed by key, or without one by everybody into a single processor."""
        vertex = self.vertex(node, supplier, is_single=key_fn is None)
        edge = self.connect(node, 0, vertex)
        if key_fn is None:
            edge.all_to_one()
        else:
            self.by_key(edge, key_fn)
        self.emit(node, vertex)

    @lower.register
    def _(self, transform: MergeTransform, node: Node) -> None:
        vertex = self.vertex(node, IdentityProcessor)
        for ordinal in range(len(node.inputs)):
            self.connect(node, ordinal, vertex, ordinal)
        self.emit(node, vertex)

    @lower.register
    def _(self, transform: RebalanceTransform, node: Node) -> None:
        pass  # a property of the edge behind it, see connect()

    @lower.register
    def _(self, transform: HashJoinTransform, node: Node) -> None:
        policy = self.policy(node, transform)
        vertex = self.vertex(
            node,
            partial(
                HashJoinProcessor,
                transform.build_key_fns,
                transform.probe_key_fns,
                transform.to_output,
                inner=transform.is_inner,
                policy=policy,
                data_ordinals=self.data_ordinals(node),
            ),
        )
        self.connect(node, 0, vertex)
        for ordinal in range(1, len(node.inputs)):
            edge = self.connect(node, ordinal, vertex, ordinal)
            edge.broadcast().distributed().priority(BUILD_PRIORITY)
        self.emit(node, vertex)

    @lower.register
    def _(self, transform: AggregateTransform, node: Node) -> None:
        operation, key_fns = transform.operation, transform.key_fns
        is_two_stage = operation.combine is not None
        first: Supplier
        second: Supplier
        if key_fns is None:
            first = partial(AccumulateProcessor, operation, is_final=not is_two_stage)
            second = partial(CombineProcessor, operation)
        else:
            first = partial(
                AccumulateByKeyProcessor, key_fns, operation, is_final=not is_two_stage
            )
            second = partial(CombineByKeyProcessor, operation)
        if not is_two_stage:
            vertex = self.vertex(node, first, is_single=key_fns is None)
        else:
            vertex = self.vertex(node, first, suffix=PREPARE_SUFFIX)
        for ordinal in range(len(node.inputs)):
            edge = self.connect(node, ordinal, vertex, ordinal)
            if key_fns is not None:
                self.by_key(edge, key_fns[ordinal], distributed=not is_two_stage)
            elif not is_two_stage:
                edge.all_to_one()
            elif edge.routing is Routing.ISOLATED:
                edge.unicast()
        if is_two_stage:
            prepare = vertex
            vertex = self.vertex(node, second, is_single=key_fns is None)
            edge = from_(prepare).to(vertex)
            if key_fns is None:
                edge.all_to_one()
            else:
                edge.partitioned(entry_key).distributed()
            self.dag.edge(edge)
        self.emit(node, vertex)

    @lower.register
    def _(self, transform: SinkTransform, node: Node) -> None:
        vertex, inbound = self._sink_vertex(transform.sink, node.name, node.parallelism)
        self.connect(node, 0, vertex, inbound)


def _key(key_fn: KeyFn | None) -> KeyFn | None:
    """The edge's form of a key function: ``None`` where the item itself is the key."""
    return None if key_fn is whole_item else key_fn
