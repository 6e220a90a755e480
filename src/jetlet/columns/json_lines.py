"""JSON lines as columns.

Many lines are decoded in one call, and their values put into columns: that takes less time than
Arrow's own reader does, and what a line means is told by the decoder that everybody else uses.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from keyword import iskeyword
from operator import attrgetter
from typing import Any

from jetlet.columns.steps import LEAST_ROWS
from jetlet.core.table import Record, Table
from jetlet.pipeline.expressions.schemas import class_of

__all__ = ["JsonColumns", "is_plain_record"]

_KINDS = {int: "int64", float: "double", str: "string", bool: "bool"}


class JsonColumns:
    """Lines that are objects with some fields, as a table of the items that they are one by one."""

    def __init__(self, schema: Any, kinds: dict[str, str]) -> None:
        self._schema = schema
        self._kinds = kinds
        has_objects = isinstance(schema, type) and not typing.is_typeddict(schema)
        factory: type = schema if has_objects else dict
        self._form = Record(tuple(kinds), factory)
        self._decoder: Any = None

    @classmethod
    def of(cls, schema: Any) -> JsonColumns | None:
        """For items that have a schema; ``None`` if some of these are not for columns."""
        kind = class_of(schema)
        hints = typing.get_type_hints(kind, include_extras=True)
        kinds = {name: _kind_of(hint) for name, hint in hints.items()}
        if not kinds or not all(kinds.values()):
            return None
        if not typing.is_typeddict(kind):
            if not is_plain_record(kind, list(kinds)):
                return None
        elif not all(name.isidentifier() and not iskeyword(name) for name in kinds):
            return None
        return cls(schema, kinds)

    def __reduce__(self) -> tuple[object, ...]:
        return JsonColumns, (self._schema, self._kinds)

    def table(self, text: str) -> Table | None:
        """The items of some lines, which end with the text.

        ``None`` if there are few, or if any of them may be wrong: then one by one will tell.
        """
        return self.table_of(text.encode("utf-8", "surrogatepass"))

    def table_of(self, data: bytes) -> Table | None:
        """The same of bytes."""
        lines = _count_of_objects(data)
        if lines < LEAST_ROWS:
            return None
        import msgspec
        import pyarrow as pa

        try:
            objects = self._decode(data)
            if len(objects) != lines:
                return None
            arrays = [
                pa.array(list(map(attrgetter(name), objects)), pa.type_for_alias(kind))
                for name, kind in self._kinds.items()
            ]
        except (ValueError, OverflowError, msgspec.MsgspecError):
            return None
        return Table.of_arrays(arrays, self._form)

    def _decode(self, data: bytes) -> list[Any]:
        if self._decoder is None:
            from msgspec import defstruct
            from msgspec.json import Decoder

            schema: Any = class_of(self._schema)
            if self._form.kind is dict:
                # Made in less time than a dict, and none is wanted.
                schema = defstruct("Line", list(typing.get_type_hints(schema).items()), gc=False)
            self._decoder = Decoder(schema)
        objects: list[Any] = self._decoder.decode_lines(data)
        return objects


def _kind_of(hint: Any) -> str:
    """The type of a column for values of a field; empty if they are not for one."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        given = [each for each in typing.get_args(hint) if each is not types.NoneType]
        hint = given[0] if len(given) == 1 else None
    return _KINDS.get(hint, "") if isinstance(hint, type) else ""


def is_plain_record(schema: type, names: list[str]) -> bool:
    """True if objects are made of their fields, in this order, and of nothing else."""
    parameters = inspect.signature(schema).parameters.values()
    if any(each.kind is not each.POSITIONAL_OR_KEYWORD for each in parameters):
        return False
    if [each.name for each in parameters] != names or hasattr(schema, "__post_init__"):
        return False
    return dataclasses.is_dataclass(schema) or hasattr(schema, "__struct_fields__")


def _count_of_objects(data: bytes) -> int:
    """How many lines there are, if each may be an object of its own; 0 if not.

    A line that begins as an object, behind one that ends as one, goes on with nothing: there would
    have to be a comma between.
    """
    import numpy as np

    data = data.rstrip(b"\n")
    if not (data.startswith(b"{") and data.endswith(b"}")):
        return 0
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    are_apart = (codes[ends - 1] == ord("}")).all() and (codes[ends + 1] == ord("{")).all()
    return len(ends) + 1 if are_apart else 0
