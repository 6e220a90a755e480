"""Joins: with tables in memory, by time, and within windows."""

from __future__ import annotations

from functools import partial

from jetlet.pipeline.transforms.joins import (
    HashJoinTransform,
    IntervalJoinTransform,
    PairsTransform,
)
from jetlet.planner import events
from jetlet.planner.dag_builder import DagBuilder
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs
from jetlet.processors.hash_join import HashJoinProcessor
from jetlet.processors.pairs import PairsProcessor
from jetlet.processors.time.interval_join import IntervalJoinProcessor

BUILD_PRIORITY = -1
"""Build sides of a join are read to the end before its other input."""


@lower.register
def _lower_hash_join(
    transform: HashJoinTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    probe_key_fns, to_output = transform.probe_key_fns, transform.to_output
    if node.takes_events:
        probe_key_fns = [events.key_of(fn) for fn in probe_key_fns]
        to_output = events.joined(to_output)
    vertex = dag.vertex(
        node,
        partial(
            HashJoinProcessor,
            transform.build_key_fns,
            probe_key_fns,
            to_output,
            inner=transform.are_inner,
            policy=sides.policy,
            data_ordinals=sides.data,
        ),
    )
    for ordinal in range(len(node.inputs)):
        edge = dag.connect(node, ordinal, vertex, ordinal)
        if transform.reads_first(ordinal):
            edge.broadcast().distributed().priority(BUILD_PRIORITY)
    dag.emit(node, vertex)


@lower.register
def _lower_interval_join(
    transform: IntervalJoinTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    vertex = dag.vertex(
        node,
        partial(
            IntervalJoinProcessor,
            transform.key_fns,
            transform.lower,
            transform.upper,
            transform.to_output,
            late_ordinal=sides.late,
            policy=sides.policy,
            data_ordinals=sides.data,
        ),
    )
    for ordinal, key_fn in enumerate(transform.key_fns):
        dag.by_key(node, dag.connect(node, ordinal, vertex, ordinal), key_fn)
    dag.emit(node, vertex)


@lower.register
def _lower_pairs(
    transform: PairsTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    dag.chain(
        node,
        partial(
            PairsProcessor,
            transform.to_output,
            inner=transform.is_inner,
            policy=sides.policy,
            data_ordinals=sides.data,
        ),
    )
