"""AttemptSnapshots: takes the snapshots of a job that runs on members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from jetlet.errors import JobFailedError
from jetlet.jobs.job import RunOf
from jetlet.jobs.members.messages import (
    Committed,
    Drained,
    FinishSnapshot,
    Saved,
    SnapshotPlan,
    TakeSnapshot,
)
from jetlet.snapshots.context import ActiveSnapshot
from jetlet.snapshots.directory import SnapshotDirectory
from jetlet.snapshots.member_report import EndedProcessor

if TYPE_CHECKING:
    from jetlet.jobs.members.attempt import MembersAttempt
    from jetlet.snapshots.job_snapshots import JobSnapshots


class AttemptSnapshots:
    """Brings messages of members to the driver and its words to members; on the attempt's loop.

    But for the constructor and :meth:`close`, which are for the job's thread.
    """

    def __init__(
        self, attempt: MembersAttempt, run: RunOf[JobSnapshots], loop: asyncio.AbstractEventLoop
    ) -> None:
        # Imported when needed: most jobs take none.
        from jetlet.snapshots.driver import SnapshotDriver

        assert run.snapshots is not None
        self._attempt = attempt
        self._epoch = run.epoch
        self._job = run.snapshots
        self._loop = loop
        self._driver = SnapshotDriver(
            run.snapshots,
            self,
            lambda call: attempt.call_soon(self._drive, call),
            job_id=run.id,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        """What the timer is set to."""
        self._ended: list[int] = []
        """Members whose part of the job has ended."""

    def plan(self) -> SnapshotPlan:
        """What members have to know."""
        attempt = self._job.attempt
        assert attempt is not None
        restored = attempt.restored
        return SnapshotPlan(
            attempt.next_id - 1,
            restored.record if restored is not None else None,
            restored.directory if restored is not None else None,
            self._job.chains_since,
        )

    def start(self) -> None:
        """The members run; from now on somebody may ask for snapshots."""
        self._job.attach(self._driver)

    def hear(self, member: int, message: Saved | Drained | Committed) -> None:
        """A member has said something."""
        driver = self._driver
        if isinstance(message, Saved):
            self._drive(lambda: driver.saved(member, message.snapshot_id, message.report))
        elif isinstance(message, Committed):
            self._drive(lambda: driver.committed(member, message.snapshot_id))
        else:
            self._drive(lambda: driver.drained(member))

    def ended(self, member: int, ended: Iterable[EndedProcessor]) -> None:
        """All tasklets of a member have ended well.

        When that is recorded of all members, the attempt hears that they have completed.
        """
        self._ended.append(member)
        self._drive(lambda: self._driver.ended(member, ended))

    def _drive(self, call: Callable[[], None]) -> None:
        call()
        if len(self._ended) == self._job.members and self._driver.is_idle:
            for member in self._ended:
                self._attempt.completed(member)
            return
        due = self._driver.due
        if due == self._due:
            return
        self._due = due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            delay = due - self._job.clock.monotonic_ns() / 1e9
            self._timer = self._loop.call_later(max(0.0, delay), self._tick)

    def _tick(self) -> None:
        self._timer = self._due = None
        self._drive(self._driver.tick)

    def close(self, reason: str) -> bool:
        """The attempt is over; true if it has ended with its terminal snapshot. May block."""
        self._driver.close(reason)
        return self._driver.was_terminated

    # --- Members ----------------------------------------------------------------------------

    def begin(
        self, members: Iterable[int], snapshot: ActiveSnapshot, directory: SnapshotDirectory
    ) -> None:
        self._attempt.tell(members, TakeSnapshot(self._epoch, snapshot, directory))

    def finish(self, members: Iterable[int], snapshot_id: int, *, success: bool) -> None:
        self._attempt.tell(members, FinishSnapshot(self._epoch, snapshot_id, success))

    def awaited(self, member: int) -> Sequence[str]:
        return self._attempt.awaited.get(member, ())

    def terminate(self) -> None:
        self._attempt.cancel()

    def fail(self, error: JobFailedError) -> None:
        self._attempt.fail(error)
