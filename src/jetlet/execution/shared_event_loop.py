"""SharedEventLoop: one asyncio loop on a thread of its own, for all who lease it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("jetlet.execution")

STOP_TIMEOUT: Final = 10.0
"""Seconds to wait for coroutines that do not let themselves be cancelled."""


class SharedEventLoop:
    """Starts a thread with a loop for the first lease and ends it with the last.

    Safe from any thread but the loop's own. Leasing and releasing may block.
    """

    def __init__(
        self, name: str, make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    ) -> None:
        self._name = name
        self._make_loop = make_loop
        self._lock = threading.Lock()
        self._leases = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def lease(self) -> asyncio.AbstractEventLoop:
        """The running loop; call :meth:`release` once for each lease."""
        with self._lock:
            if self._thread is None:
                started = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(started,), name=self._name, daemon=True
                )
                self._thread.start()
                started.wait()
            self._leases += 1
            assert self._loop is not None
            return self._loop

    def release(self, limit: float = STOP_TIMEOUT) -> None:
        """Give a lease back. The last one cancels what still runs and ends the thread.

        A thread that does not end within so many seconds is left behind.
        """
        with self._lock:
            self._leases -= 1
            if self._leases > 0:
                return
            assert self._thread is not None
            assert self._loop is not None
            assert self._stopping is not None
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(limit)
            if self._thread.is_alive():
                logger.warning(
                    "%s does not end: a coroutine ignores that it is cancelled", self._name
                )
            self._thread = self._loop = self._stopping = None

    def _run(self, started: threading.Event) -> None:
        # The runner ends what is left on the loop: tasks, asynchronous generators, its threads.
        with asyncio.Runner(loop_factory=self._make_loop) as runner:
            runner.run(self._serve(started))

    async def _serve(self, started: threading.Event) -> None:
        stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stopping = stopping
        started.set()
        await stopping.wait()
