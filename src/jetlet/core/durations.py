"""Durations: an int in milliseconds, a ``timedelta``, or a text such as ``"1h 30m"``."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from jetlet.errors import InvalidArgumentError

Duration = int | timedelta | str

_UNITS = {"ms": 1, "s": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s*({'|'.join(_UNITS)})\s*")
_TEXT = re.compile(rf"\s*(-?)((?:{_PART.pattern})+)")


def to_ms(what: str, value: Duration, *, minimum: int = 0) -> int:
    """The duration in milliseconds; refuses what is not one, or less than ``minimum``."""
    found: object = value
    if isinstance(value, timedelta):
        found = value // timedelta(milliseconds=1)
    elif isinstance(value, str):
        found = _parse(value)
    if type(found) is not int:
        raise InvalidArgumentError(
            f"{what} is a duration: write an int in milliseconds, a timedelta, or a text such as "
            f'"30s", "500ms" or "1h 30m", not {value!r}'
        )
    if found < minimum:
        raise InvalidArgumentError(f"{what} must be at least {minimum} ms, not {found} ms")
    return found


def _parse(text: str) -> int | None:
    """The milliseconds that a text says, if it says whole ones."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    total = sum(Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(found[2]))
    return int(-total if found[1] else total) if total == int(total) else None
