"""WatermarkCoalescer: one watermark out of those of several inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from jetlet.core.items import IDLE, MIN_TIMESTAMP, QuietWatermark, Watermark
from jetlet.errors import ProcessorContractError


class WatermarkCoalescer:
    """The minimum over the inputs that are neither idle nor done.

    When all inputs are idle the highest watermark seen on any of them is emitted, and then the
    idle message: no input will hold up the others, and what they announced is announced. The
    methods return what to emit now, in order, which is nothing, one item or two.

    An idle input may tell for how long it has been, and how far event time would be if it had gone
    on with the clock since. Once all inputs are idle and have told that, time goes on from the
    highest watermark with the input that was the last to become idle.

    ``origins`` says, for each input, where its watermarks come from in the end. An idle input is
    waited for all the same while one is active all of whose origins are its own too: somebody there
    has woken up, and it will hear of it. That one may be idle again, or have ended, before the
    other has said a word: so an idle input is also waited for until it has announced what those
    others have.
    """

    __slots__ = (
        "_active",
        "_idle",
        "_is_idle",
        "_last",
        "_origins",
        "_quiet",
        "_quiet_for",
        "_said",
        "_top",
        "_watermarks",
    )

    def __init__(
        self, inputs: Iterable[int], origins: Mapping[int, frozenset[Any]] | None = None
    ) -> None:
        self._origins = origins
        self._said: dict[frozenset[Any], int] = {}
        """By origins: the highest watermark of the inputs that have these."""
        self._watermarks: dict[int, int] = dict.fromkeys(inputs, MIN_TIMESTAMP)
        self._active = set(self._watermarks)
        self._idle: set[int] = set()
        self._last = MIN_TIMESTAMP
        self._top = MIN_TIMESTAMP
        self._is_idle = False
        self._quiet: dict[int, QuietWatermark] = {}
        """What idle inputs have told of how long they have been so."""
        self._quiet_for = -1
        """How long all of them had been idle when that was told last."""

    @property
    def is_idle(self) -> bool:
        """True if all inputs are idle, and that was told."""
        return self._is_idle

    @property
    def top(self) -> int:
        """The highest watermark of any input."""
        return self._top

    @property
    def has_idle_inputs(self) -> bool:
        """True if :meth:`observe_event` has to be called at all."""
        return bool(self._idle)

    def add(self, index: int) -> None:
        """One more input, which is waited for from now on."""
        self._watermarks[index] = MIN_TIMESTAMP
        self._active.add(index)
        self._quiet_for = -1
        self._is_idle = False

    def begin(self) -> tuple[Watermark, ...]:
        """What there is to say before anything came: without inputs, that it is idle."""
        return self._advance()

    def observe_event(self, index: int) -> None:
        """Data came from the input: it is not idle any more, and its watermark counts again."""
        if index in self._idle:
            self._idle.discard(index)
            self._active.add(index)
            self._quiet.pop(index, None)
            self._quiet_for = -1
            self._is_idle = False

    def observe(self, index: int, watermark: Watermark) -> tuple[Watermark, ...]:
        """A watermark of any kind came from the input."""
        if not isinstance(watermark, QuietWatermark):
            return self.observe_watermark(index, watermark.timestamp)
        emitted = () if index in self._idle else self._observe_idle(index)
        self._quiet[index] = watermark
        return emitted + self._follow()

    def observe_watermark(self, index: int, timestamp: int) -> tuple[Watermark, ...]:
        """A watermark, or the idle message, came from the input."""
        if timestamp == IDLE.timestamp:
            return self._observe_idle(index)
        if timestamp <= self._watermarks[index]:
            raise ProcessorContractError(
                f"watermarks must increase, but {timestamp} follows {self._watermarks[index]}"
            )
        self.observe_event(index)
        self._watermarks[index] = timestamp
        self._top = max(self._top, timestamp)
        if self._origins is not None and (origins := self._origins[index]):
            self._said[origins] = max(timestamp, self._said.get(origins, timestamp))
        return self._advance()

    def _observe_idle(self, index: int) -> tuple[Watermark, ...]:
        self._active.discard(index)
        self._idle.add(index)
        return self._advance()

    def observe_done(self, index: int) -> tuple[Watermark, ...]:
        """The input has ended; others need not wait for it."""
        self._active.discard(index)
        self._idle.discard(index)
        self._quiet.pop(index, None)
        del self._watermarks[index]
        return self._advance() + self._follow() if self._watermarks else ()

    def _advance(self) -> tuple[Watermark, ...]:
        waited_for = self._waited_for()
        if waited_for:
            lowest = min(self._watermarks[i] for i in waited_for)
        elif self._is_idle:
            return ()
        else:
            lowest = self._top
            self._is_idle = True
        if lowest > self._last:
            self._last = lowest
            return (Watermark(lowest), IDLE) if self._is_idle else (Watermark(lowest),)
        return (IDLE,) if self._is_idle else ()

    def _follow(self) -> tuple[Watermark, ...]:
        """How far event time has come without any events, if that is further than was told."""
        quiet = self._quiet.values()
        if not self._is_idle or len(quiet) < len(self._idle):
            return ()
        elapsed = min(each.elapsed for each in quiet)
        if elapsed <= self._quiet_for:
            return ()
        self._quiet_for = elapsed
        top = max(each.timestamp - each.elapsed for each in quiet)
        self._last = max(self._last, top + elapsed)
        return (QuietWatermark(top + elapsed, elapsed),)

    def _waited_for(self) -> Collection[int]:
        origins = self._origins
        if origins is None or not self._idle:
            return self._active
        awake = {origins[i] for i in self._active}
        return [*self._active, *(i for i in self._idle if self._has_news(i, origins[i], awake))]

    def _has_news(
        self, index: int, origins: frozenset[Any], awake: Collection[frozenset[Any]]
    ) -> bool:
        """True if an idle input is bound to say something that others have said before it."""
        known = self._watermarks[index]
        return any(each <= origins for each in awake) or any(
            said > known and each <= origins for each, said in self._said.items()
        )
