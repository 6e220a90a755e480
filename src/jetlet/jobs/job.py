"""Job: a handle on something that runs, the same on every engine."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from jetlet.core.arguments import error_line
from jetlet.core.dag import DAG
from jetlet.core.vertex import RunHook
from jetlet.errors import (
    InvalidArgumentError,
    JetletError,
    JobCancelledError,
    JobFailedError,
    RestartableError,
    kind_of_failure,
)
from jetlet.execution.tasklet_supplier import tasklet_suppliers
from jetlet.execution.worker import EngineThread
from jetlet.jobs.config import JobConfig
from jetlet.jobs.console import in_notebook, plain_interrupts
from jetlet.jobs.health import Health, health_of
from jetlet.jobs.lifecycle import JobLifecycle, JobStatus
from jetlet.jobs.recovery import JobRecovery
from jetlet.metrics.job_metrics import JobMetrics

__all__ = ["Job", "JobRunner", "JobStatus", "Run", "Terminated"]

logger = logging.getLogger("jetlet.job")

begin_awaited: ContextVar[bool] = ContextVar("begin_awaited", default=False)
"""True where whoever submits a job gets its error, even if it fails before he waits for it."""


class Terminated(Exception):
    """How a runner says that the run has ended, as asked, with a terminal snapshot."""


HERE: Final = "in this process"

R = TypeVar("R", bound=JobRecovery)
R_co = TypeVar("R_co", bound=JobRecovery, covariant=True)
R_contra = TypeVar("R_contra", bound=JobRecovery, contravariant=True)


class RunOf(Generic[R_co]):
    """A job as its runner sees it: who it is, what it begins with, whom its output goes to.

    With snapshots there may be several attempts at a run, each with a higher ``epoch``.
    """

    def __init__(
        self, job_name: str, dag: DAG, config: JobConfig, snapshots: R_co | None = None
    ) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.job_name = job_name
        self.dag = dag
        self.config = config
        self._snapshots = snapshots
        self.epoch = 0
        self._hooks: dict[str, RunHook] = {
            v.name: v.hook for v in dag.vertices if v.hook is not None
        }
        self._begun: dict[str, RunHook] = {}
        """Hooks that are still to be committed or aborted."""
        self._messages: dict[str, list[Any]] = {v.name: [] for v in dag.vertices}
        self._locks = {name: threading.Lock() for name in self._hooks}
        self._is_draining = False
        self._drain: Callable[[], None] = lambda: None

    @property
    def snapshots(self) -> R_co | None:
        """What lets the job go on where it was, if anything does."""
        return self._snapshots

    def drain(self) -> None:
        """Let this attempt, and those that follow, end when what was read is done with."""
        self._is_draining = True
        self._drain()

    def on_drain(self, drain: Callable[[], None]) -> None:
        """For runners: what drains the attempt that runs; it may be called at once, and twice."""
        self._drain = drain
        if self._is_draining:
            drain()

    def begin_attempt(self) -> None:
        """Find the snapshot that the next attempt begins with; may block."""
        if self.snapshots is None:
            return
        attempt = self.snapshots.begin_attempt(self.id)
        self.id, self.epoch = attempt.job_id, attempt.epoch
        self._messages = {v.name: [] for v in self.dag.vertices}
        for vertex, message in self.snapshots.reports():
            self.report(vertex, message)

    def report(self, vertex: str, message: Any) -> None:
        """Keep a message for the vertex's hook; from any thread."""
        self._messages[vertex].append(message)

    def send_to_client(self, vertex: str, batch: Sequence[Any]) -> bool:
        """Hand a batch to the vertex's hook, if it has one; from any thread."""
        hook = self._hooks.get(vertex)
        if hook is not None:
            with self._locks[vertex]:
                hook.receive(batch)
        return True

    def begin(self) -> None:
        """Let every hook make ready; raises what the first says that refuses."""
        attempt = self.snapshots.attempt if self.snapshots is not None else None
        is_resumed = attempt is not None and attempt.restored is not None
        for name, hook in self._hooks.items():
            self._begun[name] = hook
            try:
                if is_resumed:
                    hook.resume(self.id)
                else:
                    hook.begin(self.id)
            except Exception as error:
                if isinstance(error, JetletError):
                    raise
                raise JobFailedError(
                    f"job {self.job_name!r} failed in vertex {name!r} before it ran: "
                    f"{error_line(error)}",
                    vertex=name,
                ) from error

    def commit(self) -> None:
        """Make the output visible."""
        for name, hook in list(self._begun.items()):
            try:
                hook.commit(self.id, tuple(self._messages[name]))
            except Exception as error:
                raise kind_of_failure(error)(
                    f"job {self.job_name!r} failed in vertex {name!r} while committing: "
                    f"{error_line(error)}",
                    vertex=name,
                ) from error
            del self._begun[name]

    def commit_again(self) -> None:
        """Go on where :meth:`commit` has failed, as a restarted job does."""
        for hook in self._begun.values():
            hook.resume(self.id)
        self.commit()

    def abort(self, error: BaseException) -> None:
        """Remove what the run has left, but for what its snapshots need; never raises."""
        for name, hook in self._begun.items():
            try:
                if self.snapshots is None:
                    hook.abort(self.id, error)
                else:
                    hook.stop(self.id, error)
            except BaseException:
                logger.exception("job %s: vertex %s failed to clean up", self.job_name, name)


