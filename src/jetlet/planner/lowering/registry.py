"""The lowering of a node is found by the class of its transform, at which it was registered::

@lower.register
def _lower_map(
    transform: MapTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    dag.chain(node, MapSupplier(transform.fn, sides.policy, sides.data))
"""

from __future__ import annotations

from functools import singledispatch

from jetlet.core.dag import DAG
from jetlet.errors import PlanningError
from jetlet.pipeline.transforms.base import Transform
from jetlet.planner.dag_builder import DagBuilder
from jetlet.planner.graph import Graph, Node
from jetlet.planner.side_outputs import SideOutputs


@singledispatch
def lower(transform: Transform, node: Node, dag: DagBuilder, sides: SideOutputs) -> None:
    """Add the vertices and edges of one node; those that it reads from are there already."""
    raise PlanningError(f"stage {node.name!r}: no engine knows {type(transform).__name__}")


def lower_all(graph: Graph, dag: DAG) -> None:
    """Add all nodes of a graph to a DAG."""
    builder = DagBuilder(graph, dag)
    sides = [(node, SideOutputs.of(graph, node)) for node in graph.nodes]
    for node, its_sides in sides:
        lower(node.transform, node, builder, its_sides)
    # One sink is one vertex, so the stages that are sinks come first, with their names.
    for node, its_sides in sides:
        builder.write_side_outputs(node, its_sides)
