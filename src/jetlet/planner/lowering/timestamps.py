"""Giving items timestamps, and taking them off."""

from __future__ import annotations

from functools import partial

from jetlet.pipeline.transforms.timestamps import StripTransform, TimestampTransform
from jetlet.planner.dag_builder import DagBuilder
from jetlet.planner.events import watermark_step
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs
from jetlet.processors.time.event_time import time_policy
from jetlet.processors.time.timestamps import StripProcessor, TimestampProcessor


@lower.register
def _lower_timestamps(
    transform: TimestampTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    policy = None
    if transform.is_stream:
        policy = time_policy(transform, watermark_step(dag.graph, node))
    dag.chain(
        node,
        partial(
            TimestampProcessor,
            transform.fn,
            policy,
            policy=sides.policy,
            data_ordinals=sides.data,
        ),
    )


@lower.register
def _lower_strip(
    transform: StripTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    dag.chain(node, StripProcessor)
