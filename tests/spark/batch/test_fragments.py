from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core import DAG, Processor, Vertex, between, from_
from jetlet.errors import UnsupportedFeatureError
from jetlet.spark.batch.fragments import channel_order, cut, is_broadcast


def make(*names, single=()):
    dag = DAG("test")
    return dag, [dag.vertex(Vertex(n, Processor, 1, is_single=n in single)) for n in names]


def shape(fragments):
    return [[v.name for v in f.vertices] for f in fragments]


def test_local_edges_stay_within_a_fragment():
    dag, (a, b, c) = make("a", "b", "c")
    dag.edge(between(a, b)).edge(between(b, c))
    assert shape(cut(dag)) == [["a", "b", "c"]]


def test_a_distributed_edge_is_an_exchange():
    dag, (a, b, c) = make("a", "b", "c")
    dag.edge(between(a, b)).edge(between(b, c).partitioned().distributed())
    first, second = cut(dag)
    assert shape([first, second]) == [["a", "b"], ["c"]]
    (exchange,) = second.shuffled_inputs
    assert (exchange.source, exchange.dest, exchange.channel) == (first, second, 1)
    assert first.shuffled_outputs == [exchange]
    assert not first.broadcast_outputs


def test_what_follows_a_single_vertex_is_single_too():
    dag, (a, b, c) = make("a", "b", "c", single="b")
    dag.edge(between(a, b).all_to_one()).edge(between(b, c))
    first, second = cut(dag)
    assert shape([first, second]) == [["a"], ["b", "c"]]
    assert not first.is_single
    assert second.is_single


def test_a_local_edge_is_cut_where_one_task_meets_many():
    dag, (a, b, c, d) = make("a", "b", "c", "d", single="b")
    dag.edge(between(a, b).all_to_one()).edge(between(b, c)).edge(from_(d).to(c, 1))
    fragments = cut(dag)
    assert shape(fragments) == [["a", "d"], ["b"], ["c"]] or shape(fragments) == [
        ["a"],
        ["d"],
        ["b"],
        ["c"],
    ]
    assert [f.is_single for f in fragments if f.name == "c"] == [False]
    assert {x.edge.source.name for f in fragments if f.name == "c" for x in f.inputs} == {"b", "d"}


def test_a_local_edge_is_cut_where_a_fragment_would_wait_for_itself():
    # a -> b -> c, and a -> c directly: c needs all of b, which needs all of a.
    dag, (a, b, c) = make("a", "b", "c")
    dag.edge(between(a, b).partitioned().distributed())
    dag.edge(between(b, c).partitioned().distributed())
    dag.edge(from_(a, 1).to(c, 1))
    fragments = cut(dag)
    assert shape(fragments) == [["a"], ["b"], ["c"]]
    assert [x.edge.source.name for x in fragments[2].inputs] == ["b", "a"]


def test_a_broadcast_does_not_part_the_reader_from_its_other_input():
    dag, (build, probe, join) = make("build", "probe", "join")
    dag.edge(between(probe, join))
    dag.edge(from_(build).to(join, 1).broadcast().distributed().priority(-1))
    fragments = cut(dag)
    assert shape(fragments) == [["build"], ["probe", "join"]]
    assert fragments[1].inputs[0].is_broadcast
    assert not fragments[1].shuffled_inputs


def test_a_broadcast_to_a_vertex_behind_the_same_source_cuts_there():
    # The tasks that read the source cannot also have all of it before they begin.
    dag, (source, build, join) = make("source", "build", "join")
    dag.edge(between(source, build)).edge(from_(source, 1).to(join))
    dag.edge(from_(build).to(join, 1).broadcast().distributed().priority(-1))
    fragments = cut(dag)
    assert shape(fragments) == [["source", "build"], ["join"]]
    assert [x.is_broadcast for x in fragments[1].inputs] == [False, True]


def test_a_frame_shares_a_fragment_with_what_reads_only_it():
    dag, (frame, a, b, c) = make("frame", "a", "b", "c")
    dag.edge(between(frame, a)).edge(from_(frame, 1).to(b))
    dag.edge(between(a, c)).edge(from_(b).to(c, 1))
    assert shape(cut(dag, [frame])) == [["frame", "a", "b", "c"]]


def test_a_frame_never_shares_a_fragment_with_another_source():
    # The frame decides how many tasks there are; the splits of the file are for another number.
    dag, (frame, a, file, b, merge) = make("frame", "a", "file", "b", "merge")
    dag.edge(between(frame, a)).edge(between(file, b))
    dag.edge(between(a, merge)).edge(from_(b).to(merge, 1))
    fragments = cut(dag, [frame])
    together = next(f for f in fragments if frame in f.vertices)
    assert file not in together.vertices
    assert merge not in together.vertices
    assert [x.edge.source for x in together.outputs] == [a]


