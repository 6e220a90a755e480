"""A rolling sum by key in micro-batches: 1,000,000 keys of state against 10,000.

Every batch has 50,000 events, which touch the same 10,000 keys. So the batches do the same, but for
the state that they do not touch. Both jobs run on one Spark with two cores and get their batches in
turns; the state is cached in the Python workers, which share the tasks as it comes.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import statistics
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from benchmarks.measure import at_most, tree_time
from jetlet import JobConfig, Pipeline, SparkEngine, agg, sinks, sources
from jetlet.jobs.job import Job

CORES = 2
EVENTS = 50_000
TOUCHED = 10_000
WARM_UP = 6
"""Batches until both workers have the state of both tasks, more likely than not."""


class Batches(logging.Handler):
    """Hears from the log when a batch has ended, and how long it took."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: queue.Queue[float] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage().split()
        if "items" in words and not words[words.index("items") - 1].startswith("0"):
            self.seconds.put(float(words[words.index("in") + 1]))


class Contestant:
    """A job, and the directory from which its stream is read, a file at a time."""

    def __init__(self, engine: SparkEngine, directory: Path, keys: int) -> None:
        self.keys = keys
        self._directory = directory / f"in-{keys}"
        self._directory.mkdir()
        self._files = 0
        self._random = random.Random(keys)
        self._touched = self._random.sample(range(keys), TOUCHED)
        p = Pipeline(f"sums-{keys}")
        (
            p.read_from(
                sources.spark_stream(
                    lambda spark: (
                        spark.readStream.schema("key long, value long")
                        .option("maxFilesPerTrigger", 1)
                        .parquet(str(self._directory))
                    )
                )
            )
            .without_timestamps()
            .grouping_key(lambda row: row["key"])
            .rolling_aggregate(agg.summing(lambda row: row["value"]))
            .filter(lambda result: result[1] < 0)
            .write_to(sinks.collect())
        )
        self.job: Job = engine.submit(p, JobConfig(snapshot_dir=str(directory / f"state-{keys}")))

    def put(self, keys: list[int]) -> None:
        """A batch of events."""
        self._files += 1
        name = f"{self._files:06d}.parquet"
        aside = self._directory.parent / name
        parquet.write_table(pa.table({"key": keys, "value": [1] * len(keys)}), aside)
        aside.replace(self._directory / name)

    def events(self) -> list[int]:
        return self._random.choices(self._touched, k=EVENTS)


def main() -> None:
    quick = "--quick" in sys.argv
    sizes = (TOUCHED, 100_000 if quick else 1_000_000)
    rounds = 3 if quick else 20
    heard = Batches()
    log = logging.getLogger("jetlet.spark")
    log.setLevel(logging.INFO)
    log.addHandler(heard)
    log.propagate = False
    with tempfile.TemporaryDirectory() as directory, SparkEngine(f"local[{CORES}]") as engine:
        contestants = [Contestant(engine, Path(directory), keys) for keys in sizes]
        times: dict[int, list[float]] = {keys: [] for keys in sizes}
        busy: dict[int, list[float]] = {keys: [] for keys in sizes}
        for each in contestants:
            each.put(list(range(each.keys)))
            print(f"  {each.keys:,} keys are there after {heard.seconds.get():.1f} s", flush=True)
        for number in range(WARM_UP + rounds):
            for each in contestants:
                each.put(each.events())
                used = tree_time(os.getpid())
                seconds = heard.seconds.get(timeout=120)
                if number >= WARM_UP:
                    times[each.keys].append(seconds)
                    busy[each.keys].append(tree_time(os.getpid()) - used)
        for each in contestants:
            each.job.cancel()
    for keys, taken in times.items():
        print(
            f"  {keys:9,} keys: {min(taken):.3f} s, half of them up to "
            f"{statistics.median(taken):.3f} s, with {statistics.median(busy[keys]):.3f} s of "
            f"processor time"
        )
    few, many = map(statistics.median, times.values())
    at_most("a batch with many keys against one with few", many / few, 1.2)
    few, many = map(statistics.median, busy.values())
    at_most("the same in processor time", many / few, 1.2)


if __name__ == "__main__":
    main()
