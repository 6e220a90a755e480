"""JobLifecycle: the status of a job, and what happens between two attempts at it."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jetlet.errors import (
    JetletError,
    JobCancelledError,
    JobFailedError,
    JobStateError,
    RestartableError,
)
from jetlet.jobs.config import JobConfig
from jetlet.snapshots.context import NONE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jetlet.jobs.recovery import JobRecovery

logger = logging.getLogger("jetlet.job")

FAILURES = 50
"""So many of the latest failures are remembered."""


class JobStatus(enum.Enum):
    """Where a job is in its life."""

    NOT_RUNNING = "not running"
    """It has yet to begin, or is about to be restarted."""
    STARTING = "starting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Stopped, until ``resume()`` lets it go on from its last snapshot."""
    COMPLETING = "completing"
    """All processors have ended; sinks commit what they wrote."""
    FAILED = "failed"
    """Ended by an error."""
    CANCELLED = "cancelled"
    """Ended because somebody did not want it any more."""
    COMPLETED = "completed"

    @property
    def is_final(self) -> bool:
        """True if nothing more will happen."""
        return self in (JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.COMPLETED)


@dataclass(eq=False, slots=True)
class Stop:
    """Somebody wants the attempt to end with a snapshot."""

    verb: str
    """What the job is stopped for: suspend, restart or cancel."""
    export: str | None = None
    """Under which name the last snapshot is to be kept."""
    answer: Future[None] | None = None
    """Of the terminal snapshot; ``None`` if there was no attempt to take one."""
    error: Exception | None = None
    """Why the request could not be carried out."""
    is_done: bool = False


