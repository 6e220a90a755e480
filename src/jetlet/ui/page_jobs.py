"""LocalJobs: the jobs of this process, as the page shows them and gives them orders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from jetlet.errors import InvalidArgumentError
from jetlet.jobs.job import Job
from jetlet.metrics.log_book import LogBook
from jetlet.ui.job_feed import JobFeed

MAX_JOBS: Final = 30
"""So many jobs are shown; of more, those that ended first are forgotten."""


class PageJobs(Protocol):
    """Where a page has its jobs from. Safe from any thread; may block."""

    def summaries(self) -> Sequence[Mapping[str, Any]]:
        """What is shown of each in a list; since the newest."""

    def state(self, job_id: str) -> Mapping[str, Any] | None:
        """All that is shown of one; ``None`` if there is no such job."""

    def order(self, job_id: str, command: str, name: str | None) -> None:
        """Have a job do something, and wait until that is done; raises what it has against it."""


class LocalJobs:
    """Keeps the latest log records of this process from when it is entered, too."""

    def __init__(self) -> None:
        self.log_book = LogBook()
        self._feeds: list[JobFeed] = []
        self._lock = threading.Lock()

    def add(self, job: Job, parallelism: int = 1) -> None:
        """Show a job from now on, also after its end."""
        feed = JobFeed(job, lambda: self.log_book.rows, parallelism=parallelism)
        with self._lock:
            self._feeds.insert(0, feed)
            over = [each for each in self._feeds if each.job.status.is_final]
            for each in reversed(over):
                if len(self._feeds) > MAX_JOBS:
                    self._feeds.remove(each)

    def summaries(self) -> Sequence[Mapping[str, Any]]:
        return [feed.summary() for feed in self._all()]

    def state(self, job_id: str) -> Mapping[str, Any] | None:
        feed = self._find(job_id)
        return None if feed is None else feed.state()

    def order(self, job_id: str, command: str, name: str | None) -> None:
        feed = self._find(job_id)
        if feed is None:
            raise InvalidArgumentError("there is no such job any more")
        order_job(feed.job, command, name)

    def _all(self) -> list[JobFeed]:
        with self._lock:
            return list(self._feeds)

    def _find(self, job_id: str) -> JobFeed | None:
        return next((feed for feed in self._all() if feed.job.id == job_id), None)


def order_job(job: Job, command: str, name: str | None) -> None:
    """Have a job do what a button says."""
    orders: dict[str, Callable[[], None]] = {
        "suspend": job.suspend,
        "resume": job.resume,
        "restart": job.restart,
        "cancel": job.cancel,
    }
    if command == "export":
        if not name:
            raise InvalidArgumentError("a snapshot that is exported needs a name")
        job.export_snapshot(name)
    elif command in orders:
        orders[command]()
    else:
        raise InvalidArgumentError(f"a job can be asked to {', '.join(orders)} and export")
