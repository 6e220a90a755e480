"""Expressions as columns of Spark's.

What an expression means is what its Python function gives. What means something else to Spark is
guarded here, or raises :class:`LeaveToPython`: the items are left to Python then.

No column made here ever fails. Where Python would, a second one beside it is true: ``bad``. Whoever
puts a plan together asks for it in one place, as Spark moves conditions about, and drops columns
that nobody wants, without asking whether they may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from typing import TYPE_CHECKING, Any

from jetlet.core.table import Entry, Form
from jetlet.core.table import Record as RecordForm
from jetlet.pipeline.expressions.nodes import (
    Call,
    Cast,
    Element,
    Field,
    Item,
    Literal,
    Node,
    Record,
    Tuple,
    When,
)
from jetlet.pipeline.expressions.operations import MAX_INT, MIN_INT
from jetlet.pipeline.expressions.python_source import made_of, passes_null

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "ABSENT",
    "LeaveToPython",
    "Value",
    "Whole",
    "compiled",
    "condition_of",
    "either",
    "is_certain",
    "kind_of",
    "row_of",
]

FIRST_DAY = date(1600, 1, 1)
"""Constants before it are in doubt: calendars differ."""
ABSENT = "absent"
"""The kind of a column that is not there for Spark to read."""
EXACT = 2**53
"""Integers up to here are exact as floats."""
_SMALL = ("tinyint", "smallint", "int")
"""Integers that are exact as floats, and whose quotients are."""
_COMPARISONS = {
    "equal": "__eq__",
    "not_equal": "__ne__",
    "less": "__lt__",
    "less_or_equal": "__le__",
    "greater": "__gt__",
    "greater_or_equal": "__ge__",
}
_ARITHMETIC = {
    "add": ("try_add", "__add__"),
    "subtract": ("try_subtract", "__sub__"),
    "multiply": ("try_multiply", "__mul__"),
}
"""For integers, where null is what does not fit; and for floats."""
_TEXTS = {"startswith": "startswith", "endswith": "endswith", "contains": "contains"}
_DAYS = {"year": "year", "month": "month", "day": "dayofmonth", "weekday": "weekday"}


class LeaveToPython(Exception):
    """What Spark is not asked."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of each row."""

    column: Column
    kind: str
    """``int``, ``float``, ``bool``, ``text`` or ``date``; empty for what is only handed on."""
    bad: Column | None = None
    """True for rows for which Python would fail; never null. ``None`` if there are none."""
    is_small: bool = False
    """Integers that floats can hold."""
    low: Column | None = None
    """Of a sum of integers the part below 2³²; ``column`` has the rest."""

    @property
    def columns(self) -> list[Column]:
        """The columns that it takes, in their order."""
        return [self.column] if self.low is None else [self.column, self.low]


@dataclass(frozen=True, slots=True)
class Whole:
    """An item that is made of several values: one of each part of its form."""

    parts: tuple[Value | Whole, ...]
    form: Form

    @property
    def values(self) -> Iterator[Value]:
        """All values, in the order of their columns."""
        for part in self.parts:
            if isinstance(part, Value):
                yield part
            else:
                yield from part.values


def compiled(node: Node, item: Value | Whole) -> Value | Whole:
    """What the expression gives for an item."""
    return _Compiler(item).value(node)


def condition_of(filters: Sequence[Node], schema: StructType) -> Column | None:
    """What a row has to be for all of the filters to keep it, as far as Spark can tell.

    The filters are asked one after the other, and so are the sides of ``&``: a row may be left out
    only if nothing can fail for it before it is dropped.
    """
    row = row_of(schema)
    if row is None:
        return None
    found: Column | None = None
    for node in filters:
        parts = list(_sides(node))
        columns = []
        for part in parts:
            try:
                value = compiled(part, row)
            except LeaveToPython:
                break
            if not isinstance(value, Value) or value.kind != "bool" or value.bad is not None:
                break
            columns.append(value.column)
        is_whole = len(columns) == len(parts)
        for column in columns:
            # Where it is null, Python goes on to the other side, which may fail.
            certain = column if is_whole else ~_is(column, False)
            found = certain if found is None else found & certain
        if not is_whole:
            break
    return found


