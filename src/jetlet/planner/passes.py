"""The passes over a graph, in the order in which the planner runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from jetlet.errors import MissingSinkError, OrderNotPreservableError, PlanningError
from jetlet.pipeline.pipeline import Pipeline
from jetlet.pipeline.transforms import (
    AggregateTransform,
    AsyncTransform,
    BatchedTransform,
    CustomTransform,
    FusedTransform,
    HashJoinTransform,
    MergeTransform,
    RebalanceTransform,
    ServiceTransform,
    SinkTransform,
    SortTransform,
    SourceTransform,
    StatelessTransform,
)
from jetlet.planner.graph import Graph, Node

ORDER_KEEPING = (
    StatelessTransform,
    FusedTransform,
    ServiceTransform,
    AsyncTransform,
    BatchedTransform,
    CustomTransform,
    HashJoinTransform,
    MergeTransform,
    SinkTransform,
)
"""Transforms that emit in the order of their input, if that arrives in order."""


def check(graph: Graph, pipeline: Pipeline) -> None:
    """Refuse a pipeline that has no sources, or a stage that nobody consumes."""
    if not graph.nodes:
        raise PlanningError(
            f"pipeline {pipeline.name!r} is empty: begin with p.read_from(sources....)"
        )
    for node in graph.nodes:
        if isinstance(node.transform, SinkTransform) or graph.outputs(node):
            continue
        raise MissingSinkError(
            f"stage {node.name!r} of pipeline {pipeline.name!r} leads nowhere: end it with "
            f".write_to(sinks.collect()) or another sink"
        )


def name_uniquely(graph: Graph, pipeline: Pipeline) -> None:
    """Number the names that occur more than once: ``map``, ``map-2``, ``map-3``."""
    taken: Counter[str] = Counter()
    given = {node.name for node in graph.nodes}
    for node in graph.nodes:
        base = node.name
        taken[base] += 1
        if taken[base] > 1:
            while (name := f"{base}-{taken[base]}") in given:
                taken[base] += 1
            node.name = name
            given.add(name)


def mark_order(graph: Graph, pipeline: Pipeline) -> None:
    """Find out up to where order must be kept: from a source on request, from a sort always."""
    for node in graph.nodes:
        transform = node.transform
        source = _behind_rebalance(node.inputs[0]) if node.inputs else None
        if isinstance(transform, SourceTransform):
            node.keeps_order = pipeline.preserve_order
        elif isinstance(transform, SortTransform):
            node.keeps_order = True
        elif isinstance(transform, RebalanceTransform):
            if pipeline.preserve_order and not transform.is_keyed:
                raise OrderNotPreservableError(
                    f"pipeline {pipeline.name!r} has preserve_order=True, and rebalance() without "
                    f"a key reorders items: write .rebalance(key_fn), which keeps the order per "
                    f"key, or Pipeline({pipeline.name!r}) without preserve_order"
                )
        elif isinstance(transform, ORDER_KEEPING) and source is not None:
            is_rebalanced = isinstance(node.inputs[0].transform, RebalanceTransform)
            node.keeps_order = source.keeps_order and not is_rebalanced
            if (
                node.keeps_order
                and isinstance(transform, AsyncTransform)
                and not transform.is_ordered
            ):
                raise OrderNotPreservableError(
                    f"stage {node.name!r} has ordered=False, but its input is in an order that "
                    f"must be kept: write ordered=True"
                )
        else:
            # Partitioned by key: the order per key is kept as it is, and begins anew from here.
            node.keeps_order = pipeline.preserve_order


def fuse(graph: Graph, pipeline: Pipeline) -> None:
    """Join runs of stateless stages into one each.

    A run goes on while a stage has a single reader that is stateless too and has the same explicit
    parallelism, which the fused vertex keeps.
    """
    run: list[Node]
    for first in list(graph.nodes):
        if first not in graph.nodes or not isinstance(first.transform, StatelessTransform):
            continue
        run = [first]
        while True:
            outputs = graph.outputs(run[-1])
            if len(outputs) != 1 or not isinstance(outputs[0].transform, StatelessTransform):
                break
            following = outputs[0]
            if following.transform.local_parallelism != first.transform.local_parallelism:
                break
            run.append(following)
        if len(run) > 1:
            _replace(graph, run)


def _replace(graph: Graph, run: list[Node]) -> None:
    last = run[-1]
    name = f"fused({', '.join(node.name for node in run)})"
    fused = FusedTransform(
        name=name,
        steps=[
            replace(node.transform, name=node.name)
            for node in run
            if isinstance(node.transform, StatelessTransform)
        ],
        local_parallelism=run[0].transform.local_parallelism,
    )
    node = Node(fused, run[0].inputs, name, keeps_order=run[0].keeps_order)
    graph.nodes[graph.nodes.index(last)] = node
    graph.nodes = [n for n in graph.nodes if n not in run]
    for other in graph.nodes:
        other.inputs = [node if i is last else i for i in other.inputs]


def set_parallelism(graph: Graph, default: int) -> None:
    """Give each node its local parallelism where it is not up to the vertex.

    Where order must be kept a node has at most as many processors as the one before it.
    """
    for node in graph.nodes:
        transform = node.transform
        node.parallelism = transform.local_parallelism
        if isinstance(transform, SourceTransform):
            if node.parallelism is None:
                node.parallelism = min(transform.source.preferred_local_parallelism, default)
        elif isinstance(transform, SinkTransform):
            if node.parallelism is None:
                preferred = getattr(transform.sink, "preferred_local_parallelism", 1)
                node.parallelism = min(preferred, default)
        elif isinstance(transform, RebalanceTransform):
            node.parallelism = node.inputs[0].parallelism
        elif node.parallelism is None and not _is_global_aggregate(node):
            node.parallelism = default
        if node.keeps_order and isinstance(transform, ORDER_KEEPING):
            upstream = [_behind_rebalance(i).parallelism or default for i in node.inputs[:1]]
            node.parallelism = min(node.parallelism or default, *upstream)


def _is_global_aggregate(node: Node) -> bool:
    return isinstance(node.transform, AggregateTransform) and node.transform.key_fns is None


def _behind_rebalance(node: Node) -> Node:
    while isinstance(node.transform, RebalanceTransform):
        node = node.inputs[0]
    return node


Pass = Callable[[Graph, Pipeline], None]
PASSES: tuple[Pass, ...] = (check, name_uniquely, mark_order, fuse)
