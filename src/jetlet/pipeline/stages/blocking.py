"""Functions that wait, called on threads: what ``map(fn, blocking=True)`` is made of.

A coroutine waits for each call, so that order, snapshots and errors are those of ``map_async``; the
threads are its service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from jetlet.core.processor import ProcessorContext
from jetlet.pipeline.service_factory import ServiceFactory

__all__ = ["call_in_thread", "threads_for"]


class _Threads:
    """Threads of one processor that call one function."""

    def __init__(self, fn: Callable[[Any], Any], count: int, context: ProcessorContext) -> None:
        self.pool = ThreadPoolExecutor(count, thread_name_prefix=f"jetlet-{context.vertex_name}")
        self._fn = fn

    def call(self, item: Any) -> Any:
        try:
            return self._fn(item)
        except StopIteration as error:
            # No coroutine can raise it.
            raise RuntimeError("the function raised StopIteration") from error

    async def close(self) -> None:
        """Wait for the calls under way, and let the loop go on meanwhile."""
        await asyncio.to_thread(self.pool.shutdown, cancel_futures=True)


def threads_for(fn: Callable[[Any], Any], count: int) -> ServiceFactory[Any]:
    """So many threads for each processor, to give :func:`call_in_thread`."""
    return ServiceFactory(partial(_Threads, fn, count), _Threads.close, is_shared=False)


async def call_in_thread(threads: _Threads, item: Any) -> Any:
    """The function of the threads, called by one of them."""
    return await asyncio.get_running_loop().run_in_executor(threads.pool, threads.call, item)
