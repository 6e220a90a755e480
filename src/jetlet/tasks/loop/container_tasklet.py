"""ContainerTasklet: the event loop of a container, as an execution service calls it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jetlet.core.processor import ProcessorContext
from jetlet.execution.call_reports import SLOW_CALL_NS
from jetlet.execution.progress_state import NO_PROGRESS, ProgressState
from jetlet.execution.tasklet import Tasklet
from jetlet.tasks.application import TaskApplication
from jetlet.tasks.assignment import TaskAssignment
from jetlet.tasks.loop.container import Container

logger = logging.getLogger("jetlet.tasks")


class ContainerTasklet(Tasklet):
    """One call is one turn of the loop; beginning and end are those of the container."""

    def __init__(
        self,
        application: TaskApplication,
        assignments: Sequence[TaskAssignment],
        context: ProcessorContext,
    ) -> None:
        super().__init__()
        self.commits_when_closed = True
        self.name = f"{application.name}#{context.member_index}"
        self.vertex_name = application.name
        self.is_cooperative = application.config.is_cooperative
        self.container = Container(application, assignments, context, self.waker.wake)
        self._clock = context.clock

    def init(self) -> None:
        self.container.start()
        self.container.metrics.life.start()

    def call(self) -> ProgressState:
        container = self.container
        loop = container.loop
        state = loop.call()
        if state is NO_PROGRESS:
            self.is_resting = loop.is_resting
            return state
        if state.is_done:
            container.end()
            container.metrics.life.stop()
            self.commits_when_closed = False  # it has
        else:
            container.wake_consumers()
        return state

    def close(self) -> None:
        self.container.stop()

    def drain(self) -> None:
        self.container.drain()

    def metrics_rows(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        return self.container.metrics_rows()

    def record_call(self, elapsed_ns: int) -> None:
        metrics = self.container.metrics
        metrics.calls += 1
        metrics.busy_ns += elapsed_ns
        metrics.histogram[elapsed_ns.bit_length()] += 1
        metrics.longest_call_ns = max(metrics.longest_call_ns, elapsed_ns)
        if elapsed_ns > SLOW_CALL_NS and self.is_cooperative:
            metrics.slow_calls += 1
            if metrics.may_report(self._clock.monotonic_ns()):
                logger.info(
                    "%s: a turn of the event loop took %.1f ms, and all else on its thread waited; "
                    "for tasks that wait write TaskConfig(thread_pool_size=...) or "
                    "is_cooperative=False",
                    self.name,
                    elapsed_ns / 1e6,
                )
