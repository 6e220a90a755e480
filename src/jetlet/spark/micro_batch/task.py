"""BatchTask: a task of a micro-batch: one fragment, from the state of the batch before to its own.

It differs from a task of a batch job in how it ends. When its readers have come to the end of their
input nothing completes: the watermark follows the last items, then a barrier, at which processors
save their state and sinks prepare what they have written, as with a snapshot that ends a job. Only
the last batch, which has no input, is completed, so that all windows are emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jetlet.core.processor import Processor
from jetlet.core.traits import BatchPart
from jetlet.core.vertex import Vertex, WriterSupplier
from jetlet.execution.plan import RunContext
from jetlet.execution.plan_run import PlanRun
from jetlet.execution.processor_tasklet import ProcessorTasklet
from jetlet.execution.tasklet import Tasklet
from jetlet.snapshots.context import EXACTLY_ONCE, ActiveSnapshot, SnapshotContext
from jetlet.snapshots.state_sink import StateSink
from jetlet.spark.batch.exchange import OutputPort, RowStream
from jetlet.spark.batch.fragment_spec import FragmentSpec
from jetlet.spark.batch.task import FragmentTask, Make, Payloads, RunningTask, supply
from jetlet.spark.frames import Rows, frame_items
from jetlet.spark.micro_batch.exchange import BatchExchangeReader, BatchExchangeWriter
from jetlet.spark.micro_batch.sinks import BatchAttempt, batch_writer
from jetlet.spark.micro_batch.state import BatchStates, Saved, StatePlace, TaskState
from jetlet.spark.micro_batch.time import BatchClock, BatchEnd
from jetlet.spark.stream_frames import BatchFrameSupplier

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a batch begins with; travels to its tasks."""

    batch: int
    epoch: int
    """The epoch of the attempt at the job."""
    before_ms: int
    """The time of the batch before, in milliseconds since 1970."""
    now_ms: int
    watermarks: dict[str, int]
    """At the end of the batch before, by the vertex that makes them."""
    is_first: bool
    """True if there was no batch before this one."""
    is_last: bool = False
    """True if the stream has ended: there is no more input."""


@dataclass(frozen=True, slots=True)
class FragmentState:
    """What the tasks of a fragment begin with."""

    states: BatchStates
    previous: dict[int, Saved]
    """What each task has saved before; nothing where there is no state yet."""


class BatchTask(FragmentTask):
    """Runs one task of a fragment in a micro-batch.

    A fragment without ``state`` keeps nothing from one batch to the next.
    """

    def __init__(
        self,
        run: tuple[str, str],
        spec: bytes,
        name: str,
        broadcasts: dict[int, Payloads],
        batch: MicroBatch,
        state: FragmentState | None,
    ) -> None:
        super().__init__(run, spec, name, broadcasts)
        self._batch = batch
        self._state = state

    def _task(
        self, spec: FragmentSpec, batches: Iterator[pa.RecordBatch], index: int, attempt: str
    ) -> RunningTask:
        return RunningBatchTask(spec, batches, index, attempt, self._batch, self._state)


class NoState:
    """The state of a task that keeps nothing."""

    restore = None

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.snapshots = SavedVertices(SnapshotContext(EXACTLY_ONCE))

    def attach(self, tasklets: Sequence[Tasklet]) -> None:
        pass

    def begin(self, on_saved: Callable[[Saved | Exception | None], None]) -> None:
        active = ActiveSnapshot(self._batch, is_terminal=True)
        self.snapshots.context.begin(active, lambda: on_saved(None))

    def finish(self) -> None:
        self.snapshots.context.finish(self._batch, success=True, on_done=lambda: None)

    def close(self, *, is_success: bool) -> None:
        pass


@dataclass
class SavedVertices:
    """Takes the place of a member's snapshots; only some vertices have something to save."""

    context: SnapshotContext
    schema_versions: dict[str, int] = field(default_factory=dict)
    sinks: Callable[[str, int], StateSink | None] = lambda vertex, processor: None
    left_out: frozenset[str] = frozenset()
    definitions: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def sink(self, vertex: str, processor: int) -> StateSink | None:
        """Where a processor saves its state, if it has any."""
        return None if vertex in self.left_out else self.sinks(vertex, processor)

    def chain_part(self, vertex: str, index: int, processor: Processor, sink: StateSink) -> None:
        """Changes are saved by the task, when all have ended."""


