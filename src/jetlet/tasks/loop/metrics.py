"""ContainerMetrics: what an event loop counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jetlet.core.clock import Clock
from jetlet.metrics.tasklet_metrics import TaskletMetrics
from jetlet.tasks.loop.worker import Operation


class ContainerMetrics(TaskletMetrics):
    """Written by the thread of the event loop, read from any.

    ``calls`` and ``busy_ns`` are those of the loop: turns that got something done, and the time
    they took. ``received`` are the messages given to tasks.
    """

    __slots__ = ("_lock", "chosen", "gauges", "null", "operation_calls", "operation_ns", "timers")

    def __init__(self, name: str, container: int) -> None:
        super().__init__(name, container)
        self.chosen = 0
        """Number of messages that the chooser gave."""
        self.null = 0
        """How often the chooser was asked and gave no message."""
        self.operation_calls = dict.fromkeys(Operation, 0)
        self.operation_ns = dict.fromkeys(Operation, 0)
        self.gauges: dict[str, dict[str, float]] = {}
        """By task: the values that it has set last."""
        self.timers: dict[str, dict[str, int]] = {}
        """What tasks have timed: how often, the nanoseconds of all, and of the longest."""
        self._lock = threading.Lock()

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter of a task's own; from any thread."""
        with self._lock:
            super().count(name, amount)

    def gauge(self, task: str, name: str, value: float) -> None:
        """Set a value of a task's own; from any thread."""
        with self._lock:
            self.gauges.setdefault(task, {})[name] = value

    @contextmanager
    def timed(self, name: str, clock: Clock) -> Iterator[None]:
        """Measure how long something of a task's takes; from any thread."""
        started = clock.monotonic_ns()
        try:
            yield
        finally:
            elapsed = clock.monotonic_ns() - started
            with self._lock:
                timer = self.timers.setdefault(name, {"count": 0, "ns": 0, "longest_ns": 0})
                timer["count"] += 1
                timer["ns"] += elapsed
                timer["longest_ns"] = max(timer["longest_ns"], elapsed)

    def row(
        self,
        *,
        outputs: Sequence[int],
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
        with self._lock:
            container["gauges"] = {task: dict(values) for task, values in self.gauges.items()}
            container["timers"] = {name: dict(values) for name, values in self.timers.items()}
        return super().snapshot() | {
            "emitted": sum(outputs),
            "outputs": dict(enumerate(outputs)),
            "queue_size": queue_size,
            "queue_capacity": queue_capacity,
            "container": container,
        }
