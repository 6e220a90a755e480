"""Mailbox: the way from any thread to the event loop; whatever is put into it wakes the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jetlet.tasks.task import Scope

if TYPE_CHECKING:
    from jetlet.tasks.loop.message import MessageInFlight
    from jetlet.tasks.loop.operation import OperationCall


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A task asks for a commit."""

    task: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class ShutdownRequest:
    """A task asks for the end of the container."""

    task: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class TimerRequest:
    """A task wants to be called later."""

    task: str
    due_ns: int
    callback: Callable[[Any, Any], Any]


Request = CommitRequest | ShutdownRequest | TimerRequest


class Mailbox:
    """Filled from any thread, emptied by the loop at the beginning of each turn."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.completed: deque[MessageInFlight | OperationCall] = deque()
        self.requests: deque[Request] = deque()
        self.failure: BaseException | None = None
        self._wake = wake

    def post(self, done: MessageInFlight | OperationCall) -> None:
        """A message is completed, or an operation has ended; its ``error`` says how."""
        self.completed.append(done)
        self._wake()

    def ask(self, request: Request) -> None:
        """A task asks for something."""
        self.requests.append(request)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """The job cannot go on."""
        self.failure = self.failure or error
        self._wake()


class Coordinator:
    """What a task asks its container by; one for each task, safe from any thread."""

    def __init__(self, task: str, mailbox: Mailbox) -> None:
        self._task = task
        self._mailbox = mailbox

    def commit(self, scope: Scope = Scope.CURRENT_TASK) -> None:
        self._mailbox.ask(CommitRequest(self._task, scope))

    def shutdown(self, scope: Scope = Scope.CURRENT_TASK) -> None:
        self._mailbox.ask(ShutdownRequest(self._task, scope))
