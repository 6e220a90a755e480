"""FragmentTask: what runs inside a Spark task: one fragment, on the cooperative engine.

An instance is the function of a ``mapInArrow``. It is pickled by reference to this module, with the
fragment as bytes, so that Jetlet's own way of pickling user code applies.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jetlet.core.dag import DAG
from jetlet.core.vertex import Vertex
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.processor_tasklet import ProcessorTasklet
from jetlet.execution.service import ExecutionService
from jetlet.jobs.failure import outcome
from jetlet.spark.exchange import (
    METRICS,
    REPORTS,
    BroadcastReader,
    ExchangeReader,
    ExchangeWriter,
    OutputPort,
    TaskOutput,
    dump,
)
from jetlet.spark.failure import TaskFailure
from jetlet.spark.frames import FrameReader

if TYPE_CHECKING:
    import pyarrow as pa

READER = "exchange"
"""Name of the vertex that feeds a fragment with what was shuffled to it."""


@dataclass(frozen=True)
class FragmentSpec:
    """A fragment as it travels: its vertices, with stand-ins for where data enters and leaves."""

    job_name: str
    run_id: str
    dag: DAG
    partition_count: int
    tasks: int
    inputs: dict[int, int]
    """Ordinal of the reader's outbound edge for each incoming channel."""
    broadcasts: dict[str, int]
    """Channel of each stand-in for a broadcast edge, by vertex name."""
    outputs: dict[str, OutputPort]
    """By name of the stand-in vertex."""
    clients: dict[str, int]
    """Channel of each vertex that sends items to the driver."""
    frame_vertex: str | None = None
    """The vertex whose items are the rows of a DataFrame, if there is one."""


class FragmentTask:
    """Runs one task of a fragment."""

    def __init__(
        self,
        spec: bytes,
        name: str,
        broadcasts: dict[int, Callable[[], Iterable[bytes]]],
    ) -> None:
        self._spec = spec
        self._broadcasts = broadcasts
        self.__name__ = name  # what Spark shows for the step

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        index = context.partitionId() if context is not None else 0
        attempt = context.taskAttemptId() if context is not None else 0
        spec: FragmentSpec = pickle.loads(self._spec)
        return _run(spec, batches, index, f"{attempt}-{uuid.uuid4().hex[:8]}", self._broadcasts)


def _run(
    spec: FragmentSpec,
    batches: Iterator[pa.RecordBatch],
    index: int,
    attempt: str,
    broadcasts: dict[int, Callable[[], Iterable[bytes]]],
) -> Iterator[pa.RecordBatch]:
    output = TaskOutput(index)
    clients = _Clients(spec.clients, output)
    _plug_in(spec, batches, output, broadcasts)
    plan = ExecutionPlan(
        spec.dag,
        member_index=index,
        member_count=spec.tasks,
        partition_count=spec.partition_count,
    )
    service = ExecutionService(1, name="jetlet-task")

    def make_tasklets() -> Sequence[ProcessorTasklet]:
        return plan.build(
            RunContext(
                job_name=spec.job_name,
                run_id=spec.run_id,
                attempt=attempt,
                report=lambda vertex, message: output.add(REPORTS, 0, dump((vertex, message))),
                send_to_client=clients.send,
                closer=execution.closer,
                crosses_threads=False,
            )
        )

    execution = service.execution(spec.job_name, make_tasklets)

    def drive() -> None:
        try:
            execution.run()
            clients.flush()
            metrics = (t.metrics for t in execution.tasklets if isinstance(t, ProcessorTasklet))
            output.add(METRICS, 0, dump([(m.vertex, m.snapshot()) for m in metrics]))
        except BaseException as error:  # noqa: BLE001 - it must reach the thread that Spark reads
            execution.fail(None, error)
        finally:
            output.close()

    thread = threading.Thread(target=drive, name="jetlet-task", daemon=True)
    thread.start()
    try:
        yield from output.batches()
    finally:
        # Also when Spark abandons the task in the middle.
        execution.cancel()
        thread.join()
        service.shut_down()
        plan.close(execution.failure)
    error = outcome(execution, spec.job_name)
    if error is not None:
        raise TaskFailure.pack(error, execution.failure)


class _Clients:
    """Collects the items for the sinks of the submitting process into payloads."""

    def __init__(self, channels: dict[str, int], output: TaskOutput) -> None:
        self._channels = channels
        self._output = output
        self._buffers: dict[str, list[Any]] = {name: [] for name in channels}

    def send(self, vertex: str, batch: Sequence[Any]) -> bool:
        if self._output.is_congested:
            return False
        buffer = self._buffers[vertex]
        buffer.extend(batch)
        if len(buffer) >= 8192:
            self._output.add(self._channels[vertex], 0, dump(buffer))
            self._buffers[vertex] = []
        return True

    def flush(self) -> None:
        for vertex, buffer in self._buffers.items():
            if buffer:
                self._output.add(self._channels[vertex], 0, dump(buffer))


def _plug_in(
    spec: FragmentSpec,
    batches: Iterator[pa.RecordBatch],
    output: TaskOutput,
    broadcasts: dict[int, Callable[[], Iterable[bytes]]],
) -> None:
    """Put real processors in the place of the stand-ins."""

    def pass_on(channel: int, payload: bytes) -> None:
        output.add(channel, 0, payload)

    for name, port in spec.outputs.items():
        _supply(spec.dag[name], partial(ExchangeWriter, output, port))
    for name, channel in spec.broadcasts.items():
        _supply(spec.dag[name], partial(BroadcastReader, broadcasts[channel]))
    if spec.inputs:
        _supply(spec.dag[READER], partial(ExchangeReader, _rows(batches), spec.inputs, pass_on))
    if spec.frame_vertex is not None:
        vertex = spec.dag[spec.frame_vertex]
        _supply(vertex, partial(FrameReader, batches, vertex.supplier))


def _supply(vertex: Vertex, make: Callable[[], Any]) -> None:
    vertex.supplier = Vertex(vertex.name, make).supplier


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        yield from zip(
            batch.column("channel").to_pylist(), batch.column("payload").to_pylist(), strict=True
        )
