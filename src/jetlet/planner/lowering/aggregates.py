"""Aggregates over all items, in one stage, or in two where parts can be combined."""

from __future__ import annotations

from functools import partial
from typing import Any

from jetlet.columns.deeds import Combining, grouping_of
from jetlet.core.dag import PREPARE_SUFFIX
from jetlet.core.edge import from_
from jetlet.pipeline.functions import entry_key
from jetlet.pipeline.transforms.aggregates import AggregateTransform
from jetlet.planner.dag_builder import DagBuilder, Supplier
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs
from jetlet.processors.aggregate import (
    AccumulateByKeyProcessor,
    AccumulateProcessor,
    CombineByKeyProcessor,
    CombineProcessor,
)


@lower.register
def _lower_aggregate(
    transform: AggregateTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    operation, key_fns, step = transform.operation, transform.key_fns, node.name
    is_two_stage = transform.has_two_stages
    first: Supplier
    second: Supplier
    if key_fns is None:
        options: dict[str, Any] = {"emits_empty": transform.emits_empty, "step": step}
        first = partial(AccumulateProcessor, operation, is_final=not is_two_stage, **options)
        second = partial(CombineProcessor, operation, **options)
    else:
        first = partial(
            AccumulateByKeyProcessor, key_fns, operation, is_final=not is_two_stage, step=step
        )
        second = partial(CombineByKeyProcessor, operation, step=step)
    if not is_two_stage:
        vertex = dag.vertex(node, first, is_single=key_fns is None)
    else:
        vertex = dag.vertex(node, first, suffix=PREPARE_SUFFIX)
    for ordinal in range(len(node.inputs)):
        edge = dag.connect(node, ordinal, vertex, ordinal)
        if key_fns is not None:
            dag.by_key(node, edge, key_fns[ordinal], distributed=not is_two_stage)
            edge.may_split_keys = is_two_stage and not node.inputs[ordinal].is_ordered
        elif not is_two_stage:
            dag.to_one(edge)
    if is_two_stage:
        prepare = vertex
        prepare.deed = grouping_of(operation, key_fns, emits_empty=transform.emits_empty)
        vertex = dag.vertex(node, second, is_single=key_fns is None)
        if key_fns is not None and prepare.deed is not None and operation.has_plain_result:
            vertex.deed = Combining()
        edge = from_(prepare).to(vertex)
        if key_fns is None:
            edge.all_to_one()
        else:
            edge.partitioned(entry_key).distributed()
        dag.dag.edge(edge)
    dag.emit(node, vertex)
