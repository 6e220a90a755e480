"""ExecutionService and Execution: initialise, run, fail, cancel, close; on real threads."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

import pytest

from jetlet.errors import InvalidArgumentError
from jetlet.execution import execution_service as service_module
from jetlet.execution import idle
from jetlet.execution.execution_service import Execution, ExecutionService
from jetlet.execution.progress_state import DONE, MADE_PROGRESS, NO_PROGRESS
from jetlet.execution.tasklet import Tasklet, Waker
from jetlet.execution.worker import EngineThread
from jetlet.interpreter import computing_threads
from jetlet.testing.clock import ManualClock

PROMPT = 60.0  # what nothing here should come near, however busy the machine


class Actor(Tasklet):
    """Does what it is given to do, and remembers where it was done."""

    def __init__(self, name="actor", *, call=None, init=None, close=None, is_cooperative=True):
        super().__init__()
        self.name = self.vertex_name = name
        self.is_cooperative = is_cooperative
        self.log = []
        self.threads = {}
        self._do = {"init": init, "call": call or (lambda: DONE), "close": close}

    def _act(self, what):
        self.log.append(what)
        self.threads[what] = threading.current_thread()
        action = self._do[what]
        return action() if action is not None else None

    def init(self):
        self._act("init")

    def call(self):
        return self._act("call")

    def close(self):
        self._act("close")


def raising(error):
    def action():
        raise error

    return action


def forever():
    return NO_PROGRESS


class Runner:
    """Runs an execution on a thread, as a job does."""

    def __init__(self, service, *tasklets, make=None):
        self.execution = service.execution("job", make or (lambda: tasklets))
        self.is_running = threading.Event()
        self.thread = threading.Thread(
            target=self.execution.run, args=(self.is_running.set,), daemon=True
        )

    def start(self):
        self.thread.start()
        return self

    def started(self):
        self.start()
        assert self.is_running.wait(PROMPT)
        return self

    def join(self):
        self.thread.join(PROMPT)
        assert not self.thread.is_alive(), "the execution does not end"
        return self.execution


@pytest.fixture(params=[1, 3])
def service(request):
    made = ExecutionService(request.param)
    yield made
    made.shut_down()


@pytest.fixture
def one_worker():
    made = ExecutionService(1)
    yield made
    made.shut_down()


# --- Running ----------------------------------------------------------------------------------


def test_every_tasklet_is_initialised_run_to_its_end_and_closed_once(service):
    def calls(count):
        states = [MADE_PROGRESS] * count + [DONE]
        return lambda: states.pop(0)

    tasklets = [Actor(call=calls(i), is_cooperative=bool(i % 2)) for i in range(9)]
    execution = Runner(service, *tasklets).start().join()
    assert execution.failure is None and not execution.was_cancelled
    for i, tasklet in enumerate(tasklets):
        assert tasklet.log == ["init", *["call"] * (i + 1), "close"]


def test_execution_without_tasklets_ends(service):
    assert Runner(service).start().join().failure is None


def test_cooperative_tasklets_run_on_workers_and_others_on_their_own_threads(service):
    cooperative = Actor("c")
    blocking = [Actor("b", is_cooperative=False) for _ in range(2)]
    runner = Runner(service, cooperative, *blocking).start()
    runner.join()
    workers = {worker.name for worker in service.workers}
    assert cooperative.threads["call"].name in workers
    assert cooperative.threads["init"] is cooperative.threads["close"] is runner.thread
    own = {tasklet.threads["call"] for tasklet in blocking}
    assert len(own) == 2
    for thread in own:
        assert thread.name not in workers and thread is not runner.thread
    for tasklet in blocking:
        assert tasklet.threads["init"] is tasklet.threads["call"]
        assert not tasklet.threads["call"].is_alive()


def test_nothing_runs_before_all_are_initialised(service):
    log = []
    others_ready, gate, called = threading.Event(), threading.Event(), threading.Event()

    def slow_init():
        gate.wait(PROMPT)
        log.append("init")

    def call():
        log.append("call")
        called.set()
        return DONE

    tasklets = [
        Actor("slow", init=slow_init, call=call, is_cooperative=False),
        Actor("blocking", call=call, is_cooperative=False),
        Actor("cooperative", init=others_ready.set, call=call),
    ]
    runner = Runner(service, *tasklets).start()
    assert others_ready.wait(PROMPT)
    assert not called.wait(0.05)
    assert not runner.is_running.is_set()
    gate.set()
    runner.join()
    assert log == ["init", "call", "call", "call"]


def test_tasklets_of_several_executions_share_the_workers(one_worker):
    gates = [threading.Event(), threading.Event()]

    def waiting_for(mine, other):
        def call():
            mine.set()
            return DONE if other.is_set() else NO_PROGRESS

        return call

    first = Runner(one_worker, Actor(call=waiting_for(*gates))).start()
    second = Runner(one_worker, Actor(call=waiting_for(*reversed(gates)))).start()
    assert first.join().failure is second.join().failure is None


def test_placement_goes_on_where_the_last_execution_stopped():
    service = ExecutionService(4)
    try:
        runners = [Runner(service, Actor(call=forever)).started() for _ in range(4)]
        deadline = time.monotonic() + PROMPT
        while sum(len(w.trackers) for w in service.workers) < 4 and time.monotonic() < deadline:
            pass
        assert [len(worker.trackers) for worker in service.workers] == [1, 1, 1, 1]
        for runner in runners:
            runner.execution.cancel()
            runner.join()
    finally:
        service.shut_down()


# --- Failing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_cooperative", [True, False])
@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1)])
def test_call_that_raises_ends_the_execution(service, is_cooperative, error):
    bad = Actor("bad", call=raising(error), is_cooperative=is_cooperative)
    others = [Actor(call=forever), Actor(call=forever, is_cooperative=False)]
    execution = Runner(service, *others, bad).start().join()
    assert execution.failure is error
    assert execution.failed_tasklet is bad
    assert not execution.was_cancelled
    for tasklet in (*others, bad):
        assert tasklet.log[-1] == "close" and tasklet.log.count("close") == 1
    assert bad.log.count("call") == 1
    if not is_cooperative:
        assert bad.waker.call_ns(bad) == 0


def test_workers_outlive_a_failure(service):
    for error in (ValueError(), SystemExit(), KeyboardInterrupt()):
        Runner(service, Actor(call=raising(error))).start().join()
    assert Runner(service, Actor()).start().join().failure is None


def test_first_failure_wins(one_worker):
    first, second = Actor(call=raising(ValueError("1"))), Actor(call=raising(ValueError("2")))
    execution = Runner(one_worker, first, second).start().join()
    assert execution.failed_tasklet is first
    execution.fail(second, ValueError("late"))
    assert str(execution.failure) == "1"
    execution.cancel()
    assert not execution.was_cancelled


def test_who_is_dismissed_sees_the_failure(one_worker):
    # Others look without a lock, and one without a failure would end the job as completed.
    seen = []

    class Watched(Execution):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "is_dismissed" and value:
                seen.append(self.failure)

    error = ValueError("from outside")
    Watched(one_worker, "j", list).fail(None, error)
    assert seen == [error]


@pytest.mark.parametrize("is_cooperative", [True, False])
def test_all_are_initialised_and_closed_even_if_one_init_fails(service, is_cooperative):
    error = ValueError("no connection")
    bad = Actor("bad", init=raising(error), is_cooperative=is_cooperative)
    others = [Actor("a"), Actor("b", is_cooperative=False), Actor("c")]
    runner = Runner(service, others[0], bad, *others[1:]).start()
    execution = runner.join()
    assert (execution.failure, execution.failed_tasklet) == (error, bad)
    assert not runner.is_running.is_set()
    for tasklet in (bad, *others):
        assert tasklet.log == ["init", "close"]


def test_failure_to_make_the_tasklets_ends_the_execution(service):
    error = ValueError("no such processor")
    execution = Runner(service, make=raising(error)).start().join()
    assert execution.failure is error
    assert execution.failed_tasklet is None


def test_run_returns_only_after_all_have_ended(one_worker):
    gate, inside = threading.Event(), threading.Event()

    def blocked():
        inside.set()
        gate.wait(PROMPT)
        return NO_PROGRESS

    def fail():
        assert inside.wait(PROMPT)
        raise ValueError

    slow = Actor("slow", call=blocked, is_cooperative=False)
    runner = Runner(one_worker, slow, Actor(call=fail)).start()
    assert inside.wait(PROMPT)
    runner.thread.join(0.05)
    assert runner.thread.is_alive()
    assert "close" not in slow.log
    gate.set()
    runner.join()
    assert slow.log[-1] == "close"


def test_blocked_call_is_interrupted(one_worker):
    gate = threading.Event()

    class Blocked(Actor):
        def interrupt(self):
            gate.set()

    def blocked():
        assert gate.wait(PROMPT)
        return NO_PROGRESS

    blocked_one = Blocked(call=blocked, is_cooperative=False)
    execution = Runner(one_worker, blocked_one, Actor(call=raising(ValueError()))).start().join()
    assert gate.is_set()
    assert isinstance(execution.failure, ValueError)


def test_interrupt_that_fails_is_logged(one_worker, caplog):
    class Uninterruptible(Actor):
        def interrupt(self):
            raise RuntimeError("no")

    runner = Runner(one_worker, Uninterruptible("stubborn", call=forever)).started()
    runner.execution.cancel()
    runner.join()
    assert "cannot interrupt stubborn" in caplog.text


def test_tasklet_that_cannot_describe_its_failure_still_fails(one_worker, caplog):
    class Speechless(Actor):
        def describe_failure(self):
            raise RuntimeError("no words")

    error = ValueError()
    execution = Runner(one_worker, Speechless(call=raising(error))).start().join()
    assert execution.failure is error
    assert execution.failed_item is None
    assert Runner(one_worker, Actor()).start().join().failure is None


def test_failure_to_close_is_logged_and_the_others_are_closed(one_worker, caplog):
    bad = Actor("bad", close=raising(SystemExit("disk full")))
    good = Actor("good")
    Runner(one_worker, bad, good).start().join()
    assert "bad failed to close" in caplog.text
    assert good.log[-1] == "close"


def test_machine_without_threads_left_fails_the_execution(one_worker, monkeypatch):
    error = RuntimeError("can't start new thread")
    original = EngineThread.start

    def start(thread):
        if "second" in thread.name:
            raise error
        original(thread)

    monkeypatch.setattr(EngineThread, "start", start)
    tasklets = [Actor(name, call=forever, is_cooperative=False) for name in ("first", "second")]
    execution = Runner(one_worker, *tasklets, Actor("third")).start().join()
    assert execution.failure is error
    assert execution.failed_tasklet is tasklets[1]
    assert all(tasklet.log[-1] == "close" for tasklet in tasklets)


# --- Cancelling -------------------------------------------------------------------------------


def test_cancelled_execution_ends(service):
    for _ in range(3):
        tasklets = [Actor(call=forever, is_cooperative=bool(i % 3)) for i in range(30)]
        runner = Runner(service, *tasklets).started()
        runner.execution.cancel()
        execution = runner.join()
        assert execution.was_cancelled and execution.failure is None
        assert all(tasklet.log[-1] == "close" for tasklet in tasklets)


def test_cancelling_wakes_who_has_the_tasklets(one_worker):
    wakes = threading.Semaphore(0)

    class Noticing(Waker):
        def wake(self):
            wakes.release()
            super().wake()

    tasklets = [Actor(call=forever), Actor(call=forever, is_cooperative=False)]
    for tasklet in tasklets:
        tasklet.waker = Noticing()
    runner = Runner(one_worker, *tasklets).started()
    runner.execution.cancel()
    runner.join()
    assert wakes.acquire(blocking=False) and wakes.acquire(blocking=False)


def test_cancelling_twice_or_after_the_end_changes_nothing(service):
    runner = Runner(service, Actor(call=forever)).started()
    runner.execution.cancel()
    runner.execution.cancel()
    assert runner.join().was_cancelled
    finished = Runner(service, Actor()).start().join()
    finished.cancel()
    assert not finished.was_cancelled


def test_ended_tasklets_are_not_interrupted(one_worker):
    class Noticing(Actor):
        def interrupt(self):
            self.log.append("interrupt")

    ended, live = Noticing("ended"), Noticing("live", call=forever)
    runner = Runner(one_worker, ended, live).started()
    deadline = time.monotonic() + PROMPT
    while ended in runner.execution._live and time.monotonic() < deadline:
        pass
    runner.execution.cancel()
    runner.join()
    assert "interrupt" not in ended.log
    assert "interrupt" in live.log


def test_execution_cancelled_before_it_runs_does_nothing(service):
    runner = Runner(service, make=lambda: pytest.fail("nothing should be made"))
    runner.execution.cancel()
    assert runner.start().join().was_cancelled
    assert runner.execution.failure is None


def test_execution_cancelled_while_it_is_made_initialises_nothing(service):
    tasklet = Actor()

    def make():
        runner.execution.cancel()
        return [tasklet]

    runner = Runner(service, make=make)
    assert runner.start().join().was_cancelled
    assert tasklet.log == []


def test_cancelling_during_init_skips_the_rest_and_closes_what_was_begun(one_worker):
    def cancel():
        runner.execution.cancel()

    tasklets = [Actor("first"), Actor("second", init=cancel), Actor("third")]
    runner = Runner(one_worker, *tasklets)
    assert runner.start().join().was_cancelled
    assert [tasklet.log for tasklet in tasklets] == [["init", "close"], ["init", "close"], []]


@pytest.mark.parametrize("is_cooperative", [True, False])
def test_tasklet_may_cancel_its_own_execution(service, is_cooperative):
    def call():
        runner.execution.cancel()
        return MADE_PROGRESS

    tasklet = Actor(call=call, is_cooperative=is_cooperative)
    runner = Runner(service, tasklet, Actor(call=forever))
    assert runner.start().join().was_cancelled
    assert tasklet.log == ["init", "call", "close"]


def test_tasklet_may_cancel_while_it_is_closed(one_worker):
    def cancel():
        runner.execution.cancel()

    runner = Runner(one_worker, Actor(close=cancel))
    assert not runner.start().join().was_cancelled


# --- Errands ----------------------------------------------------------------------------------


def test_closer_runs_its_errands_on_the_thread_of_the_execution(one_worker):
    done = threading.Event()
    seen = []

    def call():
        if not seen:
            seen.append("asked")
            runner.execution.closer(lambda: seen.append(threading.current_thread()), done.set)
        return DONE if done.is_set() else NO_PROGRESS

    runner = Runner(one_worker, Actor(call=call))
    runner.start().join()
    assert seen == ["asked", runner.thread]


def test_errand_that_fails_is_logged_and_followed_up(one_worker, caplog):
    done = threading.Event()
    asked = []

    def call():
        if not asked:
            asked.append(True)
            runner.execution.closer(raising(OSError("disk full")), done.set)
        return DONE if done.is_set() else NO_PROGRESS

    runner = Runner(one_worker, Actor(call=call))
    runner.start().join()
    assert "a processor failed to close" in caplog.text


# --- Watching over the workers ----------------------------------------------------------------


def test_call_that_does_not_return_is_reported_once(monkeypatch, caplog):
    monkeypatch.setattr(service_module, "WATCH_INTERVAL", 1000)
    clock, gate, inside = ManualClock(), threading.Event(), threading.Event()

    def stuck():
        inside.set()
        gate.wait(PROMPT)
        return DONE

    service = ExecutionService(1, clock=clock)
    runner = Runner(service, Actor("culprit", call=stuck)).start()
    try:
        assert inside.wait(PROMPT)
        with caplog.at_level(logging.WARNING, "jetlet.execution"):
            service.report_stuck_calls()
            clock.advance(0.9)
            service.report_stuck_calls()
            assert not caplog.records
            clock.advance(1.1)
            service.report_stuck_calls()
            clock.advance(5)
            service.report_stuck_calls()
        (record,) = caplog.records
        assert "jetlet-worker-0 has been in one call of culprit for 2.0 s" in record.getMessage()
    finally:
        gate.set()
        runner.join()
        service.shut_down()


def test_watchdog_looks_by_itself(monkeypatch, caplog):
    monkeypatch.setattr(service_module, "WATCH_INTERVAL", 0.005)
    monkeypatch.setattr(service_module, "STUCK_CALL_NS", 10_000_000)
    reported = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record):
            if "culprit" in record.getMessage():
                reported.set()

    handler = Handler()
    logging.getLogger("jetlet.execution").addHandler(handler)
    service = ExecutionService(1)
    try:
        culprit = Actor("culprit", call=lambda: DONE if reported.wait(PROMPT) else NO_PROGRESS)
        Runner(service, culprit).start().join()
        assert reported.is_set()
    finally:
        logging.getLogger("jetlet.execution").removeHandler(handler)
        service.shut_down()


# --- Threads ----------------------------------------------------------------------------------


def test_shutting_down_leaves_no_thread():
    before = set(threading.enumerate())
    service = ExecutionService(3)
    assert len(set(threading.enumerate()) - before) == 4, "three workers and who watches them"
    Runner(service, Actor(), Actor(is_cooperative=False)).start().join()
    service.shut_down()
    service.shut_down()
    assert set(threading.enumerate()) == before


def test_threads_know_their_service(one_worker):
    other = ExecutionService(1)
    try:
        seen = []

        def call():
            seen.append((EngineThread.serves(one_worker), EngineThread.serves(other)))
            return DONE

        Runner(one_worker, Actor(call=call), Actor(call=call, is_cooperative=False)).start().join()
        assert seen == [(True, False)] * 2
        assert not EngineThread.serves(one_worker)
    finally:
        other.shut_down()


@pytest.mark.parametrize("count", [0, -1])
def test_service_needs_a_worker(count):
    with pytest.raises(InvalidArgumentError, match="at least one worker"):
        ExecutionService(count)


def test_default_number_of_workers_follows_the_gil(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    assert computing_threads() == 1
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert computing_threads() == 6


def test_sleeping_worker_is_woken_by_new_work(monkeypatch, one_worker):
    monkeypatch.setattr(idle, "PARKED", 3600.0)
    for _ in range(5):
        Runner(one_worker, Actor()).start().join()
