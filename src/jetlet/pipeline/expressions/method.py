"""Methods of expressions, and what to tell who writes one that there is not."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from jetlet.errors import InvalidArgumentError

if TYPE_CHECKING:
    from jetlet.pipeline.expressions.expression import Expression

__all__ = ["Method", "no_method"]


class Incomplete:
    """What has to be completed before it is a part of an expression."""

    def refuse(self, *_: Any) -> NoReturn:
        """Say what is missing."""
        raise NotImplementedError


class Method(Incomplete):
    """A method of expressions.

    What is done with ``it.date``, without parentheses, is not meant for the method but for a field
    of that name: it fails here, where Python would compare or keep the method.
    """

    def __init__(
        self, function: Callable[..., Expression], owner: Expression | None = None
    ) -> None:
        self._function = function
        self._owner = owner
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__signature__ = inspect.signature(function)

    def __get__(self, owner: Expression | None, kind: type) -> Method:
        return self if owner is None else Method(self._function, owner)

    def __call__(self, *arguments: Any, **named: Any) -> Expression:
        try:
            inspect.signature(self._function).bind(self._owner, *arguments, **named)
        except TypeError as error:
            name = self.__name__
            raise InvalidArgumentError(
                f"{self._owner}.{name}: {error}: write .{name}{self._signature()}, or [{name!r}] "
                f"if a field of that name is meant"
            ) from None
        return self._function(self._owner, *arguments, **named)

    def _signature(self) -> str:
        parameters = list(inspect.signature(self._function).parameters.values())[1:]
        return f"({', '.join(str(p).split(':')[0] for p in parameters)})"

    def refuse(self, *_: Any) -> NoReturn:
        name = self.__name__
        raise InvalidArgumentError(
            f"{self._owner}.{name} is a method: write {self._owner}.{name}(...), or "
            f"{self._owner}[{name!r}] if a field of that name is meant"
        )

    __hash__ = object.__hash__
    for _name in (
        *(
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "bool",
            "getitem",
            "iter",
            "contains",
            "neg",
            "invert",
        ),
        *(
            side + name
            for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or")
            for side in ("", "r")
        ),
    ):
        locals()[f"__{_name}__"] = refuse
    del _name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self.refuse()


_IDIOMS = {
    "alias": "record(name=...)",
    "asc": ".sort(key) of a stage",
    "astype": ".cast(type)",
    "between": "(x >= low) & (x <= high)",
    "capitalize": "a lambda",
    "coalesce": ".fill_null(value)",
    "desc": ".sort(key, reverse=True) of a stage",
    "ends_with": ".endswith(text)",
    "endsWith": ".endswith(text)",
    "fillna": ".fill_null(value)",
    "fill_nan": "a lambda",
    "getItem": "[index]",
    "get": "[name]",
    "isin": ".is_in(values)",
    "isNull": ".is_null()",
    "isNotNull": "~x.is_null()",
    "is_not_null": "~x.is_null()",
    "isna": ".is_null()",
    "join": ".concat(text, ...)",
    "length": ".len()",
    "lstrip": "a lambda",
    "otherwise": "when(condition).then(value).otherwise(other)",
    "rstrip": "a lambda",
    "startsWith": ".startswith(text)",
    "starts_with": ".startswith(text)",
    "str": "the method itself: .lower(), .split(), ...",
    "dt": "the method itself: .year(), .hour(), ...",
    "substr": ".slice(start, stop)",
    "substring": ".slice(start, stop)",
    "to_lowercase": ".lower()",
    "to_uppercase": ".upper()",
    "trim": ".strip()",
    "timestamp": ".epoch_ms()",
}


def no_method(name: str, methods: Iterable[str]) -> str:
    hint = _IDIOMS.get(name)
    close = difflib.get_close_matches(name, methods, n=1, cutoff=0.7)
    if hint is None:
        hint = f".{close[0]}(...)" if close else f"one of {', '.join(methods)}; or a lambda"
    return f"an expression has no method {name!r}: write {hint}"
