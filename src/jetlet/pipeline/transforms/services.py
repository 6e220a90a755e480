"""Transforms that ask somebody else about each item: a service, or a coroutine function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.pipeline.transforms.base import KeyFn, Kind, Transform

RetryOn = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], object]
"""Which failures are worth another attempt: types of errors, or a function of the error."""


@dataclass(eq=False, kw_only=True)
class ServiceTransform(Transform):
    """A user function that is given a service beside the item."""

    kind: Kind
    fn: Callable[[Any, Any], Any]
    service: ServiceFactory[Any]


@dataclass(eq=False, kw_only=True)
class AsyncTransform(Transform):
    """A coroutine function per item, or per service and item."""

    fn: Callable[..., Any]
    service: ServiceFactory[Any] | None
    is_flat: bool
    max_concurrency: int
    is_ordered: bool
    timeout: float | None = None
    retries: int = 0
    backoff: float = 0.1
    retry_on: RetryOn = Exception
    key_fn: KeyFn | None = None
    """Items come by this key, of which one is dealt with at a time."""

    def keeps_order(self, ordinal: int) -> bool:
        return self.key_fn is None

    @property
    def checked_keys(self) -> Sequence[KeyFn | None]:
        return (self.key_fn,)

    @property
    def reorders(self) -> bool:
        return not self.is_ordered