class RunningBatchTask(RunningTask):
    """One attempt at one task of a micro-batch."""

    def __init__(
        self,
        spec: FragmentSpec,
        batches: Iterator[pa.RecordBatch],
        index: int,
        attempt: str,
        batch: MicroBatch,
        state: FragmentState | None,
    ) -> None:
        super().__init__(spec, batches, index, attempt)
        self._batch = batch
        self._clock = BatchClock(batch.before_ms, batch.now_ms)
        self._end = BatchEnd(self._at_end)
        names = (vertex.name for vertex in spec.dag.vertices)
        self._left_out = frozenset(names) if batch.is_last else spec.stateless
        """Vertices that save nothing in this task."""
        self._saved: Saved | None = None
        self._state: NoState | TaskState = NoState(batch.batch)
        if state is not None:
            place = StatePlace(spec.run_id, spec.index, index, batch.batch, attempt)
            self._state = state.states.open(place, state.previous.get(index))

    # --- Making it --------------------------------------------------------------------------

    def _plug_in(self, broadcasts: dict[int, Payloads]) -> None:
        dag = self._spec.dag
        attempt = BatchAttempt(self._batch.batch, self._batch.epoch, _attempt_number())
        for vertex in dag.vertices:
            supplier = vertex.supplier
            if isinstance(supplier, WriterSupplier):
                supply(vertex, partial(batch_writer, supplier.sink, attempt))
        super()._plug_in(broadcasts)

    def _writer(self, port: OutputPort) -> Make:
        return partial(BatchExchangeWriter, self._output, port)

    def _reader(self, stream: RowStream, rank: int, ordinals: dict[int, int]) -> Make:
        end = None if self._batch.is_last else self._end
        return partial(BatchExchangeReader, end, stream, rank, ordinals)

    def _frame_reader(self, vertex: Vertex, form: str | Rows, *, in_columns: bool) -> Make:
        assert isinstance(vertex.supplier, BatchFrameSupplier)
        assert isinstance(form, str)
        self._end.expect()
        return partial(vertex.supplier.stream.batch_reader, frame_items(self._batches, form))

    def _context(self) -> RunContext:
        snapshots = self._state.snapshots
        return replace(
            super()._context(),
            processing_guarantee=EXACTLY_ONCE,
            clock=self._clock,
            restore=self._state.restore,
            snapshots=SavedVertices(
                snapshots.context,
                snapshots.schema_versions,
                snapshots.sink,
                self._left_out,
            ),
        )

    def _attach(self, tasklets: list[Tasklet]) -> Sequence[Tasklet]:
        for tasklet in tasklets:
            processor = tasklet.processor if isinstance(tasklet, ProcessorTasklet) else None
            if processor is not None:
                processor.join_micro_batch(self._part(tasklet.vertex_name))
        self._state.attach(tasklets)
        return tasklets

    def _part(self, vertex: str) -> BatchPart:
        """What the processors of a vertex learn of the batch."""
        batch = self._batch
        before = batch.watermarks.get(vertex)
        return BatchPart(batch.is_first, batch.now_ms, before, self._end.arrive)

    # --- Ending it --------------------------------------------------------------------------

    def _at_end(self) -> None:
        """All input is read: let the barrier follow, as soon as no join reads its tables."""
        self._clock.advance()
        context: SnapshotContext = self._state.snapshots.context
        context.when_drained(lambda: self._state.begin(self._on_saved))

    def _on_saved(self, saved: Saved | Exception | None) -> None:
        if isinstance(saved, Exception):
            self._plan_run.fail(saved)
        else:
            self._saved = saved
            self._state.finish()

    def _drive(self, run: PlanRun) -> None:
        try:
            super()._drive(run)
        finally:
            self._state.close(is_success=not run.execution.is_dismissed)

    def _told(self) -> tuple[Any, ...]:
        return (*super()._told(), self._saved)


def _attempt_number() -> int:
    """Sets this attempt apart from others of Spark's at the same task, with a few bits."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return 0
    # The first counts the attempts, but begins anew when Spark runs all tasks of a stage again.
    return context.attemptNumber() % 8 * 8 + context.taskAttemptId() % 8
