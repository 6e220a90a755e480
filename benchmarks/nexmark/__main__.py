"""NEXMark: Jetlet embedded, on two members and on Spark's executors, beside Spark and Flink SQL.

Prints events per second of processor time, which is what a core does, and by the clock. The events
are those of the streams that a query reads. Each query runs over few events and over many, and
what it takes for the others counts: so nobody's start-up does, of members, sessions or plans. Each
engine is warm, and the best of several runs counts. What an engine gives is compared before with
what plain Python gives.

Flink runs if ``FLINK_PYTHON`` names a Python that has apache-flink, in an environment of its own::

    python -m venv flink && flink/bin/pip install apache-flink
    FLINK_PYTHON=flink/bin/python python -m benchmarks.nexmark [--quick] [--events N] [ENGINE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.measure import TreeClock
from benchmarks.nexmark import answers, events
from benchmarks.nexmark.contestants import Contestant, Flink, Ours, is_answer
from benchmarks.nexmark.queries import QUERIES, reads
from jetlet import EmbeddedEngine, SparkEngine

ENGINES = ("embedded", "members", "hosted", "spark", "flink")
PEERS = ("spark", "flink")
GOAL = 1e6
"""Events per second of a core, of queries that read one stream."""
ENOUGH = 1.0
"""Seconds of processor time that more events have to make."""
MANY = (4, 16)
"""Times as many events as few are."""
CHECKED = 100_000
"""Events of which results are compared."""


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a run, or of the best of several."""

    count: int
    seconds: float
    busy: float

    def or_less(self, other: Took) -> Took:
        seconds, busy = min(self.seconds, other.seconds), min(self.busy, other.busy)
        return Took(self.count, seconds, busy)


@dataclass(frozen=True, slots=True)
class Rate:
    """Events per second, as soon as all has started."""

    by_core: float
    by_clock: float
    start: float
    """Seconds of processor time that do not depend on how many events there are."""

    @staticmethod
    def between(few: Took, many: Took) -> Rate:
        count = many.count - few.count
        by_core = count / max(many.busy - few.busy, 1e-9)
        by_clock = count / max(many.seconds - few.seconds, 1e-9)
        return Rate(by_core, by_clock, max(0.0, many.busy - many.count / by_core))


@cache
def written(root: Path, count: int) -> Path:
    """A directory with so many events."""
    directory = root / f"events_{count}"
    events.write(directory, count)
    return directory


@cache
def count_of(directory: Path, name: str) -> int:
    """How many events a query reads."""
    return sum(pq.read_metadata(directory / f"{each}.parquet").num_rows for each in reads(name))


@contextmanager
def started(engine: str, root: Path) -> Iterator[Contestant | None]:
    """What runs queries; ``None`` if it is not there."""
    if engine == "embedded":
        with EmbeddedEngine(workers=1) as here:
            yield Ours(here)
    elif engine == "members":
        with EmbeddedEngine(members=2) as two:
            yield Ours(two, shares=2)
    elif engine == "hosted":
        with SparkEngine("local[2]", members=2) as hosts:
            yield Ours(hosts, shares=2)
    elif engine == "spark":
        from benchmarks.nexmark.spark_queries import SparkQueries

        with SparkEngine("local[1]") as spark:
            yield SparkQueries(spark.session)
    elif (python := os.environ.get("FLINK_PYTHON")) is None:
        print("flink is left out: FLINK_PYTHON names no Python that has apache-flink")
        yield None
    else:
        with Flink(python, root / "flink") as flink:
            yield flink


def check(contestant: Contestant, engine: str, names: Sequence[str], directory: Path) -> None:
    """Every query gives what its answer by hand says."""
    streams = [pq.read_table(directory / f"{name}.parquet") for name in events.Streams.names()]
    rows = [stream.to_pylist() for stream in streams]
    for name in names:
        found = contestant.results(name, directory)
        if not is_answer(name, found, answers.ANSWERS[name](*rows)):
            raise SystemExit(f"{engine} gives something else for {name} than plain Python")
    print(f"{engine}: the results are those of plain Python", flush=True)


