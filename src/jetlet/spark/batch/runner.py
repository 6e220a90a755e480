"""SparkRunner: a job as a chain of DataFrames, from the fragments of its DAG.

Each fragment is one ``mapInArrow``. What leaves a fragment are rows of
:mod:`jetlet.spark.batch.exchange`; a shuffle brings them to the tasks of the next one, and the last
ones are collected. Whatever a task tells the driver travels as such rows too, so that only attempts
which Spark counts are heard: a task that was retried or run twice is not counted twice.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

from jetlet.core.arguments import error_line
from jetlet.core.dag import DAG
from jetlet.core.vertex import SplitSupplier
from jetlet.errors import (
    JetletError,
    JobCancelledError,
    JobFailedError,
)
from jetlet.execution.tuning import Tuning
from jetlet.jobs.job import Run, Terminated
from jetlet.metrics.job_metrics import JobMetrics
from jetlet.spark.batch.exchange import (
    COLUMNS,
    FIRST_CLIENT,
    METRICS,
    REPORTS,
    frame_column,
    row_schema,
)
from jetlet.spark.batch.fragment_spec import fragments_of, make_spec, marking_exchange
from jetlet.spark.batch.fragments import Fragment, channel_order
from jetlet.spark.batch.job_progress import FragmentProgress, JobProgress
from jetlet.spark.batch.reruns import Rerun, reruns
from jetlet.spark.batch.task import FragmentTask, Payloads
from jetlet.spark.catalyst.plans import MARK
from jetlet.spark.failure import explain, unpack
from jetlet.spark.frame_sink import FrameSink, arrow_columns, frame_sink
from jetlet.spark.frames import FrameSource, frame_source, made
from jetlet.spark.launch.versions import (
    arrow_batches,
    can_keep,
    kept_on_two_executors,
    repartition_by_id,
)
from jetlet.spark.members.slots import context_of
from jetlet.spark.shipping import (
    dump_splits,
    dumps,
    is_one_process,
    read_artifact,
    send_artifact,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from jetlet.core.vertex import Vertex
    from jetlet.spark.batch.job_progress import TaskCounters
    from jetlet.spark.catalyst.plans import OwnPlans

logger = logging.getLogger("jetlet.spark")

INTERRUPT_PERIOD = 0.2
"""Seconds between two attempts to stop the Spark jobs of a cancelled job: a new one may have begun
right after the first attempt."""
_MARK = ("cast(id as int) as target", "0L as at")
"""Columns of rows that tell each task its number."""
MAX_IN_PLAN = 1024 * 1024
"""Bytes of a broadcast edge that travel within the plan, where Spark has no broadcasts: more than
that goes once, as a file."""


MAX_SHUFFLES_IN_PLAN: Final = 40
"""Shuffles behind one another that Spark is given as one plan. It walks through plans by recursion,
and where the stack of a thread of its own does not do, at about 300, nobody hears of that."""


@dataclass(frozen=True, slots=True)
class Width:
    """How many tasks the fragments of a job have."""

    reading: int
    shuffled: int


class SparkRunner:
    """Runs one job on a Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        dag: DAG,
        width: Width,
        tuning: Tuning,
        accumulator: TaskCounters = None,
        fragments: list[Fragment] | None = None,
        own: OwnPlans | None = None,
    ) -> None:
        self._spark = spark
        self._dag = dag
        self._width = width
        self._own = own
        self._tuning = tuning
        self.fragments = fragments_of(dag) if fragments is None else fragments
        self._tasks = {f: self._task_count(f, width) for f in self.fragments}
        self._channel_order = {f: channel_order(dag, f) for f in self.fragments}
        self._sources = {f: self._open_source(f) for f in self.fragments}
        emitted = reruns(dag, self.fragments)
        self._kept = {
            f
            for f in self.fragments
            if any(emitted[x.edge.source] is Rerun.DIFFERS for x in f.shuffled_outputs)
        }
        """Those whose rows nobody can make again."""
        self._splits = {
            v.name: dump_splits(v, v.supplier.splits)
            for v in dag.vertices
            if isinstance(v.supplier, SplitSupplier) and frame_source(v) is None
        }
        self._sinks = {v: sink for v in dag.vertices if (sink := frame_sink(v))}
        first_frame = len(dag.edges)
        self._frame_channels = {v.name: first_frame + i for i, v in enumerate(self._sinks)}
        self._frame_schemas = {v.name: sink.parse_schema(spark) for v, sink in self._sinks.items()}
        clients = [v for v in dag.vertices if v.hook and v not in self._sinks]
        self._clients = {v.name: FIRST_CLIENT - i for i, v in enumerate(clients)}
        self._client_names = {channel: name for name, channel in self._clients.items()}
        self._accumulator = accumulator
        known = {f: None if self._sources[f] else n for f, n in self._tasks.items()}
        self._progress = JobProgress(self.fragments, known, accumulator)
        self._broadcasts: dict[int, Payloads] = {}
        self._published: list[Any] = []
        self._cached: list[DataFrame] = []
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._tag = ""
        self._interrupter: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def frame_sinks(self) -> list[FrameSink]:
        """The sinks that make DataFrames of their items."""
        written = [] if self._own is None else map(frame_sink, self._own.written)
        return [*self._sinks.values(), *(sink for sink in written if sink)]

    def _open_source(self, fragment: Fragment) -> DataFrame | None:
        for vertex in fragment.vertices:
            source = frame_source(vertex)
            if source is not None:
                return self._open(vertex.name, source)
        return None

    def _open(self, name: str, source: FrameSource[Any]) -> DataFrame:
        whole = None if self._own is None else self._own.opened.get(name)
        return made(source.name, lambda: source.frame(self._spark, whole))

    # --- JobRunner --------------------------------------------------------------------------

    def run(self, run: Run, on_running: Callable[[], None]) -> None:
        spark, context = self._spark, context_of(self._spark)
        with self._lock:
            self._tag = run.id
        on_running()
        failure: Exception | None = None
        try:
            self._progress.begin(run.id, context)
            if context is None:
                spark.addTag(self._tag)
            self._run(run)
        except Exception as error:
            failure = self._failure(run, error)
        finally:
            self._ended.set()
            if self._interrupter is not None:
                self._interrupter.join()
            self._progress.end()
            self._clean_up()
        if failure is not None:
            # Out here, so that it does not hold on to an error of Spark, and that to the JVM.
            raise failure

    def _clean_up(self) -> None:
        """Give back what the session holds for the job, as far as it still can."""
        try:
            if context_of(self._spark) is None:
                self._spark.removeTag(self._tag)
            for frame in self._cached:
                frame.unpersist()
            for broadcast in self._published:
                broadcast.destroy()
        except Exception:
            logger.debug("cannot clean up after run %s", self._tag, exc_info=True)

    def cancel(self) -> None:
        self._cancelled.set()
        with self._lock:
            if self._interrupter is None and not self._ended.is_set():
                self._interrupter = threading.Thread(
                    target=self._interrupt, name="jetlet-spark-cancel", daemon=True
                )
                self._interrupter.start()

    def _interrupt(self) -> None:
        """Stop the Spark jobs of this job until there are no more."""
        context = context_of(self._spark)
        pause = 0.0
        while not self._ended.wait(pause):
            pause = INTERRUPT_PERIOD
            try:
                if not self._tag:
                    continue  # it has not begun, and will see that it was cancelled
                if context is not None:
                    context.cancelJobGroup(self._tag)
                else:
                    self._spark.interruptTag(self._tag)
            except Exception:
                logger.debug("cannot interrupt run %s", self._tag, exc_info=True)

    def metrics(self) -> JobMetrics:
        return self._progress.metrics()

    def progress(self) -> list[FragmentProgress]:
        """Tasks done, running and in all, of each fragment; from any thread."""
        return self._progress.fragments()

    # --- Running ----------------------------------------------------------------------------

    def _run(self, run: Run) -> None:
        self._write_frames(run, self._run_fragments(run, self.fragments))
        for vertex, frame in ({} if self._own is None else self._own.written).items():
            sink = frame_sink(vertex)
            assert sink is not None
            self._start_job(run, vertex.name)
            self._write(run, vertex, sink, frame)

    def _run_fragments(self, run: Run, fragments: Sequence[Fragment]) -> dict[Fragment, DataFrame]:
        """Run fragments to their end; returns their rows, for sinks that write DataFrames."""
        rows: dict[Fragment, DataFrame] = {}
        ends: list[DataFrame] = []
        depths: dict[Fragment, int] = {}
        for fragment in fragments:
            frame = self._frame(run, fragment, rows)
            depth = 1 + max((depths.get(x.source, 0) for x in fragment.shuffled_inputs), default=-1)
            is_deep = depth >= MAX_SHUFFLES_IN_PLAN and bool(fragment.shuffled_outputs)
            if (is_deep and can_keep(self._spark)) or (
                fragment in self._kept and not self._loses_nothing()
            ):
                frame = self._keep(run, fragment, frame)
                depth = 0
            depths[fragment] = depth
            readers = len({x.dest for x in fragment.shuffled_outputs})
            sinks = sum(v in self._sinks for v in fragment.vertices)
            end = self._end(fragment)
            if readers + sinks + bool(fragment.broadcast_outputs) + (end is not None) > 1:
                # Several look at it: so that it is run once.
                frame = frame.persist()
                self._cached.append(frame)
            rows[fragment] = frame
            if fragment.broadcast_outputs:
                self._collect_broadcasts(run, frame, fragment)
            if end is not None:
                frame = frame.filter(end) if end else frame
                ends.append(frame.select(*COLUMNS) if sinks else frame)
        if ends:
            self._start_job(run, " | ".join(f.name for f in fragments))
            for channel, payload in _fetch(reduce(lambda a, b: a.unionAll(b), ends)):
                self._hear(run, channel, payload)
        return rows

    def _keep(self, run: Run, fragment: Fragment, frame: DataFrame) -> DataFrame:
        """Run a fragment once and for all; on a cluster two executors have a copy of its rows."""
        self._start_job(run, f"{fragment.name}, to be kept")
        return frame.localCheckpoint() if self._loses_nothing() else kept_on_two_executors(frame)

    def _loses_nothing(self) -> bool:
        """True if driver and executor are one process: then none is ever lost alone."""
        context = context_of(self._spark)
        return context is not None and is_one_process(context.master or "")

    def _end(self, fragment: Fragment) -> str | None:
        """Which rows of a fragment the driver has to collect at the end; ``None`` if none."""
        if fragment.broadcast_outputs:
            return None  # it has heard all messages by then
        has_clients = any(v.name in self._clients for v in fragment.vertices)
        if fragment.shuffled_outputs:
            return f"channel <= {FIRST_CLIENT}" if has_clients else None
        if not any(v in self._sinks for v in fragment.vertices):
            return ""
        # Counters alone are not worth another look at the rows: they come with the accumulator
        # too, where there is one.
        return "channel < 0" if self._has_reports(fragment) else None

    def _has_reports(self, fragment: Fragment) -> bool:
        """True if rows of the fragment tell hooks something, its own or those of others."""
        if any(v.name in self._clients for v in fragment.vertices):
            return True
        sources = {x.source for x in fragment.shuffled_inputs}
        return any(_carrier(s) is fragment and self._has_reports(s) for s in sources)

    def _frame(self, run: Run, fragment: Fragment, rows: dict[Fragment, DataFrame]) -> DataFrame:
        """The rows that come out of a fragment."""
        tasks = self._tasks[fragment]
        source = self._sources[fragment]
        if fragment.shuffled_inputs:
            frame = self._shuffle(fragment, rows)
        elif source is not None:
            frame = source
        else:
            frame = self._spark.range(0, tasks, 1, tasks)
        broadcasts = {
            x.channel: self._broadcasts[x.channel] for x in fragment.inputs if x.is_broadcast
        }
        task = self._task(run, fragment, self._spec(run, fragment), broadcasts)
        if self._is_frame(fragment):
            [schema] = self._schemas(fragment).values()
            return frame.mapInArrow(task, schema)
        return frame.mapInArrow(task, row_schema(self._schemas(fragment)))

    def _spec(self, run: Run, fragment: Fragment) -> bytes:
        """The fragment as it travels."""
        names = [v.name for v in fragment.vertices if v in self._sinks]
        spec = make_spec(
            self._dag,
            fragment,
            self._tasks,
            job_name=run.job_name,
            run_id=run.id,
            splits=self._splits,
            clients=self._clients,
            frame_sinks={
                name: (self._frame_channels[name], arrow_columns(self._frame_schemas[name]))
                for name in names
            },
            is_frame=self._is_frame(fragment),
        )
        return dumps(replace(spec, tuning=self._tuning))

    def _schemas(self, fragment: Fragment) -> dict[int, StructType]:
        """The columns of the DataFrames that sinks of the fragment make, by channel."""
        names = [v.name for v in fragment.vertices if v in self._sinks]
        return {self._frame_channels[name]: self._frame_schemas[name] for name in names}

    def _task(
        self, run: Run, fragment: Fragment, spec: bytes, broadcasts: dict[int, Payloads]
    ) -> FragmentTask:
        """The function that runs a task of the fragment."""
        return FragmentTask(
            (run.job_name, run.id), spec, fragment.name, broadcasts, self._accumulator
        )

    def _is_frame(self, fragment: Fragment) -> bool:
        """True if nothing leaves the fragment but items for Spark to write, and its counters."""
        sinks = sum(v in self._sinks for v in fragment.vertices)
        is_last = sinks == 1 and not fragment.outputs
        return is_last and self._accumulator is not None and not self._has_reports(fragment)

    def _shuffle(self, fragment: Fragment, rows: dict[Fragment, DataFrame]) -> DataFrame:
        """All that is for a fragment, each row with the task it is for."""
        frames = []
        for source in dict.fromkeys(x.source for x in fragment.shuffled_inputs):
            channels = [x.channel for x in fragment.shuffled_inputs if x.source is source]
            if _carrier(source) is fragment:
                channels += [REPORTS, METRICS]
            frame = rows[source]
            if self._has_others(source, fragment):
                frame = frame.filter(f"channel in ({', '.join(map(str, channels))})")
            has_sinks = any(v in self._sinks for v in source.vertices)
            frames.append(frame.select(*COLUMNS) if has_sinks else frame)
        tasks = self._tasks[fragment]
        if marking_exchange(fragment) is None:
            channel = fragment.shuffled_inputs[0].channel
            numbers = self._spark.range(0, tasks, 1, 1)
            frames.append(numbers.selectExpr(*_MARK, f"{channel} as channel", "x'' as payload"))
        frame = reduce(lambda a, b: a.unionAll(b), frames)
        frame = frame.repartition(1) if tasks == 1 else repartition_by_id(frame, tasks, "target")
        # Fetched blocks arrive in any order. A task that is run again must see the same order, and
        # items of one producer must stay in theirs.
        return frame.sortWithinPartitions(*self._order(fragment), "at")

    def _has_others(self, source: Fragment, reader: Fragment) -> bool:
        """True if a fragment has rows that are not for this reader."""
        return (
            any(x.dest is not reader for x in source.outputs)
            or _carrier(source) is not reader
            or any(v.name in self._clients or v in self._sinks for v in source.vertices)
        )

    def _order(self, fragment: Fragment) -> list[Any]:
        """What rows are sorted by first: channels whose items have to be read before others."""
        ranks = self._channel_order[fragment]
        later = {channel: rank for channel, rank in ranks.items() if rank}
        if not later:
            return []
        from pyspark.sql import functions

        cases = " ".join(f"when {channel} then {rank}" for channel, rank in later.items())
        return [functions.expr(f"case channel {cases} else 0 end")]

    @staticmethod
    def _task_count(fragment: Fragment, width: Width) -> int:
        if fragment.is_single:
            return 1
        return width.shuffled if fragment.shuffled_inputs else width.reading

    # --- What the driver hears and passes on ------------------------------------------------

    def _start_job(self, run: Run, what: str) -> None:
        """Before each action: let Spark's pages name it, and let it be cancelled."""
        if self._cancelled.is_set():
            raise JobCancelledError(f"job {run.job_name!r} was cancelled")
        context = context_of(self._spark)
        if context is not None:
            context.setJobGroup(self._tag, f"{run.job_name}: {what}")

    def _collect_broadcasts(self, run: Run, frame: DataFrame, fragment: Fragment) -> None:
        """Run a fragment whose output every task of others needs, and keep it for them."""
        exchanges = fragment.broadcast_outputs
        self._start_job(run, f"{fragment.name}, to be broadcast")
        payloads: dict[int, list[bytes]] = {x.channel: [] for x in exchanges}
        wanted = f"channel < 0 or channel in ({', '.join(map(str, payloads))})"
        if self._has_more(fragment):
            frame = frame.filter(wanted).select(*COLUMNS)
        for channel, payload in _fetch(frame):
            if channel in payloads:
                payloads[channel].append(payload)
            else:
                self._hear(run, channel, payload)
        for exchange in exchanges:
            parts = payloads[exchange.channel]
            self._broadcasts[exchange.channel] = self._publish(parts)

    def _has_more(self, fragment: Fragment) -> bool:
        """True if a fragment has rows beyond its broadcasts and its messages."""
        return bool(fragment.shuffled_outputs) or any(v in self._sinks for v in fragment.vertices)

    def _publish(self, parts: list[bytes]) -> Payloads:
        """Make payloads available to all tasks."""
        context = context_of(self._spark)
        if context is not None:
            broadcast = context.broadcast(parts)
            self._published.append(broadcast)
            return partial(_value_of, broadcast)
        if sum(map(len, parts)) <= MAX_IN_PLAN:
            return partial(_given, parts)
        return partial(read_artifact, send_artifact(self._spark, parts))

    def _hear(self, run: Run, channel: int, payload: bytes) -> None:
        """Act on a message of a task."""
        message = pickle.loads(payload)
        if channel == REPORTS:
            run.report(*message)
        elif channel == METRICS:
            self._progress.hear(*message)
        else:
            self._send_to_client(run, self._client_names[channel], message)

    @staticmethod
    def _send_to_client(run: Run, vertex: str, batch: Sequence[Any]) -> None:
        try:
            run.send_to_client(vertex, batch)
        except Exception as error:
            raise JobFailedError(
                f"job {run.job_name!r} failed in vertex {vertex!r}: {error_line(error)}",
                vertex=vertex,
            ) from error

    def _write_frames(self, run: Run, rows: dict[Fragment, DataFrame]) -> None:
        """Let the functions of the user write what has become DataFrames."""
        for fragment, frame in rows.items():
            for vertex in fragment.vertices:
                sink = self._sinks.get(vertex)
                if sink is None:
                    continue
                self._start_job(run, fragment.name)
                items = frame
                if not self._is_frame(fragment):
                    channel = self._frame_channels[vertex.name]
                    items = frame.filter(f"channel = {channel}")
                    items = items.select(f"{frame_column(channel)}.*")
                self._write(run, vertex, sink, items)

    def _write(self, run: Run, vertex: Vertex, sink: FrameSink, items: DataFrame) -> None:
        try:
            self._write_frame(sink, items)
        except Exception as error:
            text = str(error)
            if self._cancelled.is_set() or MARK in text or unpack(text, run.id) is not None:
                raise
            said = next((line for line in text.splitlines() if line.strip()), "")
            raise JobFailedError(
                f"job {run.job_name!r} failed in vertex {vertex.name!r} while Spark wrote "
                f"its items: {type(error).__name__}: {said}",
                vertex=vertex.name,
            ) from error

    def _write_frame(self, sink: FrameSink, items: DataFrame) -> None:
        sink.write(items)

    def _failure(self, run: Run, error: Exception) -> Exception:
        """What the job ends with; the whole of it is in the log."""
        if self._cancelled.is_set():
            return JobCancelledError(f"job {run.job_name!r} was cancelled")
        if isinstance(error, (JetletError, Terminated)):
            return error
        if MARK in str(error):
            return self._told_by_python(run) or explain(error, run.job_name)
        in_java = getattr(error, "_stackTrace", None) or ""
        logger.debug("job %s failed on Spark\n%s", run.job_name, in_java, exc_info=error)
        return unpack(str(error), run.id) or explain(error, run.job_name)

    def _told_by_python(self, run: Run) -> Exception | None:
        """What Python fails with where Spark has found that it would."""
        if self._own is None or self._own.probe is None:
            return None
        for vertex in self._own.probe.vertices:
            if frame_source(vertex) is None:
                vertex.supplier.prepare(self._width.reading)
        probe = _Probe(self._spark, self._own.probe, self._width, self._tuning, own=self._own)
        try:
            probe.ask(run)
        except Exception as error:
            return unpack(str(error), run.id)
        return None


class _Probe(SparkRunner):
    """Runs vertices for nothing but what they fail with."""

    def ask(self, run: Run) -> None:
        self._own = None  # only what sources are is the same
        self._tag = run.id
        self._run(run)

    def _write_frame(self, sink: FrameSink, items: DataFrame) -> None:
        items.write.format("noop").mode("overwrite").save()


def _carrier(fragment: Fragment) -> Fragment | None:
    """The fragment that passes on what the tasks of this one tell the driver.

    ``None`` if the driver collects them itself.
    """
    if fragment.broadcast_outputs:
        return None
    return next((x.dest for x in fragment.shuffled_outputs), None)


def _fetch(frame: DataFrame) -> Iterator[tuple[int, bytes]]:
    """Collect the channel and the payload of rows."""
    for batch in arrow_batches(frame):
        columns = (batch.column(name).to_pylist() for name in ("channel", "payload"))
        yield from zip(*columns, strict=True)


def _given(parts: Sequence[bytes]) -> Iterable[bytes]:
    return parts


def _value_of(broadcast: Any) -> Iterable[bytes]:
    parts: list[bytes] = broadcast.value
    return parts
