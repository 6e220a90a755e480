"""Edges are built by chained calls."""

from __future__ import annotations

import pytest

from jetlet.core import DEFAULT_QUEUE_SIZE, Processor, Routing, Vertex, between, from_
from jetlet.errors import InvalidArgumentError, InvalidDagError

A = Vertex("a", Processor)
B = Vertex("b", Processor)


def test_between_joins_ordinals_zero_by_unicast():
    edge = between(A, B)
    assert (edge.source, edge.source_ordinal, edge.dest, edge.dest_ordinal) == (A, 0, B, 0)
    assert edge.routing is Routing.UNICAST
    assert not edge.is_distributed
    assert edge.priority_value == 0
    assert edge.queue_capacity == DEFAULT_QUEUE_SIZE == 1024


def test_from_to_names_both_ordinals():
    edge = from_(A, 2).to(B, 3)
    assert (edge.source_ordinal, edge.dest_ordinal) == (2, 3)


def test_builder_returns_the_edge_itself():
    edge = between(A, B)
    assert edge.isolated().priority(-1).queue_size(5).distributed() is edge
    assert edge.routing is Routing.ISOLATED
    assert edge.priority_value == -1
    assert edge.queue_capacity == 5
    assert edge.is_distributed


@pytest.mark.parametrize(
    ("configure", "routing", "label"),
    [
        (lambda e: e.unicast(), Routing.UNICAST, ""),
        (lambda e: e.isolated(), Routing.ISOLATED, "isolated"),
        (lambda e: e.partitioned(str), Routing.PARTITIONED, "partitioned"),
        (lambda e: e.broadcast(), Routing.BROADCAST, "broadcast"),
        (lambda e: e.fanout(), Routing.FANOUT, "fanout"),
        (lambda e: e.distributed(), Routing.UNICAST, "distributed"),
        (lambda e: e.partitioned().distributed(), Routing.PARTITIONED, "distributed-partitioned"),
        (lambda e: e.broadcast().unicast(), Routing.UNICAST, ""),
    ],
)
def test_routing_and_its_label(configure, routing, label):
    edge = configure(between(A, B))
    assert edge.routing is routing
    assert edge.label == label


def test_partitioned_keeps_the_key_function():
    assert between(A, B).partitioned(len).key_fn is len
    assert between(A, B).partitioned().key_fn is None


def test_all_to_one_gives_every_item_the_same_key():
    edge = between(A, B).all_to_one()
    assert edge.label == "distributed-partitioned"
    assert edge.key_fn is not None
    assert edge.key_fn("x") == edge.key_fn(1)


def test_repr_says_from_where_to_where():
    assert repr(from_(A, 1).to(B, 2)) == "Edge(a:1 -> b:2)"
    assert repr(from_(A)) == "Edge(a:0 -> ?:0)"
    assert repr(between(A, B).broadcast()) == "Edge(a:0 -> b:0, broadcast)"


def test_second_destination_is_refused():
    with pytest.raises(InvalidDagError, match="has a destination already"):
        between(A, B).to(B)


@pytest.mark.parametrize("make", [lambda: from_(A, -1), lambda: from_(A).to(B, -1)])
def test_negative_ordinal_is_refused(make):
    with pytest.raises(InvalidArgumentError, match="counts from 0, not -1"):
        make()


def test_queue_without_room_is_refused():
    with pytest.raises(InvalidArgumentError, match="at least one item, not 0"):
        between(A, B).queue_size(0)
