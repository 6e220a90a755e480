"""What a pipeline becomes: the Core DAG, its text, and the names in it."""

from __future__ import annotations

import os
import re

import pytest

from jetlet import Pipeline, agg, service, sinks, sources, whole_item
from jetlet.core import Processor
from jetlet.core.edge import Routing
from jetlet.errors import (
    InvalidArgumentError,
    JobFailedError,
    MissingSinkError,
    PlanningError,
)

WORD_COUNT = """\
digraph DAG {
    "text-source(books/*)" [localParallelism=1];
    "fused(flat-map, filter)" [localParallelism=2];
    "group-and-aggregate-prepare" [localParallelism=2];
    "group-and-aggregate" [localParallelism=2];
    "logger-sink" [localParallelism=1];
    "text-source(books/*)" -> "fused(flat-map, filter)" [queueSize=1024];
    "fused(flat-map, filter)" -> "group-and-aggregate-prepare"
        [label="partitioned", queueSize=1024];
    subgraph cluster_0 {
        "group-and-aggregate-prepare" -> "group-and-aggregate"
            [label="distributed-partitioned", queueSize=1024];
    }
    "group-and-aggregate" -> "logger-sink" [queueSize=1024];
}"""


def numbers(p, **options):
    return p.read_from(sources.items([1, 2, 3]), **options)


def names(dag):
    return [vertex.name for vertex in dag.vertices]


def edges(dag):
    return {(edge.source.name, edge.dest.name): edge for edge in dag.edges}


def word_count():
    p = Pipeline("word-count")
    (
        p.read_from(sources.text("books/*"), name="text-source(books/*)")
        .flat_map(lambda line: re.split(r"\W+", line.lower()))
        .filter(bool)
        .grouping_key(whole_item)
        .aggregate(agg.counting())
        .write_to(sinks.logger())
    )
    return p


class TestDot:
    def test_word_count_is_drawn_as_in_the_description_of_the_model(self):
        assert word_count().to_dot(default_parallelism=2) == WORD_COUNT

    def test_default_parallelism_is_the_number_of_cores(self, monkeypatch):
        monkeypatch.setattr(os, "cpu_count", lambda: 2)

        assert word_count().to_dot() == WORD_COUNT
        assert word_count().plan()["group-and-aggregate"].local_parallelism == 2

    def test_planning_changes_nothing(self):
        p = word_count()

        assert p.to_dot(default_parallelism=2) == p.to_dot(default_parallelism=2) == WORD_COUNT
        assert [t.name for t in p.transforms] == [
            "text-source(books/*)",
            "flat-map",
            "filter",
            "group-and-aggregate",
            "logger-sink",
        ]

    def test_broadcast_and_isolated_edges_are_labelled(self):
        p = Pipeline("labels", preserve_order=True)
        numbers(p).hash_join(numbers(p), whole_item, whole_item).write_to(sinks.collect())

        dot = p.to_dot(default_parallelism=1)

        assert '"items-source" -> "hash-join"\n        [label="isolated", queueSize=1024];' in dot
        assert '"items-source-2" -> "hash-join"\n        [label="distributed-broadcast"' in dot


