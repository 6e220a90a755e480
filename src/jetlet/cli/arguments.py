"""Arguments of the function that makes a pipeline, as they are written on a command line.

    jetlet run daily.py:make -P date=2026-11-16 -P limit=10
    jetlet run daily.py:make -- --date 2026-11-16 --limit 10

Both call ``make(date=..., limit=...)``, with each value of the type that the annotation says.
"""

from __future__ import annotations

import difflib
import enum
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Union

import click

from jetlet.cli.failures import Refused
from jetlet.core.durations import to_ms

_REST = "jetlet.cli.arguments"
"""The key of what is behind ``--`` in the context of a command."""
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_MISFITS = (ValueError, ArithmeticError, KeyError)
"""What a text raises that is no value of a type."""


arguments_option = click.option(
    "-P",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    allow_from_autoenv=False,
    help="An argument of the function NAME, such as date=2026-11-16; may be repeated.",
)


class TakesArguments(click.Command):
    """A command that leaves what is behind ``--`` to the function that makes the pipeline."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_REST] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def arguments_behind(ctx: click.Context) -> Sequence[str]:
    """What was behind ``--`` on the command line."""
    rest: Sequence[str] = ctx.meta.get(_REST, ())
    return rest


def bind(function: Any, what: str, pairs: Sequence[str], rest: Sequence[str]) -> dict[str, Any]:
    """The keyword arguments for ``function`` from ``-P NAME=VALUE`` and from what is behind ``--``.

    What is behind ``--`` is also there as ``sys.argv``. So a function without parameters, which
    may look at that itself, is not asked about it.
    """
    parameters = _parameters(function)
    hints = _hints(function)
    texts: dict[str, list[str]] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise Refused(f"-P takes NAME=VALUE, such as date=2026-11-16, not {pair!r}")
        texts.setdefault(_known(name, parameters, what), []).append(value)
    if parameters:
        for name, value in _options(rest, parameters, hints, what):
            texts.setdefault(name, []).append(value)
    arguments = {
        name: _converted(name, values, hints.get(name, parameters[name].default), what)
        for name, values in texts.items()
    }
    missing = [
        name for name, p in parameters.items() if p.default is p.empty and name not in arguments
    ]
    if missing:
        example = " ".join(f"-P {name}=..." for name in missing)
        raise Refused(f"{what} needs arguments ({', '.join(missing)}): write {example}")
    return arguments


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in found.items() if p.kind in kinds}


def _hints(function: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # an annotation that cannot be resolved at run time
        return {}


def _known(name: str, parameters: Mapping[str, Any], what: str) -> str:
    name = name.replace("-", "_")
    if name not in parameters:
        close = difflib.get_close_matches(name, parameters, n=1)
        known = f"it takes {', '.join(parameters)}" if parameters else "it takes none"
        raise Refused(
            f"{what} has no argument {name!r}: {f'did you mean {close[0]!r}?' if close else known}"
        )
    return name


def _options(
    rest: Sequence[str], parameters: Mapping[str, Any], hints: Mapping[str, Any], what: str
) -> list[tuple[str, str]]:
    """``--name value``, ``--name=value``, ``--flag`` and ``--no-flag`` as pairs."""
    found: list[tuple[str, str]] = []
    left = list(rest)
    while left:
        word = left.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise Refused(f"behind -- write --NAME VALUE for each argument of {what}, not {word!r}")
        flag, sign, value = word[2:].partition("=")
        name = flag.replace("-", "_")
        positive = name.removeprefix("no_")
        if name not in parameters and _is_flag(parameters.get(positive), hints.get(positive)):
            found.append((positive, "false"))
            continue
        name = _known(flag, parameters, what)
        if not sign:
            if _is_flag(parameters[name], hints.get(name)):
                value = "true"
            elif left:
                value = left.pop(0)
            else:
                raise Refused(f"{what}: {word} needs a value: write {word} VALUE")
        found.append((name, value))
    return found


def _is_flag(parameter: inspect.Parameter | None, hint: Any) -> bool:
    return parameter is not None and (hint is bool or isinstance(parameter.default, bool))


def _converted(name: str, values: list[str], hint: Any, what: str) -> Any:
    """The values of one argument as its annotation, or else its default, says."""
    hint = _type_of(hint)
    origin = typing.get_origin(hint)
    if origin in (list, tuple, set, frozenset) or hint in (list, tuple, set, frozenset):
        inner = next(iter(typing.get_args(hint)), str)
        return (origin or hint)(_value(name, value, inner, what) for value in values)
    if len(values) > 1:
        raise Refused(f"{what}: {name} is given {len(values)} times, and is one value")
    return _value(name, values[0], hint, what)


def _type_of(hint: Any) -> Any:
    """What a value should be; the type of a default value where that is all there is."""
    if hint is inspect.Parameter.empty or hint is None:
        return str
    if isinstance(hint, type) or typing.get_origin(hint) is not None:
        return hint
    if isinstance(hint, types.UnionType):
        return hint
    return type(hint)


def _value(name: str, text: str, hint: Any, what: str) -> Any:
    try:
        return _parse(text, hint)
    except _MISFITS:
        raise Refused(f"{what}: {name} is {_described(hint)}, not {text!r}") from None


def _parse(text: str, hint: Any) -> Any:
    if typing.get_origin(hint) is Literal:
        return {str(each): each for each in typing.get_args(hint)}[text]
    if typing.get_origin(hint) in (Union, types.UnionType):
        return _parse_union(text, typing.get_args(hint))
    if hint is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if hint in (datetime, date):
        return hint.fromisoformat(text)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint[text] if text in hint.__members__ else hint(text)
    if hint in (int, float, complex, Decimal, Path):
        return hint(text)
    if hint is timedelta:
        return timedelta(milliseconds=to_ms("it", text))
    return text


def _parse_union(text: str, members: tuple[Any, ...]) -> Any:
    if type(None) in members and text in ("", "none", "None"):
        return None
    # Text last: it would take everything.
    for each in sorted((m for m in members if m is not type(None)), key=lambda m: m is str):
        try:
            return _parse(text, each)
        except _MISFITS:
            continue
    raise ValueError(text)


def _described(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"one of {', '.join(hint.__members__)}"
    if hint is bool:
        return "true or false"
    examples = {
        date: " such as 2026-11-16",
        datetime: " such as 2026-11-16T08:30",
        timedelta: " such as 1h 30m",
    }
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    article = "an" if name[0] in "aeiou" else "a"
    return f"{article} {name}{examples.get(hint, '')}"
