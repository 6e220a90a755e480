"""Table: a batch of items that is stored as columns.

A batch is a sequence of items, however it is stored: as a list, or as a :class:`Table`. Whoever
does not care iterates over it, and the items are made then. Whoever works on columns takes
``columns``. How columns become items is a table's :class:`Form`.

A table may have only some of its columns at hand: whoever asks for the others has them fetched.

Where items carry timestamps these lie beside them, in ``times``, and the items of the sequence are
the events that processors know, pairs ``(timestamp, item)``.

Nothing here imports pyarrow before there is a table.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "VALUE",
    "Entry",
    "Form",
    "Record",
    "Table",
    "TableFunction",
    "Value",
    "values_of",
    "warm_up",
]


@dataclass(frozen=True, slots=True)
class Value:
    """An item is the value of one column."""

    width: int = 1

    def items(self, columns: Sequence[list[Any]], rows: int) -> list[Any]:
        """The items of columns that were made values of Python."""
        return columns[0]


@dataclass(frozen=True, slots=True)
class Record:
    """An item is a dict, or an object of that ``kind``, of the values of columns with these names.

    Objects are made by calling their class with the values in this order.
    """

    names: tuple[str, ...]
    kind: type[Any] = dict

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.names)

    @property
    def is_dict(self) -> bool:
        """True if items are dicts, and no objects of which somebody may make something else."""
        return self.kind is dict

    def items(self, columns: Sequence[list[Any]], rows: int) -> list[Any]:
        """The items of columns that were made values of Python."""
        if not columns:
            return [self.kind() for _ in range(rows)]
        if self.kind is not dict:
            return list(map(self.kind, *columns))
        return _record_loop(self.names)(*columns)


@dataclass(frozen=True, slots=True)
class Entry:
    """An item is a tuple, or a named tuple of that ``kind``, of parts that have their own forms."""

    parts: tuple[Form, ...]
    kind: type[Any] = tuple
    """May be ``list``, too, for accumulators."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(part.width for part in self.parts)

    def at(self, index: int) -> tuple[int, int]:
        """The columns of a part: the first one, and the one behind the last."""
        start = sum(part.width for part in self.parts[:index])
        return start, start + self.parts[index].width

    def items(self, columns: Sequence[list[Any]], rows: int) -> list[Any]:
        """The items of columns that were made values of Python."""
        parts = []
        at = 0
        for part in self.parts:
            parts.append(part.items(columns[at : at + part.width], rows))
            at += part.width
        if not parts:
            return [self.kind() for _ in range(rows)]
        if self.kind is tuple:
            return list(zip(*parts, strict=True))
        if self.kind is list:
            return list(map(list, zip(*parts, strict=True)))
        # What a named tuple's own constructor does, without its detour through Python.
        return list(map(tuple.__new__, repeat(self.kind, rows), zip(*parts, strict=True)))


Form = Value | Record | Entry
VALUE = Value()


