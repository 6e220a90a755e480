"""map, filter, flat_map and a sum over five million ints: pipelines, plain Python, bytewax."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.measure import Contest, at_least, at_most, race
from jetlet import EmbeddedEngine, Pipeline, agg, it, record, sinks, sources

add = lambda x: x + 1
keep = lambda x: x % 3 != 0
twice = lambda x: (x, x)


def plain(limit: int) -> int:
    total = 0
    for x in range(limit):
        y = add(x)
        if keep(y):
            for z in twice(y):
                total += z
    return total


LAMBDAS = (add, keep, twice)
EXPRESSIONS = (it + 1, it % 3 != 0, record(it, it))


def pipeline(engine: EmbeddedEngine, limit: int, steps: tuple[Any, ...] = LAMBDAS) -> int:
    add, keep, twice = steps
    p = Pipeline("chain")
    out = sinks.collect()
    numbers = sources.batch(
        "numbers",
        lambda _: (range(i, min(i + 1024, limit)) for i in range(0, limit, 1024)),
        batched=True,
    )
    p.read_from(numbers).map(add).filter(keep).flat_map(twice).aggregate(agg.summing()).write_to(
        out
    )
    engine.submit(p).join()
    return out.items[0]


def bytewax(limit: int) -> int:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import DynamicSource, StatelessSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.testing import run_main

    total = [0]

    class Numbers(StatelessSourcePartition):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self._at = 0

        def next_batch(self) -> range:
            if self._at >= limit:
                raise StopIteration
            start, self._at = self._at, min(limit, self._at + 1024)
            return range(start, self._at)

    class Source(DynamicSource):  # type: ignore[type-arg]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Numbers:
            return Numbers()

    class Total(StatelessSinkPartition):  # type: ignore[type-arg]
        def write_batch(self, items: list[int]) -> None:
            total[0] += sum(items)

    class Sink(DynamicSink):  # type: ignore[type-arg]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Total:
            return Total()

    flow = Dataflow("chain")
    stream = op.input("in", flow, Source())
    stream = op.map("add", stream, add)
    stream = op.filter("keep", stream, lambda x: bool(keep(x)))
    stream = op.flat_map("twice", stream, twice)
    op.output("out", stream, Sink())
    run_main(flow)
    return total[0]


def main() -> None:
    quick = "--quick" in sys.argv
    limit = 200_000 if quick else 5_000_000
    with EmbeddedEngine() as engine:
        assert pipeline(engine, 5000) == pipeline(engine, 5000, EXPRESSIONS) == plain(5000)
        contest: Contest = {
            "plain loop": lambda: plain(limit),
            "pipeline": lambda: pipeline(engine, limit),
            "pipeline of expressions": lambda: pipeline(engine, limit, EXPRESSIONS),
        }
        try:
            assert bytewax(5000) == plain(5000)
            contest["bytewax"] = lambda: bytewax(limit)
        except ImportError:
            print("  bytewax is not installed: make bench")
        best = race(contest, 1 if quick else 5)
    at_most("pipeline against plain loop", best["pipeline"] / best["plain loop"], 1.1)
    at_least(
        "plain loop against expressions", best["plain loop"] / best["pipeline of expressions"], 1.8
    )
    if "bytewax" in best:
        at_least("bytewax against pipeline", best["bytewax"] / best["pipeline"], 1.3)


if __name__ == "__main__":
    main()
