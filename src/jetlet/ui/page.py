"""Page: the jobs of one engine, and the server that shows them."""

from __future__ import annotations

import sys

from jetlet.jobs.job import Job
from jetlet.ui.page_jobs import LocalJobs
from jetlet.ui.page_server import PageServer


class Page(PageServer):
    """The page of an engine, which :meth:`~jetlet.EmbeddedEngine.ui` returns; it ends with it."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1", *, read_only: bool = False) -> None:
        self._local = LocalJobs()
        super().__init__(self._local, port, host, read_only=read_only)
        self._local.log_book.__enter__()

    def add(self, job: Job, parallelism: int = 1) -> None:
        """Show a job, too."""
        self._local.add(job, parallelism)

    def tell(self, job: Job) -> None:
        """Print where the page of a job is, for whoever has asked for it."""
        sys.stderr.write(f"{job.name}: {self.url}\n")
        sys.stderr.flush()

    def close(self) -> None:
        super().close()
        self._local.log_book.__exit__()
