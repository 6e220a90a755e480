"""What is done over columns, and who gets them."""

from __future__ import annotations

from jetlet.planner.graph import Graph, Node

__all__ = ["wants_columns"]


def wants_columns(graph: Graph, node: Node) -> bool:
    """True if somebody who reads from the node works on columns.

    The others make items of them, which takes as long here as it does there.
    """
    for reader, ordinal in graph.readers(node):
        transform = reader.transform
        if transform.takes_columns(ordinal):
            return True
        if transform.routing is not None and wants_columns(graph, reader):
            return True
    return False
