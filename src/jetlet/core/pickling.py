"""What can travel to another process, and what stays the same on its way there and back.

``check_picklable`` refuses a DAG whose functions cannot travel, when it is submitted. ``dump`` is
for items, state and messages between the processes of a job. Code that the other process cannot
import travels by value: that of ``__main__`` always, that of the modules of a :class:`CodeByValue`
within its ``by_value``. For members, which have this process's ``sys.path``, those are the
``unimportable_modules``; ``stray_classes`` and ``adopt_classes`` see to it that instances of their
classes come back as what they were.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from jetlet.core.dag import DAG
from jetlet.errors import UnpicklableFunctionError

_by_value_lock = threading.RLock()
"""What is pickled by value is a setting of the process: two jobs must not undo each other's."""


def check_picklable(dag: DAG, code: CodeByValue) -> None:
    """Refuse a vertex or an edge whose functions cannot be pickled, and say which."""
    parts = [(vertex.supplier, f"stage {vertex.name!r}") for vertex in dag.vertices]
    functions = [(e.key_fn, f"the key function of stage {e.dest.name!r}") for e in dag.edges]
    with code.by_value():
        for value, what in [*parts, *functions]:
            try:
                code.dumps(value)
            except Exception as error:
                raise unpicklable(what, error) from error


def unpicklable(what: str, error: Exception) -> UnpicklableFunctionError:
    """The error to raise; ``what`` names what cannot travel."""
    return UnpicklableFunctionError(
        f"{what} cannot be sent to another process: {error}. Its function refers to something "
        f"that lives in this process only, such as an open file, a lock or a connection: make it "
        f"inside the function, or write .map_using_service(jetlet.service(lambda context: ...), fn)"
    )


def dump(
    value: Any,
    *,
    outside: list[pickle.PickleBuffer] | None = None,
    by_value: Callable[..., bytes] | None = None,
) -> bytes:
    """Pickle; by value what another process could not import.

    Large buffers go to ``outside``, if it is given. ``by_value`` is called instead of cloudpickle
    for what pickle cannot do.
    """
    options: dict[str, Any] = {"protocol": 5}
    if outside is not None:
        options["buffer_callback"] = outside.append
    try:
        return pickle.dumps(value, **options)
    except Exception:  # what pickle cannot do, with any of a dozen types of error
        if outside:
            outside.clear()
        return (by_value or _library_here().dumps)(value, **options)


def _library_here() -> Any:
    """The copy of cloudpickle by which code came to this process; it knows its classes again."""
    # Workers of PySpark have a copy of their own, and need not have the library.
    return _library("pyspark.cloudpickle" if "pyspark.worker" in sys.modules else "cloudpickle")


def _library(name: str) -> Any:
    return importlib.import_module(name)


# --- Code that travels by value -----------------------------------------------------------


def user_modules() -> list[ModuleType]:
    """Loaded modules that are neither installed nor part of Python or of Jetlet."""
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        if name == "__main__" or name.split(".")[0] in {"jetlet", "pyspark"}:
            continue
        # Some entries go by a second name; they are found under their own.
        if getattr(module, "__name__", None) == name and not _is_installed(file):
            found.append(module)
    return found


@functools.cache
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in _installation())


@functools.cache
def _installation() -> frozenset[Path]:
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    folders += [sysconfig.get_path(which) for which in ("stdlib", "platstdlib", "purelib")]
    return frozenset(Path(folder).resolve() for folder in folders)


def unimportable_modules() -> list[ModuleType]:
    """Those that a process with the same ``sys.path`` would not find: loaded in some other way."""
    return [module for module in user_modules() if not _is_importable(module)]


def _is_importable(module: ModuleType) -> bool:
    path: Any = None
    name, spec = "", None
    for part in module.__name__.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin is not None and spec.origin == module.__file__


@dataclass(frozen=True, slots=True)
class CodeByValue:
    """Which code travels by value, and which copy of cloudpickle packs it."""

    modules: Callable[[], list[ModuleType]]
    library_name: str

    @contextmanager
    def by_value(self) -> Iterator[None]:
        """Within it, this copy of cloudpickle sends the modules by value."""
        library = _library(self.library_name)
        with _by_value_lock:
            known = set(library.list_registry_pickle_by_value())
            added = [m for m in self.modules() if m.__name__ not in known]
            for module in added:
                library.register_pickle_by_value(module)
            try:
                yield
            finally:
                for module in added:
                    library.unregister_pickle_by_value(module)

    def dumps(self, value: Any) -> bytes:
        """Pickle by cloudpickle, whatever pickle could do; see :meth:`by_value`."""
        library = _library(self.library_name)
        data = io.BytesIO()
        _pickler(library)(data, library.list_registry_pickle_by_value()).dump(value)
        return data.getvalue()


@functools.cache
def _pickler(library: ModuleType) -> Callable[[io.BytesIO, Collection[str]], Any]:
    """That of the library, which also sends functions with a cache by value.

    By itself it takes them for something that is found under its name everywhere.
    """

    class Pickler(library.CloudPickler):  # type: ignore[misc, name-defined]
        def __init__(self, file: io.BytesIO, modules: Collection[str]) -> None:
            super().__init__(file, protocol=5)
            self._modules = {"__main__", *modules}

        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is functools._lru_cache_wrapper and self._is_only_here(obj):
                parameters = obj.cache_parameters()
                return with_cache, (obj.__wrapped__, parameters["maxsize"], parameters["typed"])
            return super().reducer_override(obj)

        def _is_only_here(self, function: Any) -> bool:
            name = function.__module__ or "__main__"
            packages = {name.rpartition(".")[0], name.partition(".")[0]}
            return "<locals>" in function.__qualname__ or bool({name, *packages} & self._modules)

    return Pickler


def with_cache(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    """A function that has come by value, with a cache that is empty."""
    return functools.lru_cache(maxsize, typed)(function)


FOR_SAME_PATH = CodeByValue(unimportable_modules, "cloudpickle")
"""Pickles code for processes that have the ``sys.path`` of this one."""


def stray_classes(code: CodeByValue = FOR_SAME_PATH) -> tuple[tuple[str, str], ...]:
    """Module and name of the classes that travel by value and are found under these names here."""
    modules = code.modules()
    if "__main__" in sys.modules:
        modules.append(sys.modules["__main__"])
    return tuple(
        (module.__name__, name)
        for module in modules
        for name, value in list(vars(module).items())
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and value.__qualname__ == name
    )


def adopt_classes(names: Iterable[tuple[str, str]]) -> None:
    """Let classes that came by value from the submitting process be found under their names here.

    Their instances are then pickled by name, which is what the submitting process needs to make
    instances of its own class of them. Without it they would still come back as such, since
    cloudpickle knows its classes again, but with a copy of the class in every packet.
    """
    wanted = set(names)
    for kind in _classes_by_value():
        if (kind.__module__, kind.__qualname__) in wanted:
            module = _module(kind.__module__)
            if not hasattr(module, kind.__qualname__):
                setattr(module, kind.__qualname__, kind)


def _module(name: str) -> ModuleType:
    """The module of that name; an empty one, in empty packages, where there is none."""
    package = name.rpartition(".")[0]
    if package:
        _module(package)
    if name not in sys.modules:
        sys.modules[name] = ModuleType(name)
    return sys.modules[name]


def _classes_by_value() -> list[type]:
    """The classes that cloudpickle has rebuilt in this process."""
    try:
        cloudpickle = _library_here().cloudpickle
        # Not a public name: if it goes away, only the short cut does.
        return list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.values())
    except (ImportError, AttributeError):
        return []
