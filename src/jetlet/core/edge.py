"""Edge: how items get from the processors of one vertex to those of the next."""

from __future__ import annotations

import enum
from collections.abc import Callable
from copy import copy
from typing import Any

from jetlet.core.vertex import Vertex
from jetlet.errors import InvalidArgumentError, InvalidDagError

DEFAULT_QUEUE_SIZE = 1024
"""Items that a queue between two processors holds at the most."""


class Routing(enum.Enum):
    """Which of the downstream processors gets an item."""

    UNICAST = "unicast"
    """Any one; a full queue is skipped."""
    ISOLATED = "isolated"
    """Each processor sends to a fixed one behind the edge, so that the order is kept."""
    PARTITIONED = "partitioned"
    """Each item goes to the processor that owns the partition of its key."""
    BROADCAST = "broadcast"
    """Each item goes to all processors behind the edge."""
    FANOUT = "fanout"
    """Each item goes to one processor on each member."""


class Edge:
    """A connection between two vertices, configured by chained calls; each returns the edge."""

    def __init__(
        self, source: Vertex, source_ordinal: int, dest: Vertex | None = None, dest_ordinal: int = 0
    ) -> None:
        self.source = source
        self.source_ordinal = _check_ordinal(source_ordinal)
        self._dest = dest
        self.dest_ordinal = _check_ordinal(dest_ordinal)
        self.routing = Routing.UNICAST
        self.key_fn: Callable[[Any], Any] | None = None
        self.checks_every_key = False
        """True if nobody behind the edge finds the keys that have no stable hash, where it has a
        single target and need not look at them."""
        self.may_split_keys = False
        """True if what is made of equal keys is combined behind, and their order is not wanted: a
        key then gathers items, and need not where that takes longer."""
        self.is_distributed = False
        self.priority_value = 0
        self.queue_capacity = DEFAULT_QUEUE_SIZE
        self.sort_key: Callable[[Any], Any] | None = None
        """What the items of each upstream processor are sorted by, and stay sorted by behind the
        edge; ``None`` if their order says nothing."""

    def to(self, dest: Vertex, ordinal: int = 0) -> Edge:
        """Set the destination."""
        if self._dest is not None:
            raise InvalidDagError(f"{self} has a destination already")
        self._dest = dest
        self.dest_ordinal = _check_ordinal(ordinal)
        return self

    def between(self, source: Vertex, dest: Vertex) -> Edge:
        """The same edge between other vertices."""
        twin = copy(self)
        twin.source, twin._dest = source, dest
        return twin

    @property
    def dest(self) -> Vertex:
        """The destination."""
        if self._dest is None:
            raise InvalidDagError(
                f"the edge from {self.source.name!r} leads nowhere: "
                f"write from_({self.source.name}, {self.source_ordinal}).to(vertex)"
            )
        return self._dest

    def unicast(self) -> Edge:
        """Each item to any one processor, on the same member to one near the sender. The default.

        What is distributed goes to all in turn.
        """
        self.routing = Routing.UNICAST
        return self

    def isolated(self) -> Edge:
        """Each upstream processor feeds its own downstream ones: the order is kept."""
        self.routing = Routing.ISOLATED
        return self

    def partitioned(self, key_fn: Callable[[Any], Any] | None = None) -> Edge:
        """Items with equal keys to the same processor. Without ``key_fn`` the item is the key."""
        self.routing = Routing.PARTITIONED
        self.key_fn = key_fn
        return self

    def broadcast(self) -> Edge:
        """Each item to all processors."""
        self.routing = Routing.BROADCAST
        return self

    def fanout(self) -> Edge:
        """Each item to one processor on each member."""
        self.routing = Routing.FANOUT
        return self

    def all_to_one(self) -> Edge:
        """All items of the whole job to one processor."""
        return self.partitioned(one_key).distributed()

    def distributed(self) -> Edge:
        """Items may go to another member. Without it they stay on theirs."""
        self.is_distributed = True
        return self

    def priority(self, value: int) -> Edge:
        """Edges with a lower value are drained to the end before those with a higher one."""
        self.priority_value = value
        return self

    def ordered(self, key: Callable[[Any], Any] | None = None) -> Edge:
        """Merge what is sorted: each processor behind the edge gets its items in order.

        Every upstream processor has to emit its items sorted by ``key``, or by themselves without
        one; for a comparator write ``functools.cmp_to_key``. The edge takes the smallest of what
        the upstream processors have for a processor, so it waits until each of them has something
        or has ended. Items with equal keys stay in the order in which one processor has sent them.
        Jobs that take snapshots, and Spark, refuse such an edge.
        """
        self.sort_key = key if key is not None else itself
        return self

    def queue_size(self, items: int) -> Edge:
        """Bound of each queue of this edge, in items."""
        if items < 1:
            raise InvalidArgumentError(f"a queue must hold at least one item, not {items}")
        self.queue_capacity = items
        return self

    @property
    def takes_anybody(self) -> bool:
        """Whether an item may go to any of the processors behind the edge."""
        return self.routing is Routing.UNICAST or self.may_split_keys

    def __repr__(self) -> str:
        dest = self._dest.name if self._dest else "?"
        text = f"Edge({self.source.name}:{self.source_ordinal} -> {dest}:{self.dest_ordinal}"
        if self.routing is not Routing.UNICAST or self.is_distributed:
            text += f", {self.label}"
        if self.sort_key is not None:
            text += ", ordered"
        return text + ")"

    @property
    def label(self) -> str:
        """The routing as shown in drawings, empty for the default one."""
        routing = "" if self.routing is Routing.UNICAST else self.routing.value
        if not self.is_distributed:
            return routing
        return f"distributed-{routing}" if routing else "distributed"


def between(source: Vertex, dest: Vertex) -> Edge:
    """An edge from ordinal 0 of ``source`` to ordinal 0 of ``dest``."""
    return Edge(source, 0, dest, 0)


def from_(source: Vertex, ordinal: int = 0) -> Edge:
    """An edge from the given output of ``source``; complete it with ``.to(vertex, ordinal)``."""
    return Edge(source, ordinal)


def one_key(item: Any) -> None:
    """The key function of an all-to-one edge: every item has the same key."""


def itself(item: Any) -> Any:
    """The key by which items are sorted if nobody says another."""
    return item


def _check_ordinal(ordinal: int) -> int:
    if ordinal < 0:
        raise InvalidArgumentError(f"an ordinal counts from 0, not {ordinal}")
    return ordinal
