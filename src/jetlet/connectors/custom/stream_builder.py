"""A stream from a few functions, for systems that have no connector."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from time import perf_counter_ns
from typing import Any, Final, Generic, Literal, NamedTuple, TypedDict, TypeVar, Unpack, overload

from jetlet.connectors.custom.builders import LOOK_AFTER, TURN_NS
from jetlet.core.arguments import (
    check_callable,
    check_count,
    check_functions,
    check_name,
    shortened,
)
from jetlet.core.clock import Clock
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError, ProcessorContractError
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

S = TypeVar("S")
T = TypeVar("T")

POLL_TIMEOUT: Final = 0.1
"""Seconds that a poll waits for a function that blocks."""
CLOSE_TIMEOUT: Final = 0.05
"""Seconds that closing waits for one; it then ends by itself when it returns."""
PAUSE: Final = 0.001
"""Seconds until a function that blocks, but came back with nothing, is called again."""
FIRST_ROOM: Final = 32
"""Items that a function is asked for at first: more if these come fast."""
WAITING_TURN_NS: Final = 100_000_000
"""What a call of a function that waits should take, if less would do."""
MAX_WAITING: Final = 4096
"""Items that functions may be ahead of the polls."""


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What ``create`` is told about the partition that it makes the state of."""

    partition: Any
    """Its number, or the one of the list that was given as ``partitions``."""
    clock: Clock
    """Ask it for the time, and tests can say what time it is."""
    logger: logging.Logger


class StreamBuffer(Generic[T]):
    """Takes what a ``fill`` function has found. It should be about :attr:`room` items at most."""

    __slots__ = ("_has_timestamps", "_name", "is_closed", "items", "room", "timestamps")

    def __init__(self, name: str, has_timestamps: bool, room: int) -> None:
        self._name = name
        self._has_timestamps = has_timestamps
        self.items: list[T] = []
        self.timestamps: list[int] = []
        self.is_closed = False
        self.room = room
        """How many items the engine has room for now."""

    def add(self, item: T, timestamp: int | None = None) -> None:
        """Add an item; its timestamp too, in milliseconds since 1970, if the stream has them."""
        if (timestamp is not None) is not self._has_timestamps:
            raise self._misuse("add(item)", "add(item, timestamp)")
        self.items.append(item)
        if timestamp is not None:
            self.timestamps.append(timestamp)

    def add_all(self, items: Sequence[T], timestamps: Sequence[int] | None = None) -> None:
        """Add several items, with a timestamp for each if the stream has them."""
        if (timestamps is not None) is not self._has_timestamps:
            raise self._misuse("add_all(items)", "add_all(items, timestamps)")
        if timestamps is not None:
            if len(timestamps) != len(items):
                raise ProcessorContractError(
                    f"{self._name}: {len(timestamps)} timestamps for {len(items)} items; write "
                    "one for each"
                )
            self.timestamps += timestamps
        self.items += items

    def close(self) -> None:
        """The stream has ended; what was added before is its end."""
        self.is_closed = True

    def __len__(self) -> int:
        return len(self.items)

    def _misuse(self, without: str, with_timestamps: str) -> ProcessorContractError:
        if self._has_timestamps:
            return ProcessorContractError(
                f"{self._name} was made with timestamps=True: write buffer.{with_timestamps}"
            )
        return ProcessorContractError(
            f"{self._name} was made without timestamps: write buffer.{without}, or "
            "sources.stream(..., timestamps=True)"
        )


class StreamOptions(TypedDict, Generic[S], total=False):
    """Options of a stream that do not decide what an item is."""

    partitions: int | Sequence[Any]
    save: Callable[[S], Any] | None
    restore: Callable[[S, Any], object] | None
    destroy: Callable[[S], object] | None
    blocking: bool
    local_parallelism: int | None


