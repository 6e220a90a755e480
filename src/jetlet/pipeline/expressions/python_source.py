"""Expressions as Python source: what they mean.

:func:`function_of` makes the plain function of a tree. Its source asks for null wherever an
operation does not take it, and keeps what it needs twice in variables::

    def expression(item):
        return None if (v1 := field(item, "price")) is None else f0(v1, 2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from jetlet.pipeline.aggregates.loop import compiled
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
    When,
    walk,
)
from jetlet.pipeline.expressions.operations import OPERATIONS, checked, truth

__all__ = ["function_of"]


@lru_cache(maxsize=1024)
def function_of(node: Node) -> Callable[[Any], Any]:
    """The function of an item that the tree stands for; of a list, where it explodes one."""
    source = _Source()
    explode = next((each for each in walk(node) if isinstance(each, Explode)), None)
    lines = ["def expression(item):"]
    if explode is None:
        lines.append(f"    return {source.write(node, 'item')}")
    else:
        # One result for each element; none where there is no list.
        lines.append(f"    elements = {source.write(explode.of, 'item')} or ()")
        lines.append(f"    return [{source.write(node, 'item')} for element in elements]")
    text = "\n".join([*lines, ""])
    namespace = source.names
    exec(compiled(text, f"expression {_shortened(node)}"), namespace)
    return namespace["expression"]  # type: ignore[no-any-return]


def _shortened(node: Node) -> str:
    text = str(node).replace("\n", " ").replace("<", "(").replace(">", ")")
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Source:
    """Writes the source of one function."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._variables = 0

    def bind(self, value: Any) -> str:
        """A name for an object that the source refers to."""
        name = f"f{len(self.names)}"
        self.names[name] = value
        return name

    def variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    def write(self, node: Node, item: str) -> str:
        """The expression for the value of a node."""
        match node:
            case Item():
                return item
            case Literal(value):
                return self.constant(value)
            case Field(of, name):
                return f"{self.bind(field_of)}({self.write(of, item)}, {name!r})"
            case Element(of, index):
                return f"{self.bind(element_of)}({self.write(of, item)}, {index})"
            case Cast(of, to):
                return self._unless_null((of,), item, f"{self.bind(_CASTS[to.kind])}({{}})", ())
            case Record(fields):
                inner = ", ".join(f"{name!r}: {self.write(each, item)}" for name, each in fields)
                return f"{{{inner}}}"
            case When(branches, otherwise):
                test = self.bind(truth)
                text = "".join(
                    f"{self.write(value, item)} if {test}({self.write(condition, item)}) else "
                    for condition, value in branches
                )
                return f"({text}{self.write(otherwise, item)})"
            case Explode():
                return "element"
            case Call(operation, arguments):
                return self._call(operation, arguments, item)
        raise TypeError(f"not a node of an expression: {node!r}")

    def constant(self, value: Any) -> str:
        if type(value) in (bool, int, str, bytes, type(None)):
            return f"({value!r})" if type(value) is int else repr(value)
        return self.bind(value)

    def _call(self, operation: str, arguments: tuple[Node, ...], item: str) -> str:
        entry = OPERATIONS[operation]
        if operation in ("and", "or"):
            # The right side is left alone where the left one decides.
            left, right = (self.write(each, item) for each in arguments)
            v, end = self.variable(), "False" if operation == "and" else "True"
            rest = f"{self.bind(entry.function)}({v}, {right})"
            return f"({end} if ({v} := {left}) is {end} else {rest})"
        if operation == "fill_null":
            value, other = (self.write(each, item) for each in arguments)
            v = self.variable()
            return f"({other} if ({v} := {value}) is None else {v})"
        if entry.takes_null:
            inner = ", ".join(self.write(each, item) for each in arguments)
            return f"{self.bind(entry.function)}({inner})"
        template = f"{self.bind(entry.function)}({', '.join('{}' for _ in arguments)})"
        return self._unless_null(arguments, item, template, entry.literals)

    def _unless_null(
        self, arguments: tuple[Node, ...], item: str, template: str, settings: tuple[int, ...]
    ) -> str:
        """A template filled with the arguments; null if one of them is."""
        tests, texts = [], []
        for index, node in enumerate(arguments):
            text = self.write(node, item)
            if index in settings or isinstance(node, Literal):
                texts.append(text)
                continue
            v = self.variable()
            tests.append(f"({v} := {text}) is None")
            texts.append(v)
        called = template.format(*texts)
        return f"(None if {' or '.join(tests)} else {called})" if tests else called


def field_of(value: Any, name: str) -> Any:
    """The field of a mapping, else the attribute of an object; null of null."""
    if value is None:
        return None
    if isinstance(value, dict | Mapping):
        return value[name]
    return getattr(value, name)


def element_of(value: Any, index: int) -> Any:
    """The element of a list or tuple; null of null."""
    return None if value is None else value[index]


# --- Casts ------------------------------------------------------------------------------------


def _to_bool(value: Any) -> bool:
    if isinstance(value, str | bytes):
        raise TypeError(f"text is not cast to bool: compare {value!r} with what is to be true")
    return bool(value)


def _to_int(value: Any) -> int:
    return checked(int(value))  # type: ignore[no-any-return]


def _to_date(value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(value)


def _to_datetime(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001
    return datetime.fromisoformat(value)


_CASTS: dict[str, Callable[[Any], Any]] = {
    "bool": _to_bool,
    "int": _to_int,
    "float": float,
    "decimal": Decimal,
    "text": str,
    "date": _to_date,
    "datetime": _to_datetime,
}
