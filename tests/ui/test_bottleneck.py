"""Made-up jobs, then real ones: the sentence names whom it should."""

from __future__ import annotations

import threading

import pytest

from jetlet import EmbeddedEngine, Pipeline, sinks, sources
from jetlet.metrics.shares import Shares
from jetlet.ui.bottleneck import NO_TASK, Load, Verdict, bottleneck
from jetlet.ui.job_view import JobWatch


def load(name, busy=0.0, blocked=0.0, *, inputs=(), **more):
    shares = Shares(busy, blocked, 1 - busy - blocked)
    return Load(name, shares, inputs, **{"core": busy, "busiest": busy, **more})


def test_who_is_busy_and_waited_for_is_the_bottleneck():
    loads = [
        load("read", 0.1, 0.71),
        load("enrich", 0.94, inputs=("read",), fill=0.9),
        load("write", 0.05, inputs=("enrich",), fill=0.0),
    ]

    assert bottleneck(loads, [0.01]) == Verdict(
        "`enrich` is the bottleneck: its calls take 94% of its core, and `read` waits for it 71% "
        "of the time.",
        "enrich",
    )
    assert bottleneck(loads, [0.01], is_over=True).sentence == (
        "`enrich` was the bottleneck: its calls took 94% of its core, and `read` waited for it 71% "
        "of the time."
    )


def test_who_waits_for_somebody_behind_is_not():
    loads = [
        load("read", 0.05, 0.9),
        load("parse", 0.3, 0.6, inputs=("read",), fill=1.0),
        load("write", 0.97, inputs=("parse",), fill=1.0),
    ]

    assert bottleneck(loads, [0.0]).vertex == "write"


def test_a_source_that_is_busy_while_all_wait_for_it():
    loads = [load("read", 0.98), load("write", 0.02, inputs=("read",), fill=0.0)]

    verdict = bottleneck(loads, [0.01])

    assert verdict.vertex == "read"
    assert "98% of its core, and all behind it can only wait for its items" in verdict.sentence


def test_of_two_that_are_fed_by_one_the_full_one_is_blamed():
    loads = [
        load("read", 0.1, 0.8),
        load("quick", 0.55, inputs=("read",), fill=0.1),
        load("slow", 0.53, inputs=("read",), fill=1.0),
    ]

    assert bottleneck(loads, [0.0, 0.0]).vertex == "slow"


def test_one_processor_that_has_more_to_do_than_the_others():
    loads = [
        load("read", 0.05, 0.9),
        load("count", 0.3, inputs=("read",), fill=0.5, busiest=0.9, processors=4, core=0.3),
    ]

    assert bottleneck(loads, [0.0] * 4).sentence == (
        "One of the 4 processors of `count` is the bottleneck: its calls take 90% of the time, "
        "those of the others 10%."
    )


def test_a_core_that_several_share_evenly():
    loads = [load("read", 0.3), load("a", 0.35, inputs=("read",)), load("b", 0.3, inputs=("a",))]

    verdict = bottleneck(loads, [0.02])

    assert verdict.vertex == "a"
    assert verdict.sentence.startswith("`a` and `read` take the most of a busy core, 35% and 30%:")
    assert bottleneck([load("read", 0.02), load("a", 0.01, inputs=("read",))], [0.0]).vertex is None
    reader = load("read", 1.0, may_block=True)
    assert bottleneck([reader, load("a", 0.6, inputs=("read",))], [0.0]).sentence.startswith(
        "`a` takes the most of"
    )
    assert bottleneck(
        [load("read", 0.02), load("a", 0.97, inputs=("read",))], [0.0]
    ).sentence.startswith("`a` takes the most of a busy core, 97%:")


def test_a_source_whose_items_wait_before_others_is_not_the_bottleneck():
    loads = [
        load("read", 0.55, 0.38),
        load("stamp", 0.0, 0.99, inputs=("read",), fill=0.98),
        load("enrich", 0.42, inputs=("stamp",), fill=0.85),
    ]

    assert bottleneck(loads, [0.01]).sentence.startswith("`read` and `enrich` take the most of a")


def test_two_do_not_take_turns():
    def looked(enrich, before):
        loads = [load("read", 0.98 - enrich, 0.4), load("enrich", enrich, inputs=("read",))]
        return bottleneck(loads, [0.01], before=before)

    assert looked(0.51, None).sentence.startswith("`enrich` is the bottleneck: its calls take 51%")
    assert looked(0.45, "enrich").sentence.startswith("`enrich` is the bottleneck: its calls take")
    assert looked(0.45, None).vertex == "read"
    assert looked(0.48, "read").vertex == "read"
    assert looked(0.3, "enrich").vertex == "read"


