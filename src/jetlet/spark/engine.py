"""SparkEngine: runs pipelines on Spark through PySpark."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from jetlet.core.dag import DAG
from jetlet.core.vertex import Vertex
from jetlet.errors import InvalidArgumentError, PlanningError, UnsupportedFeatureError
from jetlet.execution.snapshot_context import NONE
from jetlet.jobs.config import JobConfig
from jetlet.jobs.embedded import Plannable
from jetlet.jobs.job import Job
from jetlet.processors.read import ReadSupplier
from jetlet.spark.frames import frame_source
from jetlet.spark.runner import SparkRunner, Width, context_of
from jetlet.spark.session import (
    PLAN_SETTINGS,
    StartedSession,
    active_session,
    join_session,
    start_session,
)
from jetlet.spark.shipping import check_picklable, ship_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkEngine:
    """Runs pipelines and DAGs on Spark; this process is the driver.

    ``master`` names where: ``local[*]`` is this machine, ``spark://host:7077`` a cluster,
    ``sc://host`` a Spark Connect server. ``session`` joins a session that you have, and leaves it
    as it is; ``config`` are settings for a new one. Use it in a ``with`` block.
    """

    def __init__(
        self,
        master: str | None = None,
        session: SparkSession | None = None,
        config: Mapping[str, object] | None = None,
        app_name: str | None = None,
    ) -> None:
        if session is not None and (master is not None or config):
            raise InvalidArgumentError(
                "SparkEngine(session=...) uses the session as it is: leave out master and config"
            )
        self._started = self._start(master, session, config, app_name)
        self._jobs: set[Job] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            self._prepare_session()
        except BaseException:
            self._started.stop()
            raise

    @staticmethod
    def _start(
        master: str | None,
        session: SparkSession | None,
        config: Mapping[str, object] | None,
        app_name: str | None,
    ) -> StartedSession:
        session = session or (active_session() if master is None and not config else None)
        if session is not None:
            return join_session(session)
        return start_session(master, app_name, config)

    def _prepare_session(self) -> None:
        for key, value in PLAN_SETTINGS.items():
            self.session.conf.set(key, value)
        ship_package(self.session)

    @property
    def session(self) -> SparkSession:
        """The Spark session."""
        return self._started.session

    @property
    def default_parallelism(self) -> int:
        """Tasks that Spark runs at a time, as far as it says."""
        context = context_of(self.session)
        if context is not None:
            return int(context.defaultParallelism)
        return int(self.session.conf.get("spark.sql.shuffle.partitions") or 1)

    def submit(self, what: DAG | Plannable, config: JobConfig | None = None) -> Job:
        """Start a job and return at once. Mistakes are raised here, before anything runs."""
        config = config or JobConfig()
        if config.processing_guarantee != NONE:
            raise UnsupportedFeatureError(
                f"processing_guarantee={config.processing_guarantee!r} is for streams; a bounded "
                f"pipeline on Spark gives exact results anyway: write processing_guarantee='none'"
            )
        dag = what if isinstance(what, DAG) else what.plan(default_parallelism=1)
        dag.validate()
        check_picklable(dag)
        runner = SparkRunner(self.session, dag, self._width(dag, config))
        job = Job(dag, config, runner, self._forget)
        with self._lock:
            if self._is_closed:
                raise PlanningError("the engine is closed; make a new SparkEngine()")
            self._jobs.add(job)
        try:
            job.start()
        except BaseException:
            self._forget(job)
            raise
        return job

    def _width(self, dag: DAG, config: JobConfig) -> Width:
        """Plan the splits of the sources; have no more reading tasks than there are splits."""
        width = config.default_parallelism or self.default_parallelism
        needed = 1
        for vertex in dag:
            if frame_source(vertex) is None:
                vertex.supplier.prepare(width * vertex.parallelism(1))
                needed = max(needed, _readers(vertex))
        return Width(reading=min(width, needed), shuffled=width)

    def _forget(self, job: Job) -> None:
        with self._lock:
            self._jobs.discard(job)

    @property
    def jobs(self) -> list[Job]:
        """Jobs that have not ended."""
        with self._lock:
            return list(self._jobs)

    def close(self) -> None:
        """Cancel the jobs that still run; stop the session if it was started here."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for job in self.jobs:
            job.cancel()
        self._started.stop()

    def __enter__(self) -> SparkEngine:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _readers(vertex: Vertex) -> int:
    """Tasks that have something to read at the vertex."""
    if isinstance(vertex.supplier, ReadSupplier):
        return -(-len(vertex.supplier.splits) // vertex.parallelism(1))
    return 1
