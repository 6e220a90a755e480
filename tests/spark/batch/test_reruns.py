"""What is known of the items that a task emits when it is run again."""

from __future__ import annotations

import pytest

from jetlet import Pipeline, agg, sinks, sources, whole_item, windows
from jetlet.core import Processor, Repeats, State, Traits
from jetlet.spark.batch.fragments import cut
from jetlet.spark.batch.reruns import Rerun, reruns


def rerun(build, name="x"):
    p = Pipeline("p")
    build(p.read_from(sources.items([1]))).write_to(sinks.collect())
    dag = p.plan(default_parallelism=1)
    return reruns(dag, cut(dag))[dag[name]]


def counted(stage, **options):
    return stage.grouping_key(whole_item).aggregate(agg.counting(), **options)


class Unknown(Processor):
    pass


class Shuffling(Processor):
    traits = Traits(state=State.NONE, repeats=Repeats.ITEMS)


class Steady(Processor):
    traits = Traits(state=State.NONE, repeats=Repeats.BOTH)


class InOrder(Processor):
    traits = Traits(state=State.NONE, repeats=Repeats.IN_ORDER)


class Task:
    def process(self, envelope, collector, coordinator):
        pass


async def later(item):
    return item


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(whole_item, name="x"),
        lambda s: s.map_async(later, name="x"),
        lambda s: s.custom_transform(Steady, name="x"),
        lambda s: s.custom_transform(InOrder, name="x"),
        lambda s: s.grouping_key(whole_item).map_stateful(list, max, name="x"),
        lambda s: s.rebalance().map(whole_item, name="x"),
        # It is kept on its way.
        lambda s: s.custom_transform(Unknown).rebalance().map(whole_item, name="x"),
    ],
)
def test_the_same_items_in_the_same_order(build):
    assert rerun(build) is Rerun.SAME_ORDER


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(whole_item, name="x", local_parallelism=2),
        lambda s: s.map_async(later, name="x", ordered=False),
        lambda s: s.map_async(later, ordered=False).map(whole_item, name="x"),
        lambda s: s.map_async(later, ordered=False).rebalance().map(whole_item, name="x"),
        lambda s: s.merge(s.map(whole_item), name="x"),
        lambda s: counted(s, name="x"),
        lambda s: counted(s).rebalance().map(str, name="x"),
        lambda s: s.custom_transform(Shuffling, name="x"),
        lambda s: s.custom_transform(Shuffling).custom_transform(Steady, name="x"),
    ],
)
def test_the_same_items_in_any_order(build):
    assert rerun(build) is Rerun.SAME_ITEMS


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.custom_transform(Unknown, name="x"),
        lambda s: s.custom_transform(Unknown).map(whole_item, name="x"),
        lambda s: s.custom_transform(Shuffling).custom_transform(InOrder, name="x"),
        lambda s: s.process_with(Task, name="x"),
        lambda s: s.map_batched(list, max_batch=5, name="x"),
        # What it emits of an item depends on those that came before.
        lambda s: s.merge(s.map(str)).grouping_key(whole_item).map_stateful(list, max, name="x"),
        lambda s: (
            s.add_timestamps(whole_item)
            .window(windows.tumbling(10).early_results(5))
            .aggregate(agg.counting(), name="x")
        ),
    ],
)
def test_nothing_is_known(build):
    assert rerun(build) is Rerun.DIFFERS
