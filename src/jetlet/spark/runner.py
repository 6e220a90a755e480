"""SparkRunner: a job as a chain of DataFrames, from the fragments of its DAG.

Each fragment is one ``mapInArrow``. What leaves a fragment are rows of
:mod:`jetlet.spark.exchange`; a shuffle brings them to the tasks of the next one, and the last ones
are collected. Whatever a task tells the driver travels as such rows too, so that only attempts which
Spark counts are heard: a task that was retried or run twice is not counted twice.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from jetlet.core.dag import DAG
from jetlet.core.edge import Edge, Routing, from_
from jetlet.core.partitioning import DEFAULT_PARTITION_COUNT
from jetlet.core.processor import Processor
from jetlet.core.vertex import Vertex
from jetlet.errors import JobCancelledError, JobFailedError
from jetlet.jobs.job import Run
from jetlet.metrics.job_metrics import JobMetrics
from jetlet.spark.exchange import FIRST_CLIENT, METRICS, REPORTS, SCHEMA, OutputPort
from jetlet.spark.failure import unpack
from jetlet.spark.fragments import Exchange, Fragment, cut
from jetlet.spark.frames import FrameSource, frame_source
from jetlet.spark.shipping import dumps
from jetlet.spark.task import READER, FragmentSpec, FragmentTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("jetlet.spark")


@dataclass(frozen=True, slots=True)
class Width:
    """How many tasks the fragments of a job have."""

    reading: int
    shuffled: int


class SparkRunner:
    """Runs one job on a Spark session."""

    def __init__(self, spark: SparkSession, dag: DAG, width: Width) -> None:
        self._spark = spark
        self._width = width
        self._dag = dag
        self.fragments = cut(dag, (v for v in dag.vertices if frame_source(v)))
        self.tag = ""
        self._clients = {
            v.name: FIRST_CLIENT - i for i, v in enumerate(v for v in dag.vertices if v.hook)
        }
        self._client_names = {channel: name for name, channel in self._clients.items()}
        self._broadcasts: dict[int, Callable[[], Iterable[bytes]]] = {}
        self._metrics: list[tuple[str, dict[str, Any]]] = []
        self._cached: list[DataFrame] = []
        self._cancelled = threading.Event()

    # --- JobRunner --------------------------------------------------------------------------

    def run(self, run: Run, on_running: Callable[[], None]) -> None:
        self.tag = f"jetlet-{run.id}"
        spark = self._spark
        on_running()
        spark.addTag(self.tag)
        try:
            if self._cancelled.is_set():
                raise JobCancelledError(f"job {run.job_name!r} was cancelled")
            self._describe(run.job_name)
            self._run(run)
        except Exception as error:
            self._raise(run, error)
        finally:
            for frame in self._cached:
                frame.unpersist()
            self._cached.clear()
            spark.removeTag(self.tag)

    def cancel(self) -> None:
        self._cancelled.set()
        if self.tag:
            self._spark.interruptTag(self.tag)

    def metrics(self) -> JobMetrics:
        return JobMetrics(list(self._metrics))

    # --- Running ----------------------------------------------------------------------------

    def _run(self, run: Run) -> None:
        rows: dict[Fragment, DataFrame] = {}
        ends: list[DataFrame] = []
        for fragment in self.fragments:
            shuffled = [x for x in fragment.outputs if not x.is_broadcast]
            broadcast = [x for x in fragment.outputs if x.is_broadcast]
            frame = self._frame(run, fragment, rows)
            readers = len({x.dest for x in shuffled})
            has_clients = self._has_clients(fragment)
            if readers + bool(broadcast) + (has_clients and bool(readers)) > 1:
                frame = frame.persist()
                self._cached.append(frame)
            rows[fragment] = frame
            if broadcast:
                self._collect_broadcasts(run, frame, broadcast)
            if not shuffled and not broadcast:
                ends.append(frame)
            elif has_clients and readers:
                ends.append(frame.filter(f"channel <= {FIRST_CLIENT}"))
        if ends:
            everything = reduce(lambda a, b: a.unionAll(b), ends)
            self._receive(run, everything)

    def _frame(self, run: Run, fragment: Fragment, rows: dict[Fragment, DataFrame]) -> DataFrame:
        """The rows that come out of a fragment."""
        tasks = self._tasks(fragment)
        frame_source = self._frame_source(fragment)
        if fragment.shuffled_inputs:
            frame = self._shuffle(fragment, rows, tasks)
        elif frame_source is not None:
            frame = frame_source.frame(self._spark)
        else:
            frame = self._spark.range(0, tasks, 1, tasks)
        spec = dumps(self._spec(run, fragment, tasks))
        broadcasts = {
            x.channel: self._broadcasts[x.channel] for x in fragment.inputs if x.is_broadcast
        }
        return frame.mapInArrow(FragmentTask(spec, fragment.name, broadcasts), SCHEMA)

    def _shuffle(
        self, fragment: Fragment, rows: dict[Fragment, DataFrame], tasks: int
    ) -> DataFrame:
        """All that is for a fragment, each row with the task it is for."""
        frames = []
        for source in dict.fromkeys(x.source for x in fragment.shuffled_inputs):
            channels = [x.channel for x in fragment.shuffled_inputs if x.source is source]
            frame = rows[source]
            others = [x for x in source.outputs if x.channel not in channels]
            carries_messages = self._message_carrier(source) is fragment
            if others or not carries_messages or self._has_clients(source):
                if carries_messages:
                    channels += [REPORTS, METRICS]
                frame = frame.filter(f"channel in ({', '.join(map(str, channels))})")
            frames.append(frame)
        frame = reduce(lambda a, b: a.unionAll(b), frames)
        if tasks == 1:
            frame = frame.repartition(1)
        else:
            frame = frame.repartitionById(tasks, "target")
        # Fetched blocks arrive in any order. A task that is run again must see the same order, and
        # items of one producer must stay in theirs.
        return frame.sortWithinPartitions("task", "seq")

    @staticmethod
    def _message_carrier(fragment: Fragment) -> Fragment | None:
        """The fragment that passes on what the tasks of this one tell the driver.

        ``None`` if the driver collects them itself.
        """
        if any(x.is_broadcast for x in fragment.outputs):
            return None
        return next((x.dest for x in fragment.outputs), None)

    def _has_clients(self, fragment: Fragment) -> bool:
        return any(v.name in self._clients for v in fragment.vertices)

    def _tasks(self, fragment: Fragment) -> int:
        if fragment.is_single:
            return 1
        if fragment.shuffled_inputs:
            return self._width.shuffled
        return self._width.reading

    @staticmethod
    def _frame_source(fragment: Fragment) -> FrameSource | None:
        for vertex in fragment.vertices:
            source = frame_source(vertex)
            if source is not None:
                return source
        return None

    # --- What the driver hears --------------------------------------------------------------

    def _collect_broadcasts(
        self, run: Run, frame: DataFrame, exchanges: Sequence[Exchange]
    ) -> None:
        """Run a fragment whose output every task of others needs, and keep it for them."""
        payloads: dict[int, list[bytes]] = {x.channel: [] for x in exchanges}
        for channel, payload in self._fetch(frame, self._broadcast_filter(exchanges)):
            if channel in payloads:
                payloads[channel].append(payload)
            else:
                self._hear(run, channel, payload)
        for channel, parts in payloads.items():
            self._broadcasts[channel] = self._publish(parts)

    def _broadcast_filter(self, exchanges: Sequence[Exchange]) -> str | None:
        source = exchanges[0].source
        if len(exchanges) == len(source.outputs):
            return None
        channels = [x.channel for x in exchanges]
        return f"channel < 0 or channel in ({', '.join(map(str, channels))})"

    def _publish(self, parts: list[bytes]) -> Callable[[], Iterable[bytes]]:
        """Make payloads available to all tasks."""
        context = context_of(self._spark)
        if context is None:
            return partial(_given, parts)
        return partial(_value_of, context.broadcast(parts))

    def _receive(self, run: Run, frame: DataFrame) -> None:
        for channel, payload in self._fetch(frame, None):
            self._hear(run, channel, payload)

    @staticmethod
    def _fetch(frame: DataFrame, condition: str | None) -> Iterable[tuple[int, bytes]]:
        if condition is not None:
            frame = frame.filter(condition)
        table = frame.select("channel", "payload").toArrow()
        return zip(
            table.column("channel").to_pylist(), table.column("payload").to_pylist(), strict=True
        )

    def _hear(self, run: Run, channel: int, payload: bytes) -> None:
        """Act on a message of a task."""
        message = pickle.loads(payload)
        if channel == REPORTS:
            run.report(*message)
        elif channel == METRICS:
            self._metrics += message
        else:
            run.send_to_client(self._client_names[channel], message)

    def _describe(self, job_name: str) -> None:
        context = context_of(self._spark)
        if context is not None:
            names = " | ".join(fragment.name for fragment in self.fragments)
            context.setJobDescription(f"{job_name}: {names}")

    def _raise(self, run: Run, error: Exception) -> None:
        if self._cancelled.is_set():
            raise JobCancelledError(f"job {run.job_name!r} was cancelled") from error
        found = unpack(str(error))
        if found is not None:
            failure, cause, remote = found
            logger.debug("job %s failed in a task:\n%s\n%s", run.job_name, remote, error)
            raise failure from cause
        if isinstance(error, JobFailedError | JobCancelledError):
            raise error
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        logger.debug("job %s failed on Spark", run.job_name, exc_info=error)
        raise JobFailedError(
            f"job {run.job_name!r} failed on Spark: {type(error).__name__}: {first}"
        ) from error

    # --- What a fragment takes along --------------------------------------------------------

    def _spec(self, run: Run, fragment: Fragment, tasks: int) -> FragmentSpec:
        dag = DAG(self._dag.name)
        copies = {v: dag.vertex(_without_hook(v)) for v in fragment.vertices}
        outputs: dict[str, OutputPort] = {}
        for exchange in fragment.outputs:
            edge = exchange.edge
            name = f"{edge.source.name} -> {edge.dest.name} #{exchange.channel}"
            stand_in = dag.vertex(Vertex(name, Processor, 1))
            dag.edge(from_(copies[edge.source], edge.source_ordinal).to(stand_in).isolated())
            targets = 1 if exchange.is_broadcast else self._tasks(exchange.dest)
            outputs[name] = OutputPort(exchange.channel, edge.routing, edge.key_fn, targets)
        kept = {x.edge for x in (*fragment.outputs, *fragment.inputs)}
        for edge in self._dag.edges:
            if edge.source in copies and edge.dest in copies and edge not in kept:
                dag.edge(_like(edge, copies[edge.source], edge.source_ordinal, copies[edge.dest]))
        inputs: dict[int, int] = {}
        broadcasts: dict[str, int] = {}
        reader: Vertex | None = None
        for exchange in fragment.inputs:
            edge = exchange.edge
            if exchange.is_broadcast:
                name = f"broadcast #{exchange.channel}"
                stand_in = dag.vertex(Vertex(name, Processor, 1))
                broadcasts[name] = exchange.channel
                dag.edge(_like(edge, stand_in, 0, copies[edge.dest]))
                continue
            if reader is None:
                reader = dag.vertex(Vertex(READER, Processor, 1))
            dag.edge(_like(edge, reader, len(inputs), copies[edge.dest]))
            inputs[exchange.channel] = len(inputs)
        return FragmentSpec(
            job_name=run.job_name,
            run_id=run.id,
            dag=dag,
            partition_count=DEFAULT_PARTITION_COUNT,
            tasks=tasks,
            inputs=inputs,
            broadcasts=broadcasts,
            outputs=outputs,
            clients={v.name: self._clients[v.name] for v in copies if v.name in self._clients},
            frame_vertex=next((v.name for v in fragment.vertices if frame_source(v)), None),
        )


def context_of(spark: SparkSession) -> Any:
    """The Spark context, or ``None`` on Spark Connect, which has none."""
    from pyspark.sql import SparkSession as Classic

    return spark.sparkContext if isinstance(spark, Classic) else None


def _given(parts: list[bytes]) -> Iterable[bytes]:
    return parts


def _value_of(broadcast: Any) -> Iterable[bytes]:
    parts: list[bytes] = broadcast.value
    return parts


def _without_hook(vertex: Vertex) -> Vertex:
    """The vertex as it goes to the tasks: what belongs to the driver stays there."""
    return Vertex(vertex.name, vertex.supplier, vertex.parallelism(1), is_single=vertex.is_single)


def _like(edge: Edge, source: Vertex, source_ordinal: int, dest: Vertex) -> Edge:
    """The same edge between other vertices, within one task."""
    copy = from_(source, source_ordinal).to(dest, edge.dest_ordinal)
    copy.routing = Routing.BROADCAST if edge.routing is Routing.FANOUT else edge.routing
    copy.key_fn = edge.key_fn
    return copy.priority(edge.priority_value).queue_size(edge.queue_capacity)
