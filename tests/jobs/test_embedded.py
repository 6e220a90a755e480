"""EmbeddedEngine: jobs from submission to the end, on real threads."""

from __future__ import annotations

import logging
import threading
from functools import partial

import pytest

from jetlet import Pipeline, sinks, sources
from jetlet.core import (
    DAG,
    Processor,
    RunHook,
    Vertex,
    Watermark,
    between,
    from_,
)
from jetlet.errors import (
    InvalidArgumentError,
    InvalidDagError,
)
from jetlet.jobs.config import JobConfig
from jetlet.jobs.embedded import EmbeddedEngine
from jetlet.jobs.job import JobStatus

PROMPT = 60.0

pytestmark = pytest.mark.usefixtures("no_thread_left")


# --- Running ----------------------------------------------------------------------------------


def test_items_flow_from_source_to_sink(engine, kit):
    got = []
    dag = kit.chain(
        lambda: kit.Numbers(10_000), lambda: kit.Map(lambda i: i * 2), lambda: kit.Collect(got)
    )
    job = kit.run(engine, dag)
    assert job.status is JobStatus.COMPLETED
    assert got == [i * 2 for i in range(10_000)]


@pytest.mark.parametrize("blocking", [0, 1, 2])
def test_any_vertex_may_have_threads_of_its_own(engine, kit, blocking):
    got = []
    cooperative = [True] * 3
    cooperative[blocking] = False
    dag = kit.chain(
        lambda: kit.Numbers(5000, is_cooperative=cooperative[0]),
        lambda: kit.Map(is_cooperative=cooperative[1]),
        lambda: kit.Collect(got, is_cooperative=cooperative[2]),
        parallelism=2,
        queue_size=7,
    )
    kit.run(engine, dag)
    assert sorted(got) == list(range(5000))


def test_parallelism_is_the_number_of_workers_unless_told_otherwise(engine, kit):
    made = []

    class Counting(Processor):
        def __init__(self):
            made.append(self)

    def count(config=None):
        made.clear()
        dag = DAG()
        dag.new_vertex("v", Counting)
        kit.run(engine, dag, config)
        return len(made)

    assert count() == engine.default_parallelism
    assert count(JobConfig(default_parallelism=7)) == 7


def test_several_jobs_share_the_workers(engine, kit):
    meet, jobs = threading.Barrier(6), []

    class Meeting(kit.Map):
        """Needs all jobs to be under way before any can go on."""

        is_cooperative = False

        def init(self, outbox, context):
            super().init(outbox, context)
            meet.wait(PROMPT)

    results = [[] for _ in range(6)]
    for result in results:
        dag = kit.chain(
            lambda: kit.Numbers(3000), Meeting, lambda result=result: kit.Collect(result)
        )
        jobs.append(engine.submit(dag))
    assert len(engine.jobs) == 6
    for job in jobs:
        job.join(PROMPT)
    assert results == [list(range(3000))] * 6
    assert engine.jobs == []


def test_short_job_is_not_held_up_by_a_long_one(one_worker, kit):
    long = one_worker.submit(kit.chain(lambda: kit.Numbers(10**9), lambda: kit.Collect(kit.Bin())))
    got = []
    kit.run(one_worker, kit.chain(lambda: kit.Numbers(2000), lambda: kit.Collect(got)))
    assert len(got) == 2000
    assert not long.status.is_final
    long.cancel()


def test_watermarks_reach_the_sink_in_their_place(engine, kit):
    class Source(Processor):
        def __init__(self):
            self._script = [[1, 2], Watermark(10), [3], Watermark(20)]

        def complete(self):
            while self._script:
                entry = self._script[0]
                offer = self.outbox.offer_batch if isinstance(entry, list) else self.outbox.offer
                if not offer(entry):
                    return False
                self._script.pop(0)
            return True

    got = []

    class Sink(kit.Collect):
        def try_process_watermark(self, watermark):
            got.append(watermark)
            return True

    kit.run(engine, kit.chain(Source, kit.Map, lambda: Sink(got), queue_size=1))
    assert got == [1, 2, Watermark(10), 3, Watermark(20)]


