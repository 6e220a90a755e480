from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jetlet import JobConfig, Pipeline, SparkEngine, agg, sinks, sources, whole_item
from jetlet.core import DAG, Processor, between
from jetlet.errors import (
    InvalidArgumentError,
    InvalidDagError,
    JobCancelledError,
    JobStateError,
    PlanningError,
    UnpicklableFunctionError,
    UnsupportedFeatureError,
)
from jetlet.spark.launch.session import PLAN_SETTINGS, active_session, lean_session

pytestmark = pytest.mark.spark


def count(items=("a", "b", "a"), name="count"):
    p = Pipeline(name)
    out = sinks.collect()
    stage = p.read_from(sources.items(list(items))).grouping_key(whole_item)
    stage.aggregate(agg.counting()).write_to(out)
    return p, out


def test_a_joined_session_is_used_and_left_as_it_was(engine):
    spark = engine.session
    key = "spark.sql.adaptive.optimizer.excludedRules"
    rule = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    found = spark.conf.get(key)
    spark.conf.set(key, rule)
    try:
        with SparkEngine(session=spark) as joined:
            assert joined.session is spark
            assert spark.conf.get(key).split(",") == [rule, PLAN_SETTINGS[key]]
            p, out = count()
            joined.submit(p).join(90)
            assert sorted(out.items) == [("a", 2), ("b", 1)]
        assert spark.conf.get(key) == rule
    finally:
        spark.conf.set(key, found)
    assert active_session() is spark
    assert spark.range(3).count() == 3


def test_an_engine_without_arguments_joins_the_active_session(engine):
    with SparkEngine() as joined:
        assert joined.session is engine.session
    assert engine.session.range(3).count() == 3


def test_a_session_is_taken_as_it_is(engine):
    for options in ({"master": "local[2]"}, {"config": {"a": 1}}, {"app_name": "x"}):
        with pytest.raises(InvalidArgumentError, match="leave out master"):
            SparkEngine(session=engine.session, **options)


def test_there_is_a_task_per_core_unless_the_job_says_otherwise(engine):
    assert engine.default_parallelism == 2
    p, out = count(range(100))
    for config, expected in ((JobConfig(), 2), (JobConfig(default_parallelism=3), 3)):
        job = engine.submit(p, config)
        job.join(90)
        assert len(job.metrics()["group-and-aggregate"].processors) == expected
        assert len(out.items) == 100


def test_no_task_reads_nothing(engine):
    p, _ = count(["a"])
    job = engine.submit(p)
    job.join(90)
    assert len(job.metrics()["items-source"].processors) == 1


def plans(engine):
    """What Spark has made of all queries so far; a star marks what it has compiled."""
    store = engine.session._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    return [executions.apply(i).physicalPlanDescription() for i in range(executions.size())]


def test_spark_compiles_what_users_have_it_do_and_nothing_else(engine):
    before = len(plans(engine))
    p, _ = count(name="ours")
    engine.submit(p).join(90)
    ours = plans(engine)[before:]
    assert ours
    assert not any("* " in plan for plan in ours)

    p = Pipeline("theirs")
    query = sources.spark(lambda spark: spark.range(9).filter("id % 2 = 1"))
    p.read_from(query).write_to(sinks.collect())
    engine.submit(p).join(90)
    engine.session.range(9).filter("id % 2 = 1").collect()

    theirs = plans(engine)[before + len(ours) :]
    assert len(theirs) == 2
    assert all("* Filter" in plan for plan in theirs)


def test_a_session_that_was_stopped_is_told_of(engine, monkeypatch):
    p, _ = count()
    monkeypatch.setattr(engine.session.sparkContext, "_jsc", None)
    with pytest.raises(PlanningError, match="session was stopped; make a new SparkEngine"):
        engine.submit(p)


def test_frames_of_users_stay_in_their_session(engine, tmp_path):
    p, _ = count()
    engine.submit(p).join(90)

    def read(spark):
        return spark.readStream.schema("id long").parquet(str(tmp_path))

    # Spark has a session of its own for the batches of a query, and so have those that run at once.
    engine.session.range(3).write.parquet(str(tmp_path), mode="append")
    stream = Pipeline("stream")
    stream.read_from(sources.spark_stream(read, available_now=True)).without_timestamps().write_to(
        sinks.noop()
    )
    engine.submit(stream, JobConfig(streaming="micro-batch")).join(90)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: lean_session(engine.session), range(12)))

    # Compared by their halves in Java: PySpark 3.5 makes another one here whenever it is asked.
    users = engine.session._jsparkSession
    frame = engine.session.sparkContext.parallelize([(1,)]).toDF(["a"])
    assert frame.sparkSession._jsparkSession == users
    assert active_session()._jsparkSession == users


