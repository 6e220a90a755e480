"""What expressions are begun with: ``col``, ``lit``, ``record`` and ``when``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.expressions.expression import Expression, it, literal, node_of
from jetlet.pipeline.expressions.inference import type_of
from jetlet.pipeline.expressions.method import Incomplete
from jetlet.pipeline.expressions.nodes import Field, Node, Record, Tuple, When

__all__ = ["col", "lit", "record", "when"]


def col(name: str) -> Expression:
    """The field of the item that has this name: of a row, or the attribute of an object."""
    if not isinstance(name, str) or not name:  # type: ignore[redundant-expr]
        raise InvalidArgumentError(f'col takes the name of a field: col("price"), not {name!r}')
    return Expression(Field(node_of(it), name))


def lit(value: Any) -> Expression:
    """A constant, where nothing else makes an expression of it: ``.map(lit(1))``."""
    return value if isinstance(value, Expression) else Expression(literal(value))


def record(*values: Any, **named: Any) -> Expression:
    """A dictionary with these fields: ``record(user=col("user"), cents=col("price") * 100)``.

    Names that are none in Python are given in a mapping: ``record({"from": col("sender")})``.
    Without names it is a tuple, such as for a key of two: ``record(col("user"), col("day"))``.
    """
    fields = named
    if len(values) == 1 and isinstance(values[0], Mapping):
        fields = {**values[0], **named}
    elif values:
        if named:
            raise InvalidArgumentError(
                "record takes fields with names, or values without: "
                f"name {values[0]!r}, too, as in record(user=...)"
            )
        return Expression(Tuple(tuple(map(node_of, values))))
    if not fields:
        raise InvalidArgumentError('record has no fields: write record(user=col("user"))')
    for name in fields:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"the name of a field is text, not {name!r}")
    return Expression(Record(tuple((name, node_of(value)) for name, value in fields.items())))


class Choice(Incomplete):
    """A choice that is being written: it becomes an expression with ``otherwise``."""

    def __init__(self, branches: tuple[tuple[Node, Node], ...]) -> None:
        self._branches = branches

    def when(self, condition: Any) -> Condition:
        """What holds where no condition before it did."""
        return Condition(self._branches, _condition(condition))

    def otherwise(self, value: Any) -> Expression:
        """The value where no condition is true."""
        return Expression(When(self._branches, node_of(value)))

    def __repr__(self) -> str:
        text = "".join(f".when({condition}).then({value})" for condition, value in self._branches)
        return text[1:]

    def refuse(self, *_: Any) -> NoReturn:
        raise InvalidArgumentError(f"{self} is not complete: end it with .otherwise(...)")

    __call__ = refuse


class Condition(Incomplete):
    """A condition that waits for its value."""

    def __init__(self, branches: tuple[tuple[Node, Node], ...], condition: Node) -> None:
        self._branches = branches
        self._condition = condition

    def then(self, value: Any) -> Choice:
        """The value where the condition is true."""
        return Choice((*self._branches, (self._condition, node_of(value))))

    def refuse(self, *_: Any) -> NoReturn:
        raise InvalidArgumentError(f"when({self._condition}) is not complete: add .then(value)")

    __call__ = refuse


def when(condition: Any) -> Condition:
    """The beginning of a choice: ``when(col("n") > 9).then("many").otherwise("few")``."""
    return Condition((), _condition(condition))


def _condition(condition: Any) -> Node:
    node = node_of(condition)
    if type_of(node).kind not in ("any", "bool"):
        raise InvalidArgumentError(f"when({node}) is not a condition: write a comparison")
    return node