class Table(Sequence[Any]):
    """Items as columns. Read-only, like any batch; a slice shares the columns.

    The items are made when somebody asks for them, all at once, and are kept as long as the table.
    """

    __slots__ = ("_columns", "_fetch", "_items", "form", "times")

    def __init__(
        self,
        columns: pa.RecordBatch,
        form: Form,
        times: pa.Array | None = None,
        fetch: Callable[[], pa.RecordBatch] | None = None,
    ) -> None:
        self._columns = columns
        self._fetch = fetch
        """Gives the columns that are not there yet, which a table of records may have."""
        self.form = form
        self.times = times
        """Timestamps of the items, in milliseconds; ``None`` where items have none."""
        self._items: list[Any] | None = None

    @classmethod
    def of(cls, columns: pa.RecordBatch) -> Table:
        """A table whose items are dicts, with the names of the columns."""
        return cls(columns, Record(tuple(columns.schema.names)))

    @classmethod
    def of_arrays(
        cls, arrays: Sequence[pa.Array], form: Form, times: pa.Array | None = None
    ) -> Table:
        """A table of these columns, one at least."""
        import pyarrow as pa

        names = form.names if isinstance(form, Record) else list(map(str, range(len(arrays))))
        return cls(pa.RecordBatch.from_arrays(arrays, names=names), form, times)

    @property
    def columns(self) -> pa.RecordBatch:
        """As many as the form has; their names count only as far as the form does not know them."""
        fetch = self._fetch
        if fetch is not None:
            import pyarrow as pa

            assert isinstance(self.form, Record)
            there = [self._columns, fetch()]
            by_name = {name: batch.column(name) for batch in there for name in batch.schema.names}
            names = self.form.names
            self._columns = pa.RecordBatch.from_arrays([by_name[n] for n in names], names=names)
            self._fetch = None
        return self._columns

    @property
    def is_partial(self) -> bool:
        """True if some of its columns are still to be fetched."""
        return self._fetch is not None

    def with_fields(self, wanted: AbstractSet[str]) -> Table:
        """The items with only those of their fields, if they are records; all if it has none."""
        form = self.form
        if not isinstance(form, Record) or len(set(form.names)) < len(form.names):
            return self
        names = [name for name in form.names if name in wanted]
        if not names or len(names) == len(form.names):
            return self
        is_there = not self.is_partial or set(names) <= set(self._columns.schema.names)
        columns = self._columns if is_there else self.columns
        return Table(columns.select(names), Record(tuple(names)), self.times)

    def with_times(self, times: pa.Array | None) -> Table:
        """The same items with other timestamps, or none."""
        fetch = self._fetch  # first: while there is one, the columns may be complete, too
        return Table(self._columns, self.form, times, fetch)

    def _chosen(self, choose: Callable[[Any], Any]) -> Table:
        """Some of the rows: what ``choose`` gives of columns."""
        times, fetch = self.times, self._fetch
        return Table(
            choose(self._columns),
            self.form,
            None if times is None else choose(times),
            None if fetch is None else lambda: choose(fetch()),
        )

    def __len__(self) -> int:
        return self._columns.num_rows  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return self._columns.num_rows > 0  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items())

    def items(self) -> list[Any]:
        """The items, or the events if they have timestamps. The list is the table's."""
        items = self._items
        if items is None:
            items = self.form.items(self.values(), len(self))
            if self.times is not None:
                items = list(zip(values_of(self.times), items, strict=True))
            self._items = items
        return items

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return self.items()[index]
        start, stop, step = index.indices(len(self))
        if step != 1:
            import pyarrow as pa

            return self.take(pa.array(range(start, stop, step), pa.int64()))
        length = max(0, stop - start)
        part = self._chosen(lambda columns: columns.slice(start, length))
        if self._items is not None:
            part._items = self._items[index]
        return part

    def values(self) -> list[list[Any]]:
        """The values of each column, for who makes something else than items of them."""
        return list(map(values_of, self.columns.columns))

    def __repr__(self) -> str:
        return f"<Table of {len(self)} rows: {', '.join(self._columns.schema.names)}>"

    def without_times(self) -> Table:
        """The items without their timestamps."""
        return self if self.times is None else self.with_times(None)

    def part(self, index: int) -> Table:
        """One part of items that are tuples."""
        assert isinstance(self.form, Entry)
        start, end = self.form.at(index)
        return Table(
            self.columns.select(list(range(start, end))), self.form.parts[index], self.times
        )

    @property
    def array(self) -> pa.Array:
        """The only column of items that are plain values."""
        assert self.form == VALUE
        return self.columns.column(0)

    def take(self, rows: pa.Array) -> Table:
        """The rows with these numbers."""
        return self._chosen(lambda columns: columns.take(rows))

    def filter(self, mask: pa.Array) -> Table:
        """The rows for which the mask, which may have nulls, is true."""
        return self._chosen(lambda columns: columns.filter(mask))

    def __reduce_ex__(self, protocol: Any) -> tuple[object, ...]:
        # As a stream of Arrow's, which holds of a slice no more than what is in it.
        import pyarrow as pa

        columns, times = self.columns, self.times
        if times is not None:
            columns = columns.append_column("", times)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, columns.schema) as writer:
            writer.write_batch(columns)
        buffer = sink.getvalue()
        data = pickle.PickleBuffer(buffer) if protocol >= 5 else buffer.to_pybytes()
        return _loaded, (data, self.form, times is not None)


