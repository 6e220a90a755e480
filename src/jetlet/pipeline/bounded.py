"""BoundedRead: a stream that was asked to end, as the bounded source that it then is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jetlet.pipeline.errors import Rejected
from jetlet.pipeline.source import BatchSource, SplitRest
from jetlet.pipeline.stream_source import Span, StreamSource

__all__ = ["BoundedRead"]


class BoundedRead(BatchSource[Any]):
    """Reads the spans of a stream, each a split; ``with_times`` gives pairs of time and item."""

    def __init__(self, stream: StreamSource[Any], *, with_times: bool) -> None:
        self.name = stream.name
        self.preferred_local_parallelism = stream.preferred_local_parallelism
        self.is_blocking = stream.is_blocking
        self.on_error = stream.on_error
        self._stream = stream
        self._with_times = with_times

    def __getstate__(self) -> dict[str, Any]:
        # A sink for bad records does not travel.
        on_error = self.on_error
        return {**self.__dict__, "on_error": on_error if isinstance(on_error, str) else "skip"}

    def __repr__(self) -> str:
        return repr(self._stream)

    def splits(self, target: int) -> Sequence[Span]:
        return self._stream.spans()

    def read(self, split: Span) -> Iterator[Sequence[Any]]:
        for part in self._stream.read_span(split):
            if part.rejected:
                yield Rejected(part.rejected)
            items = part.items
            if self._with_times and items:
                assert part.timestamps is not None
                items = list(zip(part.timestamps, items, strict=True))
            yield SplitRest(items, part.rest)
