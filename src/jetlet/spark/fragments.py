"""Fragments: a Core DAG cut into the parts that run in one pass through Python each.

Vertices that are joined by local edges stay together; a distributed edge is an exchange between two
fragments, which Spark carries out. So that no fragment waits for itself, some local edges are cut
too: each vertex has a level, which rises along every exchange, and only vertices of one level stay
together. A broadcast edge is carried by the driver, after the fragment behind it has run, so it
does not raise the level of its reader unless that is what it takes to avoid a circle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from jetlet.core.dag import DAG
from jetlet.core.edge import Edge, Routing
from jetlet.core.vertex import Vertex


@dataclass(eq=False)
class Exchange:
    """An edge between two fragments."""

    channel: int
    edge: Edge
    source: Fragment
    dest: Fragment

    @property
    def is_broadcast(self) -> bool:
        """Every task of the reading fragment gets all of it."""
        return is_broadcast(self.edge)


@dataclass(eq=False)
class Fragment:
    """Vertices that run together in the tasks of one Spark stage."""

    index: int
    vertices: list[Vertex]
    is_single: bool
    """It has one task only."""
    inputs: list[Exchange] = field(default_factory=list)
    outputs: list[Exchange] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The vertices, as shown in Spark's user interface."""
        return " + ".join(vertex.name for vertex in self.vertices)

    @property
    def shuffled_inputs(self) -> list[Exchange]:
        """What comes to it through a shuffle."""
        return [exchange for exchange in self.inputs if not exchange.is_broadcast]


def is_broadcast(edge: Edge) -> bool:
    """True for edges on which every member gets all items."""
    return edge.is_distributed and edge.routing in (Routing.BROADCAST, Routing.FANOUT)


def cut(dag: DAG, alone: Iterable[Vertex] = ()) -> list[Fragment]:
    """The fragments in an order in which each comes after those it reads from.

    ``alone`` are sources that must not share a fragment with another source.
    """
    apart = set(alone)
    raising: set[Edge] = set()
    while True:
        fragments = _fragments(dag, raising, apart)
        order = _order(fragments)
        if order is not None:
            for index, fragment in enumerate(order):
                fragment.index = index
            return order
        # Some broadcast closes a circle: let the most upstream one that does not yet raise do so.
        raising.add(next(e for e in dag.edges if is_broadcast(e) and e not in raising))


def _fragments(dag: DAG, raising: set[Edge], apart: set[Vertex]) -> list[Fragment]:
    level: dict[Vertex, int] = {}
    single: dict[Vertex, bool] = {}
    for vertex in dag:
        inbound = dag.inbound(vertex)
        local = [e for e in inbound if not e.is_distributed]
        single[vertex] = vertex.is_single or (
            bool(inbound) and len(local) == len(inbound) and all(single[e.source] for e in local)
        )
        level[vertex] = max(
            (
                level[e.source] + _is_exchange(e, single, raising, apart, len(inbound))
                for e in inbound
                if not is_broadcast(e) or e in raising
            ),
            default=0,
        )
    groups = {vertex: {vertex} for vertex in dag.vertices}
    for edge in dag.edges:
        if (
            not is_broadcast(edge)
            and level[edge.source] == level[edge.dest]
            and not _is_exchange(edge, single, raising, apart, len(dag.inbound(edge.dest)))
        ):
            joined = groups[edge.source] | groups[edge.dest]
            for vertex in joined:
                groups[vertex] = joined
    fragments: dict[int, Fragment] = {}
    for vertex in dag:
        group = groups[vertex]
        fragment = fragments.setdefault(id(group), Fragment(0, [], single[vertex]))
        fragment.vertices.append(vertex)
    for channel, edge in enumerate(dag.edges):
        source, dest = fragments[id(groups[edge.source])], fragments[id(groups[edge.dest])]
        if source is not dest or edge.is_distributed:
            exchange = Exchange(channel, edge, source, dest)
            source.outputs.append(exchange)
            dest.inputs.append(exchange)
    return list(fragments.values())


def _is_exchange(
    edge: Edge,
    single: dict[Vertex, bool],
    raising: set[Edge],
    apart: set[Vertex],
    inbound: int,
) -> bool:
    """True if the edge cannot stay within a fragment."""
    if edge.is_distributed:
        return not is_broadcast(edge) or edge in raising
    if single[edge.source] != single[edge.dest]:
        return True
    return edge.source in apart and inbound > 1


def _order(fragments: list[Fragment]) -> list[Fragment] | None:
    """Fragments by what they depend on; ``None`` if there is a circle."""
    done: list[Fragment] = []
    left = list(fragments)
    while left:
        ready = [f for f in left if all(x.source in done for x in f.inputs)]
        if not ready:
            return None
        done += ready
        left = [f for f in left if f not in ready]
    return done
