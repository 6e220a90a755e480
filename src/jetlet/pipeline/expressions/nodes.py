"""The tree of an expression: plain data, equal and hashed by structure, picklable.

``children`` leads down, :func:`walk` through all of it, and ``str`` gives what was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jetlet.pipeline.expressions.data_types import DataType

__all__ = [
    "Call",
    "Cast",
    "Element",
    "Explode",
    "Field",
    "Item",
    "Literal",
    "Node",
    "Record",
    "Tuple",
    "When",
    "walk",
]

_ATOM = 100
"""How tightly a name, a call or an access binds; operators bind less."""


class Node:
    """A part of an expression."""

    __slots__ = ()

    @property
    def children(self) -> tuple[Node, ...]:
        """The nodes that this one is made of, in the order in which they are evaluated."""
        return ()

    @property
    def binding(self) -> int:
        """How tightly its text binds, to know where it needs parentheses."""
        return _ATOM

    def within(self, binding: int) -> str:
        """Its text, in parentheses if it stands next to something that binds more tightly."""
        return str(self) if self.binding >= binding else f"({self})"


@dataclass(frozen=True, slots=True)
class Item(Node):
    """The item itself."""

    def __str__(self) -> str:
        return "it"


@dataclass(frozen=True, slots=True)
class Field(Node):
    """A named field: what a mapping has under that key, else the attribute of an object."""

    of: Node
    name: str
    style: str = field(default="col", compare=False)
    """How it was written: ``col`` for ``col("x")``, ``key`` for ``["x"]``, ``attribute``."""

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.of,)

    def __str__(self) -> str:
        if self.style == "col":
            return f"col({_text(self.name)})"
        before = self.of.within(_ATOM)
        return (
            f"{before}.{self.name}"
            if self.style == "attribute"
            else f"{before}[{_text(self.name)}]"
        )


@dataclass(frozen=True, slots=True)
class Element(Node):
    """An element of a list or tuple, counted from 0, or from the end if it is negative."""

    of: Node
    index: int

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.of,)

    def __str__(self) -> str:
        return f"{self.of.within(_ATOM)}[{self.index}]"


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Node):
    """A constant; ``1``, ``1.0`` and ``True`` are three, and so are ``0.0`` and ``-0.0`` two."""

    value: Any

    def _identity(self) -> tuple[type, str]:
        return type(self.value), repr(self.value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    @property
    def binding(self) -> int:
        return _ATOM if not str(self).startswith("-") else 70

    def __str__(self) -> str:
        return _text(self.value)


@dataclass(frozen=True, slots=True)
class Call(Node):
    """An operation of the table in :mod:`~jetlet.pipeline.expressions.operations`."""

    operation: str
    arguments: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.arguments

    @property
    def binding(self) -> int:
        return _written(self.operation)[1]

    def __str__(self) -> str:
        template, binding = _written(self.operation)
        first, *rest = self.arguments
        if self.operation == "slice":
            start, stop = ("" if str(bound) == "None" else str(bound) for bound in rest)
            return f"{first.within(_ATOM)}[{start}:{stop}]"
        if template.startswith("."):
            others = ", ".join(str(each) for each in rest)
            return f"{first.within(_ATOM)}{template}({others})"
        if "{" not in template:
            return f"{template}({', '.join(map(str, self.arguments))})"
        if not rest:
            return template.format(first.within(binding))
        # a - (b - c) needs its parentheses, (a - b) - c does not; powers are the other way round.
        is_power = self.operation == "power"
        return template.format(
            first.within(binding + is_power), rest[0].within(binding + (not is_power))
        )


@dataclass(frozen=True, slots=True)
class When(Node):
    """The value of the first condition that is true, else that of ``otherwise``."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (*(each for branch in self.branches for each in branch), self.otherwise)

    def __str__(self) -> str:
        text = "".join(f".when({condition}).then({value})" for condition, value in self.branches)
        return f"{text[1:]}.otherwise({self.otherwise})"


@dataclass(frozen=True, slots=True)
class Record(Node):
    """A dictionary with these fields."""

    fields: tuple[tuple[str, Node], ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return tuple(node for _, node in self.fields)

    def __str__(self) -> str:
        if all(name.isidentifier() for name, _ in self.fields):
            return f"record({', '.join(f'{name}={node}' for name, node in self.fields)})"
        inner = ", ".join(f"{_text(name)}: {node}" for name, node in self.fields)
        return f"record({{{inner}}})"


@dataclass(frozen=True, slots=True)
class Tuple(Node):
    """A tuple of these values."""

    elements: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.elements

    def __str__(self) -> str:
        return f"record({', '.join(map(str, self.elements))})"


@dataclass(frozen=True, slots=True)
class Cast(Node):
    """The value as another type: ``bool``, ``int``, ``float``, ``decimal``, ``text``, ``date`` or
    ``datetime``.
    """

    of: Node
    to: DataType

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.of,)

    def __str__(self) -> str:
        name = {"text": "str", "decimal": "Decimal"}.get(self.to.kind, self.to.kind)
        return f"{self.of.within(_ATOM)}.cast({name})"


@dataclass(frozen=True, slots=True)
class Explode(Node):
    """Each element of a list in turn: the expression has one result for each.

    There is one in an expression at the most, and its list is worked out before all else.
    """

    of: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.of,)

    def __str__(self) -> str:
        return f"{self.of.within(_ATOM)}.explode()"


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, each before its children."""
    yield node
    for child in node.children:
        yield from walk(child)


def _text(value: Any) -> str:
    """A constant as it is written in a program, with the quotes that most people use."""
    if isinstance(value, frozenset):
        return f"[{', '.join(sorted(map(_text, value)))}]"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, str) and '"' not in value and "\\" not in repr(value):
        return f'"{value}"'
    return repr(value)


def _written(operation: str) -> tuple[str, int]:
    from jetlet.pipeline.expressions.operations import OPERATIONS

    entry = OPERATIONS[operation]
    return entry.written, entry.binding
