"""Streams in memory as a source of pipelines: what tasks send there, a pipeline can follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jetlet.core.processor import ProcessorContext
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

if TYPE_CHECKING:
    from jetlet.tasks.systems.memory_system import MemoryStream


class InMemorySource(StreamSource[Any]):
    """Follows a stream from its beginning, and ends with it. It cannot leave its process."""

    has_native_timestamps = True
    is_replayable = True

    def __init__(self, stream: MemoryStream) -> None:
        self.name = f"memory-source({stream.name})"
        self._stream = stream

    def partitions(self) -> Sequence[int]:
        return range(len(self._stream.partitions))

    def open(self, partitions: Sequence[int], context: ProcessorContext) -> StreamReader[Any]:
        return _Reader(self._stream, partitions, context.wake)


class _Reader(StreamReader[Any]):
    def __init__(
        self, stream: MemoryStream, partitions: Sequence[int], wake: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._records = [stream.partitions[number] for number in partitions]
        self._next = [0] * len(partitions)
        self._wake = wake
        stream.listen(wake)

    def poll(self, limit: int) -> Sequence[Polled[Any]] | None:
        # In this order: what is there once it has ended is all there will be.
        is_ended = self._stream.is_ended
        polled = []
        for i, records in enumerate(self._records):
            new = records[self._next[i] : self._next[i] + limit]
            if new:
                self._next[i] += len(new)
                items, _, timestamps = zip(*new, strict=True)
                polled.append(Polled(i, items, timestamps))
                limit -= len(new)
        return None if is_ended and not polled and limit > 0 else polled

    def save(self) -> Sequence[int]:
        return list(self._next)

    def restore(self, positions: Sequence[int | None]) -> None:
        self._next = [position or 0 for position in positions]

    def close(self) -> None:
        self._stream.unlisten(self._wake)
