"""Sources, bounded and not."""

from __future__ import annotations

from jetlet.pipeline.transforms.sources import SourceTransform, StreamSourceTransform
from jetlet.planner.dag_builder import DagBuilder
from jetlet.planner.events import watermark_step
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs
from jetlet.processors.ends.read import ReadSupplier
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.processors.time.event_time import time_policy


@lower.register
def _lower_source(
    transform: SourceTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    source = transform.source
    readers = dag.graph.readers(node)
    if len(readers) == 1:
        ((reader, _),) = readers
        source = source.narrowed(reader.transform.first_filters)
    if node.asked_for is not None:
        source = source.asked_for(node.asked_for)
    supplier = ReadSupplier(
        source,
        sides.data,
        sides.policy,
        in_columns=node.in_columns,
    )
    dag.emit(node, dag.vertex(node, supplier))


@lower.register
def _lower_stream_source(
    transform: StreamSourceTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    policy = time_policy(transform, watermark_step(dag.graph, node))
    timestamps = Timestamps(transform.timestamps, transform.timestamp_fn, policy)
    source = transform.source.in_columns() if node.in_columns else transform.source
    supplier = StreamReadSupplier(
        source, timestamps, sides.data, sides.policy, in_columns=node.in_columns
    )
    dag.emit(node, dag.vertex(node, supplier))
