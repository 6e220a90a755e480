"""SnapshotDriver: carries out what the snapshot coordinator says, during one attempt at a job."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

from jetlet.core.partitioning import DEFAULT_PARTITION_COUNT
from jetlet.errors import JobFailedError, RestartableError, SnapshotError
from jetlet.snapshots.context import ActiveSnapshot
from jetlet.snapshots.directory import RecordInDoubtError, SnapshotDirectory
from jetlet.snapshots.epochs import SupersededError
from jetlet.snapshots.format import (
    ChainFile,
    SnapshotRecord,
    StateFile,
    StateFileWriter,
    VertexState,
)
from jetlet.snapshots.job_snapshots import EARLIER, ENDED_SUFFIX, JobSnapshots, chunks_of
from jetlet.snapshots.member_report import EndedProcessor, MemberReport
from jetlet.snapshots.snapshot_coordinator import (
    Begin,
    Command,
    Finish,
    GiveUp,
    Over,
    Overdue,
    Phase,
    Prepare,
    Record,
    Refuse,
    Snapshot,
    SnapshotCoordinator,
    Terminate,
)

logger = logging.getLogger("jetlet.job")

MAX_OVERDUE = 3
"""Times ``JobConfig.snapshot_timeout`` after which the job is restarted."""
NAMED = 8
"""Number of processors that a message names at the most."""


class Members(Protocol):
    """Those who take part in snapshots. Nothing here blocks."""

    def begin(
        self, members: Iterable[int], snapshot: ActiveSnapshot, directory: SnapshotDirectory
    ) -> None:
        """Tell members to save into a directory; each answers to :meth:`SnapshotDriver.saved`."""

    def finish(self, members: Iterable[int], snapshot_id: int, *, success: bool) -> None:
        """Tell members the outcome; each answers to :meth:`SnapshotDriver.committed`."""

    def awaited(self, member: int) -> Sequence[str]:
        """Processors that a member waits for, as far as is known here."""

    def terminate(self) -> None:
        """End the attempt at once."""

    def fail(self, error: JobFailedError) -> None:
        """End the attempt at once, with an error."""


class SnapshotDriver:
    """Joins coordinator, members and store.

    All methods but the requests are for one thread, that of whoever drives it; ``post`` brings
    calls from other threads there. What may block is done on a thread of the driver's own.
    """

    def __init__(
        self,
        job: JobSnapshots,
        members: Members,
        post: Callable[[Callable[[], None]], None],
        *,
        job_id: str,
    ) -> None:
        attempt = job.attempt
        assert attempt is not None
        self._job = job
        self._attempt = attempt
        self._members = members
        self._post = post
        self._job_id = job_id
        if job.awaited_since is None:
            job.awaited_since = job.now()
        self._coordinator = SnapshotCoordinator(
            job.members,
            self._now(),
            interval=job.interval,
            next_id=attempt.next_id,
            good_areas=attempt.good_areas,
            keep=job.config.keep_snapshots,
            timeout=job.config.snapshot_timeout,
            # Without a guarantee there is nothing to restart from.
            max_overdue=None if job.interval is None else MAX_OVERDUE,
        )
        self._io = ThreadPoolExecutor(1, thread_name_prefix=f"jetlet-snapshots-{job.job_name}")
        self._ended = dict(job.ended)
        self._reports: dict[int, MemberReport] = {}
        self._directory: SnapshotDirectory | None = None
        self._chains: dict[int, tuple[ChainFile, ...]] = dict(job.chains)
        """By member, the files with what has changed of its state, as of the last good snapshot."""
        self._began = 0.0
        self._began_ms = 0
        self._size = 0
        self._phases: dict[str, float] = {}
        """When the phases of the snapshot in hand ended, in the order in which they do."""
        self._slowest = ""
        self._waiting: deque[tuple[str | None, Future[None]]] = deque()
        """Requests, by the name of the export; ``None`` for the terminal snapshot."""
        self._is_superseded = False
        self.was_terminated = False
        """True if the attempt has ended with its terminal snapshot, whether that is good or not."""
        self._has_tidied = self._is_closing = False
        self._overdue: str | None = None
        """Who did not answer for too long."""

    def _now(self) -> float:
        return self._job.now()

    # --- Requests, from any thread ----------------------------------------------------------

    def export(self, name: str) -> Future[None]:
        """Ask for an export."""
        return self._ask(name, lambda: self._coordinator.export(name, self._now()))

    def terminate(self) -> Future[None]:
        """Ask for the terminal snapshot."""
        return self._ask(None, lambda: self._coordinator.terminate(self._now()))

    def _ask(self, name: str | None, request: Callable[[], list[Command]]) -> Future[None]:
        answer: Future[None] = Future()
        self._waiting.append((name, answer))
        self._post(lambda: self._do(request()))
        return answer

    # --- Events -----------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True if no snapshot is being taken."""
        return self._coordinator.phase in {Phase.IDLE, Phase.STOPPED}

    @property
    def due(self) -> float | None:
        """The time, in seconds of the job's clock, at which to call :meth:`tick`."""
        return self._coordinator.due

    def tick(self) -> None:
        """Time has passed."""
        self._do(self._coordinator.tick(self._now()))

    def drained(self, member: int) -> None:
        """A member is ready to take snapshots."""
        self._do(self._coordinator.drained(member, self._now()))

    def saved(self, member: int, snapshot_id: int, report: MemberReport) -> None:
        """Phase 1 is over on a member."""
        self._note_ended(report.ended)
        current = self._coordinator.current
        if current is not None and current.id == snapshot_id:
            self._reports[member] = report
            self._slowest = report.slowest
        self._do(self._coordinator.saved(member, snapshot_id, report.error, self._now()))

    def committed(self, member: int, snapshot_id: int) -> None:
        """Phase 2 is over on a member."""
        self._do(self._coordinator.committed(member, snapshot_id, self._now()))

    def ended(self, member: int, ended: Iterable[EndedProcessor]) -> None:
        """All tasklets of a member have ended well."""
        self._note_ended(ended)
        self._do(self._coordinator.ended(member, self._now()))

    def _note_ended(self, ended: Iterable[EndedProcessor]) -> None:
        self._ended.update({(each.vertex, each.processor): each for each in ended})

    def close(self, reason: str) -> None:
        """The attempt is over; waits for what is being written. For the job's thread."""
        self._job.attach(None)
        self._is_closing = True
        self._do(self._coordinator.stop(reason))
        # A storage that does not answer is left behind: what it does later does not count.
        self._io.shutdown(wait=self._overdue is None)
        for name, answer in self._waiting:
            _refuse(answer, name, reason)
        self._waiting.clear()

    # --- Commands ---------------------------------------------------------------------------

    def _do(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Prepare):
                self._prepare(command.snapshot)
            elif isinstance(command, Begin):
                self._begin(command)
            elif isinstance(command, Record):
                self._record(command.snapshot)
            elif isinstance(command, Finish):
                self._members.finish(command.members, command.snapshot.id, success=command.success)
            elif isinstance(command, Over):
                self._over(command)
            elif isinstance(command, Overdue):
                self._tell_overdue(command)
            elif isinstance(command, Refuse):
                self._answer(command.export, command.reason)
            elif isinstance(command, Terminate):
                self._members.terminate()
            elif isinstance(command, GiveUp):
                self._give_up(command.reason)

    def _prepare(self, snapshot: Snapshot) -> None:
        self._reports = {}
        self._directory = None
        self._began = self._now()
        self._began_ms = self._job.clock.time_ms()
        self._size, self._slowest, self._phases = 0, "", {}

        def prepare() -> SnapshotDirectory:
            if snapshot.export is not None:
                return self._job.exports.prepare(snapshot.export)
            assert snapshot.area is not None
            return self._job.store.make_room(snapshot.area, self._attempt.epoch)

        def prepared(outcome: Future[SnapshotDirectory]) -> None:
            error = _text_of(outcome.exception())
            if error is None:
                self._directory = outcome.result()
            self._do(self._coordinator.prepared(snapshot.id, error, self._now()))

        self._run(prepare, prepared)

    def _begin(self, command: Begin) -> None:
        assert self._directory is not None
        snapshot = command.snapshot
        active = ActiveSnapshot(
            snapshot.id, is_terminal=snapshot.is_terminal, is_export=snapshot.export is not None
        )
        self._members.begin(command.members, active, self._directory)

    def _record(self, snapshot: Snapshot) -> None:
        directory = self._directory
        assert directory is not None
        self._phases["save_ms"] = self._now()
        reports = list(self._reports.values())
        ended = list(self._ended.values())
        vertices = self._vertices(reports, ended)
        before = {} if snapshot.export is not None else self._chains
        chains = {
            member: _longer(before.get(member, ()), report, snapshot.id)
            for member, report in self._reports.items()
        }

        def write() -> int:
            files = [report.file for report in reports if report.file is not None]
            files += self._write_ended(snapshot, directory, ended, vertices)
            record = SnapshotRecord(
                snapshot_id=snapshot.id,
                epoch=self._attempt.epoch,
                job_name=self._job.job_name,
                job_id=self._job_id,
                members=self._job.members,
                partition_count=DEFAULT_PARTITION_COUNT,
                began_ms=self._began_ms,
                ended_ms=self._job.clock.time_ms(),
                is_terminal=snapshot.is_terminal,
                name=snapshot.export,
                files=tuple(files),
                chain=tuple(sorted(file for chain in chains.values() for file in chain)),
                vertices=vertices,
            )
            self._job.store.write_record(directory, record)
            if not self._has_tidied and snapshot.area is not None:
                self._has_tidied = True
                with suppress(Exception):  # whatever it is, the snapshot counts
                    self._job.store.forget_epochs(self._attempt.epoch)
            changes = [report.changes for report in reports if report.changes is not None]
            return sum(file.size for file in (*files, *changes))

        def written(outcome: Future[int]) -> None:
            error = outcome.exception()
            if isinstance(error, RecordInDoubtError):
                self._is_superseded = isinstance(error, SupersededError)
                self._do(self._coordinator.in_doubt(snapshot.id, str(error)))
                return
            if error is None:
                self._size = outcome.result()
                if snapshot.export is None:
                    self._chains = chains
                self._phases["record_ms"] = self._now()
            self._do(self._coordinator.recorded(snapshot.id, _text_of(error), self._now()))

        self._run(write, written)

    def _vertices(
        self, reports: Iterable[MemberReport], ended: Iterable[EndedProcessor]
    ) -> dict[str, VertexState]:
        """What the record says of each vertex."""
        sizes: dict[str, tuple[int, int]] = {}
        versions: dict[str, int] = {}
        definitions: dict[str, Mapping[str, Any]] = {}
        for report in reports:
            versions.update(report.schema_versions)
            definitions.update(report.definitions)
            for vertex, (entries, size) in report.vertices.items():
                before = sizes.get(vertex, (0, 0))
                sizes[vertex] = (before[0] + entries, before[1] + size)
        chained = {vertex for report in reports for vertex in report.chained}
        indexes: dict[str, list[int]] = {}
        for each in ended:
            if each.processor < EARLIER:
                indexes.setdefault(each.vertex, []).append(each.processor)
        return {
            vertex: VertexState(
                processors,
                *sizes.get(vertex, (0, 0)),
                schema_version=versions.get(vertex, 1),
                definition=definitions.get(vertex),
                ended=tuple(sorted(indexes.get(vertex, ()))),
                chained=vertex in chained,
            )
            for vertex, processors in self._job.processors.items()
        }

    def _write_ended(
        self,
        snapshot: Snapshot,
        directory: SnapshotDirectory,
        ended: Iterable[EndedProcessor],
        vertices: Mapping[str, VertexState],
    ) -> list[StateFile]:
        """A file with what completed processors have left, if there is anything."""
        over = [vertex for vertex, state in vertices.items() if state.has_ended]
        chunks = chunks_of(list(ended), over)
        if not chunks:
            return []
        name = f"{snapshot.id:08d}-{self._attempt.epoch:04d}{ENDED_SUFFIX}"
        file = directory.create(name)
        try:
            header = {"vertices": list(vertices)}
            writer = StateFileWriter(file, name, header, directory.signer)
            for chunk in chunks:
                writer.write(chunk)
            entry = writer.end()
        finally:
            directory.close_durably(file)
        return [entry]

    def _over(self, command: Over) -> None:
        snapshot, error = command.snapshot, command.error
        if not self._is_closing and self._coordinator.phase is not Phase.STOPPED:
            self._overdue = None
        job, stats = self._job, self._job.stats
        if not (error is not None and self._is_closing):
            stats.history.append(self._described(snapshot, error))
        if error is None:
            if snapshot.area is not None:
                job.committed = (self._attempt.epoch, snapshot.id)
            stats.taken += 1
            job.awaited_since = None if snapshot.is_terminal else self._now()
            stats.last_id = snapshot.id
            stats.last_bytes = self._size
            stats.last_ms = (self._now() - self._began) * 1e3
            if job.trouble is not None:
                job.trouble = None
                logger.info("job %s: snapshot %d is good again", job.job_name, snapshot.id)
        elif not (self._is_closing or self._overdue):
            # Otherwise the attempt has ended, and it is not to blame; or it was told already.
            stats.failed += 1
            stats.last_error = error
            self._warn(snapshot, error)
        if snapshot.is_terminal and (error is None or not self._is_closing):
            self.was_terminated = True
        if snapshot.is_terminal or snapshot.export is not None:
            self._answer(snapshot.export, error)

    def _described(self, snapshot: Snapshot, error: str | None) -> dict[str, Any]:
        """What is remembered of a snapshot that is over."""
        phases, before = {}, self._began
        for phase, ended in (*self._phases.items(), ("commit_ms", self._now())):
            phases[phase] = (ended - before) * 1e3
            before = ended
        return {
            "id": snapshot.id,
            "began_ms": self._began_ms,
            "bytes": self._size,
            "ms": (self._now() - self._began) * 1e3,
            **phases,
            "slowest": self._slowest,
            "export": snapshot.export,
            "error": error,
        }

    def _tell_overdue(self, command: Overdue) -> None:
        """Tell whom a snapshot has been waiting for too long."""
        snapshot, stats = command.snapshot, self._job.stats
        place = self._directory or self._job.store
        directory = place.path if isinstance(place, SnapshotDirectory) else place.directory
        silent = []
        for member in command.members:
            awaited = list(self._members.awaited(member))
            awaited[NAMED:] = ["..."] if len(awaited) > NAMED else []
            # Where nobody is awaited, what they have saved is being written.
            names = ", ".join(awaited) or f"its file in {directory}"
            silent.append(f"{names} on member {member}" if self._job.members > 1 else names)
        self._overdue = (
            f"snapshot {snapshot.id} is not complete after {command.seconds:g} s: no answer from "
            f"{'; '.join(silent) or directory}"
        )
        stats.failed += 1
        stats.last_error = self._overdue
        logger.warning("job %s: %s", self._job.job_name, self._overdue)

    def _warn(self, snapshot: Snapshot, error: str) -> None:
        """Tell of a failure, unless it is that of the last one again."""
        cause = re.sub(r"\d+", "", error)  # files have numbers in their names
        level = logging.DEBUG if cause == self._job.trouble else logging.WARNING
        self._job.trouble = cause
        logger.log(
            level,
            "job %s: snapshot %d failed, the job goes on: %s",
            self._job.job_name,
            snapshot.id,
            error,
        )

    def _answer(self, name: str | None, error: str | None) -> None:
        """Tell who asked first for this."""
        for request in self._waiting:
            if request[0] == name:
                self._waiting.remove(request)
                if error is None:
                    request[1].set_result(None)
                else:
                    _refuse(request[1], name, error)
                return

    def _give_up(self, reason: str) -> None:
        text = f"job {self._job.job_name!r} failed: {self._overdue or reason}"
        self._members.fail(JobFailedError(text) if self._is_superseded else RestartableError(text))

    def _run(self, action: Callable[[], Any], then: Callable[[Future[Any]], None]) -> None:
        """Do what may block on the driver's own thread, and go on with the outcome here."""
        self._io.submit(action).add_done_callback(lambda outcome: self._post(lambda: then(outcome)))


def _longer(
    chain: tuple[ChainFile, ...], report: MemberReport, snapshot_id: int
) -> tuple[ChainFile, ...]:
    """The chain of a member with what it has to say of a snapshot, and without what that covers."""
    since, changes = report.since, report.changes
    if since is None:
        return ()
    kept = tuple(file for file in chain if file.number >= since)
    if changes is None:
        return kept
    return (*kept, ChainFile(snapshot_id, changes.name, changes.size, changes.crc32))


def _refuse(answer: Future[None], name: str | None, reason: str) -> None:
    what = "the last snapshot" if name is None else f"snapshot {name!r}"
    answer.set_exception(SnapshotError(f"{what} was not taken: {reason}"))


def _text_of(error: BaseException | None) -> str | None:
    if error is None:
        return None
    return str(error) if isinstance(error, SnapshotError) else f"{type(error).__name__}: {error}"
