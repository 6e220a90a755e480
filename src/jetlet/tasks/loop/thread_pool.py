"""ThreadPool: the threads of a container that run synchronous tasks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from jetlet.execution.worker import EngineThread


class ThreadPool:
    """Runs what it is given, in order, on one of its threads. What runs must not raise."""

    def __init__(self, size: int, name: str) -> None:
        self._todo: queue.SimpleQueue[tuple[Callable[[Any], None], Any] | None] = (
            queue.SimpleQueue()
        )
        # Threads of the same service as the one it is made on: what they run may end the job, and
        # must not wait for it.
        service = getattr(threading.current_thread(), "service", None)
        self._threads = [EngineThread(self._run, f"{name}-{i}", service) for i in range(size)]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[Any], None], argument: Any) -> None:
        """Run ``function(argument)`` soon."""
        self._todo.put((function, argument))

    def close(self) -> None:
        """Wait for what runs, forget what does not run yet, and end the threads."""
        try:
            while True:
                self._todo.get_nowait()
        except queue.Empty:
            pass
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._todo.get()) is not None:
            function, argument = work
            function(argument)
            del work, function, argument  # nothing is kept alive while it waits
