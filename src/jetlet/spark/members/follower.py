"""Follower: lets a job have as many members as there are slots, also those that come later."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from jetlet.errors import JetletError
from jetlet.jobs.lifecycle import JobStatus

if TYPE_CHECKING:
    from jetlet.jobs.job import Job
    from jetlet.jobs.members.layout import Layout
    from jetlet.spark.members.slots import Slots

logger = logging.getLogger("jetlet.spark")

PERIOD = 1.0
"""Seconds between two looks at the slots."""
STEADY = 3
"""Looks that have to find the same number: executors mostly come several at a time."""


class Follower:
    """Restarts a job, from a snapshot of that moment, when executors have come.

    When one goes, the job is restarted anyway, since it has lost a member.
    """

    def __init__(self, job: Job, layout: Layout, slots: Slots) -> None:
        self._job = job
        self._layout = layout
        self._slots = slots
        self._is_over = threading.Event()
        self._found = self._looks = 0
        self._thread = threading.Thread(
            target=self._run, name=f"jetlet-follower-{job.name}", daemon=True
        )

    def start(self) -> None:
        """Follow until :meth:`close`; from a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Nothing is to be followed any more; from any thread."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(PERIOD):
            try:
                self.look()
            except JetletError as error:  # it is about to end, or somebody else stops it
                logger.info("job %s cannot have more members now: %s", self._job.name, error)
            except Exception:  # the session may have been stopped
                logger.debug("cannot count slots for %s", self._job.name, exc_info=True)

    def look(self) -> None:
        """Restart the job if there has been a place for more members for a while."""
        members = self._layout.members
        if self._job.status is not JobStatus.RUNNING:
            self._looks = 0
            return
        found = self._slots.now()
        self._looks = self._looks + 1 if found == self._found else 1
        self._found = found
        if found > members and self._looks >= STEADY:
            self._looks = 0
            logger.info(
                "job %s: there is a place for %d members, and it has %d: it is restarted",
                self._job.name,
                found,
                members,
            )
            self._job.restart()
