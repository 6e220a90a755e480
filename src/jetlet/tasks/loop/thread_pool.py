"""ThreadPool: the threads of a container that run synchronous tasks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from jetlet.execution.worker import EngineThread

if TYPE_CHECKING:
    from jetlet.tasks.loop.worker import TaskWorker


class Work(Protocol):
    """What a thread of the pool can be busy with; its ``str`` says so to a user."""

    worker: TaskWorker

    @property
    def must_end(self) -> bool:
        """True if it is to be waited for however long it takes."""


class ThreadPool:
    """Runs what it is given, in order, on one of its threads. What runs must not raise."""

    def __init__(self, size: int, name: str) -> None:
        self._todo: queue.SimpleQueue[tuple[Callable[[Any], None], Work] | None] = (
            queue.SimpleQueue()
        )
        # Threads of the same service as the one it is made on: what they run may end the job, and
        # must not wait for it.
        service = getattr(threading.current_thread(), "service", None)
        self._at_work: dict[threading.Thread, Work | None] = {}
        """What each thread is busy with."""
        for i in range(size):
            thread = EngineThread(self._run, f"{name}-{i}", service)
            self._at_work[thread] = None
            thread.start()

    def submit(self, function: Callable[[Any], None], argument: Any) -> None:
        """Run ``function(argument)`` soon."""
        self._todo.put((function, argument))

    def close(self, deadline: float) -> list[tuple[str, Work]]:
        """Forget what does not run yet, wait for what does, and end the threads.

        Nobody can end a call from outside: one that has not returned at the deadline, a time of
        ``time.monotonic()``, is left behind with its thread, which ends when it does. Gives the
        names of such threads, and what they are busy with.
        """
        try:
            while True:
                self._todo.get_nowait()
        except queue.Empty:
            pass
        for _ in self._at_work:
            self._todo.put(None)
        left = []
        for thread in list(self._at_work):
            thread.join(max(0.0, deadline - time.monotonic()))
            work = self._at_work[thread]
            if work is not None and work.must_end:
                thread.join()
            elif work is not None and thread.is_alive():
                left.append((thread.name, work))
        return left

    def _run(self) -> None:
        thread = threading.current_thread()
        while (job := self._todo.get()) is not None:
            function, argument = job
            self._at_work[thread] = argument
            function(argument)
            self._at_work[thread] = None
            del job, function, argument  # nothing is kept alive while it waits
