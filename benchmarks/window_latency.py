"""How long after its end a sliding window is there: 10,000 events a second, 1 s sliding by 20 ms.

    python -m benchmarks.window_latency [--seconds 60] [--rate 10000] [--quick]

The time of an event is when it is due, and it is handed over then, or later if the generator lags.
A window is complete when the first event behind it is there. Its latency, of which each key is a
sample, is the time at which the sink has its result less the window's end: the generator's lag is
in it. The peers have tumbling windows of 20 ms instead, since they would add each event to 50
windows. Each contestant has a process of its own, and that one core.

In the end the rate is raised for as long as p99 stays under 50 ms.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.measure import Histogram, at_most
from jetlet import EmbeddedEngine, Pipeline, agg, it, windows
from jetlet.core import ProcessorContext
from jetlet.pipeline.sink import ClientSink
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

SIZE, SLIDE = 1000, 20
WARM_UP = 2.0
"""Seconds that do not count."""
LIMITS = {100: {0.5: 1, 0.99: 3, 0.9999: 15}, 1000: {0.5: 3, 0.99: 8}}
"""Milliseconds that a share of the results may take at the most, by the number of keys."""
FAST_ENOUGH = 0.05
PATHWAY_COMMIT_MS = 2
"""How often pathway takes in what has come. Less often is later, more often is more than it can."""
PEERS = Path(sys.prefix) / "peers" / "bin" / "python"
"""pathway wants other versions of what we use, so it lives in an environment of its own."""


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


class Arrivals:
    """Notes how late the windows are, but for those of the first seconds."""

    def __init__(self, warm_up: float = WARM_UP) -> None:
        self.latencies = Histogram()
        self._warm_up = warm_up
        self._begins: float | None = None

    def note(self, ends: Iterable[int]) -> None:
        now = time.time()
        if self._begins is None:
            self._begins = now + self._warm_up
        if now > self._begins:
            for end, count in Counter(ends).items():
                # What is emitted at the end of the stream, before its time, is no sample.
                if now > end / 1000:
                    self.latencies.add(now - end / 1000, count)


# --- Contestants ----------------------------------------------------------------------------


class Generator(StreamSource[int], StreamReader[int]):
    """A stream of keys at a steady rate; each of its partitions is to have a reader of its own."""

    name = "generator"
    has_native_timestamps = True

    def __init__(self, rate: int, keys: int, seconds: float, partitions: int = 1) -> None:
        self._arguments = (rate // partitions, keys, seconds)
        self._partitions = range(partitions)

    def partitions(self) -> Sequence[Any]:
        return self._partitions

    def open(self, partitions: Sequence[Any], context: ProcessorContext) -> StreamReader[int]:
        self._schedule = Schedule(*self._arguments)
        return self

    def poll(self, limit: int) -> Sequence[Polled[int]] | None:
        due = self._schedule.due(limit)
        return None if due is None else [Polled(0, *due)]


class ArrivalSink(ClientSink[Any]):
    name = "arrivals"

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def receive(self, batch: Sequence[Any]) -> None:
        self._arrivals.note(map(attrgetter("end"), batch))


def counting(
    generator: Generator,
    slide: int,
    arrivals: Arrivals,
    key: Callable[[int], int] = lambda key: key,
) -> Pipeline:
    p = Pipeline("latency")
    stream = p.read_from(generator).with_native_timestamps(0)
    window = stream.grouping_key(key).window(windows.sliding(SIZE, slide))
    window.aggregate(agg.counting()).write_to(ArrivalSink(arrivals))
    return p


def jetlet(
    rate: int, keys: int, seconds: float, key: Callable[[int], int] = lambda key: key
) -> Histogram:
    arrivals = Arrivals()
    generator = Generator(rate, keys, seconds + WARM_UP)
    with EmbeddedEngine(workers=1) as engine:
        engine.submit(counting(generator, SLIDE, arrivals, key)).join()
    return arrivals.latencies


def expressions(rate: int, keys: int, seconds: float) -> Histogram:
    return jetlet(rate, keys, seconds, it % keys)


def bytewax(rate: int, keys: int, seconds: float) -> Histogram:
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
            arrivals.note((window_id + 1) * SLIDE for _, (window_id, _) in items)

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
    return arrivals.latencies


def pathway(rate: int, keys: int, seconds: float) -> Histogram:
    import pathway as pw

    arrivals = Arrivals()

    class Events(pw.io.python.ConnectorSubject):  # type: ignore[misc]
        def run(self) -> None:
            schedule = Schedule(rate, keys, seconds + WARM_UP)
            while (due := schedule.due(1024)) is not None:
                if not due[0]:
                    time.sleep(0.0002)
                for key, at in zip(*due, strict=True):
                    self.next(key=key, at=at)

    def on_change(key: Any, row: Any, time: int, is_addition: bool) -> None:
        if is_addition:
            arrivals.note((row["end"],))

    schema = pw.schema_from_types(key=int, at=int)
    events = pw.io.python.read(Events(), schema=schema, autocommit_duration_ms=PATHWAY_COMMIT_MS)
    counted = events.windowby(
        events.at,
        window=pw.temporal.tumbling(duration=SLIDE),
        instance=events.key,
        behavior=pw.temporal.exactly_once_behavior(),
    ).reduce(end=pw.this._pw_window_end, count=pw.reducers.count())
    pw.io.subscribe(counted, on_change)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return arrivals.latencies


CONTESTANTS: dict[str, Callable[[int, int, float], Histogram]] = {
    "jetlet": jetlet,
    "expressions": expressions,
    "bytewax": bytewax,
    "pathway": pathway,
}


# --- The contest ----------------------------------------------------------------------------


def show(name: str, rate: int, keys: int, seconds: float) -> None:
    """Run one contestant in this process, which has one core, and print how it did."""
    latencies = CONTESTANTS[name](rate, keys, seconds)
    is_ours = name in ("jetlet", "expressions")
    what = f"windows of {SIZE} ms by {SLIDE} ms" if is_ours else f"windows of {SLIDE} ms"
    print(f"  {name}, {rate} events/s, {keys} keys, {what}: {latencies.total} results")
    latencies.show()
    if is_ours:
        for share, limit in LIMITS[keys].items():
            at_most(f"p{share * 100:g} with {keys} keys, ms", latencies.at(share) * 1e3, limit)


def find_rate(rate: int, keys: int, seconds: float) -> None:
    """Print the highest rate, to a tenth, at which p99 is low enough."""
    good, bad = 0, None
    while bad is None or bad > 1.1 * good:
        p99 = jetlet(rate, keys, seconds).at(0.99)
        print(f"  {rate} events/s, {keys} keys: p99 {p99 * 1e3:.1f} ms", flush=True)
        if p99 < FAST_ENOUGH:
            good = rate
        elif rate <= 1000:
            break
        else:
            bad = rate
        rate = 2 * good if bad is None else (good + bad) // 2
    print(f"  p99 stays under {FAST_ENOUGH * 1e3:g} ms up to {good} events/s with {keys} keys")


def elsewhere(python: str | Path, what: str, **options: float) -> None:
    """Run a part in a process of its own, on one core."""
    command = [str(python), "-m", "benchmarks.window_latency", "--only", what]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    quiet = {"stderr": subprocess.DEVNULL} if what == "pathway" else {}
    subprocess.run(command, check=True, **quiet)  # type: ignore[call-overload]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--only", choices=[*CONTESTANTS, "find-rate"])
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    rate, keys, seconds = arguments.rate, arguments.keys, arguments.seconds
    if arguments.only is not None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        if arguments.only == "find-rate":
            find_rate(rate, keys, seconds)
        else:
            show(arguments.only, rate, keys, seconds)
        return
    if arguments.quick:
        seconds = 1.0
    for count in LIMITS:
        elsewhere(sys.executable, "jetlet", rate=rate, keys=count, seconds=seconds)
        elsewhere(sys.executable, "expressions", rate=rate, keys=count, seconds=seconds)
    short = min(seconds, 10)
    if find_spec("bytewax") is None:
        print("  bytewax is not installed: make bench")
    else:
        elsewhere(sys.executable, "bytewax", rate=rate, seconds=short)
    if PEERS.exists():
        elsewhere(PEERS, "pathway", rate=rate, seconds=short)
    else:
        print("  pathway is not installed: make bench")
    for count in (100,) if arguments.quick else LIMITS:
        start = 10 * rate if arguments.quick else 4 * rate
        elsewhere(sys.executable, "find-rate", rate=start, keys=count, seconds=min(seconds, 5))


if __name__ == "__main__":
    main()
