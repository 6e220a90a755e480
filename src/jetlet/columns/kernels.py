"""The kernels of Arrow that mean what Python does, for each operation of expressions.

Their arguments are columns and scalars. A kernel that means something else for some of them is
guarded here, or is not used: it raises :class:`LeaveToPython`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from jetlet.pipeline.expressions.nodes import Literal, Node

__all__ = ["KERNELS", "LeaveToPython", "cast", "is_in", "same_integers", "truth"]

EXACT = 2**53
"""Integers up to here are exact as floats."""


class LeaveToPython(Exception):
    """A batch, or an expression, that is not for columns."""


# --- Types ------------------------------------------------------------------------------------


def _is_integer(value: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(value.type))


def _is_float(value: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(value.type))


def _is_boolean(value: Any) -> bool:
    from pyarrow import types

    return bool(types.is_boolean(value.type))


def _is_text(value: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(value.type))


def _integers(value: Any) -> Any:
    """As 64-bit integers; those of 64 bits without a sign may be too large, which fails."""
    import pyarrow as pa

    return value if value.type == pa.int64() else value.cast(pa.int64())


def _floats(value: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return value if value.type == pa.float64() else pc.cast(value, pa.float64(), safe=False)


def same_integers(left: Any, right: Any) -> tuple[Any, Any]:
    """Two values of one type, if both are integers: these are the same in Python."""
    if _is_integer(left) and _is_integer(right):
        return _integers(left), _integers(right)
    raise LeaveToPython(f"{left.type} or {right.type}")


def _numbers(left: Any, right: Any) -> tuple[Any, Any]:
    """Two numbers as Python would calculate with them: both integers, or both floats."""
    pair = [_integers(v) if _is_integer(v) or _is_boolean(v) else v for v in (left, right)]
    if all(map(_is_integer, pair)):
        return pair[0], pair[1]
    if all(_is_integer(v) or _is_float(v) for v in pair):
        return _floats(pair[0]), _floats(pair[1])
    raise LeaveToPython(f"{left.type} and {right.type}")


def _exact(value: Any) -> Any:
    """Numbers as floats, where that loses nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _is_float(value):
        return _floats(value)
    if not (_is_integer(value) or _is_boolean(value)):
        raise LeaveToPython(str(value.type))
    value = _integers(value)
    if isinstance(value, pa.Scalar):
        least = most = value.as_py()
    else:
        least, most = pc.min_max(value).as_py().values()
    if least is not None and (least < -EXACT or most > EXACT):
        raise LeaveToPython("integers that floats cannot hold")
    return _floats(value)


