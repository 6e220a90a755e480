"""Work stealing: who has lost a tasklet asks the busiest for one, which is moved between calls."""

from __future__ import annotations

import random
import threading

import pytest

from jetlet.execution.execution_service import ExecutionService
from jetlet.execution.progress_state import DONE, NO_PROGRESS
from jetlet.execution.tasklet import Tasklet
from jetlet.execution.worker import CooperativeWorker, Pool, TaskletTracker

TASKLETS = 10_000
WORKERS = 4
LEFT = 42


class StandingClock:
    @staticmethod
    def monotonic_ns():
        return 0

    time_ms = monotonic_ns


class FakeExecution:
    def __init__(self):
        self.is_dismissed = False
        self.over = []

    def ended(self, tasklet):
        self.over.append(tasklet)

    def fail(self, tasklet, error):
        raise error


class Mortal(Tasklet):
    """Lives until it is told to end; notices if two workers call it at once."""

    def __init__(self, number):
        super().__init__()
        self.number = number
        self.is_mortal = False
        self.calls = 0
        self.called_by = set()
        self._busy = threading.Lock()

    def call(self):
        assert self._busy.acquire(blocking=False), "called by two workers at once"
        try:
            self.calls += 1
            self.called_by.add(self.waker.worker)
            return DONE if self.is_mortal else NO_PROGRESS
        finally:
            self._busy.release()


class Crew:
    """Workers that are stepped by hand."""

    def __init__(self, lists):
        self.pool = Pool()
        self.execution = FakeExecution()
        self.workers = [
            CooperativeWorker(f"w{i}", self.pool, clock=StandingClock) for i in range(len(lists))
        ]
        self.pool.workers = self.workers
        self.tasklets = []
        for worker, count in zip(self.workers, lists, strict=True):
            for _ in range(count):
                tasklet = Mortal(len(self.tasklets))
                self.tasklets.append(tasklet)
                worker.add(TaskletTracker(tasklet, self.execution))

    def sizes(self):
        return [len(worker.trackers) for worker in self.workers]

    def loads(self):
        return [worker.load for worker in self.workers]

    def tasklets_of(self, index):
        return [tracker.tasklet for tracker in self.workers[index].trackers]

    def step(self, order=None):
        for index in order or range(len(self.workers)):
            self.workers[index].run_pass(0)

    def check_nothing_is_lost(self):
        listed = [tracker.tasklet for worker in self.workers for tracker in worker.trackers]
        assert len(listed) == len(set(listed)), "a tasklet is on two workers"
        assert {*listed, *self.execution.over} == set(self.tasklets)
        assert len(listed) + len(self.execution.over) == len(self.tasklets)
        assert sum(self.loads()) == len(listed)


# --- The rules, one by one --------------------------------------------------------------------


def test_worker_that_lost_a_tasklet_gets_one_of_the_busiest():
    crew = Crew([1, 3, 5])
    crew.tasklets[0].is_mortal = True
    crew.workers[0].run_pass(0)
    assert crew.sizes() == [0, 3, 5], "nothing moves before its owner is about to run it"
    crew.workers[2].run_pass(0)
    assert crew.sizes() == [1, 3, 4]
    assert crew.pool.steals == crew.workers[0].steals_to == crew.workers[2].steals_from == 1


def test_marked_tasklet_is_moved_instead_of_called():
    crew = Crew([1, 3])
    crew.tasklets[0].is_mortal = True
    crew.workers[0].run_pass(0)
    crew.workers[1].run_pass(0)
    (moved,) = crew.tasklets_of(0)
    assert moved.calls == 0
    assert moved.waker.worker is crew.workers[0]
    crew.workers[0].run_pass(0)
    assert moved.calls == 1
    assert sum(tasklet.calls for tasklet in crew.tasklets[1:]) == 3


def test_difference_of_one_is_fair():
    crew = Crew([2, 2])
    crew.tasklets[0].is_mortal = True
    crew.step()
    crew.step()
    assert crew.sizes() == [1, 2]
    assert crew.pool.steals == 0


def test_marked_tasklet_is_not_taken_twice():
    crew = Crew([1, 1, 4])
    crew.tasklets[0].is_mortal = crew.tasklets[1].is_mortal = True
    crew.workers[0].run_pass(0)
    crew.workers[1].run_pass(0)
    thieves = [tracker.thief for tracker in crew.workers[2].trackers]
    assert thieves == [crew.workers[0], crew.workers[1], None, None]
    crew.workers[2].run_pass(0)
    assert crew.sizes() == [1, 1, 2]


