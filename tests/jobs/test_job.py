"""Job and Run: the handle, and what hooks see of a run, with a runner that does as it is told."""

from __future__ import annotations

import pickle
import threading
import traceback

import pytest

from jetlet.core import DAG, Processor, RunHook, Vertex
from jetlet.errors import (
    InvalidArgumentError,
    JobCancelledError,
    JobFailedError,
    OutputExistsError,
)
from jetlet.jobs.config import JobConfig
from jetlet.jobs.job import Job, JobStatus
from jetlet.metrics.job_metrics import JobMetrics

PROMPT = 60.0


class Runner:
    """Runs ``action`` and nothing else."""

    def __init__(self, action=lambda run: None):
        self.action = action
        self.is_cancelled = threading.Event()

    def run(self, run, on_running):
        on_running()
        self.action(run)

    def cancel(self):
        self.is_cancelled.set()

    def metrics(self):
        return JobMetrics(())


class Hook(RunHook):
    """Logs what happens to it; fails where it is told to."""

    def __init__(self, log, name, fails=(), error=None):
        self.log = log
        self.name = name
        self.fails = fails
        self.error = error or OSError("hook")

    def _act(self, what, *args):
        self.log.append((what, self.name, *args))
        if what in self.fails:
            raise self.error

    def begin(self, run_id):
        self._act("begin")

    def receive(self, batch):
        self._act("receive", list(batch))

    def commit(self, run_id, messages):
        self._act("commit", list(messages))

    def abort(self, run_id, error):
        self._act("abort", type(error).__name__)


def dag_with(*hooks):
    dag = DAG("dag")
    for hook in hooks:
        dag.vertex(Vertex(hook.name, Processor, hook=hook))
    dag.new_vertex("no-hook", Processor)
    return dag


def job_of(*hooks, action=lambda run: None, config=None, on_done=lambda job: None):
    return Job(dag_with(*hooks), config or JobConfig(), Runner(action), on_done)


def raising(error):
    def action(run):
        raise error

    return action


# --- Life -------------------------------------------------------------------------------------


def test_job_goes_from_not_running_to_completed():
    seen = []

    class Looking(Hook):
        def commit(self, run_id, messages):
            seen.append(job.status)

    job = job_of(Looking([], "v"), action=lambda run: seen.append(job.status))
    assert job.status is JobStatus.NOT_RUNNING
    job.start()
    job.join(PROMPT)
    assert seen == [JobStatus.RUNNING, JobStatus.COMPLETING]
    assert job.status is JobStatus.COMPLETED
    assert job.status.is_final
    assert job.error is None


def test_job_is_named_after_its_dag_or_by_its_configuration():
    assert job_of().name == "dag"
    named = job_of(config=JobConfig(name="nightly"))
    assert named.name == "nightly"
    assert "nightly" in repr(named) and "not running" in repr(named)
    assert job_of().id != job_of().id


def test_engine_hears_of_the_end_before_those_who_wait():
    heard = []
    job = job_of(on_done=lambda job: heard.append(job.status))
    job.start()
    job.join(PROMPT)
    assert heard == [JobStatus.COMPLETED]


def test_join_gives_up_after_its_timeout():
    gate = threading.Event()
    job = job_of(action=lambda run: gate.wait(PROMPT))
    job.start()
    with pytest.raises(TimeoutError, match=r"job 'dag' is still running after 0\.01 s"):
        job.join(0.01)
    gate.set()
    job.join(PROMPT)
    job.join(0)


def test_joining_leaves_no_thread():
    before = set(threading.enumerate())
    job = job_of()
    job.start()
    job.join(PROMPT)
    assert set(threading.enumerate()) == before


# --- Failing ----------------------------------------------------------------------------------


