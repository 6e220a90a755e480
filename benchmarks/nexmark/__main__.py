"""NEXMark: Jetlet embedded, on two members and on Spark's executors, beside Spark and Flink SQL.

Prints events per second of processor time, which is what a core does, and by the clock. The events
are those of the streams that a query reads. Each engine is warm: the best of several runs counts.

Flink runs if ``FLINK_PYTHON`` names a Python that has apache-flink, in an environment of its own::

    python -m venv flink && flink/bin/pip install apache-flink
    FLINK_PYTHON=flink/bin/python python -m benchmarks.nexmark [--quick] [--events N] [ENGINE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from benchmarks.measure import tree_time
from benchmarks.nexmark import answers, events, flink_queries
from benchmarks.nexmark.queries import QUERIES, READS, Inputs, last_averages
from jetlet import EmbeddedEngine, Pipeline, SparkEngine, sinks

Run = Callable[[str], None]
ENGINES = ("embedded", "members", "hosted", "spark", "flink")
GOAL = 1e6
"""Events per second of a core, of queries without a join."""


@dataclass(frozen=True, slots=True)
class Took:
    """The best of several runs, in seconds."""

    seconds: float
    busy: float


def run_query(engine: Any, directory: Path, shares: int, name: str) -> None:
    p = Pipeline(name)
    QUERIES[name](Inputs(p, directory, shares)).write_to(sinks.noop())
    engine.submit(p).join()


def check(directory: Path, count: int) -> None:
    """Every query gives what its answer by hand says, of so many events."""
    events.write(directory, count)
    streams = [pq.read_table(directory / f"{name}.parquet") for name in events.Streams.names()]
    rows = [stream.to_pylist() for stream in streams]
    with EmbeddedEngine() as engine:
        for name, query in QUERIES.items():
            p, out = Pipeline(name), sinks.collect()
            query(Inputs(p, directory)).write_to(out)
            engine.submit(p).join()
            found: Any = last_averages(out.items) if name == "q4" else out.items
            wanted = answers.ANSWERS[name](*rows)
            assert sorted(map(repr, found)) == sorted(map(repr, wanted)), name
    print(f"all queries give the answers by hand, of {count:,} events", flush=True)


@contextmanager
def started(engine: str, directory: Path) -> Iterator[Run]:
    """What runs a query on an engine."""
    if engine == "embedded":
        with EmbeddedEngine(workers=1) as here:
            yield partial(run_query, here, directory, 1)
    elif engine == "members":
        with EmbeddedEngine(members=2) as two:
            yield partial(run_query, two, directory, 2)
    elif engine == "hosted":
        with SparkEngine("local[2]", members=2) as hosts:
            yield partial(run_query, hosts, directory, 2)
    else:
        from benchmarks.nexmark.spark_queries import SparkQueries

        with SparkEngine("local[1]") as spark:
            yield SparkQueries(spark.session, directory).run


def measured(run: Run, name: str, repeats: int) -> Took:
    found = []
    for _ in range(repeats):
        start, used = time.perf_counter(), tree_time(os.getpid())
        run(name)
        found.append((time.perf_counter() - start, tree_time(os.getpid()) - used))
    return Took(*(min(each) for each in zip(*found, strict=True)))


def in_flink(directory: Path, names: list[str], repeats: int) -> dict[str, Took]:
    """What Flink takes, if there is one."""
    python = os.environ.get("FLINK_PYTHON")
    if python is None:
        print("flink is left out: FLINK_PYTHON names no Python that has apache-flink")
        return {}
    for name in events.Streams.names():
        table = pq.read_table(directory / f"{name}.parquet")
        plain = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for column in table.columns
        ]
        options = csv.WriteOptions(include_header=False)
        named = pa.table(plain, names=table.column_names)
        csv.write_csv(named, directory / f"{name}.csv", write_options=options)
    done = subprocess.run(
        [python, flink_queries.__file__, str(directory.resolve()), str(repeats), *names],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["query"]: Took(line["seconds"], line["busy"]) for line in lines}


def show(counts: dict[str, int], took: dict[str, dict[str, Took]]) -> None:
    """The table: million events per second of processor time, and by the clock behind it."""
    print("\nmillion events per second of processor time (by the clock)")
    print("query".ljust(8) + "".join(engine.rjust(16) for engine in took))
    for name in QUERIES:
        cells = []
        for found in took.values():
            each = found.get(name)
            if each is None:
                cells.append("-")
                continue
            busy, clock = (counts[name] / max(s, 1e-9) / 1e6 for s in (each.busy, each.seconds))
            cells.append(f"{busy:.2f} ({clock:.2f})")
        print(name.ljust(8) + "".join(cell.rjust(16) for cell in cells))
    ours = took.get("embedded", {})
    for name, each in ours.items():
        rate = counts[name] / max(each.busy, 1e-9)
        peers = [
            found[name]
            for engine, found in took.items()
            if engine in ("spark", "flink") and name in found
        ]
        ahead = min((peer.busy / max(each.busy, 1e-9) for peer in peers), default=None)
        said = "" if ahead is None else f"; {ahead:.1f} times the best of the others per core"
        goal = "" if name in READS else f" (at least 1: {'holds' if rate >= GOAL else 'MISSED'})"
        print(f"  {name}: {rate / 1e6:.2f} M events/s per core{goal}{said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--quick", action="store_true", help="few events: does it run at all?")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--queries", default=",".join(QUERIES))
    arguments = parser.parse_args()
    count, repeats = (20_000, 1) if arguments.quick else (arguments.events, arguments.repeats)
    wanted = arguments.engines or (["embedded"] if arguments.quick else list(ENGINES))
    names = arguments.queries.split(",")
    with tempfile.TemporaryDirectory() as root:
        check(Path(root) / "small", min(count, 100_000))
        directory = Path(root) / "events"
        events.write(directory, count)
        rows = {
            stream: pq.read_metadata(directory / f"{stream}.parquet").num_rows
            for stream in events.Streams.names()
        }
        counts = {name: sum(rows[each] for each in READS.get(name, ("bids",))) for name in QUERIES}
        took: dict[str, dict[str, Took]] = {}
        for engine in wanted:
            if engine == "flink":
                took[engine] = in_flink(directory, names, repeats)
                continue
            with started(engine, directory) as run:
                took[engine] = {}
                for name in names:
                    took[engine][name] = measured(run, name, repeats)
                    print(f"{engine} {name}: {took[engine][name].seconds:.2f} s", flush=True)
        show(counts, took)


if __name__ == "__main__":
    main()
