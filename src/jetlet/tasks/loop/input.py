"""The way in: messages from the consumers' threads to the event loop, bounded.

``MessageQueue`` holds, for each :class:`InputPartition`, what its consumer has read and the loop
has not taken yet. Consumers ``put``, the loop takes; neither ever waits for the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jetlet.tasks.envelope import IncomingEnvelope, Offset, SystemStreamPartition
from jetlet.tasks.loop.chooser import MessageChooser
from jetlet.tasks.systems.system import Polled

if TYPE_CHECKING:
    from jetlet.tasks.loop.message import OffsetTracker
    from jetlet.tasks.loop.worker import TaskWorker


class InputPartition:
    """One partition of an input of this container."""

    __slots__ = (
        "_ahead",
        "_order",
        "buffer",
        "capacity",
        "is_at_end",
        "is_ended",
        "is_offered",
        "partition",
        "read",
        "seen",
        "tracker",
        "untaken",
        "worker",
        "workers",
    )

    def __init__(self, partition: SystemStreamPartition, capacity: int) -> None:
        self.partition = partition
        self.capacity = capacity
        self.buffer: deque[IncomingEnvelope] = deque()
        """Read and not yet offered to the chooser. Filled by the consumer, emptied by the loop."""
        self.read = 0
        """Messages that the consumer has put into it."""
        self.seen: Offset | None = None
        """Set by the consumer: what is in the buffer is all there is up to this offset."""
        self.is_at_end = False
        """Set by the consumer: what is in the buffer is all there will ever be."""
        self.is_offered = False
        """The chooser has its next message, or a task that has not taken it yet."""
        self.is_ended = False
        """True if all messages were taken and the tasks know of the end."""
        self.untaken = 0
        """Tasks that have yet to take the message that was chosen last."""
        self.workers: tuple[TaskWorker, ...] = ()
        self.worker: TaskWorker | None = None
        """The worker of the only task on this partition, if there is only one."""
        self.tracker: OffsetTracker | None = None
        """The offset tracker of the only worker, if there is only one."""
        self._ahead: dict[TaskWorker, Any] = {}
        """Offsets of the tasks that had come further than others when reading began."""
        self._order: Callable[[Offset], Any] | None = None

    def attach(self, workers: Sequence[TaskWorker], order: Callable[[Offset], Any]) -> None:
        """Say which tasks read this partition, and how its offsets compare."""
        self.workers = tuple(workers)
        if len(workers) == 1:
            self.worker = workers[0]
            self.tracker = self.worker.trackers[self.partition]
            return
        reached = [(worker, worker.trackers[self.partition].last) for worker in workers]
        self._ahead = {worker: order(last) for worker, last in reached if last is not None}
        self._order = order

    def takers(self, envelope: IncomingEnvelope) -> Sequence[TaskWorker]:
        """The tasks that a message is for.

        It is read from where the task is that is furthest behind; the others have had some of what
        follows, and get it no second time.
        """
        if not self._ahead or self._order is None:
            return self.workers
        here = self._order(envelope.offset)
        self._ahead = {worker: at for worker, at in self._ahead.items() if at >= here}
        return [worker for worker in self.workers if worker not in self._ahead]

    @property
    def room(self) -> int:
        """How many more messages may be read; 0 until half of the buffer is free."""
        waiting = len(self.buffer)
        return self.capacity - waiting if 2 * waiting <= self.capacity else 0


class MessageQueue:
    """What was read and not processed. ``put`` is for consumers, the rest for the loop."""

    def __init__(
        self, partitions: Iterable[SystemStreamPartition], capacity: int, wake: Callable[[], None]
    ) -> None:
        keys = list(partitions)
        share = max(1, capacity // max(1, len(keys)))
        self.partitions = {key: InputPartition(key, share) for key in keys}
        self.arrivals: deque[InputPartition] = deque()
        """Partitions that got something since the last look."""
        self._wake = wake

    def put(self, polled: Iterable[Polled]) -> None:
        """Add what was read; from any consumer's thread."""
        for key, envelopes, is_end, upto in polled:
            partition = self.partitions[key]
            partition.buffer.extend(envelopes)
            partition.read += len(envelopes)
            if upto is not None:
                partition.seen = upto
            if is_end:
                partition.is_at_end = True
            # Only now: who sees the arrival sees what has arrived.
            self.arrivals.append(partition)
        self._wake()

    def offer_next(self, partition: InputPartition, chooser: MessageChooser) -> bool:
        """Give the chooser the next message of a partition, the one before it being taken.

        True if there is none and never will be, and this was not known before.
        """
        if partition.buffer:
            partition.is_offered = True
            chooser.update(partition.buffer.popleft())
            return False
        partition.is_offered = False
        # The buffer once more: the last messages may have come between the two looks.
        if partition.is_at_end and not partition.buffer and not partition.is_ended:
            partition.is_ended = True
            return True
        return False

    @property
    def size(self) -> int:
        """Messages that wait."""
        return sum(len(partition.buffer) for partition in self.partitions.values())

    @property
    def capacity(self) -> int:
        """How many could."""
        return sum(partition.capacity for partition in self.partitions.values())
