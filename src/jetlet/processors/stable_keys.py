"""Keys that could not be routed, found where there is nothing to route.

An edge by key to a single processor does not look at the key of every item: it has no choice to
make. The processor behind it, which has each key once in a table, looks at them at the end, so that
a job fails on such a key whatever its parallelism is. A hash join, to which items do not come by
key, looks at all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from operator import ne
from types import NoneType
from typing import Any

from jetlet.core.partitioning import stable_hash
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError
from jetlet.storage.disk_table import DiskTable

__all__ = ["are_plain", "check_each_key", "check_stable_key", "check_stable_keys"]

_PLAIN = frozenset({str, bytes, int, bool, NoneType})
"""Types whose values are all fine: most keys are of these, or tuples of them."""


def check_stable_key(key: Any) -> None:
    """Raise if a key has no stable hash."""
    kind = type(key)
    if kind not in _PLAIN and not (kind is tuple and _PLAIN.issuperset(map(type, key))):
        stable_hash(key)


def are_plain(keys: Collection[Any]) -> bool:
    """True if all keys of a batch are seen to be stable at one glance."""
    kinds = keys.key_types if isinstance(keys, DiskTable) else set(map(type, keys))
    if _PLAIN.issuperset(kinds):
        return True
    if kinds == {tuple}:
        return _PLAIN.issuperset(map(type, chain.from_iterable(keys)))
    return kinds == {float} and not any(map(ne, keys, keys))


def check_stable_keys(keys: Collection[Any], context: ProcessorContext, step: str) -> None:
    """Raise for a key without a stable hash, if the edge before has not done so already."""
    if context.local_parallelism == 1:
        check_each_key(keys, step)


def check_each_key(keys: Collection[Any], step: str) -> None:
    """Raise for a key without a stable hash."""
    if are_plain(keys):
        return
    for key in keys:
        try:
            stable_hash(key)
        except Exception as error:
            raise ItemFailedError(key, step) from error
