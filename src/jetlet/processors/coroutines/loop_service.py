"""LoopService: a service that coroutines use, made and closed on the loop that they run on.

What a client of asyncio is made of belongs to a loop: made elsewhere, or left for the next one, it
fails. One task makes it and closes it, as a context manager may ask for.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from jetlet.core.processor import ProcessorContext
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.processors.coroutines.member_loop import loop_on

__all__ = ["LoopService", "on_member_loop"]

_PRIMITIVES = (asyncio.Lock, asyncio.Semaphore, asyncio.Condition, asyncio.Barrier)
"""Context managers that are there to be entered by whoever uses them."""


def on_member_loop(factory: ServiceFactory[Any]) -> ServiceFactory[Any]:
    """The factory of a user, as one of :class:`LoopService`."""
    return replace(factory, create=partial(LoopService, factory), destroy=LoopService.close)


class LoopService:
    """One service; the constructor and ``close`` block, and are for other threads."""

    def __init__(self, factory: ServiceFactory[Any], context: ProcessorContext) -> None:
        self.value: Any = None
        """What coroutines are given."""
        self._shared = loop_on(context.clock)
        self._loop = self._shared.lease()
        self._closing = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        try:
            self._run(self._open(factory, context))
        except BaseException:
            self._shared.release()
            raise

    def close(self) -> None:
        """Give the service back; raises what its end raises."""
        try:
            if not self._loop.is_closed():
                self._run(self._close())
        finally:
            self._shared.release()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _open(self, factory: ServiceFactory[Any], context: ProcessorContext) -> None:
        opened = self._loop.create_future()
        self._life = self._loop.create_task(self._live(factory, context, opened))
        await asyncio.wait((opened, self._life), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await self._life  # raises

    async def _live(
        self, factory: ServiceFactory[Any], context: ProcessorContext, opened: asyncio.Future[None]
    ) -> None:
        async with _service(factory, context) as self.value:
            opened.set_result(None)
            await self._closing.wait()

    async def _close(self) -> None:
        assert self._life is not None
        self._closing.set()
        await self._life


@asynccontextmanager
async def _service(factory: ServiceFactory[Any], context: ProcessorContext) -> AsyncIterator[Any]:
    made: Any = factory.create(context)
    if inspect.isawaitable(made) and not hasattr(made, "__aenter__"):
        made = await made
    if factory.has_destroy:
        if inspect.isawaitable(made):
            made = await made
        try:
            yield made
        finally:
            ended = factory.destroy(made)
            if inspect.isawaitable(ended):
                await ended
    elif hasattr(made, "__aenter__") and not isinstance(made, _PRIMITIVES):
        async with made as entered:
            yield entered
    else:
        yield made
