"""The functions of ``jetlet.sources`` and ``jetlet.sinks``, made of the classes of connectors.

What a connector takes is written once: in the ``__init__`` of its class, beside what becomes of it.
Options that a family of connectors shares are those of its base class, and a typed dict says which
of them a class takes. A function is made when it is first used, with the signature in full and the
text of the class; so nobody pays for connectors that are not used.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from jetlet.pipeline.described import Described
from jetlet.storage.file_systems import without_credentials

_HIDDEN: Final = frozenset(("settings", "storage_options"))
"""Options that may hold secrets."""
_ITEMS_SHOWN: Final = 4


def constructor(module: str, name: str, home: str) -> Callable[..., Any]:
    """The function of this name, which makes objects of the class at ``folder.module:Class``."""
    file, _, kind = home.partition(":")
    cls = getattr(import_module(f"jetlet.{file}"), kind)
    what = f"{module.rpartition('.')[2]}.{name}"
    signature = _signature(cls)

    def function(*args: Any, **options: Any) -> Any:
        try:
            bound = signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError(_refusal(what, signature, options, error)) from None
        made = cls(*args, **options)
        made.call = _call(what, bound)
        return made

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__doc__ = inspect.cleandoc(cls.__doc__ or "")
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def hints(module: str, homes: Mapping[str, str]) -> Callable[[str], str]:
    """What to write instead of names that the module does not have."""

    def hint(name: str) -> str:
        from jetlet.pipeline.idioms import module_hint

        return "" if name.startswith("__") else module_hint(module, name, homes)

    return hint


class _Text(str):
    """An annotation as it is written, which ``help`` is to show without quotes."""

    __slots__ = ()

    __repr__ = str.__str__


def _signature(cls: type) -> inspect.Signature:
    """That of the class, with the options that it hands on to its base class written out."""
    own = inspect.signature(cls.__init__)  # type: ignore[misc]
    parameters = []
    for parameter in [*own.parameters.values()][1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            options = str(parameter.annotation).removeprefix("Unpack[").removesuffix("]")
            base = inspect.signature(cls.__mro__[1].__init__).parameters  # type: ignore[misc]
            keywords = vars(inspect.getmodule(cls))[options].__annotations__
            parameters += [base[option] for option in base if option in keywords]
        else:
            parameters.append(parameter)
    return inspect.Signature(
        [each.replace(annotation=_Text(each.annotation)) for each in parameters],
        return_annotation=_Text(cls.__name__),
    )


def _refusal(
    what: str, signature: inspect.Signature, options: Mapping[str, Any], error: TypeError
) -> str:
    for option in options:
        if option not in signature.parameters:
            near = difflib.get_close_matches(option, signature.parameters, n=1)
            return f"{what} has no parameter {option!r}; " + (
                f"did you mean {near[0]!r}?"
                if near
                else f"it has {', '.join(signature.parameters)}"
            )
    return f"{what}: {error}; write {what}{signature.replace(return_annotation=signature.empty)}"


def _call(what: str, bound: inspect.BoundArguments) -> str:
    shown = []
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        text = "..." if name in _HIDDEN and value else _shown(value)
        shown.append(f"{name}={text}" if parameter.kind is parameter.KEYWORD_ONLY else text)
    return f"{what}({', '.join(shown)})"


def _shown(value: Any) -> str:
    """Short, without secrets, and without asking objects of users what they look like."""
    if isinstance(value, str):
        text = repr(without_credentials(value))
        return text if len(text) <= 100 else f"{text[:97]}..."
    if value is None or isinstance(value, bool | int | float | range):
        return repr(value)
    if isinstance(value, Mapping):
        return "{...}" if value else "{}"
    if isinstance(value, Sequence) and isinstance(value, list | tuple):
        items = [_shown(each) for each in value[:_ITEMS_SHOWN]]
        text = ", ".join([*items, "..."] if len(value) > _ITEMS_SHOWN else items)
        return f"[{text}]" if isinstance(value, list) else f"({text})"
    if isinstance(value, Described) and value.call:
        return value.call
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__).replace("<locals>.", "")
    return f"<{type(value).__name__}>"