def test_failure_is_raised_by_every_join():
    error = JobFailedError("it broke", vertex="v")
    job = job_of(action=raising(error))
    job.start()
    depths = []
    for _ in range(3):
        with pytest.raises(JobFailedError) as caught:
            job.join(PROMPT)
        assert caught.value is error
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(set(depths)) == 1, "the traceback must not grow with each join"
    assert job.status is JobStatus.FAILED
    assert job.error is error


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(2), KeyboardInterrupt()])
def test_whatever_a_runner_raises_becomes_a_failure_of_the_job(error):
    job = job_of(action=raising(error))
    job.start()
    with pytest.raises(JobFailedError, match="job 'dag' failed") as caught:
        job.join(PROMPT)
    assert caught.value.__cause__ is error


def test_failure_is_logged_with_its_cause(caplog):
    failure = JobFailedError("it broke")
    failure.__cause__ = ValueError("the cause")
    job = job_of(action=raising(failure))
    job.start()
    with pytest.raises(JobFailedError):
        job.join(PROMPT)
    assert "it broke" in caplog.text and "ValueError: the cause" in caplog.text


def test_failure_can_travel_to_another_process():
    error = pickle.loads(pickle.dumps(JobFailedError("text", vertex="v", item="i")))
    assert (str(error), error.vertex, error.item) == ("text", "v", "i")


# --- Cancelling -------------------------------------------------------------------------------


def cancellable_job(*hooks, before_end=lambda: None):
    runner = Runner()
    job = Job(dag_with(*hooks), JobConfig(), runner)

    def action(run):
        assert runner.is_cancelled.wait(PROMPT)
        before_end()
        raise JobCancelledError("cancelled")

    runner.action = action
    return job


def test_cancel_waits_for_the_end():
    ended = []
    job = cancellable_job(before_end=lambda: ended.append(True))
    job.start()
    job.cancel()
    assert ended == [True]
    assert job.status is JobStatus.CANCELLED
    with pytest.raises(JobCancelledError):
        job.join(PROMPT)


def test_cancelling_a_job_that_has_ended_does_nothing():
    job = job_of()
    job.start()
    job.join(PROMPT)
    job.cancel()
    assert job.status is JobStatus.COMPLETED
    assert not job._runner.is_cancelled.is_set()


