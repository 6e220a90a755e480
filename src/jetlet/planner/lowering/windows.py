"""Aggregates per window, in one stage, or in two where windows have frames."""

from __future__ import annotations

from functools import partial
from typing import Any

from jetlet.core.dag import PREPARE_SUFFIX
from jetlet.core.edge import from_
from jetlet.core.vertex import Vertex
from jetlet.pipeline.transforms.windows import WindowTransform
from jetlet.pipeline.windows import FrameWindow, SessionWindow
from jetlet.planner.dag_builder import DagBuilder
from jetlet.planner.graph import Node
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs
from jetlet.processors.time.frames import frame_key
from jetlet.processors.time.limited_session import LimitedSessionProcessor
from jetlet.processors.time.revising_window import RevisingWindowProcessor
from jetlet.processors.time.session_window import SessionWindowProcessor
from jetlet.processors.time.sliding_window import SlidingWindowProcessor


@lower.register
def _lower_window(
    transform: WindowTransform, node: Node, dag: DagBuilder, sides: SideOutputs
) -> None:
    window = transform.window
    if transform.has_two_stages and isinstance(window, FrameWindow):
        _in_two_stages(window, transform, node, dag, sides)
        return
    make: Any = SlidingWindowProcessor
    if window.lateness is not None:
        make = RevisingWindowProcessor
    elif isinstance(window, SessionWindow):
        is_limited = window.max_length is not None
        make = LimitedSessionProcessor if is_limited else SessionWindowProcessor
    only = partial(
        make,
        window,
        transform.operation,
        transform.key_fns,
        emits_events=node.emits_events,
        late_ordinal=sides.late,
        step=node.name,
        data_ordinals=sides.data,
    )
    vertex = dag.vertex(node, only, is_single=transform.key_fns is None)
    _feed(transform, node, dag, vertex, distributed=True)
    dag.emit(node, vertex)


def _in_two_stages(
    window: FrameWindow,
    transform: WindowTransform,
    node: Node,
    dag: DagBuilder,
    sides: SideOutputs,
) -> None:
    operation, key_fns = transform.operation, transform.key_fns
    is_single = key_fns is None
    first = partial(
        SlidingWindowProcessor,
        window,
        operation,
        key_fns,
        emits_frames=True,
        target_parallelism=1 if is_single else node.parallelism,
        late_ordinal=sides.late,
        step=node.name,
        data_ordinals=sides.data,
    )
    prepare = dag.vertex(node, first, suffix=PREPARE_SUFFIX)
    _feed(transform, node, dag, prepare, distributed=False)
    second = partial(
        SlidingWindowProcessor,
        window,
        operation,
        None,
        takes_frames=True,
        emits_events=node.emits_events,
        step=node.name,
    )
    vertex = dag.vertex(node, second, is_single=is_single)
    edge = from_(prepare).to(vertex)
    dag.dag.edge(edge.all_to_one() if is_single else edge.partitioned(frame_key).distributed())
    dag.emit(node, vertex, side=prepare)


def _feed(
    transform: WindowTransform, node: Node, dag: DagBuilder, vertex: Vertex, *, distributed: bool
) -> None:
    for ordinal in range(len(node.inputs)):
        edge = dag.connect(node, ordinal, vertex, ordinal)
        if transform.key_fns is not None:
            dag.by_key(node, edge, transform.key_fns[ordinal], distributed=distributed)
            edge.may_split_keys = not distributed and not node.inputs[ordinal].is_ordered
        elif distributed:
            dag.to_one(edge)