def row_of(schema: StructType, shown: Callable[[str], str] = str) -> Whole | None:
    """The rows of a DataFrame as dicts; ``None`` if they are not for Spark to look into."""
    from pyspark.sql import functions as F  # noqa: N812

    # A map may be none of Python's, which fails whoever reads the row. And Spark does not tell
    # names apart by case.
    names = [field.name.lower() for field in schema.fields]
    if "map<" in schema.simpleString() or len(set(names)) < len(names) or not names:
        return None
    parts = []
    for field in schema.fields:
        kind = kind_of(field.dataType)
        column = F.col(f"`{field.name}`")
        if kind == "float":
            column = column.cast("double")
        parts.append(Value(column, kind, is_small=field.dataType.simpleString() in _SMALL))
    return Whole(tuple(parts), RecordForm(tuple(shown(field.name) for field in schema.fields)))


def kind_of(kind: DataType) -> str:
    """The kind of a column whose values mean the same to Spark; empty for others."""
    name = kind.simpleString()
    if name in (*_SMALL, "bigint"):
        return "int"
    if name in ("double", "float"):
        return "float"
    if name == "boolean":
        return "bool"
    if name == "date":
        return "date"
    # Not `char(5)`, and none that compares by a collation.
    is_plain = name == "string" and getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"
    return "text" if is_plain else ""


def _sides(node: Node) -> Sequence[Node]:
    if isinstance(node, Call) and node.operation == "and":
        left, right = node.arguments
        return [*_sides(left), *_sides(right)]
    return [node]


# --- Truth that is never null -----------------------------------------------------------------


def _is(column: Column, value: bool) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return column.eqNullSafe(F.lit(value))


def is_certain(column: Column) -> Column:
    """True where the column is."""
    return _is(column, True)


def either(left: Column | None, right: Column | None) -> Column | None:
    """True where one of them is; ``None`` is never."""
    if left is None or right is None:
        return right if left is None else left
    return left | right


def _if(condition: Column | None, column: Column | None) -> Column | None:
    """True where both are; no condition is always true."""
    return column if condition is None or column is None else condition & column


# --- Nodes ------------------------------------------------------------------------------------


class _Compiler:
    """For one item."""

    def __init__(self, item: Value | Whole) -> None:
        self._item = item

    def value(self, node: Node) -> Value | Whole:
        match node:
            case Item():
                return self._item
            case Literal(value):
                return _constant(value)
            case Field(of, name):
                return _field(self.value(of), name)
            case Element(of, index):
                return _element(self.value(of), index)
            case Record(fields):
                parts = tuple(self._plain(each) for _, each in fields)
                return Whole(parts, RecordForm(tuple(name for name, _ in fields)))
            case Tuple(elements):
                return _tuple([self.value(each) for each in elements])
            case When(branches, otherwise):
                return self._choice(branches, otherwise)
            case Call("and" | "or" as operation, (left, right)):
                return self._both(operation, left, right)
            case Call("not", (of,)):
                value = self._truth(of)
                return replace(value, column=~value.column)
            case Call("is_null", (of,)):
                value = self._plain(of)
                return Value(value.column.isNull(), "bool", value.bad)
            case Call("fill_null", (of, other)):
                return self._filled(self._plain(of), self._plain(other))
            case Call() | Cast():
                return _Calculation(self, node).result
        raise LeaveToPython(str(node))

    def _plain(self, node: Node) -> Value:
        value = self.value(node)
        if isinstance(value, Whole):
            raise LeaveToPython("an operation on the whole item")
        return value

    def operand(self, node: Node) -> Value:
        """A value that something can be done with."""
        value = self._plain(node)
        if value.kind in ("", "null", ABSENT) or value.low is not None:
            raise LeaveToPython(f"an operation on {node}")
        return value

    def _truth(self, node: Node) -> Value:
        value = self.operand(node)
        if value.kind != "bool":
            raise LeaveToPython("a truth value that is none")
        return value

    def _both(self, operation: str, left: Node, right: Node) -> Value:
        one, other = self._truth(left), self._truth(right)
        is_and = operation == "and"
        column = one.column & other.column if is_and else one.column | other.column
        # Where the left side decides, the right one is left alone.
        goes_on = ~_is(one.column, not is_and)
        bad = None if other.bad is None else goes_on & other.bad
        return Value(column, "bool", either(one.bad, bad))

    def _filled(self, value: Value, other: Value) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        kind = _common_kind([value, other])
        bad = _if(value.column.isNull(), other.bad)
        small = value.is_small and other.is_small
        column = F.coalesce(value.column, other.column)
        return Value(column, kind, either(value.bad, bad), is_small=small)

    def _choice(self, branches: Sequence[tuple[Node, Node]], otherwise: Node) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        result = self._plain(otherwise)
        for condition, node in reversed(branches):
            test, value = self._truth(condition), self._plain(node)
            kind = _common_kind([value, result])
            column = F.when(test.column, value.column).otherwise(result.column)
            is_true = is_certain(test.column)
            bad = either(_if(is_true, value.bad), _if(~is_true, result.bad))
            small = value.is_small and result.is_small
            result = Value(column, kind, either(test.bad, bad), is_small=small)
        return result


