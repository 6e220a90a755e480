"""Snapshots of a large state of which little changes: their size, their time, and who waits.

    python -m benchmarks.state_snapshots [--quick] [changes] [latency]

Changes: a state of 100 bytes for each of 10,000,000 keys, in this process: 4 GB. Between two
snapshots 1% of the keys get an event. What they take, in time and in bytes, is compared with
exports, which have everything, in the same run: the best times of each, and the bytes that half of
them do not exceed.

Latency: 10,000 events a second for random keys of 1,000,000, each with a state of 1 kB, against the
same without snapshots, in turns; the better one counts. An event's latency is the time at which the
sink has it less the time at which it was due. The first snapshot, which has everything, is over.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Histogram, at_most
from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks
from jetlet.core import ProcessorContext
from jetlet.jobs.job import Job
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

BATCH = 10_000
RATE = 10_000
SHARE = 0.01


class Feed:
    """What the source and the sink have in common with the benchmark, in one process."""

    def __init__(self, keys: int) -> None:
        self.keys = keys
        self.loaded = 0
        self.is_steady = False
        """Events come at a rate from now on, and not with each snapshot."""
        self.measured: Histogram | None = None


class Keys(StreamSource[Any]):
    """Every key once; then 1% of them for each snapshot, or a steady stream of random ones."""

    name = "keys"
    is_replayable = True

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def partitions(self) -> Sequence[int]:
        return range(1)

    def open(self, partitions: Sequence[int], context: ProcessorContext) -> StreamReader[Any]:
        return KeyReader(self._feed)


class KeyReader(StreamReader[Any]):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._random = random.Random(1)
        self._left = 0
        self._due = 0.0

    def poll(self, limit: int) -> Sequence[Polled[Any]]:
        feed = self._feed
        now = time.perf_counter()
        if feed.loaded < feed.keys:
            end = min(feed.keys, feed.loaded + BATCH)
            events = [(f"key-{n:08}", None) for n in range(feed.loaded, end)]
            feed.loaded = end
        elif feed.is_steady:
            self._due = self._due or now
            count = min(int((now - self._due) * RATE), limit)
            if not count:
                return []
            events = [(self._key(), self._due + n / RATE) for n in range(count)]
            self._due += count / RATE
        else:
            events = [(self._key(), None) for _ in range(min(self._left, BATCH))]
            self._left -= len(events)
        return [Polled(0, events)] if events else []

    def _key(self) -> str:
        return f"key-{self._random.randrange(self._feed.keys):08}"

    def save(self) -> Sequence[Any]:
        self._left = int(self._feed.keys * SHARE)
        return [self._feed.loaded]

    def restore(self, positions: Sequence[Any]) -> None:
        pass


def pipeline(feed: Feed, size: int) -> Pipeline:
    """A state of so many bytes for each key, which every event changes in place."""

    def create() -> list[Any]:
        return [0, random.randbytes(size)]

    def count(state: list[Any], key: str, event: tuple[str, float | None]) -> float | None:
        state[0] += 1
        return event[1]

    def measure(due: float | None) -> None:
        if due is not None and feed.measured is not None:
            feed.measured.add(time.perf_counter() - due)

    p = Pipeline("state")
    (
        p.read_from(Keys(feed))
        .without_timestamps()
        .grouping_key(lambda event: event[0])
        .map_stateful(create, count)
        .write_to(sinks.client(measure))
    )
    return p


def submit(
    engine: EmbeddedEngine, feed: Feed, size: int, directory: Path | None, interval: float
) -> Job:
    settings: dict[str, Any] = {}
    if directory is not None:
        settings = {"processing_guarantee": "exactly-once", "snapshot_interval": interval}
        settings |= {"snapshot_dir": str(directory), "start_fresh": True}
    return engine.submit(pipeline(feed, size), JobConfig(**settings))


def changes(directory: Path, *, quick: bool) -> None:
    feed = Feed(50_000 if quick else 10_000_000)
    with EmbeddedEngine() as engine:
        job = submit(engine, feed, 100, directory, 1.0)
        while feed.loaded < feed.keys:
            time.sleep(0.05)
        time.sleep(3.0)
        for number in range(2):
            job.export_snapshot(f"whole-{number}")
        time.sleep(3.0 if quick else 25.0)
        history = job.metrics().taken
        job.cancel()
    whole = [each for each in history if each["export"]]
    first = max(history.index(each) for each in whole)
    some = [each for each in history[first + 2 :] if not each["export"]]
    for what, typical in (("bytes", statistics.median), ("ms", min)):
        all_of_it, part = (typical(each[what] for each in taken) for taken in (whole, some))
        print(f"  {what}: {all_of_it:,.0f} for {feed.keys:,} keys, {part:,.0f} for 1% of them")
        at_most(f"{what} after 1% changed against all", part / all_of_it, 0.05)


def latencies(feed: Feed, directory: Path | None, seconds: float) -> Histogram:
    with EmbeddedEngine() as engine:
        job = submit(engine, feed, 1000, directory, 1.0)
        while feed.loaded < feed.keys:
            time.sleep(0.05)
        time.sleep(2.0)
        feed.is_steady = True
        time.sleep(5.0)
        feed.measured = Histogram()
        time.sleep(seconds)
        measured, feed.measured = feed.measured, None
        if directory is not None:
            some = job.metrics().taken[-int(seconds) :]
            assert not any(each["error"] for each in some)
            size, ms = (statistics.median(each[what] for each in some) for what in ("bytes", "ms"))
            print(f"  {len(some)} snapshots; half of them up to {size / 1e6:.1f} MB in {ms:.0f} ms")
        job.cancel()
    return measured


def latency(directory: Path, *, quick: bool) -> None:
    keys, seconds = (20_000, 3.0) if quick else (1_000_000, 20.0)
    best = {True: float("inf"), False: float("inf")}
    for _ in range(1 if quick else 2):
        for with_snapshots in (False, True):
            measured = latencies(Feed(keys), directory if with_snapshots else None, seconds)
            text = ", ".join(
                f"p{s * 100:g} {measured.at(s) * 1e3:.1f} ms" for s in (0.5, 0.9, 0.99, 0.999)
            )
            print(f"  {'with' if with_snapshots else 'without'} snapshots: {text}", flush=True)
            best[with_snapshots] = min(best[with_snapshots], measured.at(0.99))
    at_most("ms that snapshots add to p99", (best[True] - best[False]) * 1e3, 10)


PARTS = {"changes": changes, "latency": latency}


def main() -> None:
    quick = "--quick" in sys.argv
    for name in [name for name in PARTS if name in sys.argv] or list(PARTS):
        print(f"  -- {name}")
        with tempfile.TemporaryDirectory() as directory:
            PARTS[name](Path(directory), quick=quick)


if __name__ == "__main__":
    main()
