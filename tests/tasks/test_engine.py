"""Applications on an engine: jobs, members, restarts, failures, tasks beside a pipeline."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jetlet import EmbeddedEngine, JobConfig, JobStatus, Pipeline, sinks, sources
from jetlet.errors import (
    InvalidArgumentError,
    JobCancelledError,
    JobFailedError,
    UnpicklableFunctionError,
    UnsupportedFeatureError,
)
from jetlet.log import Log
from jetlet.spark.modes import mode_of
from jetlet.tasks import (
    Scope,
    TaskApplication,
    TaskConfig,
    TaskWrapper,
    checkpoints,
    stores,
    systems,
)
from jetlet.tasks.envelope import SystemStreamPartition

PROMPT = 60.0


class Copy:
    """Sends what it gets, and ends the container after a message "stop"."""

    def process(self, envelope, collector, coordinator):
        if envelope.message == "stop":
            coordinator.shutdown(Scope.ALL_TASKS)
        else:
            collector.send("s.out", envelope.message)


async def copy_async(envelope, collector, coordinator):
    await asyncio.sleep(0)
    collector.send("s.out", envelope.message)


class CopyLater:
    def process_async(self, envelope, collector, coordinator, callback):
        def complete():
            collector.send("s.out", envelope.message)
            callback.complete()

        threading.Thread(target=complete).start()


@pytest.fixture
def engine():
    with EmbeddedEngine() as engine:
        yield engine


@pytest.fixture
def memory():
    memory = systems.in_memory()
    memory.create("in", partitions=3)
    memory.create("out", partitions=1)
    return memory


def application(task, system, **options):
    options = {"systems": {"s": system}, "inputs": ["s.in"], "outputs": ["s.out"]} | options
    return TaskApplication("app", task, **options)


@pytest.mark.parametrize("task", [Copy, copy_async, CopyLater])
@pytest.mark.parametrize(
    "config",
    [
        TaskConfig(),
        TaskConfig(max_concurrency=8),
        TaskConfig(thread_pool_size=3),
        TaskConfig(thread_pool_size=3, max_concurrency=4),
        TaskConfig(is_cooperative=False),
        TaskConfig(batch_size=5, queue_capacity=10),
    ],
    ids=["plain", "concurrent", "pool", "concurrent pool", "own thread", "narrow"],
)
def test_every_message_is_processed_once(engine, memory, task, config):
    memory.send_all("in", range(200))
    memory.end("in")
    saved = checkpoints.in_memory()
    job = engine.submit(application(task, memory, config=config, checkpoints=saved))
    job.join(PROMPT)
    assert job.status is JobStatus.COMPLETED
    assert sorted(memory.messages("out")) == list(range(200))
    if config.max_concurrency == 1:
        for partition in range(3):
            part = [m for m in memory.messages("out") if m % 3 == partition]
            assert part == sorted(part)
    found = {
        p.partition: o for c in saved.applications["app"].values() for p, o in c.offsets.items()
    }
    assert found == {p: len(memory.messages("in", p)) - 1 for p in range(3)}


class CheckedCheckpoints:
    """Checkpoints that look, at each commit, at what was processed until then."""

    def __init__(self, done):
        self.done = done
        self.commits = 0
        self.wrong = []

    def open(self, application):
        return self

    def read(self, task):
        return None

    def write(self, task, checkpoint):
        self.commits += 1
        for partition, offset in checkpoint.offsets.items():
            if sorted(self.done[partition]) != list(range(offset + 1)):
                self.wrong.append((partition, offset, sorted(self.done[partition])))

    def close(self):
        pass


@pytest.mark.parametrize("inputs", [["s.in"], ["s.in", "s.more"]], ids=["alone", "joined"])
def test_commits_that_coroutines_ask_for_cover_exactly_what_they_have_done(engine, inputs):
    memory = systems.in_memory()
    done = {}
    for stream in ("in", "more"):
        memory.create(stream, partitions=3)
        for partition in range(3):
            done[SystemStreamPartition("s", stream, partition)] = set()
            memory.send_all(stream, range(500), partition=partition)
        memory.end(stream)

    async def task(envelope, collector, coordinator):
        await asyncio.sleep(envelope.offset % 3 * 1e-4)
        if envelope.offset % 7 == 0:
            coordinator.commit()
        done[envelope.partition].add(envelope.offset)

    checked = CheckedCheckpoints(done)
    config = TaskConfig(max_concurrency=8, commit_interval=0.003)
    job = engine.submit(
        application(task, memory, inputs=inputs, outputs=[], checkpoints=checked, config=config)
    )
    job.join(PROMPT)
    assert checked.wrong == []
    assert checked.commits > 10
    read = [
        offsets for partition, offsets in done.items() if str(partition.system_stream) in inputs
    ]
    assert read == [set(range(500))] * 3 * len(inputs)


def test_messages_that_come_while_it_runs_are_picked_up(engine, memory):
    job = engine.submit(application(Copy, memory))
    seen = []
    for i in range(20):
        memory.send("in", i)
        wait_until(lambda i=i: len(memory.messages("out")) > i)
        seen.append(job.status)
    memory.send("in", "stop")
    job.join(PROMPT)
    assert memory.messages("out") == list(range(20))


def test_a_job_that_is_cancelled_commits_what_is_complete_and_goes_on_there(engine, memory):
    saved = checkpoints.in_memory()
    memory.send_all("in", range(30))
    job = engine.submit(application(Copy, memory, checkpoints=saved))
    wait_until(lambda: len(memory.messages("out")) == 30)
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.join()
    assert len(saved.applications["app"]) == 3
    memory.send_all("in", range(30, 40))
    memory.end("in")
    engine.submit(application(Copy, memory, checkpoints=saved)).join(PROMPT)
    assert sorted(memory.messages("out")) == list(range(40))


def test_a_cancelled_job_has_closed_its_container(engine, memory, monkeypatch):
    monkeypatch.setattr("jetlet.tasks.loop.container.CLOSE_LIMIT", PROMPT)
    closed = []

    class Slow(Copy):
        def close(self):
            threading.Event().wait(0.2)
            closed.append(True)

    memory.send_all("in", range(3))
    job = engine.submit(application(Slow, memory))
    wait_until(lambda: len(memory.messages("out")) == 3)
    job.cancel()
    assert len(closed) == 3


class Stuck:
    """What it is in when ``where`` is called does not return before it is released."""

    def __init__(self, where, entered, released):
        self._where, self._entered, self._released = where, entered, released
        self.closed = []

    def _pass(self, where):
        if where == self._where:
            self._entered.set()
            assert self._released.wait(PROMPT)

    def init(self, context):
        self._pass("init")

    def process(self, envelope, collector, coordinator):
        self._pass("process")

    def window(self, collector, coordinator):
        self._pass("window")

    def close(self):
        self._pass("close")
        self.closed.append(self._where)


class StuckCoroutine(Stuck):
    async def process(self, envelope, collector, coordinator):
        self._pass("process")


class Uncancellable(Stuck):
    async def process(self, envelope, collector, coordinator):
        self._entered.set()
        while not self._released.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass


class StuckCallback(Stuck):
    process = None

    def process_async(self, envelope, collector, coordinator, callback):
        self._pass("process")


STUCK = {
    "inline": (Stuck, "process", {}),
    "pool": (Stuck, "process", {"thread_pool_size": 2}),
    "coroutine that blocks": (StuckCoroutine, "process", {}),
    "coroutine that cannot be cancelled": (Uncancellable, "process", {}),
    "async": (StuckCallback, "process", {}),
    "window": (Stuck, "window", {"window_interval": 0.01}),
    "window in the pool": (Stuck, "window", {"window_interval": 0.01, "thread_pool_size": 2}),
    "init": (Stuck, "init", {}),
    "close": (Stuck, "close", {}),
}


@pytest.fixture
def released():
    released = threading.Event()
    yield released
    released.set()


@pytest.mark.parametrize("case", STUCK)
@pytest.mark.parametrize("own_thread", [False, True], ids=["shared", "own thread"])
def test_cancel_returns_whatever_a_task_is_stuck_in(case, own_thread, memory, released, caplog):
    make, where, config = STUCK[case]
    before = set(threading.enumerate())
    entered = threading.Event()
    tasks = []

    def task():
        tasks.append(make(where, entered, released))
        return tasks[-1]

    config = {"window_interval": 3600, "is_cooperative": not own_thread} | config
    memory.send_all("in", [1])
    with EmbeddedEngine() as engine:
        job = engine.submit(application(task, memory, config=TaskConfig(**config)))
        if where != "close":
            assert entered.wait(PROMPT)
        else:
            wait_until(lambda: job.status is JobStatus.RUNNING)
        job.cancel()
        assert not released.is_set()
        assert job.status is JobStatus.CANCELLED
        if case == "pool":
            message = next(r.getMessage() for r in caplog.records if "left behind" in r.msg)
            assert "process of task 'partition " in message
            assert "thread jetlet-app-" in message
            # Nobody else may be in the task that is stuck.
            assert sum(bool(each.closed) for each in tasks) == 2
    released.set()
    wait_until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.parametrize(
    "case", [case for case, (_, where, _) in STUCK.items() if where == "process"]
)
def test_a_call_that_does_not_return_in_time_fails_the_job(case, engine, memory, released):
    make, where, config = STUCK[case]
    entered = threading.Event()
    memory.send_all("in", [1])
    config = TaskConfig(callback_timeout=0.05, window_interval=3600, **config)
    job = engine.submit(application(lambda: make(where, entered, released), memory, config=config))
    if case in ("inline", "async"):  # nobody can look while the thread of the loop is in the call
        assert entered.wait(PROMPT)
        threading.Timer(0.1, released.set).start()
    with pytest.raises(JobFailedError, match=r"not completed within 0.05 s"):
        job.join(PROMPT)


def test_a_failing_task_fails_the_job_and_names_task_and_message(engine, memory):
    def task(envelope, collector, coordinator):
        raise ValueError("bad")

    memory.send("in", "x", partition=2)
    job = engine.submit(application(task, memory))
    with pytest.raises(JobFailedError, match=r"partition 2.*'x'.*ValueError: bad") as caught:
        job.join(PROMPT)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.vertex == "app"


def test_a_failing_init_fails_the_job(engine, memory):
    class Task(Copy):
        def init(self, context):
            raise ValueError("no")

    with pytest.raises(JobFailedError, match="ValueError: no"):
        engine.submit(application(Task, memory)).join(PROMPT)


def test_a_failing_consumer_fails_the_job(engine, memory, monkeypatch):
    def poll(self, wanted, limit):
        raise ConnectionError("gone")

    monkeypatch.setattr("jetlet.tasks.systems.memory_system.InMemoryConsumer.poll", poll)
    with pytest.raises(JobFailedError, match="ConnectionError: gone"):
        engine.submit(application(Copy, memory)).join(PROMPT)


def test_metrics_have_a_row_for_each_stream_and_the_container(engine, memory):
    memory.send_all("in", range(10))
    memory.end("in")
    job = engine.submit(application(Copy, memory))
    job.join(PROMPT)
    metrics = job.metrics()
    assert metrics["s.in"].emitted == 10
    assert metrics["app"].received == 10
    (container,) = metrics.containers
    assert container["process_calls"] == 10
    assert set(container["lag"].values()) == {0}
    assert metrics["s.out"].received == 10


def test_what_tasks_measure_is_served(engine, memory):
    pytest.importorskip("prometheus_client")
    from jetlet.metrics.job_collector import JobCollector

    class Measured(Copy):
        def init(self, context):
            context.gauge("open", 2.5)
            with context.timer("lookup"):
                pass

    memory.send_all("in", range(6))
    memory.end("in")
    job = engine.submit(application(Measured, memory, checkpoints=checkpoints.in_memory()))
    job.join(PROMPT)
    samples = [sample for family in JobCollector([job]).collect() for sample in family.samples]
    found = {
        (sample.name, sample.labels.get("task") or sample.labels.get("partition")): sample.value
        for sample in samples
    }
    assert found["jetlet_task_gauge", "partition 1"] == 2.5
    assert found["jetlet_task_timer_calls_total", None] == 3
    assert found["jetlet_container_committed_offset", "s.in[0]"] == 1


def test_run_waits_for_the_end(memory):
    memory.send_all("in", range(3))
    memory.end("in")
    job = application(Copy, memory).run("embedded", JobConfig(name="once"))
    assert (job.name, job.status) == ("once", JobStatus.COMPLETED)


def test_two_applications_and_a_pipeline_share_an_engine(engine, memory):
    memory.create("middle", partitions=2)
    first = TaskApplication(
        "first",
        lambda: Sending("m.middle"),
        systems={"m": memory},
        inputs=["m.in"],
        outputs=["m.middle"],
    )
    second = TaskApplication(
        "second",
        lambda: Sending("m.out"),
        systems={"m": memory},
        inputs=["m.middle"],
        outputs=["m.out"],
    )
    p = Pipeline("beside")
    p.read_from(sources.items(range(1000))).map(str).write_to(sinks.collect())
    jobs = [engine.submit(what) for what in (second, first, p)]
    memory.send_all("in", range(50))
    jobs[2].join(PROMPT)
    memory.end("in")
    jobs[1].join(PROMPT)
    memory.end("middle")
    jobs[0].join(PROMPT)
    assert sorted(memory.messages("out")) == list(range(50))


class Sending(TaskWrapper):
    def __init__(self, stream):
        self.stream = stream

    def process(self, envelope, collector, coordinator):
        collector.send(self.stream, envelope.message)


# --- Logs and members ---------------------------------------------------------------------------


class Counting:
    """Counts by key in a store, and stops when it has seen enough."""

    def init(self, context):
        self.counts = context.store("counts")

    def process(self, envelope, collector, coordinator):
        if envelope.message == "stop":
            coordinator.shutdown()
            return
        count = (self.counts.get(envelope.message) or 0) + 1
        self.counts.put(envelope.message, count)
        collector.send("s.out", (envelope.message, count), key=envelope.message)


def counting(folder, **options):
    return TaskApplication(
        "counting",
        Counting,
        systems={"s": systems.log(folder / "data")},
        inputs=["s.in"],
        outputs=["s.out"],
        stores={"counts": stores.sqlite(folder / "state", key=str, value=int)},
        checkpoints=checkpoints.in_directory(folder / "checkpoints"),
        **options,
    )


def test_an_application_over_logs_goes_on_where_it_was(engine, tmp_path):
    with Log(tmp_path / "data" / "in", partitions=2) as log:
        for part in range(2):
            words = [f"{part}-{i % 3}" for i in range(30)]
            for _ in range(3):
                log.append([*words, "stop"], partition=part)
                engine.submit(counting(tmp_path)).join(PROMPT) if part else None
    with Log(tmp_path / "data" / "out") as log:
        last = {}
        for part in range(log.partition_count):
            last |= dict(log.read(part, 0, limit=10_000).items)
    assert last == {f"{part}-{i}": 30 for part in range(2) for i in range(3)}


@pytest.mark.cluster
def test_partitions_are_divided_among_members(tmp_path):
    with Log(tmp_path / "data" / "in", partitions=5) as log:
        for part in range(5):
            log.append([*(f"{part}-{i % 10}" for i in range(200)), "stop"], partition=part)
    with EmbeddedEngine(members=2) as engine:
        job = engine.submit(counting(tmp_path))
        job.join(PROMPT)
        containers = job.metrics().containers
        assert [each["member"] for each in containers] == [0, 1]
        assert sum(each["process_calls"] for each in containers) == 1005
    with Log(tmp_path / "data" / "out") as log:
        last = {}
        for part in range(log.partition_count):
            last |= dict(log.read(part, 0, limit=10_000).items)
    assert last == {f"{part}-{i}": 20 for part in range(5) for i in range(10)}


def test_streams_in_memory_are_refused_on_several_members(memory):
    with (
        EmbeddedEngine(members=2) as engine,
        pytest.raises(UnpicklableFunctionError, match="one process"),
    ):
        engine.submit(application(Copy, memory))


def test_a_pipeline_reads_what_tasks_write_and_tasks_what_it_writes(engine, tmp_path):
    p = Pipeline("words")
    p.read_from(sources.items(["b", "a", "b"])).write_to(
        sinks.log(tmp_path / "data" / "in", partitions=1)
    )
    engine.submit(p).join(PROMPT)
    with Log(tmp_path / "data" / "in") as log:
        log.append(["stop"], partition=0)
    engine.submit(counting(tmp_path)).join(PROMPT)
    q = Pipeline("read")
    out = []
    seen = threading.Event()

    def note(item):
        out.append(item)
        if len(out) == 3:
            seen.set()

    q.read_from(sources.log(tmp_path / "data" / "out")).without_timestamps().map(note).write_to(
        sinks.noop()
    )
    job = engine.submit(q)
    assert seen.wait(PROMPT)
    job.cancel()
    assert sorted(out) == [("a", 1), ("b", 1), ("b", 2)]


def test_a_pipeline_follows_a_stream_in_memory_to_its_end(engine, memory):
    p = Pipeline("follow")
    out = sinks.collect()
    p.read_from(memory.source("out")).with_native_timestamps(allowed_lag=0).map(
        lambda x: x + 1
    ).write_to(out)
    follower = engine.submit(p)
    memory.send_all("in", range(100))
    memory.end("in")
    engine.submit(application(Copy, memory)).join(PROMPT)
    memory.end("out")
    follower.join(PROMPT)
    assert sorted(out.items) == list(range(1, 101))


def test_spark_runs_tasks_on_members_and_not_in_micro_batches(memory):
    plan = application(Copy, memory).plan()
    assert mode_of(plan, JobConfig()).kind == "members"
    with pytest.raises(UnsupportedFeatureError, match="members"):
        mode_of(plan, JobConfig(streaming="micro-batch"))


@pytest.mark.parametrize(
    "config",
    [
        JobConfig(processing_guarantee="at-least-once"),
        JobConfig(processing_guarantee="exactly-once", snapshot_dir="state"),
        JobConfig(snapshot_dir="state"),
        JobConfig(initial_snapshot="before"),
    ],
)
def test_snapshots_are_refused_with_what_to_write_instead(engine, memory, config):
    with pytest.raises(UnsupportedFeatureError, match=r"checkpoints=checkpoints\.in_directory"):
        engine.submit(application(Copy, memory), config)


def wait_until(condition):
    pause = threading.Event()
    for _ in range(int(PROMPT * 1000)):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("it does not happen")


class CopyAndDrain(Copy):
    def drain(self, collector, coordinator):
        collector.send("s.out", "drained")

    def end_of_stream(self, collector, coordinator):
        collector.send("s.out", "ended")


def test_a_job_that_is_drained_completes_what_it_has_read_and_goes_on_later(engine, memory):
    saved = checkpoints.in_memory()
    memory.send_all("in", range(30))
    job = engine.submit(application(CopyAndDrain, memory, checkpoints=saved))
    wait_until(lambda: len(memory.messages("out")) == 30)
    job.drain()
    job.join(PROMPT)
    assert job.status is JobStatus.COMPLETED
    out = memory.messages("out")
    assert sorted(out[:-3]) == list(range(30))
    assert out[-3:] == ["drained"] * 3
    memory.send_all("in", range(30, 40))
    memory.end("in")
    engine.submit(application(CopyAndDrain, memory, checkpoints=saved)).join(PROMPT)
    out = memory.messages("out")[33:]
    assert sorted(out, key=str) == sorted([*range(30, 40), "ended", "ended", "ended"], key=str)


def test_a_job_may_be_drained_before_it_has_begun(engine, memory):
    job = engine.submit(application(Copy, memory))
    job.drain()
    job.join(PROMPT)


def test_a_pipeline_is_not_drained(engine):
    p = Pipeline("copy")
    p.read_from(sources.items([1])).write_to(sinks.collect())
    job = engine.submit(p)
    with pytest.raises(InvalidArgumentError, match=r"write job\.suspend"):
        job.drain()
    job.join(PROMPT)


@pytest.mark.cluster
def test_members_are_drained(tmp_path):
    with Log(tmp_path / "data" / "in", partitions=4) as log:
        for part in range(4):
            log.append([f"{part}-{i % 10}" for i in range(200)], partition=part)
    with EmbeddedEngine(members=2) as engine:
        job = engine.submit(counting(tmp_path))
        wait_until(lambda: sum(each["process_calls"] for each in job.metrics().containers) == 800)
        job.drain()
        job.join(PROMPT)
    assert job.status is JobStatus.COMPLETED
