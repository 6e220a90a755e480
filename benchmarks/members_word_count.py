"""Word count over 100 MB of text on two members against one, each of which has a core.

On a machine that has other things to do the times say little; the processor time of the busiest
process says what they would be on an idle one.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from benchmarks.measure import at_least, sample_text
from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, whole_item


def split(line: str) -> list[str]:
    return re.split(r"\W+", line.lower())


def count(members: int, path: Path) -> tuple[float, float, dict[str, int]]:
    """Seconds, processor seconds of the busiest process, and the result."""
    p = Pipeline("word-count")
    out = sinks.collect()
    (
        p.read_from(sources.text(str(path)))
        .flat_map(split)
        .filter(bool)
        .grouping_key(whole_item)
        .aggregate(agg.counting())
        .write_to(out)
    )
    with EmbeddedEngine(members) as engine:
        started, busy = time.perf_counter(), time.process_time()
        before = os.times()
        engine.submit(p).join()
        elapsed = time.perf_counter() - started
        after = os.times()
    here = time.process_time() - busy
    children = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    # The members do the same, so each has its share of what they used.
    return elapsed, max(here, children / members), dict(out.items)


def main() -> None:
    quick = "--quick" in sys.argv
    with sample_text(2 if quick else 100) as path:
        best: dict[int, list[float]] = {1: [], 2: []}
        busiest: dict[int, list[float]] = {1: [], 2: []}
        results = []
        for _ in range(1 if quick else 3):
            for members in (1, 2):
                elapsed, busy, result = count(members, path)
                best[members].append(elapsed)
                busiest[members].append(busy)
                results.append(result)
        assert all(result == results[0] for result in results)
        for members in (1, 2):
            print(
                f"  members={members}: {min(best[members]):.2f} s, "
                f"processor time of the busiest process {min(busiest[members]):.2f} s"
            )
        at_least("two members against one, by the clock", min(best[1]) / min(best[2]), 1.7)
        at_least(
            "two members against one, by processor time", min(busiest[1]) / min(busiest[2]), 1.7
        )


if __name__ == "__main__":
    main()
