"""Order: from where on items are in an order, and which edges and stages have to keep it."""

from __future__ import annotations

from jetlet.errors import OrderNotPreservableError
from jetlet.pipeline.pipeline import Pipeline
from jetlet.pipeline.transforms import (
    AggregateTransform,
    AsyncTransform,
    BatchedTransform,
    CustomTransform,
    FusedTransform,
    HashJoinTransform,
    MergeTransform,
    PairsTransform,
    RebalanceTransform,
    RollingTransform,
    ServiceTransform,
    SinkTransform,
    SortTransform,
    SpoolTransform,
    StatefulTransform,
    StatelessTransform,
    StripTransform,
    TimestampTransform,
)
from jetlet.planner.graph import Graph, Node

FOLLOWING = (
    StatelessTransform,
    FusedTransform,
    ServiceTransform,
    AsyncTransform,
    BatchedTransform,
    CustomTransform,
    HashJoinTransform,
    SpoolTransform,
    StripTransform,
    TimestampTransform,
    MergeTransform,
    PairsTransform,
    SinkTransform,
)
"""Transforms that emit in the order of their input, if that arrives in order."""


def mark_order(graph: Graph, pipeline: Pipeline) -> None:
    """Find out what is in order: from the sources on if so wanted, from a sort always."""
    for node in graph.nodes:
        transform = node.transform
        if isinstance(transform, RebalanceTransform):
            _check_rebalance(transform, pipeline)
        elif pipeline.preserve_order or isinstance(transform, SortTransform):
            # Behind a key it is the order per key, which begins anew there.
            node.is_ordered = True
        elif isinstance(transform, StatefulTransform | RollingTransform):
            # Without a key there is one processor for all items.
            node.is_ordered = transform.key_fn is None and node.inputs[0].is_ordered
        elif isinstance(transform, FOLLOWING):
            node.is_ordered = any(_keeps_order(node, i) for i in range(len(node.inputs)))
        if node.is_ordered and isinstance(transform, AsyncTransform) and not transform.is_ordered:
            raise _unordered(node, pipeline)


def is_isolated(node: Node, ordinal: int) -> bool:
    """True if the edge into the node's input ``ordinal`` has to keep the order of the items.

    Then each upstream processor feeds a single one downstream, which there can be no more of. It is
    also so where a stream gets its timestamps: what is late is told by the items before it, and
    those of other processors have nothing to do with it.
    """
    transform = node.transform
    if isinstance(transform, TimestampTransform) and transform.is_stream:
        return True
    return isinstance(transform, StripTransform) or _keeps_order(node, ordinal)


def _keeps_order(node: Node, ordinal: int) -> bool:
    if not node.inputs[ordinal].is_ordered:
        return False
    transform = node.transform
    if isinstance(transform, AggregateTransform):
        # So that lists and the like are in order; with a key, the edge goes by key.
        return transform.key_fns is None
    if isinstance(transform, HashJoinTransform):
        return ordinal == 0
    return isinstance(transform, FOLLOWING)


def _check_rebalance(transform: RebalanceTransform, pipeline: Pipeline) -> None:
    if pipeline.preserve_order and not transform.is_keyed:
        raise OrderNotPreservableError(
            f"pipeline {pipeline.name!r} has preserve_order=True, and rebalance() without a key "
            f"reorders items: write .rebalance(key_fn), which keeps the order per key, or "
            f"Pipeline({pipeline.name!r}) without preserve_order"
        )


def _unordered(node: Node, pipeline: Pipeline) -> OrderNotPreservableError:
    if pipeline.preserve_order:
        why = f"pipeline {pipeline.name!r} has preserve_order=True: write ordered=True"
    else:
        why = "its input was sorted: write ordered=True, or .rebalance() before it"
    return OrderNotPreservableError(f"stage {node.name!r} has ordered=False, but {why}")
