"""What can travel to another process, and what stays the same on its way there and back.

``check_picklable`` refuses a DAG whose functions cannot travel, when it is submitted. ``dump`` and
``load`` are for messages between the processes of a job. Classes of the submitting script travel by
value, since no other process has that script; ``main_classes`` and ``adopt_main_classes`` see to it
that their instances come back as instances of the same class, and travel by name meanwhile.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from jetlet.core.dag import DAG
from jetlet.errors import UnpicklableFunctionError


def check_picklable(dag: DAG, dumps: Callable[[Any], bytes]) -> None:
    """Refuse a vertex or an edge whose functions ``dumps`` cannot pickle, and say which."""
    for vertex in dag.vertices:
        try:
            dumps(vertex.supplier)
        except Exception as error:
            raise unpicklable(f"stage {vertex.name!r}", error) from error
    for edge in dag.edges:
        try:
            dumps(edge.key_fn)
        except Exception as error:
            raise unpicklable(f"the key function of stage {edge.dest.name!r}", error) from error


def unpicklable(what: str, error: Exception) -> UnpicklableFunctionError:
    """The error to raise; ``what`` names what cannot travel."""
    return UnpicklableFunctionError(
        f"{what} cannot be sent to another process: {error}. Its function refers to something "
        f"that lives in this process only, such as an open file, a lock or a connection: make it "
        f"inside the function, or write .map_using_service(jetlet.service(lambda context: ...), fn)"
    )


def dump(value: Any) -> bytes:
    """Pickle; by value what another process could not import."""
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):
        import cloudpickle

        data: bytes = cloudpickle.dumps(value, protocol=5)
        return data


def main_classes() -> tuple[str, ...]:
    """Names of the classes of the submitting script that are found under their names there."""
    main = sys.modules.get("__main__")
    if main is None:
        return ()
    return tuple(
        name
        for name, value in list(vars(main).items())
        if isinstance(value, type) and value.__module__ == "__main__" and value.__qualname__ == name
    )


def adopt_main_classes(names: Iterable[str], main: ModuleType | None = None) -> None:
    """Let classes that came by value from the submitting script be found under their names here.

    Their instances are then pickled by name, which is what the submitting process needs to make
    instances of its own class of them. Without it they would still come back as such, since
    cloudpickle knows its classes again, but with a copy of the class in every packet.
    """
    main = main or sys.modules["__main__"]
    wanted = set(names)
    for kind in _classes_by_value():
        name = kind.__qualname__
        if kind.__module__ == "__main__" and name in wanted and not hasattr(main, name):
            setattr(main, name, kind)


def _classes_by_value() -> list[type]:
    """The classes that cloudpickle has rebuilt in this process."""
    try:
        from cloudpickle import cloudpickle

        # Not a public name: if it goes away, only the short cut does.
        return list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.values())
    except (ImportError, AttributeError):
        return []
