"""Sorted runs and how they are merged: the inside of the external sort.

A :class:`SortedRun` is a sequence of chunks, in memory or in a file, whose items are in order. A
:class:`RunMerger` merges any number of them, and a :class:`MergeJob` writes what a merger gives
into a new run on disk, a little per call. :class:`SortOrder` knows the key and the direction.

The merger does not compare items one by one, as ``heapq.merge`` does, but takes a piece from the
head of each run, such that all pieces together are the next items of the result, and sorts them: a
comparison then costs a fraction, because the loop is the interpreter's own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jetlet.errors import InvalidArgumentError, ItemFailedError
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.sorting.spill import SpilledChunk, SpillFile

__all__ = ["MergeJob", "RunMerger", "SortOrder", "SortedRun"]

MEMORY_CHUNK = 512
"""Items per chunk of a run in memory: what has been merged is given back by chunks."""
BLOCK = 1024
LARGEST_BLOCK = 8192
"""Items that a merger returns at a time, roughly: the more the more runs there are, since it has
to look into each of them. To sort the largest takes 3 ms."""


Bisect = Callable[[list[Any], Any, int, int], int]
"""Takes a list, a key, and the slice of the list to look at."""


class SortOrder:
    """What ``sorted(key=..., reverse=...)`` means by order: stable, and only by ``<``."""

    __slots__ = ("after", "before", "key", "policy", "reverse")

    def __init__(
        self, key: Callable[[Any], Any] | None, reverse: bool, policy: ErrorPolicy | None = None
    ) -> None:
        self.key = key
        self.reverse = reverse
        self.policy = policy or ErrorPolicy("sort")
        # Where in a sorted list a key belongs, before or after those that are equal to it.
        self.before: Bisect = _bisect_before_reversed if reverse else bisect_left
        self.after: Bisect = _bisect_after_reversed if reverse else bisect_right

    def sort(self, items: list[Any]) -> None:
        """Sort a list in place."""
        try:
            items.sort(key=self.key, reverse=self.reverse)
        except Exception as error:
            failure = self._failure(items, error)
            raise failure from failure.__cause__

    def keys(self, items: list[Any]) -> list[Any]:
        """The keys of the items: the same list if they are their own keys."""
        key = self.key
        if key is None:
            return items
        try:
            return [key(item) for item in items]
        except Exception as error:
            failure = self._failure(items, error)
            raise failure from failure.__cause__

    def sort_by(self, items: list[Any], keys: list[Any]) -> list[Any]:
        """The items in the order of their keys, which are at hand."""
        try:
            if self.key is None:
                items.sort(reverse=self.reverse)
                return items
            order = sorted(range(len(items)), key=keys.__getitem__, reverse=self.reverse)
        except Exception as error:
            failure = self.incomparable(items[0], error)
            raise failure from failure.__cause__
        return [items[i] for i in order]

    def incomparable(self, item: Any, error: Exception) -> ItemFailedError:
        """The error for keys of which nobody knows which comes first."""
        failure = self.policy.failure(item)
        failure.__cause__ = InvalidArgumentError(
            f"two keys cannot be compared ({error}): give sort(key=...) a function whose results "
            "can, such as key=str, or key=lambda item: (item is None, item)"
        )
        return failure

    def _failure(self, items: list[Any], error: Exception) -> ItemFailedError:
        """Find the item that ``error`` is about."""
        previous: Any = None
        for index, item in enumerate(items):
            try:
                key = item if self.key is None else self.key(item)
            except Exception as cause:
                failure = self.policy.failure(item)
                failure.__cause__ = cause
                return failure
            try:
                if index:
                    key < previous  # noqa: B015 - whether it can be told is the question
            except Exception as cause:
                return self.incomparable(item, cause)
            previous = key
        return self.incomparable(items[0], error)


def _bisect_before_reversed(keys: list[Any], bound: Any, low: int, high: int) -> int:
    while low < high:
        middle = (low + high) // 2
        if bound < keys[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def _bisect_after_reversed(keys: list[Any], bound: Any, low: int, high: int) -> int:
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < bound:
            high = middle
        else:
            low = middle + 1
    return low


class SortedRun:
    """Chunks of items in order, none of them empty; read once, chunk by chunk."""

    __slots__ = ("chunks", "file", "level", "owns_file")

    def __init__(
        self,
        chunks: Iterable[list[Any] | SpilledChunk],
        file: SpillFile | None = None,
        *,
        owns_file: bool = True,
        level: int = 0,
    ) -> None:
        self.chunks = deque(chunks)
        self.file = file
        self.owns_file = owns_file
        self.level = level
        """How many merges on disk its items have been through."""

    @classmethod
    def in_memory(cls, items: list[Any]) -> SortedRun:
        """A run of sorted items."""
        return cls([items[i : i + MEMORY_CHUNK] for i in range(0, len(items), MEMORY_CHUNK)])

    def next_chunk(self) -> list[Any] | None:
        """Remove and return the next chunk; ``None`` and no file any more after the last."""
        if not self.chunks:
            self.close()
            return None
        chunk = self.chunks.popleft()
        if not isinstance(chunk, SpilledChunk):
            return chunk
        assert self.file is not None
        return self.file.read(chunk)

    def saved_chunks(self) -> Iterator[list[Any] | bytes]:
        """All chunks, left in place; those on disk in the form that they have there."""
        for chunk in self.chunks:
            if isinstance(chunk, SpilledChunk):
                assert self.file is not None
                yield self.file.read_bytes(chunk)
            else:
                yield chunk

    def close(self) -> None:
        """Give its file back, unless it is shared."""
        if self.file is not None and self.owns_file:
            self.file.close()


class _Cursor:
    """A run being merged, with a chunk or two loaded."""

    __slots__ = ("end", "items", "keys", "position", "reserve", "run")

    def __init__(self, run: SortedRun) -> None:
        self.run = run
        self.items: list[Any] = []
        self.keys: list[Any] = []
        self.position = self.end = 0
        self.reserve = 0
        """Load the next chunk when so few items are left, if so many may be needed at once."""

    def load(self, order: SortOrder) -> bool:
        """Drop what has been used up and add the next chunk; false if nothing is left."""
        rest, position = self.items, self.position
        items = self.run.next_chunk() or []
        keys = order.keys(items)
        if position < self.end:
            self.keys = [*self.keys[position:], *keys]
            self.items = self.keys if keys is items else [*rest[position:], *items]
        else:
            self.items, self.keys = items, keys
        self.position = 0
        self.end = len(self.items)
        self.reserve = len(items) // 2
        return self.end > 0


class RunMerger:
    """Merges sorted runs. Equal items come in the order of the runs: pass them oldest first.

    Call :meth:`open` until it is true, then :meth:`next_block` until it returns nothing. No call
    takes much longer than it takes to sort a block of items, which are at most twice
    ``largest_block`` (give less if items are large).
    """

    def __init__(
        self, runs: Sequence[SortedRun], order: SortOrder, largest_block: int = LARGEST_BLOCK
    ) -> None:
        self._order = order
        self._largest_block = largest_block
        self._unopened = deque(runs)
        self._cursors: list[_Cursor] = []
        self._step = 1

    def open(self, count: int = BLOCK) -> bool:
        """Load the heads of some runs, of about ``count`` items; true if all are loaded."""
        while self._unopened:
            if count <= 0:
                return False
            cursor = _Cursor(self._unopened.popleft())
            if cursor.load(self._order):
                self._cursors.append(cursor)
                count -= cursor.end
        return True

    def next_block(self) -> list[Any]:
        """The next items, between a few and a few thousand of them; empty at the end."""
        cursors = self._cursors
        if not cursors:
            return []
        if len(cursors) == 1:
            cursor = cursors[0]
            block = cursor.items[cursor.position :] if cursor.position else cursor.items
            cursor.position = cursor.end
            if not cursor.load(self._order):
                cursors.clear()
            return block
        for cursor in cursors:
            # Where many runs are merged, one of them would always be at the end of its chunk.
            if cursor.end - cursor.position < min(self._step, cursor.reserve):
                cursor.load(self._order)
        try:
            cuts = self._cut()
        except Exception as error:
            # Keys of one run could be compared, those of two runs cannot.
            item = cursors[0].items[cursors[0].position]
            failure = self._order.incomparable(item, error)
            raise failure from failure.__cause__
        return self._take(cuts)

    def _cut(self) -> list[int]:
        """How far to go in each cursor's chunk such that nothing that is left comes before it.

        From no run more than ``step`` items: the bound is the smallest of the keys that are
        ``step`` further on. In the run that has it (the first of them) all up to the bound can
        go; runs before that one have nothing equal to it behind what is loaded; runs behind it
        must leave what is equal to it, since the chosen run may have more of that in chunks that
        are not loaded yet.
        """
        cursors, order, step = self._cursors, self._order, self._step
        reverse, before, after = order.reverse, order.before, order.after
        target = min(max(8 * len(cursors), BLOCK), self._largest_block)
        while True:
            bound: Any = None
            chosen = -1
            for index, cursor in enumerate(cursors):
                key = cursor.keys[min(cursor.position + step, cursor.end) - 1]
                if chosen < 0 or ((bound < key) if reverse else (key < bound)):
                    bound, chosen = key, index
            cuts = []
            total = 0
            for index, cursor in enumerate(cursors):
                low = cursor.position
                high = min(low + step, cursor.end)
                if index == chosen:
                    cut = high
                else:
                    cut = (after if index < chosen else before)(cursor.keys, bound, low, high)
                cuts.append(cut)
                total += cut - low
            if total > 2 * target and step > 1:
                # Runs that lay apart begin to overlap.
                step = max(1, step * target // total)
                continue
            # Where only a few of the runs contribute, go further in these.
            self._step = step * 2 if total < target // 2 and step < target else step
            return cuts

    def _take(self, cuts: list[int]) -> list[Any]:
        order = self._order
        keyed = order.key is not None
        items: list[Any] = []
        keys: list[Any] = []
        pieces = 0
        is_used_up = False
        for cursor, cut in zip(self._cursors, cuts, strict=True):
            start = cursor.position
            if cut == start:
                continue
            pieces += 1
            items += cursor.items[start:cut]
            if keyed:
                keys += cursor.keys[start:cut]
            cursor.position = cut
            if cut == cursor.end and not cursor.load(order):
                is_used_up = True
        if is_used_up:
            self._cursors = [c for c in self._cursors if c.items]
        return items if pieces == 1 else order.sort_by(items, keys)

    def rest(self) -> list[SortedRun]:
        """What has not been merged, as runs in the same order; ends this merger."""
        runs = []
        for cursor in self._cursors:
            run = cursor.run
            if cursor.position < cursor.end:
                run.chunks.appendleft(cursor.items[cursor.position :])
            runs.append(run)
        runs.extend(self._unopened)
        self._cursors = []
        self._unopened.clear()
        return runs


class MergeJob:
    """Merges runs into one on disk, as much at a time as it is told to."""

    def __init__(
        self,
        runs: Sequence[SortedRun],
        order: SortOrder,
        file: SpillFile,
        *,
        chunk_size: int,
        largest_block: int = LARGEST_BLOCK,
    ) -> None:
        self._merger = RunMerger(runs, order, largest_block)
        self._chunk_size = chunk_size
        self._pending: list[Any] = []
        self._is_open = False
        self._credit = 0
        self.output = SortedRun([], file, level=max(run.level for run in runs) + 1)

    def step(self, count: int) -> tuple[int, bool]:
        """Merge about ``count`` items; returns how many it were, and whether that was the end.

        It works in blocks; what it did too much counts for the next time.
        """
        if not self._is_open:
            self._is_open = self._merger.open()
            return 0, False
        self._credit += count
        done = 0
        while self._credit > 0:
            block = self._merger.next_block()
            if not block:
                self._write(1)
                return done, True
            done += len(block)
            self._credit -= len(block)
            self._pending += block
            self._write(self._chunk_size)
        return done, False

    def rest(self) -> list[SortedRun]:
        """Stop here: what is merged, and what is not, as runs in order."""
        self._write(1)
        return [self.output, *self._merger.rest()]

    def _write(self, least: int) -> None:
        """Write what is pending in full chunks, and the rest too if it is ``least`` items."""
        pending, size = self._pending, self._chunk_size
        assert self.output.file is not None
        start = 0
        while len(pending) - start >= least and start < len(pending):
            chunk = pending[start : start + size]
            self.output.chunks.append(self.output.file.append(chunk))
            start += len(chunk)
        self._pending = pending[start:]
