"""Two members and ten items: how long until the job has ended and every process is gone."""

from __future__ import annotations

import sys
import time

from benchmarks.measure import at_most
from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, whole_item


def once() -> float:
    p, out = Pipeline("ten"), sinks.collect()
    (
        p.read_from(sources.items(range(10)))
        .map(lambda n: n % 3)
        .grouping_key(whole_item)
        .aggregate(agg.counting())
        .write_to(out)
    )
    started = time.perf_counter()
    with EmbeddedEngine(members=2) as engine:
        engine.submit(p).join()
    elapsed = time.perf_counter() - started
    assert sorted(out.items) == [(0, 4), (1, 3), (2, 3)]
    return elapsed


def main() -> None:
    times = sorted(once() for _ in range(2 if "--quick" in sys.argv else 10))
    print(f"  from {times[0]:.2f} to {times[-1]:.2f} s")
    at_most("seconds, at the median", times[len(times) // 2], 1)


if __name__ == "__main__":
    main()
