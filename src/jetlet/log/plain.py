"""Plain values, pickled: what can be read from strangers without running any code of theirs.

A pickle may name any function and have it called. One that is read here may name only the classes
of plain values, and one that is written here has no others. What pickle itself knows (numbers,
texts, bytes, lists, tuples, dicts, sets, ``None``, truth values) needs no name at all, so it costs
no more than any pickle does.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

from jetlet.errors import BadRecordError

_NAMES: Final = frozenset(
    {
        ("builtins", "complex"),
        ("builtins", "range"),
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("uuid", "UUID"),
        # What stages emit of themselves.
        ("jetlet.pipeline.errors", "DeadLetter"),
        ("jetlet.pipeline.errors", "RawRecord"),
    }
)
"""Module and name of the classes that a pickle may ask for: made of plain values, they do nothing
else, and nothing can be set on them."""
_NUMBER: Final = re.compile(r"-?\d{1,4000}(/\d{1,4000})?")
"""A fraction as it writes itself; one with an exponent could be of any size."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (
        isinstance(value, str) and _NUMBER.fullmatch(value) is not None
    )


def _fraction(*arguments: Any) -> Any:
    if not all(map(_is_number, arguments)):
        raise BadRecordError("they have a fraction that is made of something else than numbers")
    from fractions import Fraction

    return Fraction(*arguments)


def _counter(*arguments: Any) -> Any:
    if not all(type(each) is dict for each in arguments):
        raise BadRecordError("they have a counter that is made of something else than counts")
    return Counter(*arguments)


def _deque(*arguments: Any) -> Any:
    if arguments and not isinstance(arguments[0], list | tuple):
        raise BadRecordError("they have a deque that is made of something else than a list")
    return deque(*arguments)


def _ordered(*arguments: Any) -> Any:
    if not all(type(each) is list for each in arguments):
        raise BadRecordError("they have a dict that is made of something else than entries")
    return OrderedDict(*arguments)


def _window(kind: str) -> Callable[..., Any]:
    # Of a layer above this one: what it emits may be in a log, and nothing else of it.
    def make(*fields: Any) -> Any:
        return getattr(import_module("jetlet.pipeline.windows"), kind)(*fields)

    return make


def _zone(key: Any) -> Any:
    from zoneinfo import ZoneInfo

    return ZoneInfo(key)


def _address(kind: str) -> Callable[[Any], Any]:
    def make(number: Any) -> Any:
        import ipaddress

        return getattr(ipaddress, kind)(number)

    return make


_MAKERS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("collections", "Counter"): _counter,
    ("collections", "OrderedDict"): _ordered,
    ("collections", "deque"): _deque,
    ("fractions", "Fraction"): _fraction,
    ("ipaddress", "IPv4Address"): _address("IPv4Address"),
    ("ipaddress", "IPv6Address"): _address("IPv6Address"),
    ("jetlet.pipeline.windows", "EarlyWindowResult"): _window("EarlyWindowResult"),
    ("jetlet.pipeline.windows", "RevisedWindowResult"): _window("RevisedWindowResult"),
    ("jetlet.pipeline.windows", "WindowResult"): _window("WindowResult"),
    ("zoneinfo", "ZoneInfo"): _zone,
}
"""What makes values of classes on which a pickle could set something, or have much made of little:
it gets a function instead, and a new one each time."""


def dumps(value: Any) -> bytes:
    """Pickle plain values; raises ``TypeError`` for others."""
    data = io.BytesIO()
    _Pickler(data, 5).dump(value)
    return data.getvalue()


def loads(data: bytes | memoryview) -> Any:
    """The reverse, whoever has written it."""
    return _Unpickler(io.BytesIO(data)).load()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Called for all that pickle does not know by itself."""
        kind = obj if isinstance(obj, type) else type(obj)
        name = (kind.__module__, kind.__qualname__)
        if name not in _NAMES and name not in _MAKERS:
            raise TypeError(f"{kind.__qualname__} is no class of plain values")
        if obj is kind:
            return NotImplemented
        if kind.__qualname__ == "ZoneInfo":
            return kind, (obj.key,)  # by itself it asks for getattr, which could get anything
        is_tuple = isinstance(obj, tuple) and "__reduce__" not in vars(kind)
        return (kind, tuple(obj)) if is_tuple else NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        make = _MAKERS.get((module_name, global_name))
        if make is not None:
            return partial(make)
        if (module_name, global_name) in _NAMES:
            return super().find_class(module_name, global_name)
        raise BadRecordError(
            f"they have a {module_name}.{global_name}, which is no plain value; if you trust "
            f"whoever can write to the log, open it with serializer='pickle'"
        )
