"""How state is pickled in a worker of Spark's, where classes of the user's have come by value.

Such a class goes into the state by its name, with a copy. Where the state is read again, in another
worker or for another run of the program, it becomes an instance of the class that the program has
now; the copy is for where the class has not come yet.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable
from typing import Any

from jetlet.core.pickling import dump

__all__ = ["dump_state"]


def dump_state(value: Any) -> bytes:
    """Pickle state; read it with :func:`pickle.loads`."""
    return dump(value, by_value=_dump_by_name)


def _dump_by_name(value: Any, **options: Any) -> bytes:
    data = io.BytesIO()
    _pickler()(data, **options).dump(value)
    return data.getvalue()


def _library() -> Any:
    # The copy by which code comes to a worker.
    from pyspark import cloudpickle

    return cloudpickle


def _classes() -> Any:
    """The part of it that knows the classes that have come."""
    return _library().cloudpickle


@functools.cache
def _pickler() -> Callable[..., Any]:
    """The class, which can be made only where PySpark is."""
    base: Any = _library().Pickler

    class StatePickler(base):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and "<locals>" not in obj.__qualname__:
                number = _classes()._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(obj)
                if number is not None:
                    return _find_class, (number, obj.__module__, obj.__qualname__, _copy(obj))
            return super().reducer_override(obj)

    return StatePickler


@functools.lru_cache(maxsize=64)
def _copy(kind: type) -> bytes:
    data: bytes = _library().dumps(kind)
    return data


def _find_class(number: str, module: str, name: str, copy: bytes) -> Any:
    """The class as it came to this process, or else one that has its name now, or the copy."""
    known = _classes()._DYNAMIC_CLASS_TRACKER_BY_ID
    if number in known:
        return known[number]
    # The newest last: an older one belongs to state of a run before.
    for kind in reversed(list(known.values())):
        if (kind.__module__, kind.__qualname__) == (module, name):
            return kind
    return pickle.loads(copy)