class TestTwoStages:
    def test_keyed_aggregate_is_prepared_where_the_items_are(self):
        dag = word_count().plan(default_parallelism=4)

        prepare = edges(dag)["fused(flat-map, filter)", "group-and-aggregate-prepare"]
        combine = edges(dag)["group-and-aggregate-prepare", "group-and-aggregate"]
        assert prepare.routing is Routing.PARTITIONED and not prepare.is_distributed
        assert combine.routing is Routing.PARTITIONED and combine.is_distributed
        assert not dag["group-and-aggregate"].is_single

    def test_operation_without_combine_takes_one_stage(self):
        one = agg.of(create=int, accumulate=lambda acc, item: acc + 1)
        p = Pipeline("one-stage")
        numbers(p).grouping_key(whole_item).aggregate(one).write_to(sinks.collect())
        numbers(p).aggregate(one, name="total").write_to(sinks.collect())

        dag = p.plan(default_parallelism=2)

        keyed = edges(dag)["items-source", "group-and-aggregate"]
        total = edges(dag)["items-source-2", "total"]
        assert keyed.routing is Routing.PARTITIONED and keyed.is_distributed
        assert total.is_distributed and dag["total"].is_single
        assert not [name for name in names(dag) if name.endswith("-prepare")]

    def test_global_aggregate_ends_in_one_processor_fed_by_all(self):
        p = Pipeline("global")
        numbers(p).aggregate(agg.counting(), local_parallelism=3).write_to(sinks.collect())

        dag = p.plan(default_parallelism=2)

        assert dag["aggregate-prepare"].parallelism(2) == 3
        assert dag["aggregate"].is_single and dag["aggregate"].parallelism(2) == 1
        combine = edges(dag)["aggregate-prepare", "aggregate"]
        assert combine.is_distributed and combine.routing is Routing.PARTITIONED

    def test_co_aggregation_has_an_edge_for_each_input(self):
        p = Pipeline("co")
        a, b = numbers(p), numbers(p)
        a.grouping_key(lambda x: -x).aggregate2(
            agg.counting(), b.grouping_key(whole_item), agg.summing()
        ).write_to(sinks.collect())

        dag = p.plan()
        inbound = dag.inbound(dag["group-and-aggregate-prepare"])

        assert [edge.source.name for edge in inbound] == ["items-source", "items-source-2"]
        assert inbound[0].key_fn(5) == -5
        assert inbound[1].key_fn is None  # the item itself


