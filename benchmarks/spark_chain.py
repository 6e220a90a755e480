"""map, filter, flat_map and a sum over 20 million ints on Spark with two cores: against RDDs."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.measure import at_least, race, tree_time
from jetlet import Pipeline, SparkEngine, agg, sinks, sources

CORES = 2
CHUNK = 1024
add = lambda x: x + 1
keep = lambda x: x % 3 != 0
twice = lambda x: (x, x)


def pipeline(engine: SparkEngine, limit: int) -> int:
    p = Pipeline("chain")
    out = sinks.collect()
    share = limit // CORES

    def chunks(start: int) -> Any:
        end = start + share
        return (range(i, min(i + CHUNK, end)) for i in range(start, end, CHUNK))

    starts = range(0, limit, share)
    numbers = sources.batch("numbers", chunks, splits=starts, batched=True)
    stage = p.read_from(numbers).map(add).filter(keep).flat_map(twice)
    stage.aggregate(agg.summing()).write_to(out)
    engine.submit(p).join()
    return out.items[0]


def rdd(engine: SparkEngine, limit: int) -> Any:
    numbers = engine.session.sparkContext.parallelize(range(limit), CORES)
    return numbers.map(add).filter(keep).flatMap(twice).sum()


def main() -> None:
    quick = "--quick" in sys.argv
    limit = 200_000 if quick else 20_000_000
    with SparkEngine(f"local[{CORES}]") as engine:
        assert pipeline(engine, 2000) == rdd(engine, 2000)
        jvm = engine.session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        best = race(
            {"pipeline": lambda: pipeline(engine, limit), "RDD": lambda: rdd(engine, limit)},
            1 if quick else 3,
            lambda: tree_time(jvm),
        )
    at_least("RDD against pipeline", best["RDD"] / best["pipeline"], 1)


if __name__ == "__main__":
    main()
