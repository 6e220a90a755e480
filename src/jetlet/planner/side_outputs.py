"""SideOutputs: which edges of a node's vertex are for what, known before the node is lowered."""

from __future__ import annotations

from dataclasses import dataclass

from jetlet.core.outbox import Ordinals
from jetlet.pipeline.sink import AnySink
from jetlet.planner.graph import Graph, Node
from jetlet.processors.base import ErrorPolicy


@dataclass(frozen=True, slots=True)
class SideOutputs:
    """The edges that leave a vertex, by what its processor sends there.

    The ordinary ones come first; behind them is one for each sink that takes failed or late items.
    Of a transform in two stages they are those of the first.
    """

    data: Ordinals
    """Those of the ordinary output: ``None`` for all there are, where no others leave."""
    policies: tuple[ErrorPolicy, ...]
    """What to do about errors, by step."""
    late: int | None
    """The one of late items, if there is a sink for them."""
    sinks: tuple[tuple[int, AnySink], ...]
    """Where those that are not ordinary lead, by ordinal."""

    @property
    def policy(self) -> ErrorPolicy:
        """What to do about errors, where there is a single step."""
        (policy,) = self.policies
        return policy

    @classmethod
    def of(cls, graph: Graph, node: Node) -> SideOutputs:
        """Those of a node."""
        transform = node.transform
        ordinary = 1 if transform.has_two_stages else _fanout(graph, node)
        sinks: list[tuple[int, AnySink]] = []

        def ordinal_of(sink: AnySink) -> int:
            sinks.append((ordinary + len(sinks), sink))
            return sinks[-1][0]

        policies = []
        for step, on_error in transform.steps_on_error:
            action, ordinal = "dead-letter", None
            if isinstance(on_error, str):
                action = on_error
            else:
                ordinal = ordinal_of(on_error)
            policies.append(ErrorPolicy(step or node.name, action, ordinal, node.takes_events))
        late = None if transform.late is None else ordinal_of(transform.late)
        data = tuple(range(ordinary)) if sinks else None
        return cls(data, tuple(policies), late, tuple(sinks))


def _fanout(graph: Graph, node: Node) -> int:
    """How many ordinary edges will leave the node."""
    count, found = 0, [node]
    while found:
        for reader, _ in graph.readers(found.pop()):
            if reader.transform.routing is None:
                count += 1
            else:
                found.append(reader)
    return count
