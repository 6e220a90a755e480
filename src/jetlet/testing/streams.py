"""Scripted streams: a test says what comes when, and waits for what comes out.

    stream = scripted_stream([Timed(0, "a"), Timed(10, "b"), pause(500), Timed(700, "c"), END])
    stage = pipeline.read_from(stream).with_native_timestamps(allowed_lag=0)

A script is a list of items, bare or :class:`Timed`, of pauses and, if the stream is to end, of
:data:`END`. Each script is a partition of the stream. On an engine with a
:class:`~jetlet.testing.VirtualClock` pauses take no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from jetlet.core.clock import Clock
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource
from jetlet.pipeline.transforms.timestamps import DEFAULT_IDLE_TIMEOUT

LOOK_AGAIN = 0.002
"""Seconds between two looks at a sink."""


class Timed(NamedTuple):
    """An item of a script with its native timestamp."""

    timestamp: int
    item: Any


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing comes for so long; see :func:`pause`."""

    ms: int


@dataclass(frozen=True, slots=True)
class End:
    """The partition has ended; see :data:`END`."""


END: Final = End()
"""The last step of a script: nobody waits for the partition any more. A stream ends when all of its
partitions have; others never do."""


def pause(ms: int = 0) -> Pause:
    """A step in which nothing comes for ``ms``. Items before and after it come in batches apart."""
    if type(ms) is not int or ms < 0:
        raise InvalidArgumentError(f"pause({ms!r}): write a number of milliseconds")
    return Pause(ms)


def idle(timeout: int = DEFAULT_IDLE_TIMEOUT) -> Pause:
    """A pause after which the partition is not waited for, if ``timeout`` is its idle timeout."""
    return Pause(2 * timeout)


def scripted_stream(*scripts: Sequence[Any], name: str = "scripted-stream") -> ScriptedStream:
    """A stream that follows a script; with several, one partition follows each.

    Items that stand together come together. A script whose items are all :class:`Timed` has native
    timestamps; ``with_timestamps`` sees the items without them.
    """
    if not scripts or any(not isinstance(script, list | tuple) for script in scripts):
        raise InvalidArgumentError(
            "scripted_stream takes a list of steps for each partition: write "
            "scripted_stream([1, 2, pause(100), 3])"
        )
    return ScriptedStream([_checked(script) for script in scripts], name)


def _checked(script: Sequence[Any]) -> tuple[Any, ...]:
    steps = tuple(script)
    if any(isinstance(step, End) for step in steps[:-1]):
        raise InvalidArgumentError("scripted_stream: END is the last step of a script")
    if len({isinstance(step, Timed) for step in steps if _is_item(step)}) > 1:
        raise InvalidArgumentError(
            "scripted_stream: write Timed(timestamp, item) for all items of a script, or for none"
        )
    return steps


def _is_item(step: Any) -> bool:
    return not isinstance(step, Pause | End)


class ScriptedStream(StreamSource[Any]):
    """See :func:`scripted_stream`. It can be replayed."""

    is_replayable = True

    def __init__(self, scripts: Sequence[tuple[Any, ...]], name: str) -> None:
        self.name = name
        self.preferred_local_parallelism = len(scripts)
        self.has_native_timestamps = all(
            isinstance(step, Timed) for script in scripts for step in script if _is_item(step)
        )
        self._scripts = scripts

    def partitions(self) -> Sequence[Any]:
        return self._scripts

    def open(self, partitions: Sequence[Any], context: ProcessorContext) -> StreamReader[Any]:
        return ScriptReader(partitions, context.clock)


