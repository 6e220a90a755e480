"""Joins that would wait for themselves get a spool; others do not."""

from __future__ import annotations

import pytest

from jetlet import JoinClause, Pipeline, agg, sinks, sources, whole_item
from jetlet.core.edge import Routing


def read(p, name):
    return p.read_from(sources.items([1, 2, 3]), name=name)


def join(probe, *builds, **options):
    clauses = [JoinClause(build, whole_item, whole_item) for build in builds]
    return probe.hash_join(*clauses, **options)


def spools(p):
    return [v.name for v in p.plan().vertices if "spool" in v.name]


def test_join_of_different_sources_needs_none():
    p = Pipeline("p")
    a, b, c = (read(p, name) for name in "abc")
    join(join(a, b), c).write_to(sinks.collect())
    join(c, b).write_to(sinks.collect())

    assert spools(p) == []


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s,
        lambda s: s.filter(bool),
        lambda s: s.aggregate(agg.counting()),
        lambda s: s.grouping_key(whole_item).aggregate(agg.counting()),
        lambda s: s.sort(),
        lambda s: s.merge(s),
    ],
    ids=["itself", "filtered", "aggregated", "grouped", "sorted", "merged"],
)
def test_join_with_what_comes_from_the_same_source_needs_one(build):
    p = Pipeline("p")
    stage = read(p, "a")
    join(stage.map(str), build(stage)).write_to(sinks.collect())

    assert spools(p) == ["hash-join-spool"]


def test_aggregate_absorbs_what_would_be_held_up():
    p = Pipeline("p")
    stage = read(p, "a")
    counts = stage.grouping_key(whole_item).aggregate(agg.counting())
    join(counts, stage).write_to(sinks.collect())
    join(stage.sort(), stage, name="sorted").write_to(sinks.collect())

    assert spools(p) == []


def test_one_of_two_joins_that_wait_for_each_other_gets_one():
    p = Pipeline("p")
    a, b = read(p, "a"), read(p, "b")
    join(a, b, name="ab").write_to(sinks.collect())
    join(b, a, name="ba").write_to(sinks.collect())

    assert spools(p) == ["ab-spool"]


def test_one_of_three_joins_in_a_circle_gets_one():
    p = Pipeline("p")
    a, b, c = (read(p, name) for name in "abc")
    join(a, b, name="ab").write_to(sinks.collect())
    join(b, c, name="bc").write_to(sinks.collect())
    join(c, a, name="ca").write_to(sinks.collect())

    assert len(spools(p)) == 1


def test_two_joins_in_one_direction_need_none():
    p = Pipeline("p")
    a, b, c = (read(p, name) for name in "abc")
    join(a, b, name="ab").write_to(sinks.collect())
    join(b, c, name="bc").write_to(sinks.collect())
    join(a, c, name="ac").write_to(sinks.collect())

    assert spools(p) == []


def test_spool_keeps_order_and_parallelism():
    p = Pipeline("p", preserve_order=True)
    stage = p.read_from(
        sources.batch("a", lambda split: [split], splits=[1, 2, 3]), local_parallelism=3
    )
    join(stage, stage, local_parallelism=2).write_to(sinks.collect())

    dag = p.plan(default_parallelism=4)

    assert dag["hash-join-spool"].parallelism(4) == 2
    assert dag.inbound(dag["hash-join-spool"])[0].routing is Routing.ISOLATED
    assert dag.inbound(dag["hash-join"])[0].routing is Routing.ISOLATED
    assert dag.inbound(dag["hash-join"])[0].source is dag["hash-join-spool"]


def test_rebalance_before_the_join_leads_into_the_spool():
    p = Pipeline("p")
    stage = read(p, "a")
    join(stage.rebalance(), stage).write_to(sinks.collect())

    dag = p.plan()

    assert dag.inbound(dag["hash-join-spool"])[0].label == "distributed"
    assert dag.inbound(dag["hash-join"])[0].label == ""
