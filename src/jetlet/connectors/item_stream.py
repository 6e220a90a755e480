"""A stream of items at a steady rate, for trying things out and for measuring them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar, overload

from jetlet.core.arguments import check_functions, check_name
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

T = TypeVar("T")

MAX_RATE = 1_000_000_000


class ItemStreamSource(StreamSource[T]):
    """Items at a steady rate: ``create(sequence, timestamp)``, or the numbers 0, 1, 2, ...

    The timestamp is the time at which an item is due, in milliseconds. What becomes due while the
    pipeline is held up follows at once when it goes on, with the timestamps that it should have
    had: so the delay can be measured.
    """

    has_native_timestamps = True
    is_replayable = True

    @overload
    def __init__(
        self: ItemStreamSource[int],
        per_second: float,
        create: None = None,
        *,
        name: str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self, per_second: float, create: Callable[[int, int], T], *, name: str | None = None
    ) -> None: ...

    def __init__(
        self,
        per_second: float,
        create: Callable[[int, int], Any] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        what = "sources.item_stream"
        rate: Any = per_second
        if (
            isinstance(rate, bool)
            or not isinstance(rate, int | float | Fraction)
            or not math.isfinite(rate)
            or not 0 < rate <= MAX_RATE
        ):
            raise InvalidArgumentError(
                f"{what}({per_second!r}): write how many items there are in a second, such as "
                "1000 or 0.5"
            )
        check_functions(what, create=create)
        # 0.1 means a tenth, not the nearest number that a float can hold.
        self._rate = Fraction(str(per_second)).limit_denominator(1_000_000)
        if not self._rate:
            raise InvalidArgumentError(f"{what}({per_second!r}): write at least 0.000001")
        self._create = create
        self.name = check_name(what, name) or f"item-stream({per_second:g}/s)"

    def partitions(self) -> Sequence[None]:
        return [None]

    def open(self, partitions: Sequence[None], context: ProcessorContext) -> StreamReader[T]:
        return ItemStreamReader(self._rate, self._create, context)


class ItemStreamReader(StreamReader[Any]):
    """Knows by the clock how many items are due.

    The timestamp of an item is the time at which it is due, whenever it is polled: whoever compares
    it with the clock downstream sees all of the delay. After a pause, all that became due in it is
    there to be polled.
    """

    def __init__(
        self, rate: Fraction, create: Callable[[int, int], Any] | None, context: ProcessorContext
    ) -> None:
        self._create = create
        self._clock = context.clock
        self._numerator, self._denominator = rate.numerator, rate.denominator
        self._sequence = 0
        self._start_ms = self._clock.time_ms()
        self._start_ns = self._clock.monotonic_ns()

    def poll(self, limit: int) -> Sequence[Polled[Any]]:
        elapsed = self._clock.monotonic_ns() - self._start_ns
        # The first one is due at once.
        due = elapsed * self._numerator // (self._denominator * 1_000_000_000) + 1
        first = self._sequence
        end = min(due, first + limit)
        if end <= first:
            return ()
        self._sequence = end
        sequence = range(first, end)
        start, step, numerator = self._start_ms, self._denominator * 1000, self._numerator
        timestamps = [start + i * step // numerator for i in sequence]
        create = self._create
        items = (
            list(sequence)
            if create is None
            else [create(*each) for each in zip(sequence, timestamps, strict=True)]
        )
        return (Polled(0, items, timestamps),)

    def save(self) -> Sequence[tuple[int, int]]:
        return [(self._sequence, self._start_ms)]

    def restore(self, positions: Sequence[tuple[int, int] | None]) -> None:
        if positions[0] is None:
            return
        # The same items at the same times as in the run that was saved.
        self._sequence, self._start_ms = positions[0]
        elapsed = self._clock.time_ms() - self._start_ms
        self._start_ns = self._clock.monotonic_ns() - elapsed * 1_000_000
