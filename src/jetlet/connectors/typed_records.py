"""TypedRecords: what a stream brings, checked against a schema, and many of them as columns."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any

from jetlet.columns.json_lines import is_plain_record
from jetlet.columns.steps import LEAST_ROWS
from jetlet.core.table import Record, Table
from jetlet.pipeline.expressions.schemas import TypeCheck, schema_type

__all__ = ["TypedRecords"]

_COLUMNS = {"int": (int, "int64"), "float": (float, "double")} | {
    "text": (str, "string"),
    "bool": (bool, "bool"),
}
"""For types whose values come back from a column as what they were: their class, and the type of
the column."""


class TypedRecords:
    """Dicts, or objects, that have a schema. Anything may be ``None``."""

    def __init__(self, what: str, schema: Any) -> None:
        self.type = schema_type(what, schema)
        self._check = TypeCheck(self.type)
        self._factory = self.type.factory or dict
        names = [name for name, _ in self.type.fields]
        kinds = [_COLUMNS.get(kind.kind) for _, kind in self.type.fields]
        self._columns = {
            name: kind for name, kind in zip(names, kinds, strict=True) if kind is not None
        }
        self._form = Record(tuple(names), self._factory)
        self.has_columns = bool(names) and len(self._columns) == len(names)
        if self._factory is not dict and not is_plain_record(self._factory, names):
            self.has_columns = False

    def error(self, record: Any) -> TypeError | None:
        """What is wrong with a record, if anything is."""
        try:
            self._check(record)
        except TypeError as error:
            return error
        return None

    def table(self, records: Sequence[Any]) -> Table | None:
        """A table of exactly these records; ``None`` if they are few, or any may be wrong."""
        if len(records) < LEAST_ROWS or set(map(type, records)) != {self._factory}:
            return None
        if self._factory is dict and set(map(len, records)) != {len(self._columns)}:
            return None  # there is more than the schema knows
        import pyarrow as pa

        get: Any = itemgetter if self._factory is dict else attrgetter
        arrays = []
        try:
            for name, (kind, column) in self._columns.items():
                values = list(map(get(name), records))
                if not {kind, NoneType}.issuperset(map(type, values)):
                    return None
                arrays.append(pa.array(values, pa.type_for_alias(column), from_pandas=False))
        except (LookupError, OverflowError, UnicodeEncodeError, pa.ArrowException):
            return None
        return Table.of_arrays(arrays, self._form)
