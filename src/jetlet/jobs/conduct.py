"""How an execution is run to its end, or given up: the same in an engine and in a member."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from jetlet.errors import JobCancelledError, JobFailedError
from jetlet.execution.execution_service import Execution, ExecutionService
from jetlet.execution.plan import ExecutionPlan
from jetlet.execution.worker import EngineThread
from jetlet.jobs.failure import outcome

logger = logging.getLogger("jetlet.job")

CANCEL_LIMIT = 0.1
"""Seconds that a cancelled job waits for calls under way. One that is well-behaved returns within
milliseconds; a user's function that waits for something may never do so."""


class Conduct:
    """Runs an execution on a thread of its own: a stuck call must not hold up a cancelled job.

    Nobody can end a thread from outside. What is stuck when the time is up is left behind: when its
    call returns it is closed in the usual order, by the thread that was left with it.
    """

    def __init__(
        self, service: ExecutionService, execution: Execution, plan: ExecutionPlan
    ) -> None:
        self.is_stuck = False
        """True if a thread was left behind."""
        self._service = service
        self._execution = execution
        self._plan = plan
        self._error: JobFailedError | JobCancelledError | None = None
        self._has_ended = threading.Event()
        self._has_news = threading.Event()
        """Set when it has ended, or is to end."""

    def run(
        self, on_running: Callable[[], None] = lambda: None, *, waits_for_closing: bool = False
    ) -> JobFailedError | JobCancelledError | None:
        """Run to the end and return the job's error, if any.

        ``waits_for_closing`` is for a process that ends with the job: what is being closed is not
        stuck, and would not be closed by anybody later. The same goes for tasklets that commit what
        they did when they are closed: whoever starts the job again goes on behind that.
        """
        execution = self._execution

        def drive() -> None:
            execution.run(on_running)
            error = outcome(execution, execution.name)
            try:
                self._plan.close(error)
            except BaseException as e:  # user code may raise anything
                execution.fail(None, e)
                error = outcome(execution, execution.name)
            self._error = error
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
                self._give_up(thread)
                return outcome(execution, execution.name)
        thread.join()
        return self._error

    def cancel(self) -> None:
        """End it soon; from any thread."""
        self._execution.cancel()
        self._has_news.set()

    def _give_up(self, thread: EngineThread) -> None:
        self.is_stuck = True
        self._service.leave(thread)
        logger.warning(
            "job %s has ended, but %s did not return within %g s; what is left of it ends when "
            "that does",
            self._execution.name,
            ", ".join(self._service.stuck(self._execution)) or "a call",
            CANCEL_LIMIT,
        )
