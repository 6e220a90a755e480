"""Which item of a batch a loop failed on, found afterwards.

A loop that is to be fast does not keep count. It goes over one iterator of the batch, and the
iterator knows how far it came::

    it = iter(batch)
    try:
        out = [fn(item) for item in it]
    except Exception as error:
        raise policy.failure(item_at(batch, it)) from error

The loop must be a comprehension or a statement, not ``map`` or ``zip`` around the user's function:
these would take a ``StopIteration`` that it raises for the end of the batch, and lose items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from operator import length_hint
from typing import Any

from jetlet.core.partitioning import stable_hash
from jetlet.errors import InvalidArgumentError, ItemFailedError, UnstableKeyError

__all__ = ["item_at", "item_failure", "lookup_error"]


def item_at(batch: Sequence[Any], position: Iterator[Any]) -> Any:
    """The item at which ``position`` is: the one that it has given last.

    It may be an iterator of something parallel to the batch.
    """
    return batch[len(batch) - length_hint(position) - 1]


def item_failure(batch: Sequence[Any], position: Iterator[Any], step: str) -> ItemFailedError:
    """The error that names the item at which ``position`` is."""
    return ItemFailedError(item_at(batch, position), step)


def lookup_error(
    error: Exception, item: Any, key_fns: Sequence[Callable[[Any], Any] | None]
) -> Exception:
    """What to report for ``error``: itself, or something clearer if a key of the item is to blame.

    ``None`` among ``key_fns`` means that the item is its own key.
    """
    if not isinstance(error, TypeError):
        return error
    for key_fn in key_fns:
        try:
            key = item if key_fn is None else key_fn(item)
        except Exception:  # noqa: S112 - then it is not its key that is to blame
            continue
        try:
            hash(key)
        except TypeError as reason:
            return _unhashable(key, reason)
        if _CANNOT_COMPARE in str(error) and _is_decimal_or_numpy(key):
            return UnstableKeyError(
                "some keys are decimals and others numpy integers, which Python cannot compare: "
                "make them one type in the key function, such as int(key)"
            )
    return error


_CANNOT_COMPARE = "argument must be an integer"
"""What comes of ``Decimal(1) == numpy.int64(1)``."""


def _is_decimal_or_numpy(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return any(isinstance(part, Decimal) or hasattr(part, "dtype") for part in parts)


def _unhashable(key: Any, reason: TypeError) -> Exception:
    try:
        stable_hash(key)
    except Exception as better:  # knows what to write instead
        return better
    return InvalidArgumentError(f"the key cannot be looked up ({reason}): return a tuple instead")
