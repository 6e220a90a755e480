"""The batch of input that a processor works off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

_EMPTY: tuple[Any, ...] = ()
_NO_ITEM = -1


class Inbox:
    """Input of one edge, waiting for the processor. Used by one thread at a time.

    Per item: ``for item in inbox`` removes each item as it is yielded; ``peek()`` and ``remove()``
    leave an item in place until it has been dealt with. Per batch, which is much cheaper:
    ``items()`` shows all that is left, ``clear()`` removes it.

    A batch may be shared with other consumers: never change what ``items()`` returns.
    """

    __slots__ = ("_batch", "_pos", "_shown")

    def __init__(self, items: Sequence[Any] = _EMPTY) -> None:
        self._batch = items
        self._pos = 0
        self._shown = _NO_ITEM

    def __len__(self) -> int:
        return len(self._batch) - self._pos

    def __bool__(self) -> bool:
        return len(self._batch) > self._pos

    def __iter__(self) -> Iterator[Any]:
        batch = self._batch
        while (pos := self._pos) < len(batch):
            self._shown = pos
            self._pos = pos + 1
            yield batch[pos]

    def items(self) -> Sequence[Any]:
        """What is left, without removing it. Read-only."""
        self._shown = _NO_ITEM
        return self._batch if self._pos == 0 else self._batch[self._pos :]

    def peek(self) -> Any:
        """The first item, left in place; ``None`` if the inbox is empty."""
        pos = self._pos
        if pos >= len(self._batch):
            return None
        self._shown = pos
        return self._batch[pos]

    def poll(self) -> Any:
        """Remove and return the first item; ``None`` if the inbox is empty."""
        pos = self._pos
        if pos >= len(self._batch):
            return None
        self._shown = pos
        self._pos = pos + 1
        return self._batch[pos]

    def at_hand(self) -> tuple[Any, ...]:
        """The item that was handed out last, in a tuple; for the engine, to name it in an error.

        Empty if none was since the batch came, or if the whole batch was looked at.
        """
        shown = self._shown
        return _EMPTY if shown == _NO_ITEM else (self._batch[shown],)

    def remove(self, count: int = 1) -> None:
        """Remove the first ``count`` items."""
        if not 0 <= count <= len(self):
            raise IndexError(f"cannot remove {count} items from an inbox of {len(self)}")
        self._pos += count

    def take(self) -> Sequence[Any]:
        """Remove and return all that is left. Read-only."""
        items = self.items()
        self.clear()
        return items

    def drain(self, consumer: Callable[[Any], object]) -> int:
        """Pass each item to ``consumer`` and remove it; return how many there were."""
        count = 0
        for item in self:
            consumer(item)
            count += 1
        return count

    def clear(self) -> None:
        """Remove all items."""
        self._batch = _EMPTY
        self._pos = 0
        self._shown = _NO_ITEM

    def add(self, batch: Sequence[Any]) -> None:
        """Append a batch; for the engine and for tests, not for processors."""
        if self._pos >= len(self._batch):
            self._batch = batch
            self._pos = 0
        else:
            self._batch = [*self._batch[self._pos :], *batch]
            self._pos = 0
        self._shown = _NO_ITEM
