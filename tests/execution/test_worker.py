"""CooperativeWorker and BlockingWorker, stepped without threads and without sleeping."""

from __future__ import annotations

import pytest

from jetlet import EmbeddedEngine, Pipeline, sinks, sources
from jetlet.execution.call_reports import SLOW_CALL_NS
from jetlet.execution.progress_state import DONE, MADE_PROGRESS, NO_PROGRESS, WAS_ALREADY_DONE
from jetlet.execution.tasklet import Tasklet
from jetlet.execution.worker import (
    RESTLESS,
    BlockingWorker,
    CooperativeWorker,
    Pool,
    TaskletTracker,
)
from jetlet.testing.clock import ManualClock


class Scripted(Tasklet):
    """Answers with the given states, then with the last of them; an exception is raised."""

    def __init__(self, *states, name="tasklet", duration_ns=0, clock=None):
        super().__init__()
        self.name = name
        self.states = list(states)
        self.calls = 0
        self.recorded = []
        self.duration_ns = duration_ns
        self.clock = clock

    def call(self):
        self.calls += 1
        if self.clock is not None:
            self.clock.advance(ns=self.duration_ns)
        state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
        if isinstance(state, BaseException):
            raise state
        return state

    def record_call(self, elapsed_ns):
        self.recorded.append(elapsed_ns)


class FakeExecution:
    def __init__(self):
        self.is_dismissed = False
        self.failures = []
        self.over = []
        self.log = []

    def fail(self, tasklet, error):
        self.failures.append((tasklet, error))
        self.is_dismissed = True

    def ended(self, tasklet):
        self.over.append(tasklet)

    def initialise(self, tasklet):
        self.log.append("initialise")

    def await_start(self):
        self.log.append("await_start")


class FakeIdle:
    def __init__(self):
        self.counts = []
        self.parked = 0
        self.rested = 0
        self.wakes = 0
        self.on_park = lambda: None

    idle_ns = 0

    def idle(self, count):
        self.counts.append(count)

    def rest(self):
        self.rested += 1

    def park(self):
        self.parked += 1
        self.on_park()

    def wake(self):
        self.wakes += 1


def make(*tasklets, execution=None):
    clock, pool, idle = ManualClock(), Pool(), FakeIdle()
    worker = CooperativeWorker("w", pool, clock=clock, idle_strategy=idle)
    pool.workers = [worker]
    execution = execution or FakeExecution()
    for tasklet in tasklets:
        worker.add(TaskletTracker(tasklet, execution))
    return worker, execution, idle, clock


def step(worker):
    return worker.run_pass(worker._clock.monotonic_ns())


# --- Resting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("resting", [(True, True), (True, False)])
def test_worker_rests_once_all_of_its_tasklets_do(resting):
    tasklets = [Scripted(*[NO_PROGRESS] * 19, DONE) for _ in resting]
    for tasklet, is_resting in zip(tasklets, resting, strict=True):
        tasklet.is_resting = is_resting
    worker, _, idle, _ = make(*tasklets)
    worker.shut_down()
    worker.run()
    if all(resting):
        assert idle.counts == list(range(1, RESTLESS + 1))
        assert idle.rested == 19 - RESTLESS
    else:
        assert idle.counts == list(range(1, 20))
        assert idle.rested == 0


def test_a_thread_of_its_own_rests_too():
    tasklet = Scripted(*[NO_PROGRESS] * 19, DONE)
    tasklet.is_resting = True
    idle = FakeIdle()
    BlockingWorker(tasklet, FakeExecution(), idle_strategy=idle).run()
    assert (len(idle.counts), idle.rested) == (RESTLESS, 19 - RESTLESS)


# --- One pass ---------------------------------------------------------------------------------


def test_pass_calls_every_tasklet_once():
    tasklets = [Scripted(NO_PROGRESS) for _ in range(5)]
    worker, *_ = make(*tasklets)
    assert step(worker) is False
    assert step(worker) is False
    assert [tasklet.calls for tasklet in tasklets] == [2] * 5


def test_pass_made_progress_if_any_tasklet_did():
    worker, *_ = make(Scripted(NO_PROGRESS), Scripted(MADE_PROGRESS), Scripted(NO_PROGRESS))
    assert step(worker) is True


@pytest.mark.parametrize("state", [DONE, WAS_ALREADY_DONE])
def test_tasklet_that_is_done_is_removed_and_not_called_again(state):
    done, other = Scripted(state), Scripted(NO_PROGRESS)
    worker, execution, *_ = make(done, other)
    step(worker)
    step(worker)
    assert (done.calls, other.calls) == (1, 2)
    assert execution.over == [done]
    assert worker.load == len(worker.trackers) == 1


def test_tasklet_added_during_a_pass_waits_for_the_next():
    worker, execution, *_ = make()
    late = Scripted(NO_PROGRESS)

    class Adding(Scripted):
        def call(self):
            if not self.calls:
                worker.add(TaskletTracker(late, execution))
            return super().call()

    worker.add(TaskletTracker(Adding(NO_PROGRESS), execution))
    step(worker)
    assert late.calls == 0
    step(worker)
    assert late.calls == 1


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_tasklet_that_raises_fails_its_execution_and_spares_the_others(error):
    bad, good = Scripted(error, name="bad"), Scripted(NO_PROGRESS)
    worker, execution, *_ = make(bad)
    others = FakeExecution()
    worker.add(TaskletTracker(good, others))
    assert step(worker) is True
    assert execution.failures == [(bad, error)]
    assert execution.over == [bad]
    assert good.calls == 1 and not others.is_dismissed
    assert [tracker.tasklet for tracker in worker.trackers] == [good]


