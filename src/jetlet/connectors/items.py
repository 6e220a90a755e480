"""Items that the submitting process already holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from jetlet.core.arguments import check_name
from jetlet.errors import InvalidArgumentError, PlanningError
from jetlet.pipeline.source import BATCH_SIZE, BatchSource

T = TypeVar("T")


class ItemsSource(BatchSource[T]):
    """Items that you have: a list, tuple or range, or any iterable that ends.

    An iterator or generator is read to its end when a job is submitted, and its items are kept, so
    that the pipeline can run again.
    """

    # The splits carry the items; the source itself travels without them.

    def __init__(self, items: Iterable[T], *, name: str | None = None) -> None:
        if isinstance(items, str | bytes | bytearray) or not isinstance(items, Iterable):
            raise InvalidArgumentError(
                f"sources.items({items!r}): write an iterable of items, such as "
                f"sources.items([{items!r}])"
            )
        if _is_endless(items):
            raise InvalidArgumentError(
                f"sources.items({items!r}) would never end; write "
                "sources.items(itertools.islice(..., n))"
            )
        self._items: Iterable[T] | None = items
        self.name = check_name("sources.items", name) or "items-source"

    def splits(self, target: int) -> Sequence[Sequence[T]]:
        if self._items is None:
            raise PlanningError(
                "sources.items was sent to another process without its items; ask for the splits "
                "where the pipeline was written"
            )
        if not isinstance(self._items, list | tuple | range):
            self._items = list(self._items)
        items: Sequence[T] = self._items
        count = min(max(target, 1), len(items))
        bounds = [i * len(items) // count for i in range(count)] + [len(items)]
        return [items[start:end] for start, end in itertools.pairwise(bounds)]

    def read(self, split: Sequence[T]) -> Iterator[list[T]]:
        for i in range(0, len(split), BATCH_SIZE):
            yield list(split[i : i + BATCH_SIZE])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_items": None}


def _is_endless(items: Iterable[Any]) -> bool:
    if isinstance(items, itertools.repeat):
        try:
            items.__length_hint__()
        except TypeError:  # no number of times was given
            return True
        return False
    return isinstance(items, itertools.count | itertools.cycle)
