"""Services on lease: from the time that one is made to the time that it is given back.

A service is what is dear to make and must be given back: a connection, a client, a model. One
:class:`ServiceLease` stands for one service, however many hold it; :class:`Leases` are those of a
stage, one for all its processors or one for each. A service that is to be made anew now and then is
replaced while it is used: each user goes on with the new one at a moment that suits it.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Generic, TypeVar

from jetlet.core.processor import ProcessorContext
from jetlet.pipeline.service_factory import ServiceFactory

__all__ = ["Leases", "ServiceLease"]

S = TypeVar("S")

logger = logging.getLogger("jetlet.execution")


class ServiceLease(Generic[S]):
    """Makes the service for its first holder and destroys it behind the last, once.

    Safe from any thread.
    """

    def __init__(self, factory: ServiceFactory[S]) -> None:
        self.service: Any = None
        """The newest one."""
        self._factory = factory
        self._holders = 0
        self._users: dict[int, int] = {}
        """How many use each service, by identity, if it may be replaced."""
        self._retired: dict[int, S] = {}
        """Those that were replaced and are still used."""
        self._made_ms = 0
        """When the newest one was begun to be made."""
        self._due_ns = 0
        self._is_reloading = False
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def hold(self, context: ProcessorContext) -> None:
        """Make the service, unless it is there already, and see to it that one stays."""
        with self._lock:
            if self._holders == 0:
                self._made_ms = context.clock.time_ms()
                self.service = self._factory.create(context)
                self._due_ns = self._next_reload(context)
            self._holders += 1

    def take(self, context: ProcessorContext) -> Any:
        """Hold it, and use the one that there is."""
        self.hold(context)
        with self._lock:
            if self._factory.reload is not None:
                self._use(self.service)
                context.set_as_of(self._made_ms)
            return self.service

    def renewed(self, service: Any, context: ProcessorContext) -> Any:
        """The service to go on with instead of the one that its user had; never waits."""
        if self._factory.reload is None:
            return service
        if context.clock.monotonic_ns() >= self._due_ns:
            self._begin_reload(context)
        if service is not self.service:
            with self._lock:
                self._use(self.service)
                self._leave(service)
                context.set_as_of(self._made_ms)
            context.count("reloads", 1)
        return self.service

    def give_back(self, service: Any) -> None:
        """The end of :meth:`take`, with the service that its user had last."""
        if self._factory.reload is not None:
            with self._lock:
                self._leave(service)
        self.let_go()

    def let_go(self) -> None:
        """The end of :meth:`hold`: destroys the service if nobody else holds it."""
        with self._lock:
            if self._holders == 0:  # it was never made
                return
            self._holders -= 1
            if self._holders:
                return
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        with self._lock:
            left = [*self._retired.values(), self.service]
            self.service = None
            self._retired.clear()
            self._users.clear()
        for each in left:
            self._factory.destroy(each)

    # --- Another one ------------------------------------------------------------------------

    def _next_reload(self, context: ProcessorContext) -> int:
        pause_ms = self._factory.reload or 0
        return context.clock.monotonic_ns() + pause_ms * 1_000_000

    def _begin_reload(self, context: ProcessorContext) -> None:
        with self._lock:
            if self._is_reloading or context.clock.monotonic_ns() < self._due_ns:
                return
            self._is_reloading = True
            self._on_thread(self._reload, context)

    def _reload(self, context: ProcessorContext) -> None:
        """One at a time: a slow one is not to take the place of one that was begun later."""
        try:
            self._make_anew(context)
        finally:
            with self._lock:
                self._due_ns = self._next_reload(context)
                self._is_reloading = False

    def _make_anew(self, context: ProcessorContext) -> None:
        began_ms = context.clock.time_ms()
        try:
            made = self._factory.create(context)
        except Exception as error:
            logger.warning(
                "%s: the service cannot be made anew, the old one stays: %r",
                context.vertex_name,
                error,
            )
            return
        with self._lock:
            self._made_ms = began_ms
            if made is self.service:
                return
            old, self.service = self.service, made
            self._retired[id(old)] = old
            if not self._users.get(id(old)):
                self._end(old)

    def _use(self, service: Any) -> None:
        self._users[id(service)] = self._users.get(id(service), 0) + 1

    def _leave(self, service: Any) -> None:
        key = id(service)
        self._users[key] = self._users.get(key, 1) - 1
        if not self._users[key] and key in self._retired:
            self._end(service)

    def _end(self, service: Any) -> None:
        del self._retired[id(service)]
        self._users.pop(id(service), None)
        self._on_thread(self._factory.destroy, service)  # it may block, and its user must not

    def _on_thread(self, target: Any, argument: Any) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        # A service that never comes must not keep the process from its end.
        thread = threading.Thread(
            target=target, args=(argument,), name="jetlet-service-reload", daemon=True
        )
        self._threads.append(thread)
        thread.start()


class Leases(Generic[S]):
    """The services of a stage, as its supplier has them; pickled without them."""

    def __init__(self, factory: ServiceFactory[S]) -> None:
        self._factory = factory
        self._shared: ServiceLease[S] = ServiceLease(factory)

    def __reduce__(self) -> tuple[Any, ...]:
        return Leases, (self._factory,)

    def open(self, context: ProcessorContext) -> None:
        """Make what all processors of the member share."""
        if self._factory.is_shared:
            self._shared.hold(context)

    def for_processor(self) -> ServiceLease[S]:
        """What one of the processors takes its service from, and gives it back to."""
        return self._shared if self._factory.is_shared else ServiceLease(self._factory)

    def close(self) -> None:
        """Give back what all share; safe if it was never made."""
        self._shared.let_go()
