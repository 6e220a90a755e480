"""Small functions that pipelines are often written with.

The planner and the aggregate operations recognise :func:`whole_item` by identity and then skip
the call: ``grouping_key(whole_item)`` groups by the items themselves, at no cost per item.
"""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["entry_key", "entry_value", "whole_item"]

T = TypeVar("T")


def whole_item(item: T) -> T:
    """The item itself."""
    return item


def entry_key(entry: tuple[T, Any]) -> T:
    """The key of a ``(key, value)`` pair, such as a keyed aggregate emits."""
    return entry[0]


def entry_value(entry: tuple[Any, T]) -> T:
    """The value of a ``(key, value)`` pair, such as a keyed aggregate emits."""
    return entry[1]
