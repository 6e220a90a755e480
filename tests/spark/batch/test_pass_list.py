from __future__ import annotations

from jetlet import Pipeline, agg, sinks, sources, whole_item
from jetlet.core import DAG, Processor, between
from jetlet.core.edge import one_key
from jetlet.spark import passes


def shown(what):
    dag = what if isinstance(what, DAG) else what.plan(default_parallelism=1)
    return [(stage.name, list(stage.reads), list(stage.vertices)) for stage in passes(dag)]


def test_what_is_read_once_a_key_is_known_is_shuffled_by_it():
    p = Pipeline("count")
    stage = p.read_from(sources.items(["a", "b"])).map(str.upper)
    stage.grouping_key(whole_item).aggregate(agg.counting()).write_to(sinks.collect())
    assert shown(p) == [
        ("stage 0", [], ["items-source", "map", "group-and-aggregate-prepare"]),
        (
            "stage 1",
            ["items of group-and-aggregate-prepare from stage 0, shuffled by key"],
            ["group-and-aggregate", "collect-sink"],
        ),
    ]


def test_a_broadcast_a_shuffle_without_a_key_and_a_single_task():
    p = Pipeline("join")
    small = p.read_from(sources.items([(1, "a")]), name="small")
    large = p.read_from(sources.items([(1, "b")]), name="large").rebalance()
    first = lambda pair: pair[0]
    large.hash_join(small, first, first).sort().write_to(sinks.collect())
    assert shown(p) == [
        ("stage 0", [], ["small"]),
        ("stage 1", [], ["large"]),
        (
            "stage 2",
            [
                "items of large from stage 1, shuffled",
                "all items of small from stage 0, broadcast to each task",
            ],
            ["hash-join"],
        ),
        (
            "stage 3, a single task",
            ["items of hash-join from stage 2, shuffled"],
            ["sort", "collect-sink"],
        ),
    ]


def test_one_key_for_all_items():
    dag = DAG("one")
    source, sink = (dag.new_vertex(name, Processor, 1) for name in ("source", "sink"))
    dag.edge(between(source, sink).partitioned(one_key).distributed())
    assert shown(dag)[1][1] == ["items of source from stage 0, shuffled into one task"]


def test_what_failed_is_told_from_the_ordinary_output():
    p = Pipeline("letters")
    bad = sinks.collect(name="bad")
    numbers = p.read_from(sources.items([1]))
    numbers.map(str, on_error=bad, name="one").write_to(sinks.noop())
    numbers.rebalance().map(str, on_error=bad, name="two").write_to(sinks.noop())
    dag = p.plan(default_parallelism=1)
    assert dag["one"].traits.side_ordinals == dag["two"].traits.side_ordinals == (1,)
    assert dag["items-source"].traits.side_ordinals == ()
    reads = [read for _, reads, _ in shown(dag) for read in reads]
    assert "items of items-source from stage 0, shuffled" in reads
    assert "failed or late items of one from stage 0, shuffled" in reads