def test_promised_tasklets_count_as_the_thiefs_already():
    # Three workers that each lose one must not leave the busiest with too few.
    crew = Crew([1, 1, 1, 3])
    for tasklet in crew.tasklets[:3]:
        tasklet.is_mortal = True
    for index in (0, 1, 2):
        crew.workers[index].run_pass(0)
    crew.workers[3].run_pass(0)
    assert sorted(crew.sizes()) == [0, 1, 1, 1]


def test_tasklet_that_ends_before_it_was_moved_is_replaced():
    crew = Crew([1, 4])
    crew.tasklets[0].is_mortal = True
    crew.workers[0].run_pass(0)
    (marked,) = [t for t in crew.workers[1].trackers if t.thief is not None]
    # The owner has not come to it yet when the execution is over for it.
    crew.pool.remove(crew.workers[1], marked)
    assert crew.loads() == [1, 2]
    crew.workers[1].run_pass(0)
    assert crew.sizes() == [1, 2]


def test_single_worker_steals_from_nobody():
    crew = Crew([3])
    crew.tasklets[0].is_mortal = True
    crew.step()
    assert crew.sizes() == [2]


# --- The stress, stepped ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["shuffled", "one worker after the other"])
def test_ten_thousand_tasklets_end_and_the_rest_stays_balanced(how):
    rng = random.Random(7)
    crew = Crew([TASKLETS // WORKERS] * WORKERS)
    order = list(crew.tasklets)
    if how == "shuffled":
        rng.shuffle(order)
    burst = 120
    for start in range(0, TASKLETS - LEFT, burst):
        for tasklet in order[start : min(start + burst, TASKLETS - LEFT)]:
            tasklet.is_mortal = True
        crew.step(rng.sample(range(WORKERS), WORKERS))
        crew.check_nothing_is_lost()
        assert max(crew.loads()) - min(crew.loads()) <= 2
    for _ in range(3):
        crew.step()
    crew.check_nothing_is_lost()
    assert len(crew.execution.over) == TASKLETS - LEFT
    assert max(crew.sizes()) - min(crew.sizes()) <= 1
    moved = sum(len(tasklet.called_by) > 1 for tasklet in crew.tasklets)
    assert moved >= 100
    assert crew.pool.steals >= moved

    for tasklet in order[TASKLETS - LEFT :]:
        tasklet.is_mortal = True
    for _ in range(3):
        crew.step()
    assert crew.sizes() == [0] * WORKERS
    assert len(crew.execution.over) == TASKLETS


# --- The stress, with real threads ------------------------------------------------------------


def test_ten_thousand_tasklets_on_four_threads():
    rng = random.Random(11)
    tasklets = [Mortal(number) for number in range(TASKLETS)]
    service = ExecutionService(WORKERS)
    running = threading.Event()
    execution = service.execution("stress", lambda: tasklets)
    thread = threading.Thread(target=execution.run, args=(running.set,), daemon=True)
    try:
        thread.start()
        assert running.wait(60)
        # Unevenly, so that there is something to steal: mostly the first worker's.
        order = sorted(tasklets, key=lambda t: (t.number % WORKERS + rng.random() * 3, t.number))
        for start in range(0, TASKLETS - LEFT, 500):
            for tasklet in order[start : min(start + 500, TASKLETS - LEFT)]:
                tasklet.is_mortal = True
                tasklet.waker.wake()
        while len(execution._live) > LEFT:
            threading.Event().wait(0.002)
        settled = threading.Event()
        for _ in range(10_000):
            sizes = [len(worker.trackers) for worker in service.workers]
            if sum(sizes) == LEFT and max(sizes) - min(sizes) <= 1:
                break
            settled.wait(0.005)
        assert sum(sizes) == LEFT
        assert max(sizes) - min(sizes) <= 1
        for tasklet in order[TASKLETS - LEFT :]:
            tasklet.is_mortal = True
            tasklet.waker.wake()
        thread.join(60)
        assert not thread.is_alive()
        assert execution.failure is None
        assert all(tasklet.calls > 0 for tasklet in tasklets)
        assert service.steals >= 100
        assert sum(worker.steals_to for worker in service.workers) == service.steals
    finally:
        execution.cancel()
        thread.join(60)
        service.shut_down()
