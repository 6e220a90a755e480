"""PlanRun: one run of an execution plan in this process, from its tasklets to the last close."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from jetlet.errors import JobCancelledError, JobFailedError
from jetlet.execution.execution_service import ExecutionService
from jetlet.execution.failure import outcome
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.tasklet import Tasklet
from jetlet.execution.worker import EngineThread

logger = logging.getLogger("jetlet.job")

CANCEL_LIMIT = 0.1
"""Seconds that a cancelled job waits for calls under way. One that is well-behaved returns within
milliseconds; a user's function that waits for something may never do so."""


class PlanRun:
    """Runs a plan on a service: the same in an engine, in a member and in a task of Spark's.

    ``context`` is what the processors are told; how they are closed, and whether they share a
    thread, is filled in here. ``on_built`` sees the tasklets before any is initialised, may block,
    and returns those to run.
    """

    def __init__(
        self,
        service: ExecutionService,
        plan: ExecutionPlan,
        context: RunContext,
        on_built: Callable[[list[Tasklet]], Sequence[Tasklet]] = lambda tasklets: tasklets,
    ) -> None:
        self.execution = service.execution(context.job_name, self._build)
        self.is_stuck = False
        """True if a thread was left behind."""
        self._service = service
        self._plan = plan
        self._context = context
        self._on_built = on_built
        self._built: Sequence[Tasklet] = ()
        self._is_draining = False
        self._error: JobFailedError | JobCancelledError | None = None
        self._has_ended = threading.Event()
        self._has_news = threading.Event()
        """Set when the execution has ended, or is to end."""

    def _build(self) -> Sequence[Tasklet]:
        context = replace(
            self._context,
            closer=self.execution.closer,
            crosses_threads=len(self._service.workers) > 1,
        )
        self._built = self._on_built(self._plan.build(context))
        if self._is_draining:
            self.drain()
        return self._built

    @property
    def tasklets(self) -> Sequence[Tasklet]:
        """All that there are; none until they have been made."""
        return self.execution.tasklets

    def drive(
        self, on_running: Callable[[], None] = lambda: None
    ) -> JobFailedError | JobCancelledError | None:
        """Run to the end on the calling thread, suppliers closed, and return the job's error.

        For whoever can wait for a call that does not return; others call :meth:`run`.
        """
        execution = self.execution
        execution.run(on_running)
        error = outcome(execution)
        try:
            self._plan.close(error)
        except BaseException as e:  # user code may raise anything
            execution.fail(None, e)
            error = outcome(execution)
        return error

    def run(
        self, on_running: Callable[[], None] = lambda: None, *, waits_for_closing: bool = False
    ) -> JobFailedError | JobCancelledError | None:
        """Run to the end on a thread of its own, and return the job's error, if any.

        A stuck call must not hold up a cancelled job, and nobody can end a thread from outside.
        What is stuck when the time is up is left behind: when its call returns it is closed in the
        usual order, by the thread that was left with it.

        ``waits_for_closing`` is for a process that ends with the job: what is being closed is not
        stuck, and would not be closed by anybody later. The same goes for tasklets that commit what
        they did when they are closed: whoever starts the job again goes on behind that.
        """
        execution = self.execution

        def drive() -> None:
            self._error = self.drive(on_running)
            self._has_ended.set()
            self._has_news.set()

        thread = EngineThread(drive, f"jetlet-execution-{execution.name}", self._service)
        thread.start()
        self._has_news.wait()
        if not self._has_ended.wait(CANCEL_LIMIT):
            waits_for_closing |= any(each.commits_when_closed for each in execution.tasklets)
            if waits_for_closing and execution.is_over:
                self._has_ended.wait()
            else:
                self._leave(thread)
                # It was cancelled at its very end, and what is still closed has not completed.
                return outcome(execution) or JobCancelledError(
                    f"job {execution.name!r} was cancelled"
                )
        thread.join()
        return self._error

    def cancel(self) -> None:
        """End it soon; from any thread."""
        self.execution.cancel()
        self._has_news.set()

    def drain(self) -> None:
        """Let what was read come to its end, and nothing follow; from any thread, at any time."""
        self._is_draining = True
        for tasklet in self._built:
            tasklet.drain()

    def fail(self, error: BaseException) -> None:
        """End it soon with an error that is no tasklet's; from any thread."""
        self.execution.fail(None, error)
        self._has_news.set()

    def _leave(self, thread: EngineThread) -> None:
        self.is_stuck = True
        self._service.leave(thread)
        logger.warning(
            "job %s has ended, but %s did not return within %g s; what is left of it ends when "
            "that does",
            self.execution.name,
            ", ".join(self._service.stuck(self.execution)) or "a call",
            CANCEL_LIMIT,
        )