def test_two_frames_are_read_in_fragments_of_their_own():
    dag, (one, two, merge) = make("one", "two", "merge")
    dag.edge(between(one, merge)).edge(from_(two).to(merge, 1))
    assert shape(cut(dag, [one, two])) == [["one"], ["two"], ["merge"]]


def test_items_of_higher_priority_are_read_first():
    dag, (a, b, join) = make("a", "b", "join")
    dag.edge(between(a, join).partitioned().distributed())
    dag.edge(from_(b).to(join, 1).partitioned().distributed().priority(-1))
    (last,) = (f for f in cut(dag) if join in f.vertices)
    assert channel_order(dag, last) == {0: 1, 1: 0}


def test_priority_counts_from_where_a_channel_enters():
    # What comes over the first edge reaches the join's prior input through a map.
    dag, (a, b, through, join) = make("a", "b", "map", "join")
    dag.edge(between(a, through).partitioned().distributed())
    dag.edge(from_(b).to(join).partitioned().distributed())
    dag.edge(from_(through).to(join, 1).priority(-1))
    (last,) = (f for f in cut(dag) if join in f.vertices)
    assert [v.name for v in last.vertices] == ["map", "join"]
    assert channel_order(dag, last) == {0: 0, 1: 1}


def test_channels_of_the_same_priority_may_come_mixed():
    dag, (a, b, join) = make("a", "b", "join")
    dag.edge(between(a, join).partitioned().distributed())
    dag.edge(from_(b).to(join, 1).partitioned().distributed())
    assert set(channel_order(dag, cut(dag)[-1]).values()) == {0}


def test_items_that_would_have_to_come_before_themselves_are_refused():
    dag, (a, fork, join) = make("a", "fork", "join")
    dag.edge(between(a, fork).partitioned().distributed())
    dag.edge(from_(fork).to(join)).edge(from_(fork, 1).to(join, 1).priority(-1))
    with pytest.raises(UnsupportedFeatureError, match="same priority"):
        channel_order(dag, cut(dag)[-1])


EDGES = ("local", "isolated", "partitioned", "broadcast", "rebalanced")


@st.composite
def dags(draw):
    count = draw(st.integers(2, 8))
    dag = DAG("random")
    vertices = []
    for i in range(count):
        single = draw(st.booleans()) and draw(st.booleans())
        vertices.append(dag.vertex(Vertex(f"v{i}", Processor, 1, is_single=single)))
    out = dict.fromkeys(vertices, 0)
    for i in range(1, count):
        sources = draw(st.lists(st.integers(0, i - 1), min_size=0, max_size=3))
        for ordinal, source in enumerate(sources):
            edge = from_(vertices[source], out[vertices[source]]).to(vertices[i], ordinal)
            out[vertices[source]] += 1
            kind = draw(st.sampled_from(EDGES))
            if kind == "isolated":
                edge.isolated()
            elif kind == "partitioned":
                edge.partitioned().distributed()
            elif kind == "broadcast":
                edge.broadcast().distributed()
            elif kind == "rebalanced":
                edge.distributed()
            dag.edge(edge)
    sources = [v for v in vertices if not dag.inbound(v) and not v.is_single]
    frames = draw(st.lists(st.sampled_from(sources), unique=True)) if sources else []
    return dag, frames


@given(dags())
def test_any_dag_is_cut_into_fragments_that_can_run_one_after_the_other(drawn):
    dag, frames = drawn
    fragments = cut(dag, frames)
    home = {v: f for f in fragments for v in f.vertices}
    assert sorted(v.name for v in home) == sorted(v.name for v in dag.vertices)
    for edge in dag.edges:
        source, dest = home[edge.source], home[edge.dest]
        exchanges = [x for x in source.outputs if x.edge is edge]
        if source is dest:
            assert not edge.is_distributed
            assert not exchanges
        else:
            assert source.index < dest.index
            (exchange,) = exchanges
            assert exchange in dest.inputs
            assert exchange.is_broadcast == is_broadcast(edge)
    for fragment in fragments:
        sources = [v for v in fragment.vertices if not dag.inbound(v)]
        of_frames = [v for v in sources if v in frames]
        # A task that reads a DataFrame reads nothing else: no other source, no shuffle.
        if of_frames:
            assert len(sources) == 1
            assert not fragment.shuffled_inputs
        singles = {v.is_single for v in fragment.vertices if v.is_single}
        assert not singles or fragment.is_single
