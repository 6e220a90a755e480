"""Where the seconds go between the start of a Spark session and its first result.

    python benchmarks/spark_startup.py [--repeat 3] [--master 'local[2]']

Three ways to start: PySpark as it comes, ours without a class-data archive (what the first session
on a machine gets), ours with one (all later ones). Each runs in a fresh interpreter; the fastest of
the repeats is shown, since a busy machine only ever adds. The archive is made first if there is
none, in half a minute. ``first result`` runs from before pyspark is imported to the ten items that
came through Python; ``processor`` is the processor time of this process and the JVM until then, by
all cores together, which a busy machine disturbs less; ``shuffle`` is a second job with two passes
through Python and an exchange.
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
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

WAYS = {"plain pyspark": "plain", "ours, no archive": "cold", "ours, archive": "warm"}
PHASES = ["java", "launcher", "imports", "jvm", "session", "first job"]
PHASES += ["first result", "processor", "shuffle"]


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def plain_session(master: str, seconds: dict[str, float]) -> SparkSession:
    """A session by the means of PySpark, with what makes it work at all and nothing else."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    at = time.perf_counter()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    seconds["imports"] = time.perf_counter() - at
    at = time.perf_counter()
    SparkContext._ensure_initialized()
    seconds["jvm"] = time.perf_counter() - at
    at = time.perf_counter()
    session = SparkSession.builder.master(master).getOrCreate()
    seconds["session"] = time.perf_counter() - at
    return session


def jvm_time(session: SparkSession) -> float:
    """Processor seconds of the session's JVM so far."""
    pid = session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(way: str, master: str) -> dict[str, float]:
    """One start in this process: the phases in seconds."""
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    seconds: dict[str, float] = {}
    if way == "plain":
        session = plain_session(master, seconds)
    else:
        from jetlet.spark.session import start_session

        started = start_session(master)
        session = started.session
        seconds |= started.seconds
    at = time.perf_counter()
    assert len(session.range(10, numPartitions=2).mapInArrow(same, "id long").collect()) == 10
    seconds["first job"] = time.perf_counter() - at
    seconds["first result"] = time.perf_counter() - began
    with contextlib.suppress(OSError):  # no /proc
        seconds["processor"] = time.process_time() + jvm_time(session)

    from pyspark.sql import functions as f

    at = time.perf_counter()
    numbers = session.range(10, numPartitions=2).mapInArrow(same, "id long")
    routed = numbers.withColumn("target", (f.col("id") % 2).cast("int"))
    routed = routed.repartitionById(2, f.col("target"))
    assert len(routed.mapInArrow(same, "id long, target int").collect()) == 10
    seconds["shuffle"] = time.perf_counter() - at
    session.stop()
    return seconds


def measure_elsewhere(way: str, master: str) -> dict[str, float]:
    """One start in a fresh interpreter."""
    archive = {"JETLET_SPARK_ARCHIVE": "off"} if way == "cold" else {}
    done = subprocess.run(
        [sys.executable, __file__, "--only", way, "--master", master],
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
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only, arguments.master)))
        return

    from jetlet.spark.warm_up import warm_up

    at = time.perf_counter()
    warm_up()
    print(f"class-data archive made, or found, in {time.perf_counter() - at:.1f} s")
    print(f"{'seconds':18}" + "".join(f"{phase:>13}" for phase in PHASES))
    fastest: dict[str, float] = {}
    for name, way in WAYS.items():
        runs = [measure_elsewhere(way, arguments.master) for _ in range(arguments.repeat)]
        best = min(runs, key=lambda run: run["first result"])
        fastest[way] = best["first result"]
        cells = (f"{best[phase]:13.2f}" if phase in best else f"{'-':>13}" for phase in PHASES)
        print(f"{name:18}" + "".join(cells), flush=True)
    print(f"first result, archive against plain pyspark: {fastest['plain'] / fastest['warm']:.1f}x")


if __name__ == "__main__":
    main()
