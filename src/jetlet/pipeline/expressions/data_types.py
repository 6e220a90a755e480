"""Types of values, as far as the planner knows them.

Every value may be null: a type says what it is when it is not. ``ANY`` is what nothing is known of,
and goes together with everything.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ANY",
    "BOOL",
    "BYTES",
    "DATE",
    "DECIMAL",
    "DURATION",
    "FLOAT",
    "INT",
    "NULL",
    "SOME_ZONE",
    "TEXT",
    "TIME",
    "DataType",
    "datetime_of",
    "list_of",
    "struct_of",
    "tuple_of",
    "unified",
]


@dataclass(frozen=True, slots=True)
class DataType:
    """The type of a value: its kind, and what it is made of."""

    kind: str
    """``any``, ``null``, ``bool``, ``int``, ``float``, ``decimal``, ``text``, ``bytes``, ``date``,
    ``time``, ``datetime``, ``duration``, ``list``, ``struct`` or ``tuple``."""
    element: DataType | None = None
    """What a list is of."""
    fields: tuple[tuple[str, DataType], ...] = ()
    """The fields of a struct, or the elements of a tuple, with their types."""
    zone: str | None = None
    """The time zone of a datetime, ``None`` if it has none; see ``SOME_ZONE``."""
    factory: type | None = None
    """The class that items of a struct are of; ``None`` for dictionaries."""

    def __str__(self) -> str:
        if self.kind == "list":
            return f"list of {self.element}"
        if self.kind == "tuple":
            return f"({', '.join(str(kind) for _, kind in self.fields)})"
        if self.kind == "struct":
            inner = ", ".join(f"{name}: {kind}" for name, kind in self.fields)
            return f"{{{inner}}}"
        return (
            self.kind if self.zone in (None, SOME_ZONE) else f"datetime in {self.zone or 'a zone'}"
        )

    def field(self, name: str) -> DataType | None:
        """The type of a field; ``None`` if a struct has none of that name."""
        if self.kind in ("any", "null"):
            return ANY
        return None if self.kind != "struct" else dict(self.fields).get(name)


SOME_ZONE = "?"
"""The zone of a datetime of which nobody knows whether it has one."""
ANY = DataType("any")
NULL = DataType("null")
BOOL = DataType("bool")
INT = DataType("int")
FLOAT = DataType("float")
DECIMAL = DataType("decimal")
TEXT = DataType("text")
BYTES = DataType("bytes")
DATE = DataType("date")
TIME = DataType("time")
DURATION = DataType("duration")


def datetime_of(zone: str | None = None) -> DataType:
    """A point in time; in a zone, or in none."""
    return DataType("datetime", zone=zone)


def list_of(element: DataType) -> DataType:
    """A list of such elements."""
    return DataType("list", element=element)


def struct_of(fields: dict[str, DataType], factory: type | None = None) -> DataType:
    """A record with these fields."""
    return DataType("struct", fields=tuple(fields.items()), factory=factory)


def tuple_of(*elements: DataType) -> DataType:
    """A tuple of values of these types."""
    return DataType("tuple", fields=tuple((str(i), kind) for i, kind in enumerate(elements)))


def unified(*types: DataType) -> DataType:
    """The one type of values that are of any of these; ``ANY`` if they have none in common."""
    known = {each for each in types if each != NULL}
    if not known:
        return NULL
    return known.pop() if len(known) == 1 else ANY
