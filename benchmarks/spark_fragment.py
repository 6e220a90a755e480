"""What a fragment costs on Spark, beyond the same Python loop by hand inside one mapInArrow.

Three loops over the same functions, on two cores: over 60 million ints that are made in the tasks,
over the lines of a text file, and over the rows of a DataFrame, which become rows of another one.
Spark's own share is in both: by hand too the results are brought to the driver, or written by
Spark to nowhere. The loops run for seconds, so that the shuffle of a sum, which is a step of its
own, does not count as cost of the loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.measure import at_most, race, sample_text, tree_time
from jetlet import Pipeline, SparkEngine, agg, sinks, sources

CORES = 2
CHUNK = 1024
add = lambda x: x + 1
keep = lambda x: x % 3 != 0
twice = lambda x: (x, x)

Batches = Iterator[pa.RecordBatch]


def total_of(engine: SparkEngine, loop: Callable[[int], int], share: int) -> int:
    """Run a loop in a task per core, each from a number of its own, and sum up the results."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            totals = [loop(start) for start in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(totals, pa.int64())], ["total"])

    starts = engine.session.range(0, CORES * share, share, CORES)
    return sum(starts.mapInArrow(run, "total long").toArrow()["total"].to_pylist())


def ints(engine: SparkEngine, limit: int) -> int:
    p = Pipeline("ints")
    out = sinks.collect()
    share = limit // CORES

    def chunks(start: int) -> Any:
        end = start + share
        return (range(i, min(i + CHUNK, end)) for i in range(start, end, CHUNK))

    numbers = sources.batch("numbers", chunks, splits=range(0, limit, share), batched=True)
    stage = p.read_from(numbers).map(add).filter(keep).flat_map(twice)
    stage.aggregate(agg.summing()).write_to(out)
    engine.submit(p).join()
    return out.items[0]


def ints_by_hand(engine: SparkEngine, limit: int) -> int:
    share = limit // CORES

    def loop(start: int) -> int:
        total = 0
        for x in range(start, start + share):
            y = add(x)
            if keep(y):
                for z in twice(y):
                    total += z
        return total

    return total_of(engine, loop, share)


def lines(engine: SparkEngine, path: Path) -> int:
    p = Pipeline("lines")
    out = sinks.collect()
    stage = p.read_from(sources.text(str(path))).flat_map(str.split).filter(str.islower)
    stage.aggregate(agg.counting()).write_to(out)
    engine.submit(p).join()
    return out.items[0]


def lines_by_hand(engine: SparkEngine, path: Path) -> int:
    share = -(-path.stat().st_size // CORES)

    def loop(start: int) -> int:
        count = 0
        with path.open("rb") as file:
            if start:
                file.seek(start - 1)
                file.readline()
            at = file.tell()
            for line in file:
                if at >= start + share:
                    break
                at += len(line)
                for word in line.decode().rstrip("\n").split():
                    if word.islower():
                        count += 1
        return count

    return total_of(engine, loop, share)


SCHEMA = "n long, text string"


def step(row: tuple[int, str]) -> tuple[int, str]:
    return row[0] + 1, f"{row[1]}!"


def frame(engine: SparkEngine, limit: int) -> Any:
    return engine.session.range(0, limit, 1, CORES).selectExpr("id", "string(id) as text")


def nowhere(df: Any) -> None:
    df.write.format("noop").mode("overwrite").save()


def rows(engine: SparkEngine, limit: int) -> None:
    p = Pipeline("rows")
    source = sources.spark(lambda _: frame(engine, limit), items="tuple")
    p.read_from(source).map(step).write_to(sinks.spark(nowhere, SCHEMA))
    engine.submit(p).join()


def rows_by_hand(engine: SparkEngine, limit: int) -> None:
    def loop(batches: Batches) -> Batches:
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            done = [step(row) for row in zip(*columns, strict=True)]
            arrays = [
                pa.array([n for n, _ in done], pa.int64()),
                pa.array([text for _, text in done], pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(arrays, ["n", "text"])

    nowhere(frame(engine, limit).mapInArrow(loop, SCHEMA))


def main() -> None:
    quick = "--quick" in sys.argv
    many, some = (200_000, 50_000) if quick else (60_000_000, 6_000_000)
    with sample_text(1 if quick else 300) as path, SparkEngine(f"local[{CORES}]") as engine:
        assert ints(engine, 2000) == ints_by_hand(engine, 2000)
        assert lines(engine, path) == lines_by_hand(engine, path)
        rows(engine, 2000)
        rows_by_hand(engine, 2000)
        jvm = engine.session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "ints": (lambda: ints(engine, many), lambda: ints_by_hand(engine, many)),
            "lines": (lambda: lines(engine, path), lambda: lines_by_hand(engine, path)),
            "rows": (lambda: rows(engine, some), lambda: rows_by_hand(engine, some)),
        }
        for name, (pipeline, by_hand) in pairs.items():
            contest = {f"{name}, pipeline": pipeline, f"{name}, by hand": by_hand}
            mine, theirs = race(contest, 1 if quick else 3, lambda: tree_time(jvm)).values()
            at_most(f"{name}: pipeline against by hand", mine / theirs, 1.1)


if __name__ == "__main__":
    main()
