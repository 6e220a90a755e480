"""Items that the submitting process already holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

from jetlet.core.arguments import check_name, shortened
from jetlet.core.table import VALUE, Table
from jetlet.errors import InvalidArgumentError, PlanningError
from jetlet.pipeline.expressions.data_types import ANY, INT, DataType
from jetlet.pipeline.expressions.schemas import TypeCheck, schema_type
from jetlet.pipeline.source import BATCH_SIZE, TABLE_SIZE, BatchSource

T = TypeVar("T")


class ItemsSource(BatchSource[T]):
    """Items that you have: a list, tuple or range, or any iterable that ends.

    An iterator or generator is read to its end when a job is submitted, and its items are kept, so
    that the pipeline can run again.

    The items of a ``pyarrow.Table`` or ``RecordBatch`` are its rows, as dicts. These, and the ints
    of a range, go as columns to stages that work on columns.

    With a ``schema`` (a dataclass, ``TypedDict``, msgspec ``Struct`` or ``pyarrow.Schema``), items
    of another type are refused, and expressions are checked against it when a pipeline is planned.
    """

    # The splits carry the items; the source itself travels without them.

    def __init__(self, items: Iterable[T], *, schema: Any = None, name: str | None = None) -> None:
        self._type = ANY if schema is None else schema_type("sources.items", schema)
        if schema is None and _is_arrow(items):
            self._type = schema_type("sources.items", items.schema)  # type: ignore[attr-defined]
        items = _tables(items) if _is_arrow(items) else items
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
        self._items: Iterable[T] | _Tables | None = items
        self.name = check_name("sources.items", name) or "items-source"
        # Where nothing of Arrow's is installed, items are all there is.
        self.has_columns = isinstance(items, _Tables) or (
            isinstance(items, range) and find_spec("pyarrow") is not None
        )

    def item_type(self) -> DataType:
        return INT if isinstance(self._items, range) else self._type

    def splits(self, target: int) -> Sequence[Sequence[T]]:
        if self._items is None:
            raise PlanningError(
                "sources.items was sent to another process without its items; ask for the splits "
                "where the pipeline was written"
            )
        if isinstance(self._items, _Tables):
            return self._items.splits(target)
        if not isinstance(self._items, list | tuple | range):
            self._items = list(self._items)
        items: Sequence[Any] = self._items
        if self._type != ANY:
            check = TypeCheck(self._type)
            for item in items:
                try:
                    check(item)
                except TypeError as error:
                    raise InvalidArgumentError(
                        f"sources.items: {shortened(item)} does not go with the schema: {error}"
                    ) from None
        count = min(max(target, 1), len(items))
        bounds = [i * len(items) // count for i in range(count)] + [len(items)]
        return [items[start:end] for start, end in itertools.pairwise(bounds)]

    def read(self, split: Sequence[T]) -> Iterator[list[T]]:
        for i in range(0, len(split), BATCH_SIZE):
            yield list(split[i : i + BATCH_SIZE])

    def read_columns(self, split: Sequence[T]) -> Iterator[Sequence[T]]:
        for i in range(0, len(split), TABLE_SIZE):
            part = split[i : i + TABLE_SIZE]
            yield _range_table(part) if isinstance(part, range) else part

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_items": None}


class _Tables(list[Table]):
    """The rows of an Arrow table."""

    def splits(self, target: int) -> list[Table]:
        size = max(1, -(-sum(map(len, self)) // max(target, 1)))
        return [table[i : i + size] for table in self for i in range(0, len(table), size)]  # type: ignore[misc]


def _is_arrow(items: Any) -> bool:
    kind = type(items)
    return kind.__module__.startswith("pyarrow") and kind.__name__ in ("Table", "RecordBatch")


def _tables(items: Any) -> Any:
    batches = [items] if type(items).__name__ == "RecordBatch" else items.to_batches()
    return _Tables(Table.of(batch) for batch in batches if batch.num_rows)


def _range_table(numbers: range) -> Sequence[Any]:
    import numpy as np
    import pyarrow as pa

    if not all(-(2**63) <= end < 2**63 for end in (numbers[0], numbers[-1])):
        return list(numbers)  # numpy would wrap them around
    try:
        values = np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
    except OverflowError:
        return list(numbers)
    return Table.of_arrays([pa.array(values)], VALUE)


def _is_endless(items: Iterable[Any]) -> bool:
    if isinstance(items, itertools.repeat):
        try:
            items.__length_hint__()
        except TypeError:  # no number of times was given
            return True
        return False
    return isinstance(items, itertools.count | itertools.cycle)
