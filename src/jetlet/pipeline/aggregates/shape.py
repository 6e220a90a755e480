"""What an accumulator is made of, for those who work on columns instead of calling functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Best", "Part", "Shape"]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """An accumulator that is a number: how many items, or the sum of what ``fn`` gives of each."""

    kind: Literal["count", "sum"]
    fn: Callable[[Any], Any] | None = None


Shape: TypeAlias = "Part | tuple[Shape, ...]"
"""An accumulator that is one number, or a list of others, in this order."""


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """An accumulator that is the item with the greatest, or the least, ``key(item)``."""

    key: Callable[[Any], Any]
    is_largest: bool
