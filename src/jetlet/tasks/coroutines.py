"""CoroutineRunner: runs the messages of a task that is a coroutine function, on an asyncio loop.

Messages come from the thread of the event loop and go back to it completed. In between nothing is
made for each of them: as many asyncio tasks as are needed take one message after the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from jetlet.tasks.message import MessageInFlight

DELAY: Final = 0.001
"""Seconds that completed messages may wait for more, while nobody waits for them."""
MAX_STREAK: Final = 64
"""Messages in a row that may be processed without waiting before others on the loop get a turn."""


class CompletedMessages:
    """What the runners of a container have completed.

    The event loop need not look at it before it is told to. That is at once when a runner is about
    to run out of messages, else after a millisecond; and once for all that happens until then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self.messages: deque[MessageInFlight] = deque()
        self.has_news = False
        """The event loop is to take what is there; it takes the flag back."""
        self.is_announced = False
        self.is_timed = False
        """It will be told, at once or a little later."""
        self.loop = loop
        self._wake = wake

    def announce(self, *, at_once: bool) -> None:
        """Wake the event loop after this turn of asyncio, or a little later."""
        if at_once:
            self.is_announced = True
            self.loop.call_soon(self._announce)
        else:
            self.is_timed = True
            self.loop.call_later(DELAY, self._announce_later)

    def _announce(self) -> None:
        self.is_announced = False
        self.has_news = True
        self._wake()

    def _announce_later(self) -> None:
        self.is_timed = False
        if self.messages:
            self._announce()


class CoroutineRunner:
    """For one task. ``submit`` and ``close`` are for other threads, the rest is asyncio's."""

    def __init__(
        self,
        process: Callable[..., Any],
        arguments: tuple[Any, Any],
        max_concurrency: int,
        completed: CompletedMessages,
        low_water: int = 0,
    ) -> None:
        self._process = process
        self._arguments = arguments
        self._max_concurrency = max_concurrency
        self._low_water = low_water
        """With no more messages than this to begin it asks for others."""
        self._completed = completed
        self._loop = completed.loop
        self._todo: deque[MessageInFlight] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_starting = False
        self._is_closing = False

    def submit(self, messages: Iterable[MessageInFlight]) -> None:
        """Process them, in order, as soon as fewer than ``max_concurrency`` are under way."""
        self._todo.extend(messages)
        # With all asyncio tasks at work none needs to be told: each looks for its next message.
        if len(self._tasks) < self._max_concurrency and not self._is_starting:
            self._is_starting = True
            self._loop.call_soon_threadsafe(self._start)

    def withdraw(self) -> list[MessageInFlight]:
        """Take back those that were not begun; the last one first."""
        taken = []
        try:
            while True:
                taken.append(self._todo.pop())
        except IndexError:
            return taken

    def close(self, timeout: float) -> bool:
        """Cancel what runs and wait for it; false if it does not end in time."""
        ended = asyncio.run_coroutine_threadsafe(self._cancel(), self._loop)
        try:
            ended.result(timeout)
        except TimeoutError:
            return False
        return True

    async def _cancel(self) -> None:
        self._is_closing = True
        self._todo.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        """Start one more, and look again when it has begun to wait: it may need no others."""
        self._is_starting = False
        if self._todo and len(self._tasks) < self._max_concurrency and not self._is_closing:
            self._tasks.add(self._loop.create_task(self._work()))
            self._is_starting = True
            self._loop.call_soon(self._start)

    async def _work(self) -> None:
        """Process one message after the other until there are none."""
        todo = self._todo
        process = self._process
        collector, coordinator = self._arguments
        completed = self._completed
        low_water = self._low_water
        add = completed.messages.append
        announce = completed.announce
        streak = 0
        task = asyncio.current_task()
        assert task is not None
        try:
            while todo:
                try:
                    message = todo.popleft()
                except IndexError:  # it was withdrawn
                    break
                try:
                    await process(message.envelope, collector, coordinator)
                except asyncio.CancelledError as error:
                    if self._is_closing:
                        raise
                    # By the user's code, not by us.
                    message.error = error
                except BaseException as error:  # whatever it is, it ends the job
                    message.error = error
                add(message)
                if not completed.is_announced and (
                    (is_low := len(todo) <= low_water) or not completed.is_timed
                ):
                    announce(at_once=is_low)
                if streak < MAX_STREAK:
                    streak += 1
                else:
                    # It may be that the function never waits. Then nobody else would get a turn.
                    streak = 0
                    await asyncio.sleep(0)
        finally:
            self._tasks.discard(task)
        # `submit` adds messages and then looks at the tasks, here it is the other way round: so a
        # message that came just now is seen by one side at least.
        if todo and not self._is_starting:
            self._start()
