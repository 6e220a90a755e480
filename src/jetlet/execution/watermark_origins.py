"""WatermarkOrigins: which processors the watermarks of a queue come from in the end.

Watermarks are made by sources and by processors that give items timestamps; others pass on to all
processors behind them what they have combined. So the processors of one vertex mostly have the same
to say, only not at the same moment. That matters when a stream that was idle goes on: as soon as
one of them has said so, the others must be waited for, or what they still hold would be overtaken
by the watermark of the first. Inputs with other origins stay idle, and are not waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from jetlet.core.dag import DAG
from jetlet.core.edge import Edge, Routing
from jetlet.core.vertex import Vertex

Origins: TypeAlias = frozenset[tuple[str, int, int]]
"""Processors that make watermarks: vertex, member, index on the member."""


class WatermarkOrigins:
    """The origins of all processors of a job, on all members.

    ``makers`` names the vertices, besides the sources, whose processors make watermarks.
    """

    def __init__(
        self, dag: DAG, members: int, default_parallelism: int, makers: Collection[str]
    ) -> None:
        self._members = members
        self._default_parallelism = default_parallelism
        self._of: dict[tuple[str, int, int], Origins] = {}
        for vertex in dag:
            edges = dag.inbound(vertex)
            for member in range(members):
                for index in range(self._count(vertex, member)):
                    place = (vertex.name, member, index)
                    if not edges or vertex.name in makers:
                        self._of[place] = frozenset({place})
                    else:
                        feeding = (p for edge in edges for p in self._producers(edge, place))
                        self._of[place] = Origins().union(*map(self._of.__getitem__, feeding))

    def of(self, vertex: Vertex, member: int, index: int) -> Origins:
        """Those of one processor."""
        return self._of[vertex.name, member, index]

    def of_all(self, vertex: Vertex, member: int) -> Origins:
        """Those of all processors of a vertex on one member."""
        count = self._count(vertex, member)
        return Origins().union(*(self.of(vertex, member, index) for index in range(count)))

    def _count(self, vertex: Vertex, member: int) -> int:
        if vertex.is_single and member > 0:
            return 0
        return vertex.parallelism(self._default_parallelism)

    def _producers(self, edge: Edge, to: tuple[str, int, int]) -> Iterator[tuple[str, int, int]]:
        """The processors that have a queue to ``to`` over the edge."""
        _, member, index = to
        down = self._count(edge.dest, member)
        for other in range(self._members):
            if other != member and not edge.is_distributed:
                continue
            up = self._count(edge.source, other)
            for producer in range(up):
                if edge.routing is not Routing.ISOLATED or index % up == producer % down:
                    yield edge.source.name, other, producer
