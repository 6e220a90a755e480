"""What a sink is: writers that run where the data is, and one commit where the job was submitted.

A connector subclasses :class:`Sink`. Nothing a writer writes is visible before
:meth:`Sink.commit`; a job that fails or is cancelled leaves nothing behind. A sink that belongs to
the submitting process (results, logs, callbacks) subclasses :class:`ClientSink` instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SinkWriter(ABC, Generic[T]):
    """Writes one part of the output; used by one thread at a time."""

    @abstractmethod
    def write(self, batch: Sequence[T]) -> None:
        """Write a batch of items. The batch is shared: do not change it."""

    @abstractmethod
    def finish(self) -> Any:
        """Flush and close; return a picklable message for :meth:`Sink.commit`."""

    @abstractmethod
    def abort(self) -> None:
        """Close and discard what was written. Called instead of ``finish``."""


class Sink(ABC, Generic[T]):
    """A sink whose writers run on members or in Spark tasks. It is pickled to them."""

    name: str
    preferred_local_parallelism: int = 1
    is_blocking: bool = False
    """True if a writer may block for long (a network): it then gets a thread of its own."""

    def begin(self, run_id: str) -> None:
        """Called once in the submitting process before anything runs; refuse bad targets here."""

    @abstractmethod
    def open(self, run_id: str, writer_id: str) -> SinkWriter[T]:
        """A writer. ``writer_id`` is unique within the run, also among retried attempts."""

    @abstractmethod
    def commit(self, run_id: str, messages: Sequence[Any]) -> None:
        """Make visible what the given writers wrote, and drop what any other attempt left.

        Called once in the submitting process, after every writer has finished.
        """

    @abstractmethod
    def abort(self, run_id: str) -> None:
        """The run failed: remove everything its writers left, finished or not."""


class ClientSink(ABC, Generic[T]):
    """A sink that lives in the submitting process, on every engine."""

    name: str

    def begin(self, run_id: str) -> None:
        """Called once before anything runs."""

    @abstractmethod
    def receive(self, batch: Sequence[T]) -> None:
        """Take a batch; called by one thread at a time."""

    def finish(self, error: BaseException | None) -> None:
        """The run has ended; ``error`` is ``None`` if it went well."""
