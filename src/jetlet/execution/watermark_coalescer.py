"""WatermarkCoalescer: one watermark out of those of several inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from jetlet.core.items import IDLE, MIN_TIMESTAMP, Watermark
from jetlet.errors import ProcessorContractError


class WatermarkCoalescer:
    """The minimum over the inputs that are neither idle nor done.

    When all inputs are idle the highest watermark seen on any of them is emitted, and then the
    idle message: no input will hold up the others, and what they announced is announced. The
    methods return what to emit now, in order, which is nothing, one item or two.

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

    @property
    def has_idle_inputs(self) -> bool:
        """True if :meth:`observe_event` has to be called at all."""
        return bool(self._idle)

    def observe_event(self, index: int) -> None:
        """Data came from the input: it is not idle any more, and its watermark counts again."""
        if index in self._idle:
            self._idle.discard(index)
            self._active.add(index)
            self._is_idle = False

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
        del self._watermarks[index]
        return self._advance() if self._watermarks else ()

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
