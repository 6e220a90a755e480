"""WriteProcessor and ClientSinkProcessor: the ends of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.vertex import RunHook
from jetlet.pipeline.sink import ClientSink, Sink, SinkWriter


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

    def complete(self) -> bool:
        assert self._writer is not None
        self.context.report(self._writer.finish())
        self._writer = None
        return True

    def close(self) -> None:
        if self._writer is not None:
            self._writer.abort()
            self._writer = None


class ClientSinkProcessor(Processor):
    """Sends batches to the submitting process."""

    def process(self, ordinal: int, inbox: Inbox) -> None:
        self.is_waiting = not self.context.send_to_client(inbox.items())
        if not self.is_waiting:
            inbox.clear()


class SinkHook(RunHook):
    """Begins, commits and aborts a sink."""

    def __init__(self, sink: Sink[Any]) -> None:
        self._sink = sink

    def begin(self, run_id: str) -> None:
        self._sink.begin(run_id)

    def commit(self, run_id: str, messages: Sequence[Any]) -> None:
        self._sink.commit(run_id, messages)

    def abort(self, run_id: str, error: BaseException) -> None:
        self._sink.abort(run_id)


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
