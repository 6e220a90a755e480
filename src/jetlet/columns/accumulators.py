"""Accumulators of operations over columns: one for all rows, or one for each key.

An operation that can be accumulated so says it with a :data:`Shape`: a :class:`Part`, such as a sum
of what a function gives, or a tuple of shapes, whose accumulator is a list of theirs. What comes
out are the operation's own accumulators, to be combined with those that were made of items.

The same as for steps goes for these: what columns cannot do with certainty raises, and the items
of the batch are accumulated instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jetlet.columns.arrow import evaluate, is_for_columns, plain_array, tree_of
from jetlet.columns.groups import LARGEST_SUM, ROWS, Groups
from jetlet.columns.kernels import LeaveToPython
from jetlet.core.table import VALUE, Entry, Form, Table
from jetlet.pipeline.aggregates.shape import Part, Shape
from jetlet.pipeline.expressions.nodes import Node

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["GroupedColumns", "Values", "accumulator_of", "can_accumulate", "parts_of"]


def parts_of(shape: Shape) -> Iterator[Part]:
    """The parts of a shape, in order."""
    if isinstance(shape, Part):
        yield shape
    else:
        for each in shape:
            yield from parts_of(each)


def can_accumulate(shape: Shape | None) -> bool:
    """True if all of it can be worked out over columns, at least for some types of them."""
    return shape is not None and all(
        part.fn is None or is_for_columns(part.fn) for part in parts_of(shape)
    )


def accumulators(shape: Shape, columns: Iterator[Sequence[Any]]) -> list[Any]:
    """The accumulators of many keys, from a sequence of values for each part."""
    if isinstance(shape, Part):
        return list(next(columns))
    return list(map(list, zip(*[accumulators(each, columns) for each in shape], strict=True)))


def columns_of(shape: Shape, values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """A sequence of values for each part, of the accumulators of many keys."""
    if isinstance(shape, Part):
        yield values
    else:
        for index, each in enumerate(shape):
            yield from columns_of(each, [value[index] for value in values])


def form_of(shape: Shape, kind: type[Any] = list) -> Form:
    """The form of a table of accumulators; with ``tuple`` that of their results."""
    if isinstance(shape, Part):
        return VALUE
    return Entry(tuple(form_of(each, kind) for each in shape), kind)


def summed(left: Any, right: Any) -> Any:
    """Two accumulators as one."""
    if isinstance(left, list):
        return [summed(*pair) for pair in zip(left, right, strict=True)]
    return left + right


def accumulator_of(shape: Shape, table: Table) -> Any:
    """The accumulator of all rows."""
    import pyarrow.compute as pc

    values, _ = Values(shape).of(table)
    columns = iter(values)
    totals = [
        [len(table) if part.kind == "count" else pc.sum(next(columns)).as_py()]
        for part in parts_of(shape)
    ]
    return accumulators(shape, iter(totals))[0]


class Values:
    """The columns that the sums of a shape are made of."""

    def __init__(self, shape: Shape) -> None:
        trees = [tree_of(part.fn) for part in parts_of(shape) if part.fn is not None]
        self._trees = [tree for tree in trees if tree is not None]

    def of(self, table: Table) -> tuple[list[pa.Array], int]:
        """A column of numbers for each sum, and what no integer among them exceeds."""
        found = []
        largest = 0
        for tree in self._trees:
            array, most = _summable(evaluate(tree, table))
            largest = max(largest, most)
            found.append(array)
        if largest * len(table) >= LARGEST_SUM:
            raise LeaveToPython("sums that may be too large for columns")
        return found, largest


def _decoded(keys: Table) -> Table:
    """Keys of batches that have dictionaries of their own, in one type."""
    from pyarrow import types

    columns = keys.columns.columns
    if not any(types.is_dictionary(column.type) for column in columns):
        return keys
    plain = [plain_array(Table.of_arrays([column], VALUE)) for column in columns]
    return Table.of_arrays(plain, keys.form)


def _is_hashable(form: Form) -> bool:
    if isinstance(form, Entry):
        return all(map(_is_hashable, form.parts))
    return form == VALUE


def _summable(values: Table) -> tuple[pa.Array, int]:
    """The column, in which nothing is null, and how large its integers are at the most."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    array = plain_array(values)
    if array.null_count:
        raise LeaveToPython("a sum with null")  # which fails for the first of them
    if types.is_floating(array.type):
        return array.cast(pa.float64()), 0
    if not types.is_integer(array.type):
        raise LeaveToPython(f"a sum of {array.type}")
    array = array.cast(pa.int64())
    least, most = pc.min_max(array).as_py().values()
    return array, max(abs(least), abs(most)) if len(array) else 0


class GroupedColumns:
    """Accumulators by key, while they are columns."""

    def __init__(self, key: Node, shape: Shape) -> None:
        self._key = key
        self.shape = shape
        self._parts = list(parts_of(shape))
        self._values = Values(shape)
        self._key_form: Form = VALUE
        self._groups = Groups()

    @property
    def key_form(self) -> Form:
        """The form of the keys that it has seen last."""
        return self._key_form

    def __len__(self) -> int:
        """How many groups there are, at the most."""
        return len(self._groups)

    def add(self, table: Table) -> None:
        """Add the rows of a table; raises if the items are to tell, and has taken none then."""
        rows, largest = self.rows_of(table)
        self.check(rows, largest)
        self.accept(rows, largest)

    def rows_of(self, table: Table) -> tuple[pa.RecordBatch, int]:
        """The keys and numbers of a table, and what no integer among these exceeds."""
        import pyarrow as pa

        keys = _decoded(evaluate(self._key, table))
        if not _is_hashable(keys.form):
            raise LeaveToPython("keys that are none")
        for column in keys.columns.columns:
            if (
                pa.types.is_nested(column.type)
                or pa.types.is_null(column.type)
                or isinstance(column.type, pa.BaseExtensionType)
            ):
                raise LeaveToPython(f"keys of {column.type}")
        values, largest = self._values.of(table)
        arrays = [*keys.columns.columns, *values]
        names = [*(f"k{i}" for i in range(keys.form.width)), *(f"v{i}" for i in range(len(values)))]
        rows = pa.RecordBatch.from_arrays(arrays, names=names)
        if len(self) and self._key_form != keys.form:
            raise LeaveToPython("keys of another form than before")
        self._key_form = keys.form
        return rows, largest

    def check(self, rows: pa.RecordBatch, largest: int) -> None:
        """Raise if rows do not go with those before."""
        self._groups.check(rows, largest)

    def accept(self, rows: pa.RecordBatch, largest: int) -> None:
        """Add rows that go with those before."""
        self._groups.add(rows, largest)

    def take(self, size: int) -> Iterator[list[tuple[Any, Any]]]:
        """All pairs of key and accumulator, some at a time; leaves none."""
        table = self.take_table()
        for start in range(0, len(table) if table is not None else 0, size):
            assert table is not None
            yield table[start : start + size].items()  # type: ignore[attr-defined]

    def take_table(self) -> Table | None:
        """All pairs of key and accumulator, as columns; leaves none."""
        groups = self._groups.take()
        if groups is None:
            return None
        keys = [groups.column(f"k{i}") for i in range(self._key_form.width)]
        sums = iter(range(len(self._parts)))
        parts = [
            groups.column(ROWS if part.kind == "count" else f"v{next(sums)}")
            for part in self._parts
        ]
        return Table.of_arrays([*keys, *parts], Entry((self._key_form, form_of(self.shape))))
