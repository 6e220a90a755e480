"""ServiceLease: a service from the time it is made to the time it is given back.

A service is what is dear to make and must be given back: a connection, a client, a model. One lease
stands for one service, however many hold it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from jetlet.core.processor import ProcessorContext


class ServiceLease:
    """Makes the service for its first holder and destroys it behind the last, once.

    Safe from any thread.
    """

    def __init__(
        self, create: Callable[[ProcessorContext], Any], destroy: Callable[[Any], object]
    ) -> None:
        self.service: Any = None
        self._create = create
        self._destroy = destroy
        self._holders = 0
        self._lock = threading.Lock()

    def take(self, context: ProcessorContext) -> Any:
        """Make the service, unless somebody has it already."""
        with self._lock:
            if self._holders == 0:
                self.service = self._create(context)
            self._holders += 1
            return self.service

    def give_back(self) -> None:
        """Destroy the service if nobody else has it; does nothing if it was never made."""
        with self._lock:
            if self._holders == 0:
                return
            self._holders -= 1
            if self._holders == 0:
                service, self.service = self.service, None
                self._destroy(service)
