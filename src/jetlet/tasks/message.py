"""MessageInFlight: a message between its task's call and its completion; OffsetTracker: how far a
task has come in one partition.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from jetlet.errors import ProcessorContractError
from jetlet.tasks.envelope import IncomingEnvelope, Offset

if TYPE_CHECKING:
    from jetlet.tasks.worker import TaskWorker


class OffsetTracker:
    """The end of the contiguous prefix of completed messages. Only for the event loop's thread.

    Messages may complete in any order; an offset counts when all before it are completed too.
    """

    __slots__ = ("in_flight", "last")

    def __init__(self, last: Offset | None = None) -> None:
        self.last = last
        """Of the last message of the prefix; ``None`` if nothing was processed yet."""
        self.in_flight: deque[MessageInFlight] = deque()
        """In the order they were begun; completed ones behind the first that is not."""

    def begin(self, message: MessageInFlight) -> None:
        """A message was given to the task."""
        self.in_flight.append(message)

    def settle(self, message: MessageInFlight) -> None:
        """A message is completed."""
        message.is_settled = True
        in_flight = self.in_flight
        while in_flight and in_flight[0].is_settled:
            self.last = in_flight.popleft().envelope.offset


class MessageInFlight:
    """A message that its task has begun with; whoever completes it sets ``error`` or leaves it."""

    operation: ClassVar[None] = None

    __slots__ = ("envelope", "error", "is_settled", "started_ns", "tracker", "worker")

    def __init__(
        self,
        worker: TaskWorker,
        tracker: OffsetTracker,
        envelope: IncomingEnvelope,
        started_ns: int,
    ) -> None:
        self.worker = worker
        self.tracker = tracker
        self.envelope = envelope
        self.started_ns = started_ns
        self.error: BaseException | None = None
        self.is_settled = False


class Callback(MessageInFlight):
    """Given to asynchronous tasks.

    ``complete`` and ``fail`` may be called from any thread, also before ``process_async`` returns.
    """

    __slots__ = ("_is_open",)

    def __init__(
        self,
        worker: TaskWorker,
        tracker: OffsetTracker,
        envelope: IncomingEnvelope,
        started_ns: int,
    ) -> None:
        super().__init__(worker, tracker, envelope, started_ns)
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
