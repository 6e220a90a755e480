"""What a container reads from and writes to: the seams that each system fills in.

A :class:`System` is what a user writes, such as ``systems.log("data")``. It is pickled to the
containers, which open a :class:`SystemConsumer` for the partitions they own and a
:class:`SystemProducer` if anything is sent there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jetlet.errors import InvalidArgumentError
from jetlet.tasks.envelope import (
    IncomingEnvelope,
    Offset,
    OutgoingEnvelope,
    SystemStreamPartition,
)

EARLIEST = "earliest"
LATEST = "latest"


class Start(NamedTuple):
    """Where to read a partition from."""

    after: Offset | None
    """Behind this message; ``None`` if nothing of the partition was committed yet."""
    default: str = EARLIEST
    """Then from the first message there is, or from the next that will be."""


class Polled(NamedTuple):
    """Messages of one partition, in order."""

    partition: SystemStreamPartition
    envelopes: Sequence[IncomingEnvelope]
    is_end: bool = False
    """True if the stream has ended with these, and there will never be more."""
    upto: Offset | None = None
    """All that there is up to this offset has been given. Only where that cannot be seen from the
    messages, because what is at the offset is none: a marker of a transaction, say."""


class SystemConsumer(ABC):
    """Reads some partitions of one system.

    It is not a ``StreamReader`` of pipelines, although both poll. A task chooses between its
    partitions from one poll to the next, pauses some and never comes to an end; it commits the
    offsets of messages that are processed, which need not be those that were read. A reader of a
    pipeline gives all of its partitions in one go, may end, and its position is a part of the
    snapshot. What they share, such as the clients of Kafka and Redis, lies below both.

    ``poll`` is called by one thread at a time; the others are called when it is not, but for
    ``interrupt`` and ``lag``, which are for any thread at any time.
    """

    def start(self, wake: Callable[[], None]) -> None:  # noqa: B027 - optional
        """Begin. ``wake``, from any thread, sees to it that ``poll`` is called soon."""

    @abstractmethod
    def poll(
        self, wanted: Collection[SystemStreamPartition], limit: int
    ) -> Sequence[Polled] | None:
        """What is new in the partitions that are wanted, about ``limit`` messages of each.

        Empty if nothing is. If the system is blocking it may wait, 100 ms at the most, and returns
        at once after ``interrupt``. ``None`` says in addition that it need not be asked again
        before it wakes.
        """

    def lag(self, partition: SystemStreamPartition, after: Offset | None) -> int | None:
        """How many messages follow the offset, or without one the start, as far as that is
        known without waiting.
        """
        return None

    def interrupt(self) -> None:  # noqa: B027 - optional
        """Make a waiting ``poll`` return."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""


class SystemProducer(ABC):
    """Writes to the streams of one system. All methods may be called from any thread."""

    @abstractmethod
    def send(self, stream: str, batch: Sequence[OutgoingEnvelope]) -> None:
        """Take messages for a stream, in order. What fails later is raised by the next call."""

    @abstractmethod
    def flush(self) -> None:
        """Return when everything that was sent before is safe; raise if it cannot be."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""


class TransactionalProducer(SystemProducer):
    """Writes what one task sends to the streams of a system, seen only once the task is committed.

    What ``prepare`` returns goes into the task's checkpoint. So it is plain: lists, dicts, strings
    and numbers.
    """

    @abstractmethod
    def prepare(self) -> dict[str, Any]:
        """Make it possible to show what was sent since the last call, whatever happens next.

        Returns what ``commit`` needs, by stream; empty if nothing was sent.
        """

    @abstractmethod
    def commit(self, prepared: Mapping[str, Any]) -> None:
        """The checkpoint counts: show what was prepared."""

    @abstractmethod
    def recover(
        self, streams: Sequence[str], prepared: Mapping[str, Any], *, exactly: bool = True
    ) -> None:
        """Before anything is sent: show what was prepared for the task's last checkpoint, if that
        was not done yet, and drop all else that the task has left in these streams.

        Where it cannot be known whether that was done it raises or, not ``exactly``, does it.
        """


class System(ABC):
    """Where streams are. Picklable unless it lives in one process; holds nothing open."""

    is_blocking: bool = False
    """True if its consumers wait in ``poll``: then a thread of their own calls them."""
    has_transactions: bool = False
    """True if it has a :class:`TransactionalProducer`."""

    @abstractmethod
    def partition_count(self, stream: str) -> int:
        """How many partitions a stream has; raises if there is no such stream."""

    def newest(
        self, partitions: Sequence[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, Offset | None]:
        """The offset of the last message that is there, or ``None``, of each partition."""
        raise InvalidArgumentError(
            f"{self!r} does not know where its streams end, so none can be a bootstrap stream"
        )

    def before(
        self, partitions: Sequence[SystemStreamPartition], time_ms: int
    ) -> Mapping[SystemStreamPartition, Offset]:
        """An offset in each partition: messages behind it are of that time or later, or behind one
        that is.
        """
        raise InvalidArgumentError(
            f"{self!r} cannot be read from a time on; write Input(..., start='earliest')"
        )

    def order(self, offset: Offset) -> Any:
        """A value that compares as offsets follow each other."""
        return offset

    def prepare_output(  # noqa: B027 - optional
        self, stream: str, partitions: int | None, default: int
    ) -> None:
        """Make the stream if need be, where the application is submitted.

        With so many ``partitions``, or ``default`` if the user did not say.
        """

    def consumer(self, starts: Mapping[SystemStreamPartition, Start]) -> SystemConsumer:
        """A consumer of these partitions."""
        raise InvalidArgumentError(f"{self!r} cannot be read from: use it for outputs only")

    def transactional_producer(self, application: str, task: str) -> TransactionalProducer:
        """A producer for what a task of an application sends, if it has transactions."""
        raise NotImplementedError

    def producer(self) -> SystemProducer:
        """A producer for all streams."""
        raise InvalidArgumentError(f"{self!r} cannot be written to: use it for inputs only")
