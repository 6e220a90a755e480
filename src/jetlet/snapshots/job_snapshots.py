"""JobSnapshots: the snapshots of a job over all its attempts, in the submitting process."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar

from jetlet.core.clock import Clock
from jetlet.core.dag import DAG
from jetlet.errors import JobStateError, SnapshotError
from jetlet.snapshots.context import EXACTLY_ONCE, NONE
from jetlet.snapshots.directory import SnapshotDirectory
from jetlet.snapshots.fit import check_fit, is_chained_alike
from jetlet.snapshots.format import REPORTS, STATE, ChainFile, Chunk, SnapshotRecord
from jetlet.snapshots.member_report import EndedProcessor
from jetlet.snapshots.signing import Signer
from jetlet.snapshots.store import (
    Attempt,
    Exports,
    SnapshotStore,
    StoredSnapshot,
    open_export,
)
from jetlet.snapshots.writer import member_of
from jetlet.storage.exposure import warn_if_open_to_all
from jetlet.storage.file_systems import is_url, locate

if TYPE_CHECKING:
    from jetlet.jobs.config import JobConfig
    from jetlet.jobs.members.layout import Layout
    from jetlet.snapshots.driver import SnapshotDriver

logger = logging.getLogger("jetlet.job")


HISTORY = 50
"""So many of the latest snapshots are remembered."""


class SnapshotStats:
    """What has come of the snapshots of a job so far; safe to read from any thread."""

    def __init__(self) -> None:
        self.taken = 0
        self.failed = 0
        self.last_id: int | None = None
        """The id of the newest snapshot that succeeded."""
        self.last_bytes = 0
        self.last_ms = 0.0
        """Milliseconds that the newest good snapshot took, from its beginning to its record."""
        self.last_error: str | None = None
        """Why the newest snapshot that failed did so."""
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        """The latest, good and bad; what is known of each is in the metrics of the job."""

    def values(self) -> dict[str, Any]:
        """As plain data."""
        return {name: value for name, value in vars(self).items() if name != "history"}


class JobSnapshots:
    """Where the job's snapshots are, what it begins with, and who takes them at the moment.

    Used by the job's thread; requests may come from any.
    """

    can_export: ClassVar[bool] = True

    def __init__(
        self,
        dag: DAG,
        job_name: str,
        config: JobConfig,
        layout: Layout,
        clock: Clock,
    ) -> None:
        assert config.snapshot_dir is not None
        self.job_name = job_name
        self.config = config
        self._layout = layout
        self.clock = clock
        self.stats = SnapshotStats()
        self.awaited_since: float | None = None
        """When the newest good snapshot was complete, or the job began without any, in seconds of
        its clock; ``None`` while there is no reason to wait for one."""
        self._place = absolute(config.snapshot_dir)
        storage, root = locate(self._place, config.storage_options)
        self._signer = Signer(config.snapshot_key)
        self.store = SnapshotStore(storage, root, job_name, self._signer)
        self.exports = Exports(storage, root, self._signer)
        self.attempt: Attempt | None = None
        """The attempt that runs, or is about to."""
        self.committed: tuple[int, int] | None = None
        """Epoch and id of the last snapshot whose output was, or is, committed: to go on from an
        older one would be to write that again."""
        self.trouble: str | None = None
        """Why snapshots have failed since the last good one, as it was told."""
        self.ended: dict[tuple[str, int], EndedProcessor] = {}
        """Processors that had completed before the attempt began, by vertex and index."""
        self.chains: dict[int, tuple[ChainFile, ...]] = {}
        """By member, the chains that go on; none if they begin anew."""
        self._dag = dag
        self._is_first = True
        self._lock = threading.Lock()
        self._driver: SnapshotDriver | None = None

    @property
    def members(self) -> int:
        """Of the attempt."""
        return self._layout.members

    @property
    def processors(self) -> Mapping[str, int]:
        """By vertex, in the whole job."""
        return self._layout.processors

    @property
    def interval(self) -> float | None:
        """Seconds between two snapshots; ``None`` if they are taken on request only."""
        guaranteed = self.config.processing_guarantee != NONE
        return self.config.snapshot_interval if guaranteed else None

    def now(self) -> float:
        """Seconds of the job's clock."""
        return self.clock.monotonic_ns() / 1e9

    def seconds_without(self) -> float | None:
        """Seconds since the last good snapshot, if more of them are to come; from any thread."""
        since = self.awaited_since
        return None if since is None or self.interval is None else self.now() - since

    # --- Attempts ---------------------------------------------------------------------------

    def begin_attempt(self, job_id: str = "") -> Attempt:
        """Settle the layout, claim an epoch and find what to begin with; may block."""
        config = self.config
        self._layout.settle()
        fresh = self._is_first and config.start_fresh
        attempt = self.store.begin_attempt(
            job_id,
            fresh=fresh,
            initial=self._initial(),
            after=self.attempt.epoch if self.attempt is not None else 0,
            committed=self.committed,
            may_go_back=config.allow_older_snapshot or config.processing_guarantee != EXACTLY_ONCE,
        )
        if self._is_first and not is_url(self._place):
            warn_if_open_to_all(logger, "the directory of snapshots", self._place)
        self._is_first = False
        self.attempt = attempt
        own = attempt.restored if attempt.good_areas else None
        self.committed = None if own is None else own.record.order
        self.ended = {}
        self.chains = {}
        if attempt.restored is not None:
            check_fit(attempt.restored, self._dag, allow_changes=config.allow_changed_stages)
            self._recall(attempt.restored)
            if own is not None and self._is_alike(own.record):
                self.chains = chains_of(own.record)
            logger.info(
                "job %s goes on from snapshot %d in %s",
                self.job_name,
                attempt.restored.record.snapshot_id,
                attempt.restored.directory.path,
            )
        return attempt

    @property
    def chains_since(self) -> int | None:
        """The first number in the chains that go on; ``None`` if they begin anew."""
        return min((chain[0].number for chain in self.chains.values()), default=None)

    def _is_alike(self, record: SnapshotRecord) -> bool:
        """True if each processor gets its own state back, as it was."""
        processors = {vertex: state.processors for vertex, state in record.vertices.items()}
        return (
            record.members == self.members
            and processors == self.processors
            and is_chained_alike(record, self._dag)
        )

    def _initial(self) -> StoredSnapshot | None:
        name = self.config.initial_snapshot
        if name is None:
            return None
        if "/" not in name and os.sep not in name:
            return self.exports.find(name)
        storage, root = locate(absolute(name), self.config.storage_options)
        stored = open_export(SnapshotDirectory(storage, root, self._signer))
        if stored is None:
            raise SnapshotError(f"there is no snapshot in {name}")
        return stored

    def _recall(self, stored: StoredSnapshot) -> None:
        """Find out which processors had completed, and what they had reported."""
        record = stored.record
        reports: dict[tuple[str, int], bytes] = {}
        states: dict[tuple[str, int], list[Chunk]] = {}
        for file in record.files:
            if file.name.endswith(ENDED_SUFFIX):
                for chunk in stored.directory.chunks(file):
                    key = (chunk.vertex, chunk.processor)
                    if chunk.kind == REPORTS:
                        reports[key] = chunk.payload
                    elif chunk.kind == STATE:
                        states.setdefault(key, []).append(chunk)
        for vertex, state in record.vertices.items():
            if vertex not in self.processors:
                continue
            is_alike = (
                record.members == self.members and state.processors == self.processors[vertex]
            )
            ended: Iterable[int] = state.ended if is_alike else ()
            if state.has_ended:
                # However many there are now, none of them is run.
                ended = range(self.processors[vertex])
            for index in ended:
                key = (vertex, index)
                self.ended[key] = EndedProcessor(
                    vertex, index, reports.pop(key, None), tuple(states.get(key, ()))
                )
        # Of those that are not known by their numbers any more, what they have reported stays.
        for number, ((vertex, _), told) in enumerate(reports.items(), EARLIER):
            if vertex in self.processors:
                self.ended[vertex, number] = EndedProcessor(vertex, number, told)

    def reports(self) -> list[tuple[str, Any]]:
        """What processors had reported that are not run again: vertex and message."""
        return [
            (ended.vertex, message)
            for ended in self.ended.values()
            if ended.reports is not None
            for message in pickle.loads(ended.reports)
        ]

    def complete(self) -> None:
        """The job has completed; may block, never raises."""
        assert self.attempt is not None
        try:
            self.store.complete(self.attempt.epoch)
        except Exception as error:  # its output is there, so it has not failed
            logger.warning(
                "job %s has completed, but %s cannot be told so: %s. Submitted again, it would go "
                "on from its last snapshot, unless you write JobConfig(start_fresh=True)",
                self.job_name,
                self.store.directory,
                error,
            )

    def rescale(self, members: int) -> None:
        """Have so many members at the next attempt; raises what speaks against it."""
        self._layout.rescale(members)

    # --- Requests ---------------------------------------------------------------------------

    def attach(self, driver: SnapshotDriver | None) -> None:
        """Who takes snapshots from now on."""
        with self._lock:
            self._driver = driver

    def export(self, name: str) -> Future[None]:
        """Ask for the state under this name; from any thread."""
        return self._ask(lambda driver: driver.export(name))

    def terminate(self) -> Future[None]:
        """Ask for the end of the attempt with a snapshot; from any thread."""
        return self._ask(lambda driver: driver.terminate())

    def _ask(self, request: Callable[[SnapshotDriver], Future[None]]) -> Future[None]:
        with self._lock:
            if self._driver is None:
                raise JobStateError(f"job {self.job_name!r} does not run")
            return request(self._driver)

    def export_last(self, name: str) -> None:
        """Copy the last snapshot of a job that does not run; may block."""
        found = self.store.snapshots()
        if not found:
            raise SnapshotError(f"job {self.job_name!r} has no snapshot yet")
        self.exports.copy(found[0], name)


EARLIER = 1 << 31
"""Above the number of any processor: for what those of an earlier layout have left."""
ENDED_SUFFIX = "-ended.state"
"""Ends the name of the file with what completed processors have left."""


def chains_of(record: SnapshotRecord) -> dict[int, tuple[ChainFile, ...]]:
    """The chains of a snapshot by member, the oldest file first."""
    chains: dict[int, list[ChainFile]] = {}
    for file in sorted(record.chain):
        chains.setdefault(member_of(file.name), []).append(file)
    return {member: tuple(chain) for member, chain in chains.items()}


def chunks_of(ended: Sequence[EndedProcessor], over: Sequence[str]) -> list[Chunk]:
    """What completed processors have left; the vertices that are ``over`` need no state."""
    chunks = []
    for each in ended:
        if each.reports is not None:
            chunks.append(Chunk(REPORTS, each.vertex, each.processor, 0, each.reports))
        if each.vertex not in over:
            chunks += each.state
    return chunks


def absolute(location: str) -> str:
    """A path or URL that means the same in every process."""
    return location if is_url(location) else os.path.abspath(location)  # noqa: PTH100
