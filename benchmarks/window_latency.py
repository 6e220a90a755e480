"""How long after its end a sliding window is there: 10,000 events a second, 1 s sliding by 20 ms.

    python -m benchmarks.window_latency [--seconds 60] [--rate 10000] [--find-rate] [--quick]

The time of an event is when it is due, and it is handed over then, or later if the generator lags.
A window is complete when the first event behind it is there. Its latency, of which each key is a
sample, is the time at which the sink has its result less the window's end: the generator's lag is
in it. bytewax has tumbling windows of 20 ms instead, since it would add each event to 50 windows.

With ``--find-rate`` the rate is then doubled for as long as p99 stays under 50 ms.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

from benchmarks.measure import at_most, percentiles
from jetlet import EmbeddedEngine, Pipeline, agg, windows
from jetlet.core import ProcessorContext
from jetlet.pipeline.sink import ClientSink
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

SIZE, SLIDE = 1000, 20
WARM_UP = 2.0
"""Seconds that do not count."""
LIMITS = {100: {0.5: 1, 0.99: 3, 0.9999: 15}, 1000: {0.5: 3, 0.99: 8}}
"""Milliseconds that a share of the results may take at the most, by the number of keys."""
FAST_ENOUGH = 0.05


class Schedule:
    """Says which events are due: the n-th comes n / rate seconds after the start."""

    def __init__(self, rate: int, keys: int, seconds: float) -> None:
        self._rate, self._keys = rate, keys
        self._count = int(rate * seconds)
        self._next = 0
        self._start = time.time_ns()

    def due(self, limit: int) -> tuple[list[int], list[int]] | None:
        """Keys and times of the events since the last call; ``None`` at the end."""
        elapsed = time.time_ns() - self._start
        first = self._next
        if first >= self._count:
            return None
        self._next = min(elapsed * self._rate // 1_000_000_000 + 1, first + limit, self._count)
        numbers = range(first, max(first, self._next))
        start_us, rate, keys = self._start // 1000, self._rate, self._keys
        times = [(start_us + n * 1_000_000 // rate) // 1000 for n in numbers]
        return [n % keys for n in numbers], times


class Generator(StreamSource[int], StreamReader[int]):
    """A stream of keys at a steady rate."""

    name = "generator"
    has_native_timestamps = True

    def __init__(self, rate: int, keys: int, seconds: float) -> None:
        self._arguments = (rate, keys, seconds)

    def partitions(self) -> Sequence[Any]:
        return [0]

    def open(self, partitions: Sequence[Any], context: ProcessorContext) -> StreamReader[int]:
        self._schedule = Schedule(*self._arguments)
        return self

    def poll(self, limit: int) -> Sequence[Polled[int]] | None:
        due = self._schedule.due(limit)
        return None if due is None else [Polled(0, *due)]


class Arrivals(ClientSink[Any]):
    """Notes how late the windows are."""

    name = "arrivals"

    def __init__(self, *, is_warm: bool = False) -> None:
        self.latencies: list[float] = []
        self._begins = 0.0 if is_warm else time.time() + WARM_UP

    def receive(self, batch: Sequence[Any]) -> None:
        self.note([window.end for window in batch])

    def note(self, ends: Sequence[int]) -> None:
        now = time.time()
        if now > self._begins:
            self.latencies += [now - end / 1000 for end in ends]


def jetlet(rate: int, keys: int, seconds: float) -> list[float]:
    p, out = Pipeline("latency"), Arrivals()
    stream = p.read_from(Generator(rate, keys, seconds + WARM_UP)).with_native_timestamps(0)
    window = stream.grouping_key(lambda key: key).window(windows.sliding(SIZE, SLIDE))
    window.aggregate(agg.counting()).write_to(out)
    with EmbeddedEngine(workers=1) as engine:
        engine.submit(p).join()
    # What is emitted at the end of the stream, before its time, is no sample.
    return [latency for latency in out.latencies if latency > 0]


def in_bytewax(rate: int, keys: int, seconds: float) -> list[float]:
    import bytewax.operators as op
    import bytewax.operators.windowing as win
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import DynamicSource, StatelessSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.testing import run_main

    arrivals = Arrivals()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    class Part(StatelessSourcePartition):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self._schedule = Schedule(rate, keys, seconds + WARM_UP)

        def next_batch(self) -> list[tuple[str, int]]:
            due = self._schedule.due(1024)
            if due is None:
                raise StopIteration
            return [(str(key), at) for key, at in zip(*due, strict=True)]

    class Source(DynamicSource):  # type: ignore[type-arg]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Part:
            return Part()

    class Target(StatelessSinkPartition):  # type: ignore[type-arg]
        def write_batch(self, items: list[Any]) -> None:
            arrivals.note([(window_id + 1) * SLIDE for _, (window_id, _) in items])

    class Sink(DynamicSink):  # type: ignore[type-arg]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Target:
            return Target()

    flow = Dataflow("latency")
    stream = op.input("in", flow, Source())
    counted = win.count_window(
        "window",
        stream,
        win.EventClock(lambda item: epoch + timedelta(milliseconds=item[1]), timedelta(0)),
        win.TumblingWindower(timedelta(milliseconds=SLIDE), epoch),
        lambda item: item[0],
    )
    op.output("out", counted.down, Sink())
    run_main(flow)
    return [latency for latency in arrivals.latencies if latency > 0]


def show(what: str, latencies: list[float], limits: dict[float, int]) -> None:
    print(f"  {what}: {len(latencies)} results")
    percentiles(latencies)
    histogram(latencies)
    ordered = sorted(latencies)
    for share, limit in limits.items():
        at = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        at_most(f"p{share * 100:g}, ms", at * 1e3, limit)


def histogram(latencies: Sequence[float]) -> None:
    """How many took up to a quarter of a millisecond, half of one, one, two, ..."""
    counts: dict[float, int] = {}
    for latency in latencies:
        bound = 0.25
        while latency * 1e3 > bound:
            bound *= 2
        counts[bound] = counts.get(bound, 0) + 1
    for bound, count in sorted(counts.items()):
        bar = "#" * max(1, round(50 * count / len(latencies)))
        print(f"  up to {bound:8g} ms {count:9} {bar}")


def find_rate(rate: int, keys: int, seconds: float) -> None:
    """The highest rate, of those tried, at which p99 is low enough."""
    best = 0
    while True:
        ordered = sorted(jetlet(rate, keys, seconds))
        p99 = ordered[int(0.99 * len(ordered))]
        print(f"  {rate} events/s, {keys} keys: p99 {p99 * 1e3:.1f} ms", flush=True)
        if p99 > FAST_ENOUGH:
            break
        best, rate = rate, rate * 2
    print(f"  p99 stays under {FAST_ENOUGH * 1e3:g} ms up to {best} events/s with {keys} keys")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--find-rate", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    rate, seconds = arguments.rate, 1.0 if arguments.quick else arguments.seconds
    for keys, limits in LIMITS.items():
        show(f"jetlet, {keys} keys", jetlet(rate, keys, seconds), limits)
    if find_spec("bytewax") is None:
        print("  bytewax is not installed: make bench")
    else:
        show("bytewax, 100 keys, windows of 20 ms", in_bytewax(rate, 100, min(seconds, 10)), {})
    if arguments.find_rate:
        find_rate(2 * rate, 100, min(seconds, 5))


if __name__ == "__main__":
    main()
