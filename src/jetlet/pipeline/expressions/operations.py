"""The operations that expressions are made of: one table, from which every compiler works.

An entry says what an operation means in Python, twice: as a function, which is the meaning, and as
source text, which gives the same or raises (then the function is asked). Neither ever sees null,
except for the few operations whose ``takes_null`` is true: of all others the result is null if an
argument is. A compiler to something else maps an operation by its name, and leaves to Python what
it does not have.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from jetlet.pipeline.expressions.data_types import (
    ANY,
    BOOL,
    DATE,
    DECIMAL,
    DURATION,
    FLOAT,
    INT,
    NULL,
    SOME_ZONE,
    TEXT,
    DataType,
    datetime_of,
    list_of,
    unified,
)

__all__ = ["MAX_INT", "MIN_INT", "OPERATIONS", "Operation", "checked", "truth"]

MIN_INT, MAX_INT = -(2**63), 2**63 - 1
"""The range of integers: what an operation makes beyond it is an error."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of the table."""

    name: str
    arity: tuple[int, int]
    """How many arguments it takes: at least, and at most."""
    result: Callable[..., DataType]
    """The type of the result, from those of the arguments; raises ``TypeError`` with the reason."""
    function: Callable[..., Any]
    """What it means."""
    source: str
    """The same as text; may leave out that integers have 64 bits, where ``is_checked``."""
    written: str
    """How users write it: a method such as ``.lower``, a function such as ``abs``, or a template
    of an operator."""
    binding: int = 100
    """How tightly what users write binds, as in Python."""
    is_checked: bool = False
    """Its integers must be in the range of 64 bits."""
    takes_null: bool = False
    """It has a meaning of its own for null."""
    literals: tuple[int, ...] = ()
    """The arguments that are settings: constants, for which null has no meaning of its own."""


def checked(value: Any) -> Any:
    """A number as it is; fails for an integer that has no place in 64 bits."""
    if isinstance(value, int) and not MIN_INT <= value <= MAX_INT:
        raise OverflowError("integer overflow: the result does not fit into 64 bits")
    return value


# --- What they mean, where Python has no single function for it ------------------------------


def _add(left: Any, right: Any) -> Any:
    return checked(left + right)


def _subtract(left: Any, right: Any) -> Any:
    return checked(left - right)


def _multiply(left: Any, right: Any) -> Any:
    return checked(left * right)


def _floor_divide(left: Any, right: Any) -> Any:
    return checked(left // right)


def _remainder(left: Any, right: Any) -> Any:
    return checked(left % right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and abs(left) > 1 and right > 63:
        raise OverflowError("integer overflow: the result does not fit into 64 bits")
    result = left**right
    if type(result) is complex:
        raise ArithmeticError(f"{left!r} ** {right!r} is not a real number")
    return checked(result)


def _negate(value: Any) -> Any:
    return checked(-value)


def _absolute(value: Any) -> Any:
    return checked(abs(value))


def _round(value: Any, digits: Any = None) -> Any:
    return checked(round(value) if digits is None else round(value, digits))


def truth(value: Any) -> bool | None:
    """A truth value, or null, as it is; fails for all else."""
    if value is True or value is False or value is None:
        return value
    if type(value).__name__ in ("bool", "bool_"):  # numpy's
        return bool(value)
    raise TypeError(f"&, |, ~ and when() take truth values, not {value!r}: write a comparison")


def _and(left: Any, right: Any) -> bool | None:
    left, right = truth(left), truth(right)
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: Any, right: Any) -> bool | None:
    left, right = truth(left), truth(right)
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def _not(value: Any) -> bool | None:
    value = truth(value)
    return None if value is None else not value


def _is_in(value: Any, values: Any) -> bool:
    return any(value == each for each in values)


def _fill_null(value: Any, other: Any) -> Any:
    return other if value is None else value


def _contains(text: Any, part: Any) -> bool:
    return part in text


def _slice(value: Any, start: int | None, stop: int | None) -> Any:
    return value[start:stop]


def _concatenate(*texts: str) -> str:
    return "".join(texts)


def _millisecond(value: Any) -> int:
    return int(value.microsecond // 1000)


def _day_of(value: Any) -> date:
    return value.date()  # type: ignore[no-any-return]


_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)  # noqa: DTZ001
_MILLISECOND = timedelta(milliseconds=1)


def _epoch_ms(value: datetime) -> int:
    return (value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)) // _MILLISECOND


