"""Where the seconds go between the start of a Spark session and the first result of a pipeline.

    python -m benchmarks.spark_startup [--repeat 3] [--master 'local[2]'] [--quick]

Three ways to start: PySpark as it comes, ours without a class-data archive (what the first session
on a machine gets), ours with one (all later ones). Each runs in a fresh interpreter; the fastest of
the repeats is shown, since a busy machine only ever adds. The archive is made first if there is
none, in half a minute. ``first result`` runs from before anything is imported to the ten items that
came through Python, in our case through a pipeline; ``processor`` is the processor time until then
of this process, the JVM and the Python workers, by all cores together, which a busy machine
disturbs less; ``shuffle`` is a second job with two passes through Python and an exchange.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from benchmarks.measure import at_least, at_most, tree_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

WAYS = {"plain pyspark": "plain", "ours, no archive": "cold", "ours, archive": "warm"}
PHASES = ["imports", "java", "launcher", "jvm", "session", "first job"]
PHASES += ["first result", "processor", "shuffle"]


class Laps:
    """Seconds of the phases of a start, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def end(self, spark: Any) -> None:
        self.seconds["first result"] = self._last - self._began
        with contextlib.suppress(OSError):  # no /proc
            jvm = spark.sparkContext._gateway.proc.pid
            self.seconds["processor"] = time.process_time() + tree_time(jvm)
        self._last = time.perf_counter()


def plain(master: str) -> dict[str, float]:
    """A start by the means of PySpark, with what makes it work at all and nothing else."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    laps = Laps()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    laps.lap("imports")
    SparkContext._ensure_initialized()
    laps.lap("jvm")
    session = SparkSession.builder.master(master).getOrCreate()
    laps.lap("session")

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    assert len(session.range(10, numPartitions=2).mapInArrow(same, "id long").collect()) == 10
    laps.lap("first job")
    laps.end(session)
    numbers = session.range(10, numPartitions=2).mapInArrow(same, "id long")
    routed = numbers.withColumn("target", (f.col("id") % 2).cast("int"))
    routed = routed.repartitionById(2, f.col("target"))
    assert len(routed.mapInArrow(same, "id long, target int").collect()) == 10
    laps.lap("shuffle")
    session.stop()
    return laps.seconds


def ours(master: str) -> dict[str, float]:
    """A start by ``SparkEngine``."""
    laps = Laps()
    from jetlet import Pipeline, SparkEngine, agg, sinks, sources, whole_item

    laps.lap("imports")
    with SparkEngine(master) as engine:
        laps.lap("session")  # what follows is a part of it
        for name, seconds in engine._started.seconds.items():
            if name != "session":
                laps.seconds[name] = laps.seconds.get(name, 0.0) + seconds
                laps.seconds["session"] -= seconds
        p = Pipeline("ten")
        out = sinks.collect()
        p.read_from(sources.items(range(10))).map(lambda n: n + 1).write_to(out)
        engine.submit(p).join()
        assert len(out.items) == 10
        laps.lap("first job")
        laps.end(engine.session)
        p = Pipeline("shuffle")
        stage = p.read_from(sources.items(range(10))).grouping_key(whole_item)
        stage.aggregate(agg.counting()).write_to(out)
        engine.submit(p).join()
        laps.lap("shuffle")
    return laps.seconds


def measure_elsewhere(way: str, master: str) -> dict[str, float]:
    """One start in a fresh interpreter."""
    archive = {"JETLET_SPARK_ARCHIVE": "off"} if way == "cold" else {}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark_startup", "--only", way, "--master", master],
        env={**os.environ, **archive},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", choices=WAYS.values(), help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="each way once")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.repeat = 1
    if arguments.only:
        warnings.simplefilter("ignore")
        way = plain if arguments.only == "plain" else ours
        print(json.dumps(way(arguments.master)))
        return

    from jetlet.spark.launch.warm_up import warm_up

    at = time.perf_counter()
    warm_up()
    print(f"  class-data archive made, or found, in {time.perf_counter() - at:.1f} s")
    print(f"  {'seconds':16}" + "".join(f"{phase:>13}" for phase in PHASES))
    fastest: dict[str, float] = {}
    for name, way in WAYS.items():
        runs = [measure_elsewhere(way, arguments.master) for _ in range(arguments.repeat)]
        best = min(runs, key=lambda run: run["first result"])
        fastest[way] = best["first result"]
        cells = (f"{best[phase]:13.2f}" if phase in best else f"{'-':>13}" for phase in PHASES)
        print(f"  {name:16}" + "".join(cells), flush=True)
    at_least("plain pyspark against ours", fastest["plain"] / fastest["warm"], 2)
    at_most("seconds to the first result", fastest["warm"], 4)


if __name__ == "__main__":
    main()
