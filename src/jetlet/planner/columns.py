"""What is done over columns, and who gets them."""

from __future__ import annotations

from jetlet.planner.graph import Graph, Node

__all__ = ["mark_columns"]


def mark_columns(graph: Graph) -> None:
    """Mark the nodes that work on columns, from the sources that give such on."""
    for node in graph.nodes:
        transform = node.transform
        given = [source.gives_columns for source in node.inputs]
        node.in_columns = any(
            is_given and transform.takes_columns(ordinal) for ordinal, is_given in enumerate(given)
        )
        # Who only passes batches on does not have to know what they are stored as.
        node.gives_columns = transform.gives_columns(
            node.in_columns or (any(given) and not transform.takes_columns(0))
        )
        if not node.inputs:
            # Whoever takes items makes them as fast as a source does: then there is no need.
            node.gives_columns = node.gives_columns and _wants_columns(graph, node)
            node.in_columns = node.gives_columns
            node.asked_for = _asked_for(graph, node) if node.gives_columns else None


def _asked_for(graph: Graph, node: Node) -> frozenset[str] | None:
    """The fields that are asked for of the node's items; ``None`` if that may be all."""
    found: frozenset[str] = frozenset()
    for reader, ordinal in graph.readers(node):
        asked = reader.transform.asks_for(ordinal)
        if asked is None:
            return None
        found |= asked.fields
        if asked.go_on:
            others = _asked_for(graph, reader)
            if others is None:
                return None
            found |= others
    return found


def _wants_columns(graph: Graph, node: Node) -> bool:
    """True if somebody who reads from the node works on columns."""
    for reader, ordinal in graph.readers(node):
        transform = reader.transform
        if transform.takes_columns(ordinal):
            return True
        if transform.routing is not None and _wants_columns(graph, reader):
            return True
    return False
