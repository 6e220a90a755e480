"""Which vertices a batch runs together, and which of them keep something."""

from __future__ import annotations

from functools import partial

import pytest

from jetlet import Pipeline, agg, sinks, sources, windows
from jetlet.core import Processor, State, Traits
from jetlet.errors import UnsupportedFeatureError
from jetlet.spark.batch.fragment_spec import spans_batches
from jetlet.spark.micro_batch.plan import BatchPlan
from jetlet.tasks import stores


def stream(p, **options):
    return p.read_from(sources.spark_stream(lambda spark: spark.readStream, **options))


def timed(p):
    return stream(p).with_timestamps(lambda row: row["t"])


def plan(p):
    return BatchPlan(p.plan(default_parallelism=1))


def names(fragments):
    return [fragment.name for fragment in fragments]


def test_what_reads_the_stream_keeps_nothing():
    p = Pipeline()
    keyed = timed(p).filter(bool).grouping_key(lambda row: row["k"])
    keyed.window(windows.tumbling(10)).aggregate(agg.counting()).write_to(sinks.noop())
    found = plan(p)
    assert names(found.source_fragments) == ["spark-stream + filter + window-and-aggregate-prepare"]
    assert names(filter(found.keeps_state, found.fragments)) == ["window-and-aggregate + noop-sink"]


def test_without_state_all_is_one_fragment():
    p = Pipeline()
    stream(p).without_timestamps().map(str).write_to(sinks.noop())
    found = plan(p)
    assert names(found.fragments) == ["spark-stream + map + noop-sink"]
    assert not found.has_state


class Unknown(Processor):
    pass


class Empty(Processor):
    traits = Traits(state=State.NONE)


class Saving(Processor):
    def save_to_snapshot(self):
        return True

    def restore_from_snapshot(self, inbox):
        inbox.clear()


class ClassTask:
    def process(self, envelope, collector, coordinator):
        pass


class EmptyTask(ClassTask):
    traits = Traits(state=State.NONE)


def function_task(envelope, collector, coordinator):
    pass


@pytest.mark.parametrize("make", [Unknown, partial(Unknown)])
def test_a_processor_that_may_lose_its_state_is_refused(make):
    p = Pipeline()
    stage = stream(p).without_timestamps().custom_transform(make, name="mine")
    stage.write_to(sinks.noop())
    with pytest.raises(UnsupportedFeatureError, match=r"'mine' saves nothing.*save_to_snapshot"):
        plan(p)


def test_a_task_that_may_lose_its_fields_is_refused():
    p = Pipeline()
    stage = stream(p).without_timestamps().process_with(ClassTask, name="mine")
    stage.write_to(sinks.noop())
    with pytest.raises(
        UnsupportedFeatureError, match=r"'mine' saves nothing.*in a store.*State.NO"
    ):
        plan(p)


@pytest.mark.parametrize(
    ("task", "options", "keeps"),
    [
        (EmptyTask, {}, False),
        (function_task, {}, False),
        (ClassTask, {"stores": {"counts": stores.in_memory()}}, True),
    ],
)
def test_a_task_keeps_what_is_in_its_stores(task, options, keeps):
    p = Pipeline()
    stage = stream(p).without_timestamps().process_with(task, name="mine", **options)
    stage.write_to(sinks.noop())
    assert plan(p).has_state is keeps


def test_a_processor_without_state_stays_where_it_is():
    p = Pipeline()
    stage = stream(p).without_timestamps().custom_transform(Empty, name="mine")
    stage.write_to(sinks.noop())
    assert not plan(p).has_state


def test_a_processor_that_saves_its_state_is_cut_off():
    p = Pipeline()
    stage = stream(p).without_timestamps().custom_transform(Saving, name="mine")
    stage.write_to(sinks.noop())
    found = plan(p)
    assert names(found.fragments) == ["spark-stream", "mine + noop-sink"]
    assert found.has_state


def test_what_a_join_looks_up_is_read_apart():
    p = Pipeline()
    names_of = p.read_from(sources.items([(1, "one")]))
    joined = stream(p).without_timestamps().hash_join(names_of, lambda r: r["k"], lambda n: n[0])
    joined.write_to(sinks.noop())
    found = plan(p)
    assert names(found.bounded_fragments) == ["items-source"]
    assert not found.has_state


def test_the_plan_leaves_the_dag_as_it_is():
    p = Pipeline()
    timed(p).write_to(sinks.noop())
    dag = p.plan(default_parallelism=1)
    found = BatchPlan(dag)
    assert not spans_batches(found.dag["spark-stream"])
    assert type(dag["spark-stream"].supplier).__name__ == "StreamReadSupplier"
    assert [edge.source for edge in found.dag.edges] != [edge.source for edge in dag.edges]


@pytest.mark.parametrize(
    "timed",
    [
        lambda s, **options: s.with_timestamps(lambda row: row["t"], **options),
        lambda s, **options: s.without_timestamps().add_timestamps(lambda row: row["t"], **options),
    ],
)
def test_time_that_is_to_go_on_without_a_batch_is_refused(timed):
    for when_idle in (None, "wait"):
        p = Pipeline()
        timed(stream(p), when_idle=when_idle).write_to(sinks.noop())
        plan(p)
    p = Pipeline()
    timed(stream(p), when_idle="advance").write_to(sinks.noop())
    with pytest.raises(UnsupportedFeatureError, match="Leave out when_idle"):
        plan(p)


def test_a_bounded_branch_is_refused():
    p = Pipeline()
    stream(p).without_timestamps().write_to(sinks.noop())
    p.read_from(sources.items([1])).write_to(sinks.noop(name="other"))
    with pytest.raises(UnsupportedFeatureError, match="run it as a job of its own"):
        plan(p)


def test_a_sink_that_gathers_batches_is_refused(tmp_path):
    p = Pipeline()
    stream(p).without_timestamps().write_to(sinks.text(tmp_path, roll_size="1 MB"))
    with pytest.raises(UnsupportedFeatureError, match="a micro-batch is committed as a whole"):
        plan(p)
