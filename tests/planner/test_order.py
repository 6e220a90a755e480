"""Which edges keep the order, what that does to parallelism, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jetlet import JoinClause, Pipeline, agg, service, sinks, sources, whole_item, windows
from jetlet.core.edge import Routing
from jetlet.errors import OrderNotPreservableError
from jetlet.testing import scripted_stream


async def same(x):
    return x


def start(parallelism=2, **options):
    p = Pipeline("ordered", preserve_order=True, **options)
    return p, read(p, parallelism)


def read(p, parallelism=2, name="source"):
    source = sources.batch(name, lambda split: [split], splits=[1, 2, 3])
    return p.read_from(source, local_parallelism=parallelism)


def routings(dag):
    return {(e.source.name, e.dest.name): e.routing for e in dag.edges}


def parallelism(dag, default=4):
    return {v.name: v.parallelism(default) for v in dag.vertices}


def test_stateless_stages_are_isolated_and_never_wider_than_the_source():
    p, stage = start(parallelism=2)
    (
        stage.map(str)
        .map_async(same)
        .map_batched(list, local_parallelism=3)
        .map_using_service(service(lambda context: None), lambda s, x: x, local_parallelism=1)
        .custom_transform(lambda: None)
        .write_to(sinks.noop(), local_parallelism=4)
    )

    dag = p.plan(default_parallelism=4)

    assert set(routings(dag).values()) == {Routing.ISOLATED}
    assert parallelism(dag) == {
        "source": 2,
        "map": 2,
        "map-async": 2,
        "map-batched": 2,
        "map-using-service": 1,
        "custom-transform": 1,
        "noop-sink": 1,
    }


def test_without_it_edges_spread_items():
    p = Pipeline("plain")
    read(p).map(str).map_async(same).write_to(sinks.noop())

    assert set(routings(p.plan(default_parallelism=4)).values()) == {Routing.UNICAST}
    assert parallelism(p.plan(default_parallelism=4))["map"] == 4


def test_merge_is_as_narrow_as_its_narrowest_input():
    p, wide = start(parallelism=3)
    wide.merge(read(p, 1, "narrow"), read(p, 2, "middle")).map_async(same).write_to(sinks.collect())

    dag = p.plan(default_parallelism=4)

    assert parallelism(dag)["merge"] == parallelism(dag)["map-async"] == 1


def test_join_keeps_the_order_of_its_first_input_only():
    p, stage = start(parallelism=3)
    clauses = [JoinClause(read(p, 1, name), whole_item, whole_item) for name in ("a", "b")]
    stage.hash_join(*clauses).write_to(sinks.collect())

    dag = p.plan(default_parallelism=4)

    assert parallelism(dag)["hash-join"] == 3
    assert [e.routing for e in dag.inbound(dag["hash-join"])] == [
        Routing.ISOLATED,
        Routing.BROADCAST,
        Routing.BROADCAST,
    ]


def test_sink_of_several_stages_is_as_narrow_as_the_narrowest():
    p, wide = start(parallelism=3)
    sink = sinks.noop()
    wide.write_to(sink, local_parallelism=3)
    read(p, 2, "narrow").write_to(sink, local_parallelism=3)

    assert parallelism(p.plan(default_parallelism=4))["noop-sink"] == 2


def test_parallelism_grows_again_behind_a_key():
    p, stage = start(parallelism=1)
    stage.map_async(same).grouping_key(whole_item).aggregate(agg.counting()).map_async(
        same, name="behind"
    ).write_to(sinks.noop())

    dag = p.plan(default_parallelism=4)

    assert parallelism(dag)["map-async"] == 1
    assert parallelism(dag)["group-and-aggregate"] == parallelism(dag)["behind"] == 4
    assert routings(dag)["group-and-aggregate", "behind"] is Routing.ISOLATED


def test_order_per_key_is_kept_behind_a_rebalance_by_key():
    p, stage = start(parallelism=1)
    stage.rebalance(whole_item).map(str).map_async(same).write_to(sinks.noop())

    dag = p.plan(default_parallelism=4)

    assert routings(dag) == {
        ("source", "map"): Routing.PARTITIONED,
        ("map", "map-async"): Routing.ISOLATED,
        ("map-async", "noop-sink"): Routing.ISOLATED,
    }
    assert parallelism(dag)["map"] == parallelism(dag)["map-async"] == 4


def test_merge_of_rebalanced_and_plain_input_keeps_the_order_of_both():
    p, stage = start(parallelism=2)
    read(p, 3, "other").rebalance(whole_item).merge(stage).write_to(sinks.collect())

    dag = p.plan(default_parallelism=4)
    merged = dag.inbound(dag["merge"])

    assert [edge.routing for edge in merged] == [Routing.PARTITIONED, Routing.ISOLATED]
    assert parallelism(dag)["merge"] == 2


def test_order_begins_anew_behind_a_rebalance_that_was_asked_for():
    p, stage = start(parallelism=2)
    stage.rebalance().map_batched(list).map(str).write_to(sinks.collect())

    dag = p.plan(default_parallelism=4)

    assert parallelism(dag)["map-batched"] == parallelism(dag)["map"] == 4
    assert [edge.routing for edge in dag.inbound(dag["map-batched"])] == [Routing.UNICAST]
    assert [edge.routing for edge in dag.inbound(dag["map"])] == [Routing.ISOLATED]


@pytest.mark.parametrize("method", ["map_async", "flat_map_async"])
def test_unordered_coroutines_are_refused(method):
    p, stage = start()
    getattr(stage, method)(same, ordered=False, name="fetch").write_to(sinks.collect())

    with pytest.raises(OrderNotPreservableError) as caught:
        p.plan()

    assert "stage 'fetch' has ordered=False" in str(caught.value)
    assert "write ordered=True" in str(caught.value)


class TestBehindSort:
    """The order of a sort is kept with and without ``preserve_order``."""

    def test_what_follows_is_isolated_and_single(self):
        p = Pipeline("sorted")
        read(p).sort().map(str).map_async(same).rolling_aggregate(agg.counting()).map(str).write_to(
            sinks.noop(), local_parallelism=3
        )

        dag = p.plan(default_parallelism=4)

        assert routings(dag) == {
            ("source", "sort"): Routing.PARTITIONED,
            ("sort", "map"): Routing.ISOLATED,
            ("map", "map-async"): Routing.ISOLATED,
            ("map-async", "rolling-aggregate"): Routing.PARTITIONED,
            ("rolling-aggregate", "map-2"): Routing.ISOLATED,
            ("map-2", "noop-sink"): Routing.ISOLATED,
        }
        narrow = {v.name: v.parallelism(4) for v in dag.vertices if v.name != "source"}
        assert set(narrow.values()) == {1}

    def test_what_comes_before_is_not(self):
        p = Pipeline("before")
        read(p).map(str).map_batched(list).sort().write_to(sinks.collect())

        dag = p.plan(default_parallelism=4)

        assert routings(dag)["source", "map"] is Routing.UNICAST
        assert parallelism(dag)["map-batched"] == 4

    def test_list_of_sorted_items_is_collected_in_order(self):
        p = Pipeline("list")
        read(p).sort().aggregate(agg.to_list()).write_to(sinks.collect())

        dag = p.plan(default_parallelism=4)

        assert routings(dag)["sort", "aggregate-prepare"] is Routing.ISOLATED
        assert parallelism(dag)["aggregate-prepare"] == 1

    def test_key_or_rebalance_ends_it(self):
        p = Pipeline("ended")
        in_order = read(p).sort()
        in_order.rebalance().map(str).map_async(same, ordered=False).write_to(sinks.collect())
        in_order.distinct().map_batched(list).write_to(sinks.collect())

        found = parallelism(p.plan(default_parallelism=4))

        assert found["map"] == found["map-async"] == found["map-batched"] == 4

    def test_unordered_coroutines_are_refused_with_a_way_out(self):
        p = Pipeline("unordered")
        read(p).sort().map_async(same, ordered=False).write_to(sinks.collect())

        with pytest.raises(OrderNotPreservableError, match=r"or \.rebalance\(\) before it"):
            p.plan()


# --- Timestamps of streams ----------------------------------------------------------------------


def timestamps_behind(step, wanted=None):
    p = Pipeline("stream")
    stream = p.read_from(scripted_stream([1], [2])).without_timestamps()
    timed = step(stream).add_timestamps(lambda n: n, 0, local_parallelism=wanted)
    timed.map(abs, name="behind").write_to(sinks.noop())
    dag = p.plan(default_parallelism=4)
    into = [edge.routing for edge in dag.edges if edge.dest.name == "add-timestamps"]
    return parallelism(dag), into, routings(dag)


@pytest.mark.parametrize(
    ("step", "wanted", "expected"),
    [
        (lambda s: s, None, 2),
        (lambda s: s, 1, 1),
        (lambda s: s, 8, 2),
        (lambda s: s.map(abs), None, 4),
        (lambda s: s.map(abs, local_parallelism=3), None, 3),
        (lambda s: s.map_stateful(list, max), None, 1),
    ],
)
def test_a_stream_gets_timestamps_where_it_comes_from(step, wanted, expected):
    found, into, routing = timestamps_behind(step, wanted)
    assert found["add-timestamps"] == expected
    assert into == [Routing.ISOLATED]
    # That is all: no order is promised to those behind.
    assert routing["add-timestamps", "behind"] is Routing.UNICAST


def test_the_results_of_a_window_over_all_items_get_new_timestamps_in_one_place():
    p = Pipeline("again")
    stream = p.read_from(scripted_stream([1], [2])).with_ingestion_timestamps()
    counts = stream.window(windows.tumbling(10)).aggregate(agg.counting())
    counts.add_timestamps(lambda w: w.end).write_to(sinks.noop())
    dag = p.plan(default_parallelism=4)
    assert parallelism(dag)["add-timestamps"] == 1


def test_timestamps_are_taken_off_where_the_items_are():
    p = Pipeline("strip")
    stream = p.read_from(scripted_stream([1], [2])).with_ingestion_timestamps()
    stream.add_timestamps(lambda n: n).write_to(sinks.noop())
    dag = p.plan(default_parallelism=4)
    names = ["scripted-stream", "add-timestamps-strip", "add-timestamps", "noop-sink-strip"]
    for edge in pairwise(names):
        assert routings(dag)[edge] is Routing.ISOLATED
    assert {parallelism(dag)[name] for name in names} == {2}


def test_bounded_input_gets_timestamps_anywhere():
    p = Pipeline("bounded")
    read(p, 1).add_timestamps(lambda n: n, 0).write_to(sinks.noop())
    dag = p.plan(default_parallelism=4)
    assert parallelism(dag)["add-timestamps"] == 4