def test_cancelling_from_many_threads_at_once():
    job = cancellable_job()
    job.start()
    threads = [threading.Thread(target=job.cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PROMPT)
    assert not any(thread.is_alive() for thread in threads)


def test_hook_may_cancel_its_own_job():
    class Cancelling(Hook):
        def commit(self, run_id, messages):
            job.cancel()

    job = job_of(Cancelling([], "v"))
    job.start()
    job.join(PROMPT)
    assert job.status is JobStatus.COMPLETED, "too late: it was being committed"


def test_hook_cannot_wait_for_its_own_job():
    class Waiting(Hook):
        def commit(self, run_id, messages):
            job.join()

    job = job_of(Waiting([], "v"))
    job.start()
    with pytest.raises(JobFailedError) as caught:
        job.join(PROMPT)
    assert "cannot wait for its own end" in str(caught.value.__cause__)


# --- Hooks ------------------------------------------------------------------------------------


def test_hooks_begin_receive_and_commit_in_order():
    log = []

    def action(run):
        log.append(("run",))
        assert run.send_to_client("a", [1, 2]) is True
        run.report("b", "written 2")
        run.report("b", "written 3")
        run.report("no-hook", "nobody listens")
        assert run.send_to_client("no-hook", [3]) is True

    job = job_of(Hook(log, "a"), Hook(log, "b"), action=action)
    job.start()
    job.join(PROMPT)
    assert log == [
        ("begin", "a"),
        ("begin", "b"),
        ("run",),
        ("receive", "a", [1, 2]),
        ("commit", "a", []),
        ("commit", "b", ["written 2", "written 3"]),
    ]


@pytest.mark.parametrize("error", [JobFailedError("x"), JobCancelledError("x")])
def test_hooks_are_aborted_when_the_run_fails_or_is_cancelled(error):
    log = []
    job = job_of(Hook(log, "a"), Hook(log, "b"), action=raising(error))
    job.start()
    with pytest.raises(type(error)):
        job.join(PROMPT)
    name = type(error).__name__
    assert log[2:] == [("abort", "a", name), ("abort", "b", name)]


def test_hook_that_refuses_to_begin_is_raised_where_the_job_is_submitted():
    log = []
    refusal = OutputExistsError("there is something there")
    hooks = [
        Hook(log, "a"),
        Hook(log, "b", fails=["begin"], error=refusal),
        Hook(log, "c"),
    ]
    job = job_of(*hooks, action=lambda run: pytest.fail("it must not run"))
    with pytest.raises(OutputExistsError) as caught:
        job.start()
    assert caught.value is refusal
    assert log == [
        ("begin", "a"),
        ("begin", "b"),
        ("abort", "a", "OutputExistsError"),
        ("abort", "b", "OutputExistsError"),
    ]
    assert job.status is JobStatus.FAILED
    with pytest.raises(OutputExistsError):
        job.join(0)
    job.cancel()


def test_hook_that_fails_to_begin_is_named():
    job = job_of(Hook([], "v", fails=["begin"]))
    with pytest.raises(
        JobFailedError, match=r"in vertex 'v' before it ran: OSError: hook"
    ) as caught:
        job.start()
    assert caught.value.vertex == "v"
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("error", [OSError("disk full"), SystemExit("disk full")])
def test_commit_that_fails_aborts_what_is_not_committed_yet(error):
    log = []
    hooks = [Hook(log, "a"), Hook(log, "b", fails=["commit"], error=error), Hook(log, "c")]
    job = job_of(*hooks)
    job.start()
    with pytest.raises(JobFailedError, match="disk full") as caught:
        job.join(PROMPT)
    assert caught.value.__cause__ is error
    assert log[3:] == [
        ("commit", "a", []),
        ("commit", "b", []),
        ("abort", "b", "JobFailedError"),
        ("abort", "c", "JobFailedError"),
    ]


@pytest.mark.parametrize("error", [OSError("busy"), SystemExit("busy")])
def test_abort_that_fails_is_logged_and_the_others_are_aborted(error, caplog):
    log = []
    hooks = [Hook(log, "a", fails=["abort"], error=error), Hook(log, "b")]
    job = job_of(*hooks, action=raising(JobFailedError("the real one")))
    job.start()
    with pytest.raises(JobFailedError, match="the real one"):
        job.join(PROMPT)
    assert log[2:] == [("abort", "a", "JobFailedError"), ("abort", "b", "JobFailedError")]
    assert "vertex a failed to clean up" in caplog.text


def test_batches_for_a_hook_come_one_at_a_time():
    inside = threading.Semaphore(1)

    class Exclusive(Hook):
        def receive(self, batch):
            assert inside.acquire(blocking=False), "two batches at once"
            got.extend(batch)
            inside.release()

    got = []

    def action(run):
        def send():
            for i in range(200):
                run.send_to_client("v", [i])

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    job = job_of(Exclusive([], "v"), action=action)
    job.start()
    job.join(PROMPT)
    assert sorted(got) == sorted([*range(200)] * 4)


def test_machine_without_threads_left_aborts_the_hooks(monkeypatch):
    log = []
    job = job_of(Hook(log, "v"))
    error = RuntimeError("can't start new thread")

    def start():
        raise error

    monkeypatch.setattr(job._thread, "start", start)
    with pytest.raises(RuntimeError):
        job.start()
    assert log == [("begin", "v"), ("abort", "v", "RuntimeError")]
    assert job.status is JobStatus.FAILED


# --- Configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"processing_guarantee": "twice"}, "must be one of none, at-least-once, exactly-once"),
        ({"default_parallelism": 0}, "default_parallelism must be at least 1"),
        ({"snapshot_interval": 0}, "snapshot_interval is in seconds and positive"),
        ({"keep_snapshots": 0}, "keep_snapshots must be at least 1"),
        ({"restart_pause": -1.0}, "restart_pause is in seconds and positive"),
        ({"max_restarts": -1}, "write 0 or more"),
        ({"suspend_on_failure": True}, 'write processing_guarantee="exactly-once"'),
    ],
)
def test_configuration_that_cannot_work_is_refused(wrong, message):
    with pytest.raises(InvalidArgumentError, match=message):
        JobConfig(**wrong)
