"""Backfill: bounded history, and then the stream that goes on where it ends, as one source."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.errors import Rejected
from jetlet.pipeline.source import BatchSource, SplitRest
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

__all__ = ["Backfill"]

T = TypeVar("T")

DONE = "done"
"""The position behind the last item of a split."""
NEW = "new"
"""The position of a partition that a snapshot does not know."""


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """A split of the history, and how far it is read."""

    number: int
    split: Any
    taken: int = 0


@dataclass(frozen=True, slots=True)
class LivePart:
    """A partition of the stream."""

    number: int
    partition: Any


class Backfill(StreamSource[T]):
    """Each reader has a share of the history, and of the stream when it is through with that.

    Event time stands until all of the history is read, since its splits are in no order.
    """

    def __init__(self, history: BatchSource[T], stream: StreamSource[T]) -> None:
        if not isinstance(stream, StreamSource):
            raise InvalidArgumentError(
                f"{history.name}: then({stream!r}) takes a stream, such as sources.kafka(...); "
                f"read two bounded sources, and .merge(...) them"
            )
        if stream.is_bounded:
            raise InvalidArgumentError(
                f"{history.name}: then({stream.name}): it is read until=..., as bounded input: "
                f"read both, and .merge(...) them; or leave out until=..."
            )
        if not stream.can_follow_history:
            raise InvalidArgumentError(
                f"{history.name}: then({stream.name}): its items come in micro-batches, to which "
                f"nothing can be added: let Spark put both together, or read it on members"
            )
        policies = [each for each in (history.on_error, stream.on_error) if each != "fail"]
        if len(policies) == 2 and policies[0] is not policies[1]:
            raise InvalidArgumentError(
                f"{history.name}: then({stream.name}): write the same on_error=... for both"
            )
        self.name = f"{history.name}-then-{stream.name}"
        self.call = f"{history!r}.then({stream!r})"
        self.preferred_local_parallelism = max(
            history.preferred_local_parallelism, stream.preferred_local_parallelism
        )
        self.is_blocking = history.is_blocking or stream.is_blocking
        self.is_replayable = stream.is_replayable
        self.on_error = policies[0] if policies else "fail"
        self.beginning = NEW
        self._history = history
        self._stream = stream

    def __getstate__(self) -> dict[str, Any]:
        # A sink for bad records does not travel.
        on_error = self.on_error
        return {**self.__dict__, "on_error": on_error if isinstance(on_error, str) else "skip"}

    def partitions(self) -> Sequence[HistoryPart | LivePart]:
        # First where the stream begins: what comes while the history is looked at is not missed.
        live = [LivePart(i, each) for i, each in enumerate(self._stream.partitions())]
        splits = self._history.splits(self.preferred_local_parallelism)
        return [*live, *(HistoryPart(i, each) for i, each in enumerate(splits))]

    def partition_key(self, number: int, partition: HistoryPart | LivePart) -> Any:
        if isinstance(partition, HistoryPart):
            return ("history", partition.number)
        return ("stream", self._stream.partition_key(partition.number, partition.partition))

    def partition_name(self, number: int, partition: HistoryPart | LivePart) -> str:
        if isinstance(partition, HistoryPart):
            return f"{self._history.name}[{partition.number}]"
        return self._stream.partition_name(partition.number, partition.partition)

    def partition_of(self, key: Any) -> HistoryPart | None:
        """A split that was planned when the job began, and not this time."""
        return HistoryPart(key[1], None) if key[0] == "history" else None

    def open(
        self, partitions: Sequence[HistoryPart | LivePart], context: ProcessorContext
    ) -> StreamReader[T]:
        live = [each.partition for each in partitions if isinstance(each, LivePart)]
        stream = self._stream.open(live, context) if live else None
        return BackfillReader(self._history, stream, partitions, self._stream.beginning)


class BackfillReader(StreamReader[Any]):
    """Reads its splits one after the other, and then its partitions of the stream."""

    def __init__(
        self,
        history: BatchSource[Any],
        stream: StreamReader[Any] | None,
        partitions: Sequence[HistoryPart | LivePart],
        beginning: Any,
    ) -> None:
        self._history = history
        self._stream = stream
        self._beginning = beginning
        self._live: list[int] = []
        """The index of each partition that the reader of the stream has."""
        self._parts: dict[int, HistoryPart | None] = {}
        """By index: the splits; ``None`` when they are read."""
        for index, each in enumerate(partitions):
            if isinstance(each, HistoryPart):
                self._parts[index] = each
            else:
                self._live.append(index)
        self._batches: Iterator[Sequence[Any]] | None = None
        self._skip = 0
        """Items of the split that were taken before."""
        self._left: deque[int] | None = None

    def poll(self, limit: int) -> Sequence[Polled[Any]] | None:
        left = self._left
        if left is None:
            left = self._left = deque(i for i, part in self._parts.items() if part is not None)
            if len(left) < len(self._parts):  # some were read before
                done = [i for i, part in self._parts.items() if part is None]
                return [Polled(i, (), is_end=True) for i in done]
        if left:
            return self._poll_history(left)
        if self._stream is None:
            return None
        polled = self._stream.poll(limit)
        if polled is None:
            return None
        return [replace(each, partition=self._live[each.partition]) for each in polled]

    def _poll_history(self, left: deque[int]) -> Sequence[Polled[Any]]:
        index = left[0]
        part = self._parts[index]
        assert part is not None
        if self._batches is None:
            self._batches, self._skip = self._history.read(part.split), part.taken
        batch = next(self._batches, None)
        if batch is None:
            self._batches = None
            self._parts[index] = None
            left.popleft()
            return [Polled(index, (), is_end=True)]
        if self._skip:
            skipped = min(self._skip, len(batch))
            self._skip -= skipped
            rest = batch[skipped:]
            batch = Rejected(rest) if isinstance(batch, Rejected) else rest
            return self._taken(index, batch) if batch else ()
        if isinstance(batch, SplitRest):
            self._parts[index] = replace(part, split=batch.rest, taken=0)
        elif batch:
            return self._taken(index, batch)
        return [Polled(index, batch, has_order=False)] if batch else ()

    def _taken(self, index: int, batch: Sequence[Any]) -> Sequence[Polled[Any]]:
        part = self._parts[index]
        assert part is not None
        self._parts[index] = replace(part, taken=part.taken + len(batch))
        if isinstance(batch, Rejected):
            return [Polled(index, (), rejected=batch)]
        return [Polled(index, batch, has_order=False)]

    def is_quiet(self, partition: int) -> bool:
        if self._left or self._stream is None or partition in self._parts:
            return False
        return self._stream.is_quiet(self._live.index(partition))

    def save(self) -> Sequence[Any]:
        found = {index: DONE if part is None else part for index, part in self._parts.items()}
        if self._stream is not None:
            found |= dict(zip(self._live, self._stream.save(), strict=True))
        return [found[index] for index in range(len(found))]

    def restore(self, positions: Sequence[Any]) -> None:
        for index in self._parts:
            position = positions[index]
            # A split that was not planned when the job began is no part of the history.
            self._parts[index] = position if isinstance(position, HistoryPart) else None
        if self._stream is not None:
            live = [positions[index] for index in self._live]
            self._stream.restore([self._beginning if each == NEW else each for each in live])

    def add(self, partition: HistoryPart, position: Any) -> None:
        index = len(self._parts) + len(self._live)
        self._parts[index] = position if isinstance(position, HistoryPart) else None

    def interrupt(self) -> None:
        if self._stream is not None:
            self._stream.interrupt()

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        if self._stream is not None:
            self._stream.close()