def _at_zone(value: datetime, zone: str) -> datetime:
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return value.astimezone(_zone(zone))


_zone = lru_cache(maxsize=64)(ZoneInfo)


# --- Types of results -------------------------------------------------------------------------

_NUMBERS = ("bool", "int", "float", "decimal")


def _wrong(what: str, *types: DataType) -> TypeError:
    return TypeError(f"{what}, not {' and '.join(map(str, types))}")


def _known(*types: DataType) -> bool:
    return all(each.kind not in ("any", "null") for each in types)


def _number_type(left: DataType, right: DataType) -> DataType:
    kinds = {left.kind, right.kind}
    if not kinds <= set(_NUMBERS) or kinds >= {"decimal", "float"}:
        raise _wrong("takes two numbers", left, right)
    return DECIMAL if "decimal" in kinds else FLOAT if "float" in kinds else INT


def _sum_type(left: DataType, right: DataType) -> DataType:
    if not _known(left, right):
        return ANY
    kinds = {left.kind, right.kind}
    if kinds in ({"text"}, {"bytes"}, {"duration"}):
        return left
    if kinds == {"list"}:
        return list_of(unified(left.element or ANY, right.element or ANY))
    if kinds in ({"date", "duration"}, {"datetime", "duration"}):
        return left if right == DURATION else right
    return _number_type(left, right)


def _difference_type(left: DataType, right: DataType) -> DataType:
    if not _known(left, right):
        return ANY
    if left.kind == right.kind and left.kind in ("date", "datetime"):
        if _cannot_meet(left, right):
            raise _wrong(
                "takes two points in time that both have a zone, or both none", left, right
            )
        return DURATION
    if left.kind in ("date", "datetime", "duration") and right == DURATION:
        return left
    return _number_type(left, right)


def _cannot_meet(left: DataType, right: DataType) -> bool:
    """True for two points in time of which one has a zone, and the other has not."""
    return SOME_ZONE not in (left.zone, right.zone) and (left.zone is None) != (right.zone is None)


def _product_type(left: DataType, right: DataType) -> DataType:
    if not _known(left, right):
        return ANY
    if DURATION in (left, right) and {left.kind, right.kind} <= {"duration", "int", "float"}:
        if left == right:
            raise _wrong("takes two numbers", left, right)
        return DURATION
    return _number_type(left, right)


def _quotient_type(left: DataType, right: DataType) -> DataType:
    if not _known(left, right):
        return ANY
    if left == DURATION:
        if right.kind not in ("duration", "int", "float"):
            raise _wrong("takes two numbers", left, right)
        return FLOAT if right == DURATION else DURATION
    kind = _number_type(left, right)
    return FLOAT if kind == INT else kind


def _floor_type(left: DataType, right: DataType) -> DataType:
    if not _known(left, right):
        return ANY
    if left == DURATION and right.kind in ("duration", "int"):
        return INT if right == DURATION else DURATION
    return _number_type(left, right)


def _remainder_type(left: DataType, right: DataType) -> DataType:
    if not _known(left, right):
        return ANY
    return DURATION if left == right == DURATION else _number_type(left, right)


def _power_type(left: DataType, right: DataType) -> DataType:
    if not _known(left, right):
        return ANY
    kind = _number_type(left, right)
    return ANY if kind == INT else kind  # 2 ** -1 is 0.5


def _same_number(value: DataType) -> DataType:
    if value.kind in ("any", "null", "duration"):
        return ANY if value.kind != "duration" else value
    return _number_type(value, INT)


