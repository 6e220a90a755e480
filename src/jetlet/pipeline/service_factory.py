"""ServiceFactory: something costly, such as a connection or a model, that user functions share.

What ``create`` returns is the service. For ``map_async`` it may also be awaitable or an async
context manager, such as an ``aiohttp.ClientSession`` or an ``asyncpg`` pool: it is made on the loop
that the coroutines run on, entered there, and left there at the end. With a ``destroy`` of its own,
which may be a coroutine function, it is not entered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jetlet.core.processor import ProcessorContext

S = TypeVar("S")


def _keep(service: Any) -> None:
    """Destroys nothing: the default for services that need no goodbye."""


@dataclass(frozen=True, slots=True)
class ServiceFactory(Generic[S]):
    """Makes a service where the data is; write ``shared_service(...)`` or ``service(...)``."""

    create: Callable[[ProcessorContext], S]
    destroy: Callable[[S], object] = _keep
    is_shared: bool = True
    """One per member, used by all its processors; else one per processor."""
    is_blocking: bool = False
    """Calls may block: each processor gets a thread of its own."""

    @property
    def has_destroy(self) -> bool:
        """True if its user said how it ends."""
        return self.destroy is not _keep


def shared_service(
    create: Callable[[ProcessorContext], S],
    destroy: Callable[[S], object] = _keep,
    *,
    blocking: bool = False,
) -> ServiceFactory[S]:
    """One service per member, shared by all its processors.

    It must be thread-safe, unless it is for ``map_async``: coroutines share a thread.
    """
    return ServiceFactory(create, destroy, is_shared=True, is_blocking=blocking)


def service(
    create: Callable[[ProcessorContext], S],
    destroy: Callable[[S], object] = _keep,
    *,
    blocking: bool = False,
) -> ServiceFactory[S]:
    """One service per processor, used by one thread at a time."""
    return ServiceFactory(create, destroy, is_shared=False, is_blocking=blocking)
