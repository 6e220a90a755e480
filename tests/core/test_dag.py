"""A DAG refuses what cannot run, says what to write instead, and can draw itself."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core import DAG, Processor, Vertex, between, from_
from jetlet.errors import InvalidDagError

SEED_002 = """\
digraph DAG {
    "filesSource(/*)" [localParallelism=1];
    "fused(flat-map, filter)" [localParallelism=2];
    "group-and-aggregate-prepare" [localParallelism=2];
    "group-and-aggregate" [localParallelism=2];
    "loggerSink" [localParallelism=1];
    "filesSource(/*)" -> "fused(flat-map, filter)" [queueSize=1024];
    "fused(flat-map, filter)" -> "group-and-aggregate-prepare"
        [label="partitioned", queueSize=1024];
    subgraph cluster_0 {
        "group-and-aggregate-prepare" -> "group-and-aggregate"
            [label="distributed-partitioned", queueSize=1024];
    }
    "group-and-aggregate" -> "loggerSink" [queueSize=1024];
}"""


def dag_of(*names: str) -> tuple[DAG, list[Vertex]]:
    dag = DAG()
    return dag, [dag.new_vertex(name, Processor) for name in names]


# --- Refusals -------------------------------------------------------------------------------


def test_empty_dag_is_refused():
    with pytest.raises(InvalidDagError, match="no vertices"):
        DAG().validate()


def test_duplicate_name_is_refused():
    dag, _ = dag_of("a")
    with pytest.raises(InvalidDagError, match="already a vertex named 'a'"):
        dag.new_vertex("a", Processor)


def test_edge_to_a_vertex_of_no_dag_is_refused():
    dag, (a,) = dag_of("a")
    with pytest.raises(InvalidDagError, match=r"vertex 'b' is not in this DAG; add it first"):
        dag.edge(between(a, Vertex("b", Processor)))


def test_vertex_of_another_dag_with_the_same_name_is_refused():
    dag, (a, _) = dag_of("a", "b")
    _, (other_b,) = dag_of("b")
    with pytest.raises(InvalidDagError, match="'b' is not in this DAG"):
        dag.edge(between(a, other_b))


def test_edge_without_destination_is_refused():
    dag, (a,) = dag_of("a")
    with pytest.raises(InvalidDagError, match=r"leads nowhere: write from_\(a, 0\)\.to\(vertex\)"):
        dag.edge(from_(a))


def test_duplicate_outbound_ordinal_is_refused_with_the_free_one():
    dag, (a, b, c) = dag_of("a", "b", "c")
    dag.edge(between(a, b))
    with pytest.raises(InvalidDagError, match=r"two outbound edges with ordinal 0.*from_\(a, 1\)"):
        dag.edge(between(a, c))


def test_duplicate_inbound_ordinal_is_refused_with_the_free_one():
    dag, (a, b, c) = dag_of("a", "b", "c")
    dag.edge(from_(a).to(c, 0)).edge(from_(a, 1).to(c, 2))
    with pytest.raises(InvalidDagError, match=r"two inbound edges with ordinal 0.*\.to\(c, 1\)"):
        dag.edge(from_(b).to(c, 0))


def test_gap_in_outbound_ordinals_is_refused():
    dag, (a, b) = dag_of("a", "b")
    dag.edge(from_(a, 1).to(b))
    with pytest.raises(
        InvalidDagError, match=r"outbound edges of vertex 'a' .*\[1\]: 0 is missing"
    ):
        dag.validate()


def test_gap_in_inbound_ordinals_is_refused():
    dag, (a, b, c) = dag_of("a", "b", "c")
    dag.edge(between(a, c)).edge(from_(b).to(c, 2))
    with pytest.raises(
        InvalidDagError, match=r"inbound edges of vertex 'c' .*\[0, 2\]: 1 is missing"
    ):
        dag.validate()


def test_cycle_is_named():
    dag, (source, a, b, c, sink) = dag_of("source", "a", "b", "c", "sink")
    dag.edge(between(source, a)).edge(between(a, b)).edge(between(b, c))
    dag.edge(from_(c).to(a, 1)).edge(from_(c, 1).to(sink))
    with pytest.raises(InvalidDagError) as caught:
        dag.validate()
    path = str(caught.value).partition("cycle: ")[2].partition(";")[0].split(" -> ")
    assert path[0] == path[-1]
    assert sorted(path[1:]) == ["a", "b", "c"]
    assert "b -> c" in " -> ".join(path * 2)


def test_vertex_that_feeds_itself_is_a_cycle():
    dag, (a,) = dag_of("a")
    dag.edge(between(a, a))
    with pytest.raises(InvalidDagError, match="a cycle: a -> a"):
        dag.validate()


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_order_is_topological_or_a_real_cycle_is_named(pairs):
    dag, vertices = dag_of(*(f"v{i}" for i in range(8)))
    for a, b in sorted(pairs):
        source, dest = vertices[a], vertices[b]
        dag.edge(from_(source, len(dag.outbound(source))).to(dest, len(dag.inbound(dest))))
    edges = {(e.source.name, e.dest.name) for e in dag.edges}
    try:
        dag.validate()
    except InvalidDagError as error:
        path = str(error).partition("cycle: ")[2].partition(";")[0].split(" -> ")
        assert path[0] == path[-1] and len(path) > 1
        assert edges.issuperset(itertools.pairwise(path))
    else:
        position = {vertex.name: i for i, vertex in enumerate(dag)}
        assert len(position) == 8
        assert all(position[a] < position[b] for a, b in edges)


# --- Looking at it --------------------------------------------------------------------------


def test_edges_come_by_ordinal_whatever_the_order_they_were_added_in():
    dag, (a, b, c) = dag_of("a", "b", "c")
    dag.edge(from_(a, 1).to(c)).edge(from_(a, 0).to(b))
    assert [edge.dest.name for edge in dag.outbound(a)] == ["b", "c"]
    assert [edge.source.name for edge in dag.inbound(c)] == ["a"]


def test_vertices_are_found_by_name():
    dag, (a, b) = dag_of("a", "b")
    assert dag["a"] is a
    assert "b" in dag and "c" not in dag
    assert dag.vertices == (a, b)


def test_dag_with_a_distributed_or_fanout_edge_is_not_local():
    for configure, is_local in [
        (lambda edge: edge, True),
        (lambda edge: edge.broadcast(), True),
        (lambda edge: edge.distributed(), False),
        (lambda edge: edge.fanout(), False),
    ]:
        dag, (a, b) = dag_of("a", "b")
        dag.edge(configure(between(a, b)))
        assert dag.is_local() is is_local


# --- DOT ------------------------------------------------------------------------------------


def test_dot_has_the_documented_shape():
    dag = DAG()
    source = dag.new_vertex("filesSource(/*)", Processor, 1)
    fused = dag.new_vertex("fused(flat-map, filter)", Processor, 2)
    prepare = dag.new_vertex("group-and-aggregate-prepare", Processor, 2)
    aggregate = dag.new_vertex("group-and-aggregate", Processor, 2)
    sink = dag.new_vertex("loggerSink", Processor, 1)
    dag.edge(between(aggregate, sink))  # drawn by vertex, not in the order of adding
    dag.edge(between(source, fused))
    dag.edge(between(fused, prepare).partitioned())
    dag.edge(between(prepare, aggregate).partitioned().distributed())
    assert dag.to_dot() == SEED_002
    assert str(dag) == SEED_002


def test_dot_shows_the_default_parallelism_and_queue_sizes():
    dag, (a, b) = dag_of("a", "b")
    dag.edge(between(a, b).queue_size(7))
    dot = dag.to_dot(default_parallelism=3)
    assert '"a" [localParallelism=3];' in dot
    assert '"a" -> "b" [queueSize=7];' in dot


def test_dot_quotes_names():
    dag, _ = dag_of('say "hi" \\o/')
    assert r'"say \"hi\" \\o/"' in dag.to_dot()


def test_each_two_step_vertex_is_a_cluster_of_its_own():
    dag, (x1, x2, y1, y2) = dag_of("x-prepare", "x", "y-prepare", "y")
    dag.edge(between(x1, x2)).edge(between(x2, y1)).edge(between(y1, y2))
    dot = dag.to_dot()
    assert "subgraph cluster_0" in dot and "subgraph cluster_1" in dot
    assert "cluster_2" not in dot


def test_unique_vertices_have_a_number_behind_their_name():
    dag = DAG()
    names = [dag.new_unique_vertex("map", Processor).name for _ in range(3)]
    assert names == ["map", "map-2", "map-3"]
    assert dag.new_unique_vertex("map-2", Processor, 3).name == "map-2-2"
    assert dag["map-2-2"].local_parallelism == 3
