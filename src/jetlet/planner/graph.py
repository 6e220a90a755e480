"""Graph: the pipeline while it is being planned; passes change it, the pipeline stays as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from jetlet.pipeline.transforms.base import Transform


@dataclass(eq=False)
class Node:
    """A transform in the graph, with where its items come from by ordinal."""

    transform: Transform
    inputs: list[Node]
    name: str
    parallelism: int = 1
    """Number of processors on each member."""
    is_ordered: bool = False
    """Its items come out in an order that is to be kept by those behind it."""
    takes_events: bool = False
    """True if the items of the node's first input carry timestamps."""
    emits_events: bool = False
    """The items that the node emits carry timestamps."""
    in_columns: bool = False
    """It works on columns, as far as its input comes so."""
    gives_columns: bool = False
    """What it emits may come as columns."""
    asked_for: frozenset[str] | None = None
    """The fields of its items that anybody asks for, if it is a source; ``None`` for all."""


class Graph:
    """The nodes of a pipeline, each after those it reads from."""

    def __init__(self, transforms: Iterable[Transform]) -> None:
        self.nodes: list[Node] = []
        self._readers: dict[Node, list[tuple[Node, int]]] | None = None
        by_transform: dict[int, Node] = {}
        for transform in transforms:
            inputs = [by_transform[id(t)] for t in transform.inputs]
            node = Node(transform, inputs, transform.name)
            by_transform[id(transform)] = node
            self.nodes.append(node)

    def readers(self, node: Node) -> list[tuple[Node, int]]:
        """Who reads from the node, and as which of its inputs."""
        if self._readers is None:
            self._readers = {n: [] for n in self.nodes}
            for reader in self.nodes:
                for ordinal, source in enumerate(reader.inputs):
                    self._readers[source].append((reader, ordinal))
        return self._readers[node]

    def insert_before(self, node: Node, ordinal: int, transform: Transform) -> Node:
        """Put a new node between the node and its input ``ordinal``."""
        source = node.inputs[ordinal]
        transform.inputs = [source.transform]  # some of its facts follow from theirs
        new = Node(transform, [source], transform.name)
        node.inputs[ordinal] = new
        self.nodes.insert(self.nodes.index(node), new)
        self._readers = None
        return new

    def replace(self, replaced: Mapping[Node, Node], dropped: Collection[Node]) -> None:
        """Put nodes in the place of others, and leave some out that nobody reads any more."""
        self.nodes = [replaced.get(node, node) for node in self.nodes if node not in dropped]
        for node in self.nodes:
            node.inputs = [replaced.get(source, source) for source in node.inputs]
        self._readers = None
