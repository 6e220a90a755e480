"""Sinks in micro-batches: each batch is prepared by its tasks, and committed by the driver.

Tasks write aside, whatever the sink; what it takes to commit that goes to the driver, which puts it
into the record of the batch and only then commits it. If it dies in between, the next one commits
it again, which sinks with transactions know how to do once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jetlet.core.dag import DAG
from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.pipeline.sink import (
    LastTransactions,
    Sink,
    SinkWriter,
    TransactionalSink,
    TransactionId,
    TransactionWriter,
    WriterPlace,
)
from jetlet.spark.frame_sink import FrameSink

logger = logging.getLogger("jetlet.spark")

ATTEMPT_BITS = 6
"""Of a transaction's number: those that set apart the attempts of Spark at one task."""


@dataclass(frozen=True, slots=True)
class BatchAttempt:
    """An attempt at a task of a batch."""

    batch: int
    epoch: int
    """The epoch of the attempt at the job."""
    number: int
    """Sets this attempt apart from others at the same task."""

    @property
    def transaction_number(self) -> int:
        """Rises from batch to batch."""
        return (self.batch << ATTEMPT_BITS) + self.number % (1 << ATTEMPT_BITS)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Told by a task: this is to be committed."""

    what: Any


class TransactionalBatchWriter(Processor):
    """Writes the items of a batch in one transaction. Has a thread of its own."""

    is_cooperative = False

    def __init__(self, sink: TransactionalSink[Any], attempt: BatchAttempt) -> None:
        self._sink = sink
        self._attempt = attempt
        self._writer: TransactionWriter[Any] | None = None

    def process(self, ordinal: int, inbox: Inbox) -> None:
        if self._writer is None:
            # A batch may have nothing for the sink: then it need not even be reached.
            context, attempt = self.context, self._attempt
            place = WriterPlace(
                context.run_id,
                context.vertex_name,
                str(attempt.epoch),
                context.global_index,
                context.total_parallelism,
            )
            self._writer = self._sink.open_transactional(place)
            number = attempt.transaction_number
            self._writer.begin(
                TransactionId(place.run_id, place.vertex, number, place.index, place.attempt)
            )
        self._writer.write(inbox.items())
        inbox.clear()

    def save_to_snapshot(self) -> bool:
        if self._writer is not None:
            self.context.report(Prepared(self._writer.prepare()))
        return True

    def complete(self) -> bool:
        return self.save_to_snapshot()

    def interrupt(self) -> None:
        """The job is ending; from any thread."""
        writer = self._writer
        if writer is not None:
            writer.interrupt()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class PlainBatchWriter(Processor):
    """Writes the items of a batch as if it were all: to the sink, each batch is a run."""

    def __init__(self, sink: Sink[Any], attempt: BatchAttempt) -> None:
        self.is_cooperative = not sink.is_blocking
        self._sink = sink
        self._attempt = attempt
        self._writer: SinkWriter[Any] | None = None

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        run_id = batch_run(context.run_id, self._attempt.batch)
        self._writer = self._sink.open(run_id, f"{context.global_index:05d}-{context.attempt}")

    def process(self, ordinal: int, inbox: Inbox) -> None:
        assert self._writer is not None
        self._writer.write(inbox.items())
        inbox.clear()

    def save_to_snapshot(self) -> bool:
        assert self._writer is not None
        if not self._writer.sync():
            return False
        self.context.report(Prepared(self._writer.finish()))
        self._writer = None
        return True

    def complete(self) -> bool:
        return self.save_to_snapshot()

    def interrupt(self) -> None:
        """The job is ending; from any thread."""
        writer = self._writer
        if writer is not None:
            writer.interrupt()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.abort()
            self._writer = None


def batch_writer(sink: Sink[Any], attempt: BatchAttempt) -> Processor:
    """The processor that takes the place of the one that the supplier would make."""
    if isinstance(sink, TransactionalSink):
        return TransactionalBatchWriter(sink, attempt)
    return PlainBatchWriter(sink, attempt)


def batch_run(run_id: str, batch: int) -> str:
    """What a sink without transactions takes for a run."""
    return f"{run_id}-{batch}"


class BatchSinks:
    """The sinks of a job, where it was submitted. Used by one thread."""

    def __init__(self, dag: DAG, run_id: str, epoch: int) -> None:
        self._run_id = run_id
        self._epoch = epoch
        self._plain: dict[str, Sink[Any]] = {}
        self._transactional: dict[str, TransactionalSink[Any]] = {}
        self._writers: dict[str, TransactionWriter[Any]] = {}
        for vertex in dag.vertices:
            sink = None if vertex.hook is None else vertex.hook.sink
            if isinstance(sink, TransactionalSink):
                self._transactional[vertex.name] = sink
            elif sink is not None and not isinstance(sink, FrameSink):
                self._plain[vertex.name] = sink

    def recover(self, batch: int, prepared: Mapping[str, Sequence[Any]]) -> None:
        """Commit the batch that was recorded last; drop what is left of any after it."""
        for vertex in self._transactional:
            self._writer(vertex).recover(prepared.get(vertex, ()))
        for vertex, sink in self._plain.items():
            if batch >= 0:
                sink.commit(batch_run(self._run_id, batch), prepared.get(vertex, ()))
            sink.abort(batch_run(self._run_id, batch + 1))

    def begin(self, batch: int) -> None:
        """A batch is about to be run."""
        for sink in self._plain.values():
            sink.begin(batch_run(self._run_id, batch))

    def commit(self, batch: int, prepared: Mapping[str, Sequence[Any]]) -> None:
        """The batch is recorded: make visible what its tasks have prepared."""
        for vertex in self._transactional:
            for each in prepared.get(vertex, ()):
                self._writer(vertex).commit(each)
        for vertex, sink in self._plain.items():
            sink.commit(batch_run(self._run_id, batch), prepared.get(vertex, ()))

    def last(self, prepared: Mapping[str, Sequence[Any]]) -> dict[str, LastTransactions]:
        """What the hooks are to commit when the job has completed."""
        return {
            vertex: LastTransactions(vertex, prepared.get(vertex, ()))
            for vertex in self._transactional
        }

    def _writer(self, vertex: str) -> TransactionWriter[Any]:
        """One that stands for all writers of the vertex."""
        writer = self._writers.get(vertex)
        if writer is None:
            place = WriterPlace(self._run_id, vertex, str(self._epoch), 0, 1)
            writer = self._transactional[vertex].open_transactional(place)
            self._writers[vertex] = writer
        return writer

    def interrupt(self) -> None:
        """The job is ending; from any thread."""
        for writer in list(self._writers.values()):
            writer.interrupt()

    def close(self) -> None:
        """Release everything."""
        for writer in self._writers.values():
            try:
                writer.close()
            except Exception:
                logger.exception("cannot close a sink")
        self._writers.clear()