def _rounded_type(value: DataType, digits: DataType | None = None) -> DataType:
    kind = _same_number(value)
    if kind == DURATION:
        raise _wrong("takes a number", value)
    return INT if digits is None and kind != ANY else kind


def _comparable(left: DataType, right: DataType) -> DataType:
    if _known(left, right) and left.kind != right.kind:
        if not {left.kind, right.kind} <= set(_NUMBERS):
            raise _wrong("compares values of one type", left, right)
    return BOOL


def _ordered(left: DataType, right: DataType) -> DataType:
    if _known(left, right):
        if left.kind == "struct" or right.kind == "struct":
            raise _wrong("needs values that have an order", left, right)
        if left.kind == right.kind == "datetime" and _cannot_meet(left, right):
            raise _wrong("compares points in time that both have a zone, or both none", left, right)
    return _comparable(left, right)


def _truths(*types: DataType) -> DataType:
    if any(each.kind not in ("any", "null", "bool") for each in types):
        raise _wrong("takes truth values", *types)
    return BOOL


def _fixed(result: DataType, *kinds: str) -> Callable[..., DataType]:
    """The rule of what takes values of these kinds and always gives the same type."""

    def rule(first: DataType, *others: DataType) -> DataType:
        if first.kind not in ("any", "null", *kinds):
            raise _wrong(f"takes a value of type {' or '.join(kinds)}", first)
        return result

    return rule


def _texts(result: DataType) -> Callable[..., DataType]:
    """The rule of what takes nothing but text."""

    def rule(*types: DataType) -> DataType:
        if any(each.kind not in ("any", "null", "text") for each in types):
            raise _wrong("takes text", *types)
        return result

    return rule


def _contains_type(value: DataType, part: DataType) -> DataType:
    if value.kind == "text" and part.kind not in ("text", "any", "null"):
        raise _wrong("of text takes text", part)
    return _fixed(BOOL, "text", "list", "bytes")(value)


def _sliced(value: DataType, *bounds: DataType) -> DataType:
    return _fixed(value, "text", "list", "bytes")(value)


def _zoned(value: DataType, zone: DataType) -> DataType:
    return _fixed(datetime_of(""), "datetime")(value)


def _anything_is_bool(*types: DataType) -> DataType:
    return BOOL


def _filled(value: DataType, other: DataType) -> DataType:
    kind = unified(value, other)
    if kind == ANY and _known(value, other) and not {value.kind, other.kind} <= set(_NUMBERS):
        raise _wrong("takes a value of the same type", value, other)
    return kind if kind != NULL else ANY


# --- The table --------------------------------------------------------------------------------


def _operator(
    symbol: str,
    name: str,
    binding: int,
    result: Callable[..., DataType],
    function: Callable[..., Any],
    *,
    is_checked: bool = False,
    source: str | None = None,
) -> Operation:
    text = f"{{}} {symbol} {{}}"
    return Operation(
        name,
        (2, 2),
        result,
        function,
        f"({{0}} {symbol} {{1}})" if source is None else source,
        text,
        binding,
        is_checked=is_checked,
    )


def _method(
    name: str,
    arity: tuple[int, int],
    result: Callable[..., DataType],
    function: Callable[..., Any],
    source: str = "",
    *,
    takes_null: bool = False,
    literals: tuple[int, ...] = (),
    is_checked: bool = False,
) -> Operation:
    return Operation(
        name,
        arity,
        result,
        function,
        source,
        f".{name}",
        takes_null=takes_null,
        literals=literals,
        is_checked=is_checked,
    )


def _part(name: str, *kinds: str) -> Operation:
    """A part of a date or a time, which Python has as an attribute."""
    return _method(name, (1, 1), _fixed(INT, *kinds), operator.attrgetter(name), f"{{0}}.{name}")


_ANY_DAY, _ANY_TIME = ("date", "datetime"), ("time", "datetime")

