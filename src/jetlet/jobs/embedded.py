"""EmbeddedEngine: runs jobs inside this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from jetlet.core.clock import SYSTEM_CLOCK, Clock
from jetlet.core.dag import DAG
from jetlet.errors import InvalidArgumentError, JetletError, JobFailedError, PlanningError
from jetlet.execution.execution_service import ExecutionService
from jetlet.execution.idle import COOPERATIVE_BACKOFF, Backoff
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.plan_run import PlanRun
from jetlet.execution.tuning import CALL_TARGET_NS, Tuning
from jetlet.execution.worker import EngineThread
from jetlet.jobs.config import MEMBERS, JobConfig
from jetlet.jobs.engine import EngineJobs, Plannable, dag_of
from jetlet.jobs.job import Job, JobRunner, RunOf, Terminated
from jetlet.jobs.members.layout import Layout, LocalPlaces
from jetlet.jobs.state_place import place_state
from jetlet.metrics.job_metrics import JobMetrics

if TYPE_CHECKING:
    from jetlet.snapshots.job_snapshots import JobSnapshots
    from jetlet.ui.page import Page


THIS_MACHINE = "127.0.0.1"
"""Where members of the embedded engine are."""


class EmbeddedEngine:
    """Runs pipelines and DAGs on cooperative threads of this process, without a JVM.

    With ``members=N`` a job runs in N processes that it starts and ends: that is how it uses more
    than one core where Python's threads cannot.

    Jobs submitted to one engine share its workers; ``backoff`` is the first and the longest pause,
    in seconds, of one that has nothing to do. Use it in a ``with`` block: leaving it cancels
    what still runs and ends every thread.
    """

    def __init__(
        self,
        members: int = 1,
        *,
        workers: int | None = None,
        backoff: Backoff = COOPERATIVE_BACKOFF,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if members < 1:
            raise InvalidArgumentError(f"members must be at least 1, not {members}")
        if members > 1 and clock is not SYSTEM_CLOCK:
            raise InvalidArgumentError(
                f"EmbeddedEngine(members={members}) runs in other processes, which keep their own "
                f"time: write members=1 with a clock"
            )
        self._members = members
        self._tuning = Tuning(workers, backoff)
        self._clock = clock
        self._service = ExecutionService(
            workers,
            clock=clock,
            backoff=backoff,
            # A clock that runs by itself may want to know when there is nothing to do.
            make_idle_strategy=getattr(clock, "make_idle_strategy", None),
        )
        self._jobs = EngineJobs(self._check_open)

    @property
    def default_parallelism(self) -> int:
        """Processors per vertex where neither the stage nor the job's configuration says."""
        return len(self._service.workers)

    def submit(self, what: DAG | Plannable, config: JobConfig | None = None) -> Job:
        """Start a job and return at once. Mistakes are raised here, before anything runs."""
        config = config or JobConfig()
        self._check_open()
        if config.streaming not in (None, MEMBERS):
            raise InvalidArgumentError(
                f"streaming={config.streaming!r} is for SparkEngine: leave it out, since here "
                f"streams always run item by item"
            )
        parallelism = config.default_parallelism or self.default_parallelism
        dag = dag_of(what, parallelism)
        place_state(dag, config)
        config.check_directory(dag)
        layout = Layout(dag, parallelism, LocalPlaces(self._members))
        snapshots = self._snapshots(layout, config) if config.snapshot_dir is not None else None
        runner: JobRunner[JobSnapshots]
        if self._members == 1:
            runner = _EmbeddedRunner(self._service, layout.plan, self._clock)
        else:
            # Imported when needed: the network's part of the standard library is not light.
            from jetlet.jobs.members.launcher import ProcessLauncher
            from jetlet.jobs.members.runner import MembersRunner
            from jetlet.network.tls import credentials_for

            tuning = replace(
                self._tuning,
                call_target_ns=config.call_target_ns(CALL_TARGET_NS),
                packet_size=config.packet_size,
                marker_period_ns=config.marker_period_ns,
            )
            runner = MembersRunner(
                layout,
                ProcessLauncher,
                tuning=tuning,
                tls=credentials_for(config.tls, THIS_MACHINE),
                service=self._service,
            )
        job = Job(dag, config, runner, self._jobs.forget, self._service, snapshots)
        if self._members > 1:
            job.where = f"on {self._members} members, processes of this machine"
        return self._jobs.start(job, parallelism)

    def _snapshots(self, layout: Layout, config: JobConfig) -> JobSnapshots:
        # Imported when needed: most jobs take none.
        from jetlet.snapshots.job_snapshots import JobSnapshots

        name = config.name or layout.dag.name
        return JobSnapshots(layout.dag, name, config, layout, self._clock)

    def _check_open(self) -> None:
        if self._jobs.is_closed:
            raise PlanningError("the engine is closed; make a new EmbeddedEngine()")

    @property
    def jobs(self) -> list[Job]:
        """Jobs that have not ended."""
        return self._jobs.running()

    def ui(self, port: int = 0, host: str = "127.0.0.1", *, read_only: bool = False) -> Page:
        """A page that shows the jobs at work, served from the first call on; see ``url``.

        Port 0 is a free one. Whoever knows the address can stop jobs, unless it is ``read_only``.
        """
        return self._jobs.ui(port, host, read_only=read_only)

    def close(self) -> None:
        """Cancel the jobs that still run and end all threads; idempotent.

        Not for processors and hooks: the engine would wait for the thread that closes it.
        """
        if EngineThread.serves(self._service):
            raise JetletError("an engine cannot be closed by its own jobs; cancel the job instead")
        self._jobs.close()
        self._service.shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _EmbeddedRunner:
    """Runs one job on the service."""

    def __init__(self, service: ExecutionService, plan: ExecutionPlan, clock: Clock) -> None:
        self._service = service
        self._plan = plan
        self._clock = clock
        self._plan_run: PlanRun | None = None
        self._earlier = JobMetrics(())
        """Of the attempts before."""
        self._cancelled = False
        self._lock = threading.Lock()

    def run(self, run: RunOf[JobSnapshots], on_running: Callable[[], None]) -> None:
        def end(error: JobFailedError | None) -> None:
            if error is None:
                # Not given up: the next attempt must not begin before this one is closed.
                plan_run.execution.cancel()
            else:
                plan_run.fail(error)

        local = None
        if run.snapshots is not None:
            from jetlet.snapshots.local import LocalSnapshots

            local = LocalSnapshots(run.snapshots, run.id, end)
        context = RunContext(
            job_name=run.job_name,
            run_id=run.id,
            attempt=str(run.epoch) if run.epoch else "",
            processing_guarantee=run.config.processing_guarantee,
            clock=self._clock,
            report=run.report,
            send_to_client=run.send_to_client,
            snapshots=None if local is None else local.member,
            restore=None if local is None else local.restore,
            call_target_ns=run.config.call_target_ns(CALL_TARGET_NS),
            marker_period_ns=run.config.marker_period_ns,
        )
        plan_run = PlanRun(
            self._service,
            self._plan,
            context,
            lambda tasklets: tasklets if local is None else [*tasklets, local.tasklet],
        )
        with self._lock:
            self._earlier = self._metrics()
            self._plan_run = plan_run
            cancelled = self._cancelled
        run.on_drain(plan_run.drain)
        if cancelled:
            plan_run.cancel()
        error = plan_run.run(on_running)
        if local is not None and local.close(error) and not self._cancelled:
            raise Terminated
        if error is not None:
            raise error

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            plan_run = self._plan_run
        if plan_run is not None:
            plan_run.cancel()

    def metrics(self) -> JobMetrics:
        with self._lock:
            return self._metrics()

    def _metrics(self) -> JobMetrics:
        tasklets = self._plan_run.tasklets if self._plan_run is not None else ()
        return JobMetrics(
            (row for t in tasklets for row in t.metrics_rows()),
            self._service.metrics(),
            earlier=self._earlier,
        )
