"""CooperativeWorker: calls many tasklets in turn on a thread; BlockingWorker: one on its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from jetlet.core.clock import SYSTEM_CLOCK, Clock
from jetlet.execution.call_reports import SLOW_CALL_NS
from jetlet.execution.idle import BLOCKING_BACKOFF, BackoffIdleStrategy, IdleStrategy
from jetlet.execution.progress_state import NO_PROGRESS
from jetlet.execution.tasklet import Tasklet

if TYPE_CHECKING:
    from jetlet.execution.execution_service import Execution


RESTLESS = 2
"""Passes without progress before a worker whose tasklets all rest does so too."""


class EngineThread(threading.Thread):
    """A thread on which processors, suppliers and hooks are called.

    What it runs may end a job, but must not wait for its end: that could be waiting for itself.
    """

    def __init__(self, target: Callable[[], object], name: str, service: object) -> None:
        # A daemon, so that an engine that nobody closed does not keep the interpreter from ending.
        super().__init__(target=target, name=name, daemon=True)
        self.service = service
        """The execution service whose jobs it works for."""

    @staticmethod
    def serves(service: object) -> bool:
        """True if the caller is on a thread of this service."""
        thread = threading.current_thread()
        return isinstance(thread, EngineThread) and thread.service is service


class TaskletTracker:
    """A tasklet on its way through the workers."""

    __slots__ = ("call", "execution", "tasklet", "thief")

    def __init__(self, tasklet: Tasklet, execution: Execution) -> None:
        self.tasklet = tasklet
        self.call = tasklet.call
        self.execution = execution
        self.thief: CooperativeWorker | None = None
        """Set by a worker with little to do: "give this one to me"."""


class Pool:
    """The workers of one service, as far as they know of each other: who steals from whom.

    Marks are set and loads are counted under one lock, so that setting a mark is a
    compare-and-set. A marked tasklet counts as the thief's already; otherwise three idle workers
    could each take a tasklet from the same busy one and leave it with too few.
    """

    def __init__(self) -> None:
        self.workers: list[CooperativeWorker] = []
        self.lock = threading.Lock()
        self.steals = 0

    def balance(self, thief: CooperativeWorker) -> None:
        """The thief has lost a tasklet: mark one of the busiest worker's, if that is fairer."""
        if len(self.workers) < 2:
            return
        with self.lock:
            target = max(self.workers, key=lambda worker: worker.load)
            if target.load - thief.load < 2:
                return
            for tracker in target.trackers:
                if tracker.thief is None:
                    tracker.thief = thief
                    target.load -= 1
                    thief.load += 1
                    return

    def hand_over(self, owner: CooperativeWorker, tracker: TaskletTracker) -> None:
        """The owner, about to run a marked tasklet, gives it to the thief instead."""
        with self.lock:
            thief = tracker.thief
            tracker.thief = None
            if thief is None:
                return
            owner.trackers = _without(owner.trackers, tracker)
            tracker.tasklet.waker.worker = thief
            thief.trackers = (*thief.trackers, tracker)
            self.steals += 1
            owner.steals_from += 1
            thief.steals_to += 1
        thief.wake()

    def remove(self, owner: CooperativeWorker, tracker: TaskletTracker) -> None:
        """A tasklet has ended."""
        with self.lock:
            owner.trackers = _without(owner.trackers, tracker)
            thief = tracker.thief
            tracker.thief = None
            if thief is None:
                owner.load -= 1
            else:
                thief.load -= 1
        self.balance(owner)
        if thief is not None:
            # It had been promised to another worker, which now looks for a different one.
            self.balance(thief)


