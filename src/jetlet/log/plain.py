"""Plain values, pickled: what can be read from strangers without running any code of theirs.

A pickle may name any function and have it called. One that is read here may name only the classes
of plain values, and one that is written here has no others. What pickle itself knows (numbers,
texts, bytes, lists, tuples, dicts, sets, ``None``, truth values) needs no name at all, so it costs
no more than any pickle does.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Final

from jetlet.errors import BadRecordError

_NAMES: Final = frozenset(
    {
        ("builtins", "complex"),
        ("builtins", "range"),
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("collections", "deque"),
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        ("ipaddress", "IPv4Address"),
        ("ipaddress", "IPv6Address"),
        ("uuid", "UUID"),
        ("zoneinfo", "ZoneInfo"),
        # What stages emit of themselves.
        ("jetlet.pipeline.errors", "DeadLetter"),
        ("jetlet.pipeline.errors", "RawRecord"),
        ("jetlet.pipeline.windows", "WindowResult"),
    }
)
"""Module and name of what a pickle may ask for: made of plain values, they do nothing else."""


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
        if (kind.__module__, kind.__qualname__) not in _NAMES:
            raise TypeError(f"{kind.__qualname__} is no class of plain values")
        if kind.__qualname__ == "ZoneInfo" and obj is not kind:
            return kind, (obj.key,)  # by itself it asks for getattr, which could get anything
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) in _NAMES:
            return super().find_class(module_name, global_name)
        raise BadRecordError(
            f"they have a {module_name}.{global_name}, which is no plain value; if you trust "
            f"whoever can write to the log, open it with serializer='pickle'"
        )
