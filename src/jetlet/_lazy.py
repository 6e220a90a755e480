"""Names of a module that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    module: str,
    homes: Mapping[str, str],
    load: Callable[[str, str, str], Any] | None = None,
    hint: Callable[[str], str] = lambda name: "",
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a module whose names have these homes.

    A home is the module that a name is imported from, or the module that it stands for. ``load``
    is called instead of importing, with the module, the name and its home. ``hint`` ends the
    message that there is no such name.
    """

    def getattribute(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}{hint(name)}")
        value = (load or _imported)(module, name, home)
        setattr(sys.modules[module], name, value)
        return value

    def directory() -> list[str]:
        return sorted({*vars(sys.modules[module]), *homes})

    return getattribute, directory


def _imported(module: str, name: str, home: str) -> Any:
    imported = import_module(home)
    return imported if home.endswith(f".{name}") else getattr(imported, name)
