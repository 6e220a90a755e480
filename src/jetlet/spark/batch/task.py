"""FragmentTask: what runs inside a Spark task: one fragment, on the cooperative engine.

An instance is the function of a ``mapInArrow``. It is pickled by reference to this module, with the
fragment as bytes, so that Jetlet's own way of pickling user code applies.
"""

from __future__ import annotations

import logging
import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from jetlet.core.pickling import dump
from jetlet.core.processor import Processor
from jetlet.core.vertex import Vertex
from jetlet.errors import JobFailedError
from jetlet.execution.execution_service import Execution
from jetlet.execution.failure import outcome
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.plan_run import PlanRun
from jetlet.execution.processor_tasklet import ProcessorTasklet
from jetlet.execution.tasklet import Tasklet
from jetlet.spark.batch.exchange import (
    METRICS,
    REPORTS,
    BroadcastReader,
    Chunks,
    ExchangeReader,
    ExchangeWriter,
    FrameOutput,
    OutputPort,
    RowStream,
    TaskOutput,
    dump_items,
)
from jetlet.spark.batch.fragment_spec import FragmentSpec
from jetlet.spark.failure import TaskFailure
from jetlet.spark.frame_sink import FrameWriter
from jetlet.spark.frames import FrameReader, Rows

if TYPE_CHECKING:
    import pyarrow as pa

    from jetlet.spark.batch.job_progress import TaskCounters

Payloads = Callable[[], Iterable[bytes]]
Make = Callable[[], Processor]


class FragmentTask:
    """Runs one task of a fragment."""

    def __init__(
        self,
        run: tuple[str, str],
        spec: bytes,
        name: str,
        broadcasts: dict[int, Payloads],
        accumulator: TaskCounters = None,
    ) -> None:
        self._run = run
        """Name of the job and id of the run, for when the rest cannot be read."""
        self._spec = spec
        self._broadcasts = broadcasts
        self._accumulator = accumulator
        """Where the counters of a task go when it has ended well; ``None`` on Spark Connect."""
        self.__name__ = name  # what Spark shows for the step

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        spec = self._load()
        _quieten()
        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        index, batches = _task_index(batches, spec, context.partitionId())
        task = self._task(spec, batches, index, f"{attempt}-{uuid.uuid4().hex[:8]}")
        return task.run(self._broadcasts, self._accumulator)

    def _task(
        self, spec: FragmentSpec, batches: Iterator[pa.RecordBatch], index: int, attempt: str
    ) -> RunningTask:
        return RunningTask(spec, batches, index, attempt)

    def _load(self) -> FragmentSpec:
        job_name, run_id = self._run
        try:
            spec: FragmentSpec = pickle.loads(self._spec)
        except Exception as error:
            failure = JobFailedError(
                f"job {job_name!r} failed where Spark runs it, because {self.__name__} cannot be "
                f"loaded there: {type(error).__name__}: {error}"
            )
            raise TaskFailure.pack(failure, error, run_id) from None
        return spec


