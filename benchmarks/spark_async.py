"""20,000 items with a wait of 5 ms on Spark with two cores: map_async against a plain mapInArrow.

The plain one waits for each item in turn. It does a tenth of them, and its time counts tenfold.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from benchmarks.measure import at_most, race
from jetlet import Pipeline, SparkEngine, sinks, sources

CORES = 2
WAIT = 0.005
SHARE = 10


async def enrich(x: int) -> int:
    await asyncio.sleep(WAIT)
    return x + 1


def pipeline(engine: SparkEngine, count: int) -> list[int]:
    p = Pipeline("async")
    out = sinks.collect()
    p.read_from(sources.items(range(count))).map_async(enrich).write_to(out)
    engine.submit(p).join()
    return out.items


def one_by_one(engine: SparkEngine, count: int) -> list[int]:
    def enrich_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            done = []
            for x in batch.column(0).to_pylist():
                time.sleep(WAIT)
                done.append(x + 1)
            yield pa.RecordBatch.from_arrays([pa.array(done, pa.int64())], ["x"])

    numbers = engine.session.range(0, count, 1, CORES)
    return numbers.mapInArrow(enrich_all, "x long").toArrow()["x"].to_pylist()


def main() -> None:
    quick = "--quick" in sys.argv
    count = 2_000 if quick else 20_000
    with SparkEngine(f"local[{CORES}]") as engine:
        assert sorted(pipeline(engine, 200)) == one_by_one(engine, 200)
        contest = {
            "map_async": lambda: pipeline(engine, count),
            f"one by one, 1/{SHARE} of them": lambda: one_by_one(engine, count // SHARE),
        }
        mine, theirs = race(contest, 1 if quick else 3).values()
    at_most("map_async against one by one", mine / (SHARE * theirs), 0.1)


if __name__ == "__main__":
    main()
