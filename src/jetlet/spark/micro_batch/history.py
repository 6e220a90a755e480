"""BatchHistory: the batches of a job over all its attempts, as the job sees them.

To a :class:`~jetlet.jobs.job.Job` it is what the snapshots of other engines are: each batch is one.
So a job in micro-batches can be suspended, resumed and restarted, and goes on where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from jetlet.errors import JobStateError, UnsupportedFeatureError
from jetlet.jobs.config import JobConfig
from jetlet.snapshots.job_snapshots import SnapshotStats
from jetlet.spark.micro_batch.batch_log import BatchLog, BatchRecord
from jetlet.storage.exposure import warn_if_open_to_all
from jetlet.storage.file_systems import is_url

logger = logging.getLogger("jetlet.job")


@dataclass(frozen=True, slots=True)
class BatchesSoFar:
    """What an attempt begins with."""

    epoch: int
    job_id: str
    restored: BatchRecord | None


class BatchHistory:
    """Used by the job's thread; requests may come from any."""

    can_export: ClassVar[bool] = False

    def __init__(self, log: BatchLog, job_name: str, config: JobConfig) -> None:
        self.log = log
        self.stats = SnapshotStats()
        self.attempt: BatchesSoFar | None = None
        self.on_attempt: Callable[[str], None] = lambda run_id: None
        """Told of the run before anything begins."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called, from any thread, when the attempt is to end after the batch in hand."""
        self.is_stopping = False
        self._job_name = job_name
        self._config = config

    def remember(self, batch: int, began_ms: int, times: Sequence[float]) -> None:
        """A batch is done: when it began, had run, was recorded and committed, in seconds."""
        run, record, commit = ((end - begin) * 1e3 for begin, end in pairwise(times))
        self.stats.history.append(
            {
                "id": batch,
                "began_ms": began_ms,
                "bytes": None,
                "ms": run + record + commit,
                "run_ms": run,
                "record_ms": record,
                "commit_ms": commit,
                "slowest": "",
                "export": None,
                "error": None,
            }
        )

    def seconds_without(self) -> None:
        """Nothing: a batch comes when there is data for it."""

    def rescale(self, members: int) -> None:
        """Refused: a key is always with the same task."""
        raise JobStateError(
            f"job {self._job_name!r} runs in micro-batches, whose number of tasks is fixed when it "
            f"begins: submit it under another name with JobConfig(default_parallelism={members})"
        )

    def begin_attempt(self, job_id: str) -> BatchesSoFar:
        """Claim an epoch and find what to go on from; may block."""
        fresh = self.attempt is None and self._config.start_fresh
        self.log.begin_attempt(job_id, fresh=fresh)
        if self.attempt is None and not is_url(self.log.directory):
            warn_if_open_to_all(logger, "the directory of snapshots", self.log.directory)
        self.is_stopping = False
        self.attempt = BatchesSoFar(self.log.epoch, self.log.run_id, self.log.last)
        self.on_attempt(self.log.run_id)
        if self.log.last is not None:
            logger.info(
                "job %s goes on behind batch %d in %s",
                self._job_name,
                self.log.last.batch,
                self.log.directory,
            )
        return self.attempt

    def reports(self) -> Sequence[tuple[str, Any]]:
        """Nothing is left to be told at the end."""
        return ()

    def complete(self) -> None:
        """The job has completed; may block, never raises."""
        try:
            self.log.complete()
        except Exception as error:  # its output is there, so it has not failed
            logger.warning(
                "job %s has completed, but %s cannot be told so: %s",
                self._job_name,
                self.log.directory,
                error,
            )

    def terminate(self) -> Future[None]:
        """Let the attempt end after the batch in hand; from any thread."""
        answer: Future[None] = Future()
        answer.set_result(None)
        self.is_stopping = True
        self.on_stop()
        return answer

    def export(self, name: str) -> Future[None]:
        """Refuse: the state is that of Spark's query, too."""
        raise self._no_exports(name)

    def export_last(self, name: str) -> None:
        raise self._no_exports(name)

    def _no_exports(self, name: str) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            f"job {self._job_name!r} cannot be exported as {name!r}: where a stream of Spark's is "
            f"read, Spark knows, and only for this job. To go on later, write job.suspend(), or "
            f"submit it again with the same name and snapshot_dir"
        )
