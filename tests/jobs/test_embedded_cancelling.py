"""EmbeddedEngine: jobs are cancelled and engines closed, from anywhere and at any time."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from jetlet.core import (
    DAG,
    Processor,
    RunHook,
    Vertex,
    between,
)
from jetlet.errors import (
    JetletError,
    JobCancelledError,
    PlanningError,
)
from jetlet.execution import plan_run
from jetlet.jobs.embedded import EmbeddedEngine
from jetlet.jobs.job import Job, JobStatus

PROMPT = 60.0

pytestmark = pytest.mark.usefixtures("no_thread_left")


# --- Cancelling -------------------------------------------------------------------------------


def test_cancel_ends_jobs_that_have_no_end(engine, kit):
    for _ in range(3):
        dag = kit.chain(
            lambda: kit.Numbers(10**9),
            kit.Map,
            lambda: kit.Collect(kit.Bin()),
            parallelism=3,
        )
        job = engine.submit(dag)
        job.cancel()
        assert job.status is JobStatus.CANCELLED
        with pytest.raises(JobCancelledError):
            job.join(0)


def test_cancel_reaches_threads_that_sleep(one_worker, kit):
    dag = kit.chain(partial(kit.Idle, is_cooperative=False), lambda: kit.Collect([]))
    job = one_worker.submit(dag)
    job.cancel()
    assert isinstance(job.error, JobCancelledError)


def test_blocked_processor_is_interrupted_by_cancel(one_worker, kit):
    gate, inside = threading.Event(), threading.Event()

    class Blocking(Processor):
        is_cooperative = False

        def complete(self):
            inside.set()
            assert gate.wait(PROMPT)
            return False

        def interrupt(self):
            gate.set()

    job = one_worker.submit(kit.chain(Blocking))
    assert inside.wait(PROMPT)
    job.cancel()
    assert isinstance(job.error, JobCancelledError)


@pytest.mark.parametrize("is_cooperative", [True, False])
@pytest.mark.parametrize("callback", ["init", "process", "complete"])
def test_processor_may_cancel_its_own_job(engine, kit, callback, is_cooperative):
    submitted = threading.Event()

    class Cancelling(kit.Map):
        def __getattribute__(self, name):
            if name == callback and submitted.wait(PROMPT):
                jobs[0].cancel()
            return super().__getattribute__(name)

    jobs = []
    dag = kit.chain(
        lambda: kit.Numbers(10), lambda: Cancelling(is_cooperative=is_cooperative), kit.Map
    )
    jobs.append(engine.submit(dag))
    submitted.set()
    with pytest.raises(JobCancelledError):
        jobs[0].join(PROMPT)


def test_processor_may_cancel_another_job_of_its_worker(one_worker, kit):
    victim = one_worker.submit(kit.chain(kit.Idle))
    kit.run(
        one_worker,
        kit.chain(lambda: kit.Numbers(1), lambda: kit.MapEach(lambda i: victim.cancel() or i)),
    )
    with pytest.raises(JobCancelledError):
        victim.join(PROMPT)


def test_hook_may_cancel_the_job_while_it_receives(one_worker, kit):
    jobs, submitted = [], threading.Event()

    class Enough(RunHook):
        def receive(self, batch):
            assert submitted.wait(PROMPT)
            jobs[0].cancel()

    class Send(Processor):
        def process(self, ordinal, inbox):
            if self.context.send_to_client(inbox.items()):
                inbox.clear()

    dag = kit.chain(lambda: kit.Numbers(10**9))
    sink = dag.vertex(Vertex("sink", Send, 1, hook=Enough()))
    dag.edge(between(dag["v0"], sink))
    jobs.append(one_worker.submit(dag))
    submitted.set()
    with pytest.raises(JobCancelledError):
        jobs[0].join(PROMPT)


def test_cancelled_job_discards_its_output(one_worker, kit):
    log = []

    class Hook(RunHook):
        def commit(self, run_id, messages):
            log.append("commit")

        def abort(self, run_id, error):
            log.append(type(error).__name__)

    dag = DAG()
    dag.vertex(Vertex("v", kit.Idle, hook=Hook()))
    one_worker.submit(dag).cancel()
    assert log == ["JobCancelledError"]


# --- Closing the engine -----------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch):
    """Jobs that are cancelled wait for calls under way, however busy the machine is."""
    monkeypatch.setattr(plan_run, "CANCEL_LIMIT", PROMPT)


def test_closing_cancels_what_still_runs_and_leaves_no_thread(kit, patient):
    before = set(threading.enumerate())
    engine = EmbeddedEngine(workers=2)
    jobs = [
        engine.submit(kit.chain(partial(kit.Idle, is_cooperative=cooperative), parallelism=2))
        for cooperative in (True, False, True)
    ]
    engine.close()
    engine.close()
    assert set(threading.enumerate()) == before
    for job in jobs:
        with pytest.raises(JobCancelledError):
            job.join(0)


def test_closing_right_after_the_end_of_a_job_leaves_no_thread(kit, patient):
    before = set(threading.enumerate())
    for _ in range(30):
        with EmbeddedEngine(workers=1) as engine:
            ended = threading.Event()

            class Last(kit.Numbers):
                def close(self, ended=ended):
                    ended.set()

            engine.submit(kit.chain(lambda: Last(1)))
            assert ended.wait(PROMPT)
        assert set(threading.enumerate()) == before


def test_closing_waits_for_threads_that_take_their_time(monkeypatch, kit, patient):
    drive = Job._drive

    def linger(job):
        drive(job)
        time.sleep(0.02)

    monkeypatch.setattr(Job, "_drive", linger)
    before = set(threading.enumerate())
    with EmbeddedEngine(workers=1) as engine:
        engine.submit(kit.chain(kit.Idle)).cancel()
        assert not any(thread.name.startswith("jetlet-job") for thread in threading.enumerate())
        ended = engine.submit(kit.chain(lambda: kit.Numbers(1)))
        while not ended.status.is_final:
            pass
    assert set(threading.enumerate()) == before


def test_page_is_closed_once_however_many_close_the_engine(monkeypatch):
    engine = EmbeddedEngine(workers=1)
    page = engine.ui()
    close, closed = page.close, []

    def close_while_another_thread_does():
        closed.append(threading.current_thread())
        if len(closed) == 1:
            other = threading.Thread(target=engine._jobs.close)
            other.start()
            other.join(PROMPT)
        close()

    monkeypatch.setattr(page, "close", close_while_another_thread_does)
    engine.close()
    assert closed == [threading.current_thread()]


def test_closed_engine_takes_no_jobs(kit):
    engine = EmbeddedEngine(workers=1)
    engine.close()
    with pytest.raises(PlanningError, match="the engine is closed"):
        engine.submit(kit.chain(kit.Idle))


def test_error_in_the_block_is_not_hidden_by_closing(kit):
    with pytest.raises(KeyboardInterrupt), EmbeddedEngine(workers=1) as engine:
        job = engine.submit(kit.chain(kit.Idle))
        raise KeyboardInterrupt
    assert isinstance(job.error, JobCancelledError)


@pytest.mark.parametrize("is_cooperative", [True, False])
def test_processor_cannot_close_its_engine(one_worker, kit, is_cooperative):
    def close(item):
        one_worker.close()

    dag = kit.chain(lambda: kit.Numbers(1), lambda: kit.Map(close, is_cooperative=is_cooperative))
    error = kit.failure_of(one_worker.submit(dag))
    assert isinstance(error.__cause__, JetletError)
    assert "cannot be closed by its own jobs" in str(error)


def test_processor_may_have_an_engine_of_its_own(one_worker, kit):
    got = []

    def nested(item):
        with EmbeddedEngine(workers=1) as inner:
            kit.run(inner, kit.chain(lambda: kit.Numbers(3), lambda: kit.Collect(got)))
            inner.submit(kit.chain(kit.Idle)).cancel()
        return item

    dag = kit.chain(lambda: kit.Numbers(1), lambda: kit.Map(nested, is_cooperative=False), kit.Map)
    kit.run(one_worker, dag)
    assert got == [0, 1, 2]


def test_submitting_while_the_engine_closes_loses_no_job(kit):
    for _ in range(15):
        engine = EmbeddedEngine(workers=2)
        jobs, refused = [], []
        begun = threading.Barrier(4)

        def submit(engine=engine, jobs=jobs, refused=refused, begun=begun):
            begun.wait(PROMPT)
            for _ in range(20):
                try:
                    jobs.append(engine.submit(kit.chain(kit.Idle)))
                except PlanningError as error:
                    refused.append(error)

        threads = [threading.Thread(target=submit) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait(PROMPT)
        engine.close()
        for thread in threads:
            thread.join(PROMPT)
        assert len(jobs) + len(refused) == 60
        for job in jobs:
            with pytest.raises(JobCancelledError):
                job.join(PROMPT)


def test_many_short_jobs_one_after_the_other(one_worker, kit):
    for count in range(100):
        got = []
        dag = kit.chain(partial(kit.Numbers, count), partial(kit.Collect, got))
        kit.run(one_worker, dag)
        assert len(got) == count
    assert one_worker._service.workers[0].load == 0
