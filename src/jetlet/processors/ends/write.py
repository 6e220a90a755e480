"""WriteProcessor and ClientSinkProcessor: the ends of a pipeline.

A :class:`SinkSupplier` decides whether it takes a
:class:`~jetlet.processors.ends.transactional_write.TransactionalWriteProcessor` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.traits import State, Traits
from jetlet.core.vertex import RunHook, WriterSupplier
from jetlet.pipeline.sink import (
    ClientSink,
    LastTransactions,
    Sink,
    SinkWriter,
    TransactionalSink,
)
from jetlet.processors.base import STATELESS
from jetlet.processors.ends.transactional_write import TransactionalWriteProcessor
from jetlet.snapshots.context import EXACTLY_ONCE, NONE


class WriteProcessor(Processor):
    """Writes to a part of a sink and reports what is to be committed."""

    def __init__(self, sink: Sink[Any]) -> None:
        self.is_cooperative = not sink.is_blocking
        self._sink = sink
        self._writer: SinkWriter[Any] | None = None

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        writer_id = f"{context.global_index:05d}"
        if context.attempt:
            writer_id += f"-{context.attempt}"
        self._writer = self._sink.open(context.run_id, writer_id)

    def process(self, ordinal: int, inbox: Inbox) -> None:
        assert self._writer is not None
        self._writer.write(inbox.items())
        inbox.clear()

    def snapshot_commit_prepare(self) -> bool:
        assert self._writer is not None
        return self._writer.sync()

    def interrupt(self) -> None:
        """The job is ending; from any thread."""
        writer = self._writer
        if writer is not None:
            writer.interrupt()

    def complete(self) -> bool:
        assert self._writer is not None
        self.context.report(self._writer.finish())
        self._writer = None
        return True

    def close(self) -> None:
        if self._writer is not None:
            self._writer.abort()
            self._writer = None


class SinkSupplier(WriterSupplier):
    """Makes the processors of a sink, as the job's guarantee asks for."""

    def __init__(self, sink: Sink[Any], *, is_stream: bool) -> None:
        self.sink = sink
        self._is_stream = is_stream
        self._is_transactional = self._rolls = False

    def traits(self) -> Traits:
        return Traits(state=State.SAVED, spans_batches=False, emits_at_end=False, needs_index=False)

    def init(self, context: ProcessorContext) -> None:
        guarantee = context.processing_guarantee
        sink = self.sink
        self._rolls = self._is_stream and guarantee == NONE
        self._is_transactional = isinstance(sink, TransactionalSink) and (
            guarantee == EXACTLY_ONCE
            or (sink.holds_back and (self._rolls or context.takes_snapshots))
        )

    def get(self) -> Processor:
        if self._is_transactional:
            assert isinstance(self.sink, TransactionalSink)
            return TransactionalWriteProcessor(self.sink, rolls=self._rolls)
        return WriteProcessor(self.sink)


class ClientSinkProcessor(Processor):
    """Sends batches to the submitting process."""

    traits = STATELESS

    def process(self, ordinal: int, inbox: Inbox) -> None:
        self.is_waiting = not self.context.send_to_client(inbox.items())
        if not self.is_waiting:
            inbox.clear()


class SinkHook(RunHook):
    """Begins, commits and aborts a sink."""

    def __init__(self, sink: Sink[Any]) -> None:
        self.sink = sink

    def begin(self, run_id: str) -> None:
        self.sink.begin(run_id)

    def resume(self, run_id: str) -> None:
        self.sink.resume(run_id)

    def commit(self, run_id: str, messages: Sequence[Any]) -> None:
        last = [message for message in messages if isinstance(message, LastTransactions)]
        if last:
            assert isinstance(self.sink, TransactionalSink)
            prepared = [each for some in last for each in some.prepared]
            self.sink.commit_last(run_id, last[0].vertex, prepared)
        else:
            self.sink.commit(run_id, messages)

    def abort(self, run_id: str, error: BaseException) -> None:
        self.sink.abort(run_id)


class ClientSinkHook(RunHook):
    """Hands batches to a sink of the submitting process."""

    def __init__(self, sink: ClientSink[Any]) -> None:
        self._sink = sink

    def begin(self, run_id: str) -> None:
        self._sink.begin(run_id)

    def receive(self, batch: Sequence[Any]) -> None:
        self._sink.receive(batch)

    def commit(self, run_id: str, messages: Sequence[Any]) -> None:
        self._sink.finish(None)

    def abort(self, run_id: str, error: BaseException) -> None:
        self._sink.finish(error)

    def stop(self, run_id: str, error: BaseException) -> None:
        self._sink.finish(error)
