"""KeyedProcess: what a user says is done for each item of a key, and when a timer of it is due.

::

    class Silence(KeyedProcess[Seen, Beat, str]):
        def create(self) -> Seen:
            return Seen()

        def on_item(self, ctx, state, item):
            ctx.set_timer("silence", ctx.time + 30_000)

        def on_timer(self, ctx, state, timer):
            ctx.emit(f"nothing from {ctx.key} for 30 s")


    beats.grouping_key(lambda beat: beat.host).process(Silence)
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.checks import check_function

__all__ = ["KeyedProcess", "ProcessContext", "Timer", "keyed_process"]

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class Timer(NamedTuple):
    """A timer that is due."""

    name: str
    time: int
    """What it was set to, in milliseconds."""
    is_processing_time: bool = False


class ProcessContext(ABC, Generic[R_contra]):
    """What a :class:`KeyedProcess` can do while it is called; of no use afterwards."""

    key: Any
    """The key that it is called for."""

    @property
    @abstractmethod
    def time(self) -> int:
        """When it happens, in event time: that of the item, or of the timer.

        Where items have no timestamps it is refused.
        """

    @property
    @abstractmethod
    def now(self) -> int:
        """Processing time: milliseconds since 1970, by the clock of whoever runs this."""

    @abstractmethod
    def emit(self, item: R_contra) -> None:
        """Hand an item on, at :attr:`time`."""

    @abstractmethod
    def set_timer(self, name: str, at: int, *, processing_time: bool = False) -> None:
        """Have ``on_timer`` called for this key at that time, once.

        A key has one timer of each name: setting it again moves it. ``at`` is in milliseconds: an
        event time, which has come when the watermark has; or, if you say so, a processing time.
        """

    @abstractmethod
    def cancel_timer(self, name: str) -> None:
        """Forget a timer of this key, if it is set."""

    @abstractmethod
    def drop_state(self) -> None:
        """Forget the state of this key and all of its timers; the next item begins anew."""


class KeyedProcess(Generic[S, T, R]):
    """State per key that acts when items come, and when none do: subclass it.

    ``S`` is the type of the state, ``T`` that of the items, ``R`` that of what is emitted. What an
    instance itself holds is the same for all keys and is not saved: it belongs into the state.
    """

    schema_version: int = 1
    """Raise it when the state changes its form, and define :meth:`upgrade`."""

    def create(self) -> S:
        """A new state, made when an item of a key comes that has none; none unless overridden."""
        return None  # type: ignore[return-value]

    def on_item(self, ctx: ProcessContext[R], state: S, item: T) -> None:
        """An item has come. Change the state in place."""
        raise NotImplementedError(f"{type(self).__name__} must override on_item")

    def on_timer(self, ctx: ProcessContext[R], state: S, timer: Timer) -> None:
        """A timer is due; it is not set any more."""

    def on_end(self, ctx: ProcessContext[R], state: S) -> None:
        """The input has ended, and all timers in event time were due: a last word for a key."""

    def upgrade(self, old_version: int, state: Any) -> S:
        """A state that was saved with ``schema_version = old_version``, as it is now."""
        raise NotImplementedError(
            f"define upgrade(old_version, state) of {type(self).__name__}, which returns the state "
            f"as it is now: it was saved with schema_version {old_version}, and now it is "
            f"{self.schema_version}"
        )


@dataclass(frozen=True)
class FunctionProcess(KeyedProcess[Any, Any, Any]):
    """One that is made of functions."""

    item_fn: Callable[[Any, Any, Any], None]
    create_fn: Callable[[], Any] | None
    timer_fn: Callable[[Any, Any, Any], None] | None
    end_fn: Callable[[Any, Any], None] | None

    @property
    def schema_version(self) -> int:  # type: ignore[override]
        return int(getattr(self.create_fn, "schema_version", 1))

    def create(self) -> Any:
        return None if self.create_fn is None else self.create_fn()

    def on_item(self, ctx: Any, state: Any, item: Any) -> None:
        self.item_fn(ctx, state, item)

    def on_timer(self, ctx: Any, state: Any, timer: Timer) -> None:
        if self.timer_fn is not None:
            self.timer_fn(ctx, state, timer)

    def on_end(self, ctx: Any, state: Any) -> None:
        if self.end_fn is not None:
            self.end_fn(ctx, state)

    def upgrade(self, old_version: int, state: Any) -> Any:
        upgrade = getattr(self.create_fn, "upgrade", None)
        return (
            super().upgrade(old_version, state) if upgrade is None else upgrade(old_version, state)
        )


def keyed_process(
    process: Any,
    create: Callable[[], Any] | None,
    on_timer: Callable[..., Any] | None,
    on_end: Callable[..., Any] | None,
) -> Callable[[], KeyedProcess[Any, Any, Any]]:
    """What makes the process, in either way of writing it."""
    named = [("create", create), ("on_timer", on_timer), ("on_end", on_end)]
    given = [(name, fn) for name, fn in named if fn is not None]
    is_class = isinstance(process, type)
    if isinstance(process, KeyedProcess) or (is_class and issubclass(process, KeyedProcess)):
        if given:
            raise InvalidArgumentError(
                f"process: a KeyedProcess has a method for it: leave out {given[0][0]}"
            )
        kind = process if is_class else type(process)
        if kind.on_item is KeyedProcess.on_item:
            raise InvalidArgumentError(
                f"process: {kind.__name__} has no on_item: write def on_item(self, ctx, state, "
                f"item) in it"
            )
        for name in ("on_item", "on_timer", "on_end"):
            _check_calls(f"{kind.__name__}.{name}", getattr(kind, name))
        if is_class:
            _check_can_be_made(process)
        make: Callable[[], KeyedProcess[Any, Any, Any]] = process if is_class else lambda: process
        return make
    if is_class:
        raise InvalidArgumentError(
            f"process takes a subclass of KeyedProcess: write class {process.__name__}"
            f"(jetlet.KeyedProcess), with on_item(self, ctx, state, item)"
        )
    example = "lambda ctx, state, item: ..."
    what = "a KeyedProcess, or a function of context, state and item"
    check_function("process", process, what, example)
    for name, fn in given:
        check_function("process", fn, f"a function as {name}", f"{example}, {name}=...")
    for name, fn in [("the function", process), *given]:
        _check_calls(name, fn)
    made = FunctionProcess(process, create, on_timer, on_end)
    return lambda: made


def _check_calls(what: str, fn: Callable[..., Any]) -> None:
    """Refuse what would return something that nobody takes."""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidArgumentError(
            f"process: {what} yields, and nobody takes what it yields: write ctx.emit(item)"
        )
    if inspect.iscoroutinefunction(fn):
        raise InvalidArgumentError(
            f"process: {what} is a coroutine function: await what it needs in a stage before it, "
            f"with .map_async(...)"
        )


def _check_can_be_made(kind: type) -> None:
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise InvalidArgumentError(
            f"process: {kind.__name__} cannot be made without arguments, {error}: give an "
            f"instance, .process({kind.__name__}(...))"
        ) from None
