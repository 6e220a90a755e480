"""MessageInFlight: a message between its task's call and its completion; OffsetTracker: how far a
task has come in one partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from jetlet.errors import ProcessorContractError
from jetlet.tasks.envelope import IncomingEnvelope, Offset

if TYPE_CHECKING:
    from jetlet.tasks.loop.worker import TaskWorker


class OffsetTracker:
    """The end of the contiguous prefix of completed messages. Only for the event loop's thread.

    Messages may complete in any order; an offset counts when all before it are completed too.
    """

    __slots__ = ("in_flight", "latest")

    def __init__(self, last: Offset | None = None) -> None:
        self.latest = last
        """Of the message that was begun last; ``None`` if none was."""
        self.in_flight: dict[Offset, Offset | None] = {}
        """In the order they were begun: the offset of each message, and of the one before it."""

    @property
    def last(self) -> Offset | None:
        """Of the last message of the prefix; ``None`` if nothing was processed yet."""
        # The one before the first that is in flight. A list, since others may ask while it changes.
        before = list(self.in_flight.values())
        return before[0] if before else self.latest

    def begin(self, offset: Offset) -> None:
        """A message was given to the task."""
        self.in_flight[offset] = self.latest
        self.latest = offset

    def begin_all(self, offsets: Sequence[Offset]) -> None:
        """Some messages were given to the task, one at least."""
        self.in_flight.update(zip(offsets, (self.latest, *offsets), strict=False))
        self.latest = offsets[-1]

    def take_back(self) -> None:
        """The message that was begun last was not, after all."""
        _, self.latest = self.in_flight.popitem()

    def settle(self, offset: Offset) -> None:
        """A message is completed."""
        del self.in_flight[offset]

    def settle_all(self, offsets: Iterable[Offset]) -> None:
        """Some messages are completed."""
        in_flight = self.in_flight
        for offset in offsets:
            del in_flight[offset]


class MessageInFlight:
    """A message that its task has begun with; whoever completes it sets ``error`` or leaves it."""

    operation: ClassVar[None] = None
    must_end: ClassVar[bool] = False

    __slots__ = ("envelope", "error", "tracker", "worker")

    def __init__(
        self, worker: TaskWorker, tracker: OffsetTracker, envelope: IncomingEnvelope
    ) -> None:
        self.worker = worker
        self.tracker = tracker
        self.envelope = envelope
        self.error: BaseException | None = None

    def __str__(self) -> str:
        where = f"{self.envelope.partition}, offset {self.envelope.offset}"
        return f"process of task {self.worker.name!r} at {where}"


class Callback(MessageInFlight):
    """Given to asynchronous tasks.

    ``complete`` and ``fail`` may be called from any thread, also before ``process_async`` returns.
    """

    __slots__ = ("_is_open",)

    def __init__(
        self, worker: TaskWorker, tracker: OffsetTracker, envelope: IncomingEnvelope
    ) -> None:
        super().__init__(worker, tracker, envelope)
        self._is_open: list[None] = [None]

    def complete(self) -> None:
        """The message is fully processed."""
        self._close("complete")
        self.worker.completed(self)

    def fail(self, error: BaseException) -> None:
        """The message cannot be processed."""
        self._close("fail")
        self.error = error
        self.worker.completed(self)

    def _close(self, method: str) -> None:
        try:
            # To pop the only element is one step that no other thread can be in the middle of.
            self._is_open.pop()
        except IndexError:
            error = ProcessorContractError(
                f"callback.{method}() of {self.envelope} at task {self.worker.name!r}: it was "
                f"completed before; call complete() or fail() once for each message"
            )
            self.worker.broke_contract(error)
            raise error from None
