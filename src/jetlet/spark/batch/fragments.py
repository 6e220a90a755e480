"""Fragments: a Core DAG cut into the parts that run in one pass through Python each.

Vertices that are joined by local edges stay together; a distributed edge is an exchange between two
fragments, which Spark carries out. Some local edges are cut too:

- A vertex in one task only and one in many cannot share a fragment.
- A DataFrame decides by itself in how many tasks it is read, so what reads it shares a fragment
  with no other source, nor with a vertex that needs to know which of its tasks is the first.
- No fragment may wait for itself: each vertex has a level, which rises along every exchange, and
  only vertices of one level stay together.

A broadcast edge is carried by the driver, after the fragment behind it has run, so it does not
raise the level of its reader unless that is what it takes to avoid a circle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from jetlet.core.dag import DAG
from jetlet.core.edge import Edge, Routing
from jetlet.core.vertex import Vertex
from jetlet.errors import UnsupportedFeatureError


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
    """True if the fragment runs in one task only."""
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

    @property
    def shuffled_outputs(self) -> list[Exchange]:
        """What leaves it for a shuffle."""
        return [exchange for exchange in self.outputs if not exchange.is_broadcast]

    @property
    def broadcast_outputs(self) -> list[Exchange]:
        """What the driver brings to every task of other fragments."""
        return [exchange for exchange in self.outputs if exchange.is_broadcast]


def is_broadcast(edge: Edge) -> bool:
    """True for edges on which every member gets all items."""
    return edge.is_distributed and edge.routing in (Routing.BROADCAST, Routing.FANOUT)


def cut(dag: DAG, frames: Iterable[Vertex] = (), numbered: Iterable[Vertex] = ()) -> list[Fragment]:
    """The fragments in an order in which each comes after those it reads from.

    ``frames`` are the sources that read DataFrames, ``numbered`` the vertices whose tasks must be
    numbered from 0.
    """
    raising: set[Edge] = set()
    while True:
        fragments = _Cutting(dag, set(frames), set(numbered), raising).fragments()
        order = _order(fragments)
        if order is not None:
            for index, fragment in enumerate(order):
                fragment.index = index
            return order
        # Some broadcast closes a circle: let the most upstream one that does not yet raise do so.
        raising.add(next(e for e in dag.edges if is_broadcast(e) and e not in raising))


class _Cutting:
    """One attempt at cutting a DAG; ``raising`` are broadcast edges that raise the level too."""

    def __init__(
        self, dag: DAG, frames: set[Vertex], numbered: set[Vertex], raising: set[Edge]
    ) -> None:
        self._dag = dag
        self._raising = raising
        self._is_single: dict[Vertex, bool] = {}
        self._frame: dict[Vertex, Vertex | None] = {}
        """The DataFrame that decides in how many tasks a vertex runs, if one does."""
        self._level: dict[Vertex, int] = {}
        for vertex in dag:
            inbound = dag.inbound(vertex)
            local = [e for e in inbound if not e.is_distributed]
            self._is_single[vertex] = vertex.is_single or (
                bool(inbound)
                and len(local) == len(inbound)
                and all(self._is_single[e.source] for e in local)
            )
            if vertex in frames:
                self._frame[vertex] = vertex
            else:
                self._frame[vertex] = None if vertex in numbered else self._common_frame(vertex)
            self._level[vertex] = max(
                (self._level[e.source] + self._rises(e) for e in inbound), default=0
            )

    def _common_frame(self, vertex: Vertex) -> Vertex | None:
        """The DataFrame behind all of its edges; ``None`` if something else is as well."""
        frames = {
            self._frame[e.source] if self._is_narrow(e) else None
            for e in self._dag.inbound(vertex)
            if not is_broadcast(e)
        }
        return frames.pop() if len(frames) == 1 else None

    def _is_narrow(self, edge: Edge) -> bool:
        """True if items that come over the edge may stay in their task."""
        return (
            not edge.is_distributed and self._is_single[edge.source] == self._is_single[edge.dest]
        )

    def _is_exchange(self, edge: Edge) -> bool:
        """True if the edge cannot stay within a fragment."""
        return not self._is_narrow(edge) or self._frame[edge.source] is not self._frame[edge.dest]

    def _rises(self, edge: Edge) -> bool:
        if is_broadcast(edge):
            return edge in self._raising
        return self._is_exchange(edge)

    def fragments(self) -> list[Fragment]:
        """What came of it, with the exchanges between them."""
        dag = self._dag
        groups = {vertex: {vertex} for vertex in dag.vertices}
        for edge in dag.edges:
            is_level = self._level[edge.source] == self._level[edge.dest]
            if is_level and not self._is_exchange(edge):
                joined = groups[edge.source] | groups[edge.dest]
                for vertex in joined:
                    groups[vertex] = joined
        fragments: dict[int, Fragment] = {}
        for vertex in dag:
            key = id(groups[vertex])
            fragment = fragments.setdefault(key, Fragment(0, [], self._is_single[vertex]))
            fragment.vertices.append(vertex)
        for channel, edge in enumerate(dag.edges):
            source, dest = fragments[id(groups[edge.source])], fragments[id(groups[edge.dest])]
            if source is not dest or edge.is_distributed:
                exchange = Exchange(channel, edge, source, dest)
                source.outputs.append(exchange)
                dest.inputs.append(exchange)
        return list(fragments.values())


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


def channel_order(dag: DAG, fragment: Fragment) -> dict[int, int]:
    """In which order a task of the fragment must read the channels that are shuffled to it.

    They come over one stream. Where a vertex drains an edge of higher priority to its end first,
    all that leads to that edge has to come before what leads to its others, which nobody takes
    meanwhile. Channels with the same number may come mixed.
    """
    inside = set(fragment.vertices)
    reaching: dict[Edge, set[int]] = {}
    by_edge = {x.edge: x.channel for x in fragment.shuffled_inputs}
    ahead: dict[int, set[int]] = {channel: set() for channel in by_edge.values()}
    for vertex in (v for v in dag if v in inside):
        inbound = dag.inbound(vertex)
        for edge in inbound:
            if edge in by_edge:
                reaching[edge] = {by_edge[edge]}
        for edge in inbound:
            for first in inbound:
                if first.priority_value < edge.priority_value:
                    for channel in reaching.get(edge, ()):
                        ahead[channel] |= reaching.get(first, set())
        through = set[int]().union(*(reaching.get(edge, ()) for edge in inbound))
        for edge in dag.outbound(vertex):
            if edge.dest in inside:
                reaching[edge] = through
    return _ranks(ahead, fragment)


def _ranks(ahead: dict[int, set[int]], fragment: Fragment) -> dict[int, int]:
    """A number for each channel, higher than those of the channels that must come before it."""
    ranks: dict[int, int] = {}
    while len(ranks) < len(ahead):
        ready = [c for c, before in ahead.items() if c not in ranks and before <= ranks.keys()]
        if not ready:
            raise UnsupportedFeatureError(
                f"the vertices {fragment.name} read the same items over edges of different "
                f"priority, which on Spark would wait for each other for ever: give all of these "
                f"edges the same priority"
            )
        rank = max(ranks.values(), default=-1) + 1
        ranks.update(dict.fromkeys(ready, rank))
    return ranks