def test_input_with_priority_is_read_to_its_end_first(engine, kit):
    got = []

    class Join(Processor):
        def process(self, ordinal, inbox):
            got.extend((ordinal, item) for item in inbox.take())

    dag = DAG()
    build = dag.new_vertex("build", lambda: kit.Numbers(3000, batch=10), 1)
    probe = dag.new_vertex("probe", lambda: kit.Numbers(100), 1)
    join = dag.new_vertex("join", Join, 1)
    dag.edge(from_(probe).to(join, 0)).edge(from_(build).to(join, 1).priority(-1).queue_size(8))
    kit.run(engine, dag)
    assert got == [(1, i) for i in range(3000)] + [(0, i) for i in range(100)]


def test_pipeline_is_planned_with_the_parallelism_of_the_job(one_worker, kit):
    class Pipeline:
        def plan(self, *, default_parallelism):
            self.asked = default_parallelism
            return kit.chain(lambda: kit.Numbers(1))

    pipeline = Pipeline()
    kit.run(one_worker, pipeline, JobConfig(default_parallelism=3))
    assert pipeline.asked == 3


# --- Refusing ---------------------------------------------------------------------------------


def test_mistakes_are_raised_by_submit(one_worker, kit):
    dag = DAG()
    a, b = dag.new_vertex("a", Processor), dag.new_vertex("b", Processor)
    dag.edge(from_(a, 3).to(b))
    with pytest.raises(InvalidDagError):
        one_worker.submit(dag)
    with pytest.raises(InvalidArgumentError, match="runs a Pipeline or a DAG, not 5"):
        one_worker.submit(5)
    with pytest.raises(InvalidArgumentError, match="needs a place for snapshots"):
        one_worker.submit(
            kit.chain(lambda: kit.Numbers(1)), JobConfig(processing_guarantee="exactly-once")
        )
    assert one_worker.jobs == []


def test_engine_needs_a_member_and_a_worker():
    with pytest.raises(InvalidArgumentError, match="members must be at least 1"):
        EmbeddedEngine(0)
    with pytest.raises(InvalidArgumentError, match="at least one worker"):
        EmbeddedEngine(workers=0)


# --- Messages and metrics ---------------------------------------------------------------------


def test_processors_talk_to_the_hook_of_their_vertex(engine, kit):
    got, messages = [], []

    class Hook(RunHook):
        def receive(self, batch):
            got.extend(batch)

        def commit(self, run_id, reported):
            messages.extend(reported)

    class Send(Processor):
        count = 0

        def process(self, ordinal, inbox):
            self.count += len(inbox)
            if self.context.send_to_client(inbox.items()):
                inbox.clear()

        def complete(self):
            self.context.report((self.context.local_index, self.count))
            return True

    dag = kit.chain(lambda: kit.Numbers(1000))
    sink = dag.vertex(Vertex("sink", Send, 3, hook=Hook()))
    dag.edge(between(dag["v0"], sink))
    kit.run(engine, dag)
    assert sorted(got) == list(range(1000))
    assert sorted(index for index, _ in messages) == [0, 1, 2]
    assert sum(count for _, count in messages) == 1000


def test_metrics_add_up_after_the_end(engine, kit):
    class Counting(kit.Map):
        def process(self, ordinal, inbox):
            self.context.count("batches seen", 1)
            super().process(ordinal, inbox)

    dag = kit.chain(
        lambda: kit.Numbers(5000), Counting, lambda: kit.Collect(kit.Bin()), parallelism=2
    )
    metrics = kit.run(engine, dag).metrics()
    assert list(metrics) == ["v0", "v1", "v2"]
    assert metrics["v0"].emitted == metrics["v1"].received == 5000
    assert metrics["v1"].emitted == metrics["v2"].received == 5000
    step = metrics["v1"]
    assert len(step.processors) == 2
    assert step.received == sum(row["received"] for row in step.processors)
    assert step.counters["batches seen"] >= step.batches > 0
    assert step.queue_size == 0
    assert step.queue_capacity == 4 * 1024
    assert step.calls == sum(step.call_histogram.values()) > 0
    assert step.longest_call_ns <= step.busy_ns
    assert len(metrics.workers) == engine.default_parallelism
    assert all(0 <= worker["idle_share"] <= 1 for worker in metrics.workers)
    assert "v1: received 5,000, emitted 5,000, queued 0 of 4,096" in repr(metrics)


def test_metrics_of_a_job_that_has_not_begun_are_empty(one_worker, kit):
    job = one_worker.submit(kit.chain(kit.Idle))
    assert len(job.metrics()) in (0, 1)
    job.cancel()
    assert list(job.metrics()) in ([], ["v0"])


