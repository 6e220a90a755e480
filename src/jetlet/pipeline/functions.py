"""Small functions that pipelines are often written with.

The planner and the aggregate operations recognise ``whole_item`` by identity and then skip the
call: ``grouping_key(whole_item)`` groups by the items themselves, at no cost per item. It is ``it``
by another name.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from jetlet.core.partitioning import stable_hash
from jetlet.pipeline.expressions.expression import (
    Expression,
    each_function,
    entry_key,
    entry_value,
    plain_function,
)
from jetlet.pipeline.expressions.expression import it as whole_item

if TYPE_CHECKING:
    from jetlet.pipeline.aggregates.operation import AggregateOperation

__all__ = [
    "HASHES",
    "call_each",
    "can_be_added",
    "entry_key",
    "entry_value",
    "has_stable_key",
    "is_sampled",
    "plain_function",
    "whole_item",
    "with_key_of_item",
    "with_service_and_key",
]

HASHES = 1 << 32
"""How many values a stable hash can have."""

T = TypeVar("T")
R = TypeVar("R")


def call_each(fn: Callable[[T], R], batch: Sequence[T]) -> list[R]:
    """What ``fn`` returns for each item.

    As fast as ``map``, which takes a ``StopIteration`` that ``fn`` raises for the end of the batch.
    """
    if isinstance(fn, Expression):
        return each_function(fn)(batch)
    results = list(map(fn, batch))
    if len(results) < len(batch):
        raise StopIteration("raised by a function for one of the items")
    return results


def is_sampled(key_fn: Callable[[Any], Any], seed: int, limit: int, item: Any) -> bool:
    """Whether an item belongs to a sample of ``limit`` in ``HASHES``, going by its key."""
    return stable_hash((seed, key_fn(item))) < limit


def has_stable_key(key_fn: Callable[[Any], Any], item: Any) -> bool:
    """True; raises what the key function raises, or that the key has no stable hash."""
    stable_hash(key_fn(item))
    return True


def can_be_added(
    operation: AggregateOperation[Any, Any, Any],
    ordinal: int,
    key_fn: Callable[[Any], Any] | None,
    item: Any,
) -> bool:
    """True; raises what comes of adding the item to a new accumulator, or of its key."""
    if key_fn is not None:
        has_stable_key(key_fn, item)
    operation.accumulate[ordinal](operation.create(), item)
    return True


def with_key_of_item(
    key_fn: Callable[[Any], Any], fn: Callable[[Any, Any], Awaitable[R]]
) -> Callable[[Any], Awaitable[R]]:
    """A coroutine function of an item that is one of the key and the item."""

    @wraps(fn)
    def of_item(item: Any) -> Awaitable[R]:
        return fn(key_fn(item), item)

    return of_item


def with_keys_of_items(key_fn: Callable[[Any], Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a list, and maybe a service before it, that is one of keys and the list."""

    def keyed(given: Sequence[Any]) -> list[Any]:
        *service, items = given
        return [*service, [key_fn(item) for item in items], items]

    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def of_items_later(*given: Any) -> Any:
            return await fn(*keyed(given))

        return of_items_later

    @wraps(fn)
    def of_items(*given: Any) -> Any:
        return fn(*keyed(given))

    return of_items


def with_service_and_key(
    key_fn: Callable[[Any], Any], fn: Callable[[Any, Any, Any], Awaitable[R]]
) -> Callable[[Any, Any], Awaitable[R]]:
    """The same with a service before them."""

    @wraps(fn)
    def of_service_and_item(service: Any, item: Any) -> Awaitable[R]:
        return fn(service, key_fn(item), item)

    return of_service_and_item
