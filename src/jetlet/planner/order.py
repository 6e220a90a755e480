"""Order: from where on items are in an order, and which edges and stages have to keep it."""

from __future__ import annotations

from jetlet.errors import OrderNotPreservableError
from jetlet.pipeline.pipeline import Pipeline
from jetlet.planner.graph import Graph, Node


def mark_order(graph: Graph, pipeline: Pipeline) -> None:
    """Find out what is in order: from the sources on if so wanted, from a sort always."""
    for node in graph.nodes:
        transform = node.transform
        if transform.breaks_order:
            continue  # as its user asked for; the order begins anew behind it
        if pipeline.preserve_order or transform.makes_order:
            # Behind a key it is the order per key, which begins anew there.
            node.is_ordered = True
        else:
            node.is_ordered = any(
                source.is_ordered and transform.keeps_order(ordinal)
                for ordinal, source in enumerate(node.inputs)
            )
        if node.is_ordered and transform.reorders:
            raise _unordered(node, pipeline)


def is_isolated(node: Node, ordinal: int) -> bool:
    """True if the edge into the node's input ``ordinal`` has to keep the order of the items.

    Then each upstream processor feeds a single one downstream, which there can be no more of.
    """
    transform, source = node.transform, node.inputs[ordinal]
    if source.transform.routing is not None:
        return False
    return transform.reads_isolated or (source.is_ordered and transform.reads_in_order(ordinal))


def _unordered(node: Node, pipeline: Pipeline) -> OrderNotPreservableError:
    if pipeline.preserve_order:
        why = f"pipeline {pipeline.name!r} has preserve_order=True: write ordered=True"
    else:
        why = "its input was sorted: write ordered=True, or .rebalance() before it"
    return OrderNotPreservableError(f"stage {node.name!r} has ordered=False, but {why}")
