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
    parallelism: int = 1
    """Processors per member."""
    is_ordered: bool = False
    """Its items come out in an order that is to be kept by those behind it."""
    takes_events: bool = False
    """The items of its first input carry timestamps."""
    emits_events: bool = False
    """Its own items do."""


class Graph:
    """The nodes of a pipeline, each after those it reads from."""

    def __init__(self, transforms: Iterable[Transform]) -> None:
        self.nodes: list[Node] = []
        by_transform: dict[int, Node] = {}
        for transform in transforms:
            inputs = [by_transform[id(t)] for t in transform.inputs]
            node = Node(transform, inputs, transform.name)
            by_transform[id(transform)] = node
            self.nodes.append(node)

    def outputs(self, node: Node) -> list[Node]:
        """Who reads from the node; one that reads twice is there twice."""
        return [n for n in self.nodes for i in n.inputs if i is node]

    def insert_before(self, node: Node, ordinal: int, transform: Transform) -> Node:
        """Put a new node between the node and its input ``ordinal``."""
        new = Node(transform, [node.inputs[ordinal]], transform.name)
        node.inputs[ordinal] = new
        self.nodes.insert(self.nodes.index(node), new)
        return new