class JobLifecycle:
    """Safe from any thread; those that block say so."""

    def __init__(
        self,
        name: str,
        config: JobConfig,
        snapshots: JobRecovery | None,
        *,
        resumes_itself: bool = False,
    ) -> None:
        self.status = JobStatus.NOT_RUNNING
        self.error: BaseException | None = None
        """Why the job failed, or was suspended."""
        self.restarts = 0
        """How often the job was started again after a failure."""
        self.failures: deque[dict[str, Any]] = deque(maxlen=FAILURES)
        """The latest failures after which it was started again, with their times."""
        self._name = name
        self._config = config
        self._snapshots = snapshots
        self._resumes_itself = resumes_itself
        """True if what runs keeps how far it has come by itself."""
        self._changed = threading.Condition()
        self._stop: Stop | None = None
        self._is_cancelled = self._is_resumed = False
        self._in_a_row = 0
        """Restarts since the last snapshot, or since one that went well for a while."""
        self._taken = 0
        self._restarted_at = 0.0

    def move(self, status: JobStatus, error: BaseException | None = None) -> None:
        """The job is elsewhere now."""
        with self._changed:
            self.status = status
            self.error = error
            stop = self._stop
            if status is JobStatus.RUNNING and stop is not None and stop.answer is None:
                # Somebody wanted it just before this attempt, whose thread had looked by then.
                self._terminate(stop)
            self._changed.notify_all()

    # --- Requests ---------------------------------------------------------------------------

    def cancel(self) -> None:
        """The user does not want the job any more."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()

    def stop(self, verb: str, export: str | None = None, *, waits: bool = True) -> None:
        """End the attempt with a snapshot, in order to ``verb``; waits until that is done."""
        self.require_snapshots(verb)
        stop = Stop(verb, export)
        with self._changed:
            self._changed.wait_for(lambda: self.status is not JobStatus.STARTING)
            if self._stop is not None:
                raise JobStateError(
                    f"somebody else wants to {self._stop.verb} job {self._name!r} already"
                )
            if self.status not in (JobStatus.RUNNING, JobStatus.NOT_RUNNING):
                raise self._wrong(verb, "a running job can be")
            self._stop = stop
            if self.status is JobStatus.RUNNING:
                self._terminate(stop)
            self._changed.notify_all()
            if not waits:
                return
            self._changed.wait_for(lambda: stop.is_done or self.status.is_final)
        if stop.error is not None:
            raise stop.error
        if not stop.is_done and not (verb == "cancel" and self._is_cancelled):
            raise self._wrong(verb, "it was too late to have it")

    def _terminate(self, stop: Stop) -> None:
        assert self._snapshots is not None
        try:
            stop.answer = self._snapshots.terminate()
        except JobStateError:
            # It is about to end anyway, and the job's thread will see what is wanted.
            stop.answer = None

    def export(self, name: str) -> Future[None] | None:
        """Export the state of the job; ``None`` if that is done, since the job is suspended."""
        snapshots = self.require_snapshots("export a snapshot of")
        with self._changed:
            self._changed.wait_for(lambda: self.status is not JobStatus.STARTING)
            is_suspended = self.status is JobStatus.SUSPENDED
        if is_suspended:
            snapshots.export_last(name)
            return None
        return snapshots.export(name)

    def resume(self) -> None:
        """Let a suspended job go on."""
        self.require_snapshots("resume")
        with self._changed:
            if self.status is not JobStatus.SUSPENDED:
                raise self._wrong("resume", "a suspended job can be")
            self._is_resumed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_resumed or self.status.is_final)

    def require_snapshots(self, verb: str) -> JobRecovery:
        """The job's snapshots; an error if it takes none."""
        if self._snapshots is None:
            raise JobStateError(
                f"job {self._name!r} takes no snapshots, so it is not possible to {verb} it: "
                f'write JobConfig(snapshot_dir="state"), on an engine that has them'
            )
        return self._snapshots

    def _wrong(self, verb: str, when: str) -> JobStateError:
        past = {"suspend": "suspended", "restart": "restarted", "resume": "resumed"}
        return JobStateError(
            f"job {self._name!r} is {self.status.value}: {when} {past.get(verb, 'cancelled')}"
        )

    # --- Between two attempts, for the job's thread -------------------------------------------

    def after_termination(self) -> None:
        """An attempt has ended with its terminal snapshot; returns when the next may begin.

        Raises :class:`JobCancelledError` if there is to be none.
        """
        self._check_cancelled()
        with self._changed:
            # Seen and settled at once: what somebody wants later is for the next attempt.
            stop = self._stop
            if stop is None or stop.verb == "restart":
                self._settle(JobStatus.NOT_RUNNING, None)
                return
        if stop.verb == "cancel":
            self._export(stop)
        self._suspend()

    def _export(self, stop: Stop) -> None:
        """Keep the last snapshot under its name and cancel the job; or return if that failed."""
        assert self._snapshots is not None
        try:
            if stop.answer is not None:
                stop.answer.result()
            if stop.export is not None:
                self._snapshots.export_last(stop.export)
        except Exception as error:
            stop.error = error
            logger.warning(
                "job %s is suspended, not cancelled: it could not be exported: %s",
                self._name,
                error,
            )
        else:
            stop.is_done = self._is_cancelled = True
            self._check_cancelled()

    def after_failure(self, failure: JobFailedError) -> None:
        """An attempt has failed; returns when the next may begin, or raises what ends the job."""
        if self._is_cancelled or not self._has_got_on():
            raise failure
        is_curable = isinstance(failure, RestartableError)
        if is_curable and self._stop is not None and self._stop.verb != "cancel":
            # The last good snapshot has to do.
            logger.warning("%s", failure)
            if self._stop.verb == "suspend":
                self._suspend()
            else:
                self._done(JobStatus.NOT_RUNNING)
        elif is_curable and self._in_a_row < self._config.max_restarts:
            self._back_off(failure)
        elif self._config.suspend_on_failure:
            logger.error("%s; it is suspended", failure, exc_info=failure.__cause__)
            if self._stop is not None:
                self._stop.error = failure
            self._suspend(failure)
        else:
            raise failure

    def _has_got_on(self) -> bool:
        """False if the job has to begin anew; else see whether it has got on since it failed."""
        if self._resumes_itself:
            if time.monotonic() - self._restarted_at > 2 * self._config.max_restart_pause:
                self._in_a_row = 0
            return True
        if self._snapshots is None or self._config.processing_guarantee == NONE:
            return False
        taken = self._snapshots.stats.taken
        if taken > self._taken:
            self._taken, self._in_a_row = taken, 0
        return True

    def _back_off(self, failure: JobFailedError) -> None:
        """Wait before the next attempt."""
        config = self._config
        pause = min(config.restart_pause * 2**self._in_a_row, config.max_restart_pause)
        self._in_a_row += 1
        self.restarts += 1
        self.failures.append({"time_ms": round(time.time() * 1000), "cause": str(failure)})
        self._restarted_at = time.monotonic()
        logger.warning("%s; it is restarted in %g s", failure, pause)
        with self._changed:
            self.status = JobStatus.NOT_RUNNING
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_cancelled or self._stop is not None, pause)
        self._check_cancelled()
        if self._stop is not None:
            self.after_termination()

    def _suspend(self, error: JetletError | None = None) -> None:
        """Wait until the job is resumed."""
        with self._changed:
            self._is_resumed = False
            self._settle(JobStatus.SUSPENDED, error)
            self._changed.wait_for(lambda: self._is_cancelled or self._is_resumed)
            self._in_a_row = 0
            self._check_cancelled()
            self._is_resumed = False
            self._settle(JobStatus.NOT_RUNNING, None)

    def _done(self, status: JobStatus) -> None:
        with self._changed:
            self._settle(status, None)

    def _settle(self, status: JobStatus, error: JetletError | None) -> None:
        """Take on a status, and tell who wanted the attempt to end."""
        if self._stop is not None:
            self._stop.is_done = True
            self._stop = None
        self.status = status
        self.error = error
        self._changed.notify_all()

    def _check_cancelled(self) -> None:
        if self._is_cancelled:
            raise JobCancelledError(f"job {self._name!r} was cancelled")
