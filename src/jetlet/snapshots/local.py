"""LocalSnapshots: takes the snapshots of a job that runs as a whole in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from jetlet.errors import JobFailedError
from jetlet.execution import progress_state as progress
from jetlet.execution.progress_state import MADE_PROGRESS, NO_PROGRESS, ProgressState
from jetlet.execution.tasklet import Tasklet
from jetlet.snapshots.context import ActiveSnapshot, SnapshotContext
from jetlet.snapshots.directory import SnapshotDirectory
from jetlet.snapshots.driver import SnapshotDriver
from jetlet.snapshots.job_snapshots import JobSnapshots
from jetlet.snapshots.member import MemberSnapshots
from jetlet.snapshots.member_report import MemberReport
from jetlet.snapshots.restore import Restore
from jetlet.snapshots.writer import SnapshotWriter


class LocalSnapshots:
    """What one attempt needs: coordinator and only member in one.

    ``end`` ends the attempt: with an error, or because there is no terminal snapshot to wait for.
    """

    def __init__(
        self, job: JobSnapshots, job_id: str, end: Callable[[JobFailedError | None], None]
    ) -> None:
        attempt = job.attempt
        assert attempt is not None
        self.member = MemberSnapshots(
            SnapshotContext(job.config.processing_guarantee, attempt.next_id - 1),
            SnapshotWriter(0, attempt.epoch, list(job.processors)),
            job.chains_since,
        )
        restored = attempt.restored
        self.restore = None if restored is None else Restore(restored.record, restored.directory, 1)
        self.tasklet = SnapshotTasklet(job, job_id, self.member, end)

    def close(self, error: Exception | None) -> bool:
        """The attempt is over; true if it has ended with its terminal snapshot. May block."""
        driver = self.tasklet.driver
        driver.close("the job has ended" if error is None else str(error))
        self.member.close()
        return driver.was_terminated


class SnapshotTasklet(Tasklet):
    """Drives the snapshots of a job that runs in this process, in turns with its other tasklets.

    So it goes by their clock, also where that is not the system's.
    """

    name = "snapshots"

    def __init__(
        self,
        job: JobSnapshots,
        job_id: str,
        member: MemberSnapshots,
        end: Callable[[JobFailedError | None], None],
    ) -> None:
        super().__init__()
        self._member = member
        self._end = end
        self._calls: deque[Callable[[], None]] = deque()
        self._is_drained = self._has_ended = False
        self._job = job
        self._now_ns = job.clock.monotonic_ns
        self._holds_time = hasattr(job.clock, "make_idle_strategy")
        """True if time passes when nobody makes progress: not while files are being written."""
        self.driver = SnapshotDriver(job, self, self._post, job_id=job_id)

    def _post(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self.waker.wake()

    def init(self) -> None:
        self._job.attach(self.driver)

    def call(self) -> ProgressState:
        context, driver = self._member.context, self.driver
        made_progress = False
        if not self._is_drained and not context.draining:
            self._is_drained = True
            driver.drained(0)
        while self._calls:
            made_progress = True
            self._calls.popleft()()
        if not context.live:
            if not self._has_ended:
                self._has_ended = True
                driver.ended(0, self._member.all_ended())
            if driver.is_idle:
                self._job.attach(None)
                return progress.DONE
        due = driver.due
        if due is not None and self._now_ns() >= due * 1e9:
            made_progress = True
            driver.tick()
        if self._holds_time and not driver.is_idle:
            made_progress = True
        return MADE_PROGRESS if made_progress else NO_PROGRESS

    # --- Members ----------------------------------------------------------------------------

    def begin(
        self, members: Iterable[int], snapshot: ActiveSnapshot, directory: SnapshotDirectory
    ) -> None:
        snapshot_id = snapshot.snapshot_id

        def on_saved(report: MemberReport) -> None:
            self._post(lambda: self.driver.saved(0, snapshot_id, report))

        self._member.begin(snapshot, directory, on_saved)

    def finish(self, members: Iterable[int], snapshot_id: int, *, success: bool) -> None:
        self._member.finish(
            snapshot_id,
            success=success,
            on_done=lambda: self._post(lambda: self.driver.committed(0, snapshot_id)),
        )

    def awaited(self, member: int) -> Sequence[str]:
        return self._member.context.awaited

    def terminate(self) -> None:
        self._end(None)

    def fail(self, error: JobFailedError) -> None:
        self._end(error)
