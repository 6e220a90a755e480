"""MembersRunner: runs a job on member processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jetlet.core.dag import DAG
from jetlet.core.edge import Edge
from jetlet.core.vertex import Vertex
from jetlet.errors import JobCancelledError, JobFailedError, RestartableError
from jetlet.execution.event_loop import SharedEventLoop
from jetlet.jobs.coordinator import Finish, MemberLost
from jetlet.jobs.job import Run, Terminated
from jetlet.jobs.launcher import MemberLauncher
from jetlet.jobs.layout import Layout
from jetlet.jobs.messages import Counters
from jetlet.jobs.pickling import (
    FOR_SAME_PATH,
    CodeByValue,
    by_value,
    check_picklable,
    stray_classes,
    unpicklable,
)
from jetlet.jobs.remote_failure import RemoteFailure
from jetlet.jobs.session import Session, SessionConfig
from jetlet.metrics.job_metrics import JobMetrics
from jetlet.network.tls import Tls


class MembersRunner:
    """Runs one job on members. The job's thread drives it; a network thread listens.

    ``launcher`` makes what starts the members. They meet at Unix sockets in a private directory,
    unless ``use_tcp`` or ``tls`` says otherwise: then at ports of ``host``, which is this machine
    alone by default, and which they know as ``known_as``. ``code`` is what travels by value.
    ``service`` is what the threads that call hooks work for; ``join_limit`` are the seconds that
    members have to start, if not the usual.

    Raises :class:`~jetlet.errors.UnpicklableFunctionError` if the DAG cannot travel.
    """

    def __init__(
        self,
        layout: Layout,
        launcher: Callable[[], MemberLauncher],
        *,
        workers: int | None,
        host: str = "127.0.0.1",
        known_as: str | None = None,
        use_tcp: bool = False,
        tls: Tls | None = None,
        service: object = None,
        code: CodeByValue = FOR_SAME_PATH,
        join_limit: float | None = None,
    ) -> None:
        self._layout = layout
        self._code = code
        self._config = SessionConfig(
            count=layout.members,
            dag=dump_dag(layout.dag, code),
            default_parallelism=layout.default_parallelism,
            workers=workers,
            host=host,
            known_as=known_as,
            stray_classes=lambda: stray_classes(code),
            join_limit=join_limit,
            use_tcp=use_tcp or tls is not None,
            tls=tls,
            service=service,
        )
        self._make_launcher = launcher
        self._counters: dict[int, Counters] = {}
        """By member, as of its last sign of life."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Session | None = None
        self._is_cancelled = self._has_run = False
        self._lock = threading.Lock()

    def run(self, run: Run, on_running: Callable[[], None]) -> None:
        self._counters.clear()
        layout = self._layout
        if self._has_run and run.snapshots is None:
            layout.settle()
        self._has_run = True
        if layout.members != self._config.count:
            # What sources are to read was planned anew.
            dag = dump_dag(layout.dag, self._code)
            self._config = replace(self._config, count=layout.members, dag=dag)
        launcher = self._make_launcher()
        loops = SharedEventLoop("jetlet-coordinator")
        loop = loops.lease()
        session: Session | None = None
        try:
            session = Session(self._config, run, launcher, on_running, self._counters, loop)
            try:
                with self._lock:
                    if self._is_cancelled:
                        raise JobCancelledError(f"job {run.job_name!r} was cancelled")
                    self._session, self._loop = session, loop
                finish = asyncio.run_coroutine_threadsafe(session.serve(), loop).result()
            finally:
                with self._lock:
                    self._session = self._loop = None
                launcher.close()
                session.close()
        finally:
            loops.release()
            # Nobody else drives them any more.
            was_terminated = session is not None and session.close_snapshots()
        if was_terminated and not self._is_cancelled:
            raise Terminated
        _raise_failure(run, finish)

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._loop is not None and self._session is not None:
                self._loop.call_soon_threadsafe(self._session.cancel)

    @property
    def is_cancelled(self) -> bool:
        """True if nobody wants the job any more; from any thread."""
        return self._is_cancelled

    def metrics(self) -> JobMetrics:
        latest = [self._counters[member] for member in sorted(self._counters)]
        return JobMetrics(
            (row for each in latest for row in each.processors),
            [worker for each in latest for worker in each.workers],
            [edge for each in latest for edge in each.edges],
        )


def _raise_failure(run: Run, finish: Finish) -> None:
    if finish.was_cancelled:
        raise JobCancelledError(f"job {run.job_name!r} was cancelled")
    failure = finish.failure
    if isinstance(failure, RemoteFailure):
        raise failure.unpack()
    if isinstance(failure, MemberLost):
        raise RestartableError(
            f"job {run.job_name!r} failed: member {failure.member} {failure.reason}"
        )
    if isinstance(failure, JobFailedError):
        raise failure
    if failure is not None:
        raise JobFailedError(f"job {run.job_name!r} failed: {failure}") from failure


def dump_dag(dag: DAG, code: CodeByValue = FOR_SAME_PATH) -> bytes:
    """The DAG as members get it: what belongs to the submitting process stays here."""
    cloudpickle = code.library()

    def dumps(value: Any) -> bytes:
        data: bytes = cloudpickle.dumps(value, protocol=5)
        return data

    copy = DAG(dag.name)
    vertices = {}
    for vertex in dag.vertices:
        vertices[vertex] = copy.vertex(
            Vertex(
                vertex.name,
                vertex.supplier,
                vertex.local_parallelism,
                preferred_parallelism=vertex.preferred_parallelism,
                is_single=vertex.is_single,
            )
        )
    for edge in dag.edges:
        copy.edge(_between_copies(edge, vertices))
    with by_value(code.modules, cloudpickle):
        try:
            return dumps(copy)
        except Exception as error:
            # Slowly, one by one, to find out which it is.
            check_picklable(dag, dumps)
            raise unpicklable(f"pipeline {dag.name!r}", error) from error


def _between_copies(edge: Edge, vertices: Mapping[Vertex, Vertex]) -> Edge:
    copy = Edge(vertices[edge.source], edge.source_ordinal, vertices[edge.dest], edge.dest_ordinal)
    copy.routing = edge.routing
    copy.key_fn = edge.key_fn
    copy.is_distributed = edge.is_distributed
    return copy.priority(edge.priority_value).queue_size(edge.queue_capacity)
