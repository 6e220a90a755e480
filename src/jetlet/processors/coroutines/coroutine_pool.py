"""CoroutinePool: a limited number of coroutines at a time, fed from another thread.

What ``map_async`` and ``flat_map_async`` run on: :class:`AsyncOptions` says how an item is dealt
with, a :class:`Call` is one item on its way, the pool runs calls on an event loop and says when
some are done.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from jetlet.core.outbox import Ordinals
from jetlet.core.traits import Repeats
from jetlet.errors import InvalidArgumentError
from jetlet.execution.coroutine_crew import MAX_STREAK, CoroutineCrew
from jetlet.pipeline.transforms.services import RetryOn
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.batched import NO_RESULTS

__all__ = [
    "DEFAULT_CONCURRENCY",
    "MAX_HELD",
    "AsyncOptions",
    "Call",
    "CoroutinePool",
    "FlatCall",
    "NotAwaitableError",
    "check_async_function",
    "default_jitter",
]

logger = logging.getLogger("jetlet.execution")

DEFAULT_CONCURRENCY: Final = 256
MAX_HELD: Final = 1024
"""Results of an item that wait to be taken, at the most; it gives more when they have been."""

Attempt = Callable[[Any], Awaitable[Any]]
_AT_HAND: Final = (list, tuple, deque, set, frozenset, dict, str)
"""Of these all results are there at once."""


class NotAwaitableError(InvalidArgumentError):
    """The function gave a plain value; that is no matter of a single item, so the job fails."""


def _is_fatal(error: BaseException) -> bool:
    """True if it ends the job whatever the error policy is."""
    is_of_item = isinstance(error, Exception | asyncio.CancelledError)
    return not is_of_item or isinstance(error, NotAwaitableError)


def default_jitter() -> float:
    """A random number from 0 up to 1."""
    return random.random()


@dataclass(frozen=True, slots=True)
class AsyncOptions:
    """How a stage calls its coroutine function."""

    fn: Callable[[Any], Any]
    policy: ErrorPolicy
    max_concurrency: int = DEFAULT_CONCURRENCY
    ordered: bool = True
    timeout: float | None = None
    retries: int = 0
    backoff: float = 0.1
    retry_on: RetryOn = Exception
    flat: bool = False
    max_batch: int | None = None
    """Lists of so many items at the most are handed to the function, if it is to get lists."""
    max_wait: float = 0.0
    """Seconds that the first item of a list waits for others at the most."""
    key_fn: Callable[[Any], Any] | None = None
    """Of items with equal keys one is dealt with at a time, in their order."""
    data_ordinals: Ordinals = None
    jitter: Callable[[], float] = default_jitter

    @property
    def method(self) -> str:
        """What the user wrote."""
        if self.max_batch is not None:
            return "map_batched"
        return "flat_map_async" if self.flat else "map_async"

    @property
    def repeats(self) -> Repeats:
        """What is certain to come out if it is done again."""
        if self.max_batch is not None:
            return Repeats.NO  # which items come together depends on timing
        return Repeats.BOTH if self.ordered else Repeats.ITEMS

    def __post_init__(self) -> None:
        what = self.method
        check_async_function(what, self.fn, flat=self.flat)
        if type(self.max_concurrency) is not int or self.max_concurrency < 1:
            raise InvalidArgumentError(
                f"{what}: max_concurrency={self.max_concurrency!r}: write a whole number of at "
                "least 1"
            )
        if self.timeout is not None and not self.timeout > 0:
            raise InvalidArgumentError(
                f"{what}: timeout={self.timeout!r}: write a number of seconds above 0, or None "
                "for no timeout"
            )
        if type(self.retries) is not int or self.retries < 0:
            raise InvalidArgumentError(
                f"{what}: retries={self.retries!r}: write how often to try again, 0 for never"
            )
        if not self.backoff >= 0:
            raise InvalidArgumentError(
                f"{what}: backoff={self.backoff!r}: write the first pause in seconds, 0 for none"
            )


class Call:
    """An item on its way through the event loop.

    Made by the worker, then filled in by the loop, which sets ``is_done`` last.
    """

    __slots__ = ("error", "is_done", "item", "result")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False


class FlatCall(Call):
    """An item that may have many results.

    Those that come one by one lie in ``result``, a deque, from which the worker takes them.
    """

    __slots__ = ("has_begun", "is_announced", "is_last_attempt", "room", "scope")

    def __init__(self, item: Any) -> None:
        super().__init__(item)
        self.has_begun = False
        """The worker has taken some of its results."""
        self.is_announced = False
        """The worker has been told that there are some, and has not come for them yet."""
        self.is_last_attempt = False
        """It is not tried again, so that its results can be taken as they come."""
        self.room: asyncio.Future[None] | None = None
        """What it waits for when too many results wait."""
        self.scope: asyncio.Timeout | None = None
        """How long its attempt may take."""

    async def wait_for_room(self) -> None:
        """Wait until the worker has taken results; that does not count for the timeout."""
        loop, scope = asyncio.get_running_loop(), self.scope
        began = loop.time()
        self.room = room = loop.create_future()
        if len(self.result) < MAX_HELD:  # the worker has taken some just now
            return
        deadline = None if scope is None or scope.expired() else scope.when()
        if scope is None or deadline is None:
            await room
            return
        scope.reschedule(None)
        await room
        scope.reschedule(deadline + loop.time() - began)

    def take_some(self, loop: asyncio.AbstractEventLoop) -> list[Any]:
        """The results that have come so far of one that is not done; for the worker."""
        self.is_announced = False  # before looking: of what comes after that there is word again
        results = self.result
        some: list[Any] = []
        if results:
            self.has_begun = True
            try:
                while len(some) < MAX_HELD:
                    some.append(results.popleft())
            except IndexError:
                pass
            room, self.room = self.room, None
            if room is not None:
                loop.call_soon_threadsafe(_open, room)
        return some


def _open(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


class CoroutinePool(CoroutineCrew[Call]):
    """Runs calls on the event loop, a limited number at a time.

    ``submit`` and ``close`` are for the processor; everything else happens on the loop's thread.
    """

    def __init__(
        self, options: AsyncOptions, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]
    ) -> None:
        super().__init__(options.max_concurrency, loop)
        self.finished: deque[Call] = deque()
        """Unordered mode: calls that are done, for the processor to take."""
        self.begun: deque[FlatCall] = deque()
        """Unordered mode: calls that have results, but are not done."""
        self.failed: Call | None = None
        """The first call whose failure ends the job."""
        self._options = options
        self._attempt = make_attempt(options, self._announce)
        self._wake = wake
        self._is_notifying = False

    async def _work(self) -> None:
        todo = self._todo
        attempt = self._attempt
        finished = None if self._options.ordered else self.finished
        is_flat = self._options.flat
        call_soon = self._loop.call_soon
        task = asyncio.current_task()
        assert task is not None
        streak = 0
        while todo:
            call = todo.popleft()
            try:
                call.result = await attempt(call if is_flat else call.item)
            except asyncio.CancelledError as error:
                if self._is_closing:
                    raise
                # The item was cancelled by the user's code, not this task by us.
                while task.cancelling():
                    task.uncancel()
                self._note_failure(call, error)
            except GeneratorExit as error:
                # It may be that this task is given up, and then it must not wait for anything.
                self._note_failure(call, error)
                if not self._loop.is_closed():
                    call_soon(self._notify)
                return
            except BaseException as error:
                self._note_failure(call, error)
            call.is_done = True
            if finished is not None:
                finished.append(call)
            if not self._is_notifying:
                # At the next turn of the loop: once for all that ends in this one.
                self._is_notifying = True
                call_soon(self._notify)
                streak = 0
            elif streak < MAX_STREAK:
                streak += 1
            else:
                # It may be that the function never waits. Then nobody else would get a turn.
                streak = 0
                await asyncio.sleep(0)

    def _note_failure(self, call: Call, error: BaseException) -> None:
        call.error = error
        if self.failed is None and (self._options.policy.fails or _is_fatal(error)):
            self.failed = call

    def _announce(self, call: FlatCall) -> None:
        """A call has results that can be taken, although it is not done."""
        call.is_announced = True
        if not self._options.ordered:
            self.begun.append(call)
        if not self._is_notifying:
            self._is_notifying = True
            self._loop.call_soon(self._notify)

    def _notify(self) -> None:
        self._is_notifying = False
        self._wake()


# --- The user's function ----------------------------------------------------------------------


def make_attempt(options: AsyncOptions, announce: Callable[[FlatCall], None]) -> Attempt:
    """The coroutine function that deals with one item: the user's, with what was asked for.

    It takes the item, or one that is ``flat`` the call of it; ``announce`` is told of results that
    can be taken before it has ended.
    """
    if options.max_batch is not None:
        attempt = _listed(options)
    else:
        attempt = _flattened(options, announce) if options.flat else _checked(options)
    if options.timeout is not None:
        attempt = _with_timeout(attempt, options.timeout, is_flat=options.flat)
    if options.retries:
        attempt = _with_retries(attempt, options)
    if options.key_fn is not None:
        attempt = _in_turn(attempt, options.key_fn, is_flat=options.flat)
    return attempt if options.max_batch is None else _in_pieces(attempt, options.policy)


def _in_turn(attempt: Attempt, key_fn: Callable[[Any], Any], *, is_flat: bool) -> Attempt:
    """Begin with an item when the one before it that has the same key has come to its end.

    The pool begins with items in their order, and nothing is awaited before an item has its place.
    """
    last: dict[Any, asyncio.Future[None]] = {}

    async def in_turn(item: Any) -> Any:
        key = key_fn(item.item if is_flat else item)
        before = last.get(key)
        mine = last[key] = asyncio.get_running_loop().create_future()
        try:
            if before is not None:
                await asyncio.shield(before)
            return await attempt(item)
        finally:
            mine.set_result(None)
            if last[key] is mine:
                del last[key]

    return in_turn


def _checked(options: AsyncOptions) -> Attempt:
    fn: Attempt = options.fn
    if inspect.iscoroutinefunction(fn):
        # The usual case costs nothing per item.
        return fn

    async def attempt(item: Any) -> Any:
        produced: Any = fn(item)
        if not inspect.isawaitable(produced):
            raise _not_awaitable(options, produced)
        return await produced

    return attempt


def _flattened(options: AsyncOptions, announce: Callable[[FlatCall], None]) -> Attempt:
    fn = options.fn
    is_repeated = options.retries > 0

    async def attempt(call: FlatCall) -> Any:
        produced = fn(call.item)
        if inspect.isawaitable(produced):
            produced = await produced
        elif not hasattr(produced, "__aiter__"):
            raise _not_awaitable(options, produced)
        if isinstance(produced, _AT_HAND):
            return produced
        if not hasattr(produced, "__aiter__"):
            produced = _each(produced)
        # If it may be tried again, its results are kept back as long as there is room for them.
        results: deque[Any] = deque()
        if not is_repeated:
            call.is_last_attempt = True
        if call.is_last_attempt:
            call.result = results
        if hasattr(produced, "aclose"):
            async with aclosing(produced):
                await gather(call, results, produced)
        else:
            await gather(call, results, produced)
        return results

    async def gather(call: FlatCall, results: deque[Any], produced: AsyncIterator[Any]) -> None:
        async for result in produced:
            results.append(result)
            if call.is_last_attempt and not call.is_announced:
                announce(call)
            if len(results) >= MAX_HELD:
                if not call.is_last_attempt:
                    call.is_last_attempt = True
                    call.result = results
                    announce(call)
                await call.wait_for_room()

    return attempt


async def _each(results: Iterable[Any]) -> AsyncIterator[Any]:
    for result in results:
        yield result


def _listed(options: AsyncOptions) -> Attempt:
    fn = options.fn

    async def attempt(items: list[Any]) -> list[Any]:
        results = await fn(list(items))  # a copy: what the function does to it is its own business
        if results is None:
            raise TypeError(NO_RESULTS)
        return list(results)

    return attempt


def _in_pieces(attempt: Attempt, policy: ErrorPolicy) -> Attempt:
    """Gives the results, and what it failed with alone, if the job is to go on then."""

    async def in_pieces(items: list[Any]) -> tuple[list[Any], list[tuple[Any, Exception]]]:
        try:
            return await attempt(items), []
        except Exception as error:
            if policy.fails:
                raise
            if len(items) == 1:
                return [], [(items[0], error)]
        half = len(items) // 2
        first, second = await in_pieces(items[:half]), await in_pieces(items[half:])
        return first[0] + second[0], first[1] + second[1]

    return in_pieces


def _with_timeout(attempt: Attempt, timeout: float, *, is_flat: bool) -> Attempt:
    async def timed(thing: Any) -> Any:
        scope = asyncio.timeout(timeout)
        if is_flat:
            thing.scope = scope
        try:
            async with scope:
                return await attempt(thing)
        except TimeoutError:
            if scope.expired():
                raise TimeoutError(f"no result within {timeout:g} s") from None
            raise

    return timed


def _retry_test(retry_on: RetryOn) -> Callable[[BaseException], object]:
    if isinstance(retry_on, type) and issubclass(Exception, retry_on):
        return lambda error: True  # cancelled by the user's code counts as failed
    if isinstance(retry_on, type | tuple):
        return lambda error: isinstance(error, retry_on)
    return retry_on


def _with_retries(attempt: Attempt, options: AsyncOptions) -> Attempt:
    is_worth_it = _retry_test(options.retry_on)

    async def repeated(thing: Any) -> Any:
        pause = options.backoff
        for _ in range(options.retries):
            try:
                return await attempt(thing)
            except NotAwaitableError:
                raise
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                is_ours = task is not None and task.cancelling()
                if is_ours or _is_last(thing) or not is_worth_it(error):
                    raise
            except Exception as error:
                if _is_last(thing) or not is_worth_it(error):
                    raise
                logger.debug("%s: trying again after %r", options.policy.step, error)
            # Between a half and the whole of it, so that those who failed together do not all
            # come back together.
            await asyncio.sleep(pause * (0.5 + options.jitter() / 2))
            pause *= 2
        if options.flat:
            thing.is_last_attempt = True
        return await attempt(thing)

    def _is_last(thing: Any) -> bool:
        return options.flat and thing.is_last_attempt

    return repeated


def _not_awaitable(options: AsyncOptions, produced: Any) -> NotAwaitableError:
    name = _name(options.fn)
    plain = "flat_map" if options.flat else "map"
    return NotAwaitableError(
        f"{options.method}: {name} returned {type(produced).__name__!r}, which cannot be awaited: "
        f"write `async def {name}(item): ...`, or {plain}({name}) for a plain function"
    )


def check_async_function(what: str, fn: Any, *, flat: bool = False) -> None:
    """Refuse a function that is plainly not a coroutine function.

    What cannot be told in advance is accepted, and checked when it is called: a lambda, a callable
    object, a function whose return annotation is an awaitable.
    """
    name = _name(fn)
    if not callable(fn):
        raise InvalidArgumentError(f"{what}({fn!r}): write a coroutine function: `async def`")
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    if inspect.isasyncgenfunction(inner):
        if not flat:
            raise InvalidArgumentError(
                f"{what}({name}): it yields any number of results: write flat_map_async({name})"
            )
        return
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__):
        return
    if inspect.isgeneratorfunction(inner) or inspect.isbuiltin(inner) or inspect.isclass(inner):
        is_plain = not hasattr(inner, "__await__")
    else:
        is_plain = (
            (inspect.isfunction(inner) or inspect.ismethod(inner))
            and inner.__name__ != "<lambda>"
            and not _promises_awaitable(inner)
        )
    if is_plain:
        plain = "flat_map" if flat else "map"
        raise InvalidArgumentError(
            f"{what}({name}): it is not a coroutine function: write `async def {name}(item): ...`, "
            f"or {plain}({name}) for a plain function"
        )


def _promises_awaitable(fn: Any) -> bool:
    annotation = getattr(fn, "__annotations__", {}).get("return", "")
    return re.search(r"Awaitable|Coroutine|Future|Task|Async", str(annotation)) is not None


def _name(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", None) or type(fn).__name__