class TestNames:
    def test_names_that_occur_again_are_numbered(self):
        p = Pipeline("numbered")
        stage = numbers(p)
        for _ in range(3):
            stage.map(str).write_to(sinks.collect())

        assert names(p.plan()) == [
            "items-source",
            "map",
            "collect-sink",
            "map-2",
            "collect-sink-2",
            "map-3",
            "collect-sink-3",
        ]

    def test_errors_are_reported_under_the_number(self):
        p = Pipeline("reported")
        numbers(p).map(str).rebalance().map(lambda x: 1 // 0).write_to(sinks.collect())

        with pytest.raises(JobFailedError, match="in vertex 'map-2' on item '1': ZeroDivision"):
            p.run(on="embedded")

    def test_number_that_is_taken_is_passed_over(self):
        p = Pipeline("taken")
        stage = numbers(p)
        for name in ("map", "map-2", "map", "map-2"):
            stage.map(str, name=name).write_to(sinks.noop())

        assert [name for name in names(p.plan()) if name.startswith("map")] == [
            "map",
            "map-2",
            "map-3",
            "map-2-2",
        ]

    def test_first_stage_of_an_aggregation_never_clashes_with_a_stage_of_that_name(self):
        p = Pipeline("clash")
        stage = numbers(p).map(str, name="sum-prepare")
        stage.aggregate(agg.counting(), name="sum").write_to(sinks.collect())
        stage.aggregate(agg.counting(), name="sum").write_to(sinks.collect())
        stage.map_batched(list, name="sum-2-prepare").write_to(sinks.collect())

        assert [name for name in names(p.plan()) if "sum" in name] == [
            "sum-prepare",
            "sum-3-prepare",
            "sum-3",
            "sum-4-prepare",
            "sum-4",
            "sum-2-prepare",
        ]

    def test_dead_letter_sink_has_a_vertex_of_its_own_name(self):
        p = Pipeline("letters")
        letters = sinks.collect()
        numbers(p).map(str, on_error=letters).map_batched(list, on_error=letters).write_to(
            sinks.collect()
        )

        dag = p.plan()

        assert names(dag)[-2:] == ["collect-sink", "collect-sink-2"]
        assert [e.source.name for e in dag.inbound(dag["collect-sink-2"])] == ["map", "map-batched"]
        assert [e.source_ordinal for e in dag.inbound(dag["collect-sink-2"])] == [1, 1]

    def test_sink_that_is_written_to_twice_is_one_vertex(self):
        p = Pipeline("shared")
        sink = sinks.collect()
        numbers(p).write_to(sink)
        numbers(p).map(str).write_to(sink, name="ignored")

        dag = p.plan()

        assert [e.source.name for e in dag.inbound(dag["collect-sink"])] == ["items-source", "map"]
        assert "ignored" not in dag


class TestRouting:
    def test_rebalance_is_a_property_of_the_edge_behind_it(self):
        p = Pipeline("rebalanced")
        stage = numbers(p)
        stage.rebalance().map(str).write_to(sinks.collect())
        stage.rebalance(lambda x: -x).map(str, name="keyed").write_to(sinks.collect())
        stage.rebalance(lambda x: -x).rebalance().map(str, name="twice").write_to(sinks.collect())

        found = edges(p.plan())

        assert found["items-source", "map"].label == "distributed"
        assert found["items-source", "keyed"].label == "distributed-partitioned"
        assert found["items-source", "keyed"].key_fn(5) == -5
        assert found["items-source", "twice"].label == "distributed"

    def test_build_sides_of_a_join_are_read_first_and_by_everyone(self):
        p = Pipeline("join")
        numbers(p).hash_join(numbers(p), whole_item, whole_item).write_to(sinks.collect())

        dag = p.plan()
        probe, build = dag.inbound(dag["hash-join"])

        assert build.label == "distributed-broadcast"
        assert build.priority_value < probe.priority_value
        assert not probe.is_distributed

    def test_stage_with_one_state_is_a_single_processor(self):
        p = Pipeline("single")
        numbers(p).map_stateful(list, lambda state, x: x).write_to(sinks.collect())
        numbers(p).sort().write_to(sinks.collect())
        numbers(p).rolling_aggregate(agg.counting()).write_to(sinks.collect())

        dag = p.plan(default_parallelism=4)

        for name in ("map-stateful", "sort", "rolling-aggregate"):
            assert dag[name].is_single and dag[name].parallelism(4) == 1
            assert dag.inbound(dag[name])[0].is_distributed

    def test_custom_transform_and_services_get_vertices_of_their_own(self):
        p = Pipeline("own")
        numbers(p).custom_transform(Processor).map_using_service(
            service(lambda context: None), lambda s, x: x
        ).write_to(sinks.collect())

        assert names(p.plan()) == [
            "items-source",
            "custom-transform",
            "map-using-service",
            "collect-sink",
        ]


class TestRefusals:
    def test_empty_pipeline(self):
        with pytest.raises(PlanningError, match=r"begin with p\.read_from"):
            Pipeline("empty").plan()

    @pytest.mark.parametrize(
        ("stage", "name"),
        [
            (lambda s: s, "items-source"),
            (lambda s: s.map(str), "map"),
            (lambda s: s.rebalance(), "rebalance"),
            (lambda s: s.grouping_key(whole_item).aggregate(agg.counting()), "group-and-aggregate"),
        ],
    )
    def test_stage_that_leads_nowhere(self, stage, name):
        p = Pipeline("nowhere")
        stage(numbers(p))

        with pytest.raises(MissingSinkError) as caught:
            p.plan()

        assert f"stage '{name}' of pipeline 'nowhere'" in str(caught.value)
        assert ".write_to(sinks.collect())" in str(caught.value)

    def test_one_dangling_branch_among_several(self):
        p = Pipeline("dangling")
        stage = numbers(p)
        stage.write_to(sinks.collect())
        stage.map(str, name="forgotten")

        with pytest.raises(MissingSinkError, match="forgotten"):
            p.plan()

    @pytest.mark.parametrize("default", [0, -1])
    def test_default_parallelism_below_one(self, default):
        with pytest.raises(InvalidArgumentError, match="at least 1"):
            word_count().plan(default_parallelism=default)

    def test_processor_in_the_place_of_its_supplier(self):
        p = Pipeline("instance")
        numbers(p).custom_transform(Processor()).write_to(sinks.collect())

        with pytest.raises(InvalidArgumentError, match=r"lambda: MyProcessor\(\.\.\.\)"):
            p.plan()
