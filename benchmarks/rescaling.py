"""How long a job gives no results while it goes on with another number of members.

    python -m benchmarks.rescaling [--quick] [embedded] [spark]

A state of 10 kB for each of 1,000 keys, exactly-once with a snapshot each 200 ms; 1,000 events a
second come and are numbered by key. Two members become three, and two again, a few times. A pause
is the largest gap between results in the log that they are written to, where they are seen once
they are committed. At the end each event has to be there, and each number of a key, exactly once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measure import at_most
from jetlet import EmbeddedEngine, JobConfig, Pipeline, SparkEngine, sinks, sources
from jetlet.jobs.job import Job
from jetlet.log import Log

KEYS, SIZE = 1000, 10_000
RATE, PERIOD = 1000, 0.05
"""Events a second, and seconds from some to the next."""
FEW, MANY = 2, 3
"""Members."""
AFTER = 10
"""So many times there are further results before the pause is known to be over."""
LIMIT = 5.0


class Feed(threading.Thread):
    """Writes events until it is told to stop; every key has one from the beginning."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._log = Log(directory, partitions=4)
        self._is_over = threading.Event()
        self.count = 0
        self._write(KEYS)

    def run(self) -> None:
        while not self._is_over.wait(PERIOD):
            self._write(int(RATE * PERIOD))
        self._log.close()

    def _write(self, count: int) -> None:
        self._log.append(range(self.count, self.count + count))
        self.count += count

    def stop(self) -> None:
        self._is_over.set()
        self.join()


class Watch(threading.Thread):
    """Notes when there are more results than before."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._log = Log(directory, partitions=1)
        self._is_over = threading.Event()
        self.count = 0
        self.times: list[float] = []

    def run(self) -> None:
        while not self._is_over.wait(0.005):
            (count,) = self._log.end_offsets()
            if count > self.count:
                self.count = count
                self.times.append(time.monotonic())

    def largest_gap(self, since: float) -> float:
        """Between two of those times, of which the second one is later than that moment."""
        return max(after - before for before, after in pairwise(self.times) if after > since)

    def stop(self) -> list[tuple[int, int, int]]:
        """All results."""
        self._is_over.set()
        self.join()
        found: list[tuple[int, int, int]] = []
        with self._log as log:
            while rows := log.read(0, len(found)).items:
                found += rows
        return found


def number(state: list[Any], key: int, event: int) -> tuple[int, int, int]:
    state[0] += 1
    return key, state[0], event


def pipeline(directory: Path) -> Pipeline:
    p = Pipeline("rescaling")
    (
        p.read_from(sources.log(directory / "in"))
        .without_timestamps()
        .grouping_key(lambda event: event % KEYS)
        .map_stateful(lambda: [0, os.urandom(SIZE)], number)
        .write_to(sinks.log(directory / "out"))
    )
    return p


def await_that(job: Job, holds: Callable[[], bool]) -> None:
    while not holds():
        if job.status.is_final:
            raise AssertionError(f"the job has ended: {job.error}")
        time.sleep(0.01)


def members(job: Job) -> int:
    return len({worker["member"] for worker in job.metrics().workers})


def run(engine: EmbeddedEngine | SparkEngine, directory: Path, changes: int) -> dict[int, float]:
    """The shortest pause of those to each number of members."""
    feed, watch = Feed(directory / "in"), Watch(directory / "out")
    config = JobConfig(
        processing_guarantee="exactly-once",
        snapshot_dir=str(directory / "state"),
        snapshot_interval=0.2,
    )
    job = engine.submit(pipeline(directory), config)
    best: dict[int, float] = {}
    feed.start()
    watch.start()
    try:
        await_that(job, lambda: watch.count >= KEYS and len(watch.times) > AFTER)
        for change in range(changes):
            size = job.metrics().snapshots["last_bytes"]
            count = FEW if change % 2 else MANY
            began = time.monotonic()
            job.rescale(count)
            await_that(job, lambda count=count: members(job) == count)
            until = len(watch.times) + AFTER
            await_that(job, lambda until=until: len(watch.times) >= until)
            gap = watch.largest_gap(began)
            best[count] = min(gap, best.get(count, gap))
            load, *_ = os.getloadavg()
            print(
                f"  to {count} members: {gap:.2f} s without results, {size / 1e6:.1f} MB of state, "
                f"load {load:.0f}",
                flush=True,
            )
        feed.stop()
        await_that(job, lambda: watch.count >= feed.count)
    finally:
        feed.stop()
        results = watch.stop()
        job.cancel()
    assert Counter(event for *_, event in results) == Counter(range(feed.count)), "not exactly once"
    numbers = Counter((n % KEYS, n // KEYS + 1) for n in range(feed.count))
    assert Counter((key, number) for key, number, _ in results) == numbers, "wrong numbers"
    return best


ENGINES: dict[str, Callable[[], EmbeddedEngine | SparkEngine]] = {
    "embedded": lambda: EmbeddedEngine(members=FEW),
    "spark": lambda: SparkEngine(f"local[{MANY}]", members=FEW),
}


def main() -> None:
    changes = 2 if "--quick" in sys.argv else 6
    for name in [name for name in ENGINES if name in sys.argv[1:]] or ENGINES:
        print(f"  {name}:")
        with tempfile.TemporaryDirectory() as directory, ENGINES[name]() as engine:
            best = run(engine, Path(directory), changes)
        for count, seconds in best.items():
            at_most(f"{name}, seconds without results, to {count} members", seconds, LIMIT)


if __name__ == "__main__":
    main()
