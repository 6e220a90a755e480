"""From items to columns, where that loses nothing: the items of the table are the same again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jetlet.core.table import VALUE, Entry, Form, Record, Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["events_table", "is_readable", "items_table"]

_EXACT = frozenset({bool, int, float, str, bytes, dt.date})
"""Types whose values come back from a column as what they were; ``None`` may be among them."""


def items_table(items: Sequence[Any]) -> Table | None:
    """The items as a table; ``None`` if there is no table of exactly these items, or none."""
    columns: list[pa.Array] = []
    form = _add(items, columns) if items else None
    return Table.of_arrays(columns, form) if form is not None and columns else None


def events_table(events: Sequence[Any]) -> Table | None:
    """Pairs of timestamp and item as a table that has the timestamps beside the items."""
    if not events or not all(type(e) is tuple and len(e) == 2 for e in events):
        return None
    if {type(time) for time, _ in events} != {int}:
        return None
    table = items_table([item for _, item in events])
    times = _column([time for time, _ in events])
    if table is None or times is None:
        return None
    return Table(table.columns, table.form, times)


def _add(items: Sequence[Any], columns: list[pa.Array]) -> Form | None:
    """Append the columns of the items, and tell their form."""
    kinds = set(map(type, items))
    kind = next(iter(kinds))
    if len(kinds) == 1 and kind is dict:
        names = tuple(items[0])
        if not names or not all(type(name) is str for name in names):
            return None
        if any(tuple(item) != names for item in items):
            return None
        for name in names:
            column = _column([item[name] for item in items])
            if column is None:
                return None
            columns.append(column)
        return Record(names)
    if len(kinds) == 1 and issubclass(kind, tuple):
        if kind is not tuple and not hasattr(kind, "_fields"):
            return None
        if not items[0] or len({len(item) for item in items}) > 1:
            return None
        parts = [_add(values, columns) for values in zip(*items, strict=True)]
        if any(part is None for part in parts):
            return None
        return Entry(tuple(part for part in parts if part is not None), kind)
    column = _column(items)
    if column is None:
        return None
    columns.append(column)
    return VALUE


def _column(values: Sequence[Any]) -> pa.Array | None:
    import pyarrow as pa

    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) > 1 or not kinds <= _EXACT:
        return None
    try:
        # A NaN is no null, and what has no type of its own is a column of nulls.
        return pa.array(values, from_pandas=False)
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
        return None


def is_readable(batch: pa.RecordBatch) -> bool:
    """True if each row is certain to become an item: then there is no need to try."""
    from pyarrow import types

    for column in batch.columns:
        if types.is_dictionary(column.type):
            column = column.dictionary
        kind = column.type
        if types.is_string(kind) or types.is_large_string(kind):
            try:
                column.validate(full=True)
            except Exception:
                return False
        elif not (
            types.is_integer(kind)
            or types.is_floating(kind)
            or types.is_boolean(kind)
            or types.is_binary(kind)
            or types.is_decimal(kind)
            or (types.is_timestamp(kind) and kind.unit != "ns")
            or types.is_date32(kind)
        ):
            return False
    return True