def truth(value: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_null(value.type):
        return value.cast(pa.bool_())
    if not _is_boolean(value):
        raise LeaveToPython("a truth value that is none")
    return value


def _any(mask: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    return bool(mask.as_py() if isinstance(mask, pa.Scalar) else pc.any(mask).as_py())


# --- Arithmetic -------------------------------------------------------------------------------


def _arithmetic(checked: str, plain: str) -> Callable[[Any, Any], Any]:
    def kernel(left: Any, right: Any) -> Any:
        import pyarrow.compute as pc

        left, right = _numbers(left, right)
        return getattr(pc, checked if _is_integer(left) else plain)(left, right)

    return kernel


_add_numbers = _arithmetic("add_checked", "add")


def _add(left: Any, right: Any) -> Any:
    import pyarrow.compute as pc

    if _is_text(left) and _is_text(right):
        return pc.binary_join_element_wise(left, right, "")
    return _add_numbers(left, right)


def _divide(left: Any, right: Any) -> Any:
    import pyarrow.compute as pc

    left, right = _exact(left), _exact(right)
    _refuse_zero(right)
    return pc.divide(left, right)


def _refuse_zero(value: Any) -> None:
    import pyarrow.compute as pc

    if _any(pc.equal(value, 0)):
        raise LeaveToPython("a division by zero")


def _floor_divide(left: Any, right: Any) -> Any:
    left, right = _numbers(left, right)
    _refuse_zero(right)
    return _in_numpy("floor_divide", left, right)


def _remainder(left: Any, right: Any) -> Any:
    left, right = _numbers(left, right)
    _refuse_zero(right)
    return _in_numpy("remainder", left, right)


def _in_numpy(name: str, left: Any, right: Any) -> Any:
    """Division rounds down there, as in Python, and not towards zero."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    values, invalid = [], []
    for value in (left, right):
        if isinstance(value, pa.Scalar):
            if not value.is_valid:
                raise LeaveToPython("null")
            values.append(value.as_py())
            continue
        if value.null_count:
            invalid.append(value.is_null().to_numpy(zero_copy_only=False))
            value = pc.fill_null(value, 1)
        values.append(value.to_numpy())
    if _is_integer(left):
        a, b = values
        if np.any(np.equal(b, -1)) and np.any(np.equal(a, -(2**63))):
            raise LeaveToPython("overflow")
        if name == "remainder" and isinstance(b, int):
            # Division by a constant is fast there, the remainder is not.
            result = a - np.floor_divide(a, b) * b
        else:
            result = getattr(np, name)(a, b)
    else:
        with np.errstate(all="ignore"):
            result = getattr(np, name)(*values)
    if np.ndim(result) == 0:
        return pa.scalar(result.item())
    mask = None if not invalid else invalid[0] if len(invalid) == 1 else invalid[0] | invalid[1]
    return pa.array(result, mask=mask)


def _one_number(checked: str, plain: str) -> Callable[[Any], Any]:
    def kernel(value: Any) -> Any:
        import pyarrow.compute as pc

        if _is_float(value):
            return getattr(pc, plain)(_floats(value))
        if not _is_integer(value):
            raise LeaveToPython(str(value.type))
        return getattr(pc, checked)(_integers(value))

    return kernel


# --- Comparison and truth ---------------------------------------------------------------------


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    def kernel(left: Any, right: Any) -> Any:
        import pyarrow.compute as pc

        return getattr(pc, name)(*_comparable(left, right))

    return kernel


def _comparable(left: Any, right: Any) -> tuple[Any, Any]:
    from pyarrow import types

    if left.type == right.type:
        kind = left.type
        if _is_text(left) or _is_boolean(left) or types.is_date32(kind) or types.is_binary(kind):
            return left, right
        if types.is_timestamp(kind) and kind.unit != "ns" and kind.tz in (None, "UTC"):
            return left, right  # in other zones Python compares what clocks show
    numbers = [_is_integer(v) or _is_boolean(v) or _is_float(v) for v in (left, right)]
    if not all(numbers):
        raise LeaveToPython(f"{left.type} and {right.type}")
    if _is_float(left) or _is_float(right):
        return _exact(left), _exact(right)
    return _integers(left), _integers(right)


def is_in(value: Any, values: Node) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(values, Literal) or not isinstance(value, pa.Array):
        raise LeaveToPython("is_in")
    kinds = set(map(type, values.value))
    if kinds == {str} and _is_text(value):
        wanted = pa.array(values.value)
    elif kinds == {int} and _is_integer(value):
        value, wanted = _integers(value), pa.array(values.value, pa.int64())
    else:
        raise LeaveToPython("is_in of other types")
    return pc.if_else(value.is_valid(), pc.is_in(value, wanted), pa.scalar(None, pa.bool_()))


def _logic(name: str) -> Callable[..., Any]:
    def kernel(*values: Any) -> Any:
        import pyarrow.compute as pc

        return getattr(pc, name)(*map(truth, values))

    return kernel


def _is_null(value: Any) -> Any:
    import pyarrow.compute as pc

    return pc.is_null(value)


def _fill_null(value: Any, other: Any) -> Any:
    import pyarrow.compute as pc

    if value.type != other.type:
        value, other = same_integers(value, other)
    return pc.coalesce(value, other)


# --- Text -------------------------------------------------------------------------------------

_SPACE = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"
"""What ``str.strip`` takes off, of ASCII."""


def _texts(value: Any) -> Any:
    if not _is_text(value):
        raise LeaveToPython(str(value.type))
    return value


def _ascii(value: Any) -> Any:
    """Texts for what is done differently beyond ASCII."""
    import pyarrow.compute as pc

    if _any(pc.invert(pc.string_is_ascii(_texts(value)))):
        raise LeaveToPython("text beyond ASCII")
    return value


def _constant(value: Any, kind: type = str) -> Any:
    import pyarrow as pa

    if not isinstance(value, pa.Scalar) or type(value.as_py()) is not kind:
        raise LeaveToPython("not a constant")
    return value.as_py()


def _pattern(value: Any) -> str:
    pattern: str = _constant(value)
    if not pattern:
        raise LeaveToPython("an empty text")
    return pattern


def _length(value: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    if _is_text(value):
        length = pc.utf8_length(value)
    elif types.is_binary(value.type):
        length = pc.binary_length(value)
    elif types.is_list(value.type):
        length = pc.list_value_length(value)
    else:
        raise LeaveToPython(str(value.type))
    return length.cast(pa.int64())


def _upper(value: Any) -> Any:
    import pyarrow.compute as pc

    return pc.ascii_upper(_ascii(value))


def _lower(value: Any) -> Any:
    import pyarrow.compute as pc

    return pc.ascii_lower(_ascii(value))


def _strip(value: Any, characters: Any = None) -> Any:
    import pyarrow.compute as pc

    if characters is None:
        return pc.utf8_trim(_ascii(value), characters=_SPACE)
    return pc.utf8_trim(_texts(value), characters=_pattern(characters))


def _startswith(value: Any, start: Any) -> Any:
    import pyarrow.compute as pc

    return pc.starts_with(_texts(value), pattern=_pattern(start))


def _endswith(value: Any, end: Any) -> Any:
    import pyarrow.compute as pc

    return pc.ends_with(_texts(value), pattern=_pattern(end))


def _contains(value: Any, part: Any) -> Any:
    import pyarrow.compute as pc

    return pc.match_substring(_texts(value), pattern=_pattern(part))


def _replace(value: Any, old: Any, new: Any) -> Any:
    import pyarrow.compute as pc

    return pc.replace_substring(_texts(value), pattern=_pattern(old), replacement=_constant(new))


def _slice(value: Any, start: Any, stop: Any) -> Any:
    import pyarrow.compute as pc

    first, last = start.as_py() or 0, stop.as_py()
    if first < 0 or (last is not None and last < first):
        raise LeaveToPython("a slice from the end")
    return pc.utf8_slice_codeunits(_texts(value), start=first, stop=last)


def _concat(*values: Any) -> Any:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*map(_texts, values), "")


# --- Dates and times --------------------------------------------------------------------------


def _part(name: str, *, of_day: bool) -> Callable[[Any], Any]:
    def kernel(value: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import types

        kind = value.type
        if not (types.is_timestamp(kind) and kind.unit != "ns"):
            if not (of_day and types.is_date32(kind)):
                raise LeaveToPython(str(kind))
        elif kind.tz not in (None, "UTC"):
            _refuse_far_times(value)
        return getattr(pc, name)(value).cast(pa.int64())

    return kernel


_ZONES_AGREE = (65_750_400, 2_145_916_800)
"""From 1972-02 to the end of 2037: before there are offsets with seconds, which Arrow gets wrong,
and after it knows of no summer time."""
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000}


def _refuse_far_times(value: Any) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    ticks = value.cast(pa.int64())
    if isinstance(ticks, pa.Scalar):
        least = most = ticks.as_py()
    else:
        least, most = pc.min_max(ticks).as_py().values()
    low, high = (bound * _TICKS[value.type.unit] for bound in _ZONES_AGREE)
    if least is not None and not low <= least <= most < high:
        raise LeaveToPython("times for which Arrow has other offsets")


_ms_of_second, _us_of_ms = _part("millisecond", of_day=False), _part("microsecond", of_day=False)


def _microsecond(value: Any) -> Any:
    import pyarrow.compute as pc

    return pc.add(pc.multiply(_ms_of_second(value), 1000), _us_of_ms(value))


def _epoch_ms(value: Any) -> Any:
    import pyarrow as pa

    if not pa.types.is_timestamp(value.type) or value.type.unit not in ("us", "ms"):
        raise LeaveToPython(str(value.type))
    ticks = value.cast(pa.int64())
    return ticks if value.type.unit == "ms" else _floor_divide(ticks, pa.scalar(1000))


# --- Casts ------------------------------------------------------------------------------------


def cast(value: Any, kind: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind == "text":
        if _is_text(value):
            return value
        if _is_integer(value):
            return value.cast(pa.string())
    elif kind == "float" and (_is_integer(value) or _is_float(value) or _is_boolean(value)):
        return _floats(_integers(value) if _is_boolean(value) else value)
    elif kind == "int":
        if _is_integer(value) or _is_boolean(value):
            return _integers(value)
        if _is_float(value):
            value = _floats(value)
            if _any(pc.invert(pc.less(pc.abs(value), 2.0**63))):
                raise LeaveToPython("a float that is no integer of 64 bits")
            return pc.cast(pc.trunc(value), pa.int64(), safe=False)
    elif kind == "bool":
        if _is_boolean(value):
            return value
        if _is_integer(value) or _is_float(value):
            return pc.not_equal(value, pa.scalar(0, value.type))
    raise LeaveToPython(f"a cast of {value.type}")


KERNELS: dict[str, Callable[..., Any]] = {
    "add": _add,
    "subtract": _arithmetic("subtract_checked", "subtract"),
    "multiply": _arithmetic("multiply_checked", "multiply"),
    "divide": _divide,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "negate": _one_number("negate_checked", "negate"),
    "absolute": _one_number("abs_checked", "abs"),
    "equal": _comparison("equal"),
    "not_equal": _comparison("not_equal"),
    "less": _comparison("less"),
    "less_or_equal": _comparison("less_equal"),
    "greater": _comparison("greater"),
    "greater_or_equal": _comparison("greater_equal"),
    "is_in": operator.contains,  # takes its constants as a node: see `is_in`
    "and": _logic("and_kleene"),
    "or": _logic("or_kleene"),
    "not": _logic("invert"),
    "is_null": _is_null,
    "fill_null": _fill_null,
    "len": _length,
    "upper": _upper,
    "lower": _lower,
    "strip": _strip,
    "startswith": _startswith,
    "endswith": _endswith,
    "contains": _contains,
    "replace": _replace,
    "slice": _slice,
    "concat": _concat,
    "year": _part("year", of_day=True),
    "month": _part("month", of_day=True),
    "day": _part("day", of_day=True),
    "hour": _part("hour", of_day=False),
    "minute": _part("minute", of_day=False),
    "second": _part("second", of_day=False),
    "millisecond": _ms_of_second,
    "microsecond": _microsecond,
    "weekday": _part("day_of_week", of_day=True),
    "epoch_ms": _epoch_ms,
}
"""For each operation a function of columns and scalars."""
