"""What snapshots cost: throughput, latency, and the time to go on from one; two members.

    python -m benchmarks.snapshot_overhead [--quick] [throughput] [latency] [restore]

Throughput: count and sum of events of 10,000 keys in windows of 10 s that slide by 1 s, as fast as
it goes, exactly-once with a snapshot each second, against none at all. Each contestant runs for the
same number of events; what is compared is the processor time that the members need, and how long
they take, in turns, the best of each.

Latency: the same keys at a steady rate, in windows of 5 s that slide by 200 ms. A result's latency
is the time at which the sink has it less the end of its window. The events have a payload, which
the windows keep, so that there is as much state as wanted: by the size of the snapshot.

Restore: a state per key, for a million keys; from submitting the job until it gives results that
can only be had with the state. The time that the members themselves need to start is in it.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Histogram, at_most
from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, windows
from jetlet.core import ProcessorContext
from jetlet.pipeline.sink import Sink, SinkWriter
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

KEYS = 10_000
MEMBERS = 2
PER_MS = 10
"""Events per millisecond of event time, of all members together, where time is not real."""
SIZE, SLIDE = 5000, 200
"""Of the windows whose latency is measured, in ms."""
WARM_UP = 6.0
"""Seconds whose latencies do not count: until the windows are full."""

Event = tuple[int, int, Any]
"""Time, key, value."""


# --- Events -----------------------------------------------------------------------------------


class Events(StreamSource[Event]):
    """``count`` events in each of two partitions; with a ``rate``, so many in a second."""

    name = "events"
    is_replayable = True

    def __init__(self, count: int, rate: float | None = None, payload: int = 0) -> None:
        self._options = (count, rate, payload)

    def partitions(self) -> Sequence[int]:
        return range(MEMBERS)

    def open(self, partitions: Sequence[int], context: ProcessorContext) -> StreamReader[Event]:
        return EventReader(partitions, *self._options)


class EventReader(StreamReader[Event]):
    """Makes events as they are polled; each partition has every second one."""

    def __init__(
        self, partitions: Sequence[int], count: int, rate: float | None, payload: int
    ) -> None:
        # In the members. How long a call takes says something of this machine only.
        logging.getLogger("jetlet.execution").setLevel(logging.ERROR)
        rng = random.Random(partitions[0])
        self._keys = [rng.randrange(KEYS) for _ in range(1 << 16)]
        filling = "x" * max(0, payload - 8)
        self._values: list[Any] = [
            f"{i:08}{filling}" if payload else i & 1023 for i in range(1 << 16)
        ]
        self._count, self._rate = count, rate
        self._positions = [0] * len(partitions)
        self._start_ms = time.time_ns() // 1_000_000

    def poll(self, limit: int) -> Sequence[Polled[Event]] | None:
        if min(self._positions) >= self._count:
            return None
        polled = []
        due = self._count
        if self._rate is not None:
            elapsed = time.time_ns() // 1_000_000 - self._start_ms
            due = min(due, int(elapsed * self._rate / (1000 * MEMBERS)) + 1)
        for index, start in enumerate(self._positions):
            end = min(due, start + limit)
            if start < end:
                self._positions[index] = end
                polled.append(Polled(index, self._events(start, end)))
        return polled

    def _events(self, start: int, end: int) -> list[Event]:
        keys, values, mask = self._keys, self._values, len(self._keys) - 1
        if self._rate is None:
            return [
                (i * MEMBERS // PER_MS, keys[i & mask], values[i & mask]) for i in range(start, end)
            ]
        base, per_ms = self._start_ms, self._rate / (1000 * MEMBERS)
        return [
            (base + int(i / per_ms), keys[i & mask], values[i & mask]) for i in range(start, end)
        ]

    def save(self) -> Sequence[Any]:
        return [(position, self._start_ms) for position in self._positions]

    def restore(self, positions: Sequence[Any]) -> None:
        for index, saved in enumerate(positions):
            if saved is not None:
                self._positions[index], self._start_ms = saved


# --- Results ----------------------------------------------------------------------------------


class Measured(SinkWriter[Any]):
    """Takes windows; knows how long that took, and how late they were."""

    def __init__(self, *, is_timed: bool) -> None:
        self._started = (time.process_time(), time.perf_counter())
        self._count = 0
        self._counts: dict[int, int] = {}
        self._warm_at = time.time() + WARM_UP if is_timed else float("inf")

    def write(self, batch: Sequence[Any]) -> None:
        if not self._count:
            self._started = (time.process_time(), time.perf_counter())
        self._count += len(batch)
        now = time.time()
        if now > self._warm_at:
            now_ms = round(now * 1000)
            for result in batch:
                late = now_ms - result.end
                self._counts[late] = self._counts.get(late, 0) + 1

    def finish(self) -> Any:
        cpu, clock = self._started
        return (
            time.process_time() - cpu,
            time.perf_counter() - clock,
            self._count,
            self._counts,
        )

    def abort(self) -> None:
        pass


class MeasuringSink(Sink[Any]):
    """The measurements of all members are here when the job has ended."""

    name = "measure"
    preferred_local_parallelism = 1

    def __init__(self, *, is_timed: bool) -> None:
        self.measured: Sequence[Any] = ()
        self._is_timed = is_timed

    def open(self, run_id: str, writer_id: str) -> SinkWriter[Any]:
        return Measured(is_timed=self._is_timed)

    def commit(self, run_id: str, messages: Sequence[Any]) -> None:
        self.measured = messages

    def abort(self, run_id: str) -> None:
        pass

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "measured": ()}


def run(p: Pipeline, directory: Path | None, interval: float = 1.0) -> dict[str, Any]:
    """Run to the end, with snapshots if there is a directory for them; what is known of these."""
    settings: dict[str, Any] = {}
    if directory is not None:
        settings = {
            "processing_guarantee": "exactly-once",
            "snapshot_dir": str(directory),
            "snapshot_interval": interval,
            "start_fresh": True,
        }
    with EmbeddedEngine(members=MEMBERS) as engine:
        job = engine.submit(p, JobConfig(**settings))
        largest: dict[str, Any] = {}
        while not job.status.is_final:
            stats = job.metrics().snapshots or {}
            if stats.get("last_bytes", 0) > largest.get("last_bytes", 0):
                largest = dict(stats)
            time.sleep(0.2)
        job.join()
        return {**(job.metrics().snapshots or {}), "largest": largest}


def described(snapshots: dict[str, Any]) -> str:
    largest = snapshots["largest"]
    return (
        f"{snapshots['taken']} snapshots, the largest of {largest['last_bytes'] / 1e6:.1f} MB in "
        f"{largest['last_ms']:.0f} ms"
    )


# --- Throughput -------------------------------------------------------------------------------


def once(count: int, directory: Path | None) -> tuple[float, float, dict[str, Any]]:
    """Processor time and time of the members, and what is known of the snapshots."""
    p, sink = Pipeline("overhead"), MeasuringSink(is_timed=False)
    (
        p.read_from(Events(count))
        .without_timestamps()
        .add_timestamps(lambda event: event[0], allowed_lag=0)
        .grouping_key(lambda event: event[1])
        .window(windows.sliding(10_000, 1000))
        .aggregate(agg.all_of(agg.counting(), agg.summing(lambda event: event[2])))
        .write_to(sink)
    )
    snapshots = run(p, directory)
    cpu = sum(measured[0] for measured in sink.measured)
    return cpu, max(measured[1] for measured in sink.measured), snapshots


def throughput(directory: Path, *, quick: bool) -> None:
    count = 100_000 if quick else 1_000_000
    best = {True: (float("inf"),) * 2, False: (float("inf"),) * 2}
    for _ in range(1 if quick else 5):
        for with_snapshots in (False, True):
            cpu, clock, snapshots = once(count, directory if with_snapshots else None)
            best[with_snapshots] = (
                min(best[with_snapshots][0], cpu),
                min(best[with_snapshots][1], clock),
            )
            text = f"  {clock:6.2f} s, {cpu:6.2f} s of processor time"
            if with_snapshots:
                text += f", {described(snapshots)}"
            print(text, flush=True)
    for index, what in enumerate(("processor time", "time")):
        ratio = best[True][index] / best[False][index]
        at_most(f"{what} with snapshots against without", ratio, 1.1)


# --- Latency ----------------------------------------------------------------------------------


def latencies(
    seconds: float, rate: float, payload: int, directory: Path | None
) -> tuple[Histogram, dict[str, Any]]:
    p, sink = Pipeline("latency"), MeasuringSink(is_timed=True)
    count = int((seconds + WARM_UP) * rate / MEMBERS)
    (
        p.read_from(Events(count, rate, payload))
        .with_timestamps(lambda event: event[0], allowed_lag=0)
        .grouping_key(lambda event: event[1])
        .window(windows.sliding(SIZE, SLIDE))
        .aggregate(agg.max_by(lambda event: event[2]))
        .write_to(sink)
    )
    snapshots = run(p, directory)
    histogram = Histogram()
    end_ms = seconds * 1000
    for measured in sink.measured:
        for late_ms, items in measured[3].items():
            if late_ms > -end_ms:  # what is emitted at the end is ahead of time
                histogram.add(max(0, late_ms) / 1000, items if late_ms >= 0 else 0)
    return histogram, snapshots


def latency(directory: Path, *, quick: bool) -> None:
    seconds, rate = (1.0, 1000.0) if quick else (10.0, 10_000.0)
    for megabytes in (10,) if quick else (10, 100):
        # As good as all events of the last 5 s are in the frames: few have a key twice.
        payload = int(megabytes * 1e6 * MEMBERS / (SIZE / 1000 * rate))
        without, _ = latencies(seconds, rate, payload, None)
        taken, snapshots = latencies(seconds, rate, payload, directory)
        print(f"  {megabytes} MB of state per member: {described(snapshots)}")
        for share in (0.5, 0.9, 0.99, 0.999):
            print(
                f"  p{share * 100:<5g} {without.at(share) * 1e3:8.1f} ms without, "
                f"{taken.at(share) * 1e3:8.1f} ms with"
            )
        added = (taken.at(0.99) - without.at(0.99)) * 1e3
        if megabytes == 10:
            at_most("ms that snapshots add to p99", added, 50)
        else:
            print(f"  ms that snapshots add to p99: {added:.0f}")


# --- Restore ----------------------------------------------------------------------------------


class KeyReader(StreamReader[int]):
    """Every key once; after a restore, each partition's first one again, and then nothing."""

    def __init__(self, partitions: Sequence[int], count: int) -> None:
        self._ranges = [range(partition, count, 4) for partition in partitions]
        self._positions = [0] * len(partitions)
        self._extra: list[int] = []

    def poll(self, limit: int) -> Sequence[Polled[int]]:
        if self._extra:
            extra, self._extra = self._extra, []
            return [Polled(0, extra)]
        polled = []
        for index, (keys, start) in enumerate(zip(self._ranges, self._positions, strict=True)):
            if start < len(keys):
                polled.append(Polled(index, list(keys[start : start + limit])))
                self._positions[index] = start + limit
        return polled

    def save(self) -> Sequence[int]:
        return list(self._positions)

    def restore(self, positions: Sequence[int | None]) -> None:
        self._positions = [position or 0 for position in positions]
        self._extra = [keys[0] for keys in self._ranges]


