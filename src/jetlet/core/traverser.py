"""Traverser: a lazy sequence that a processor can stop consuming at any item.

It has one abstract method, ``next()``, which returns the next item or ``None`` when there is none
*for now or ever*. Hence ``None`` cannot be an item of a traverser. Build one with
:func:`traverse` (from an iterable or generator), :func:`traverse_items` or :func:`traverse_fn`,
attach steps, and let :meth:`jetlet.core.Processor.emit_from_traverser` send its items.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Traverser(ABC, Generic[T]):
    """A lazy sequence with steps attached. Used by one thread at a time."""

    __slots__ = ()

    @abstractmethod
    def next(self) -> T | None:
        """The next item, or ``None``. After ``None`` it may be called again."""

    def __iter__(self) -> Iterator[T]:
        while (item := self.next()) is not None:
            yield item

    def map(self, fn: Callable[[T], R | None]) -> Traverser[R]:
        """Apply ``fn`` to each item; an item that becomes ``None`` is dropped."""
        source = self.next

        def step() -> R | None:
            while (item := source()) is not None:
                if (result := fn(item)) is not None:
                    return result
            return None

        return _FnTraverser(step)

    def filter(self, predicate: Callable[[T], object]) -> Traverser[T]:
        """Keep the items for which ``predicate`` holds."""
        source = self.next

        def step() -> T | None:
            while (item := source()) is not None:
                if predicate(item):
                    return item
            return None

        return _FnTraverser(step)

    def flat_map(self, fn: Callable[[T], Traverser[R] | Iterable[R]]) -> Traverser[R]:
        """Replace each item by the items of the traverser or iterable that ``fn`` returns."""
        return _FlatMapTraverser(self, fn)

    def append(self, *items: T) -> Traverser[T]:
        """Yield ``items`` once, when this traverser first returns ``None``."""
        return _AppendTraverser(self, items)

    def prepend(self, *items: T) -> Traverser[T]:
        """Yield ``items`` first."""
        return _PrependTraverser(self, items)

    def take_while(self, predicate: Callable[[T], object]) -> Traverser[T]:
        """End at the first item for which ``predicate`` does not hold; that item is consumed."""
        source = self.next
        ended = False

        def step() -> T | None:
            nonlocal ended
            if ended:
                return None
            item = source()
            if item is not None and not predicate(item):
                ended = True
                return None
            return item

        return _FnTraverser(step)

    def drop_while(self, predicate: Callable[[T], object]) -> Traverser[T]:
        """Skip items up to the first for which ``predicate`` does not hold."""
        source = self.next
        dropping = True

        def step() -> T | None:
            nonlocal dropping
            item = source()
            while dropping and item is not None:
                if not predicate(item):
                    dropping = False
                    break
                item = source()
            return item

        return _FnTraverser(step)

    def peek(self, action: Callable[[T], object]) -> Traverser[T]:
        """Call ``action`` with each item as it passes."""

        def look(item: T) -> T:
            action(item)
            return item

        return self.map(look)

    def on_first_none(self, action: Callable[[], object]) -> Traverser[T]:
        """Call ``action`` once, the first time the traverser returns ``None``."""
        source = self.next
        called = False

        def step() -> T | None:
            nonlocal called
            item = source()
            if item is None and not called:
                called = True
                action()
            return item

        return _FnTraverser(step)


class _FnTraverser(Traverser[T]):
    __slots__ = ("_fn",)

    def __init__(self, fn: Callable[[], T | None]) -> None:
        self._fn = fn

    def next(self) -> T | None:
        return self._fn()


class _FlatMapTraverser(Traverser[R]):
    __slots__ = ("_current", "_fn", "_source")

    def __init__(self, source: Traverser[T], fn: Callable[[T], Traverser[R] | Iterable[R]]) -> None:
        self._source = source
        self._fn = fn
        self._current: Traverser[R] | None = None

    def next(self) -> R | None:
        while True:
            if self._current is not None:
                item = self._current.next()
                if item is not None:
                    return item
                self._current = None
            outer = self._source.next()
            if outer is None:
                return None
            inner = self._fn(outer)
            self._current = inner if isinstance(inner, Traverser) else traverse(inner)


class _AppendTraverser(Traverser[T]):
    __slots__ = ("_source", "_tail")

    def __init__(self, source: Traverser[T], items: Iterable[T]) -> None:
        self._source = source
        self._tail = deque(items)

    def next(self) -> T | None:
        item = self._source.next()
        if item is None and self._tail:
            return self._tail.popleft()
        return item


class _PrependTraverser(Traverser[T]):
    __slots__ = ("_head", "_source")

    def __init__(self, source: Traverser[T], items: Iterable[T]) -> None:
        self._source = source
        self._head = deque(items)

    def next(self) -> T | None:
        return self._head.popleft() if self._head else self._source.next()


class _IteratorTraverser(Traverser[T]):
    __slots__ = ("_iterator",)

    def __init__(self, iterator: Iterator[T]) -> None:
        self._iterator = iterator

    def next(self) -> T | None:
        for item in self._iterator:
            if item is None:
                raise ValueError("None cannot be an item of a traverser: it means 'no item'")
            return item
        return None


def traverse(iterable: Iterable[T]) -> Traverser[T]:
    """A traverser over any iterable, such as a list or a generator."""
    return _IteratorTraverser(iter(iterable))


def traverse_items(*items: T) -> Traverser[T]:
    """A traverser over the given items."""
    return _IteratorTraverser(iter(items))


def traverse_fn(fn: Callable[[], T | None]) -> Traverser[T]:
    """A traverser whose ``next()`` is ``fn``; it may return ``None`` now and an item later."""
    return _FnTraverser(fn)
