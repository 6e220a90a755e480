"""JSON lines as columns, with no object made of any of them."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import TYPE_CHECKING, Any

from jetlet.columns.items import is_readable
from jetlet.columns.steps import LEAST_ROWS
from jetlet.core.table import Record, Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["JsonColumns"]

_KINDS = {int: "int64", float: "double", str: "string", bool: "bool"}


class JsonColumns:
    """Lines that are objects with some fields, as a table of the items that a decoder would make.

    Whatever is not certain to be the same is left to that decoder, which knows what is missing,
    what is wrong, and in which line.
    """

    def __init__(self, kinds: dict[str, str], factory: type | None) -> None:
        self._kinds = kinds
        self._form = Record(tuple(kinds), factory or dict)
        self._options: Any = None

    @classmethod
    def of(cls, schema: type) -> JsonColumns | None:
        """For items of a class; ``None`` if some of these are not for columns."""
        hints = typing.get_type_hints(schema, include_extras=True)
        kinds = {
            name: _KINDS.get(hint, "") if isinstance(hint, type) else ""
            for name, hint in hints.items()
        }
        if not kinds or not all(kinds.values()):
            return None
        if typing.is_typeddict(schema):
            return cls(kinds, None)
        if hasattr(schema, "__post_init__") or not _is_plain(schema, list(kinds)):
            return None
        return cls(kinds, schema)

    def __reduce__(self) -> tuple[object, ...]:
        factory = self._form.kind
        return JsonColumns, (self._kinds, None if factory is dict else factory)

    def table(self, text: str) -> Table | None:
        """The items of some lines, which end with the text; ``None`` if they are to be decoded."""
        lines = text.count("\n") + (not text.endswith("\n"))
        # An object for each line: none goes on in the next one, as what follows it there would have
        # to be a comma.
        ends = text.rstrip("\n")
        if lines < LEAST_ROWS or text.count("}\n{") != lines - 1:
            return None
        if not (ends.startswith("{") and ends.endswith("}")):
            return None
        try:
            found = self._decoded(text.encode())
        except (ValueError, UnicodeEncodeError):  # Arrow's errors are of that kind, too
            return None
        if found.num_rows != lines or any(column.null_count for column in found.columns):
            return None  # what is null may also not be there
        batches = found.combine_chunks().to_batches()
        if len(batches) != 1 or not is_readable(batches[0]) or not _is_finite(batches[0]):
            return None
        return Table(batches[0], self._form)

    def _decoded(self, data: bytes) -> pa.Table:
        import pyarrow as pa
        from pyarrow import json

        if self._options is None:
            fields = [(name, pa.type_for_alias(kind)) for name, kind in self._kinds.items()]
            self._options = json.ParseOptions(
                explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
            )
        # As one block: to be decoded in pieces takes longer.
        reading = json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        found = json.read_json(pa.BufferReader(data), reading, self._options)
        return found.select(list(self._kinds))


def _is_plain(schema: type, names: list[str]) -> bool:
    """True if objects are made of their fields, in this order, and of nothing else."""
    parameters = inspect.signature(schema).parameters.values()
    if any(each.kind is not each.POSITIONAL_OR_KEYWORD for each in parameters):
        return False
    if [each.name for each in parameters] != names:
        return False
    config = getattr(schema, "__struct_config__", None)
    if config is None:
        return dataclasses.is_dataclass(schema)
    structs: Any = schema
    are_renamed = structs.__struct_encode_fields__ != structs.__struct_fields__
    return not (config.tag or config.array_like or config.forbid_unknown_fields or are_renamed)


def _is_finite(batch: pa.RecordBatch) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    return all(
        pc.all(pc.is_finite(column)).as_py()
        for column in batch.columns
        if pa.types.is_floating(column.type)
    )
