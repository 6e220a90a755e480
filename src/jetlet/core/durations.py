"""Durations: an int in milliseconds or a ``timedelta``."""

from __future__ import annotations

from datetime import timedelta

from jetlet.errors import InvalidArgumentError

Duration = int | timedelta


def to_ms(what: str, value: Duration, *, minimum: int = 0) -> int:
    """The duration in milliseconds; refuses what is not one, or less than ``minimum``."""
    if isinstance(value, timedelta):
        value = value // timedelta(milliseconds=1)
    if type(value) is not int:
        raise InvalidArgumentError(
            f"{what} is a duration: write an int in milliseconds or a timedelta, not {value!r}"
        )
    if value < minimum:
        raise InvalidArgumentError(f"{what} must be at least {minimum} ms, not {value} ms")
    return value
