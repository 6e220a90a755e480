"""Jobs on Spark, on two cores of this machine: what only shows where fragments meet Spark."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter

import pytest

from jetlet import JobConfig, Pipeline, agg, service, sinks, sources, whole_item
from jetlet.core import DAG, Processor, RunHook, Vertex, between, from_
from jetlet.errors import JobCancelledError, JobFailedError, UnsupportedFeatureError
from jetlet.jobs.job import JobStatus
from jetlet.spark.batch import runner
from jetlet.spark.batch.runner import SparkRunner
from jetlet.spark.launch.versions import package_version

DIVISION = (
    "division by zero" if sys.version_info >= (3, 14) else "integer division or modulo by zero"
)
"""What Python says."""

pytestmark = pytest.mark.spark


def run(engine, pipeline, **config):
    job = engine.submit(pipeline, JobConfig(**config))
    job.join(90)
    return job


def eventually(condition, timeout=60.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Emit(Processor):
    """A source of numbers."""

    def __init__(self, count):
        self._left = iter(range(count))

    def complete(self):
        for number in self._left:
            if not self.outbox.offer(number):
                self._left = iter([number, *self._left])
                return False
        return True


class Collect(RunHook):
    def __init__(self):
        self.items = []
        self.messages = ()

    def begin(self, run_id):
        self.items = []

    def receive(self, batch):
        self.items.extend(batch)

    def commit(self, run_id, messages):
        self.messages = messages


class ToClient(Processor):
    def process(self, ordinal, inbox):
        if self.context.send_to_client([(ordinal, item) for item in inbox.items()]):
            inbox.clear()

    def complete(self):
        self.context.report(self.context.global_index)
        return True


def client(dag, name="client", **options):
    hook = Collect()
    return dag.vertex(Vertex(name, ToClient, 1, hook=hook, **options)), hook


def test_a_fragment_that_several_read_is_run_once(engine, tmp_path):
    def mark(item):
        with (tmp_path / f"{os.getpid()}-{threading.get_ident()}").open("a") as file:
            file.write("x")
        return item

    p = Pipeline("several")
    stage = p.read_from(sources.items(range(100))).map(mark)
    by_two, by_three, all_of_them = sinks.collect(), sinks.collect(), sinks.collect()
    stage.grouping_key(lambda n: n % 2).aggregate(agg.counting()).write_to(by_two)
    stage.grouping_key(lambda n: n % 3).aggregate(agg.counting()).write_to(by_three)
    stage.write_to(all_of_them)
    run(engine, p)
    assert sorted(by_two.items) == [(0, 50), (1, 50)]
    assert sorted(by_three.items) == [(0, 34), (1, 33), (2, 33)]
    assert sorted(all_of_them.items) == list(range(100))
    assert sum(len(file.read_text()) for file in tmp_path.iterdir()) == 100
    assert not engine.session.sparkContext._jsc.getPersistentRDDs()


def test_items_and_reports_of_a_fragment_that_is_broadcast_and_shuffled_come_once(engine):
    # Its items go to the driver, to a broadcast and through a shuffle.
    dag = DAG("all at once")
    source = dag.new_vertex("source", lambda: Emit(3), 1)
    sink, hook = client(dag)
    reader, by_key = client(dag, "by key")
    other = dag.new_vertex("other", lambda: Emit(0), 1)
    joined, broadcast = client(dag, "joined")
    dag.edge(between(source, sink))
    dag.edge(from_(source, 1).to(reader).partitioned().distributed())
    dag.edge(from_(source, 2).to(joined, 1).broadcast().distributed())
    dag.edge(between(other, joined))
    engine.submit(dag, JobConfig(default_parallelism=1)).join(90)
    assert sorted(hook.items) == [(0, 0), (0, 1), (0, 2)]
    assert hook.messages == (0,)
    assert sorted(by_key.items) == [(0, 0), (0, 1), (0, 2)]
    assert sorted(broadcast.items) == [(1, 0), (1, 1), (1, 2)]


def test_every_task_of_a_union_reads_its_own_splits(engine):
    p = Pipeline("union")
    first, second = sinks.collect(), sinks.collect()
    p.read_from(sources.items(range(50))).grouping_key(whole_item).aggregate(
        agg.counting()
    ).write_to(first)
    p.read_from(sources.items(range(50, 100))).sort().write_to(second)
    run(engine, p)
    assert sorted(first.items) == [(n, 1) for n in range(50)]
    assert second.items == list(range(50, 100))


def test_items_are_rebalanced_over_all_tasks(engine):
    p = Pipeline("rebalance")
    out = sinks.collect()
    stage = p.read_from(sources.batch("one", lambda _: range(1000), splits=[None]))
    stage.rebalance().map(lambda n: (os.getpid(), n)).write_to(out)
    run(engine, p)
    assert sorted(n for _, n in out.items) == list(range(1000))
    assert sorted(Counter(pid for pid, _ in out.items).values()) == [500, 500]


def test_no_plan_of_spark_has_too_many_shuffles(engine, monkeypatch):
    """Spark walks through its plans by recursion, and hangs where its stack does not do."""
    kept = []
    keep = SparkRunner._keep

    def noted(self, run, fragment, frame):
        kept.append(fragment.index)
        return keep(self, run, fragment, frame)

    monkeypatch.setattr(SparkRunner, "_keep", noted)
    monkeypatch.setattr(runner, "MAX_SHUFFLES_IN_PLAN", 3)
    p, out = Pipeline("deep"), sinks.collect()
    stage = p.read_from(sources.items(range(100)))
    for _ in range(8):
        stage = stage.rebalance().map(lambda n: n + 1)
    stage.write_to(out)
    run(engine, p)
    assert sorted(out.items) == list(range(8, 108))
    assert kept == [3, 6]


def test_several_processors_within_a_task_share_its_items(engine):
    p = Pipeline("parallel")
    out = sinks.collect()
    stage = p.read_from(sources.items([f"w{n % 7}" for n in range(1000)]))
    stage.map(str.upper, local_parallelism=3).grouping_key(whole_item).aggregate(
        agg.counting(), local_parallelism=2
    ).write_to(out)
    job = run(engine, p)
    assert dict(out.items) == Counter(f"W{n % 7}" for n in range(1000))
    assert len(job.metrics()["map"].processors) == 2 * 3
    assert job.metrics()["map"].received == 1000


@pytest.mark.parametrize("streaming", [None, "members"])
def test_state_is_on_disk_where_tasks_run(engine, tmp_path, streaming):
    p = Pipeline("on-disk")
    out = sinks.collect()
    stage = p.read_from(sources.items([f"w{n % 70}" for n in range(1000)]))
    counted = stage.grouping_key(whole_item).rolling_aggregate(agg.counting(), state="disk")
    # Each task says how many directories there are while it has some of its state there.
    base = tmp_path / f"jetlet-state-{os.getuid()}"
    counted.map(lambda count: (count, len(list(base.iterdir())))).write_to(out)
    run(engine, p, state_memory=1, state="memory", state_dir=tmp_path, streaming=streaming)
    expected = [(f"w{w}", n) for w in range(70) for n in range(1, 1000 // 70 + 1 + (w < 20))]
    assert sorted(count for count, _ in out.items) == sorted(expected)
    assert max(directories for _, directories in out.items) > 1  # there is a lock
    assert [path.name for path in base.iterdir()] == ["lock"]


@pytest.mark.parametrize("items", [[], ["a"]])
def test_empty_tasks_and_empty_input(engine, items):
    p = Pipeline("little")
    keyed, counted, ordered = sinks.collect(), sinks.collect(), sinks.collect()
    stage = p.read_from(sources.items(items))
    stage.grouping_key(whole_item).aggregate(agg.counting()).write_to(keyed)
    stage.aggregate(agg.counting()).write_to(counted)
    stage.sort().write_to(ordered)
    run(engine, p)
    assert keyed.items == [(item, 1) for item in items]
    assert counted.items == [len(items)]
    assert ordered.items == items


class BuildFirst(Processor):
    """Fails unless all of ordinal 1 comes before any of ordinal 0."""

    def __init__(self):
        self._is_built = False

    def complete_edge(self, ordinal):
        self._is_built |= ordinal == 1
        return True

    def process(self, ordinal, inbox):
        assert ordinal == 1 or self._is_built
        self.outbox.offer_batch([(ordinal, item) for item in inbox.take()])


def test_a_shuffled_edge_of_higher_priority_is_read_to_its_end_first(engine):
    # More items than the queues hold: in any other order the two inputs would block each other.
    dag = DAG("priorities")
    probe = dag.new_vertex("probe", lambda: Emit(5000), 1)
    build = dag.new_vertex("build", lambda: Emit(5000), 1)
    join = dag.new_vertex("join", BuildFirst, 1)
    sink, hook = client(dag)
    dag.edge(between(probe, join).partitioned().distributed())
    dag.edge(from_(build).to(join, 1).partitioned().distributed().priority(-1))
    dag.edge(between(join, sink))
    engine.submit(dag, JobConfig(default_parallelism=1)).join(90)
    assert Counter(ordinal for _, (ordinal, _) in hook.items) == {0: 5000, 1: 5000}


def test_priorities_that_cannot_be_kept_are_refused_when_submitted(engine):
    dag = DAG("circle")
    source, fork = (
        dag.new_vertex("source", lambda: Emit(1), 1),
        dag.new_vertex("fork", Processor, 1),
    )
    join = dag.new_vertex("join", Processor, 1)
    dag.edge(between(source, fork).partitioned().distributed())
    dag.edge(from_(fork).to(join)).edge(from_(fork, 1).to(join, 1).priority(-1))
    with pytest.raises(UnsupportedFeatureError, match="priority"):
        engine.submit(dag)


def test_order_is_kept_from_one_fragment_to_the_next(engine):
    # An isolated edge that has to be cut, into a vertex with two processors.
    dag = DAG("order")
    source = dag.new_vertex("source", lambda: Emit(5000), 1)
    keyed = dag.new_vertex("keyed", Processor, 1)
    sink = dag.vertex(Vertex("sink", ToClient, 2, hook=Collect()))
    dag.edge(between(source, keyed).partitioned().distributed())
    dag.edge(from_(source, 1).to(sink).isolated())
    dag.edge(from_(keyed).to(sink, 1))
    keyed.supplier = Vertex("drop", Drop).supplier
    engine.submit(dag, JobConfig(default_parallelism=1)).join(90)
    assert [item for _, item in sink.hook.items] == list(range(5000))


class Drop(Processor):
    def process(self, ordinal, inbox):
        inbox.clear()


class TestFailure:
    def fail(self, engine, pipeline):
        with pytest.raises(JobFailedError) as failure:
            run(engine, pipeline)
        return failure.value

    def test_a_failing_function_is_named_in_the_first_line(self, engine, caplog):
        p = Pipeline("bad")
        stage = p.read_from(sources.items([3, 2, 1, 0])).map(abs)
        stage.map(lambda n: 6 // n, name="divide").write_to(sinks.collect())
        with caplog.at_level(logging.DEBUG, logger="jetlet"):
            error = self.fail(engine, p)
        assert str(error) == (
            "job 'bad' failed in vertex 'fused(map, divide)' (stage 'divide') on item 0: "
            f"ZeroDivisionError: {DIVISION}"
        )
        assert (error.vertex, error.item) == ("fused(map, divide)", "0")
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert error.__context__ is None
        # Those who look for it find the whole; nobody else gets a page of Java.
        by_level = {r.levelno: r for r in caplog.records if r.name.startswith("jetlet")}
        shown = logging.Formatter().format(by_level[logging.INFO])
        assert "java" not in shown.replace("java.lang", "java").lower()
        whole = logging.Formatter().format(by_level[logging.DEBUG])
        assert "PythonException" in whole
        if package_version() >= (4, 0):  # before, it comes without
            assert "\tat org.apache.spark" in whole
        assert by_level[logging.DEBUG].name == "jetlet.spark"

    def test_a_function_that_fails_behind_a_shuffle_is_named_too(self, engine):
        p = Pipeline("bad")
        stage = p.read_from(sources.items(["a", "b"])).grouping_key(whole_item)
        stage.aggregate(agg.counting()).map(lambda entry: entry[2], name="third").write_to(
            sinks.collect()
        )
        error = self.fail(engine, p)
        assert error.vertex == "third"
        assert str(error).endswith("IndexError: tuple index out of range")

    def test_a_service_that_cannot_be_made_is_named(self, engine):
        def refuse(context):
            raise ConnectionError("nobody there")

        p = Pipeline("bad")
        stage = p.read_from(sources.items([1]))
        stage.map_using_service(service(refuse), lambda s, i: i, name="lookup").write_to(
            sinks.collect()
        )
        error = self.fail(engine, p)
        assert error.vertex == "lookup"
        assert "ConnectionError: nobody there" in str(error)

    def test_items_that_cannot_be_pickled_are_named(self, engine):
        p = Pipeline("bad")
        stage = p.read_from(sources.items([1])).map(lambda _: threading.Lock(), name="lock")
        stage.write_to(sinks.collect())
        error = self.fail(engine, p)
        assert "cannot be sent to another process" in str(error)
        assert error.item.startswith("<unlocked _thread.lock")

    def test_a_worker_that_dies_is_told_in_one_line(self, engine):
        p = Pipeline("dies")
        p.read_from(sources.items([1])).map(lambda _: os._exit(7)).write_to(sinks.collect())
        error = self.fail(engine, p)
        assert str(error).startswith("job 'dies' failed on Spark: a Python worker died")

    def test_another_job_runs_after_one_that_failed(self, engine):
        p = Pipeline("good")
        out = sinks.collect()
        p.read_from(sources.items([1, 2])).write_to(out)
        run(engine, p)
        assert out.items == [1, 2]


class TestCancel:
    def slow(self, tmp_path):
        """A job that says when it has begun, and never ends by itself."""
        began = tmp_path / "began"

        def wait(item):
            began.touch()
            time.sleep(3600)
            return item

        p = Pipeline("slow")
        p.read_from(sources.items(range(100))).map(wait).write_to(sinks.csv(tmp_path / "out"))
        return p, began

    def test_a_running_job_ends_soon_and_leaves_nothing(self, engine, tmp_path):
        p, began = self.slow(tmp_path)
        job = engine.submit(p)
        eventually(began.exists)
        eventually(lambda: job.metrics().stages[0]["active"])
        (stage,) = job.metrics().stages
        assert stage["vertices"] == tuple(vertex.name for vertex in job.dag)
        assert stage["spark_stage"] is not None
        job.cancel()
        assert job.status is JobStatus.CANCELLED
        with pytest.raises(JobCancelledError):
            job.join()
        assert not (tmp_path / "out").exists()
        tracker = engine.session.sparkContext.statusTracker()
        eventually(lambda: not tracker.getActiveJobsIds())

    def test_a_job_that_has_just_been_submitted_can_be_cancelled(self, engine, tmp_path):
        p, _ = self.slow(tmp_path)
        job = engine.submit(p)
        job.cancel()
        with pytest.raises(JobCancelledError):
            job.join()

    def test_cancelling_a_job_that_has_ended_changes_nothing(self, engine):
        p = Pipeline("done")
        p.read_from(sources.items([1])).write_to(sinks.collect())
        job = run(engine, p)
        job.cancel()
        assert job.status is JobStatus.COMPLETED

    def test_only_the_cancelled_one_of_two_jobs_ends(self, engine, tmp_path):
        p, began = self.slow(tmp_path)
        slow = engine.submit(p, JobConfig(default_parallelism=1))
        eventually(began.exists)
        other, out = Pipeline("other"), sinks.collect()
        other.read_from(sources.items([1])).write_to(out)
        quick = engine.submit(other, JobConfig(default_parallelism=1))
        slow.cancel()
        quick.join(90)
        assert out.items == [1]


class TestProgress:
    def test_counters_are_those_of_the_jobs_vertices_and_add_up(self, engine):
        p = Pipeline("count")
        stage = p.read_from(sources.items(["a b", "a"])).flat_map(str.split)
        stage.grouping_key(whole_item).aggregate(agg.counting()).write_to(sinks.collect())
        job = run(engine, p)
        metrics = job.metrics()
        assert list(metrics) == [v.name for v in job.dag]
        assert metrics["flat-map"].received == 2
        assert metrics["flat-map"].emitted == 3
        assert metrics["collect-sink"].received == 2
        assert len(metrics["group-and-aggregate"].processors) == 2

    def test_tasks_are_counted_while_the_job_runs(self, engine, tmp_path):
        gate = tmp_path / "gate"

        def wait(entry):
            while not gate.exists():
                time.sleep(0.01)
            return entry

        p = Pipeline("progress")
        stage = p.read_from(sources.items(range(10))).grouping_key(whole_item)
        stage.aggregate(agg.counting()).map(wait).write_to(sinks.collect())
        job = engine.submit(p)
        runner = job._runner
        eventually(lambda: runner.progress()[1].active == 2)
        first, second = runner.progress()
        assert first.name == "items-source + group-and-aggregate-prepare"
        assert (first.done, first.active, first.total) == (2, 0, 2)
        assert (second.done, second.active, second.total) == (0, 2, 2)
        # Counters of the first fragment are there, those of the second are not yet.
        assert job.metrics()["items-source"].emitted == 10
        assert "map" not in job.metrics()
        gate.touch()
        job.join(90)
        assert [(f.done, f.active) for f in runner.progress()] == [(2, 0), (2, 0)]
        assert job.metrics()["map"].received == 10
        assert not engine._accumulator.value

    def test_spark_shows_the_names_of_the_vertices(self, engine):
        p = Pipeline("named")
        stage = p.read_from(sources.items(range(10), name="numbers")).map(abs, name="positive")
        stage.grouping_key(whole_item).aggregate(agg.counting(), name="total").write_to(
            sinks.collect(name="out")
        )
        job = run(engine, p)
        store = engine.session.sparkContext._jsc.sc().statusStore()
        shown = [
            entry.description().get()
            for entry in _list(store.jobsList(None))
            if entry.jobGroup().isDefined() and entry.jobGroup().get() == job.id
        ]
        assert shown
        expected = "named: numbers + positive + total-prepare | total + out"
        assert set(shown) == {expected}


def _list(seq):
    return [seq.apply(i) for i in range(seq.size())]
