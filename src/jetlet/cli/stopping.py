"""Stop: how a job comes to its end when somebody wants the process to end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from jetlet.errors import JetletError
from jetlet.jobs.lifecycle import JobStatus

if TYPE_CHECKING:
    from jetlet.jobs.job import Job

GRACE: Final = 25.0
"""Seconds that a job has to stop in order: a little less than supervisors commonly wait."""


class Stop:
    """Ends a job: in order if it can be and there is time, or else at once.

    In order means that nothing has to be done again: with a snapshot, whose output is committed;
    tasks when what they have read is done with. Made by the thread that watches the job, which then
    calls :meth:`tick` until the job has ended.
    """

    def __init__(self, job: Job, grace: float) -> None:
        self._job = job
        self._deadline = time.monotonic() + grace
        self._cancelled_at: float | None = None
        self.is_orderly = False
        """True once the job has stopped in order."""
        self.why_not: str | None = None
        """Why it did not, though it was to."""
        if grace <= 0:
            self._cancel()
        elif job.can_drain:
            self._start(self._drain)
        elif job.config.snapshot_dir is not None:
            self._start(self._suspend)
        else:
            self._cancel()

    def tick(self) -> str:
        """See to the deadline; what the job is doing, for the display."""
        if self._cancelled_at is None and time.monotonic() > self._deadline:
            self.why_not = "there was no time left; the next run goes on from its last snapshot"
            self._cancel()
        return "stopping" if self._cancelled_at is None else "cancelling"

    def cancelled_for(self) -> float:
        """Seconds since the job was cancelled; 0 if it was not."""
        return 0.0 if self._cancelled_at is None else time.monotonic() - self._cancelled_at

    def _cancel(self) -> None:
        self._cancelled_at = time.monotonic()
        self._start(self._job.cancel)

    def _start(self, what: object) -> None:
        # Not in the thread that watches: these return only when they are done.
        assert callable(what)
        threading.Thread(target=what, name="jetlet-stop", daemon=True).start()

    def _drain(self) -> None:
        try:
            self._job.drain()
            self._job.join()
        except JetletError:
            return  # it has failed, or had no time left: whoever watches it tells
        self.is_orderly = True

    def _suspend(self) -> None:
        reason = None
        try:
            self._job.suspend()
        except JetletError as error:
            if self._job.status is not JobStatus.SUSPENDED:
                reason = str(error)
        if self._cancelled_at is None:
            self.why_not, self.is_orderly = reason, reason is None
            self._job.cancel()
