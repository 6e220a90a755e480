"""Event time: from items to events, and from events to watermarks.

Behind a stage with timestamps, items travel as *events*: pairs ``(timestamp, item)``. Watermarks
say how far event time has advanced. They are derived per source partition from the highest
timestamp seen, less the lag that is allowed, and combined by minimum.

A partition is idle when its source has had nothing for a while. That is not measured by how long no
event came, since a reader that is held up sees none although there may be many: the time that
counts is that between polls which looked at all partitions, and of it no more than a reader needs
that nobody holds up.

Once all partitions of a processor are idle, it tells for how long they have been, again and again.
Where that of all processors comes together event time follows the clock, from where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jetlet.core.items import IDLE, MIN_TIMESTAMP, QuietWatermark, Watermark
from jetlet.errors import InvalidArgumentError, ItemFailedError
from jetlet.execution.watermark_coalescer import WatermarkCoalescer
from jetlet.pipeline.aggregates.loop import GeneratedCode
from jetlet.pipeline.expressions.expression import Expression, each_function
from jetlet.pipeline.transforms.sources import StreamSourceTransform
from jetlet.pipeline.transforms.timestamps import DEFAULT_IDLE_TIMEOUT, TimestampTransform

MAX_WATERMARK_STEP = 1000
"""Watermarks are at most this far apart, whatever the windows need."""
IDLE_CHECK_MS = 100
"""How often to look whether the input has gone quiet, at the most."""
LONGEST_POLL_MS: Final = 200
"""Between the ends of two polls lie the 100 ms that a reader may wait, and the pause of a worker
that has nothing to do. What takes longer than both together is being held up."""

_TIMES = frozenset({int})
_MS: Final = 1_000_000
"""Nanoseconds of a millisecond."""


@dataclass(frozen=True, slots=True)
class EventTimePolicy:
    """How watermarks are made; picklable."""

    allowed_lag: int = 0
    """An event may come this many ms behind the latest one of its partition."""
    step: int = 1
    """Watermarks are multiples of this: no window needs finer ones."""
    idle_timeout: int = DEFAULT_IDLE_TIMEOUT
    """A partition that is quiet for so long is not waited for; 0 to wait for ever."""
    follows_clock: bool | None = False
    """Whether event time goes on when all is quiet; ``None`` if it does where the host can."""

    @property
    def needs_clock(self) -> bool:
        """True if event time has to go on without events, whatever the host."""
        return self.follows_clock is True

    @property
    def quiet_step(self) -> int:
        """Milliseconds between two words of how long all has been quiet."""
        return max(self.check_interval, self.step)

    @property
    def check_interval(self) -> int:
        """Milliseconds between two looks whether the input has gone quiet."""
        return max(1, min(IDLE_CHECK_MS, self.idle_timeout))

    @property
    def longest_poll(self) -> int:
        """Milliseconds that count of the time between two polls; so one alone is never enough."""
        return max(1, min(LONGEST_POLL_MS, self.idle_timeout // 2))


def time_policy(
    transform: StreamSourceTransform | TimestampTransform, step: int
) -> EventTimePolicy:
    """The policy that a transform asks for, for those behind it that need watermarks this fine."""
    follows_clock = None if transform.when_idle is None else transform.when_idle == "advance"
    return EventTimePolicy(transform.allowed_lag, step, transform.idle_timeout, follows_clock)


def _always(partition: int) -> bool:
    return True


class WatermarkSource:
    """Makes the watermarks of one processor that sees some partitions of a source.

    All methods return the watermarks to emit now, in order, behind the events at hand.
    """

    __slots__ = (
        "_all_quiet_ns",
        "_coalescer",
        "_idle",
        "_last_event",
        "_last_poll",
        "_longest_poll",
        "_next_check",
        "_policy",
        "_quiet_ns",
        "_told_ms",
        "_watermarks",
    )

    def __init__(self, policy: EventTimePolicy, partitions: Sequence[int], now_ns: int) -> None:
        self._policy = policy
        self._coalescer = WatermarkCoalescer(partitions)
        self._watermarks = dict.fromkeys(partitions, MIN_TIMESTAMP)
        self._last_poll = now_ns
        self._longest_poll = policy.longest_poll * _MS
        self._quiet_ns = 0
        """Time in which partitions could be quiet; it stands still while the reader is held up."""
        self._last_event = dict.fromkeys(partitions, 0)
        """When the last event came, by the time that counts for idleness."""
        self._idle: set[int] = set()
        self._all_quiet_ns = 0
        """How long all partitions have been idle."""
        self._told_ms = -1
        """How long they had been so when that was told last."""
        self._next_check = policy.check_interval * _MS

    def begin(self) -> tuple[Watermark, ...]:
        """Who has no partitions yet must not hold up the others; call it once."""
        return () if self._watermarks else self._coalescer.begin()

    def add(self, partition: int) -> None:
        """One more partition, of which nothing is known yet."""
        self._coalescer.add(partition)
        self._watermarks[partition] = MIN_TIMESTAMP
        self._last_event[partition] = self._quiet_ns
        self._all_quiet_ns, self._told_ms = 0, -1

    def polled(self, now_ns: int, *, has_seen_all: bool) -> None:
        """A poll has ended, at this reading of a monotonic clock; call it before all others.

        ``has_seen_all``: it has found empty those partitions of which it brought nothing.
        """
        elapsed, self._last_poll = now_ns - self._last_poll, now_ns
        if has_seen_all:
            self._quiet_ns += min(elapsed, self._longest_poll)
            if self._coalescer.is_idle:
                self._all_quiet_ns += min(elapsed, LONGEST_POLL_MS * _MS)

    def observe(self, partition: int, highest: int) -> tuple[Watermark, ...]:
        """A batch of events has been emitted; ``highest`` is its latest timestamp."""
        self._last_event[partition] = self._quiet_ns
        if partition in self._idle:
            self._idle.discard(partition)
            self._coalescer.observe_event(partition)
            self._all_quiet_ns, self._told_ms = 0, -1
        step = self._policy.step
        watermark = (highest - self._policy.allowed_lag) // step * step
        if watermark <= self._watermarks[partition]:
            return ()
        self._watermarks[partition] = watermark
        return self._coalescer.observe_watermark(partition, watermark)

    def check_idle(self, is_quiet: Callable[[int], bool] = _always) -> tuple[Watermark, ...]:
        """Partitions that have been quiet for too long become idle, if their reader agrees."""
        timeout = self._policy.idle_timeout * _MS
        now = self._quiet_ns
        if timeout <= 0 or now < self._next_check:
            return self._follow(is_quiet)
        self._next_check = now + self._policy.check_interval * _MS
        emitted: tuple[Watermark, ...] = ()
        for partition, last in self._last_event.items():
            if now - last >= timeout and partition not in self._idle:
                if not is_quiet(partition):
                    self._next_check = now  # ask again at the next poll
                    continue
                self._idle.add(partition)
                emitted += self._coalescer.observe_watermark(partition, IDLE.timestamp)
        return emitted + self._follow(is_quiet)

    def _follow(self, is_quiet: Callable[[int], bool]) -> tuple[Watermark, ...]:
        """How far event time has come since the last events, if that is to be told."""
        policy = self._policy
        if policy.follows_clock is False or not self._coalescer.is_idle:
            return ()
        # In steps that are the same for all readers: where those come together one word is enough.
        elapsed = self._all_quiet_ns // _MS // policy.quiet_step * policy.quiet_step
        if elapsed <= self._told_ms or not all(map(is_quiet, self._last_event)):
            return ()
        self._told_ms = elapsed
        return (QuietWatermark(self._coalescer.top + elapsed, elapsed),)

    def end(self, partition: int) -> tuple[Watermark, ...]:
        """A partition has ended: it is not waited for any more, as if it were idle for ever."""
        self._last_event.pop(partition, None)
        if partition in self._idle:
            return ()
        self._idle.add(partition)
        return self._coalescer.observe_watermark(partition, IDLE.timestamp)

    def watermark_of(self, partition: int) -> int:
        """How far a partition is; from any thread."""
        return self._watermarks[partition]

    def is_idle(self, partition: int) -> bool:
        """True if a partition is not waited for now; from any thread."""
        return partition in self._idle

    def restore(self, partition: int, watermark: int) -> None:
        """A partition goes on from where it was; what comes of it has been emitted before."""
        if watermark > self._watermarks[partition]:
            self._watermarks[partition] = watermark
            self._coalescer.observe_watermark(partition, watermark)


class BatchWatermark:
    """Makes the watermark of one processor in one micro-batch: it moves once, at the end.

    Within a batch nothing has an order, so events can be late only with respect to the batches
    before; ``before`` is the watermark at the end of these.
    """

    __slots__ = ("_before", "_has_begun", "_highest", "_policy")

    def __init__(self, policy: EventTimePolicy, before: int | None) -> None:
        self._policy = policy
        self._before = before
        self._highest: int | None = None
        self._has_begun = False

    def begin(self) -> Sequence[Watermark]:
        """What precedes the events at hand."""
        if self._has_begun or self._before is None:
            return ()
        self._has_begun = True
        return (Watermark(self._before),)

    def observe(self, highest: int) -> None:
        """Events have come, of which this is the latest time."""
        self._highest = highest if self._highest is None else max(self._highest, highest)

    def end(self, report: Callable[[Any], None]) -> Sequence[Watermark]:
        """What follows the last events of the batch; reports how far event time has come."""
        if self._highest is None:
            return (IDLE,)
        step, before = self._policy.step, self._before
        time = (self._highest - self._policy.allowed_lag) // step * step
        watermark = Watermark(time if before is None else max(before, time))
        report(watermark)
        return () if watermark.timestamp == before else (watermark,)


def timestamp_loop(fn: Callable[[Any], int]) -> Callable[[Iterable[Any]], list[int]]:
    """Compile the function that gives the timestamps of many items."""
    if isinstance(fn, Expression):
        return each_function(fn)
    code = GeneratedCode()
    code.line(f"return [{code.call(fn, 'item')} for item in items]")
    return code.compile("timestamps", "items")


def check_times(times: Sequence[Any], items: Sequence[Any], step: str) -> None:
    """Refuse timestamps that are none; ``items`` are those they belong to."""
    if _TIMES.issuperset(map(type, times)):
        return
    for time, item in zip(times, items, strict=True):
        if type(time) is not int:
            raise ItemFailedError(item, step) from bad_timestamp(time)


def bad_timestamp(value: Any) -> InvalidArgumentError:
    """What to say of a timestamp that is none."""
    return InvalidArgumentError(
        f"a timestamp is an int in milliseconds, not {value!r}; for a datetime write "
        f"int(value.timestamp() * 1000)"
    )
