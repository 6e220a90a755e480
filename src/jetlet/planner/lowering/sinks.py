"""Sinks."""

from __future__ import annotations

from jetlet.pipeline.transforms.sinks import SinkTransform
from jetlet.planner.dag_builder import DagBuilder
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs


@lower.register
def _lower_sink(transform: SinkTransform, node: Node, dag: DagBuilder, sides: SideOutputs) -> None:
    vertex, inbound = dag.sink_vertex(transform.sink, node.name, node.parallelism)
    vertex.in_columns = vertex.in_columns or node.in_columns
    dag.connect(node, 0, vertex, inbound)
