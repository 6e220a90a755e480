"""DAG: vertices and the edges between them, checked before anything runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping

from jetlet.core.edge import Edge, Routing
from jetlet.core.processor import Processor
from jetlet.core.vertex import USE_DEFAULT, ProcessorSupplier, Vertex
from jetlet.errors import InvalidDagError

PREPARE_SUFFIX = "-prepare"
"""Ends the name of the first vertex of a step that takes two."""


class DAG:
    """A graph of vertices. Build it with :meth:`new_vertex` and :meth:`edge`."""

    def __init__(self, name: str = "dag") -> None:
        self.name = name
        self._vertices: dict[str, Vertex] = {}
        self._edges: list[Edge] = []
        self._inbound: defaultdict[Vertex, dict[int, Edge]] = defaultdict(dict)
        """Edges by the vertex and the ordinal that they come in at."""
        self._outbound: defaultdict[Vertex, dict[int, Edge]] = defaultdict(dict)

    def new_vertex(
        self,
        name: str,
        supplier: Callable[[], Processor] | ProcessorSupplier,
        local_parallelism: int = USE_DEFAULT,
    ) -> Vertex:
        """Make a vertex and add it."""
        return self.vertex(Vertex(name, supplier, local_parallelism))

    def new_unique_vertex(
        self,
        name: str,
        supplier: Callable[[], Processor] | ProcessorSupplier,
        local_parallelism: int = USE_DEFAULT,
    ) -> Vertex:
        """The same, under the name with a number behind it if the DAG has one of that name."""
        number, free = 1, name
        while free in self._vertices:
            number += 1
            free = f"{name}-{number}"
        return self.new_vertex(free, supplier, local_parallelism)

    def vertex(self, vertex: Vertex) -> Vertex:
        """Add a vertex; names are unique within a DAG."""
        if vertex.name in self._vertices:
            raise InvalidDagError(
                f"there is already a vertex named {vertex.name!r}; give each its own name"
            )
        self._vertices[vertex.name] = vertex
        return vertex

    def edge(self, edge: Edge) -> DAG:
        """Add an edge between two vertices of this DAG; returns the DAG, to chain calls."""
        for vertex in (edge.source, edge.dest):
            if self._vertices.get(vertex.name) is not vertex:
                raise InvalidDagError(
                    f"{edge}: vertex {vertex.name!r} is not in this DAG; "
                    f"add it first with dag.vertex(...) or dag.new_vertex(...)"
                )
        outbound, inbound = self._outbound[edge.source], self._inbound[edge.dest]
        if edge.source_ordinal in outbound:
            raise InvalidDagError(
                f"vertex {edge.source.name!r} has two outbound edges with ordinal "
                f"{edge.source_ordinal}: write from_({edge.source.name}, "
                f"{_free(outbound)}).to(...)"
            )
        if edge.dest_ordinal in inbound:
            raise InvalidDagError(
                f"vertex {edge.dest.name!r} has two inbound edges with ordinal "
                f"{edge.dest_ordinal}: write .to({edge.dest.name}, {_free(inbound)})"
            )
        outbound[edge.source_ordinal] = inbound[edge.dest_ordinal] = edge
        self._edges.append(edge)
        return self

    def copy(self, twin: Callable[[Vertex], Vertex]) -> DAG:
        """The same DAG of other vertices: ``twin`` makes one of each."""
        made = DAG(self.name)
        twins = {vertex: made.vertex(twin(vertex)) for vertex in self.vertices}
        for edge in self._edges:
            made.edge(edge.between(twins[edge.source], twins[edge.dest]))
        return made

    @property
    def vertices(self) -> tuple[Vertex, ...]:
        """All vertices, in the order they were added."""
        return tuple(self._vertices.values())

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, in the order they were added."""
        return tuple(self._edges)

    def __getitem__(self, name: str) -> Vertex:
        return self._vertices[name]

    def __contains__(self, name: object) -> bool:
        return name in self._vertices

    def __iter__(self) -> Iterator[Vertex]:
        """Vertices in topological order: each comes after all that feed it."""
        return iter(self._topological_order())

    def inbound(self, vertex: Vertex) -> list[Edge]:
        """Inbound edges by ordinal."""
        return _by_ordinal(self._inbound.get(vertex, {}))

    def outbound(self, vertex: Vertex) -> list[Edge]:
        """Outbound edges by ordinal."""
        return _by_ordinal(self._outbound.get(vertex, {}))

    def validate(self) -> None:
        """Refuse what cannot run: no vertices, gaps in ordinals, a cycle."""
        if not self._vertices:
            raise InvalidDagError("the DAG has no vertices")
        for vertex in self.vertices:
            self._check_ordinals(vertex, "inbound", [e.dest_ordinal for e in self.inbound(vertex)])
            self._check_ordinals(
                vertex, "outbound", [e.source_ordinal for e in self.outbound(vertex)]
            )
        for edge in self._edges:
            if edge.is_distributed and edge.routing is Routing.ISOLATED:
                raise InvalidDagError(
                    f"{edge}: items of an isolated edge stay with their processor, so they cannot "
                    f"go to another member; write .isolated() without .distributed()"
                )
        self._topological_order()

    @staticmethod
    def _check_ordinals(vertex: Vertex, direction: str, ordinals: list[int]) -> None:
        for expected, ordinal in enumerate(ordinals):
            if ordinal != expected:
                raise InvalidDagError(
                    f"the {direction} edges of vertex {vertex.name!r} have ordinals {ordinals}: "
                    f"{expected} is missing; number them from 0 without a gap"
                )

    def _topological_order(self) -> list[Vertex]:
        outbound = defaultdict(list)
        missing = dict.fromkeys(self._vertices, 0)
        for edge in self._edges:
            outbound[edge.source.name].append(edge.dest.name)
            missing[edge.dest.name] += 1
        ready = [name for name, count in missing.items() if count == 0]
        order = []
        for name in ready:  # grows while it is read
            order.append(self._vertices[name])
            for dest in outbound[name]:
                missing[dest] -= 1
                if missing[dest] == 0:
                    ready.append(dest)
        if len(order) < len(self._vertices):
            left = {name for name, count in missing.items() if count > 0}
            raise InvalidDagError(
                f"the DAG has a cycle: {' -> '.join(_find_cycle(left, outbound))}; "
                f"data must flow one way"
            )
        return order

    def to_dot(self, default_parallelism: int = 1) -> str:
        """The DAG in the DOT language of Graphviz."""
        lines = ["digraph DAG {"]
        lines += [
            f'    "{_quoted(v.name)}" [localParallelism={v.parallelism(default_parallelism)}];'
            for v in self.vertices
        ]
        clusters = 0
        for edge in sorted(self._edges, key=self._drawing_order()):
            arrow = f'"{_quoted(edge.source.name)}" -> "{_quoted(edge.dest.name)}"'
            size = f"queueSize={edge.queue_capacity}"
            if edge.source.name == edge.dest.name + PREPARE_SUFFIX:
                lines.append(f"    subgraph cluster_{clusters} {{")
                lines.append(f"        {arrow}")
                lines.append(f'            [label="{edge.label}", {size}];')
                lines.append("    }")
                clusters += 1
            elif edge.label:
                lines += [f"    {arrow}", f'        [label="{edge.label}", {size}];']
            else:
                lines.append(f"    {arrow} [{size}];")
        lines.append("}")
        return "\n".join(lines)

    def _drawing_order(self) -> Callable[[Edge], tuple[int, int]]:
        position = {name: i for i, name in enumerate(self._vertices)}
        return lambda edge: (position[edge.source.name], edge.source_ordinal)

    def __str__(self) -> str:
        return self.to_dot()

    def is_local(self) -> bool:
        """True if no edge leaves its member."""
        return not any(e.is_distributed or e.routing is Routing.FANOUT for e in self._edges)


def _find_cycle(names: set[str], outbound: dict[str, list[str]]) -> list[str]:
    """Some cycle among ``names``, each of which is on one or behind one."""
    inbound = {n: [m for m in names if n in outbound[m]] for n in names}
    path = [min(names)]
    while True:
        # Walk against the arrows: every vertex left has a predecessor that is left too.
        previous = min(inbound[path[-1]])
        if previous in path:
            cycle = path[path.index(previous) :]
            return [previous, *reversed(cycle)]
        path.append(previous)


def key_name(edge: Edge) -> str:
    """What the key of an edge is called in messages: by the stage that it is for."""
    return f"key of {edge.dest.name.removesuffix(PREPARE_SUFFIX)}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _by_ordinal(edges: Mapping[int, Edge]) -> list[Edge]:
    return [edges[ordinal] for ordinal in sorted(edges)]


def _free(used: Collection[int]) -> int:
    """The lowest ordinal that is not in use yet."""
    return next(i for i in range(len(used) + 1) if i not in used)
