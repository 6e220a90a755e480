"""Schemas: what users say that items are, as types; and the check that they are that.

A schema is a dataclass, a ``TypedDict``, a msgspec ``Struct`` or a ``pyarrow.Schema``. Items of the
first and the third are objects of that class, those of the others dictionaries.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from jetlet.core.arguments import shortened
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.expressions.data_types import (
    ANY,
    BOOL,
    BYTES,
    DATE,
    DECIMAL,
    DURATION,
    FLOAT,
    INT,
    NULL,
    SOME_ZONE,
    TEXT,
    TIME,
    DataType,
    datetime_of,
    list_of,
    struct_of,
    tuple_of,
    unified,
)
from jetlet.pipeline.expressions.expression import Expression, node_of
from jetlet.pipeline.expressions.inference import type_of
from jetlet.pipeline.expressions.nodes import Explode, walk

__all__ = [
    "TypeCheck",
    "arrow_type",
    "check_expression",
    "class_of",
    "schema_type",
    "type_of_results",
]

_HINTS: dict[Any, DataType] = {
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: TEXT,
    bytes: BYTES,
    Decimal: DECIMAL,
    date: DATE,
    time: TIME,
    datetime: datetime_of(SOME_ZONE),
    timedelta: DURATION,
    type(None): NULL,
}
_CLASSES = {kind.kind: cls for cls, kind in _HINTS.items()} | {"list": list}


def schema_type(what: str, schema: Any) -> DataType:
    """The type of items that have a schema; ``what`` was given it."""
    if type(schema).__module__.partition(".")[0] == "pyarrow" and hasattr(schema, "names"):
        return struct_of({name: arrow_type(schema.field(name).type) for name in schema.names})
    if isinstance(schema, type) and _is_record(schema):
        return _of_class(schema)
    raise InvalidArgumentError(
        f"{what}: a schema is a dataclass, a TypedDict, a msgspec.Struct or a pyarrow.Schema, not "
        f"{schema!r}"
    )


def class_of(schema: Any) -> type:
    """The class that says the same to a decoder: for a ``pyarrow.Schema`` a ``TypedDict``.

    It has no name to be pickled by: what travels keeps the schema.
    """
    return schema if isinstance(schema, type) else _class_of_fields(schema)


def _class_of_fields(fields: Any) -> type:
    hints = {}
    for field in fields:
        hint = _hint_of(field.type)
        hints[field.name] = hint | None if field.nullable else hint
    make: Any = typing.TypedDict
    return make("Row", hints)  # type: ignore[no-any-return]


def _hint_of(kind: Any) -> Any:
    """What a class says of a field that has this type in Arrow."""
    import pyarrow.types as at

    if at.is_struct(kind):
        return _class_of_fields(kind)
    found = arrow_type(kind)
    if found.kind == "list":
        inner = kind.value_field
        hint = _hint_of(inner.type)
        return list[hint | None if inner.nullable else hint]  # type: ignore[misc]
    return _CLASSES.get(found.kind, typing.Any)


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and (
        dataclasses.is_dataclass(hint)
        or typing.is_typeddict(hint)
        or hasattr(hint, "__struct_fields__")
    )


def _of_class(schema: type) -> DataType:
    hints = typing.get_type_hints(schema)
    fields = {name: _of_hint(hint) for name, hint in hints.items() if not _is_class_variable(hint)}
    return struct_of(fields, None if typing.is_typeddict(schema) else schema)


def _is_class_variable(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.ClassVar


def _of_hint(hint: Any) -> DataType:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = {_of_hint(each) for each in arguments} - {NULL}
        return kinds.pop() if len(kinds) == 1 else ANY
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _of_hint(arguments[0])
    if origin is list:
        return list_of(_of_hint(arguments[0]))
    if origin is tuple and Ellipsis not in arguments:
        return tuple_of(*map(_of_hint, arguments))
    if _is_record(hint):
        return _of_class(hint)
    try:
        return _HINTS.get(hint, ANY)
    except TypeError:  # a hint that has no hash
        return ANY


def arrow_type(kind: Any) -> DataType:
    """The type of the values of an Arrow column."""
    import pyarrow.types as at

    if at.is_dictionary(kind):
        return arrow_type(kind.value_type)
    if at.is_timestamp(kind):
        return datetime_of(kind.tz)
    if at.is_list(kind) or at.is_large_list(kind) or at.is_fixed_size_list(kind):
        return list_of(arrow_type(kind.value_type))
    if at.is_struct(kind):
        return struct_of({field.name: arrow_type(field.type) for field in kind})
    for is_kind, found in (
        (at.is_boolean, BOOL),
        (at.is_integer, INT),
        (at.is_floating, FLOAT),
        (at.is_decimal, DECIMAL),
        (at.is_string, TEXT),
        (at.is_large_string, TEXT),
        (at.is_binary, BYTES),
        (at.is_large_binary, BYTES),
        (at.is_date, DATE),
        (at.is_time, TIME),
        (at.is_duration, DURATION),
        (at.is_null, NULL),
    ):
        if is_kind(kind):
            return found
    return ANY


def type_of_results(kind: str, fn: Callable[[Any], Any], item: DataType) -> DataType:
    """The type of the items behind a map or flat map."""
    if isinstance(fn, TypeCheck):
        return fn.kind
    if kind == "map" and isinstance(fn, type):
        return _HINTS.get(fn, ANY)
    if not isinstance(fn, Expression):
        return ANY
    node = node_of(fn)
    try:
        found = type_of(node, item)
    except InvalidArgumentError:
        return ANY  # who checks the stage says why
    if kind == "map" or any(isinstance(each, Explode) for each in walk(node)):
        return found
    if found.kind == "tuple":
        return unified(*(each for _, each in found.fields))
    return ANY if found.element is None else found.element


def check_expression(fn: object, item: DataType) -> None:
    """Refuse an expression that items of a type do not go with."""
    if isinstance(fn, Expression):
        type_of(node_of(fn), item)


class TypeCheck:
    """A function that gives an item as it is, and fails for one that is not of a type."""

    def __init__(self, kind: DataType) -> None:
        self.kind = kind

    def __call__(self, item: Any) -> Any:
        _check(item, self.kind, "")
        return item


def _check(value: Any, kind: DataType, path: str) -> None:
    """Refuse what is not of a type; ``path`` leads to it from the item."""
    if value is None and path:
        return
    if kind.kind == "struct":
        _check_fields(value, kind, path)
        return
    if kind.kind == "tuple":
        if not isinstance(value, tuple) or len(value) != len(kind.fields):
            raise _mismatch(value, kind, path)
        for index, (_, inner) in enumerate(kind.fields):
            _check(value[index], inner, f"{path}[{index}]")
        return
    expected = _CLASSES.get(kind.kind)
    if expected is None:
        return
    # A bool is an int, and a datetime a date, but neither is what was meant.
    is_other = type(value) is not expected and (
        not isinstance(value, expected)
        or (expected is int and isinstance(value, bool))
        or (expected is date and isinstance(value, datetime))
    )
    if is_other:
        raise _mismatch(value, kind, path)
    if kind.kind == "list" and kind.element is not None and kind.element != ANY:
        for index, each in enumerate(value):
            _check(each, kind.element, f"{path}[{index}]")


def _check_fields(value: Any, kind: DataType, path: str) -> None:
    if kind.factory is not None:
        if not isinstance(value, kind.factory):
            raise _mismatch(value, kind, path)
        for name, inner in kind.fields:
            _check(getattr(value, name), inner, f"{path}.{name}")
        return
    if not isinstance(value, Mapping):
        raise _mismatch(value, kind, path)
    for name, inner in kind.fields:
        if name not in value:
            raise TypeError(f"the item has no field {f'{path}.{name}'[1:]!r}")
        _check(value[name], inner, f"{path}.{name}")


def _mismatch(value: Any, kind: DataType, path: str) -> TypeError:
    where = f"field {path.removeprefix('.')!r}" if path else "the item"
    wanted = kind.factory.__name__ if kind.factory else str(kind)
    return TypeError(f"{where} is of type {wanted}, not {shortened(value)}")