class CooperativeWorker:
    """Runs its tasklets round-robin on one thread and backs off when none makes progress."""

    def __init__(
        self,
        name: str,
        pool: Pool,
        *,
        clock: Clock = SYSTEM_CLOCK,
        idle_strategy: IdleStrategy | None = None,
    ) -> None:
        self.name = name
        self.trackers: tuple[TaskletTracker, ...] = ()
        """Replaced, never changed: a pass goes over a stable copy."""
        self.load = 0
        """Tasklets it has, and those promised to it, less those promised to others."""
        self.steals_from = self.steals_to = 0
        self.current: Tasklet | None = None
        """What it is calling now; with :attr:`current_since` for a look from outside."""
        self.current_since = 0
        self.idle_strategy = idle_strategy or BackoffIdleStrategy()
        self.wake = self.idle_strategy.wake
        self._pool = pool
        self._clock = clock
        self._is_shut_down = False

    def add(self, tracker: TaskletTracker) -> None:
        """Take a new tasklet; from any thread."""
        with self._pool.lock:
            tracker.tasklet.waker.worker = self
            self.trackers = (*self.trackers, tracker)
            self.load += 1
        self.wake()

    def call_ns(self, tasklet: Tasklet) -> int:
        """For how long a call of this tasklet has been under way; from any thread."""
        if self.current is not tasklet:
            return 0
        return max(0, self._clock.monotonic_ns() - self.current_since)

    def shut_down(self) -> None:
        """Let the thread end once it has no tasklets; from any thread."""
        self._is_shut_down = True
        self.wake()

    def run(self) -> None:
        """The thread's work."""
        idle_count = 0
        now = self._clock.monotonic_ns
        while self.trackers or not self._is_shut_down:
            if not self.trackers:
                self.idle_strategy.park()
            elif self.run_pass(now()):
                idle_count = 0
            else:
                idle_count += 1
                if idle_count > RESTLESS and all(t.tasklet.is_resting for t in self.trackers):
                    self.idle_strategy.rest()
                else:
                    self.idle_strategy.idle(idle_count)

    def run_pass(self, start: int) -> bool:
        """Call each tasklet once; true if any made progress."""
        now = self._clock.monotonic_ns
        made_progress = False
        for tracker in self.trackers:
            if tracker.thief is not None:
                self._pool.hand_over(self, tracker)
                continue
            execution = tracker.execution
            if execution.is_dismissed:
                made_progress = True
                self._end(tracker)
                continue
            tasklet = tracker.tasklet
            # In this order: who sees the tasklet must not see the time of the one before it.
            self.current_since = start
            self.current = tasklet
            try:
                state = tracker.call()
                end = now()
                if state is not NO_PROGRESS:
                    made_progress = True
                    tasklet.record_call(end - start)
                elif end - start > SLOW_CALL_NS:
                    tasklet.record_call(end - start)
            except BaseException as error:  # whatever it is, it ends the job
                made_progress = True
                execution.fail(tasklet, error)
                self._end(tracker)
                start = now()
                continue
            if state.is_done:
                self._end(tracker)
                end = now()
            start = end
        self.current = None
        return made_progress

    def _end(self, tracker: TaskletTracker) -> None:
        self._pool.remove(self, tracker)
        tracker.execution.ended(tracker.tasklet)


class BlockingWorker:
    """A thread of its own for a tasklet that may block."""

    def __init__(
        self,
        tasklet: Tasklet,
        execution: Execution,
        *,
        clock: Clock = SYSTEM_CLOCK,
        idle_strategy: IdleStrategy | None = None,
    ) -> None:
        self.tasklet = tasklet
        self._execution = execution
        self._now = clock.monotonic_ns
        self._called_at: int | None = None
        self.idle_strategy = idle_strategy or BackoffIdleStrategy(*BLOCKING_BACKOFF)
        self.wake = self.idle_strategy.wake
        tasklet.waker.worker = self

    def call_ns(self, tasklet: Tasklet) -> int:
        """For how long its call has been under way; from any thread."""
        start = self._called_at
        return 0 if start is None else max(0, self._now() - start)

    def run(self) -> None:
        """The thread's work: initialise, wait for all others, call until done."""
        tasklet = self.tasklet
        execution = self._execution
        execution.initialise(tasklet)
        execution.await_start()
        idle_count = 0
        try:
            while not execution.is_dismissed:
                start = self._called_at = self._now()
                state = tasklet.call()
                self._called_at = None
                if state is NO_PROGRESS:
                    idle_count += 1
                    if idle_count > RESTLESS and tasklet.is_resting:
                        self.idle_strategy.rest()
                    else:
                        self.idle_strategy.idle(idle_count)
                    continue
                idle_count = 0
                tasklet.record_call(self._now() - start)
                if state.is_done:
                    break
        except BaseException as error:  # whatever it is, it ends the job
            execution.fail(tasklet, error)
        finally:
            # Also after a call that has raised, which is under way no more.
            self._called_at = None
            execution.ended(tasklet)


def _without(
    trackers: tuple[TaskletTracker, ...], tracker: TaskletTracker
) -> tuple[TaskletTracker, ...]:
    at = trackers.index(tracker)
    return trackers[:at] + trackers[at + 1 :]