# --- Back-pressure ----------------------------------------------------------------------------


@pytest.mark.parametrize("routing", ["unicast", "partitioned", "broadcast", "isolated"])
def test_fast_source_waits_for_a_slow_sink(engine, kit, routing):
    capacity, batch, parallelism = 16, 40, 2
    made, taken = [0], [0] * parallelism
    worst = 0

    class Source(Processor):
        """As fast as it can: a batch per call, until it is told to stop."""

        def complete(self):
            if sum(taken) > 600:
                return True
            if self.outbox.offer_batch(list(range(made[0], made[0] + batch))):
                made[0] += batch
            return False

    class Slow(Processor):
        """Takes one item per call."""

        def process(self, ordinal, inbox):
            nonlocal worst
            inbox.remove()
            index = self.context.local_index
            taken[index] += 1
            # In this order: the others go on meanwhile, and what they make and take between the two
            # was never under way at a time.
            offered = made[0]
            delivered = min(taken) if routing == "broadcast" else sum(taken)
            worst = max(worst, offered - delivered)

    dag = DAG()
    source = dag.new_vertex("source", Source, 1)
    middle = dag.new_vertex("middle", kit.Map, 1)
    sink = dag.new_vertex("sink", Slow, parallelism)
    dag.edge(between(source, middle).queue_size(capacity))
    dag.edge(getattr(between(middle, sink), routing)().queue_size(capacity))
    kit.run(engine, dag)
    queues = capacity + capacity * parallelism
    in_hands = 2 * batch + 2 * capacity * parallelism + batch  # outboxes, inboxes, one being made
    assert 0 < worst <= queues + in_hands
    if routing == "broadcast":
        assert taken == [made[0]] * parallelism
    else:
        assert sum(taken) == made[0]


# --- Memory -----------------------------------------------------------------------------------


class Large:
    """An item of which there should never be many at a time."""

    live = most = 0

    def __init__(self):
        Large.live += 1
        Large.most = max(Large.most, Large.live)

    def __del__(self):
        Large.live -= 1


class LargeBatches(Processor):
    """A source of batches that are larger than any queue."""

    size, count = 5_000, 40

    def __init__(self):
        self._left = self.count
        self._batch = None

    def complete(self):
        if self._batch is None:
            if not self._left:
                return True
            self._left -= 1
            self._batch = [Large() for _ in range(self.size)]
        if self.outbox.offer_batch(self._batch):
            self._batch = None
        return False


class InPieces(Processor):
    def process(self, ordinal, inbox):
        while (item := inbox.peek()) is not None and self.outbox.offer(item):
            inbox.poll()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_memory_is_bounded_however_many_large_batches_go_through(parallelism):
    Large.live = Large.most = 0
    taken = []
    dag = DAG("large")
    source = dag.new_vertex("source", LargeBatches, 1)
    middle = dag.new_vertex("middle", InPieces, parallelism)
    sink = dag.new_vertex("sink", partial(Forget, taken), 1)
    dag.edge(between(source, middle).queue_size(64)).edge(between(middle, sink).queue_size(64))
    with EmbeddedEngine(workers=1) as engine:
        engine.submit(dag).join(PROMPT)
    assert sum(taken) == LargeBatches.size * LargeBatches.count
    # A batch being made, one on its way, and for each that follows a queue, an inbox and buffers.
    bound = 2 * LargeBatches.size + (parallelism + 1) * (2 * 16 * 64 + 2 * 2048)
    assert Large.most <= bound < LargeBatches.size * LargeBatches.count / 5


class Forget(Processor):
    def __init__(self, taken):
        self._taken = taken

    def process(self, ordinal, inbox):
        self._taken.append(len(inbox.take()))


def test_the_dag_is_logged_when_a_job_is_started(caplog):
    p = Pipeline("shown")
    p.read_from(sources.items([1])).map(str).write_to(sinks.noop())
    with caplog.at_level(logging.INFO, "jetlet.job"), EmbeddedEngine(workers=3) as engine:
        engine.submit(p).join(PROMPT)

    started = next(r.getMessage() for r in caplog.records if "is started" in r.getMessage())

    assert started == f"job shown is started:\n{p.to_dot(default_parallelism=3)}"
    assert '"map" [localParallelism=3]' in started
