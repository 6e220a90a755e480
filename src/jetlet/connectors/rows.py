"""Items as rows of columns, for sinks of tables.

A mapping, a dataclass and a named tuple know the names of their columns; a tuple or a list is a row
without names, and anything else is a row of one column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from jetlet.core.arguments import shortened
from jetlet.errors import BadRecordError
from jetlet.pipeline.functions import call_each

Row = Sequence[Any]


def column_names(item: Any) -> tuple[Any, ...] | None:
    """The names that an item brings for its columns."""
    if isinstance(item, Mapping):
        return tuple(item)
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return tuple(field.name for field in dataclasses.fields(item))
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return tuple(item._fields)
    return None


class RowShape:
    """Turns batches of items into rows with the same columns.

    Mappings are looked up by the names: a missing one gives ``missing``, and others are left out
    if the names were ``chosen`` by the user, refused otherwise. All else goes by position.
    """

    def __init__(
        self, names: Sequence[Any] | None, *, chosen: bool = False, missing: Any = None
    ) -> None:
        self.names = None if names is None else tuple(names)
        self._known = frozenset(names or ())
        self._chosen = chosen
        self._missing = missing
        self._converters: dict[type, Callable[[Any], Row]] = {}

    def rows(self, batch: Sequence[Any]) -> list[Row]:
        kinds = {*map(type, batch)}
        if len(kinds) == 1:
            rows = call_each(self._converter(kinds.pop()), batch)
        else:
            rows = [self._converter(type(item))(item) for item in batch]
        if self.names is not None:
            width = len(self.names)
            if {*map(len, rows)} != {width}:
                item, row = next(
                    pair for pair in zip(batch, rows, strict=True) if len(pair[1]) != width
                )
                raise BadRecordError(
                    f"{shortened(item)} has {len(row)} columns, not the {width} of "
                    f"{shortened(list(self.names))}"
                )
        return rows

    def _converter(self, kind: type) -> Callable[[Any], Row]:
        convert = self._converters.get(kind)
        if convert is None:
            convert = self._converters[kind] = self._new_converter(kind)
        return convert

    def _new_converter(self, kind: type) -> Callable[[Any], Row]:
        if issubclass(kind, Mapping):
            return self._from_mapping if self.names is not None else _values
        if dataclasses.is_dataclass(kind):
            fields = [field.name for field in dataclasses.fields(kind)]
            get = attrgetter(*fields) if fields else _nothing
            return _alone(get) if len(fields) == 1 else get
        if issubclass(kind, tuple | list):
            return _itself
        return _single

    def _from_mapping(self, item: Mapping[Any, Any]) -> Row:
        names = self.names or ()
        if not self._chosen and not self._known.issuperset(item):
            new = next(key for key in item if key not in self._known)
            raise BadRecordError(
                f"{shortened(item)} has {new!r}, which is not among the columns "
                f"{shortened(list(names))} of the first item; name all columns when you make "
                "the sink"
            )
        missing = self._missing
        return [item.get(name, missing) for name in names]


def _values(item: Mapping[Any, Any]) -> Row:
    return list(item.values())


def _itself(item: Row) -> Row:
    return item


def _single(item: Any) -> Row:
    return (item,)


def _nothing(_: Any) -> Row:
    return ()


def _alone(get: Callable[[Any], Any]) -> Callable[[Any], Row]:
    return lambda item: (get(item),)
