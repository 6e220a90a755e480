"""What type an expression gives, and whether it can be asked of items of a type."""

from __future__ import annotations

import difflib

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
    TEXT,
    TIME,
    DataType,
    datetime_of,
    struct_of,
    tuple_of,
    unified,
)
from jetlet.pipeline.expressions.nodes import (
    Call,
    Cast,
    Element,
    Explode,
    Field,
    Item,
    Literal,
    Node,
    Record,
    Tuple,
    When,
)
from jetlet.pipeline.expressions.operations import OPERATIONS

__all__ = ["type_of"]

_CONSTANTS = {
    "NoneType": NULL,
    "bool": BOOL,
    "int": INT,
    "float": FLOAT,
    "Decimal": DECIMAL,
    "str": TEXT,
    "bytes": BYTES,
    "date": DATE,
    "time": TIME,
    "timedelta": DURATION,
}


def type_of(node: Node, item: DataType = ANY) -> DataType:
    """The type of what ``node`` gives for items of a type.

    Refuses a field that such items do not have, and operations that do not go with the types.
    """
    match node:
        case Item():
            return item
        case Literal(value):
            name = type(value).__name__
            return datetime_of(_zone(value)) if name == "datetime" else _CONSTANTS.get(name, ANY)
        case Field(of, name):
            return _field(node, type_of(of, item), name)
        case Element(of, _):
            return _element(node, type_of(of, item))
        case Explode(of):
            return _element(node, type_of(of, item))
        case Call(operation, arguments):
            types = [type_of(each, item) for each in arguments]
            try:
                return OPERATIONS[operation].result(*types)
            except TypeError as error:
                raise InvalidArgumentError(f"{node}: {operation} {error}") from None
        case When(branches, otherwise):
            for condition, _ in branches:
                kind = type_of(condition, item)
                if kind.kind not in ("any", "null", "bool"):
                    raise InvalidArgumentError(
                        f"{node}: the condition {condition} is of type {kind}: write a comparison"
                    )
            values = [type_of(value, item) for _, value in branches]
            return unified(*values, type_of(otherwise, item))
        case Record(fields):
            return struct_of({name: type_of(each, item) for name, each in fields})
        case Tuple(elements):
            return tuple_of(*(type_of(each, item) for each in elements))
        case Cast(of, to):
            _check_cast(node, type_of(of, item), to)
            return to
    raise TypeError(f"not a node of an expression: {node!r}")


def _zone(value: object) -> str | None:
    zone = getattr(value, "tzinfo", None)
    return None if zone is None else str(getattr(zone, "key", zone))


def _field(node: Node, of: DataType, name: str) -> DataType:
    found = of.field(name)
    if found is not None:
        return found
    if of.kind != "struct":
        raise InvalidArgumentError(f"{node}: there are no fields in a value of type {of}")
    names = [each for each, _ in of.fields]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(map(repr, names))}"
    raise InvalidArgumentError(f"{node}: there is no field {name!r}: {hint}")


def _element(node: Node, of: DataType) -> DataType:
    if of.kind in ("any", "null"):
        return ANY
    if of.kind == "list":
        return of.element or ANY
    if isinstance(node, Element) and of.kind == "text":
        return TEXT
    if of.kind == "tuple":
        kinds = [kind for _, kind in of.fields]
        if not isinstance(node, Element):
            return unified(*kinds)
        if -len(kinds) <= node.index < len(kinds):
            return kinds[node.index]
        raise InvalidArgumentError(f"{node}: there are {len(kinds)} elements only")
    raise InvalidArgumentError(f"{node}: a value of type {of} is no list")


_FROM = {
    "bool": {"bool", "int", "float", "decimal"},
    "int": {"bool", "int", "float", "decimal", "text"},
    "float": {"bool", "int", "float", "decimal", "text"},
    "decimal": {"bool", "int", "float", "decimal", "text"},
    "date": {"date", "datetime", "text"},
    "datetime": {"date", "datetime", "text"},
}
"""What can be cast to each; everything but lists and structs to text."""


def _check_cast(node: Node, of: DataType, to: DataType) -> None:
    if of.kind in ("any", "null"):
        return
    if to.kind == "text":
        if of.kind in ("list", "struct", "bytes"):
            raise InvalidArgumentError(f"{node}: a value of type {of} cannot be made text")
    elif of.kind not in _FROM[to.kind]:
        raise InvalidArgumentError(f"{node}: a value of type {of} cannot be made {to}")