class Keys(StreamSource[int]):
    name = "keys"
    is_replayable = True

    def __init__(self, count: int) -> None:
        self._count = count

    def partitions(self) -> Sequence[int]:
        return range(4)

    def open(self, partitions: Sequence[int], context: ProcessorContext) -> StreamReader[int]:
        return KeyReader(partitions, self._count)


def counting(count: int, take: Callable[[tuple[int, int]], object]) -> Pipeline:
    p = Pipeline("restore")
    (
        p.read_from(Keys(count))
        .without_timestamps()
        .grouping_key(lambda number: f"user-{number:07}")
        .rolling_aggregate(agg.all_of(agg.counting(), agg.summing()))
        .filter(lambda result: result[1][0] == 2)
        .write_to(sinks.client(take))
    )
    return p


def restore(directory: Path, *, quick: bool) -> None:
    count = 10_000 if quick else 1_000_000
    with EmbeddedEngine(members=MEMBERS) as engine:
        job = engine.submit(
            counting(count, lambda result: None),
            JobConfig(snapshot_dir=str(directory), start_fresh=True),
        )
        vertex = next(v.name for v in job.dag if "rolling" in v.name)
        while vertex not in job.metrics() or job.metrics()[vertex].received < count:
            time.sleep(0.05)
        started = time.perf_counter()
        job.cancel_and_export_snapshot("keys")
        print(f"  saving {count:,} keys and ending takes {time.perf_counter() - started:.2f} s")
    for members in (2, 1, 3):
        found: list[Any] = []
        is_there = threading.Event()

        def take(
            result: Any, found: list[Any] = found, is_there: threading.Event = is_there
        ) -> None:
            found.append(result)
            if len(found) == 4:
                is_there.set()

        with EmbeddedEngine(members=members) as engine:
            started = time.perf_counter()
            job = engine.submit(
                counting(count, take),
                JobConfig(
                    name=f"restored-{members}",
                    snapshot_dir=str(directory),
                    initial_snapshot="keys",
                    start_fresh=True,
                ),
            )
            assert is_there.wait(60)
            elapsed = time.perf_counter() - started
            assert min(found) == ("user-0000000", (2, 0))
            job.cancel()
        at_most(f"seconds, {count:,} keys of 2 members on {members}", elapsed, 10)


PARTS = {"throughput": throughput, "latency": latency, "restore": restore}


def main() -> None:
    quick = "--quick" in sys.argv
    wanted = [name for name in PARTS if name in sys.argv] or list(PARTS)
    for name in wanted:
        print(f"  -- {name}")
        with tempfile.TemporaryDirectory() as directory:
            PARTS[name](Path(directory), quick=quick)


if __name__ == "__main__":
    main()
