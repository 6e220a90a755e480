"""Expressions as conditions of Spark, for rows that need not be read.

A condition is made of as much of an expression as means the same to Spark and can never fail:
comparisons of integers, texts and truth values, null, and what is made of these. Whoever reads the
rows that are left asks the expression itself, so what is not known here costs time, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jetlet.pipeline.expressions.nodes import Call, Field, Item, Literal, Node
from jetlet.pipeline.expressions.operations import MAX_INT, MIN_INT

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

__all__ = ["condition_of"]

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_COMPARISONS = {
    "equal": "__eq__",
    "not_equal": "__ne__",
    "less": "__lt__",
    "less_or_equal": "__le__",
    "greater": "__gt__",
    "greater_or_equal": "__ge__",
}
_TEXTS = {"startswith": "startswith", "endswith": "endswith", "contains": "contains"}


class _LeaveToPython(Exception):
    """What Spark is not asked."""


def condition_of(filters: Sequence[Node], schema: StructType) -> Column | None:
    """What a row has to be for all of the filters to keep it, as far as Spark can tell.

    The filters are asked one after the other, and so are the sides of ``&``: a row may be left out
    only if nothing can fail for it before it is dropped.
    """
    compiler = _Compiler(schema)
    found: Column | None = None
    for node in filters:
        parts = list(_sides(node))
        columns = []
        for part in parts:
            try:
                columns.append(compiler.condition(part))
            except _LeaveToPython:
                break
        is_whole = len(columns) == len(parts)
        for column in columns:
            # Where it is null, Python goes on to the other side, which may fail.
            certain = column if is_whole else ~_is_false(column)
            found = certain if found is None else found & certain
        if not is_whole:
            break
    return found


def _sides(node: Node) -> Sequence[Node]:
    if isinstance(node, Call) and node.operation == "and":
        left, right = node.arguments
        return [*_sides(left), *_sides(right)]
    return [node]


def _is_false(column: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return column.eqNullSafe(F.lit(False))


class _Compiler:
    """For rows of one schema."""

    def __init__(self, schema: StructType) -> None:
        names = [field.name.lower() for field in schema.fields]
        self._kinds = {
            field.name: _kind(field.dataType)
            for field in schema.fields
            # Spark does not tell names apart by case.
            if field.name.isidentifier() and names.count(field.name.lower()) == 1
        }
        # A map may be none of Python's, which fails whoever reads the row.
        self._has_maps = "map<" in schema.simpleString()

    def condition(self, node: Node) -> Column:
        """The column for an expression that is a truth value, or null."""
        column, kind = self._column(node)
        if kind != "bool" or self._has_maps:
            raise _LeaveToPython
        return column

    def _column(self, node: Node) -> tuple[Column, str]:
        from pyspark.sql import functions as F  # noqa: N812

        match node:
            case Field(Item(), name) if self._kinds.get(name):
                return F.col(f"`{name}`"), self._kinds[name]
            case Literal(value):
                return F.lit(value), _kind_of_constant(value)
            case Call("and" | "or" as operation, (left, right)):
                one, other = self.condition(left), self.condition(right)
                return one & other if operation == "and" else one | other, "bool"
            case Call("not", (of,)):
                return ~self.condition(of), "bool"
            case Call("is_null", (of,)):
                return self._column(of)[0].isNull(), "bool"
            case Call("is_in", (of, Literal(values))):
                column, kind = self._column(of)
                if any(_kind_of_constant(value) != kind for value in values) or not values:
                    raise _LeaveToPython
                return column.isin(list(values)), "bool"
            case Call("fill_null", (of, other)):
                return self._same(of, other, F.coalesce)
            case Call(operation, (left, right)) if operation in _COMPARISONS:
                method = _COMPARISONS[operation]
                return self._same(left, right, lambda a, b: getattr(a, method)(b))[0], "bool"
            case Call(operation, (of, Literal(str()) as part)) if operation in _TEXTS:
                column, kind = self._column(of)
                if kind == "text" and _kind_of_constant(part.value) == "text":
                    return getattr(column, _TEXTS[operation])(part.value), "bool"
        raise _LeaveToPython

    def _same(self, left: Node, right: Node, make: Any) -> tuple[Column, str]:
        (one, kind), (other, other_kind) = self._column(left), self._column(right)
        if kind != other_kind:
            raise _LeaveToPython
        return make(one, other), kind


def _kind(kind: Any) -> str:
    """The kind of a column whose values mean the same to Spark; empty for others."""
    name = kind.simpleString()
    if name in _INTEGERS:
        return "int"
    if name == "boolean":
        return "bool"
    # Not `char(5)`, and none that compares by a collation.
    is_plain = name == "string" and getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"
    return "text" if is_plain else ""


def _kind_of_constant(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) and MIN_INT <= value <= MAX_INT:
        return "int"
    if isinstance(value, str) and value.isprintable():
        return "text"
    raise _LeaveToPython
