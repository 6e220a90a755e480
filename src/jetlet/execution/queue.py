"""BoundedQueue: the only thing that connects two tasklets, and the only back-pressure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from jetlet.core.items import SpecialItem
from jetlet.core.table import Table
from jetlet.execution.tasklet import Waker

WHOLE = 16
"""How many times its capacity an empty queue may take at once."""


class BoundedQueue:
    """A queue from one producer to one consumer that carries batches and counts items.

    Producer and consumer may be on different threads; each of the two counters has one writer, and
    ``deque`` does the rest, so there is no lock. The bound holds for items, however they are
    batched. When a batch does not fit, as much as fits is taken; but not less than a quarter of
    the capacity, so that a nearly full queue does not grind batches into crumbs.

    With ``takes_whole`` an empty queue takes a larger batch in one piece, up to ``WHOLE`` times its
    capacity: it is in memory anyway. So it need not be cut up, nor its producer wait while a
    consumer on the same thread works it off bit by bit. That is the most that it ever holds.

    A table is never cut up to fit: the queue takes it in one piece when nothing waits behind what
    its consumer is at. Columns take a small part of the room of items, and to cut them into crumbs
    would lose what they are there for.
    """

    __slots__ = (
        "_added",
        "_entries",
        "_head",
        "_most",
        "_pos",
        "_quantum",
        "_removed",
        "_whole_at",
        "capacity",
        "consumer",
        "is_closed",
        "producer",
    )

    def __init__(self, capacity: int, *, takes_whole: bool = False) -> None:
        self.capacity = capacity
        # So much room means that it is empty; there is never more than its capacity.
        self._whole_at = capacity if takes_whole else capacity + 1
        self._most = capacity * WHOLE
        self.consumer: Waker | None = None
        """Woken when something is offered; set where the consumer may be asleep by then."""
        self.producer: Waker | None = None
        """The waker of the tasklet that fills the queue, which is called when room is made."""
        self.is_closed = False
        """True when the consumer wants no more items: they are taken and dropped."""
        self._entries: deque[Any] = deque()
        self._quantum = max(1, capacity // 4)
        self._added = 0
        self._removed = 0
        self._head: Sequence[Any] | None = None
        self._pos = 0

    def __len__(self) -> int:
        # The counters are read apart: an item taken in between must not show as a negative size.
        return max(0, self._added - self._removed)

    @property
    def has_data(self) -> bool:
        """True if there are items in it besides special ones. Consumer only."""
        entries = self._entries  # the producer only appends
        return self._head is not None or any(
            not isinstance(entries[i], SpecialItem) for i in range(len(entries))
        )

    def offer(self, batch: Sequence[Any], start: int = 0) -> int:
        """Take items from ``start`` on; return how many were taken. Producer only."""
        left = len(batch) - start
        if self.is_closed:
            return left
        room = self.capacity - self._added + self._removed
        if room == self._whole_at:
            room = self._most
        if left <= room:
            self._entries.append(batch[start:] if start else batch)
        elif batch.__class__ is Table:
            if self._entries:
                return 0
            self._entries.append(batch[start:] if start else batch)
        else:
            if room < self._quantum:
                return 0
            left = room
            self._entries.append(batch[start : start + room])
        self._added += left
        if self.consumer is not None:
            self.consumer.wake()
        return left

    def offer_special(self, item: SpecialItem) -> bool:
        """Take a special item, which counts as one. Producer only."""
        if self._added - self._removed >= self.capacity:
            return False
        self._entries.append(item)
        self._added += 1
        if self.consumer is not None:
            self.consumer.wake()
        return True

    def poll(self, limit: int) -> Any:
        """A batch of at most ``limit`` items, a special item, or ``None``. Consumer only."""
        head = self._head
        if head is None:
            if not self._entries:
                return None
            head = self._entries.popleft()
            if isinstance(head, SpecialItem):
                self._removed += 1
            elif len(head) <= limit:
                self._removed += len(head)
            else:
                self._head = head
                self._pos = 0
                return self._slice(head, limit)
            if self.producer is not None:
                self.producer.wake()
            return head
        return self._slice(head, limit)

    def _slice(self, head: Sequence[Any], limit: int) -> Sequence[Any]:
        start = self._pos
        end = start + limit
        part = head[start:end]
        if end >= len(head):
            self._head = None
        else:
            self._pos = end
        self._removed += len(part)
        if self.producer is not None:
            self.producer.wake()
        return part

    def close(self) -> None:
        """Take no more items; special ones still get through. Consumer only."""
        self.is_closed = True
        if self.producer is not None:
            self.producer.wake()

    def is_empty(self) -> bool:
        """True if ``poll`` would return ``None``. Consumer only."""
        return self._head is None and not self._entries
