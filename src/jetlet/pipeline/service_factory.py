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

from jetlet.core.durations import Duration, to_ms
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError

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
    reload: int | None = None
    """Milliseconds after which another one takes its place."""
    gpus: int = 0
    """Graphics processors that it needs."""

    @property
    def has_destroy(self) -> bool:
        """True if its user said how it ends."""
        return self.destroy is not _keep


def shared_service(
    create: Callable[[ProcessorContext], S],
    destroy: Callable[[S], object] = _keep,
    *,
    blocking: bool = False,
    reload: Duration | None = None,
    gpus: int = 0,
) -> ServiceFactory[S]:
    """One service per member, shared by all its processors.

    It must be thread-safe, unless it is for ``map_async``: coroutines share a thread. The options
    are those of :func:`jetlet.service`.
    """
    return _factory("shared_service", create, destroy, True, blocking, reload, gpus)


def service(
    create: Callable[[ProcessorContext], S],
    destroy: Callable[[S], object] = _keep,
    *,
    blocking: bool = False,
    reload: Duration | None = None,
    gpus: int = 0,
) -> ServiceFactory[S]:
    """One service per processor, used by one thread at a time.

    :param blocking: calls wait, so each processor gets a thread of its own.
    :param reload: after so long, such as ``"10m"``, another is made, on a thread of its own, and
        takes its place between two calls; one that cannot be made is logged, and the old one stays.
    :param gpus: graphics processors that it needs. On Spark the session must give each task that
        many, or the job is refused.
    """
    return _factory("service", create, destroy, False, blocking, reload, gpus)


def _factory(
    what: str,
    create: Callable[[ProcessorContext], S],
    destroy: Callable[[S], object],
    is_shared: bool,
    blocking: bool,
    reload: Duration | None,
    gpus: int,
) -> ServiceFactory[S]:
    pause = None if reload is None else to_ms(f"{what}: reload", reload, minimum=1)
    if type(gpus) is not int or gpus < 0:
        raise InvalidArgumentError(f"{what}: gpus={gpus!r}: write a whole number, 0 for none")
    return ServiceFactory(create, destroy, is_shared, blocking, pause, gpus)
