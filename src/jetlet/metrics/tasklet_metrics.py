"""TaskletMetrics: counters of one processor, cheap enough to be always on."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from typing import Any, Protocol

from jetlet.core.clock import SYSTEM_CLOCK, Clock
from jetlet.core.items import IDLE_TIMESTAMP, QuietWatermark, Watermark
from jetlet.core.processor import PartitionTime
from jetlet.metrics.latency import Latency
from jetlet.metrics.stopwatch import Stopwatch

REPORT_INTERVAL_NS = 5_000_000_000
"""The same complaint about one processor is logged at most this often."""


LETTERS = 8
"""Items set aside that are remembered with their tracebacks; of more, one now and then."""
LETTER_INTERVAL_NS = 250_000_000
FRAMES = 20
FULLEST = 8
"""Partitions of keys that are told of an edge: those with the most items."""
LETTER_TEXT = 500
"""Characters of an item that are kept."""


class InboundGauge(Protocol):
    """An inbound edge, as far as it can be measured."""

    ordinal: int

    @property
    def size(self) -> int: ...

    @property
    def capacity(self) -> int: ...


class OutboundGauge(Protocol):
    """An outbound edge, as far as it can be measured."""

    emitted: int

    @property
    def sampled(self) -> Sequence[int]: ...


class TaskletMetrics:
    """Written by the thread that runs the tasklet, without locks, read from any.

    ``histogram[n]`` counts the calls that took from 2**(n-1) up to 2**n nanoseconds.
    """

    __slots__ = (
        "_clock",
        "_inbound",
        "_letter_due",
        "_outbound",
        "_reported_at",
        "as_of",
        "batches",
        "blocked",
        "blocked_calls",
        "busy_ns",
        "calls",
        "counters",
        "histogram",
        "is_idle",
        "latency",
        "letters",
        "life",
        "longest_call_ns",
        "may_block",
        "partition_times",
        "processor",
        "received",
        "slow_calls",
        "stalled_calls",
        "vertex",
        "watermark",
    )

    def __init__(
        self,
        vertex: str,
        processor: int,
        inbound: Sequence[InboundGauge] = (),
        outbound: Sequence[OutboundGauge] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.vertex = vertex
        self.processor = processor
        self._inbound = inbound
        self._outbound = outbound
        self._clock = clock
        self._reported_at: int | None = None
        self.received = 0
        self.batches = 0
        self.calls = 0
        self.blocked_calls = 0
        self.stalled_calls = 0
        self.slow_calls = 0
        self.busy_ns = 0
        self.may_block = False
        """True if its calls may wait for something, on a thread of their own."""
        self.life = Stopwatch(clock.monotonic_ns)
        """Runs from when the processor is initialised until it has ended."""
        self.blocked = Stopwatch(clock.monotonic_ns)
        """Runs while something that was emitted waits for room behind the processor."""
        self.longest_call_ns = 0
        self.watermark: int | None = None
        """Event time: the coalesced watermark of the input, or that of the source itself."""
        self.is_idle = False
        """True if event time stands still on purpose: nothing comes in."""
        self.partition_times: Callable[[], Iterable[PartitionTime]] = tuple
        """Of a source: how far it is in each of its partitions."""
        self.histogram = [0] * 65
        self.as_of: int | None = None
        """When that which it uses, and which is renewed now and then, was made."""
        self.counters: dict[str, int] = {}
        self.letters: deque[dict[str, Any]] = deque(maxlen=LETTERS)
        """The latest items that were skipped or became dead letters, with stage and traceback."""
        self._letter_due = 0
        self.latency = Latency()
        """How long markers took from their source to here, if this is a sink."""

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter of the processor's own."""
        self.counters[name] = self.counters.get(name, 0) + amount

    def set_as_of(self, time_ms: int) -> None:
        """From now on the processor uses what was made then."""
        self.as_of = time_ms

    def set_aside(self, item: object, error: BaseException, stage: str) -> None:
        """An item was skipped, or became a dead letter. Of very many, most are only counted."""
        now = self._clock.monotonic_ns()
        if len(self.letters) == LETTERS and now < self._letter_due:
            return
        self._letter_due = now + LETTER_INTERVAL_NS
        try:
            text = repr(item)
        except Exception as broken:
            text = f"<{type(item).__name__} whose repr failed: {type(broken).__name__}>"
        self.letters.append(
            {
                "time_ms": self._clock.time_ms(),
                "stage": stage,
                "item": text[:LETTER_TEXT],
                "error": "".join(traceback.format_exception_only(error)).strip()[:LETTER_TEXT],
                "traceback": "".join(traceback.format_exception(error, limit=-FRAMES)),
            }
        )

    def advance(self, watermark: Watermark) -> None:
        """Event time has come this far, or the input has gone idle."""
        is_quiet = isinstance(watermark, QuietWatermark)
        self.is_idle = is_quiet or watermark.timestamp == IDLE_TIMESTAMP
        if not self.is_idle or (is_quiet and self.watermark is not None):
            self.watermark = watermark.timestamp

    def arrived(self, born_ms: int) -> None:
        """A latency marker has come to its end."""
        self.latency.add(max(0, self._clock.time_ms() - born_ms))

    def _lag(self, watermark: int | None, *, is_idle: bool) -> int | None:
        return None if watermark is None or is_idle else self._clock.time_ms() - watermark

    def may_report(self, now_ns: int) -> bool:
        """True if nothing was logged about this processor for a while."""
        if self._reported_at is not None and now_ns - self._reported_at < REPORT_INTERVAL_NS:
            return False
        self._reported_at = now_ns
        return True

    def snapshot(self, call_ns: int = 0) -> dict[str, Any]:
        """The values now, as plain data; ``call_ns`` is for how long a call has been under way."""
        inputs = {edge.ordinal: (edge.size, edge.capacity) for edge in self._inbound}
        outputs = {ordinal: edge.emitted for ordinal, edge in enumerate(self._outbound)}
        return {
            "processor": self.processor,
            "may_block": self.may_block,
            "received": self.received,
            "emitted": sum(outputs.values()),
            "batches": self.batches,
            "queue_size": sum(size for size, _ in inputs.values()),
            "queue_capacity": sum(capacity for _, capacity in inputs.values()),
            "as_of": self.as_of,
            "watermark": self.watermark,
            "is_idle": self.is_idle,
            "watermark_lag": self._lag(self.watermark, is_idle=self.is_idle),
            "partitions": [
                {
                    "name": each.partition,
                    "watermark": each.watermark,
                    "watermark_lag": self._lag(each.watermark, is_idle=each.is_idle),
                    "is_idle": each.is_idle,
                }
                for each in self.partition_times()
            ],
            "calls": self.calls,
            "blocked_calls": self.blocked_calls,
            "stalled_calls": self.stalled_calls,
            "slow_calls": self.slow_calls,
            "inputs": inputs,
            "outputs": outputs,
            "samples": {
                (ordinal, partition): count
                for ordinal, edge in enumerate(self._outbound)
                for partition, count in _fullest(edge.sampled)
            },
            "elapsed_ns": self.life.ns,
            "busy_ns": self.busy_ns + call_ns,
            "blocked_ns": self.blocked.ns,
            "call_ns": call_ns,
            "longest_call_ns": self.longest_call_ns,
            "call_histogram": {
                2**power: count for power, count in enumerate(self.histogram) if count
            },
            "counters": dict(self.counters),
            "letters": list(self.letters.copy()),  # without the GIL only the copy is made at once
            "latency": dict(self.latency.counts),
        }


def _fullest(sampled: Sequence[int]) -> Iterator[tuple[int | None, int]]:
    """The partitions of which the sample has the most; that of all of them is under ``None``."""
    if total := sum(sampled):
        yield None, total
        for partition in nlargest(FULLEST, range(len(sampled)), key=sampled.__getitem__):
            if sampled[partition]:
                yield partition, sampled[partition]
