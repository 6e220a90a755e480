"""InboundEdge: the consuming end of an edge; merges its queues and aligns what is in-band."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import le
from typing import Any

from jetlet.core.items import DONE, LatencyMarker, SnapshotBarrier, SpecialItem, Watermark
from jetlet.core.table import Table
from jetlet.errors import ProcessorContractError
from jetlet.execution.queue import BoundedQueue
from jetlet.execution.watermark_coalescer import WatermarkCoalescer

_NOTHING: tuple[Any, ...] = ()


class InboundEdge:
    """All queues that lead into one processor over one edge. Used by the consumer's thread.

    ``drain`` takes data from the queues in turn and stops at a special item that concerns the
    whole edge, so that a special item is always the last in a batch:

    - a watermark, when the minimum over all queues has risen;
    - a barrier, when it has come from every queue that is still open. Under exactly-once, and for
      a terminal barrier always, a queue that has delivered its barrier is not drained until the
      others have caught up;
    - ``DONE``, when all queues are exhausted;
    - a latency marker, whichever queue it is from.
    """

    __slots__ = (
        "_aligned",
        "_barrier",
        "_coalescer",
        "_cursor",
        "_exactly_once",
        "_open",
        "_pending",
        "is_done",
        "is_restore",
        "ordinal",
        "origins",
        "priority",
        "queues",
        "special",
    )

    def __init__(
        self,
        ordinal: int,
        queues: Sequence[BoundedQueue],
        *,
        priority: int = 0,
        exactly_once: bool = True,
        is_restore: bool = False,
        origins: Sequence[frozenset[Any]] | None = None,
    ) -> None:
        self.ordinal = ordinal
        self.priority = priority
        self.queues = tuple(queues)
        self.is_restore = is_restore
        self.is_done = False
        self.special: SpecialItem | None = None
        """What follows the batch that ``drain`` returned last."""
        self._open = list(enumerate(queues))
        self._coalescer = WatermarkCoalescer(
            range(len(queues)), None if origins is None else dict(enumerate(origins))
        )
        self.origins: frozenset[Any] = frozenset().union(*(origins or ()))
        """Where its watermarks come from in the end."""
        self._cursor = 0
        self._exactly_once = exactly_once
        self._barrier: SnapshotBarrier | None = None
        self._aligned: set[int] = set()
        self._pending: deque[SpecialItem] = deque()
        if not queues:
            # Nobody feeds it: its only producer lives on another member.
            self.is_done = True
            self._pending.append(DONE)

    def drain(self, limit: int) -> Sequence[Any]:
        """Up to ``limit`` items; sets :attr:`special`."""
        self.special = None
        if self._pending:
            self.special = self._pending.popleft()
            return _NOTHING
        first: Sequence[Any] = _NOTHING
        merged: list[Any] | None = None
        open_queues = self._open
        count = len(open_queues)
        cursor = self._cursor
        for turn in range(count):
            index, queue = open_queues[(cursor + turn) % count]
            if index in self._aligned and self._blocks_aligned():
                continue
            while (entry := queue.poll(limit)) is not None:
                if isinstance(entry, SpecialItem):
                    if self._observe(index, entry):
                        self.special = self._pending.popleft()
                        self._cursor = cursor + turn
                        return merged or first
                    if entry is DONE or (index in self._aligned and self._blocks_aligned()):
                        break
                    continue
                if self._coalescer.has_idle_inputs:
                    self._coalescer.observe_event(index)
                limit -= len(entry)
                if merged is not None:
                    merged += entry
                elif first:
                    merged = [*first, *entry]
                else:
                    first = entry
                if limit <= 0 or entry.__class__ is Table:
                    # What is stored as columns stays so: it is not merged with what follows.
                    # The next drain begins with the next queue, so that none is starved.
                    self._cursor = (cursor + turn + 1) % count
                    return merged or first
        return merged or first

    def _blocks_aligned(self) -> bool:
        return self._exactly_once or (self._barrier is not None and self._barrier.is_terminal)

    def _observe(self, index: int, item: SpecialItem) -> bool:
        """Take note of a special item from one queue; true if one for the edge came of it."""
        if isinstance(item, Watermark):
            if self._coalescer.has_idle_inputs:
                # What is idle no more, and only has not been drained yet, is waited for.
                for other, queue in self._open:
                    if other != index and queue.has_data:
                        self._coalescer.observe_event(other)
            self._pending.extend(self._coalescer.observe(index, item))
        elif isinstance(item, SnapshotBarrier):
            self._barrier = item
            self._aligned.add(index)
            self._check_barrier()
        elif isinstance(item, LatencyMarker):
            self._pending.append(item)
        else:
            # Only live queues are waited for: an ended one takes its bit with it.
            self._open = [pair for pair in self._open if pair[0] != index]
            self._aligned.discard(index)
            self._cursor = 0
            self._pending.extend(self._coalescer.observe_done(index))
            if not self._open:
                self.is_done = True
                self._pending.append(DONE)
            else:
                self._check_barrier()
        return bool(self._pending)

    def _check_barrier(self) -> None:
        if self._barrier is not None and len(self._aligned) == len(self._open):
            self._pending.append(self._barrier)
            self._barrier = None
            self._aligned.clear()

    def close(self) -> None:
        """Take no more items from those who feed it; what is in the queues still comes."""
        for queue in self.queues:
            queue.close()

    @property
    def has_data(self) -> bool:
        """Whether any items wait, besides what is in-band."""
        return any(queue.has_data for _, queue in self._open)

    @property
    def size(self) -> int:
        """Items waiting in the queues; from any thread."""
        return sum(map(len, self.queues))

    @property
    def capacity(self) -> int:
        """Items that the queues can hold."""
        return sum(queue.capacity for queue in self.queues)


class OrderedInboundEdge(InboundEdge):
    """An edge whose queues each hold sorted items: what it drains is sorted as well.

    An item is handed on once every open queue has shown its next one, or has ended. It is not
    aligned for snapshots, since what it has taken to compare would be lost.
    """

    __slots__ = ("_heads", "_key", "_last", "_waiting")

    def __init__(
        self,
        ordinal: int,
        queues: Sequence[BoundedQueue],
        key: Callable[[Any], Any],
        *,
        priority: int = 0,
        origins: Sequence[frozenset[Any]] | None = None,
    ) -> None:
        super().__init__(ordinal, queues, priority=priority, origins=origins)
        self._key = key
        self._heads: dict[int, _Head] = {}
        """By queue, the batch that was taken from it and is not handed on yet."""
        self._last: dict[int, Any] = {}
        self._waiting = 0

    def drain(self, limit: int) -> Sequence[Any]:
        """Up to ``limit`` items in order; sets :attr:`special`."""
        self.special = None
        if self._pending:
            self.special = self._pending.popleft()
            return _NOTHING
        merged: list[Any] = []
        heads = self._heads
        while len(merged) < limit:
            for index, queue in tuple(self._open):
                while index not in heads and (entry := queue.poll(limit)) is not None:
                    if not isinstance(entry, SpecialItem):
                        heads[index] = self._head(index, entry)
                        self._waiting += len(entry)
                    elif self._observe(index, entry):
                        self.special = self._pending.popleft()
                        return merged
                    elif entry is DONE:
                        break
            if not heads or len(heads) < len(self._open):
                break
            self._take_run(merged, limit - len(merged))
        return merged

    def _head(self, index: int, items: Sequence[Any]) -> _Head:
        """The batch with its keys; refuses one that is not sorted."""
        keys = list(map(self._key, items))
        before = [self._last[index], *keys] if index in self._last else keys
        if not all(map(le, before, before[1:])):
            place = next(i for i, (a, b) in enumerate(pairwise(before)) if not a <= b)
            raise ProcessorContractError(
                f"an ordered edge leads to it, but the processor in front of it has sent an item "
                f"with key {before[place + 1]!r} behind one with key {before[place]!r}: sort what "
                f"it emits by the key of the edge, or leave out .ordered()"
            )
        self._last[index] = keys[-1]
        return _Head(items, keys)

    def _take_run(self, merged: list[Any], limit: int) -> None:
        """Hand on the items of one queue that come before those of all others."""
        heads = self._heads
        first = min(heads, key=lambda index: (heads[index].next_key, index))
        head = heads[first]
        end = min(head.start + limit, len(head.items))
        others = [index for index in heads if index != first]
        if others:
            second = min(others, key=lambda index: (heads[index].next_key, index))
            bisect = bisect_right if first < second else bisect_left
            end = bisect(head.keys, heads[second].next_key, head.start, end)
        merged += head.items[head.start : end]
        self._waiting -= end - head.start
        head.start = end
        if end == len(head.items):
            del heads[first]

    @property
    def has_data(self) -> bool:
        return bool(self._heads) or super().has_data

    @property
    def size(self) -> int:
        return super().size + self._waiting


class _Head:
    """A batch from a queue, with the keys of its items; handed on up to ``start``."""

    __slots__ = ("items", "keys", "start")

    def __init__(self, items: Sequence[Any], keys: list[Any]) -> None:
        self.items = items
        self.keys = keys
        self.start = 0

    @property
    def next_key(self) -> Any:
        return self.keys[self.start]