def _field(value: Value | Whole, name: str) -> Value | Whole:
    if isinstance(value, Whole) and isinstance(value.form, RecordForm):
        if value.form.names.count(name) == 1:
            return value.parts[value.form.names.index(name)]
    raise LeaveToPython(name)


def _element(value: Value | Whole, index: int) -> Value | Whole:
    if isinstance(value, Whole) and isinstance(value.form, Entry):
        if 0 <= index < len(value.parts):
            return value.parts[index]
    raise LeaveToPython(f"[{index}]")


def _tuple(parts: Sequence[Value | Whole]) -> Whole:
    from jetlet.core.table import VALUE

    forms = [part.form if isinstance(part, Whole) else VALUE for part in parts]
    return Whole(tuple(parts), Entry(tuple(forms)))


def _common_kind(values: Sequence[Value]) -> str:
    kinds = {value.kind for value in values} - {"null"}
    if len(kinds) != 1 or kinds & {"", ABSENT} or any(value.low is not None for value in values):
        raise LeaveToPython(" or ".join(sorted(kinds)))
    return kinds.pop()


def _constant(value: Any) -> Value:
    from pyspark.sql import functions as F  # noqa: N812

    if value is None:
        return Value(F.lit(None), "null", is_small=True)
    if isinstance(value, bool):
        return Value(F.lit(value), "bool")
    if isinstance(value, int) and MIN_INT <= value <= MAX_INT:
        return Value(F.lit(value).cast("bigint"), "int", is_small=abs(value) <= EXACT)
    if isinstance(value, float):
        return Value(F.lit(value), "float")
    if isinstance(value, str) and value.isprintable():
        return Value(F.lit(value), "text")
    if type(value) is date and value >= FIRST_DAY:
        return Value(F.lit(value), "date")
    raise LeaveToPython(repr(value))


# --- Operations -------------------------------------------------------------------------------


