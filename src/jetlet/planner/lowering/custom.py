"""Processors of the user's own."""

from __future__ import annotations

from jetlet.core.vertex import ProcessorSupplier
from jetlet.pipeline.transforms.custom import CustomTransform
from jetlet.planner.dag_builder import DagBuilder
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs


@lower.register
def _lower_custom(
    transform: CustomTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    supplier = transform.supplier
    if node.takes_events and isinstance(supplier, ProcessorSupplier):
        supplier = supplier.for_events()
    dag.chain(node, supplier)
