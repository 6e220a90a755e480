"""Functions with state, also with timers, running aggregates, distinct items, sorting, take."""

from __future__ import annotations

from functools import partial

from jetlet.core.dag import PREPARE_SUFFIX
from jetlet.core.edge import from_
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.transforms.stateful import (
    DistinctTransform,
    ProcessTransform,
    RollingTransform,
    SortTransform,
    StatefulTransform,
    TakeTransform,
)
from jetlet.planner.dag_builder import DagBuilder, Supplier
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs
from jetlet.processors.distinct import DistinctProcessor
from jetlet.processors.rolling import RollingAggregateProcessor
from jetlet.processors.sorting.sort import SortProcessor
from jetlet.processors.stateful import StatefulProcessor
from jetlet.processors.take import TakeProcessor
from jetlet.processors.time.expiring_state import expiring_rolling, expiring_stateful
from jetlet.processors.time.keyed_process import KeyedProcessProcessor


@lower.register
def _lower_stateful(
    transform: StatefulTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    arguments = (transform.kind, transform.create, transform.fn, transform.key_fn)
    supplier: Supplier
    if transform.ttl is None:
        supplier = partial(
            StatefulProcessor,
            *arguments,
            drop_when=transform.drop_when,
            on_end=transform.on_end,
            policy=sides.policy,
            data_ordinals=sides.data,
        )
    else:
        supplier = partial(
            expiring_stateful,
            *arguments,
            transform.ttl,
            drop_when=transform.drop_when,
            on_evict=transform.on_evict,
            late_ordinal=sides.late,
            policy=sides.policy,
            data_ordinals=sides.data,
        )
    dag.keyed(node, supplier, transform.key_fn)


@lower.register
def _lower_process(
    transform: ProcessTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    supplier = partial(
        KeyedProcessProcessor,
        transform.create,
        transform.key_fn,
        takes_late=transform.takes_late,
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
    key = transform.key
    if key is None and node.takes_events:
        key = whole_item
    supplier = partial(
        SortProcessor,
        dag.key_fn(node, key),
        reverse=transform.is_reverse,
        memory_limit=transform.memory_limit,
        policy=sides.policy,
        data_ordinals=sides.data,
    )
    dag.keyed(node, supplier, None)


@lower.register
def _lower_take(transform: TakeTransform, node: Node, dag: DagBuilder, sides: SideOutputs) -> None:
    few = partial(TakeProcessor, transform.count, is_final=False)
    prepare = dag.vertex(node, few, suffix=PREPARE_SUFFIX)
    dag.connect(node, 0, prepare)
    vertex = dag.vertex(node, partial(TakeProcessor, transform.count), is_single=True)
    dag.dag.edge(from_(prepare).to(vertex).all_to_one())
    dag.emit(node, vertex)
