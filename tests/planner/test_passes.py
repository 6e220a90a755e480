"""Fusion and parallelism."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetlet import Pipeline, agg, sinks, sources, whole_item
from jetlet.errors import PlanningError


def start(**options):
    p = Pipeline("p", **options)
    return p, p.read_from(sources.items([1, 2, 3]))


def names(p, default=2):
    return [vertex.name for vertex in p.plan(default_parallelism=default).vertices]


class TestFusion:
    def test_run_of_stateless_stages_is_one_vertex(self):
        p, stage = start()
        stage.map(str).filter(bool).flat_map(list).write_to(sinks.collect())

        assert names(p) == ["items-source", "fused(map, filter, flat-map)", "collect-sink"]

    def test_single_stage_keeps_its_name(self):
        p, stage = start()
        stage.filter(bool).write_to(sinks.collect())

        assert names(p) == ["items-source", "filter", "collect-sink"]

    def test_second_reader_ends_a_run(self):
        p, stage = start()
        mapped = stage.map(str).map(len)
        mapped.filter(bool).map(abs).write_to(sinks.collect())
        mapped.write_to(sinks.collect())

        assert names(p) == [
            "items-source",
            "fused(map, map-2)",
            "fused(filter, map-3)",
            "collect-sink",
            "collect-sink-2",
        ]

    def test_stage_that_one_other_reads_twice_is_not_fused_with_it(self):
        p, stage = start()
        mapped = stage.map(str)
        mapped.merge(mapped).map(len).write_to(sinks.collect())

        assert names(p) == ["items-source", "map", "merge", "map-2", "collect-sink"]

    @pytest.mark.parametrize(
        "between",
        [
            lambda s: s.rebalance(),
            lambda s: s.rebalance(whole_item),
            lambda s: s.merge(s),
            lambda s: s.sort(),
            lambda s: s.map_batched(list),
            lambda s: s.grouping_key(whole_item).aggregate(agg.counting()),
        ],
    )
    def test_anything_else_between_ends_a_run(self, between):
        p, stage = start()
        between(stage.map(str)).map(len).write_to(sinks.collect())

        assert not [name for name in names(p) if name.startswith("fused")]

    def test_explicit_parallelism_must_be_the_same_and_is_kept(self):
        p, stage = start()
        (
            stage.map(str, local_parallelism=3)
            .map(len, local_parallelism=3)
            .map(abs, local_parallelism=2)
            .map(str)
            .map(len)
            .write_to(sinks.collect())
        )

        dag = p.plan(default_parallelism=4)

        assert {v.name: v.parallelism(4) for v in dag.vertices} == {
            "items-source": 1,
            "fused(map, map-2)": 3,
            "map-3": 2,
            "fused(map-4, map-5)": 4,
            "collect-sink": 1,
        }

    def test_same_number_as_the_default_is_still_explicit(self):
        p, stage = start()
        stage.map(str, local_parallelism=2).map(len).write_to(sinks.collect())

        assert names(p, default=2) == ["items-source", "map", "map-2", "collect-sink"]

    def test_runs_have_as_many_loops_as_one_likes(self):
        p, stage = start()
        for _ in range(25):
            stage = stage.flat_map(lambda x: [x])
        stage.write_to(sinks.collect())

        assert len(names(p)) == 3

    def test_dead_letters_leave_behind_the_ordinary_edges(self):
        p, stage = start()
        letters, more = sinks.collect(name="letters"), sinks.collect(name="more")
        fused = stage.map(str, on_error=letters).map(len, on_error=more).filter(bool)
        fused.write_to(sinks.collect(name="a"))
        fused.write_to(sinks.collect(name="b"))

        dag = p.plan()
        outbound = dag.outbound(dag["fused(map, map-2, filter)"])

        assert [edge.dest.name for edge in outbound] == ["a", "b", "letters", "more"]

    def test_key_that_may_be_bad_is_looked_at_before_the_edge_that_needs_it(self):
        p, stage = start()
        keyed = stage.map(str).grouping_key(len)
        keyed.map_stateful(list, lambda state, key, x: x, on_error="skip").write_to(sinks.collect())

        assert names(p) == [
            "items-source",
            "fused(map, map-stateful-trial)",
            "map-stateful",
            "collect-sink",
        ]

    def test_keys_are_not_looked_at_twice_if_they_fail_the_job_anyway(self):
        p, stage = start()
        stage.grouping_key(len).map_stateful(list, lambda state, key, x: x).write_to(
            sinks.collect()
        )

        assert names(p) == ["items-source", "map-stateful", "collect-sink"]


class TestParallelism:
    def parallelism(self, p, default):
        return {v.name: v.parallelism(default) for v in p.plan(default_parallelism=default)}

    def test_explicit_before_preferred_before_default(self):
        p = Pipeline("p")
        source = sources.batch("source", lambda split: [], local_parallelism=3)
        p.read_from(source).map(str).map_batched(list, local_parallelism=7).write_to(
            sinks.builder(
                "sink",
                create=lambda context: None,
                receive=lambda state, item: None,
                preferred_local_parallelism=2,
            )
        )

        assert self.parallelism(p, 8) == {"source": 3, "map": 8, "map-batched": 7, "sink": 2}
        assert self.parallelism(p, 1) == {"source": 1, "map": 1, "map-batched": 7, "sink": 1}

    def test_explicit_beats_what_source_and_sink_prefer(self):
        p = Pipeline("p")
        source = sources.batch("source", lambda split: [], local_parallelism=3)
        p.read_from(source, local_parallelism=5).write_to(
            sinks.noop(name="sink"), local_parallelism=4
        )

        assert self.parallelism(p, 2) == {"source": 5, "sink": 4}

    def test_sink_of_the_submitting_process_has_one_processor(self):
        p = Pipeline("p")
        p.read_from(sources.items([1])).write_to(sinks.collect(), local_parallelism=4)

        assert self.parallelism(p, 8)["collect-sink"] == 1

    def test_both_stages_of_an_aggregation_are_parallel(self):
        p = Pipeline("p")
        p.read_from(sources.items([1])).grouping_key(whole_item).aggregate(
            agg.counting(), local_parallelism=3
        ).write_to(sinks.collect())

        found = self.parallelism(p, 2)

        assert found["group-and-aggregate-prepare"] == found["group-and-aggregate"] == 3


def writing(*pairs):
    p = Pipeline("two")
    for stage, sink in pairs:
        p.read_from(sources.items([1])).map(str, on_error=stage or "fail").write_to(sink)
    return p


@pytest.mark.parametrize(
    "pairs",
    [
        [(None, sinks.csv("out")), (None, sinks.csv("out/"))],
        [(None, sinks.csv("out")), (None, sinks.text("../" + Path.cwd().name + "/out"))],
        [(sinks.json_lines("out"), sinks.csv("out"))],
        [(None, sinks.csv("memory://a/out")), (None, sinks.csv("memory://a/out", mode="append"))],
    ],
)
def test_two_sinks_in_one_place_are_refused(pairs):
    with pytest.raises(PlanningError, match=r"sinks\.\w+\(.*\) and sinks\.\w+\(.* same place"):
        writing(*pairs).plan()


def test_one_sink_for_several_stages_and_places_beside_each_other_are_fine():
    shared = sinks.csv("out")
    p = writing((None, shared), (shared, sinks.csv("out-bad")), (None, sinks.csv("out2")))
    assert p.plan()


def test_sink_in_the_directory_of_another_is_refused_unless_that_takes_others():
    with pytest.raises(PlanningError, match=r"'out/bad'.* writes into .*'out'.* mode='append'"):
        writing((sinks.csv("out/bad"), sinks.csv("out"))).plan()
    assert writing((sinks.csv("out/bad"), sinks.csv("out", mode="append"))).plan()


STEPS = {
    "fused": lambda stage, number: stage.map(abs),
    "not fused": lambda stage, number: stage.map_batched(list) if number % 2 else stage.map(abs),
    "rebalanced": lambda stage, number: stage.rebalance().map(abs),
    "timed": lambda stage, number: stage.add_timestamps(abs) if number % 2 else stage.map(abs),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_thousands_of_stages_are_planned(step):
    p = Pipeline("long")
    stage = p.read_from(sources.items([1]))
    for number in range(2000):
        stage = step(stage, number)
    stage.write_to(sinks.collect())

    dag = p.plan()

    assert dag.outbound(dag["items-source"])
    assert p.to_dot()


@pytest.mark.parametrize("step", [STEPS["not fused"], lambda stage, _: stage.map(abs)])
def test_thousands_of_stages_run(step):
    p, out = Pipeline("long"), sinks.collect()
    stage = p.read_from(sources.items([1, 2]))
    for number in range(2000):
        stage = step(stage, number)
    stage.write_to(out)

    p.run(on="embedded")

    assert sorted(out.items) == [1, 2]
