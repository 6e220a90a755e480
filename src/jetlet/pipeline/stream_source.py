"""What an unbounded source is: partitions, and readers that are polled for what is new.

A connector subclasses :class:`StreamSource` and :class:`StreamReader`. The engine divides the
partitions among its readers; each reader is polled by one thread. A reader says which partition its
items are from, because event time is tracked per partition: a quiet one must not hold up the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jetlet.core.processor import ProcessorContext
from jetlet.pipeline.described import Described
from jetlet.pipeline.errors import RawRecord
from jetlet.pipeline.expressions.data_types import ANY, DataType
from jetlet.pipeline.sink import OnError

__all__ = ["Polled", "Span", "SpanPart", "StreamReader", "StreamSource"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Polled(Generic[T]):
    """Items of one partition, in order."""

    partition: int
    """Index among the partitions that the reader was opened with."""
    items: Sequence[T]
    timestamps: Sequence[int] | None = None
    """Native timestamps, parallel to the items, if the source has them."""
    is_end: bool = False
    """Nothing more comes from the partition, so that others need not wait for it. A reader may say
    so with items or without, and more than once; after it was restored it says so again."""
    rejected: Sequence[tuple[RawRecord, Exception]] = ()
    """Records that could not be read, each with the reason, unless these fail the job."""
    has_order: bool = True
    """False if nothing can be said of the times of what follows in the partition, before its end:
    then event time waits for that."""


@dataclass(frozen=True, slots=True)
class Span:
    """What there is to read of one partition of a stream that was asked to end; picklable."""

    partition: Any
    """As in :meth:`StreamSource.partitions`: it says where to begin."""
    end: Any
    """Where the source ends, as it knows positions."""


@dataclass(frozen=True, slots=True)
class SpanPart(Generic[T]):
    """Items of a span, in order; none if there are none yet."""

    items: Sequence[T]
    timestamps: Sequence[int] | None
    """Native timestamps, parallel to the items, if the source has them."""
    rest: Span
    """What is left behind them."""
    rejected: Sequence[tuple[RawRecord, Exception]] = ()
    """Records before the items that could not be read."""


class StreamReader(ABC, Generic[T]):
    """Reads some partitions. All methods but ``interrupt`` are called by one thread."""

    @abstractmethod
    def poll(self, limit: int) -> Sequence[Polled[T]] | None:
        """What is new, about ``limit`` items at the most; empty if nothing is; ``None`` at the end.

        A reader of a blocking source may wait here, but for no longer than 100 ms, and returns at
        once after ``interrupt``. Others must not wait. If it brings fewer items than the limit, it
        has looked at all partitions.
        """

    def is_quiet(self, partition: int) -> bool:
        """Whether a partition has nothing to read, as far as the last poll could tell.

        Asked of those of which nothing has come for the idle timeout. Override it if a poll may
        bring nothing of a partition although there is something.
        """
        return True

    def save(self) -> Sequence[Any]:
        """The position in each partition, behind what was polled last; picklable."""
        raise NotImplementedError(f"{type(self).__name__} cannot be resumed")

    def restore(self, positions: Sequence[Any]) -> None:
        """Go on behind these positions, by partition; ``None`` begins anew. Before any poll."""
        raise NotImplementedError(f"{type(self).__name__} cannot be resumed")

    def add(self, partition: Any, position: Any | None) -> None:
        """Read one more partition, whose index is the next one, from a position that was saved.

        Without one it begins where the partition says.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no partitions while it reads")

    def remove(self, partition: int) -> None:
        """A partition is gone: read nothing more of it. The others keep their indexes."""
        raise NotImplementedError(f"{type(self).__name__} gives up no partitions while it reads")

    def interrupt(self) -> None:
        """Make a waiting ``poll`` return; from any thread."""

    def close(self) -> None:
        """Release everything."""


class StreamSource(Described, ABC, Generic[T]):
    """An unbounded source. It is pickled to where it is read, so it holds nothing open.

    One that can be asked to end, by ``until=...``, is ``is_bounded`` then: engines read its
    ``spans`` as the splits of a bounded source.
    """

    name: str
    preferred_local_parallelism: int = 1
    is_blocking: bool = False
    """True if readers wait in ``poll``: each then gets a thread of its own."""
    has_native_timestamps: bool = False
    is_replayable: bool = False
    """True if readers can ``save`` and ``restore`` positions."""
    on_error: OnError = "fail"
    """What becomes of records that cannot be read; a sink for them does not travel."""
    has_columns: bool = False
    """True if readers of what :meth:`in_columns` gives may poll tables."""
    discovery_ms: int | None = None
    """Milliseconds between two looks for partitions that are new or gone; ``None`` if they stay as
    they are. Such a source says with :meth:`partition_key` which partition is which."""
    can_follow_history: bool = True
    """True if it can be what a bounded source goes on with."""
    beginning: Any = None
    """The position of a partition that a snapshot does not know yet, because it was made since; by
    default where the partition says."""

    def item_type(self) -> DataType:
        """What is known of the type of the items, for expressions to be checked against."""
        return ANY

    @abstractmethod
    def partitions(self) -> Sequence[Any]:
        """What there is to read, picklable; called once, where the job is submitted."""

    def look_for_partitions(self) -> Iterator[Sequence[Any]]:
        """The keys of what there is to read, each time anew, if it has a ``discovery_ms``.

        Called on a thread of its own.
        """
        raise NotImplementedError(f"{type(self).__name__} finds no partitions")

    def partition_of(self, key: Any) -> Any:
        """The partition with that key, from its first record on, if it has a ``discovery_ms``.

        ``None`` if the source would not find it any more, having been changed since.
        """
        return None

    def partition_key(self, number: int, partition: Any) -> Any:
        """What a snapshot knows a partition by; by default its number.

        Override it if the order of the partitions may be another when the job is resumed.
        """
        return number

    def partition_name(self, number: int, partition: Any) -> str:
        """What a person knows a partition by; by default what a snapshot does."""
        return str(self.partition_key(number, partition))

    def in_columns(self) -> StreamSource[T]:
        """The same source for those who work on columns, if it ``has_columns``.

        What its readers poll may then be a :class:`~jetlet.core.table.Table`, with the items of one
        partition as ever. Few items cost less as a list.
        """
        return self

    @property
    def is_bounded(self) -> bool:
        """True if it was asked to end."""
        return False

    def spans(self) -> Sequence[Span]:
        """What there is to read if it is bounded; called once, where the job is submitted."""
        raise NotImplementedError(f"{type(self).__name__} does not end")

    def read_span(self, span: Span) -> Iterator[SpanPart[T]]:
        """The items of a span; where it may have to wait it yields empty parts meanwhile."""
        raise NotImplementedError(f"{type(self).__name__} does not end")

    @abstractmethod
    def open(self, partitions: Sequence[Any], context: ProcessorContext) -> StreamReader[T]:
        """A reader for some of the partitions."""
