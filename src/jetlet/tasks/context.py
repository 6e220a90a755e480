"""TaskContext: what a task may know of its surroundings, given to ``InitableTask.init``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from jetlet.core.clock import SYSTEM_CLOCK, Clock
from jetlet.errors import InvalidArgumentError
from jetlet.tasks.envelope import SystemStreamPartition
from jetlet.tasks.state.container_storage import KeyValueStore


def _no_count(name: str, amount: float = 1) -> None:
    """Where counts go that nobody shows."""


def _no_timer(name: str) -> AbstractContextManager[None]:
    """Where what is timed goes that nobody shows."""
    return nullcontext()


def _no_schedule(seconds: float, callback: Callable[[Any, Any], Any]) -> None:
    """Where callbacks go that nobody will call."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """One for each task. Its stores may be used from any thread."""

    application: str = "application"
    task: str = "task"
    """The name of the task, the same in every run."""
    partitions: tuple[SystemStreamPartition, ...] = ()
    """The partitions of the inputs that this task owns."""
    stores: Mapping[str, KeyValueStore[Any, Any]] = field(default_factory=dict)
    container: int = 0
    """The index of the member that the task runs in."""
    container_count: int = 1
    clock: Clock = SYSTEM_CLOCK
    count: Callable[[str, int], None] = _no_count
    """Add to a counter of the task's own, shown in the job's metrics."""
    gauge: Callable[[str, float], None] = _no_count
    """Set a value of the task's own, shown in the metrics of its container."""
    timer: Callable[[str], AbstractContextManager[None]] = _no_timer
    """``with context.timer("lookup"):`` measures how long something takes, and how often it is
    done; shown in the metrics of the container, for all its tasks together."""
    schedule: Callable[[float, Callable[[Any, Any], Any]], None] = _no_schedule
    """``schedule(seconds, callback)`` calls ``callback(collector, coordinator)`` later, when none
    of the task's messages is in flight; from any thread. It is forgotten when the container ends.
    """

    def store(self, name: str) -> KeyValueStore[Any, Any]:
        """The task's own store of this name."""
        try:
            return self.stores[name]
        except KeyError:
            known = ", ".join(self.stores) or "none"
            raise InvalidArgumentError(
                f"task {self.task!r} has no store {name!r} (it has: {known}); write "
                f"TaskApplication(..., stores={{{name!r}: stores.in_memory()}})"
            ) from None

    @property
    def logger(self) -> logging.Logger:
        """A logger that names the application and the task."""
        return logging.getLogger(f"jetlet.tasks.{self.application}.{self.task}")
