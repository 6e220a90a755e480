"""Event time: from items to events, and from events to watermarks.

Behind a stage with timestamps, items travel as *events*: pairs ``(timestamp, item)``. Watermarks say
how far event time has advanced. They are derived per source partition from the highest timestamp
seen, less the lag that is allowed, and combined by minimum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jetlet.core.items import IDLE, MIN_TIMESTAMP, Watermark
from jetlet.execution.watermark_coalescer import WatermarkCoalescer
from jetlet.pipeline.transforms import DEFAULT_IDLE_TIMEOUT

MAX_WATERMARK_STEP = 1000
"""Watermarks are at most this far apart, whatever the windows need."""


@dataclass(frozen=True, slots=True)
class EventTimePolicy:
    """How watermarks are made; picklable."""

    allowed_lag: int = 0
    """An event may come this many ms behind the latest one of its partition."""
    step: int = 1
    """Watermarks are multiples of this: no window needs finer ones."""
    idle_timeout: int = DEFAULT_IDLE_TIMEOUT


class WatermarkSource:
    """Makes the watermarks of one processor that sees some partitions of a source."""

    __slots__ = ("_coalescer", "_idle", "_last_event", "_policy", "_watermarks")

    def __init__(self, policy: EventTimePolicy, partitions: Iterable[int], now_ms: int) -> None:
        self._policy = policy
        self._coalescer = WatermarkCoalescer(partitions)
        self._watermarks = dict.fromkeys(partitions, MIN_TIMESTAMP)
        self._last_event = dict.fromkeys(self._watermarks, now_ms)
        self._idle: set[int] = set()

    def observe(self, partition: int, highest: int, now_ms: int) -> tuple[Watermark, ...]:
        """A batch of events has been emitted; ``highest`` is its latest timestamp."""
        self._last_event[partition] = now_ms
        self._idle.discard(partition)
        self._coalescer.observe_event(partition)
        step = self._policy.step
        watermark = (highest - self._policy.allowed_lag) // step * step
        if watermark <= self._watermarks[partition]:
            return ()
        self._watermarks[partition] = watermark
        return self._coalescer.observe_watermark(partition, watermark)

    def check_idle(self, now_ms: int) -> tuple[Watermark, ...]:
        """Time has passed: partitions that have been quiet for too long become idle."""
        emitted: tuple[Watermark, ...] = ()
        if self._policy.idle_timeout <= 0:
            return emitted
        for partition, last in self._last_event.items():
            if partition not in self._idle and now_ms - last >= self._policy.idle_timeout:
                self._idle.add(partition)
                emitted += self._coalescer.observe_watermark(partition, IDLE.timestamp)
        return emitted

    def end(self, partition: int) -> tuple[Watermark, ...]:
        """The partition has ended."""
        del self._watermarks[partition], self._last_event[partition]
        self._idle.discard(partition)
        return self._coalescer.observe_done(partition)
