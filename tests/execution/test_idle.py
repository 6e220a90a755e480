"""Back-off: twice as long each time, up to a limit, unless somebody wakes the sleeper."""

from __future__ import annotations

import threading

import pytest

from jetlet.execution import idle
from jetlet.execution.idle import (
    BLOCKING_BACKOFF,
    COOPERATIVE_BACKOFF,
    MAX_DUTY,
    PARKED,
    RESTING,
    BackoffIdleStrategy,
)


class Recording(BackoffIdleStrategy):
    """Notes how long it would sleep."""

    def __init__(self, *limits):
        super().__init__(*limits)
        self.pauses = []

    def _sleep(self, pause):
        self.pauses.append(pause)


class CpuTime:
    """The processor time of a thread that computes for ``busy_ns`` between two looks."""

    def __init__(self, busy_ns):
        self.busy_ns = busy_ns
        self.now = 1_000_000

    def __call__(self):
        self.now += self.busy_ns
        return self.now


@pytest.fixture
def cpu_time(monkeypatch):
    cpu = CpuTime(busy_ns=1000)
    monkeypatch.setattr(idle.time, "thread_time_ns", cpu)
    return cpu


@pytest.mark.usefixtures("cpu_time")
def test_sleep_doubles_from_the_first_to_the_longest():
    strategy = Recording(25e-6, 1e-3)
    for count in range(1, 12):
        strategy.idle(count)
    micros = [round(pause * 1e6) for pause in strategy.pauses]
    assert micros == [25, 50, 100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000]


@pytest.mark.usefixtures("cpu_time")
def test_progress_begins_anew():
    strategy = Recording(25e-6, 1e-3)
    for count in (1, 2, 3, 1, 2):
        strategy.idle(count)
    assert [round(pause * 1e6) for pause in strategy.pauses] == [25, 50, 100, 25, 50]


@pytest.mark.usefixtures("cpu_time")
def test_very_many_idle_passes_do_not_overflow():
    strategy = Recording(25e-6, 1e-3)
    strategy.idle(10**9)
    assert strategy.pauses == [1e-3]


def test_documented_limits():
    assert COOPERATIVE_BACKOFF == (25e-6, 1e-3)
    assert BLOCKING_BACKOFF == (50e-6, 5e-3)


def test_pass_that_is_dear_is_made_less_often(cpu_time):
    cpu_time.busy_ns = 200_000
    strategy = Recording(25e-6, 1e-3)
    for count in range(1, 15):
        strategy.idle(count)
    assert strategy.pauses[-1] == pytest.approx(200e-6 * MAX_DUTY)
    cpu_time.busy_ns = 1000
    strategy.idle(15)
    assert strategy.pauses[-1] == 1e-3


def test_single_dear_pass_does_not_put_the_worker_to_sleep_for_long(cpu_time):
    strategy = Recording(25e-6, 1e-3)
    for count in range(1, 15):
        cpu_time.busy_ns = 30_000_000 if count == 12 else 1000
        strategy.idle(count)
    assert max(strategy.pauses) == 1e-3


@pytest.mark.usefixtures("cpu_time")
def test_worker_without_tasklets_hardly_ever_looks():
    strategy = Recording()
    strategy.park()
    assert strategy.pauses == [PARKED]


@pytest.mark.usefixtures("cpu_time")
def test_worker_whose_tasklets_wait_to_be_woken_looks_now_and_then():
    strategy = Recording()
    strategy.rest()
    assert strategy.pauses == [RESTING]


# --- Waking, with real locks ------------------------------------------------------------------


def test_signal_before_the_sleep_prevents_it():
    strategy = BackoffIdleStrategy(60.0, 60.0)
    strategy.wake()
    strategy.wake()
    strategy.idle(1)  # would sleep for a minute
    assert strategy.idle_ns < 10e9


def test_signal_ends_the_sleep_and_is_used_up_by_it():
    strategy = BackoffIdleStrategy(60.0, 60.0)
    rounds = 200
    woken = threading.Semaphore(0)

    def sleep():
        for _ in range(rounds):
            strategy.idle(1)
            woken.release()

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    for _ in range(rounds):
        strategy.wake()
        assert woken.acquire(timeout=60), "a signal was lost"
    thread.join(60)
    assert not thread.is_alive()


def test_time_asleep_is_counted():
    strategy = BackoffIdleStrategy(1e-3, 1e-3)
    strategy.idle(1)
    assert strategy.idle_ns >= 0.9e6