class BuiltStreamSource(StreamSource[T], Generic[S, T]):
    """A stream of your own, made of functions that run where it is read.

    ``create(context)`` makes the state of a partition, such as a connection; ``context.partition``
    says which: a number, or one of the list that you give as ``partitions``. Then either

    - ``fill(state, buffer)`` is called again and again. It adds what is new with
      ``buffer.add(item)``, about ``buffer.room`` items at the most, or nothing if nothing is; and
      ends the stream with ``buffer.close()``. Or
    - ``generator(state)`` returns an iterator of the items. It gives ``None`` when there is nothing
      now. If it ends, so does the stream.

    With ``timestamps=True`` each item has one: ``buffer.add(item, timestamp)``, or
    ``yield (item, timestamp)``. ``destroy(state)`` ends a partition, however the job ended.

    A function must not wait for anything, unless you say ``blocking=True``: the functions of each
    partition then have a thread of their own. A job that is cancelled does not wait for them.

    ``save(state)`` returns how far a partition was read, picklable, and ``restore(state, saved)``
    goes on behind that in another run; a stream that has both can be resumed.
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        create: Callable[[StreamContext], S],
        fill: Callable[[S, StreamBuffer[T]], object],
        timestamps: bool = False,
        **options: Unpack[StreamOptions[S]],
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        create: Callable[[StreamContext], S],
        generator: Callable[[S], Iterator[tuple[T, int] | None]],
        timestamps: Literal[True],
        **options: Unpack[StreamOptions[S]],
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        create: Callable[[StreamContext], S],
        generator: Callable[[S], Iterator[T | None]],
        timestamps: Literal[False] = False,
        **options: Unpack[StreamOptions[S]],
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        create: Callable[[StreamContext], S],
        fill: Callable[[S, StreamBuffer[Any]], object] | None = None,
        generator: Callable[[S], Iterator[Any]] | None = None,
        partitions: int | Sequence[Any] = 1,
        timestamps: bool = False,
        save: Callable[[S], Any] | None = None,
        restore: Callable[[S, Any], object] | None = None,
        destroy: Callable[[S], object] | None = None,
        blocking: bool = False,
        local_parallelism: int | None = None,
    ) -> None:
        what = "sources.stream"
        if name is None:
            raise InvalidArgumentError(f"{what}: write a name for the vertex as the first argument")
        self.name = check_name(what, name) or ""
        check_callable(f"{what}: create", create)
        if (fill is None) == (generator is None):
            raise InvalidArgumentError(
                f"{what}: write either fill=function(state, buffer) or generator=function(state)"
            )
        if (save is None) != (restore is None):
            raise InvalidArgumentError(
                f"{what}: write both save=function(state) and restore=function(state, saved), or "
                "neither"
            )
        check_functions(
            what, fill=fill, generator=generator, save=save, restore=restore, destroy=destroy
        )
        given: Any = partitions
        if isinstance(given, int):
            given = range(check_count(f"{what}: partitions", given) or 1)
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            raise InvalidArgumentError(
                f"{what}: partitions={partitions!r}: write a number or a list of partitions"
            )
        self._partitions = list(given)
        self._functions = _Functions(
            self.name, create, fill, generator, save, restore, destroy, timestamps
        )
        self.has_native_timestamps = timestamps
        self.is_replayable = save is not None
        self.is_blocking = blocking
        self.preferred_local_parallelism = (
            check_count(f"{what}: local_parallelism", local_parallelism) or 1
        )

    def partitions(self) -> Sequence[Any]:
        return self._partitions

    def open(self, partitions: Sequence[Any], context: ProcessorContext) -> StreamReader[T]:
        contexts = [
            StreamContext(partition, context.clock, context.logger) for partition in partitions
        ]
        if self.is_blocking:
            return _WaitingReader(self._functions, contexts)
        return _CallingReader(self._functions, contexts)


@dataclass(frozen=True, slots=True)
class _Functions:
    """What the user wrote."""

    name: str
    create: Callable[[StreamContext], Any]
    fill: Callable[[Any, StreamBuffer[Any]], object] | None
    generator: Callable[[Any], Iterator[Any]] | None
    save: Callable[[Any], Any] | None
    restore: Callable[[Any, Any], object] | None
    destroy: Callable[[Any], object] | None
    has_timestamps: bool


class _Partition:
    """The state of one partition, and how to go on with it. Used by one thread."""

    def __init__(self, functions: _Functions, context: StreamContext) -> None:
        self._functions = functions
        self._state = functions.create(context)
        self._iterator: Iterator[Any] | None = None
        self._room = FIRST_ROOM
        self._before = 0
        """How long the last call took that was too long, after which there was less room."""
        self.is_at_end = False

    def read(self, limit: int, *, may_wait: bool = False) -> StreamBuffer[Any]:
        """What is new; from a generator that may wait, one item at the most."""
        functions = self._functions
        has_fill = functions.fill is not None
        room = min(limit, self._room) if has_fill else limit
        buffer = StreamBuffer[Any](functions.name, functions.has_timestamps, room)
        if functions.fill is not None:
            began = perf_counter_ns()
            functions.fill(self._state, buffer)
            if len(buffer) >= room:
                elapsed = perf_counter_ns() - began
                self._adapt(room, elapsed, WAITING_TURN_NS if may_wait else TURN_NS)
        else:
            self._draw(buffer, 1 if may_wait else limit)
        self.is_at_end = buffer.is_closed
        return buffer

    def _adapt(self, room: int, elapsed: int, turn: int) -> None:
        """Have less room after a call that took too long, unless that does not make it shorter."""
        if elapsed <= turn:
            self._room, self._before = max(self._room, 2 * room), 0
        elif not self._before or elapsed < self._before * 3 // 4:
            self._room, self._before = max(1, room // 2), elapsed
        else:  # it is the call that takes long, not the items
            self._room, self._before = 4 * room, 0

    def _draw(self, buffer: StreamBuffer[Any], limit: int) -> None:
        iterator = self._iterator
        if iterator is None:
            assert self._functions.generator is not None
            iterator = self._functions.generator(self._state)
            if not isinstance(iterator, Iterator):
                raise ProcessorContractError(
                    f"{self._functions.name}: generator returned {shortened(iterator)}; write a "
                    "generator function, which yields items"
                )
            self._iterator = iterator
        drawn = 0
        look_at, turn_end = 1, perf_counter_ns() + TURN_NS
        for item in islice(iterator, limit):
            drawn += 1
            if item is None:
                return
            if self._functions.has_timestamps:
                try:
                    item, timestamp = item
                except (TypeError, ValueError):
                    raise ProcessorContractError(
                        f"{self._functions.name} was made with timestamps=True, and its generator "
                        f"gave {shortened(item)}; yield (item, timestamp), or None for nothing"
                    ) from None
                buffer.add(item, timestamp)
            else:
                buffer.items.append(item)
            if drawn == look_at:
                if perf_counter_ns() >= turn_end:
                    return
                look_at += min(drawn, LOOK_AFTER)
        if drawn < limit:
            buffer.close()

    def save(self) -> Any:
        assert self._functions.save is not None
        return self._functions.save(self._state)

    def restore(self, saved: Any) -> None:
        assert self._functions.restore is not None
        self._functions.restore(self._state, saved)

    def destroy(self) -> None:
        try:
            close = getattr(self._iterator, "close", None)
            if close is not None:
                close()
        finally:
            if self._functions.destroy is not None:
                self._functions.destroy(self._state)


class _CallingReader(StreamReader[Any]):
    """Calls functions that do not wait."""

    def __init__(self, functions: _Functions, contexts: Sequence[StreamContext]) -> None:
        self._functions = functions
        self._partitions: list[_Partition] = []
        self._turn = 0
        try:
            for context in contexts:
                self._partitions.append(_Partition(functions, context))
        except BaseException:
            self.close()
            raise

    def poll(self, limit: int) -> Sequence[Polled[Any]] | None:
        partitions = self._partitions
        polled: list[Polled[Any]] = []
        count = len(partitions)
        # Another one comes first each time, so that none has to wait for busier ones.
        self._turn = (self._turn + 1) % count
        for i in range(self._turn, self._turn + count):
            partition = partitions[i % count]
            if limit > 0 and not partition.is_at_end:
                buffer = partition.read(limit)
                if buffer.items or buffer.is_closed:
                    limit -= len(buffer.items)
                    polled.append(_polled(i % count, buffer, self._functions.has_timestamps))
        if all(partition.is_at_end for partition in partitions):
            return polled if any(each.items for each in polled) else None
        return polled

    def save(self) -> Sequence[Any]:
        if self._functions.save is None:
            return super().save()
        return [partition.save() for partition in self._partitions]

    def restore(self, positions: Sequence[Any]) -> None:
        if self._functions.restore is None:
            super().restore(positions)
        for partition, saved in zip(self._partitions, positions, strict=True):
            if saved is not None:
                partition.restore(saved)

    def close(self) -> None:
        partitions, self._partitions = self._partitions, []
        _destroy_all(partitions)


class _Found(NamedTuple):
    """What a partition's thread has found, and where it is behind that."""

    partition: int
    buffer: StreamBuffer[Any]
    position: Any


