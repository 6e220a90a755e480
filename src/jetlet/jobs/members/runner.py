"""MembersRunner: runs a job on member processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial

from jetlet.core.dag import DAG
from jetlet.core.pickling import (
    FOR_SAME_PATH,
    CodeByValue,
    check_picklable,
    stray_classes,
    unpicklable,
)
from jetlet.core.remote_failure import RemoteFailure
from jetlet.core.vertex import Vertex
from jetlet.errors import JobCancelledError, JobFailedError, RestartableError
from jetlet.execution.shared_event_loop import SharedEventLoop
from jetlet.execution.tuning import Tuning
from jetlet.jobs.job import RunOf, Terminated
from jetlet.jobs.members.attempt import AttemptConfig, MembersAttempt
from jetlet.jobs.members.launcher import MemberLauncher
from jetlet.jobs.members.layout import Layout
from jetlet.jobs.members.members_coordinator import Finish, MemberLost
from jetlet.jobs.members.messages import Counters
from jetlet.metrics.job_metrics import JobMetrics
from jetlet.network.tls import Credentials
from jetlet.snapshots.job_snapshots import JobSnapshots


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
        tuning: Tuning,
        host: str = "127.0.0.1",
        known_as: str | None = None,
        use_tcp: bool = False,
        tls: Credentials | None = None,
        service: object = None,
        code: CodeByValue = FOR_SAME_PATH,
        join_limit: float | None = None,
    ) -> None:
        self._layout = layout
        self._code = code
        self._config = AttemptConfig(
            count=layout.members,
            dag=dump_dag(layout.dag, code),
            default_parallelism=layout.default_parallelism,
            tuning=tuning,
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
        """The counters of each member, as of its last sign of life."""
        self._earlier = JobMetrics(())
        """Of the attempts before."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._attempt: MembersAttempt | None = None
        self._is_cancelled = self._has_run = False
        self._lock = threading.Lock()

    def run(self, run: RunOf[JobSnapshots], on_running: Callable[[], None]) -> None:
        with self._lock:
            self._earlier = self._metrics()
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
        attempt: MembersAttempt | None = None
        try:
            attempt = MembersAttempt(self._config, run, launcher, on_running, self._counters, loop)
            try:
                with self._lock:
                    if self._is_cancelled:
                        raise JobCancelledError(f"job {run.job_name!r} was cancelled")
                    self._attempt, self._loop = attempt, loop
                run.on_drain(partial(attempt.call_soon, attempt.drain))
                finish = asyncio.run_coroutine_threadsafe(attempt.serve(), loop).result()
            finally:
                with self._lock:
                    self._attempt = self._loop = None
                launcher.close()
                attempt.close()
        finally:
            loops.release()
            # Nobody else drives them any more.
            was_terminated = attempt is not None and attempt.close_snapshots()
        if was_terminated and not self._is_cancelled:
            raise Terminated
        _raise_failure(run, finish)

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._loop is not None and self._attempt is not None:
                self._loop.call_soon_threadsafe(self._attempt.cancel)

    @property
    def is_cancelled(self) -> bool:
        """True if nobody wants the job any more; from any thread."""
        return self._is_cancelled

    def metrics(self) -> JobMetrics:
        with self._lock:
            return self._metrics()

    def _metrics(self) -> JobMetrics:
        # A copy: members are heard meanwhile.
        latest = [counters for _, counters in sorted(self._counters.copy().items())]
        return JobMetrics(
            (row for each in latest for row in each.processors),
            [worker for each in latest for worker in each.workers],
            [edge for each in latest for edge in each.edges],
            [row for each in latest for row in each.logs],
            earlier=self._earlier,
        )


def _raise_failure(run: RunOf[JobSnapshots], finish: Finish) -> None:
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
    remote = dag.copy(_without_hook)
    with code.by_value():
        try:
            return code.dumps(remote)
        except Exception as error:
            # Slowly, one by one, to find out which it is.
            check_picklable(dag, code)
            raise unpicklable(f"pipeline {dag.name!r}", error) from error


def _without_hook(vertex: Vertex) -> Vertex:
    twin = copy(vertex)
    twin.hook = None
    return twin