OPERATIONS: dict[str, Operation] = {
    entry.name: entry
    for entry in (
        # Arithmetic.
        _operator("+", "add", 60, _sum_type, _add, is_checked=True),
        _operator("-", "subtract", 60, _difference_type, _subtract, is_checked=True),
        _operator("*", "multiply", 65, _product_type, _multiply, is_checked=True),
        _operator("/", "divide", 65, _quotient_type, operator.truediv),
        _operator("//", "floor_divide", 65, _floor_type, _floor_divide, is_checked=True),
        _operator("%", "remainder", 65, _remainder_type, _remainder, is_checked=True),
        _operator("**", "power", 75, _power_type, _power, source=""),
        Operation("negate", (1, 1), _same_number, _negate, "(-{0})", "-{}", 70, is_checked=True),
        Operation("absolute", (1, 1), _same_number, _absolute, "abs({0})", "abs", is_checked=True),
        Operation(
            "round", (1, 2), _rounded_type, _round, "", "round", is_checked=True, literals=(1,)
        ),
        # Comparisons. Those of a NaN are false, but for !=.
        _operator("==", "equal", 30, _comparable, operator.eq),
        _operator("!=", "not_equal", 30, _comparable, operator.ne),
        _operator("<", "less", 30, _ordered, operator.lt),
        _operator("<=", "less_or_equal", 30, _ordered, operator.le),
        _operator(">", "greater", 30, _ordered, operator.gt),
        _operator(">=", "greater_or_equal", 30, _ordered, operator.ge),
        _method("is_in", (2, 2), _anything_is_bool, _is_in, literals=(1,)),
        # Truth, where null is "not known"; the right side is left alone where the left one decides.
        Operation("and", (2, 2), _truths, _and, "", "{} & {}", 50, takes_null=True),
        Operation("or", (2, 2), _truths, _or, "", "{} | {}", 40, takes_null=True),
        Operation("not", (1, 1), _truths, _not, "", "~{}", 70, takes_null=True),
        # Null.
        _method(
            "is_null",
            (1, 1),
            _anything_is_bool,
            lambda value: value is None,
            "({0} is None)",
            takes_null=True,
        ),
        _method("fill_null", (2, 2), _filled, _fill_null, takes_null=True),
        # Text: lengths and positions are counted in code points; the rest is as Python has it.
        _method("len", (1, 1), _fixed(INT, "text", "bytes", "list"), len, "len({0})"),
        _method("upper", (1, 1), _texts(TEXT), str.upper),
        _method("lower", (1, 1), _texts(TEXT), str.lower),
        _method("strip", (1, 2), _texts(TEXT), str.strip, literals=(1,)),
        _method("startswith", (2, 2), _texts(BOOL), str.startswith),
        _method("endswith", (2, 2), _texts(BOOL), str.endswith),
        _method("contains", (2, 2), _contains_type, _contains, "({1} in {0})"),
        _method("replace", (3, 3), _texts(TEXT), str.replace),
        _method("slice", (3, 3), _sliced, _slice, "{0}[{1}:{2}]", literals=(1, 2)),
        _method("split", (1, 2), _texts(list_of(TEXT)), str.split, literals=(1,)),
        _method("concat", (1, 64), _texts(TEXT), _concatenate),
        # Dates and times, in the zone that they are in.
        _part("year", *_ANY_DAY),
        _part("month", *_ANY_DAY),
        _part("day", *_ANY_DAY),
        _part("hour", *_ANY_TIME),
        _part("minute", *_ANY_TIME),
        _part("second", *_ANY_TIME),
        _method("millisecond", (1, 1), _fixed(INT, *_ANY_TIME), _millisecond),
        _part("microsecond", *_ANY_TIME),
        _method(
            "weekday",
            (1, 1),
            _fixed(INT, *_ANY_DAY),
            operator.methodcaller("weekday"),
            "{0}.weekday()",
        ),
        _method("date", (1, 1), _fixed(DATE, "datetime"), _day_of, "{0}.date()"),
        _method("epoch_ms", (1, 1), _fixed(INT, "datetime"), _epoch_ms),
        _method("at_zone", (2, 2), _zoned, _at_zone, literals=(1,)),
    )
}
"""Every operation, by its name."""
