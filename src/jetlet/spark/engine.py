"""SparkEngine: runs pipelines on Spark through PySpark.

What a job needs is imported when there is one: Spark takes seconds to start, and begins with it as
soon as this module is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from jetlet.core.clock import SYSTEM_CLOCK
from jetlet.core.dag import DAG
from jetlet.core.partitioning import DEFAULT_PARTITION_COUNT
from jetlet.core.pickling import check_picklable
from jetlet.core.vertex import SplitSupplier, Vertex
from jetlet.errors import InvalidArgumentError, PlanningError, UnsupportedFeatureError
from jetlet.execution.idle import COOPERATIVE_BACKOFF, Backoff
from jetlet.execution.tuning import BATCH_CALL_TARGET_NS, CALL_TARGET_NS, Tuning
from jetlet.jobs.config import ALL, OF_MEMBERS, OF_RESTARTS, OF_SNAPSHOTS, JobConfig
from jetlet.jobs.engine import SPARK_PARALLELISM, EngineJobs, dag_of
from jetlet.jobs.job import Job, JobStatus
from jetlet.jobs.state_place import place_state
from jetlet.snapshots.context import NONE
from jetlet.spark.batch.job_progress import task_accumulator
from jetlet.spark.frame_sink import frame_sink
from jetlet.spark.frames import frame_source
from jetlet.spark.launch.session import (
    PLAN_SETTINGS,
    StartedSession,
    active_session,
    join_session,
    lean_session,
    start_session,
)
from jetlet.spark.launch.versions import check_version
from jetlet.spark.members.slots import Slots, await_executors, context_of, remote_parallelism
from jetlet.spark.modes import HOW, MEMBERS, MICRO_BATCH, mode_of
from jetlet.spark.resources import check_gpus
from jetlet.spark.shipping import BY_VALUE, ship_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jetlet.jobs.engine import Plannable
    from jetlet.jobs.members.layout import Layout
    from jetlet.spark.batch.runner import Width
    from jetlet.spark.members.follower import Follower
    from jetlet.ui.page import Page


class SparkEngine:
    """Runs pipelines and DAGs on Spark; this process is the driver.

    ``master`` names where: ``local[*]`` is this machine, ``spark://host:7077`` a cluster,
    ``sc://host`` a Spark Connect server. ``session`` joins a session that you have, and leaves it
    as it is; ``config`` are settings for a new one. Use it in a ``with`` block.

    A stage runs in as many tasks as Spark has cores, or as ``JobConfig(default_parallelism=...)``
    says, but never in more than it has input for. The local parallelism of a vertex is that within
    each task.

    Streams, and applications of tasks, run on members: tasks that live as long as the job does, one
    for each slot that Spark has, or ``members`` of them. With ``members="all"`` a job takes the
    slots of executors that come later as well: it is restarted from a snapshot of that moment.

    ``workers`` is how many threads each task or member has for processors, which pays where they
    do not share a lock of Python's; ``backoff`` the first and the longest pause, in seconds, of one
    that has nothing to do.
    """

    def __init__(
        self,
        master: str | None = None,
        session: SparkSession | None = None,
        config: Mapping[str, object] | None = None,
        app_name: str | None = None,
        members: int | Literal["all"] | None = None,
        workers: int = 1,
        backoff: Backoff = COOPERATIVE_BACKOFF,
    ) -> None:
        if not (members in (None, ALL) or (isinstance(members, int) and members >= 1)):
            raise InvalidArgumentError(
                f"members must be a number from 1 on, or {ALL!r}, not {members!r}"
            )
        if session is not None and (master is not None or config or app_name is not None):
            raise InvalidArgumentError(
                "SparkEngine(session=...) uses the session as it is: leave out master, config and "
                "app_name"
            )
        self._tuning = Tuning(workers, backoff)
        self._started = self._start(master, session, config, app_name)
        self._members = None if isinstance(members, str) else members
        self._follows = members == ALL
        self._followers: dict[Job, Follower] = {}
        self._layouts: dict[Job, Layout] = {}
        """The layouts of the jobs that run on members."""
        self._jobs = EngineJobs(self._check_open)
        self._found: dict[str, str | None] = {}
        self._parallelism: int | None = None
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
        if session is None and master is None and not config:
            session = active_session()
        if session is not None:
            return join_session(session)
        return start_session(master, app_name, config)

    def _prepare_session(self) -> None:
        spark = self.session
        check_version(spark)
        for key, value in PLAN_SETTINGS.items():
            self._found[key] = spark.conf.get(key, None)
            spark.conf.set(key, _with(self._found[key], key, value))
        ship_package(spark)
        self._accumulator = task_accumulator(context_of(spark))

    @property
    def session(self) -> SparkSession:
        """The Spark session."""
        return self._started.session

    @property
    def default_parallelism(self) -> int:
        """Tasks that Spark runs at a time, as far as it says."""
        context = context_of(self.session)
        if context is not None:
            await_executors(context)
            return int(context.defaultParallelism)
        if self._parallelism is None:
            self._parallelism = remote_parallelism(self.session)
        return self._parallelism

    def submit(self, what: DAG | Plannable, config: JobConfig | None = None) -> Job:
        """Start a job and return at once. Mistakes are raised here, before anything runs."""
        config = config or JobConfig()
        self._check_open()
        dag = dag_of(what, SPARK_PARALLELISM)
        place_state(dag, config)
        kind = mode_of(dag, config).kind
        check_gpus(dag, self.session)
        if kind == MEMBERS:
            job = self._job_on_members(dag, config)
        elif kind == MICRO_BATCH:
            job = self._micro_batch_job(dag, config)
        else:
            job = self._batch_job(dag, config)
        context = context_of(self.session)
        job.where = f"on Spark, {HOW[kind]}"
        job.link = None if context is None else context.uiWebUrl
        on_members = kind == MEMBERS and config.default_parallelism
        return self._jobs.start(job, on_members or SPARK_PARALLELISM)

    def _batch_job(self, dag: DAG, config: JobConfig) -> Job:
        if config.processing_guarantee != NONE:
            raise UnsupportedFeatureError(
                f"processing_guarantee={config.processing_guarantee!r} is for streams; a bounded "
                f"pipeline on Spark gives exact results anyway: write processing_guarantee='none', "
                f"or streaming={MEMBERS!r} to have it run as a stream does"
            )
        if config.initial_snapshot is not None:
            raise UnsupportedFeatureError(
                f"initial_snapshot={config.initial_snapshot!r}: a batch job on Spark takes no "
                f"snapshots and begins with none: leave it out, or write streaming={MEMBERS!r}"
            )
        config.tell_ignored(
            ("snapshot_dir", "latency_markers", *OF_SNAPSHOTS, *OF_RESTARTS, *OF_MEMBERS),
            "a batch on Spark, which runs failed tasks again by itself",
        )
        from jetlet.spark.batch.runner import SparkRunner
        from jetlet.spark.catalyst.plans import own_plans

        check_picklable(dag, BY_VALUE)
        own = own_plans(dag, self.session)
        width = self._width(own.dag, config)
        has_frames = own.probe or any(frame_source(v) or frame_sink(v) for v in dag)
        spark = self.session if has_frames else lean_session(self.session)
        tuning = self._task_tuning(config)
        runner = SparkRunner(spark, own.dag, width, tuning, self._accumulator, own=own)
        job = Job(dag, config, runner, self._forget)
        for sink in runner.frame_sinks:
            sink.expect(job.id)
        return job

    def _micro_batch_job(self, dag: DAG, config: JobConfig) -> Job:
        from jetlet.spark.micro_batch.job import micro_batch_job
        from jetlet.spark.micro_batch.plan import BatchPlan

        config.tell_ignored(
            (
                *(name for name in OF_SNAPSHOTS if name != "start_fresh"),
                "latency_markers",
                *OF_MEMBERS,
            ),
            "a job in micro-batches, each of which is a snapshot",
        )
        plan = BatchPlan(dag)
        check_picklable(plan.dag, BY_VALUE)
        width = self._width(plan.dag, config)
        tuning = self._task_tuning(config)
        return micro_batch_job(self.session, dag, plan, width, tuning, config, self._forget)

    def _task_tuning(self, config: JobConfig) -> Tuning:
        return replace(self._tuning, call_target_ns=config.call_target_ns(BATCH_CALL_TARGET_NS))

    def _job_on_members(self, dag: DAG, config: JobConfig) -> Job:
        """A job on long-lived tasks. Each is a member with a worker of its own."""
        from jetlet.jobs.members.layout import Layout
        from jetlet.jobs.members.runner import MembersRunner
        from jetlet.network.tls import credentials_for
        from jetlet.spark.members.follower import Follower
        from jetlet.spark.members.hosted import JOIN_LIMIT, HostedMembers, place_of_driver

        config.check_directory(dag)
        if self._follows and (config.snapshot_dir is None or config.processing_guarantee == NONE):
            raise PlanningError(
                "with SparkEngine(members='all') a job follows executors that come and go, by "
                'restarts from its snapshots: write JobConfig(snapshot_dir="state", '
                'processing_guarantee="exactly-once"), or leave out members'
            )
        name = config.name or dag.name
        parallelism = config.default_parallelism or 1
        slots = Slots(self.session, name, self._members, lambda: self._held_by_others(layout))
        layout: Layout | None = None
        layout = Layout(dag, parallelism, slots)
        snapshots = None
        if config.snapshot_dir is not None:
            from jetlet.snapshots.job_snapshots import JobSnapshots

            snapshots = JobSnapshots(dag, name, config, layout, SYSTEM_CLOCK)
        host, known_as = place_of_driver(self.session)
        runner = MembersRunner(
            layout,
            lambda: HostedMembers(lean_session(self.session), name),
            tuning=replace(
                self._tuning,
                call_target_ns=config.call_target_ns(CALL_TARGET_NS),
                packet_size=config.packet_size,
                marker_period_ns=config.marker_period_ns,
            ),
            host=host,
            known_as=known_as,
            use_tcp=True,
            tls=credentials_for(config.tls, known_as),
            service=self,
            code=BY_VALUE,
            join_limit=JOIN_LIMIT,
        )
        slots.is_cancelled = lambda: runner.is_cancelled
        job = Job(dag, config, runner, self._forget, self, snapshots)
        self._layouts[job] = layout
        if self._follows:
            self._followers[job] = Follower(job, layout, slots)
            self._followers[job].start()
        return job

    def _held_by_others(self, layout: Layout | None) -> int:
        """Slots that the members of other jobs hold."""
        return sum(
            each.members
            for job, each in self._layouts.copy().items()
            if each is not layout and job.status is not JobStatus.SUSPENDED
        )

    def _check_open(self) -> None:
        if self._jobs.is_closed:
            raise PlanningError("the engine is closed; make a new SparkEngine()")
        context = context_of(self.session)
        if context is not None and context._jsc is None:
            raise PlanningError("the Spark session was stopped; make a new SparkEngine()")

    def _width(self, dag: DAG, config: JobConfig) -> Width:
        """Plan the splits of the sources; have no more reading tasks than there are splits."""
        from jetlet.spark.batch.runner import Width

        width = config.default_parallelism or self.default_parallelism
        needed = 1
        for vertex in dag:
            if frame_source(vertex) is None:
                vertex.supplier.prepare(width * vertex.parallelism(1))
                needed = max(needed, _readers(vertex))
        return Width(reading=min(width, needed), shuffled=min(width, DEFAULT_PARTITION_COUNT))

    def _forget(self, job: Job) -> None:
        self._layouts.pop(job, None)
        if (follower := self._followers.pop(job, None)) is not None:
            follower.close()
        self._jobs.forget(job)

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
        """Cancel the jobs that still run; stop the session if it was started here. Idempotent."""
        if not self._jobs.close():
            return
        if not self._started.owned:
            self._restore_session()
        self._started.stop()

    def _restore_session(self) -> None:
        """Leave the settings of somebody else's session as they were."""
        for key, value in self._found.items():
            try:
                if value is None:
                    self.session.conf.unset(key)
                else:
                    self.session.conf.set(key, value)
            except Exception:  # it may have been stopped meanwhile
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _with(found: str | None, key: str, value: str) -> str:
    """Our setting; where it is a list, added to what the user has."""
    if not found or not key.endswith("excludedRules"):
        return value
    rules = [rule.strip() for rule in found.split(",") if rule.strip()]
    return ",".join(rules if value in rules else [*rules, value])


def _readers(vertex: Vertex) -> int:
    """Tasks that have something to read at the vertex."""
    if isinstance(vertex.supplier, SplitSupplier):
        return -(-len(vertex.supplier.splits) // vertex.parallelism(1))
    return 1