class _WaitingReader(StreamReader[Any]):
    """Calls functions that wait, each partition's on a thread of its own, from create to destroy.

    So no poll has to wait for them, and a job can end whatever they wait for. A thread that is
    stuck in a function then outlives the job until the function returns.
    """

    def __init__(self, functions: _Functions, contexts: Sequence[StreamContext]) -> None:
        self._functions = functions
        self._contexts = contexts
        self._changed = threading.Condition()
        self._found: deque[_Found] = deque()
        self._waiting = 0
        """Items that were found and not polled."""
        self._running = len(contexts)
        self._ended: set[int] = set()
        """Partitions whose end the engine has been told of."""
        self._error: BaseException | None = None
        self._is_interrupted = False
        self._is_closed = False
        self._positions: list[Any] = [None] * len(contexts)
        self._threads: list[threading.Thread] = []

    def poll(self, limit: int) -> Sequence[Polled[Any]] | None:
        if not self._threads:
            self._start()
        polled: dict[int, StreamBuffer[Any]] = {}
        with self._changed:
            if not self._has_news():
                self._changed.wait_for(self._has_news, POLL_TIMEOUT)
            while self._found and limit > 0:
                partition, buffer, position = self._found.popleft()
                self._positions[partition] = position
                self._waiting -= len(buffer)
                limit -= len(buffer)
                if buffer.is_closed:
                    self._ended.add(partition)
                if partition in polled:  # a generator's items come one by one
                    polled[partition].items += buffer.items
                    polled[partition].timestamps += buffer.timestamps
                    polled[partition].is_closed = buffer.is_closed
                else:
                    polled[partition] = buffer
            self._changed.notify_all()
            has_ended = len(self._ended) == len(self._contexts)
            if any(map(len, polled.values())) or (polled and not has_ended):
                has_timestamps = self._functions.has_timestamps
                return [_polled(i, buffer, has_timestamps) for i, buffer in polled.items()]
            if self._error is not None:
                raise self._error
            return None if not self._running else ()

    def save(self) -> Sequence[Any]:
        return super().save() if self._functions.save is None else list(self._positions)

    def restore(self, positions: Sequence[Any]) -> None:
        if self._functions.restore is None:
            super().restore(positions)
        self._positions = list(positions)

    def interrupt(self) -> None:
        with self._changed:
            self._is_interrupted = True
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = self._is_interrupted = True
            self._changed.notify_all()
            # Wait for all of them together; each is a daemon and ends by itself if it is stuck.
            self._changed.wait_for(lambda: not self._threads or not self._running, CLOSE_TIMEOUT)
            if self._threads and self._running:
                self._contexts[0].logger.warning(
                    "%s: %d function(s) still wait for something; their threads end when they "
                    "return",
                    self._functions.name,
                    self._running,
                )

    def _has_news(self) -> bool:
        return bool(
            self._found or self._is_interrupted or self._error is not None or not self._running
        )

    def _start(self) -> None:
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(i, context, self._positions[i]),
                name=f"jetlet-stream-{self._functions.name}-{i}",
                daemon=True,
            )
            for i, context in enumerate(self._contexts)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, index: int, context: StreamContext, saved: Any) -> None:
        """The life of a partition, on its thread."""
        error: BaseException | None = None
        try:
            partition = _Partition(self._functions, context)
            try:
                if saved is not None:
                    partition.restore(saved)
                self._read_all(index, partition)
            finally:
                partition.destroy()
        except BaseException as caught:  # raised by the next poll
            error = caught
        with self._changed:
            self._running -= 1
            if error is not None and self._is_closed:
                context.logger.error(
                    "%s failed while it ended", self._functions.name, exc_info=error
                )
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def _read_all(self, index: int, partition: _Partition) -> None:
        saves = self._functions.save is not None
        while not (partition.is_at_end or self._is_closed):
            buffer = partition.read(MAX_WAITING, may_wait=True)
            position = partition.save() if saves else None
            with self._changed:
                if buffer.items or buffer.is_closed:
                    self._found.append(_Found(index, buffer, position))
                    self._waiting += len(buffer)
                    self._changed.notify_all()
                else:
                    self._changed.wait(PAUSE)
                self._changed.wait_for(lambda: self._waiting < MAX_WAITING or self._is_closed)


def _polled(partition: int, buffer: StreamBuffer[T], has_timestamps: bool) -> Polled[T]:
    timestamps = buffer.timestamps if has_timestamps else None
    return Polled(partition, buffer.items, timestamps, is_end=buffer.is_closed)


def _destroy_all(partitions: list[_Partition]) -> None:
    """Destroy each, also if one fails; the first error is raised in the end."""
    with ExitStack() as stack:
        for partition in reversed(partitions):
            stack.callback(partition.destroy)
