"""Checks of the arguments that connectors share; each message says what to write instead."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jetlet.errors import InvalidArgumentError


def check_count(what: str, value: Any) -> int | None:
    """A positive whole number, or ``None``."""
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidArgumentError(f"{what}={value!r}: write a whole number of at least 1")
    return value


def check_name(what: str, value: Any) -> str | None:
    """The name of a vertex, or ``None``."""
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidArgumentError(f"{what}: name={value!r}: write a string that is not empty")
    return value


def check_encoding(what: str, encoding: Any, errors: Any = "strict") -> str:
    """The normalised name of a text encoding."""
    try:
        found = codecs.lookup(encoding)
        "".encode(encoding)  # refuses codecs that are not of text, such as "hex"
        codecs.lookup_error(errors)
    except (LookupError, TypeError) as error:
        raise InvalidArgumentError(
            f"{what}: encoding={encoding!r}, errors={errors!r}: {error}; write an encoding like "
            "'utf-8' or 'latin-1', and errors='strict', 'replace' or 'ignore'"
        ) from None
    return found.name


def check_callable(what: str, function: Any) -> None:
    if not callable(function):
        raise InvalidArgumentError(f"{what}={function!r}: write a function")


def check_functions(what: str, **functions: Any) -> None:
    """Parameters that are functions, or ``None``."""
    for name, function in functions.items():
        if function is not None:
            check_callable(f"{what}: {name}", function)


def check_choice(what: str, value: Any, *choices: str) -> None:
    """One of a few strings."""
    if value not in choices:
        *most, last = map(repr, choices)
        allowed = f"{', '.join(most)} or {last}" if most else last
        raise InvalidArgumentError(f"{what}={value!r}: write {allowed}")


def check_start(what: str, start: Any, places: str, *words: str, parameter: str = "start") -> None:
    """Where a stream is to begin, or to end: a word, a dict from ``places``, or a time."""
    is_time = isinstance(start, int | datetime) and not isinstance(start, bool)
    if not is_time and not isinstance(start, Mapping) and start not in words:
        raise InvalidArgumentError(
            f"{what}: {parameter}={start!r}: write {', '.join(map(repr, words))}, a dict from "
            f"{places}, or a timestamp in milliseconds (or as a datetime)"
        )


def time_to_ms(time: datetime | int) -> int:
    """Milliseconds since 1970."""
    return int(time.timestamp() * 1000) if isinstance(time, datetime) else time


def shortened(item: object, limit: int = 80) -> str:
    """A ``repr`` that fits into a message."""
    text = repr(item)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def error_text(error: BaseException) -> str:
    """What an error says, with its notes; never raises, though its ``__str__`` may."""
    notes = getattr(error, "__notes__", ())
    try:
        return " ".join([str(error), *(f"({note})" for note in notes)])
    except Exception as reason:  # it must not hide the error itself
        return f"<no text: {type(reason).__name__}>"


def error_line(error: BaseException) -> str:
    """The class of an error and what it says."""
    return f"{type(error).__name__}: {error_text(error)}"