class _Calculation:
    """Operations that are null if anything is that they are made of, and done only if nothing is.

    So where all of that is there and the result is null, an operation has failed.
    """

    def __init__(self, compiler: _Compiler, node: Node) -> None:
        self._compiler = compiler
        self._known: dict[Node, Value] = {}
        self._can_fail = False
        self._inside: Column | None = None
        """True where something fails that is looked at only if nothing is null."""
        bad: Column | None = None
        is_there: Column | None = None
        for part in dict.fromkeys(made_of(node)):
            value = self._known[part] = compiler.operand(part)
            bad = either(bad, _if(is_there, value.bad))
            is_there = _if(is_there, value.column.isNotNull())
        value = self._calculate(node)
        column = value.column
        bad = either(bad, _if(is_there, self._inside))
        if self._can_fail:
            bad = either(bad, _if(is_there, column.isNull()))
        self.result = replace(value, bad=bad)

    def _calculate(self, node: Node) -> Value:
        if node in self._known:
            return self._known[node]
        if isinstance(node, Cast):
            return self._cast(self._calculate(node.of), node.to.kind)
        if not isinstance(node, Call) or not passes_null(node):
            value = self._compiler.operand(node)
            self._inside = either(self._inside, value.bad)
            return replace(value, bad=None)
        first, *rest = node.arguments
        operation = node.operation
        if operation == "is_in":
            return _is_in(self._calculate(first), rest[0])
        if operation == "slice":
            return _slice(self._calculate(first), *rest)
        values = [self._calculate(each) for each in node.arguments]
        if operation in _COMPARISONS:
            return self._compared(_COMPARISONS[operation], *values)
        if operation in _TEXTS:
            return _tested(_TEXTS[operation], values[0], rest[0])
        if operation in _DAYS:
            return _part_of_day(_DAYS[operation], values[0])
        method = getattr(self, f"_{operation}", None)
        if method is None:
            raise LeaveToPython(operation)
        result: Value = method(*values)
        return result

    def _add(self, left: Value, right: Value) -> Value:
        if left.kind == right.kind == "text":
            return self._concat(left, right)
        return self._arithmetic("add", left, right)

    def _subtract(self, left: Value, right: Value) -> Value:
        return self._arithmetic("subtract", left, right)

    def _multiply(self, left: Value, right: Value) -> Value:
        return self._arithmetic("multiply", left, right)

    def _arithmetic(self, name: str, left: Value, right: Value) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        checked, plain = _ARITHMETIC[name]
        one, other, kind = _numbers(left, right)
        if kind == "float":
            return Value(getattr(one, plain)(other), kind)
        self._can_fail = True
        return Value(getattr(F, checked)(one, other), kind)

    def _divide(self, left: Value, right: Value) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        one, other, kind = _numbers(left, right)
        if kind == "int" and not (left.is_small and right.is_small):
            raise LeaveToPython("a quotient of integers that floats cannot hold")
        self._can_fail = True
        return Value(F.try_divide(one.cast("double"), other.cast("double")), "float")

    def _floor_divide(self, left: Value, right: Value) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        one, other, kind = _numbers(left, right)
        if kind == "float":
            raise LeaveToPython("// of floats")
        self._can_fail = True
        divisor = F.nullif(other, F.lit(0).cast("bigint"))
        quotient = F.call_function("div", one, divisor)
        is_between = (one % divisor != 0) & ((one < 0) != (divisor < 0))
        # Of these two alone the quotient may not fit.
        negated = F.try_subtract(F.lit(0).cast("bigint"), one)
        rounded = F.when(is_between, quotient - 1).otherwise(quotient)
        return Value(F.when(other == -1, negated).otherwise(rounded), "int")

    def _remainder(self, left: Value, right: Value) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        one, other, kind = _numbers(left, right)
        if kind == "float":
            raise LeaveToPython("% of floats")
        self._can_fail = True
        divisor = F.nullif(other, F.lit(0).cast("bigint"))
        rest = one % divisor
        has_sign = (rest != 0) & ((rest < 0) != (divisor < 0))
        return Value(F.when(has_sign, rest + divisor).otherwise(rest), "int")

    def _negate(self, value: Value) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        if value.kind == "float":
            return Value(-value.column, "float")
        if value.kind != "int":
            raise LeaveToPython(f"- of {value.kind}")
        self._can_fail = True
        return Value(F.try_subtract(F.lit(0).cast("bigint"), _long(value)), "int")

    def _absolute(self, value: Value) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        if value.kind == "float":
            return Value(F.abs(value.column), "float")
        one = _long(value)
        return Value(F.when(one < 0, self._negate(value).column).otherwise(one), "int")

    def _compared(self, method: str, left: Value, right: Value) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        one, other = left.column, right.column
        kinds = {left.kind, right.kind}
        if kinds == {"float"} or (kinds == {"int", "float"} and _are_exact(left, right)):
            one, other = one.cast("double"), other.cast("double")
            result = getattr(one, method)(other)
            # What is null stays so: it may be what has failed.
            of_nan = F.when(result.isNotNull(), F.lit(method == "__ne__"))
            return Value(F.when(F.isnan(one) | F.isnan(other), of_nan).otherwise(result), "bool")
        if len(kinds) > 1:
            raise LeaveToPython(f"{left.kind} and {right.kind}")
        return Value(getattr(one, method)(other), "bool")

    def _len(self, value: Value) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        return Value(F.length(_text(value)).cast("bigint"), "int", is_small=True)

    def _concat(self, *values: Value) -> Value:
        from pyspark.sql import functions as F  # noqa: N812

        return Value(F.concat(*map(_text, values)), "text")

    def _cast(self, value: Value, kind: str) -> Value:
        given = value.kind
        if given == kind and kind in ("text", "float", "bool"):
            return replace(value, bad=None)
        if kind == "text" and given == "int":
            return Value(value.column.cast("string"), "text")
        if kind == "int" and given in ("int", "bool"):
            return Value(_long(value), "int", is_small=value.is_small or given == "bool")
        if kind == "float" and given in ("int", "bool"):
            return Value(_long(value).cast("double"), "float")
        if kind == "bool" and given in ("int", "float"):
            return Value(value.column != 0, "bool")
        raise LeaveToPython(f"a cast of {given}")


