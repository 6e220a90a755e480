"""Reruns: what comes out of the vertices of a DAG if Spark runs their tasks again.

When an executor is lost Spark runs the tasks again whose output was there and is still wanted,
perhaps after others have read the first output. Where items are dealt out by turns, a task that
emits them in another order would then send some to a task that has been done without them, and some
twice.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from jetlet.core.dag import DAG
from jetlet.core.edge import Edge, Routing
from jetlet.core.traits import Repeats
from jetlet.core.vertex import Vertex
from jetlet.spark.batch.fragments import Fragment, is_broadcast
from jetlet.spark.frames import frame_source


class Rerun(enum.IntEnum):
    """What a vertex emits if the tasks on the way to it are run again."""

    DIFFERS = 0
    """Anything. What it sends to other tasks has to be kept: nobody can make it again."""
    SAME_ITEMS = 1
    """The same items in any order. Each goes where its value says."""
    SAME_ORDER = 2
    """The same items in the same order. They may be dealt out by turns."""


def reruns(dag: DAG, fragments: Iterable[Fragment]) -> dict[Vertex, Rerun]:
    """By vertex of the DAG, which is cut into these fragments."""
    exchanged = {x.edge for fragment in fragments for x in fragment.outputs}
    found: dict[Vertex, Rerun] = {}
    for vertex in dag:
        inbound = [edge for edge in dag.inbound(vertex) if not is_broadcast(edge)]
        given = min((_arriving(found, e, exchanged) for e in inbound), default=Rerun.SAME_ORDER)
        if len(inbound) > 1:
            given = min(given, Rerun.SAME_ITEMS)  # they mix by chance
        found[vertex] = _emitted(vertex, inbound, given)
    return found


def _arriving(found: dict[Vertex, Rerun], edge: Edge, exchanged: set[Edge]) -> Rerun:
    sent = found[edge.source]
    # What differs is kept on its way to other tasks.
    return Rerun.SAME_ORDER if edge in exchanged and sent is Rerun.DIFFERS else sent


def _emitted(vertex: Vertex, inbound: list[Edge], given: Rerun) -> Rerun:
    repeats, is_one = vertex.traits.repeats, vertex.parallelism(1) == 1
    if frame_source(vertex) is not None:
        repeats &= Repeats.ITEMS  # Spark may have shuffled the rows, which then come in any order
    if not is_one and any(edge.routing is Routing.UNICAST for edge in inbound):
        given = min(given, Rerun.SAME_ITEMS)  # each takes what it comes to
    if given is Rerun.SAME_ORDER and Repeats.IN_ORDER in repeats:
        return Rerun.SAME_ORDER if is_one else Rerun.SAME_ITEMS
    if given is not Rerun.DIFFERS and Repeats.ITEMS in repeats:
        return Rerun.SAME_ITEMS
    return Rerun.DIFFERS
