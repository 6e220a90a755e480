"""ExecutionService: the threads that run all tasklets of all jobs of one engine or member."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from jetlet.core.clock import SYSTEM_CLOCK, Clock
from jetlet.errors import InvalidArgumentError
from jetlet.execution.call_reports import ADVICE
from jetlet.execution.garbage import spared_collector
from jetlet.execution.idle import COOPERATIVE_BACKOFF, Backoff, BackoffIdleStrategy, IdleStrategy
from jetlet.execution.tasklet import Tasklet
from jetlet.execution.worker import (
    BlockingWorker,
    CooperativeWorker,
    EngineThread,
    Pool,
    TaskletTracker,
)
from jetlet.interpreter import computing_threads

logger = logging.getLogger("jetlet.execution")

WATCH_INTERVAL = 0.5
"""Seconds between two looks at whether a worker is stuck in a call."""
STUCK_CALL_NS = 1_000_000_000
LEAVE_LIMIT = 0.01
"""Seconds that a thread which is stuck in a call is waited for at the end."""


class Execution:
    """The tasklets of one job on this service, from initialisation to the last close.

    :meth:`run` is called by a thread of the job's own, which also does everything that may block:
    initialising and closing processors. The first failure wins; everybody else is dismissed at
    the next turn, and ``run`` returns only after all tasklets have ended and are closed.
    """

    def __init__(
        self, service: ExecutionService, name: str, make_tasklets: Callable[[], Sequence[Tasklet]]
    ) -> None:
        self.name = name
        self.is_dismissed = False
        """Read by workers before each call: true once the job has failed or was cancelled."""
        self.failure: BaseException | None = None
        self.failed_tasklet: Tasklet | None = None
        self.failed_item: str | None = None
        self.was_cancelled = False
        self.tasklets: Sequence[Tasklet] = ()
        self._make_tasklets = make_tasklets
        self._service = service
        self._lock = threading.Lock()
        self._live: set[Tasklet] = set()
        self._initialised_ones: list[Tasklet] = []
        self.is_over = False
        """True once all tasklets have ended; then they are closed."""
        self._errands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._initialised = threading.Semaphore(0)
        self._all_initialised = threading.Event()

    def run(self, on_running: Callable[[], None] = lambda: None) -> None:
        """Run to the end. Never raises: see :attr:`failure` and :attr:`was_cancelled`."""
        if self.is_dismissed or not self._make():
            return
        with spared_collector():
            self._run_tasklets(on_running)

    def _run_tasklets(self, on_running: Callable[[], None]) -> None:
        cooperative = [t for t in self.tasklets if t.is_cooperative]
        blocking = [t for t in self.tasklets if not t.is_cooperative]
        threads = self._start_threads(blocking)
        # All of them, even if one fails: what they share may count on it.
        for tasklet in cooperative:
            self.initialise(tasklet)
        for _ in self.tasklets:
            self._initialised.acquire()
        self._all_initialised.set()
        if self.is_dismissed:
            for tasklet in cooperative:
                self.ended(tasklet)
        else:
            on_running()
            self._service._place(cooperative, self)
        while self._live and (errand := self._errands.get()) is not None:
            errand()
        for thread in threads:
            thread.join()
        with self._lock:
            self.is_over = True
        self._close_all()

    def _make(self) -> bool:
        try:
            tasklets = tuple(self._make_tasklets())
        except BaseException as error:  # user code may raise anything
            self.fail(None, error)
            return False
        with self._lock:
            if self.is_dismissed:
                # Cancelled meanwhile: nothing was initialised yet, so nothing is to be closed.
                return False
            self._live = set(tasklets)
            self.tasklets = tasklets
        return True

    def _start_threads(self, tasklets: Sequence[Tasklet]) -> list[EngineThread]:
        """Start a thread per blocking tasklet; they wait for the rest to be initialised."""
        threads = []
        for tasklet in tasklets:
            thread = self._service._blocking_thread(tasklet, self)
            try:
                # start() returns when the thread runs, so a cancellation cannot be missed by one
                # that has yet to begin.
                thread.start()
            except RuntimeError as error:  # the machine has no thread left
                self.fail(tasklet, error)
                self.initialise(tasklet)
                self.ended(tasklet)
            else:
                threads.append(thread)
        return threads

    def initialise(self, tasklet: Tasklet) -> None:
        """Initialise a tasklet, on a thread that may block; not if the job was cancelled."""
        try:
            if not self.was_cancelled:
                self._initialised_ones.append(tasklet)
                tasklet.init()
        except BaseException as error:  # user code may raise anything
            self.fail(tasklet, error)
        finally:
            self._initialised.release()

    def await_start(self) -> None:
        """Wait until every tasklet of the execution is initialised."""
        self._all_initialised.wait()

    def closer(self, action: Callable[[], None], then: Callable[[], None]) -> None:
        """Run ``action`` off the cooperative threads, then ``then``."""

        def errand() -> None:
            try:
                action()
            except BaseException:
                logger.exception("job %s: a processor failed to close", self.name)
            then()

        self._errands.put(errand)

    def _close_all(self) -> None:
        for tasklet in self._initialised_ones:
            try:
                tasklet.close()
            except BaseException:
                logger.exception("job %s: %s failed to close", self.name, tasklet.name)

    def cancel(self) -> None:
        """Dismiss all tasklets; from any thread."""
        with self._lock:
            if self.is_dismissed or self.is_over:
                return
            self.was_cancelled = self.is_dismissed = True
        self._dismiss()

    def fail(self, tasklet: Tasklet | None, error: BaseException) -> None:
        """Note the first failure and dismiss all tasklets; from any thread."""
        item = None
        if tasklet is not None:
            try:
                item = tasklet.describe_failure()
            except BaseException:
                logger.exception("job %s: cannot describe how %s failed", self.name, tasklet.name)
        with self._lock:
            if self.is_dismissed:
                return
            self.failure = error
            self.failed_tasklet = tasklet
            self.failed_item = item
            # Last: who sees it without the lock must not take the failure for a good end.
            self.is_dismissed = True
        self._dismiss()

    def _dismiss(self) -> None:
        for tasklet in self.live():
            tasklet.waker.wake()
            try:
                tasklet.interrupt()
            except BaseException:
                logger.exception("job %s: cannot interrupt %s", self.name, tasklet.name)

    def live(self) -> tuple[Tasklet, ...]:
        """The tasklets that have not ended; from any thread."""
        with self._lock:
            return tuple(self._live)

    def ended(self, tasklet: Tasklet) -> None:
        """A tasklet will not be called again; idempotent, from any thread."""
        with self._lock:
            self._live.discard(tasklet)
            is_last = not self._live
        if is_last:
            self._errands.put(None)


class ExecutionService:
    """A fixed number of cooperative workers, and a thread for each tasklet that blocks.

    Executions share the workers. ``shut_down`` returns when no thread is left.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        name: str = "jetlet",
        clock: Clock = SYSTEM_CLOCK,
        backoff: Backoff = COOPERATIVE_BACKOFF,
        make_idle_strategy: Callable[[], IdleStrategy] | None = None,
    ) -> None:
        count = computing_threads() if workers is None else workers
        if count < 1:
            raise InvalidArgumentError(f"an engine needs at least one worker, not {count}")
        self._clock = clock
        self._name = name
        self._pool = Pool()
        self._lock = threading.Lock()
        self._next = 0
        self._is_shut_down = threading.Event()
        if make_idle_strategy is None:
            make_idle_strategy = lambda: BackoffIdleStrategy(*backoff)
        self.started_ns = clock.monotonic_ns()
        self.workers = [
            CooperativeWorker(
                f"{name}-worker-{i}", self._pool, clock=clock, idle_strategy=make_idle_strategy()
            )
            for i in range(count)
        ]
        self._pool.workers = self.workers
        self._reported: dict[str, int] = {}
        self._left: list[EngineThread] = []
        self._threads = [EngineThread(worker.run, worker.name, self) for worker in self.workers]
        self._threads.append(EngineThread(self._watch, f"{name}-watchdog", self))
        for thread in self._threads:
            thread.start()

    def metrics(self, member: int = 0) -> list[dict[str, Any]]:
        """A row for each worker, as plain data; from any thread."""
        elapsed = max(1, self._clock.monotonic_ns() - self.started_ns)
        return [
            {
                "member": member,
                "name": worker.name,
                "elapsed_ns": elapsed,
                "idle_ns": worker.idle_strategy.idle_ns,
                "idle_share": worker.idle_strategy.idle_ns / elapsed,
                "tasklets": len(worker.trackers),
                "steals_to": worker.steals_to,
                "steals_from": worker.steals_from,
            }
            for worker in self.workers
        ]

    @property
    def steals(self) -> int:
        """Tasklets that were moved to a less busy worker so far."""
        return self._pool.steals

    def execution(self, name: str, make_tasklets: Callable[[], Sequence[Tasklet]]) -> Execution:
        """Prepare an execution; its ``run`` does the work."""
        return Execution(self, name, make_tasklets)

    def _place(self, tasklets: Sequence[Tasklet], execution: Execution) -> None:
        """Give the tasklets to the workers, round-robin on from where the last job ended."""
        with self._lock:
            start = self._next
            self._next = (start + len(tasklets)) % len(self.workers)
            for offset, tasklet in enumerate(tasklets):
                worker = self.workers[(start + offset) % len(self.workers)]
                worker.add(TaskletTracker(tasklet, execution))

    def _blocking_thread(self, tasklet: Tasklet, execution: Execution) -> EngineThread:
        worker = BlockingWorker(tasklet, execution, clock=self._clock)
        return EngineThread(worker.run, f"{self._name}-{tasklet.name}", self)

    def _watch(self) -> None:
        while not self._is_shut_down.wait(WATCH_INTERVAL):
            self.report_stuck_calls()

    def report_stuck_calls(self) -> None:
        """Report, once, a call that does not return, which nobody else would notice."""
        now = self._clock.monotonic_ns()
        for worker in self.workers:
            tasklet, since = worker.current, worker.current_since
            if tasklet is None or now - since < STUCK_CALL_NS:
                continue
            if self._reported.get(worker.name) != since:
                self._reported[worker.name] = since
                logger.warning(
                    "%s has been in one call of %s for %.1f s; all other tasklets of this "
                    "worker wait. %s",
                    worker.name,
                    tasklet.name,
                    (now - since) / 1e9,
                    ADVICE,
                )

    def stuck(self, execution: Execution) -> list[str]:
        """Names of the tasklets of an ending execution that are in a call, or may be."""
        called = {worker.current for worker in self.workers}
        return sorted(t.name for t in execution.live() if not t.is_cooperative or t in called)

    def leave(self, thread: EngineThread) -> None:
        """Do not wait for this thread, which is stuck, and for those that it waits for."""
        self._left.append(thread)

    def shut_down(self) -> None:
        """End all threads. All executions must have ended, but for what was left behind."""
        self._is_shut_down.set()
        for worker in self.workers:
            worker.shut_down()
        for thread in [*self._left, *self._threads]:
            # With something stuck, each gets a moment; all are daemons, and end when it does.
            thread.join(LEAVE_LIMIT if any(t.is_alive() for t in self._left) else None)