def test_who_waits_for_something_outside():
    loads = [load("read", 0.01, 0.95), load("lookup", 0.03, inputs=("read",), fill=1.0)]

    verdict = bottleneck(loads, [0.9])

    assert verdict.vertex == "lookup"
    assert "though its calls take only 3% of its core: it waits for something" in verdict.sentence


def test_a_source_that_may_be_waiting_itself_is_not_blamed():
    loads = [load("read", 1.0, may_block=True), load("write", 0.02, inputs=("read",), fill=0.0)]

    assert bottleneck(loads, [0.9]) == Verdict(
        "Nothing holds the job back but `read`, which is reading, or waiting for something to "
        "read, 100% of the time."
    )


def test_a_stage_that_may_be_waiting_is_not_said_to_take_a_core():
    loads = [load("read", 0.1, 0.8), load("ask", 0.9, inputs=("read",), fill=1.0, may_block=True)]

    assert "take 90% of the time, though some of them may be waiting" in (
        bottleneck(loads, [0.9]).sentence
    )


def test_nobody_is_to_blame_if_nothing_comes_in():
    loads = [load("read", 0.02), load("write", 0.01, inputs=("read",))]

    assert bottleneck(loads, [0.95]) == Verdict(
        "Nothing holds the job back: `read` waits for items 98% of the time."
    )


def test_a_call_that_does_not_return_comes_first():
    loads = [load("read", 0.9), load("ask", 0.5, inputs=("read",), call_ns=23_000_000_000)]

    verdict = bottleneck(loads, [0.0])

    assert verdict.vertex == "ask"
    assert "`ask` has been in one call for 23 s" in verdict.sentence


def test_in_tasks_that_follow_each_other_the_longest_is_named():
    loads = [load("read", busy_ns=250), load("split", busy_ns=750)]

    assert bottleneck(loads, is_over=True).sentence == (
        "`split` took the most time: 75% of what the vertices had in all tasks."
    )
    assert bottleneck([load("read")]).sentence == NO_TASK
    assert bottleneck([], has_stages=True) == Verdict(NO_TASK)
    assert bottleneck([]) == Verdict("Nothing has run so far.")


# --- Real jobs ------------------------------------------------------------------------------


def work(item):
    return sum(range(2000)) and item


def slow_map(p):
    p.read_from(sources.items(range(5000))).map(work, name="enrich").write_to(sinks.noop())


def slow_second(p):
    source = p.read_from(sources.items(range(5000)))
    source.rebalance().map(str, name="quick").rebalance().map(work, name="slow").write_to(
        sinks.noop()
    )


def slow_source(p):
    source = sources.batch("slow-read", lambda context: (work(i) for i in range(5000)))
    p.read_from(source).write_to(sinks.noop())


@pytest.mark.parametrize(
    ("build", "vertex"), [(slow_map, "enrich"), (slow_second, "slow"), (slow_source, "slow-read")]
)
def test_the_slow_stage_of_a_real_job_is_named(build, vertex):
    p = Pipeline("real")
    build(p)
    with EmbeddedEngine() as engine:
        job = engine.submit(p)
        watch = JobWatch(job)
        job.join()
        view = watch.look(final=True)

    assert view.verdict.vertex == vertex
    for row in view.rows:
        assert row.busy + row.blocked + row.waiting == pytest.approx(1)


def test_a_call_under_way_counts_as_busy():
    entered, leave = threading.Event(), threading.Event()

    def hang(item):
        entered.set()
        leave.wait()
        return item

    p = Pipeline("hangs")
    p.read_from(sources.items([1])).map(hang, name="hang").write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        job = engine.submit(p)
        watch = JobWatch(job)
        entered.wait()
        while job.metrics()["hang"].call_ns < 20_000_000:
            pass
        row = next(row for row in watch.look().rows if row.name == "hang")
        leave.set()
        job.join()

    assert row.busy > 0.5


@pytest.mark.cluster
def test_the_slow_stage_of_members_is_named():
    p = Pipeline("members")
    slow_map(p)
    with EmbeddedEngine(members=2) as engine:
        job = engine.submit(p)
        watch = JobWatch(job)
        job.join()
        view = watch.look(final=True)

    assert view.verdict.vertex == "enrich"
    flows = {(flow.source, flow.dest): flow.items for flow in view.flows}
    assert flows["items-source", "enrich"] == flows["enrich", "noop-sink"] == 5000


@pytest.mark.spark
def test_the_longest_stage_on_spark_is_named(spark_engine):
    p = Pipeline("tasks")
    slow_map(p)
    job = spark_engine.submit(p)
    watch = JobWatch(job)
    job.join()
    view = watch.look(final=True)

    assert view.verdict.vertex == "enrich"
    assert "took the most time" in view.verdict.sentence
    assert all(row.busy is not None for row in view.rows)
    assert [name for stage in view.stages for name in stage.vertices] == [v.name for v in job.dag]
