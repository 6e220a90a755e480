"""EmbeddedEngine: whatever fails, the job ends with one clear error and the engine goes on."""

from __future__ import annotations

import threading
import time

import pytest

from jetlet.core import (
    DAG,
    Processor,
    ProcessorSupplier,
    RunHook,
    Vertex,
    Watermark,
    between,
)
from jetlet.errors import (
    JobCancelledError,
    JobFailedError,
    ProcessorContractError,
    UnstableKeyError,
)
from jetlet.jobs.job import JobStatus

PROMPT = 60.0

pytestmark = pytest.mark.usefixtures("no_thread_left")


# --- Failing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [True, False])
def test_function_that_raises_fails_the_job_and_names_the_vertex(engine, kit, each):
    step = kit.MapEach if each else kit.Map
    dag = kit.chain(
        lambda: kit.Numbers(1000),
        lambda: step(lambda i: 1 // (i - 500)),
        lambda: kit.Collect([]),
        name="division",
    )
    error = kit.failure_of(engine.submit(dag))
    assert error.vertex == "v1"
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "job 'division' failed in vertex 'v1'" in str(error)
    assert "ZeroDivisionError" in str(error)
    assert error.item == ("500" if each else None)


def test_failed_job_ends_promptly_and_closes_everything(engine, kit):
    def fail_once():
        closed = []

        class Closing(kit.Map):
            def close(self):
                closed.append(threading.current_thread().name)

        fuse = threading.Event()

        def burn(item):
            if fuse.is_set():
                raise ValueError(item)
            return item

        dag = kit.chain(lambda: kit.Numbers(10**9), lambda: Closing(burn), Closing, parallelism=2)
        job = engine.submit(dag)
        while not any(v.received for v in job.metrics().values()):
            time.sleep(0.001)
        fuse.set()
        kit.failure_of(job)
        assert len(closed) == 4
        assert not any("worker" in name for name in closed), "close() may block"

    for _ in range(3):
        fail_once()


def test_engine_serves_other_jobs_after_a_failure(engine, kit):
    got = []
    survivor = engine.submit(kit.chain(kit.Idle, lambda: kit.Collect([])))
    for _ in range(3):
        kit.failure_of(
            engine.submit(kit.chain(lambda: kit.Numbers(9), lambda: kit.Map(lambda i: 1 / 0)))
        )
    kit.run(engine, kit.chain(lambda: kit.Numbers(10), lambda: kit.Collect(got)))
    assert got == list(range(10))
    assert survivor.status is JobStatus.RUNNING
    survivor.cancel()


CALLBACKS = ["init", "process", "try_process", "try_process_watermark", "complete_edge"]


@pytest.mark.parametrize("is_cooperative", [True, False])
@pytest.mark.parametrize("callback", [*CALLBACKS, "complete", "close"])
def test_failure_of_any_callback_fails_the_job(one_worker, kit, callback, is_cooperative):
    class Source(kit.Numbers):
        def complete(self):
            return super().complete() and self.outbox.offer(Watermark(1))

    class Failing(kit.Map):
        pass

    def fail(self, *args):
        raise OSError(callback)

    setattr(Failing, callback, fail)
    dag = kit.chain(lambda: Source(10), lambda: Failing(is_cooperative=is_cooperative))
    error = kit.failure_of(one_worker.submit(dag))
    assert error.vertex == "v1"
    assert isinstance(error.__cause__, OSError) and str(error.__cause__) == callback


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_even_exit_only_fails_the_job(engine, kit, kind):
    def leave(item):
        raise kind

    dag = kit.chain(lambda: kit.Numbers(1), lambda: kit.Map(leave))
    assert isinstance(kit.failure_of(engine.submit(dag)).__cause__, kind)
    got = []
    kit.run(engine, kit.chain(lambda: kit.Numbers(3), lambda: kit.Collect(got)))
    assert got == [0, 1, 2]


def test_key_function_that_fails_names_the_item(engine, kit):
    dag = DAG()
    a = dag.new_vertex("a", lambda: kit.Numbers(10), 1)
    b = dag.new_vertex("b", lambda: kit.Collect([]), 2)
    dag.edge(between(a, b).partitioned(lambda i: 1 // (i - 7)))
    error = kit.failure_of(engine.submit(dag))
    assert (error.vertex, error.item) == ("a", "7")
    assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_key_without_a_stable_hash_is_refused_whatever_the_parallelism(
    one_worker, kit, parallelism
):
    dag = DAG()
    a = dag.new_vertex("a", lambda: kit.Numbers(10), 1)
    b = dag.new_vertex("b", lambda: kit.Collect([]), parallelism)
    dag.edge(between(a, b).partitioned(lambda i: object()))
    assert isinstance(kit.failure_of(one_worker.submit(dag)).__cause__, UnstableKeyError)


@pytest.mark.parametrize("what", ["init", "get", "close"])
def test_failing_supplier_fails_the_job(one_worker, kit, what):
    log = []

    class Supplier(ProcessorSupplier):
        def _act(self, name):
            log.append(name)
            if name == what:
                raise OSError(what)

        def init(self, context):
            self._act("init")

        def get(self):
            self._act("get")
            return kit.Numbers(1)

        def close(self, error):
            assert (error is None) == (what == "close")
            self._act("close")

    error = kit.failure_of(one_worker.submit(kit.chain(Supplier(), lambda: kit.Collect([]))))
    assert error.vertex == "v0"
    assert isinstance(error.__cause__, OSError)
    assert log[-1] == "close" and log.count("close") == 1


def test_supplier_hears_how_the_job_ended(one_worker, kit):
    heard = []
    is_made = threading.Event()

    class Supplier(ProcessorSupplier):
        def get(self):
            is_made.set()
            return kit.Idle()

        def close(self, error):
            heard.append(type(error))

    job = one_worker.submit(kit.chain(Supplier()))
    assert is_made.wait(60)
    job.cancel()
    kit.failure_of(one_worker.submit(kit.chain(Supplier(), lambda: None)))
    assert heard == [JobCancelledError, JobFailedError]


def test_failure_before_the_run_starts_nothing(one_worker, kit):
    class Refusing(RunHook):
        def begin(self, run_id):
            raise OSError("no permission")

    dag = DAG()
    dag.vertex(Vertex("v", lambda: pytest.fail("made a processor"), hook=Refusing()))
    with pytest.raises(JobFailedError, match="no permission"):
        one_worker.submit(dag)
    assert one_worker.jobs == []


# --- Breaches of contract ---------------------------------------------------------------------


def test_processor_that_ignores_a_refusal_fails_the_job(engine, kit):
    class Careless(Processor):
        def complete(self):
            for i in range(10_000):
                self.outbox.offer(i)
            return True

    error = kit.failure_of(engine.submit(kit.chain(Careless, lambda: kit.Collect([]))))
    assert error.vertex == "v0"
    assert isinstance(error.__cause__, ProcessorContractError)


def test_watermark_that_goes_back_is_blamed_on_who_sent_it(one_worker, kit):
    class Source(Processor):
        def complete(self):
            self.outbox.offer(Watermark(5))
            self.outbox.offer(Watermark(4))
            return True

    error = kit.failure_of(one_worker.submit(kit.chain(Source, lambda: kit.Collect([]))))
    assert error.vertex == "v0"
    assert "4 follows 5" in str(error)


def test_metrics_can_be_read_while_a_worker_is_stuck(one_worker, kit):
    inside, gate = threading.Event(), threading.Event()

    def block(item):
        inside.set()
        assert gate.wait(PROMPT)
        return item

    dag = kit.chain(lambda: kit.Numbers(5), lambda: kit.Map(block), lambda: kit.Collect([]))
    job = one_worker.submit(dag)
    try:
        assert inside.wait(PROMPT)
        metrics = job.metrics()
        assert metrics["v0"].emitted == 5
        assert job.status is JobStatus.RUNNING
    finally:
        gate.set()
    job.join(PROMPT)
    assert job.metrics()["v1"].longest_call_ns > 0