Run = RunOf[JobRecovery]
"""Of a job, whatever lets it go on."""


class RunControl(Protocol):
    """A runner, as far as it does not matter what it goes on from."""

    def cancel(self) -> None:
        """Make ``run`` raise :class:`JobCancelledError` soon; from any thread, at any time."""

    def metrics(self) -> JobMetrics:
        """The counters now, also after the end; from any thread."""


class JobRunner(RunControl, Protocol[R_contra]):
    """What an engine supplies to run a job."""

    def run(self, run: RunOf[R_contra], on_running: Callable[[], None]) -> None:
        """Run to the end, blocking.

        Raise :class:`JobFailedError` or :class:`JobCancelledError`; :class:`Terminated` if it ended
        with a terminal snapshot. It may then be called again.
        """


class Job:
    """A submitted pipeline or DAG. All methods may be called from any thread."""

    def __init__(
        self,
        dag: DAG,
        config: JobConfig,
        runner: JobRunner[R],
        on_done: Callable[[Job], None] = lambda job: None,
        service: object = None,
        snapshots: R | None = None,
    ) -> None:
        self.name = config.name or dag.name
        self.config = config
        self.dag = dag
        self.submitted_at = time.time()
        self.ended_at: float | None = None
        """When it ended, as :func:`time.time` has it; ``None`` before."""
        self.where = HERE
        """Where it runs, for people."""
        self.link: str | None = None
        """The address of Spark's own page, where there is one."""
        run = RunOf(self.name, dag, config, snapshots)
        self._run: Run = run
        self._run_once = partial(runner.run, run, self._running)
        self._runner: RunControl = runner
        self._snapshots: JobRecovery | None = snapshots
        self._lifecycle = JobLifecycle(
            self.name,
            config,
            snapshots,
            resumes_itself=any(supplier.resumes_itself for supplier in tasklet_suppliers(dag)),
        )
        self._ended = threading.Event()
        self._waiting = int(begin_awaited.get())
        """Number of threads that wait in ``join``."""
        self._lock = threading.Lock()
        self._on_done = on_done
        self._service = service
        self._thread = EngineThread(self._drive, f"jetlet-job-{self.name}", service)

    @property
    def id(self) -> str:
        """Unique among all jobs."""
        return self._run.id

    @property
    def status(self) -> JobStatus:
        """Where the job is in its life."""
        return self._lifecycle.status

    @property
    def error(self) -> BaseException | None:
        """Why it failed or was suspended, once it has."""
        return self._lifecycle.error

    def start(self) -> None:
        """For engines: begin. Mistakes that show before anything runs are raised here."""
        self._lifecycle.move(JobStatus.STARTING)
        try:
            self._run.begin_attempt()
            self._run.begin()
            self._thread.start()
        except BaseException as error:
            self._run.abort(error)
            self._finish(error)
            raise

    def _drive(self) -> None:
        error: JetletError | None = None
        try:
            while not self._run_attempt():
                self._begin_attempt()
            self._commit()
            if self._snapshots is not None:
                self._snapshots.complete()
        except BaseException as e:  # it is raised again by join()
            error = self._as_failure(e)
            self._run.abort(error)
        if isinstance(error, JobCancelledError):
            logger.info("job %s was cancelled", self.name)
        elif error is not None:
            # Whoever waits for the job gets the error itself, and need not be told twice.
            level = logging.INFO if self._waiting else logging.ERROR
            logger.log(level, "%s", error, exc_info=error.__cause__ or error)
        self._finish(error)

    def _commit(self) -> None:
        commit = self._run.commit
        while True:
            self._lifecycle.move(JobStatus.COMPLETING)
            try:
                commit()
                return
            except RestartableError as failure:
                self._lifecycle.after_failure(failure)
                commit = self._run.commit_again

    def _run_attempt(self) -> bool:
        """Run; true if the job has completed, false if there is to be another attempt."""
        try:
            self._run_once()
        except Terminated:
            self._lifecycle.after_termination()
        except JobFailedError as failure:
            self._lifecycle.after_failure(failure)
        else:
            return True
        return False

    def _begin_attempt(self) -> None:
        while True:
            self._lifecycle.move(JobStatus.STARTING)
            try:
                self._run.begin_attempt()
                return
            except RestartableError as error:
                self._lifecycle.after_failure(error)
            except JetletError:
                raise
            except Exception as error:  # a storage may raise anything
                failure = RestartableError(f"job {self.name!r} cannot read its snapshots: {error}")
                failure.__cause__ = error
                self._lifecycle.after_failure(failure)

    def _as_failure(self, error: BaseException) -> JetletError:
        if isinstance(error, JetletError):
            return error
        failure = JobFailedError(f"job {self.name!r} failed: {error_line(error)}")
        failure.__cause__ = error
        return failure

    def _running(self) -> None:
        self._lifecycle.move(JobStatus.RUNNING)

    def _finish(self, error: BaseException | None) -> None:
        if isinstance(error, JobCancelledError):
            status = JobStatus.CANCELLED
        else:
            status = JobStatus.COMPLETED if error is None else JobStatus.FAILED
        self.ended_at = time.time()
        self._lifecycle.move(status, error)
        self._on_done(self)
        self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, also while the job is suspended.

        Raises :class:`JobFailedError` with the cause chained if the job failed,
        :class:`JobCancelledError` if it was cancelled, ``TimeoutError`` if it still runs after
        ``timeout`` seconds.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"job {self.name!r} cannot wait for its own end")
        with self.awaited():
            try:
                with plain_interrupts():
                    ended = self._ended.wait(timeout)
            except KeyboardInterrupt:
                if in_notebook():
                    # A cell that is interrupted leaves nothing running.
                    self.cancel()
                raise
        if not ended:
            raise TimeoutError(f"job {self.name!r} is still {self.status.value} after {timeout} s")
        self._join_thread()
        if self.error is not None:
            # Without the traceback of an earlier join(), which would only grow.
            raise self.error.with_traceback(None)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Whoever is in here asks for the job's error itself, so that it is not logged as one."""
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def cancel(self) -> None:
        """End the job now and wait until it has ended. Its output is discarded.

        If it takes snapshots, what was committed with them stays, and so does the last of them:
        the job goes on from there if it is submitted again.

        It returns within a fraction of a second. A function of yours that does not return by then,
        because it waits for something, is left behind with the thread that called it: nobody can
        end that from outside, and it is closed when the function returns. Members end in any case.

        A processor or a hook may call it too. Then it does not wait, since the job cannot end
        before the call has returned. A job whose output is being committed is let finish.
        """
        if not self.status.is_final:
            self._lifecycle.cancel()
            self._runner.cancel()
        if self._may_wait():
            self._ended.wait()
            self._join_thread()

    @property
    def can_drain(self) -> bool:
        """True if it is a job of tasks."""
        return any(supplier.can_drain for supplier in tasklet_suppliers(self.dag))

    def drain(self) -> None:
        """Let a job of tasks come to an orderly end, and return at once; ``join`` waits for it.

        Nothing more is read. What was read is processed, then each task's ``drain`` is called and
        its work committed: a job that is submitted later goes on behind that.
        """
        if not self.can_drain:
            raise InvalidArgumentError(
                f"job {self.name!r} is no TaskApplication, so it cannot be drained; to stop it and "
                f"go on later write job.suspend(), and job.cancel() to end it"
            )
        self._run.drain()

    def _may_wait(self) -> bool:
        """False on the threads that the job needs in order to get on."""
        thread = threading.current_thread()
        return not (
            thread is self._thread or (self._service and EngineThread.serves(self._service))
        )

    # --- Snapshots --------------------------------------------------------------------------

    def suspend(self) -> None:
        """Stop with a snapshot, and wait until that is done. :meth:`resume` goes on from there.

        If the snapshot fails the job is suspended all the same, at the one before it; nothing is
        lost, since sources are read again from there.
        """
        self._lifecycle.stop("suspend", waits=self._may_wait())

    def resume(self) -> None:
        """Let a suspended job go on from its last snapshot."""
        self._lifecycle.resume()

    def restart(self) -> None:
        """Stop with a snapshot and start again from there; waits until it has stopped."""
        self._lifecycle.stop("restart", waits=self._may_wait())

    def rescale(self, members: int) -> None:
        """Go on with another number of members: stops with a snapshot and starts from there.

        Returns when it has stopped. A suspended job has them when it is resumed. Raises
        :class:`~jetlet.errors.JobStateError` if there is no place for so many, and the job stays as
        it is.
        """
        self._lifecycle.require_snapshots("rescale").rescale(members)
        if self.status is not JobStatus.SUSPENDED:
            self._lifecycle.stop("restart", waits=self._may_wait())

    def export_snapshot(self, name: str) -> None:
        """Save the state of the job under a name; waits until it is there. The job goes on.

        Start another job from it with ``JobConfig(initial_snapshot=name)``. It is kept until
        somebody deletes it. The last snapshot of a suspended job is copied.
        """
        answer = self._lifecycle.export(name)
        if answer is not None and self._may_wait():
            answer.result()

    @property
    def can_export(self) -> bool:
        """True if ``export_snapshot()`` is possible: it has snapshots, which are not Spark's."""
        return self._snapshots is not None and self._snapshots.can_export

    def cancel_and_export_snapshot(self, name: str) -> None:
        """Stop with a snapshot, keep that under a name, and end the job; waits until it has ended.

        Output up to the snapshot is committed. If it cannot be exported, the job is suspended and
        the error raised.
        """
        self._lifecycle.stop("cancel", name, waits=self._may_wait())
        if self._may_wait():
            self._ended.wait()
            self._join_thread()

    def _join_thread(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def metrics(self) -> JobMetrics:
        """Counters by vertex, now or as they were at the end."""
        metrics = self._runner.metrics()
        if self._snapshots is not None:
            metrics.snapshots = {
                **self._snapshots.stats.values(),
                "restarts": self._lifecycle.restarts,
            }
            metrics.taken = tuple(self._snapshots.stats.history.copy())
        metrics.failures = tuple(self._lifecycle.failures.copy())
        return metrics

    def health(self) -> Health:
        """Whether it does its work: what a :class:`~jetlet.metrics.MetricsServer` answers."""
        recovery = self._snapshots
        return health_of(
            self.status,
            self.config.snapshot_interval,
            None if recovery is None else recovery.seconds_without(),
            recovery.stats.values() if recovery is not None else {},
        )

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write what the page shows of the job into one file, which any browser opens by itself.

        Rates and shares are means over all of the run; it is for the end, and can be had before.
        """
        from jetlet.ui.report import write_report

        write_report(self, path)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """What a notebook shows: how far it is, and what holds it back."""
        from jetlet.ui.notebook import job_bundle

        return job_bundle(self)

    def _ipython_display_(self) -> None:
        """Goes on showing it below the cell until it has ended."""
        from jetlet.ui.notebook import show_job

        show_job(self)

    def __repr__(self) -> str:
        return f"<Job {self.name!r} {self.id}: {self.status.value}>"