def test_a_job_sees_what_the_session_is_set_to_by_then(engine):
    key = "spark.sql.pyspark.jvmStacktrace.enabled"
    found = engine.session.conf.get(key)
    engine.session.conf.set(key, "true")
    try:
        assert lean_session(engine.session).conf.get(key) == "true"
    finally:
        engine.session.conf.set(key, found)


def test_a_spark_that_lets_nobody_clone_its_session_runs_plans_as_any_others():
    class Closed:
        """A session whose Java side has none of what is private to Spark."""

        _jsparkSession = object()  # noqa: N815 - Spark's name

    closed = Closed()
    assert lean_session(closed) is closed


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_guarantees_of_streams_are_refused(engine, guarantee):
    with pytest.raises(UnsupportedFeatureError, match="processing_guarantee='none'"):
        engine.submit(count()[0], JobConfig(processing_guarantee=guarantee))


def test_a_snapshot_to_begin_with_is_refused(engine):
    with pytest.raises(UnsupportedFeatureError, match="leave it out"):
        engine.submit(count()[0], JobConfig(initial_snapshot="before", snapshot_dir="state"))


def test_settings_that_a_batch_has_no_use_for_are_told(engine, caplog):
    p, out = count()
    with caplog.at_level(logging.WARNING, "jetlet.job"):
        engine.submit(p, JobConfig(snapshot_dir="state", max_restarts=3, call_budget=0.1)).join()
    assert sorted(out.items) == [("a", 2), ("b", 1)]
    (message,) = [m for m in caplog.messages if "has no effect" in m]
    assert message.startswith("snapshot_dir='state', max_restarts=3 has no effect on a batch on")


def test_an_isolated_edge_that_is_distributed_is_refused_here_too(engine):
    dag = DAG("isolated")
    edge = between(dag.new_vertex("a", Processor, 1), dag.new_vertex("b", Processor, 1))
    dag.edge(edge.isolated().distributed())
    with pytest.raises(InvalidDagError, match=r"write \.isolated\(\) without"):
        engine.submit(dag)


def test_tasks_have_as_many_workers_as_the_engine_was_given(engine):
    def workers(item):
        here = [t.name for t in threading.enumerate()]
        return sum(name.startswith("jetlet-task-worker") for name in here)

    p = Pipeline("workers")
    out = sinks.collect()
    p.read_from(sources.items([1, 2, 3])).map(workers).write_to(out)
    with SparkEngine(session=engine.session, workers=3, backoff=(1e-5, 1e-3)) as joined:
        joined.submit(p).join()
    assert out.items == [3, 3, 3]


def test_a_job_on_spark_cannot_be_suspended(engine):
    job = engine.submit(count()[0])
    job.join(90)
    with pytest.raises(JobStateError, match="takes no snapshots"):
        job.suspend()


def test_only_pipelines_and_dags_run(engine):
    with pytest.raises(InvalidArgumentError, match="runs a Pipeline or a DAG"):
        engine.submit("count")
    with pytest.raises(PlanningError, match="no vertices"):
        engine.submit(DAG("empty"))


def test_what_cannot_travel_is_refused_when_submitted(engine):
    lock = threading.Lock()
    p = Pipeline("locked")
    p.read_from(sources.items([1])).map(lambda x: lock and x, name="locked").write_to(
        sinks.collect()
    )
    with pytest.raises(UnpicklableFunctionError, match="stage 'locked'"):
        engine.submit(p)
    p = Pipeline("locks")
    p.read_from(sources.items([lock])).write_to(sinks.collect())
    with pytest.raises(UnpicklableFunctionError, match="input of stage 'items-source'"):
        engine.submit(p)
    assert not engine.jobs


def test_closing_an_engine_cancels_its_jobs_and_takes_no_more(engine, tmp_path):
    began = tmp_path / "began"

    def block(item):
        began.touch()
        threading.Event().wait(60)

    p = Pipeline("endless")
    p.read_from(sources.items([1])).map(block).write_to(sinks.collect())
    with SparkEngine(session=engine.session) as other:
        job = other.submit(p)
        assert other.jobs == [job]
        while not began.exists():
            threading.Event().wait(0.01)
    with pytest.raises(JobCancelledError):
        job.join(0)
    assert not other.jobs
    other.close()
    with pytest.raises(PlanningError, match="the engine is closed"):
        other.submit(count()[0])


def test_two_jobs_run_at_once(engine):
    (first, one), (second, two) = count(name="first"), count("xyz", name="second")
    jobs = [engine.submit(p, JobConfig(default_parallelism=1)) for p in (first, second)]
    for job in jobs:
        job.join(90)
    assert sorted(one.items) == [("a", 2), ("b", 1)]
    assert sorted(two.items) == [("x", 1), ("y", 1), ("z", 1)]
    assert [job.metrics()["items-source"].emitted for job in jobs] == [3, 3]