class ScriptReader(StreamReader[Any]):
    """Follows the scripts of its partitions, each at its own pace, from when it was made."""

    def __init__(self, scripts: Sequence[tuple[Any, ...]], clock: Clock) -> None:
        self._scripts = scripts
        self._clock = clock
        self._wake_at: Callable[[int], None] = getattr(clock, "wake_at", lambda time_ms: None)
        self._start = clock.time_ms()
        self._positions = [0] * len(scripts)
        self._due = [0] * len(scripts)
        """When the next step of each partition is due, in ms from the start."""
        self._ended: set[int] = set()
        """Partitions of which it was said that they have ended."""

    def poll(self, limit: int) -> Sequence[Polled[Any]] | None:
        now = self._clock.time_ms() - self._start
        polled = []
        for partition in range(len(self._scripts)):
            steps = self._take_due(partition, now, limit)
            if steps and isinstance(steps[0], Timed):
                items = [step.item for step in steps]
                polled.append(Polled(partition, items, [step.timestamp for step in steps]))
            elif steps:
                polled.append(Polled(partition, steps))
        ended = {index for index in range(len(self._scripts)) if self._has_ended(index)}
        if len(ended) == len(self._scripts):
            return polled or None
        polled += [Polled(partition, (), is_end=True) for partition in ended - self._ended]
        self._ended = ended
        return polled

    def _take_due(self, partition: int, now: int, limit: int) -> Sequence[Any]:
        """The items up to the next pause, if it is time for them."""
        script, start = self._scripts[partition], self._positions[partition]
        while start < len(script) and isinstance(script[start], Pause):
            self._due[partition] += script[start].ms
            start += 1
        end = start
        if self._due[partition] <= now:
            while end < min(len(script), start + limit) and _is_item(script[end]):
                end += 1
        else:
            self._wake_at(self._start + self._due[partition])
        self._positions[partition] = end
        return script[start:end]

    def _has_ended(self, partition: int) -> bool:
        script, position = self._scripts[partition], self._positions[partition]
        is_due = self._due[partition] <= self._clock.time_ms() - self._start
        return is_due and position < len(script) and isinstance(script[position], End)

    def save(self) -> Sequence[Any]:
        now = self._clock.time_ms() - self._start
        return [
            (position, due - now) for position, due in zip(self._positions, self._due, strict=True)
        ]

    def restore(self, positions: Sequence[Any]) -> None:
        for partition, saved in enumerate(positions):
            if saved is not None:
                self._positions[partition], self._due[partition] = saved


class Collecting(Protocol):
    """A sink that keeps items, such as ``sinks.collect()``."""

    items: list[Any]


class Joinable(Protocol):
    """A job."""

    def join(self, timeout: float | None = None) -> None: ...


def assert_collected_eventually(
    job: Joinable,
    sink: Collecting,
    expected: Sequence[Any] | Callable[[list[Any]], object],
    timeout: float = 10.0,
) -> list[Any]:
    """Wait until a running job has collected what is expected; returns the items.

    ``expected`` are the items, in any order, or a function of the items that returns true, or that
    raises ``AssertionError`` for as long as it is not content. The job goes on. If it fails, its
    error is raised.

    :param timeout: how long to wait at the most, in seconds of real time.
    """
    deadline = time.monotonic() + timeout
    has_ended = False
    while True:
        items = list(sink.items)
        complaint = _complaint(items, expected)
        if not complaint:
            return items
        is_unexpected = complaint.startswith(_UNEXPECTED)
        if has_ended or is_unexpected or time.monotonic() > deadline:
            when = f"after {timeout} s"
            if has_ended or is_unexpected:
                when = "when the job had ended" if has_ended else "while it ran"
            raise AssertionError(f"{complaint} {when}; collected were {_shortened(items)}")
        try:
            job.join(LOOK_AGAIN)
            has_ended = True
        except TimeoutError:
            continue


_UNEXPECTED = "unexpected"


def _complaint(items: list[Any], expected: Sequence[Any] | Callable[[list[Any]], object]) -> str:
    """What is wrong with the items; empty if nothing is."""
    if callable(expected):
        try:
            verdict = expected(items)
        except AssertionError as error:
            return str(error) or "the assertion fails"
        return "" if verdict is None or verdict else "the predicate is not true"
    missing = list(expected)
    for item in items:
        try:
            missing.remove(item)
        except ValueError:
            return f"{_UNEXPECTED} is {_shortened(item)}"
    return f"missing are {_shortened(missing)}" if missing else ""


def _shortened(value: Any, limit: int = 500) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