def test_dismissed_tasklets_are_ended_without_being_called():
    tasklets = [Scripted(NO_PROGRESS) for _ in range(3)]
    worker, execution, *_ = make(*tasklets)
    execution.is_dismissed = True
    assert step(worker) is True
    assert execution.over == tasklets
    assert worker.trackers == () and worker.load == 0
    assert all(tasklet.calls == 0 for tasklet in tasklets)


def test_waker_wakes_the_worker_that_has_the_tasklet():
    tasklet = Scripted(NO_PROGRESS)
    tasklet.waker.wake()  # nobody has it yet
    _, _, idle, _ = make(tasklet)
    before = idle.wakes
    tasklet.waker.wake()
    assert idle.wakes == before + 1


# --- Time -------------------------------------------------------------------------------------


def test_calls_with_progress_are_timed_one_by_one():
    clock = ManualClock()
    fast = Scripted(MADE_PROGRESS, duration_ns=10, clock=clock)
    slow = Scripted(MADE_PROGRESS, duration_ns=700, clock=clock)
    worker, *_ = make(fast, slow)
    worker._clock = clock
    step(worker)
    assert fast.recorded == [10]
    assert slow.recorded == [700]


def test_call_without_progress_is_only_recorded_if_it_was_slow():
    clock = ManualClock()
    idle = Scripted(NO_PROGRESS, duration_ns=100, clock=clock)
    slow = Scripted(NO_PROGRESS, duration_ns=SLOW_CALL_NS + 1, clock=clock)
    worker, *_ = make(idle, slow)
    worker._clock = clock
    step(worker)
    assert idle.recorded == []
    assert slow.recorded == [SLOW_CALL_NS + 1]


def test_what_is_called_now_can_be_seen_from_outside():
    seen = []
    clock = ManualClock()
    worker, execution, *_ = make()
    worker._clock = clock

    class Looking(Scripted):
        def call(self):
            seen.append((worker.current, worker.current_since))
            return super().call()

    tasklets = [Looking(NO_PROGRESS, duration_ns=50, clock=clock) for _ in range(2)]
    for tasklet in tasklets:
        worker.add(TaskletTracker(tasklet, execution))
    start = clock.monotonic_ns()
    step(worker)
    assert seen == [(tasklets[0], start), (tasklets[1], start + 50)]
    assert worker.current is None


# --- The loop ---------------------------------------------------------------------------------


def test_worker_counts_idle_passes_and_begins_anew_after_progress():
    tasklet = Scripted(
        NO_PROGRESS, NO_PROGRESS, NO_PROGRESS, MADE_PROGRESS, NO_PROGRESS, NO_PROGRESS, DONE
    )
    worker, _, idle, _ = make(tasklet)
    worker.shut_down()
    worker.run()
    assert idle.counts == [1, 2, 3, 1, 2]
    assert idle.parked == 0


def test_worker_without_tasklets_parks():
    worker, _, idle, _ = make()
    idle.on_park = lambda: worker.shut_down() if idle.parked == 3 else None
    worker.run()
    assert idle.parked == 3
    assert idle.counts == []


def test_worker_that_is_shut_down_ends_its_tasklets_first():
    tasklet = Scripted(*[MADE_PROGRESS] * 5, DONE)
    worker, execution, *_ = make(tasklet)
    worker.shut_down()
    worker.run()
    assert tasklet.calls == 6
    assert execution.over == [tasklet]


# --- A tasklet with a thread of its own -------------------------------------------------------


def run_blocking(tasklet, execution):
    idle = FakeIdle()
    BlockingWorker(tasklet, execution, clock=ManualClock(), idle_strategy=idle).run()
    return idle


def test_blocking_worker_initialises_waits_for_the_others_and_runs_to_the_end():
    execution = FakeExecution()
    tasklet = Scripted(NO_PROGRESS, NO_PROGRESS, MADE_PROGRESS, NO_PROGRESS, DONE)
    idle = run_blocking(tasklet, execution)
    assert execution.log == ["initialise", "await_start"]
    assert execution.over == [tasklet]
    assert idle.counts == [1, 2, 1]
    assert len(tasklet.recorded) == 2


def test_blocking_worker_of_a_dismissed_execution_makes_no_call():
    execution = FakeExecution()
    execution.is_dismissed = True
    tasklet = Scripted(DONE)
    run_blocking(tasklet, execution)
    assert tasklet.calls == 0
    assert execution.over == [tasklet]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3)])
def test_blocking_worker_reports_a_failure_and_ends(error):
    execution = FakeExecution()
    tasklet = Scripted(MADE_PROGRESS, error)
    run_blocking(tasklet, execution)
    assert execution.failures == [(tasklet, error)]
    assert execution.over == [tasklet]


@pytest.mark.parametrize("length", [10, 300])
def test_the_end_passes_through_a_chain_in_a_few_turns(monkeypatch, length):
    """However long the chain: else it would need turns of all of them for each of them."""
    turns = []
    run_pass = CooperativeWorker.run_pass

    def counted(self, start):
        made_progress = run_pass(self, start)
        turns.append(made_progress)
        return made_progress

    monkeypatch.setattr(CooperativeWorker, "run_pass", counted)
    p, out = Pipeline("chain"), sinks.collect()
    stage = p.read_from(sources.items([1, 2, 3]))
    for _ in range(length):
        stage = stage.map_stateful(list, lambda state, item: item)
    stage.write_to(out)
    with EmbeddedEngine(workers=1) as engine:
        engine.submit(p).join(60)
    assert sum(turns) < 10
    assert out.items == [1, 2, 3]