def _long(value: Value) -> Column:
    if value.kind not in ("int", "bool"):
        raise LeaveToPython(f"calculation with {value.kind}")
    return value.column.cast("bigint")


def _numbers(left: Value, right: Value) -> tuple[Column, Column, str]:
    """Two numbers as Python would calculate with them: both integers, or both floats."""
    if "float" in (left.kind, right.kind):
        pair = [v.column if v.kind == "float" else _long(v).cast("double") for v in (left, right)]
        return pair[0], pair[1], "float"
    return _long(left), _long(right), "int"


def _are_exact(*values: Value) -> bool:
    return all(value.kind == "float" or value.is_small for value in values)


def _text(value: Value) -> Column:
    if value.kind != "text":
        raise LeaveToPython(value.kind)
    return value.column


def _is_in(value: Value, values: Node) -> Value:
    constants = [_constant(each) for each in values.value] if isinstance(values, Literal) else []
    are_alike = all(each.kind == value.kind for each in constants)
    if not constants or not are_alike or value.kind not in ("int", "text", "bool"):
        raise LeaveToPython("is_in of other types")
    column = reduce(lambda a, b: a | b, (value.column == each.column for each in constants))
    return Value(column, "bool")


def _tested(method: str, value: Value, part: Node) -> Value:
    if not isinstance(part, Literal) or type(part.value) is not str:
        raise LeaveToPython("not a constant")
    return Value(getattr(_text(value), method)(part.value), "bool")


def _slice(value: Value, start: Node, stop: Node) -> Value:
    from pyspark.sql import functions as F  # noqa: N812

    assert isinstance(start, Literal)
    assert isinstance(stop, Literal)
    first, last = start.value or 0, stop.value
    if first < 0 or (last is not None and last < first) or max(first, last or 0) >= 2**30:
        raise LeaveToPython("a slice from the end")
    size = 2**30 if last is None else last - first
    return Value(F.substring(_text(value), first + 1, size), "text")


def _part_of_day(name: str, value: Value) -> Value:
    from pyspark.sql import functions as F  # noqa: N812

    if value.kind != "date":
        raise LeaveToPython(value.kind)
    return Value(getattr(F, name)(value.column).cast("bigint"), "int", is_small=True)