def _loaded(data: Any, form: Form, has_times: bool) -> Table:
    import pyarrow as pa

    buffer = pa.py_buffer(data)
    if buffer.address % 8:
        # Columns are read in place, which not every processor can do from anywhere.
        buffer = pa.py_buffer(bytes(data))
    with pa.ipc.open_stream(buffer) as reader:
        columns = reader.read_next_batch()
    if not has_times:
        return Table(columns, form)
    last = columns.num_columns - 1
    return Table(columns.select(list(range(last))), form, columns.column(last))


class TableFunction(ABC):
    """A function of an item that can be applied to all items of a table at once."""

    @abstractmethod
    def __call__(self, item: Any) -> Any:
        """What it gives for an item, or for an event where that is what it was made for."""

    @abstractmethod
    def on_table(self, table: Table) -> Table:
        """What it gives for each; raises if that takes the items, or if it fails for one."""


def values_of(array: pa.Array) -> list[Any]:
    """The values of a column, as Python has them."""
    if array.null_count == 0:
        kind = array.type
        if _is_number(kind):
            # Ten times as fast as pyarrow's own way.
            return array.to_numpy().tolist()  # type: ignore[no-any-return]
    name = str(array.type)
    if name in _TEXT:
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    if name.startswith("dictionary<") and array.null_count == 0:
        # One object for each word, and not for each row.
        return list(map(values_of(array.dictionary).__getitem__, values_of(array.indices)))
    if name in _DAYS and _is_within(array, _DAYS[name]):
        days = array.to_numpy(zero_copy_only=False)  # None where they are null
        return days.tolist()  # type: ignore[no-any-return]
    if name in _TIMES and _is_within(array, _TIMES[name]):
        return _moments(array)
    return array.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


_TEXT = frozenset({"string", "large_string"})
# What a date and a datetime of Python can be, in the units of columns. Of times in zones only those
# in UTC are here: to tell the zone's own clock takes a call for each.
_DAY = 86_400_000_000
"""In microseconds, as all of these."""
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST, _LAST = (1 - _EPOCH) * _DAY, (date.max.toordinal() + 1 - _EPOCH) * _DAY - 1
_DAYS = {"date32[day]": (_FIRST // _DAY, _LAST // _DAY)}
_TIMES = {
    f"timestamp[{unit}{zone}]": (-(-_FIRST // length), _LAST // length)
    for unit, length in (("s", 1_000_000), ("ms", 1000), ("us", 1))
    for zone in ("", ", tz=UTC")
}


def _is_within(array: pa.Array, limits: tuple[int, int]) -> bool:
    """Whether all values have such numbers; Arrow's own way says what is wrong with others."""
    import pyarrow.compute as pc

    found = pc.min_max(array)
    if not found["min"].is_valid:
        return False  # there are none
    return bool(limits[0] <= found["min"].value and found["max"].value <= limits[1])


def _moments(array: pa.Array) -> list[Any]:
    """Times as Python has them; twenty times as fast as pyarrow's own way."""
    import pyarrow as pa

    numbers = array.to_numpy(zero_copy_only=False).astype("datetime64[us]")
    if array.type.tz is None:
        return numbers.tolist()  # type: ignore[no-any-return]
    epoch = pa.scalar(0, array.type).as_py()  # in the object for the zone that Arrow has
    since = numbers.view("timedelta64[us]").tolist()
    if array.null_count:
        return [None if each is None else epoch + each for each in since]
    return list(map(epoch.__add__, since))


def _is_number(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind))


def warm_up() -> None:
    """Load what the first column takes, here and now: with pandas installed that takes long."""
    import pyarrow as pa

    pa.array([0]).to_numpy()


@lru_cache(maxsize=256)
def _record_loop(names: tuple[str, ...]) -> Callable[..., list[Any]]:
    """The function that makes dicts of columns; generated, so that no name is looked up."""
    values = [f"v{i}" for i in range(len(names))]
    columns = [f"c{i}" for i in range(len(names))]
    fields = ", ".join(f"{name!r}: {v}" for name, v in zip(names, values, strict=True))
    loop = f"for {', '.join(values)}, in zip({', '.join(columns)}, strict=True)"
    namespace: dict[str, Any] = {}
    exec(f"def records({', '.join(columns)}):\n    return [{{{fields}}} {loop}]\n", namespace)
    return namespace["records"]  # type: ignore[no-any-return]
