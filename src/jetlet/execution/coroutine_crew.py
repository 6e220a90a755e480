"""CoroutineCrew: asyncio tasks that take one thing after the other from a queue.

Nothing is made for each of the things: there are as many tasks as things are under way, up to a
limit, and each goes on with the next. What one does with a thing is written by the subclasses, in
``_work``, which is the loop itself: a call around each thing would cost as much as the rest of it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MAX_STREAK: Final = 64
"""Things in a row that may be done without waiting before others on the loop get a turn."""


class CoroutineCrew(ABC, Generic[T]):
    """``submit`` and ``close`` are for other threads, the rest happens on the loop's."""

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self._size = size
        self._loop = loop
        self._todo: deque[T] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_starting = False
        self._step = 1
        self._is_closing = False

    @abstractmethod
    async def _work(self) -> None:
        """Take things from ``_todo`` until there are none; raise nothing but a cancellation."""

    def submit(self, things: Iterable[T]) -> None:
        """Do them, in order, as soon as fewer than ``size`` are under way."""
        self._todo.extend(things)
        # With all tasks at work no signal is needed: each looks for its next thing. To send one is
        # a system call, after which a busy loop may keep the caller out for long.
        if len(self._tasks) < self._size and not self._is_starting:
            self._is_starting = True
            self._loop.call_soon_threadsafe(self._start)

    def withdraw(self) -> list[T]:
        """Take back those that were not begun; the last one first. From any thread."""
        taken = []
        try:
            while True:
                taken.append(self._todo.pop())
        except IndexError:
            return taken

    def close(self, timeout: float) -> bool:
        """Cancel what runs and wait for it; false if it does not end in time."""
        if self._loop.is_closed():
            return True
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
        """Start some tasks, and look again when they have begun: that may be enough.

        Where things never wait, one task does them all; where they do, the number grows fast.
        """
        self._is_starting = False
        count = min(len(self._todo), self._size - len(self._tasks), self._step)
        if count <= 0 or self._is_closing:
            self._step = 1
            return
        for _ in range(count):
            task = self._loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        self._step *= 8
        self._is_starting = True
        self._loop.call_soon(self._start)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # `submit` first adds things and then looks at the tasks, here it is the other way round: so
        # one that came just now is seen by one side at least.
        if self._todo and not self._is_starting:
            self._start()