def timed(contestant: Contestant, name: str, directory: Path, clock: TreeClock) -> Took:
    start, used = time.perf_counter(), clock()
    contestant.run(name, directory)
    seconds, busy = time.perf_counter() - start, clock() - used
    return Took(count_of(directory, name), seconds, busy)


def measured(
    contestant: Contestant, name: str, root: Path, count: int, repeats: int, clock: TreeClock
) -> Rate:
    """So many events, and more of them until that makes enough of a difference, in turns."""
    first = written(root, count)
    contestant.run(name, first)
    few = timed(contestant, name, first, clock)
    for times in MANY:
        others = written(root, times * count)
        many = timed(contestant, name, others, clock)
        if many.busy - few.busy >= ENOUGH:
            break
    for _ in range(repeats - 1):
        few = few.or_less(timed(contestant, name, first, clock))
        many = many.or_less(timed(contestant, name, others, clock))
    return Rate.between(few, many)


def read_rates(file: Path | None) -> dict[str, dict[str, Rate]]:
    """What earlier runs have measured."""
    if file is None or not file.exists():
        return {}
    kept = json.loads(file.read_text())
    return {
        engine: {name: Rate(**rate) for name, rate in found.items()}
        for engine, found in kept.items()
    }


def show(rates: dict[str, dict[str, Rate]], names: Sequence[str]) -> None:
    """The tables: million events per second and core, and seconds of start-up."""
    for title, show_one in (
        ("million events per second of processor time (by the clock)", _speed),
        ("seconds of processor time that each run takes, however many events there are", _start),
    ):
        print(f"\n{title}")
        print("query".ljust(8) + "".join(engine.rjust(16) for engine in rates))
        for name in names:
            cells = [show_one(found[name]) if name in found else "-" for found in rates.values()]
            print(name.ljust(8) + "".join(cell.rjust(16) for cell in cells))
    print()
    for name, rate in rates.get("embedded", {}).items():
        goal = ""
        if len(reads(name)) == 1:
            goal = f" (at least 1: {'holds' if rate.by_core >= GOAL else 'MISSED'})"
        peers = [rates[each][name].by_core for each in PEERS if name in rates.get(each, {})]
        ahead = f"; {rate.by_core / max(peers):.1f} times the best peer" if peers else ""
        print(f"  {name}: {rate.by_core / 1e6:.2f} M events/s per core{goal}{ahead}")


def _speed(rate: Rate) -> str:
    return f"{rate.by_core / 1e6:.2f} ({rate.by_clock / 1e6:.2f})"


def _start(rate: Rate) -> str:
    return f"{rate.start:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--quick", action="store_true", help="few events: does it run at all?")
    parser.add_argument("--events", type=int, default=1_000_000, help="of the shortest run")
    parser.add_argument("--into", type=Path, help="keeps what is measured, for a table of all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--queries", default=",".join(QUERIES))
    arguments = parser.parse_args()
    few, repeats = (10_000, 1) if arguments.quick else (arguments.events, arguments.repeats)
    wanted = arguments.engines or (["embedded"] if arguments.quick else list(ENGINES))
    names = arguments.queries.split(",")
    with tempfile.TemporaryDirectory() as directory, TreeClock(os.getpid()) as clock:
        root = Path(directory)
        checked = root / "checked"
        events.write(checked, min(5 * few, CHECKED), per_second=2000)
        rates = read_rates(arguments.into)
        for engine in wanted:
            with started(engine, root) as contestant:
                if contestant is None:
                    continue
                check(contestant, engine, names, checked)
                rates.setdefault(engine, {})
                for name in names:
                    rate = measured(contestant, name, root, few, repeats, clock)
                    rates[engine][name] = rate
                    if arguments.into is not None:
                        arguments.into.write_text(json.dumps(rates, default=asdict))
                    if not arguments.quick:
                        print(f"{engine} {name}: {_speed(rate)} M events/s", flush=True)
        if not arguments.quick:
            show(rates, names)


if __name__ == "__main__":
    main()
