"""DagBuilder: the tools with which transforms become vertices and edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jetlet.columns.function import column_function
from jetlet.core.dag import DAG
from jetlet.core.edge import Edge, from_
from jetlet.core.processor import Processor
from jetlet.core.vertex import USE_DEFAULT, ProcessorSupplier, RunHook, Vertex
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.sink import AnySink, Sink
from jetlet.pipeline.transforms.base import KeyFn
from jetlet.planner import events
from jetlet.planner.graph import Graph, Node
from jetlet.planner.order import is_isolated
from jetlet.planner.side_outputs import SideOutputs
from jetlet.processors.ends.write import ClientSinkHook, ClientSinkProcessor, SinkHook, SinkSupplier

Supplier = Callable[[], Processor] | ProcessorSupplier


@dataclass
class Output:
    """Where a node's items come out."""

    vertex: Vertex
    side: Vertex
    """Where its failed and late items do."""
    edges: int = 0
    """How many ordinary edges leave so far."""


@dataclass
class DagBuilder:
    """Adds vertices and edges for the nodes of a graph."""

    graph: Graph
    dag: DAG
    outputs: dict[int, Output] = field(default_factory=dict)
    sinks: dict[int, tuple[Vertex, int]] = field(default_factory=dict)
    """Vertex and number of inbound edges of each sink: one sink is one vertex, however often it
    is written to."""

    def write_side_outputs(self, node: Node, sides: SideOutputs) -> None:
        """Add the edges to the sinks for failed and late items of a node that has been lowered."""
        if not sides.sinks:
            return
        vertex = self.outputs[id(node)].side
        vertex.side_ordinals = tuple(ordinal for ordinal, _ in sides.sinks)
        for ordinal, sink in sides.sinks:
            dest, inbound = self.sink_vertex(sink, None, None)
            self.dag.edge(from_(vertex, ordinal).to(dest, inbound))

    def vertex(
        self, node: Node, supplier: Supplier, *, suffix: str = "", is_single: bool = False
    ) -> Vertex:
        """Add a vertex for the node; ``is_single`` if it has one processor in the whole job."""
        vertex = Vertex(node.name + suffix, supplier, node.parallelism, is_single=is_single)
        # Of two stages the second one gets what the first has made of the columns.
        is_second = node.transform.has_two_stages and not suffix
        vertex.in_columns = node.in_columns and (node.gives_columns or not is_second)
        vertex.state = node.transform.state
        vertex.keeps_tables = node.transform.keeps_tables
        return self.dag.vertex(vertex)

    def connect(self, node: Node, ordinal: int, dest: Vertex, dest_ordinal: int = 0) -> Edge:
        """Add an edge from the node's input ``ordinal``; configure what is returned."""
        source = node.inputs[ordinal]
        rebalance = source.transform.routing
        while source.transform.routing is not None:
            source = source.inputs[0]
        output = self.outputs[id(source)]
        edge = from_(output.vertex, output.edges).to(dest, dest_ordinal)
        output.edges += 1
        if rebalance is not None:
            edge.distributed()
            if rebalance.key_fn is not None:
                self.by_key(node, edge, rebalance.key_fn)
                edge.checks_every_key = True
        elif is_isolated(node, ordinal):
            edge.isolated()
        self.dag.edge(edge)
        return edge

    def by_key(self, node: Node, edge: Edge, key_fn: KeyFn, *, distributed: bool = True) -> None:
        """Equal keys to the same processor."""
        applied = events.key_of(key_fn) if node.takes_events else None
        # The item itself needs no function, unless it travels in an event.
        edge.partitioned(
            None if key_fn is whole_item and applied is None else column_function(key_fn, applied)
        )
        if distributed:
            edge.distributed()

    @staticmethod
    def to_one(edge: Edge) -> None:
        """All items to the only processor; the keys of a rebalance are looked at all the same."""
        if not edge.checks_every_key:
            edge.all_to_one()

    @staticmethod
    def key_fn(node: Node, key_fn: KeyFn | None) -> KeyFn | None:
        """A key function as the node's processor applies it."""
        return events.key_of(key_fn) if key_fn is not None and node.takes_events else key_fn

    def emit(self, node: Node, vertex: Vertex, *, side: Vertex | None = None) -> None:
        """The node's items come out of ``vertex``; failed and late ones of ``side``, if given."""
        self.outputs[id(node)] = Output(vertex, side or vertex)

    def chain(self, node: Node, supplier: Supplier, key_fn: KeyFn | None = None) -> Vertex:
        """The common case: one vertex that reads the only input, which may come by key."""
        vertex = self.vertex(node, supplier)
        edge = self.connect(node, 0, vertex)
        if key_fn is not None:
            self.by_key(node, edge, key_fn)
        self.emit(node, vertex)
        return vertex

    def keyed(self, node: Node, supplier: Supplier, key_fn: KeyFn | None) -> None:
        """A vertex fed by key, or without one by everybody into a single processor."""
        vertex = self.vertex(node, supplier, is_single=key_fn is None)
        edge = self.connect(node, 0, vertex)
        if key_fn is None:
            self.to_one(edge)
        else:
            self.by_key(node, edge, key_fn)
        self.emit(node, vertex)

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
