"""Job: a handle on something that runs, the same on every engine."""

from __future__ import annotations

import enum
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jetlet.core.dag import DAG
from jetlet.core.vertex import RunHook
from jetlet.errors import JetletError, JobCancelledError, JobFailedError
from jetlet.execution.worker import EngineThread
from jetlet.jobs.config import JobConfig
from jetlet.metrics.job_metrics import JobMetrics

logger = logging.getLogger("jetlet.job")


class JobStatus(enum.Enum):
    """Where a job is in its life."""

    NOT_RUNNING = "not running"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETING = "completing"
    """All processors have ended; sinks commit what they wrote."""
    FAILED = "failed"
    """Ended by an error or by ``cancel()``."""
    COMPLETED = "completed"

    @property
    def is_final(self) -> bool:
        """True if nothing more will happen."""
        return self in (JobStatus.FAILED, JobStatus.COMPLETED)


class Run:
    """One attempt at a job, as its runner sees it: who it is and whom its output goes to."""

    def __init__(self, job_name: str, dag: DAG, config: JobConfig) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.job_name = job_name
        self.dag = dag
        self.config = config
        self._hooks: dict[str, RunHook] = {
            v.name: v.hook for v in dag.vertices if v.hook is not None
        }
        self._begun: dict[str, RunHook] = {}
        """Hooks that are still to be committed or aborted."""
        self._messages: dict[str, list[Any]] = {v.name: [] for v in dag.vertices}
        self._locks = {name: threading.Lock() for name in self._hooks}

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
        for name, hook in self._hooks.items():
            self._begun[name] = hook
            try:
                hook.begin(self.id)
            except Exception as error:
                if isinstance(error, JetletError):
                    raise
                raise JobFailedError(
                    f"job {self.job_name!r} failed in vertex {name!r} before it ran: "
                    f"{type(error).__name__}: {error}",
                    vertex=name,
                ) from error

    def commit(self) -> None:
        """Make the output visible."""
        for name, hook in self._hooks.items():
            try:
                hook.commit(self.id, tuple(self._messages[name]))
            except Exception as error:
                raise JobFailedError(
                    f"job {self.job_name!r} failed in vertex {name!r} while committing: "
                    f"{type(error).__name__}: {error}",
                    vertex=name,
                ) from error
            del self._begun[name]

    def abort(self, error: BaseException) -> None:
        """Remove what the run has left; never raises."""
        for name, hook in self._begun.items():
            try:
                hook.abort(self.id, error)
            except BaseException:
                logger.exception("job %s: vertex %s failed to clean up", self.job_name, name)


class JobRunner(Protocol):
    """What an engine supplies to run a job."""

    def run(self, run: Run, on_running: Callable[[], None]) -> None:
        """Run to the end, blocking; raise :class:`JobFailedError` or :class:`JobCancelledError`."""

    def cancel(self) -> None:
        """Make ``run`` raise :class:`JobCancelledError` soon; from any thread, at any time."""

    def metrics(self) -> JobMetrics:
        """The counters now, also after the end; from any thread."""


class Job:
    """A submitted pipeline or DAG. All methods may be called from any thread."""

    def __init__(
        self,
        dag: DAG,
        config: JobConfig,
        runner: JobRunner,
        on_done: Callable[[Job], None] = lambda job: None,
        service: object = None,
    ) -> None:
        self.name = config.name or dag.name
        self.config = config
        self.dag = dag
        self.submitted_at = time.time()
        self._run = Run(self.name, dag, config)
        self._runner = runner
        self._status = JobStatus.NOT_RUNNING
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._waiting = 0
        """Threads in ``join``."""
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
        return self._status

    @property
    def error(self) -> BaseException | None:
        """Why it failed, once it has."""
        return self._error

    def start(self) -> None:
        """For engines: begin. Mistakes that show before anything runs are raised here."""
        self._status = JobStatus.STARTING
        try:
            self._run.begin()
            self._thread.start()
        except BaseException as error:
            self._run.abort(error)
            self._finish(error)
            raise

    def _drive(self) -> None:
        error: JetletError | None = None
        try:
            self._runner.run(self._run, self._running)
            self._status = JobStatus.COMPLETING
            self._run.commit()
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

    def _as_failure(self, error: BaseException) -> JetletError:
        if isinstance(error, JetletError):
            return error
        failure = JobFailedError(f"job {self.name!r} failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure

    def _running(self) -> None:
        self._status = JobStatus.RUNNING

    def _finish(self, error: BaseException | None) -> None:
        self._error = error
        self._status = JobStatus.FAILED if error else JobStatus.COMPLETED
        self._on_done(self)
        self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end.

        Raises :class:`JobFailedError` with the cause chained if the job failed,
        :class:`JobCancelledError` if it was cancelled, ``TimeoutError`` if it still runs after
        ``timeout`` seconds.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"job {self.name!r} cannot wait for its own end")
        with self._lock:
            self._waiting += 1
        try:
            ended = self._ended.wait(timeout)
        finally:
            with self._lock:
                self._waiting -= 1
        if not ended:
            raise TimeoutError(f"job {self.name!r} is still {self._status.value} after {timeout} s")
        self._join_thread()
        if self._error is not None:
            # Without the traceback of an earlier join(), which would only grow.
            raise self._error.with_traceback(None)

    def cancel(self) -> None:
        """End the job now and wait until it has ended. Its output is discarded.

        A processor or a hook may call it too. Then it does not wait, since the job cannot end
        before the call has returned. A job whose output is being committed is let finish.
        """
        if not self._status.is_final:
            self._runner.cancel()
        thread = threading.current_thread()
        if thread is self._thread or (self._service and EngineThread.serves(self._service)):
            return
        self._ended.wait()
        self._join_thread()

    def _join_thread(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def metrics(self) -> JobMetrics:
        """Counters by vertex, now or as they were at the end."""
        return self._runner.metrics()

    def __repr__(self) -> str:
        return f"<Job {self.name!r} {self.id}: {self._status.value}>"
