"""How long after its end a sliding window is there on Spark: on members, and in micro-batches.

    python -m benchmarks.hosted_latency [--seconds 20] [--rate 5000] [--keys 100] [--quick]

Windows of 1 s sliding by 50 ms, on ``local-cluster[2,1,1024]``: two executors with a core each.
What the latency is, and who makes the events, is as in ``window_latency``; each member has half of
them. The results arrive in the driver.

Beside it is Structured Streaming, at its best: it has events when a batch begins, and counts them
itself, without Python; each window is emitted once, when it is complete; batches follow each other
without a pause, with the file manager that is fastest and checkpoints in memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Histogram, at_least, at_most
from benchmarks.window_latency import SIZE, WARM_UP, Arrivals, Generator, Schedule, counting
from jetlet import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLIDE = 50
MEMBERS = 2
LIMITS = {0.5: 5, 0.99: 30}
"""Milliseconds that a share of the results may take at the most."""
TENS = 10
"""How many times as long micro-batches take, at the least."""
STREAMING = "org.apache.spark.sql.execution.streaming"
TUNED = {
    "spark.python.unix.domain.socket.enabled": True,
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.shuffle.partitions": 2,
    # The code that it makes for twenty overlapping windows is too much for its own regex.
    "spark.driver.extraJavaOptions": "-Xss16m",
}
NAME = "events"
SPARK_WARM_UP = 10.0
"""Seconds that do not count, of micro-batches; the code of Spark is compiled as it runs."""
PATIENCE = 120
"""Seconds for the first of them."""


@contextmanager
def started_engine() -> Iterator[SparkEngine]:
    """Spark with two executors, which leave nothing behind."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "spark"))
    from clusters import local_cluster

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        local_cluster(Path(directory)) as master,
        SparkEngine(master, config=TUNED, members=MEMBERS) as engine,
    ):
        yield engine


def members(engine: SparkEngine, rate: int, keys: int, seconds: float) -> Histogram:
    arrivals = Arrivals()
    generator = Generator(rate, keys, seconds + WARM_UP, partitions=MEMBERS)
    engine.submit(counting(generator, SLIDE, arrivals)).join()
    return arrivals.latencies


def micro_batches(spark: SparkSession, rate: int, keys: int, seconds: float) -> Histogram:
    from pyspark.sql import functions

    warm_up = min(seconds, SPARK_WARM_UP)
    arrivals, has_begun = Arrivals(warm_up), threading.Event()

    def note(batch: DataFrame, batch_id: int) -> None:
        if ends := [row.end for row in batch.collect()]:
            arrivals.note(ends)
            has_begun.set()

    spark.dataSource.register(due_events(rate, keys, PATIENCE + warm_up + seconds))
    counts = (
        spark.readStream.format(NAME)
        .load()
        .select("key", functions.timestamp_millis("at").alias("at"))
        .withWatermark("at", "0 seconds")
        .groupBy(functions.window("at", f"{SIZE} milliseconds", f"{SLIDE} milliseconds"), "key")
        .count()
        .select("key", "count", functions.unix_millis("window.end").alias("end"))
    )
    writer = counts.writeStream.outputMode("append").foreachBatch(note)
    memory = "/dev/shm" if Path("/dev/shm").exists() else None
    with tempfile.TemporaryDirectory(dir=memory) as checkpoints:
        query = writer.option("checkpointLocation", checkpoints).start()
        try:
            deadline = time.monotonic() + PATIENCE
            while not has_begun.wait(1):
                if query.exception() is not None or time.monotonic() > deadline:
                    raise RuntimeError("no result of Spark's") from query.exception()
            time.sleep(warm_up + seconds)
        finally:
            query.stop()
    return arrivals.latencies


def due_events(rate: int, keys: int, seconds: float) -> type:
    """A source of Spark's for the events, which are read as soon as a batch begins."""
    from pyspark import cloudpickle
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

    from benchmarks import window_latency

    class Reader(SimpleDataSourceStreamReader):
        schedule: Schedule | None = None

        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"read": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
            if self.schedule is None:
                self.schedule = Schedule(rate, keys, seconds)
            due = self.schedule.due(rate * PATIENCE) or ([], [])
            return zip(*due, strict=True), {"read": start["read"] + len(due[0])}

    class Events(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return "key int, at bigint"

        def simpleStreamReader(self, schema: Any) -> Reader:  # noqa: N802
            return Reader()

    cloudpickle.register_pickle_by_value(window_latency)
    return Events


def show(name: str, latencies: Histogram) -> None:
    print(f"  {name}: {latencies.total} results")
    latencies.show()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    size = (arguments.rate, arguments.keys, 2.0 if arguments.quick else arguments.seconds)
    with started_engine() as engine:
        print(f"  {arguments.rate} events/s, {arguments.keys} keys, {SIZE} ms by {SLIDE} ms")
        ours = members(engine, *size)
        show(f"{MEMBERS} members", ours)
        theirs = micro_batches(engine.session, *size)
        show("Structured Streaming", theirs)
    for share, limit in LIMITS.items():
        at_most(f"p{share * 100:g} on members, ms", ours.at(share) * 1e3, limit)
    for share in LIMITS:
        ratio = theirs.at(share) / ours.at(share)
        at_least(f"p{share * 100:g}, Structured Streaming / members", ratio, TENS)


if __name__ == "__main__":
    main()
