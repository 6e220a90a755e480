"""DagBuilder: the tools with which transforms become vertices and edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jetlet.core.dag import DAG
from jetlet.core.edge import Edge, from_
from jetlet.core.outbox import Ordinals
from jetlet.core.processor import Processor
from jetlet.core.vertex import USE_DEFAULT, ProcessorSupplier, RunHook, Vertex
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.sink import ClientSink, Sink
from jetlet.pipeline.transforms import RebalanceTransform, StatelessTransform
from jetlet.planner import events
from jetlet.planner.graph import Graph, Node
from jetlet.planner.order import is_isolated
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.write import ClientSinkHook, ClientSinkProcessor, SinkHook, SinkSupplier

KeyFn = Callable[[Any], Any]
Supplier = Callable[[], Processor] | ProcessorSupplier
AnySink = Sink[Any] | ClientSink[Any]


@dataclass
class Output:
    """Where a node's items come out, and how many edges leave there so far."""

    vertex: Vertex
    edges: int = 0


@dataclass
class DagBuilder:
    """Adds vertices and edges for the nodes of a graph."""

    graph: Graph
    dag: DAG
    outputs: dict[int, Output] = field(default_factory=dict)
    sinks: dict[int, tuple[Vertex, int]] = field(default_factory=dict)
    """Vertex and number of inbound edges of each sink: one sink is one vertex, however often it
    is written to."""
    side_outputs: dict[int, list[tuple[int, AnySink]]] = field(default_factory=dict)
    """By node: ordinals, behind those of the ordinary edges, that lead to sinks of their own."""

    def write_side_outputs(self) -> None:
        """Add the edges that were reserved; when all ordinary ones are there."""
        for node in self.graph.nodes:
            for ordinal, sink in self.side_outputs.get(id(node), []):
                self.write(self.outputs[id(node)].vertex, ordinal, sink)

    def vertex(
        self, node: Node, supplier: Supplier, *, suffix: str = "", is_single: bool = False
    ) -> Vertex:
        """Add a vertex for the node; ``is_single`` if it has one processor in the whole job."""
        return self.dag.vertex(
            Vertex(node.name + suffix, supplier, node.parallelism, is_single=is_single)
        )

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
            if rebalance.key_fn is not None:
                self.by_key(node, edge, rebalance.key_fn)
        elif is_isolated(node, ordinal):
            edge.isolated()
        self.dag.edge(edge)
        return edge

    def by_key(self, node: Node, edge: Edge, key_fn: KeyFn, *, distributed: bool = True) -> None:
        """Equal keys to the same processor."""
        edge.partitioned(_key(events.key_of(key_fn) if node.takes_events else key_fn))
        if distributed:
            edge.distributed()

    @staticmethod
    def key_fn(node: Node, key_fn: KeyFn | None) -> KeyFn | None:
        """A key function as the node's processor applies it."""
        return events.key_of(key_fn) if key_fn is not None and node.takes_events else key_fn

    def emit(self, node: Node, vertex: Vertex) -> None:
        """The node's items come out of ``vertex``."""
        self.outputs[id(node)] = Output(vertex)

    def chain(self, node: Node, supplier: Supplier) -> None:
        """The common case: one vertex that reads the only input."""
        vertex = self.vertex(node, supplier)
        self.connect(node, 0, vertex)
        self.emit(node, vertex)

    def policy(self, node: Node, step: StatelessTransform | None = None) -> ErrorPolicy:
        """What the processor is to do about errors; reserves an edge for dead letters.

        ``step`` is the one of several fused steps that it is for.
        """
        name, on_error = node.name, node.transform.on_error
        if step is not None:
            name, on_error = step.reported_as or step.name, step.on_error
        # The compiled function of fused steps has items and timestamps apart.
        is_event = node.takes_events and step is None
        if isinstance(on_error, str):
            return ErrorPolicy(name, on_error, takes_events=is_event)
        return ErrorPolicy(name, "dead-letter", self.side_output(node, on_error), is_event)

    def side_output(self, node: Node, sink: AnySink) -> int:
        """Reserve an edge to a sink, behind all ordinary ones; returns its ordinal."""
        reserved = self.side_outputs.setdefault(id(node), [])
        ordinal = self._fanout(node) + len(reserved)
        reserved.append((ordinal, sink))
        return ordinal

    def late_output(self, node: Node, sink: AnySink | None) -> int | None:
        """The same for late items, if there is a sink for them."""
        return None if sink is None else self.side_output(node, sink)

    def data_ordinals(self, node: Node) -> Ordinals:
        """The edges of the ordinary output: all, unless some are for dead letters."""
        return tuple(range(self._fanout(node))) if id(node) in self.side_outputs else None

    def _fanout(self, node: Node) -> int:
        """How many ordinary edges will leave the node."""
        return sum(
            self._fanout(n) if isinstance(n.transform, RebalanceTransform) else 1
            for n in self.graph.outputs(node)
        )

    def write(self, vertex: Vertex, ordinal: int, sink: AnySink) -> None:
        """An edge from a vertex to a sink that no node stands for."""
        dest, inbound = self.sink_vertex(sink, None, None)
        self.dag.edge(from_(vertex, ordinal).to(dest, inbound))

    def sink_vertex(
        self, sink: AnySink, name: str | None, parallelism: int | None
    ) -> tuple[Vertex, int]:
        """The vertex of a sink, made when it is first asked for, and its next free ordinal."""
        known = self.sinks.get(id(sink))
        if known is None:
            supplier: Supplier
            hook: RunHook
            if isinstance(sink, Sink):
                # One stream is enough for the job not to end.
                is_stream = any(node.transform.is_stream for node in self.graph.nodes)
                supplier, hook = SinkSupplier(sink, is_stream=is_stream), SinkHook(sink)
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


def _key(key_fn: KeyFn | None) -> KeyFn | None:
    """The edge's form of a key function: ``None`` where the item itself is the key."""
    return None if key_fn is whole_item else key_fn
