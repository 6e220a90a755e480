"""Graph: the pipeline while it is being planned; passes change it, the pipeline stays as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jetlet.pipeline.transforms import Transform


@dataclass(eq=False)
class Node:
    """A transform in the graph, with where its items come from by ordinal."""

    transform: Transform
    inputs: list[Node]
    name: str
    parallelism: int | None = None
    """Processors per member; ``None`` leaves it to the vertex's default."""
    keeps_order: bool = False
    """The order of its input must be kept up to here."""


class Graph:
    """The nodes of a pipeline, each after those it reads from."""

    def __init__(self, transforms: Iterable[Transform]) -> None:
        self.nodes: list[Node] = []
        by_transform: dict[int, Node] = {}
        for transform in transforms:
            node = Node(
                transform, [by_transform[id(t)] for t in transform.inputs], transform.name
            )
            by_transform[id(transform)] = node
            self.nodes.append(node)

    def outputs(self, node: Node) -> list[Node]:
        """Who reads from the node; one that reads twice is there twice."""
        return [n for n in self.nodes for i in n.inputs if i is node]
