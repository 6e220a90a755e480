"""Calling a task's hooks where it may block: when its container starts and stops."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from jetlet.core.clock import Clock
from jetlet.processors.coroutines.member_loop import loop_on


class AsyncioLease:
    """The asyncio loop of this member, leased when somebody needs it."""

    def __init__(self, clock: Clock) -> None:
        self._shared = loop_on(clock)
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = self._shared.lease()
        return self._loop

    def release(self, limit: float) -> None:
        """Give it back, if it was leased; what runs on it is awaited for so many seconds."""
        if self._loop is not None:
            self._loop = None
            self._shared.release(limit)


def call_hook(hook: Callable[..., Any] | None, lease: AsyncioLease, *arguments: Any) -> None:
    """Call a hook that the task may have, and wait for it if it is a coroutine."""
    if hook is None:
        return
    result = hook(*arguments)
    if inspect.iscoroutine(result):
        asyncio.run_coroutine_threadsafe(result, lease()).result()
