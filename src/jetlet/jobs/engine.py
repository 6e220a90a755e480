"""Engine: what a job is submitted to; EngineJobs: its jobs, from submission to the engine's end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

from jetlet.core.dag import DAG
from jetlet.errors import InvalidArgumentError
from jetlet.jobs.config import JobConfig
from jetlet.jobs.console import in_notebook
from jetlet.jobs.job import Job

if TYPE_CHECKING:
    from jetlet.ui.page import Page

logger = logging.getLogger("jetlet.job")

SPARK_PARALLELISM = 1
"""Processors of a vertex in a task of Spark's where a stage does not say: a task has one core."""


class Plannable(Protocol):
    """What can be turned into a DAG: a pipeline, or an application of tasks."""

    def plan(self, *, default_parallelism: int) -> DAG: ...


class Engine(Protocol):
    """Runs jobs until it is closed, somewhere."""

    def submit(self, what: DAG | Plannable, config: JobConfig | None = None) -> Job:
        """Start a job and return at once. Mistakes are raised here, before anything runs."""

    @property
    def jobs(self) -> list[Job]:
        """Jobs that have not ended."""

    def ui(self, port: int = 0, host: str = "127.0.0.1", *, read_only: bool = False) -> Page:
        """A page that shows the jobs at work, served from the first call on.

        The first call says how it is served; later ones without arguments return it.
        """

    def close(self) -> None:
        """Cancel the jobs that still run and release what the engine has; idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class EngineJobs:
    """The jobs of one engine; safe from any thread.

    ``check_open`` raises if the engine cannot run anything any more.
    """

    def __init__(self, check_open: Callable[[], None]) -> None:
        self.is_closed = False
        self._check_open = check_open
        self._running: dict[Job, int] = {}
        """Jobs that have not ended, with the parallelism of vertices that do not say."""
        self._page: Page | None = None
        self._ending: list[threading.Thread] = []
        """Threads of jobs that have ended, which may need another moment."""
        self._lock = threading.Lock()

    def start(self, job: Job, parallelism: int) -> Job:
        """Start a job that has been made; what it refuses to begin with is raised.

        ``parallelism`` is that of vertices which do not say, for the log.
        """
        if logger.isEnabledFor(logging.INFO):
            logger.info("job %s is started:\n%s", job.name, job.dag.to_dot(parallelism))
        with self._lock:
            self._check_open()
            self._running[job] = parallelism
            if self._page is not None:
                self._page.add(job, parallelism)
        if job.config.ui:
            self.ui().tell(job)
        if in_notebook():
            from jetlet.ui.notebook import replace_job

            replace_job(job)
        try:
            job.start()
        except BaseException:
            self.forget(job)
            raise
        return job

    def forget(self, job: Job) -> None:
        """A job has ended; told by itself, on its thread."""
        with self._lock:
            self._running.pop(job, None)
            self._ending = [thread for thread in self._ending if thread.is_alive()]
            self._ending.append(job._thread)

    def running(self) -> list[Job]:
        """Jobs that have not ended."""
        with self._lock:
            return list(self._running)

    def ui(self, port: int = 0, host: str = "127.0.0.1", *, read_only: bool = False) -> Page:
        """The page of these jobs, served from the first call on."""
        from jetlet.ui.page import Page

        with self._lock:
            self._check_open()
            if self._page is None:
                self._page = Page(port, host, read_only=read_only)
                for job, parallelism in self._running.items():
                    self._page.add(job, parallelism)
            else:
                _check_page(self._page, port, host, read_only=read_only)
            return self._page

    def close(self) -> bool:
        """Take no more jobs, cancel those that run, and wait until their threads have ended.

        True if nobody had closed them before.
        """
        with self._lock:
            is_first, self.is_closed = not self.is_closed, True
            jobs = list(self._running)
        # All at once: each takes a moment.
        for job in jobs:
            job._runner.cancel()
        for job in jobs:
            job.cancel()
        with self._lock:
            ending = list(self._ending)
            page, self._page = self._page, None
        for thread in ending:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()
        if page is not None:
            page.close()
        return is_first


def _check_page(page: Page, port: int, host: str, *, read_only: bool) -> None:
    """Refuse to give the page that is served to whoever asks for another one."""
    asked = []
    if port not in (0, page.port):
        asked.append(f"port={port}")
    if host not in ("127.0.0.1", page.host):
        asked.append(f"host={host!r}")
    if read_only and not page.read_only:
        asked.append("read_only=True")
    if asked:
        kind = "for looking only" if page.read_only else "with buttons"
        raise InvalidArgumentError(
            f"this engine has a page already, {kind}, at port {page.port} of {page.host}: call "
            f"engine.ui({', '.join(asked)}) first, before any other engine.ui() and before a job "
            f"with JobConfig(ui=True)"
        )


def dag_of(what: object, default_parallelism: int) -> DAG:
    """What an engine runs, planned and validated: the only time in the life of a submission."""
    if isinstance(what, DAG):
        what.validate()
        return what
    plan = getattr(what, "plan", None)
    if plan is None:
        raise InvalidArgumentError(f"an engine runs a Pipeline or a DAG, not {what!r}")
    dag: DAG = plan(default_parallelism=default_parallelism)
    return dag
