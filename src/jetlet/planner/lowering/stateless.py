"""Stages that look at one item after the other: fused functions, batches, merges and the like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jetlet.columns.deeds import steps_of
from jetlet.pipeline.transforms.stateless import (
    BatchedTransform,
    FusedTransform,
    MergeTransform,
    RebalanceTransform,
    SpoolTransform,
    StatelessTransform,
    TableMapTransform,
)
from jetlet.planner import events
from jetlet.planner.dag_builder import DagBuilder
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs
from jetlet.processors.batched import BatchedProcessor, BatchedSupplier
from jetlet.processors.coroutines.async_map import AsyncMapSupplier
from jetlet.processors.fused import FusedProcessor, IdentityProcessor, Step, fuse
from jetlet.processors.sorting.spool import SpoolProcessor
from jetlet.processors.table_map import TableMapProcessor


@lower.register
def _lower_stateless(
    transform: StatelessTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    _fused([transform], node, dag, sides)


@lower.register
def _lower_fused(
    transform: FusedTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    _fused(transform.steps, node, dag, sides)


def _fused(
    transforms: Sequence[StatelessTransform], node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    # The compiled function has items and timestamps apart.
    policies = [replace(policy, takes_events=False) for policy in sides.policies]
    steps = [Step(t.kind, t.fn, policy) for t, policy in zip(transforms, policies, strict=True)]
    functions = fuse(steps, takes_events=node.takes_events)
    vertex = dag.chain(node, partial(FusedProcessor, functions, sides.data))
    if not node.takes_events and all(policy.fails for policy in policies):
        vertex.deed = steps_of([(t.kind, t.fn) for t in transforms])


@lower.register
def _lower_batched(
    transform: BatchedTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    fn, service, key_fn = transform.fn, transform.service, transform.key_fn
    options: dict[str, Any] = {
        "policy": sides.policy,
        "data_ordinals": sides.data,
        "max_wait": transform.max_wait,
    }
    if transform.is_async:
        if node.takes_events:
            fn = events.applied_async_to_list(fn)
        batches = AsyncMapSupplier(
            fn,
            service=service,
            max_batch=transform.max_batch,
            max_concurrency=transform.max_concurrency,
            **options,
        )
        dag.chain(node, batches, key_fn)
        return
    if node.takes_events:
        fn = events.applied_to_list(fn)
    if service is not None:
        blocking = service.is_blocking or transform.is_blocking
        service = replace(service, is_blocking=blocking)
        dag.chain(node, BatchedSupplier(fn, transform.max_batch, service, **options), key_fn)
        return
    options["blocking"] = transform.is_blocking
    dag.chain(node, partial(BatchedProcessor, fn, transform.max_batch, **options), key_fn)


@lower.register
def _lower_table_map(
    transform: TableMapTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    dag.chain(
        node,
        partial(
            TableMapProcessor,
            transform.fn,
            transform.schema,
            policy=sides.policy,
            takes_events=node.takes_events,
            data_ordinals=sides.data,
        ),
    )


@lower.register
def _lower_merge(
    transform: MergeTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    vertex = dag.vertex(node, IdentityProcessor)
    for ordinal in range(len(node.inputs)):
        dag.connect(node, ordinal, vertex, ordinal)
    dag.emit(node, vertex)


@lower.register
def _lower_spool(
    transform: SpoolTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    dag.chain(node, SpoolProcessor)


@lower.register
def _lower_rebalance(
    transform: RebalanceTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    pass  # a property of the edge behind it, see DagBuilder.connect
