"""Functions with state, running aggregates, distinct items, and sorting."""

from __future__ import annotations

from functools import partial

from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.transforms import (
    DistinctTransform,
    RollingTransform,
    SortTransform,
    StatefulTransform,
)
from jetlet.planner.dag_builder import DagBuilder, Supplier
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs
from jetlet.processors.distinct import DistinctProcessor
from jetlet.processors.expiring_state import expiring_rolling, expiring_stateful
from jetlet.processors.rolling import RollingAggregateProcessor
from jetlet.processors.sort import SortProcessor
from jetlet.processors.stateful import StatefulProcessor


@lower.register
def _lower_stateful(
    transform: StatefulTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    arguments = (transform.kind, transform.create, transform.fn, transform.key_fn)
    supplier: Supplier
    if transform.ttl is None:
        supplier = partial(
            StatefulProcessor, *arguments, policy=sides.policy, data_ordinals=sides.data
        )
    else:
        supplier = partial(
            expiring_stateful,
            *arguments,
            transform.ttl,
            on_evict=transform.on_evict,
            late_ordinal=sides.late,
            policy=sides.policy,
            data_ordinals=sides.data,
        )
    dag.keyed(node, supplier, transform.key_fn)


@lower.register
def _lower_rolling(
    transform: RollingTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    arguments = (transform.operation, transform.key_fn)
    supplier: Supplier
    if transform.ttl is None:
        supplier = partial(
            RollingAggregateProcessor, *arguments, policy=sides.policy, data_ordinals=sides.data
        )
    else:
        supplier = partial(
            expiring_rolling,
            *arguments,
            transform.ttl,
            late_ordinal=sides.late,
            policy=sides.policy,
            data_ordinals=sides.data,
        )
    dag.keyed(node, supplier, transform.key_fn)


@lower.register
def _lower_distinct(
    transform: DistinctTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    supplier = partial(
        DistinctProcessor,
        dag.key_fn(node, transform.key_fn),
        policy=sides.policy,
        data_ordinals=sides.data,
    )
    dag.keyed(node, supplier, transform.key_fn)


@lower.register
def _lower_sort(transform: SortTransform, node: Node, dag: DagBuilder, sides: SideOutputs) -> None:
    key = transform.key or whole_item if node.takes_events else transform.key
    supplier = partial(
        SortProcessor,
        dag.key_fn(node, key),
        reverse=transform.is_reverse,
        memory_limit=transform.memory_limit,
        policy=sides.policy,
        data_ordinals=sides.data,
    )
    dag.keyed(node, supplier, None)
