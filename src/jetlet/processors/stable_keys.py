"""Keys that could not be routed, found where there is nothing to route.

An edge by key to a single processor does not look at the key of every item: it has no choice to
make. The processor behind it, which has each key once in a table, looks at them at the end, so that
a job fails on such a key whatever its parallelism is.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from types import NoneType
from typing import Any

from jetlet.core.partitioning import stable_hash
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError

__all__ = ["check_stable_key", "check_stable_keys"]

_PLAIN = frozenset({str, bytes, int, bool, NoneType})
"""Types whose values are all fine: most keys are of these, or tuples of them."""


def check_stable_key(key: Any) -> None:
    """Raise if a key has no stable hash."""
    if type(key) not in _PLAIN:
        stable_hash(key)


def check_stable_keys(keys: Collection[Any], context: ProcessorContext, step: str) -> None:
    """Raise for a key without a stable hash, if the edge before has not done so already."""
    if context.local_parallelism > 1 or _PLAIN.issuperset(map(type, keys)):
        return
    if {tuple}.issuperset(map(type, keys)):
        if _PLAIN.issuperset(map(type, chain.from_iterable(keys))):
            return
    for key in keys:
        try:
            stable_hash(key)
        except Exception as error:
            raise ItemFailedError(key, step) from error
