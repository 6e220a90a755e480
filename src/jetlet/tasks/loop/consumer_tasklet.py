"""ConsumerTasklet: reads from one system into the container's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlet.execution.progress_state import DONE, MADE_PROGRESS, NO_PROGRESS, ProgressState
from jetlet.execution.tasklet import Tasklet
from jetlet.tasks.systems.system import Polled

if TYPE_CHECKING:
    from jetlet.tasks.loop.container import Container
    from jetlet.tasks.loop.input import InputPartition
    from jetlet.tasks.systems.system import SystemConsumer


class ConsumerTasklet(Tasklet):
    """Has a thread of its own if its system makes it wait.

    It reads from a partition only while there is room for more of it, so a slow task holds up its
    own input and nobody else's.
    """

    def __init__(self, system: str, container: Container, *, is_blocking: bool) -> None:
        super().__init__()
        self.name = f"{container.name}-{system}-consumer"
        self.vertex_name = container.name
        self.is_cooperative = not is_blocking
        self.is_full = False
        """There was no room for some partition at the last call; the event loop wakes it."""
        self._is_draining = False
        self._system = system
        self._container = container
        self._consumer: SystemConsumer | None = None
        self._partitions: list[InputPartition] = []

    def attach(self, consumer: SystemConsumer, partitions: list[InputPartition]) -> None:
        """Say what to read; when the container starts."""
        self._partitions = partitions
        self._consumer = consumer
        consumer.start(self.waker.wake)

    def call(self) -> ProgressState:
        container = self._container
        if self._is_draining:
            container.put([Polled(p.partition, (), is_end=True) for p in self._partitions])
        self._partitions = [p for p in self._partitions if not p.is_at_end]
        if container.is_done or not self._partitions:
            return DONE
        rooms = {p.partition: room for p in self._partitions if (room := p.room)}
        self.is_full = len(rooms) < len(self._partitions)
        if not rooms:
            self.is_resting = True
            return NO_PROGRESS
        assert self._consumer is not None
        polled = self._consumer.poll(rooms, min(rooms.values()))
        self.is_resting = polled is None
        if not polled:
            return NO_PROGRESS
        container.put(polled)
        return MADE_PROGRESS

    def end_here(self) -> None:
        """Read nothing more; from any thread."""
        self._is_draining = True
        self.waker.wake()
        self.interrupt()

    def interrupt(self) -> None:
        if self._consumer is not None:
            self._consumer.interrupt()
