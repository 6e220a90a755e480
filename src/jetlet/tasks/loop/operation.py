"""OperationCall: an operation of a task other than ``process``, on whichever thread it runs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

from jetlet.core.arguments import error_line
from jetlet.core.clock import Clock
from jetlet.errors import JobFailedError

if TYPE_CHECKING:
    from jetlet.tasks.loop.mailbox import Mailbox
    from jetlet.tasks.loop.worker import Operation, TaskWorker


class OperationCall:
    """Runs once; the event loop then finds the ``error`` in it, or ``None``."""

    __slots__ = ("_action", "_clock", "_mailbox", "elapsed_ns", "error", "operation", "worker")

    def __init__(
        self,
        worker: TaskWorker,
        operation: Operation,
        action: Callable[[], Any],
        mailbox: Mailbox,
        clock: Clock,
    ) -> None:
        self.worker = worker
        self.operation = operation
        self.error: BaseException | None = None
        self.elapsed_ns = 0
        self._action = action
        self._mailbox = mailbox
        self._clock = clock

    def __str__(self) -> str:
        return f"{self.operation.value} of task {self.worker.name!r}"

    @property
    def must_end(self) -> bool:
        """True of a commit: nobody may begin behind it before it is known how far it came."""
        return self.operation.value == "commit"

    @property
    def is_coroutine(self) -> bool:
        """True if it is to be awaited, on an asyncio loop."""
        return inspect.iscoroutinefunction(getattr(self._action, "func", self._action))

    def failure(self) -> JobFailedError:
        """The error that the job ends with because of it; its cause is the ``error``."""
        assert self.error is not None
        return JobFailedError(f"{self} failed: {error_line(self.error)}")

    def run(self) -> None:
        """Run it on this thread."""
        started = self._clock.monotonic_ns()
        try:
            result = self._action()
            if inspect.isawaitable(result):
                close = getattr(result, "close", None)
                if close is not None:
                    close()
                raise TypeError(
                    f"{self} returned something to await: write it as "
                    f"'async def {self.operation.value}'"
                )
        except BaseException as error:  # whatever it is, it ends the job
            self.error = error
        self.elapsed_ns = self._clock.monotonic_ns() - started

    def run_and_tell(self) -> None:
        """Run it on a thread of the pool, and tell the loop."""
        self.run()
        self._mailbox.post(self)

    def run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run it as a coroutine, and tell the loop."""
        started = self._clock.monotonic_ns()

        def done(future: Future[Any]) -> None:
            try:
                self.error = future.exception()
            except CancelledError as error:
                self.error = error
            self.elapsed_ns = self._clock.monotonic_ns() - started
            self._mailbox.post(self)

        asyncio.run_coroutine_threadsafe(self._action(), loop).add_done_callback(done)
