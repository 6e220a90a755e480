"""Spools: what keeps a join from waiting for itself.

A hash join takes no item of its first input before its other inputs have ended. Meanwhile the first
one is held up by back-pressure, and with it all that feeds it. If that includes something which the
other inputs need in order to end, as where a stage is joined with an aggregate of itself, the job
would stand still for ever. The same can happen around several joins. Each such circle is cut by a
spool before the first input of a join: it takes everything, on disk what is too much for memory,
and gives it back when its input has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from jetlet.pipeline.pipeline import Pipeline
from jetlet.pipeline.transforms.stateless import SpoolTransform
from jetlet.planner.graph import Graph, Node


def add_spools(graph: Graph, pipeline: Pipeline) -> None:
    """Put a spool before each join that may wait for itself, alone or in a circle."""
    joins = [node for node in graph.nodes if _inputs(node, are_first=True)]
    needed = {id(join): _upstream(_inputs(join, are_first=True)) for join in joins}
    held_up = {
        id(join): _upstream(_inputs(join, are_first=False), only_held_up=True) for join in joins
    }
    for join in joins:
        if _waits_for_itself(join, joins, needed, held_up):
            for ordinal in range(len(join.inputs)):
                if not join.transform.reads_first(ordinal):
                    _insert_spool(graph, join, ordinal)
            held_up[id(join)] = set()


def _inputs(node: Node, *, are_first: bool) -> list[Node]:
    """Those that are read to the end before the others, or the others."""
    reads_first = node.transform.reads_first
    return [each for i, each in enumerate(node.inputs) if reads_first(i) == are_first]


def _insert_spool(graph: Graph, join: Node, ordinal: int) -> None:
    parallelism = join.transform.local_parallelism
    transform = SpoolTransform(name=f"{join.name}-spool", local_parallelism=parallelism)
    graph.insert_before(join, ordinal, transform)


def _waits_for_itself(
    join: Node, joins: list[Node], needed: dict[int, set[Node]], held_up: dict[int, set[Node]]
) -> bool:
    """Whether the join's inputs 1 to n can only end once the join takes items of its input 0."""
    if not held_up[id(join)]:
        return False
    waiting_for: set[Node] = set()
    found = [join]
    while found:
        needs = needed[id(found.pop())]
        for other in joins:
            if other not in waiting_for and needs & held_up[id(other)]:
                waiting_for.add(other)
                found.append(other)
    return join in waiting_for


def _upstream(nodes: Iterable[Node], *, only_held_up: bool = False) -> set[Node]:
    """The nodes and all that feed them; or only those that wait while the nodes' items wait."""
    seen: set[Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        left += [
            source
            for ordinal, source in enumerate(node.inputs)
            if not (only_held_up and node.transform.absorbs(ordinal))
        ]
    return seen
