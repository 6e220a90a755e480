"""CoroutineRunner: runs the messages of a task that is a coroutine function, on an asyncio loop.

Messages come from the thread of the event loop and go back to it completed, many at a time both
ways. In between nothing is made for each of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from jetlet.execution.coroutine_crew import MAX_STREAK, CoroutineCrew
from jetlet.tasks.envelope import IncomingEnvelope

if TYPE_CHECKING:
    from jetlet.tasks.loop.worker import TaskWorker

YIELD: Final = 20e-6
"""Seconds in which another thread can take the interpreter."""
DELAY: Final = 0.001
"""Seconds that completed messages may wait for more, while nobody waits for them."""


class CompletedMessages:
    """The runners of a container that have completed something.

    The event loop need not look at it before it is told to. That is at once when a runner has run
    out of messages, else after a millisecond; and once for all that happens until then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self.runners: deque[CoroutineRunner] = deque()
        self.has_news = False
        """The event loop is to take what is there; it takes the flag back."""
        self.is_announced = False
        self.is_timed = False
        """True if the end of the call will be told, at once or a little later."""
        self.loop = loop
        self._wake = wake

    def announce(self, *, at_once: bool) -> None:
        """Wake the event loop after this turn of asyncio, or a little later."""
        if self.is_announced:
            return
        if at_once:
            self.is_announced = True
            self.loop.call_soon(self._announce)
        elif not self.is_timed:
            self.is_timed = True
            self.loop.call_later(DELAY, self._announce_later)

    def _announce(self) -> None:
        self.is_announced = False
        if not self.has_news:
            self.has_news = True
            self._wake()
            self.loop.call_later(DELAY, self._yield)

    def _announce_later(self) -> None:
        self.is_timed = False
        if self.runners:
            self._announce()

    def _yield(self) -> None:
        if self.has_news:
            # It was told and has not come. Most likely this thread, which is busy, does not let it
            # have the interpreter: who waits for that gets it after five milliseconds, or as soon
            # as nobody else wants it.
            time.sleep(YIELD)


class CoroutineRunner(CoroutineCrew[IncomingEnvelope]):
    """For one task."""

    def __init__(self, worker: TaskWorker, completed: CompletedMessages) -> None:
        super().__init__(worker.max_concurrency, completed.loop)
        self.worker = worker
        self.completed: deque[IncomingEnvelope] = deque()
        """Messages that are completed and wait for the event loop to take them."""
        self.failure: tuple[IncomingEnvelope, BaseException] | None = None
        """The first message whose failure ends the job."""
        self.is_noted = False
        """The event loop will look at what is completed; it takes the flag back before it does."""
        self._all_completed = completed

    def take_completed(self) -> list[IncomingEnvelope]:
        """What was completed since the last call; for the event loop."""
        self.is_noted = False  # before the look, so that nothing is missed
        take = self.completed.popleft
        return [take() for _ in range(len(self.completed))]

    async def _work(self) -> None:
        worker = self.worker
        process: Callable[..., Any] = worker.process
        collector, coordinator = worker.collector, worker.coordinator
        take = self._todo.popleft
        add = self.completed.append
        streak = 0
        while True:
            try:
                envelope = take()
            except IndexError:
                self._all_completed.announce(at_once=True)
                return
            try:
                await process(envelope, collector, coordinator)
            except BaseException as error:  # whatever it is, it ends the job
                if isinstance(error, asyncio.CancelledError) and self._is_closing:
                    raise
                self.failure = self.failure or (envelope, error)
                self._note()
                self._all_completed.announce(at_once=True)
                return
            add(envelope)
            if not self.is_noted:
                self._note()
            if streak < MAX_STREAK:
                streak += 1
            else:
                # It may be that the function never waits. Then nobody else would get a turn.
                streak = 0
                await asyncio.sleep(0)

    def _note(self) -> None:
        self.is_noted = True
        self._all_completed.runners.append(self)
        self._all_completed.announce(at_once=False)
