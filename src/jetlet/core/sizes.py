"""Sizes in bytes, as users write them: ``2 * 1024**3`` or ``"2 GiB"``."""

from __future__ import annotations

import re
from typing import Final

from jetlet.errors import InvalidArgumentError

__all__ = ["Size", "to_bytes"]

Size = int | str
"""A number of bytes, or text such as ``512 MiB``."""

_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_TEXT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def to_bytes(what: str, size: object) -> int:
    """A size as a number of bytes; ``what`` names it in messages."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    if isinstance(size, str):
        match = _TEXT.fullmatch(size)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match and unit is not None and float(match[1]) * unit >= 1:
            return int(float(match[1]) * unit)
    raise InvalidArgumentError(
        f'{what} is a number of bytes, or text such as "512 MiB" or "2 GiB", not {size!r}'
    )