class RunningTask:
    """One attempt at one task: the engine's threads, and what they hand to Spark's."""

    def __init__(
        self, spec: FragmentSpec, batches: Iterator[pa.RecordBatch], index: int, attempt: str
    ) -> None:
        self._spec = spec
        self._batches = batches
        self._index = index
        self._attempt = attempt
        output = FrameOutput if spec.is_frame else TaskOutput
        self._output = output(index, dict(spec.frame_sinks.values()))
        self._clients = _Clients(spec.clients, self._output)
        self._metrics: list[tuple[str, dict[str, Any]]] = []

    def run(
        self, broadcasts: dict[int, Payloads], accumulator: TaskCounters = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows that the task sends; no thread of it is left when the iterator is closed."""
        spec, output = self._spec, self._output
        self._plug_in(broadcasts)
        plan = ExecutionPlan(
            spec.dag,
            member_index=self._index,
            member_count=self._member_count(),
            partition_count=spec.partition_count,
        )
        service = spec.tuning.service("jetlet-task")
        run = self._plan_run = PlanRun(service, plan, self._context(), self._attach)
        execution = run.execution
        output.wake = partial(_wake, execution)
        thread = threading.Thread(target=self._drive, args=(run,), name="jetlet-task")
        thread.daemon = True
        try:
            thread.start()
            yield from output.batches()
        finally:
            # Also when Spark abandons the task in the middle.
            execution.cancel()
            if thread.ident is not None:
                thread.join()
            service.shut_down()
        failure = outcome(execution, spec.stand_ins)
        if failure is not None:
            raise TaskFailure.pack(failure, execution.failure, spec.run_id)
        for _ in self._batches:
            pass  # a worker that has not read its input to the end is not used again
        if accumulator is not None:
            accumulator.add({(spec.run_id, spec.index, self._index): self._metrics})

    def _member_count(self) -> int:
        """How many tasks there are, as far as anybody has to know.

        A DataFrame may have more partitions than we would have made tasks, and nobody tells how
        many. But each task must divide keys among those behind it as the others do, so it is a
        multiple of their number.
        """
        spec = self._spec
        if spec.frame_source is None:
            return spec.tasks
        targets = max((port.targets for port in spec.outputs.values()), default=1)
        return -(-max(spec.tasks, self._index + 1) // targets) * targets

    def _attach(self, tasklets: list[Tasklet]) -> Sequence[Tasklet]:
        return tasklets

    def _context(self) -> RunContext:
        return RunContext(
            job_name=self._spec.job_name,
            run_id=self._spec.run_id,
            attempt=self._attempt,
            report=self._report,
            send_to_client=self._clients.send,
            call_target_ns=self._spec.tuning.call_target_ns,
        )

    def _report(self, vertex: str, message: Any) -> None:
        self._output.add(REPORTS, 0, dump((vertex, message)))

    def _drive(self, run: PlanRun) -> None:
        execution = run.execution
        try:
            run.drive()
            if not execution.is_dismissed:
                self._clients.flush()
                self._metrics = list(self._counters(execution))
                self._output.add(METRICS, 0, dump(self._told()))
        except BaseException as error:  # it must reach the thread that Spark reads
            execution.fail(None, error)
        finally:
            self._output.close()

    def _told(self) -> tuple[Any, ...]:
        """What the driver is told in the end."""
        return self._spec.index, self._index, self._metrics

    def _counters(self, execution: Execution) -> Iterator[tuple[str, dict[str, Any]]]:
        stand_ins = self._spec.stand_ins
        for tasklet in execution.tasklets:
            if isinstance(tasklet, ProcessorTasklet) and tasklet.vertex_name not in stand_ins:
                yield tasklet.vertex_name, tasklet.metrics.snapshot()

    def _plug_in(self, broadcasts: dict[int, Payloads]) -> None:
        """Put real processors in the place of the stand-ins."""
        spec, output, dag = self._spec, self._output, self._spec.dag

        def pass_on(channel: int, payload: bytes) -> None:
            output.add(channel, 0, payload)

        for name, port in spec.outputs.items():
            supply(dag[name], self._writer(port))
        for name, channel in spec.broadcasts.items():
            supply(dag[name], partial(BroadcastReader, broadcasts[channel]))
        for name, (channel, columns) in spec.frame_sinks.items():
            supply(dag[name], partial(FrameWriter, output, channel, columns))
        if spec.readers:
            stream = RowStream(self._batches, spec.ranks, pass_on)
            for rank, (name, ordinals) in enumerate(spec.readers):
                supply(dag[name], self._reader(stream, rank, ordinals))
        if spec.frame_source is not None:
            name, form, in_columns = spec.frame_source
            supply(dag[name], self._frame_reader(dag[name], form, in_columns=in_columns))

    def _writer(self, port: OutputPort) -> Make:
        return partial(ExchangeWriter, self._output, port)

    def _reader(self, stream: RowStream, rank: int, ordinals: dict[int, int]) -> Make:
        return partial(ExchangeReader, stream, rank, ordinals)

    def _frame_reader(self, vertex: Vertex, form: str | Rows, *, in_columns: bool) -> Make:
        return partial(FrameReader, self._batches, form, in_columns=in_columns)


class _Clients:
    """Collects the items for the sinks of the submitting process into payloads."""

    def __init__(self, channels: dict[str, int], output: TaskOutput) -> None:
        self._channels = channels
        self._output = output
        self._buffers: dict[str, list[Any]] = {name: [] for name in channels}
        self._chunks = {name: Chunks() for name in channels}
        self._lock = threading.Lock()

    def send(self, vertex: str, batch: Sequence[Any]) -> bool:
        """Take a batch; from any thread. ``False`` means "not now"."""
        if vertex not in self._channels:
            return True  # nobody listens
        if self._output.is_congested:
            return False
        with self._lock:
            self._buffers[vertex].extend(batch)
            if len(self._buffers[vertex]) >= self._chunks[vertex].size:
                self._flush(vertex)
        return True

    def flush(self) -> None:
        for vertex in self._buffers:
            self._flush(vertex)

    def _flush(self, vertex: str) -> None:
        items, self._buffers[vertex] = self._buffers[vertex], []
        if items:
            payload = dump_items(items, vertex)
            self._chunks[vertex].learn(len(items), len(payload))
            self._output.add(self._channels[vertex], 0, payload)


def _quieten() -> None:
    """Keep complaints about long calls out of the executor's log.

    Here they only make others of the same task wait, which is nothing to a job without deadlines.
    """
    log = logging.getLogger("jetlet.execution")
    if log.level == logging.NOTSET:
        log.setLevel(logging.ERROR)


def _task_index(
    batches: Iterator[pa.RecordBatch], spec: FragmentSpec, partition: int
) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Which of its fragment's tasks this is, and its input.

    Spark's number of the partition does not tell: in a union those of the second part go on from
    the first. So each row has the number, and there is always one. Only a task that reads a
    DataFrame has to make do with Spark's, which is at least no other's of the fragment.
    """
    if spec.frame_source is not None:
        return partition, batches
    first = next(batch for batch in batches if batch.num_rows)
    return first.column(0)[0].as_py(), chain((first,), batches)


def _wake(execution: Execution) -> None:
    for tasklet in execution.tasklets:
        tasklet.waker.wake()


def supply(vertex: Vertex, make: Make) -> None:
    vertex.supplier = Vertex(vertex.name, make).supplier
