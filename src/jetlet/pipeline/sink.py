"""What a sink is: writers that run where the data is, and one commit where the job was submitted.

A connector subclasses :class:`Sink`. Nothing a writer writes is visible before
:meth:`Sink.commit`; a job that fails or is cancelled leaves nothing behind. A sink that belongs to
the submitting process (results, logs, callbacks) subclasses :class:`ClientSink` instead.

A :class:`TransactionalSink` can also commit little by little, with the snapshots of a job, so that
a restart neither loses an item nor writes it twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from jetlet.pipeline.described import Described

__all__ = [
    "ClientSink",
    "Sink",
    "SinkWriter",
    "TransactionId",
    "TransactionWriter",
    "TransactionalSink",
    "WriterPlace",
]

T = TypeVar("T")


class SinkWriter(ABC, Generic[T]):
    """Writes one part of the output; used by one thread at a time, but for ``interrupt``."""

    @abstractmethod
    def write(self, batch: Sequence[T]) -> None:
        """Write a batch of items. The batch is shared: do not change it."""

    def sync(self) -> bool:
        """A snapshot is taken: what was written must not be lost. ``False`` to be called again."""
        return True

    def interrupt(self) -> None:
        """The job is ending: make a call that waits return, or raise; from any thread."""

    @abstractmethod
    def finish(self) -> Any:
        """Flush and close; return a picklable message for :meth:`Sink.commit`."""

    @abstractmethod
    def abort(self) -> None:
        """Close and discard what was written. Called instead of ``finish``."""


class Sink(Described, ABC, Generic[T]):
    """A sink whose writers run on members or in Spark tasks. It is pickled to them."""

    name: str
    preferred_local_parallelism: int = 1
    is_blocking: bool = False
    """True if a writer may block for long (a network): it then gets a thread of its own."""
    takes_columns: bool = False
    """True if its writers write columns without making items of them."""
    place: str | None = None
    """What this sink alone may write to in a job; ``None`` if it gets on with others."""
    place_is_shared: bool = False
    """True if other things may be in the place, such as the directory of another sink."""

    def begin(self, run_id: str) -> None:
        """Called once in the submitting process before anything runs; refuse bad targets here."""

    def resume(self, run_id: str) -> None:
        """Called instead of ``begin`` if the run goes on from a snapshot."""
        self.begin(run_id)

    @abstractmethod
    def open(self, run_id: str, writer_id: str) -> SinkWriter[T]:
        """A writer. ``writer_id`` is unique within the run, also among retried attempts."""

    def commit(self, run_id: str, messages: Sequence[Any]) -> None:  # optional hook
        """Make visible what the given writers wrote, and drop what any other attempt left.

        Called once in the submitting process, after every writer has finished. There is nothing to
        do if what is written is visible at once.
        """

    def abort(self, run_id: str) -> None:  # optional hook
        """The run failed: remove everything its writers left, finished or not."""


class TransactionId(NamedTuple):
    """Names a transaction: no other has the same name, ever."""

    run_id: str
    vertex: str
    number: int
    """Counts the transactions of a writer, also over restarts; not without gaps."""
    writer: int
    """The index of the writer that the message is from."""
    attempt: str
    """At the run; numbers of one that failed may come again."""


@dataclass(frozen=True, slots=True)
class WriterPlace:
    """Which of all writers of a vertex one is."""

    run_id: str
    vertex: str
    attempt: str
    index: int
    count: int

    def succeeds(self, writer: int) -> bool:
        """True if what a writer of an earlier attempt has left is for this one to deal with."""
        return writer % self.count == self.index

    def supersedes(self, writer: int, attempt: str) -> bool:
        """True if that attempt of the writer is over, and this is the one to succeed it."""
        return self.succeeds(writer) and int(attempt or 0) < int(self.attempt or 0)


class TransactionWriter(ABC, Generic[T]):
    """Writes one transaction after the other; used by one thread, but for ``interrupt``.

    Nobody sees what is written before ``commit``. A transaction that was prepared can be committed
    whatever happens, by another writer too, and after a crash may be committed again: then what was
    done must not be done twice.
    """

    @property
    def holds_back(self) -> bool:
        """True while something that was committed is yet to be shown.

        Then there is a transaction for each snapshot, though it may be empty; what ``prepare`` of
        it returns tells all that is held back, so that it is in the snapshot.
        """
        return False

    @abstractmethod
    def begin(self, transaction: TransactionId) -> None:
        """Open a transaction; none is open."""

    @abstractmethod
    def write(self, batch: Sequence[T]) -> None:
        """Write to the open transaction. The batch is shared: do not change it."""

    @abstractmethod
    def prepare(self) -> Any:
        """Close the open transaction so that nothing stands in the way of a commit.

        Returns what ``commit`` needs; it is saved in the snapshot, so it must be picklable.
        """

    @abstractmethod
    def commit(self, prepared: Any) -> None:
        """The snapshot counts: make a transaction of this writer visible."""

    @abstractmethod
    def recover(self, prepared: Sequence[Any]) -> None:
        """The job was restarted, and nothing is written yet.

        Commit these, if that was not done before it stopped. What is left of others, whose writers
        this one :meth:`~WriterPlace.supersedes`, is removed, unless it was to be kept.
        """

    def keep(self, prepared: Any) -> None:
        """The writer has ended, and this is left for :meth:`TransactionalSink.commit_last`.

        Later snapshots know of it, but later writers do not. It may still be committed before.
        """

    def release(self) -> None:
        """A stream that takes no snapshots is over: show what is held back."""

    def interrupt(self) -> None:
        """The job is ending: make a call that waits return, or raise; from any thread."""

    @abstractmethod
    def close(self) -> None:
        """Drop the open transaction, if there is one. Those that are prepared stay."""


class TransactionalSink(Sink[T]):
    """A sink that takes part in snapshots, beside what any sink does.

    Transactions are used by jobs with the guarantee exactly-once, each from one snapshot to the
    next. Jobs without them use the writers of :meth:`Sink.open`.
    """

    holds_back: bool = False
    """True if ordinary writers show nothing before the end of the job. Then transactions are used
    with every guarantee, and one after the other in streams without any."""

    @property
    def gathers(self) -> bool:
        """True if its writers show together what several transactions have written.

        A writer in micro-batches lasts for one, so these refuse it.
        """
        return False

    @abstractmethod
    def open_transactional(self, place: WriterPlace) -> TransactionWriter[T]:
        """A writer; called where it runs."""

    @abstractmethod
    def commit_last(self, run_id: str, vertex: str, prepared: Sequence[Any]) -> None:
        """All writers of a vertex have ended: commit what they have left, and drop all else.

        Called in the submitting process instead of ``commit``; again if it was killed meanwhile.
        """


class ClientSink(Described, ABC, Generic[T]):
    """A sink that lives in the submitting process, on every engine."""

    name: str

    def begin(self, run_id: str) -> None:
        """Called once before anything runs."""

    @abstractmethod
    def receive(self, batch: Sequence[T]) -> None:
        """Take a batch; called by one thread at a time."""

    def finish(self, error: BaseException | None) -> None:
        """The run has ended; ``error`` is ``None`` if it went well."""


@dataclass(frozen=True, slots=True)
class LastTransactions:
    """What a processor that has completed leaves to be committed at the end of the job."""

    vertex: str
    prepared: Sequence[Any]


AnySink = Sink[Any] | ClientSink[Any]
OnError = Literal["fail", "skip"] | AnySink
"""What to do when user code fails on an item, or a record cannot be read: end the job, drop and
count it, or send it, as a :class:`~jetlet.pipeline.errors.DeadLetter`, to a sink."""
