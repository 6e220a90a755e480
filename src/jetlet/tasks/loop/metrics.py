"""ContainerMetrics: what an event loop counts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from jetlet.metrics.tasklet_metrics import TaskletMetrics
from jetlet.tasks.loop.worker import Operation


class ContainerMetrics(TaskletMetrics):
    """Written by the thread of the event loop, read from any.

    ``calls`` and ``busy_ns`` are those of the loop: turns that got something done, and the time
    they took. ``received`` are the messages given to tasks.
    """

    __slots__ = ("_lock", "chosen", "null", "operation_calls", "operation_ns")

    def __init__(self, name: str, container: int) -> None:
        super().__init__(name, container)
        self.chosen = 0
        """Messages that the chooser gave."""
        self.null = 0
        """Times it gave none."""
        self.operation_calls = dict.fromkeys(Operation, 0)
        self.operation_ns = dict.fromkeys(Operation, 0)
        self._lock = threading.Lock()

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter of a task's own; from any thread."""
        with self._lock:
            super().count(name, amount)

    def row(
        self,
        *,
        emitted: int,
        queue_size: int,
        queue_capacity: int,
        in_flight: int,
        elapsed_ns: int,
        lag: Mapping[str, int],
        committed: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The values now, as plain data: those of any tasklet, and the container's own."""
        container: dict[str, Any] = {"name": self.vertex, "member": self.processor}
        for operation in (Operation.PROCESS, Operation.WINDOW, Operation.COMMIT):
            container[f"{operation.value}_calls"] = self.operation_calls[operation]
            container[f"{operation.value}_ns"] = self.operation_ns[operation]
        container |= {
            "chosen_envelopes": self.chosen,
            "null_envelopes": self.null,
            "in_flight": in_flight,
            "pending": queue_size,
            "utilisation": self.busy_ns / max(1, elapsed_ns),
            "lag": dict(lag),
            "committed": dict(committed),
        }
        return super().snapshot() | {
            "emitted": emitted,
            "queue_size": queue_size,
            "queue_capacity": queue_capacity,
            "container": container,
        }
