"""Memory of a stream whose keys come and go: it should be flat over ten minutes.

    python -m benchmarks.stream_memory [--minutes 10] [--rate 5000] [--members 1] [--top] [--quick]

Each event has one of the last thousand keys, and there is a new key every few milliseconds, so that
there are many more of them than fit into memory for ever. They go through windows of all kinds,
through state that expires and through joins. The memory of the process, and of its members if it
has any, is looked at every second. What it grows by is the slope of the line through these values,
without those of the first fifth. ``--top`` shows which lines of code hold what has come in the
second half; it costs a lot of time and memory of its own.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import at_most
from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, windows

LIVE_KEYS = 1000
EVENTS_PER_KEY = 20
GROWTH_LIMIT = 5.0
"""MB over the whole run that are not taken for growth: the allocator has its moods."""


def event(sequence: int, timestamp: int) -> tuple[str, int]:
    newest = sequence // EVENTS_PER_KEY
    return f"key {newest + sequence * 7919 % LIVE_KEYS}", sequence


def key_of(item: tuple[str, int]) -> str:
    return item[0]


def count_up(state: dict[str, int], key: str, item: tuple[str, int]) -> int:
    state["count"] = state.get("count", 0) + 1
    return state["count"]


def pipeline(rate: int) -> Pipeline:
    p = Pipeline("memory")
    stage = p.read_from(sources.item_stream(rate, event)).with_native_timestamps(100)
    keyed = stage.grouping_key(key_of)
    windowed = [
        keyed.window(windows.sliding(1000, 100)).aggregate(agg.counting()),
        keyed.window(windows.session(500)).aggregate(agg.to_list()),
        keyed.window(windows.tumbling(1000)).distinct(),
        stage.window(windows.tumbling(1000)).aggregate(agg.counting()),
    ]
    stateful = [
        keyed.map_stateful(dict, count_up, ttl=1000, on_evict=lambda state, key, time: key),
        keyed.rolling_aggregate(agg.counting(), ttl=1000),
    ]
    few = stage.filter(lambda item: item[1] % 50 == 0).grouping_key(key_of)
    joined = [
        keyed.window(windows.tumbling(500)).inner_join(few),
        keyed.interval_join(few, -200, 200),
    ]
    for output in (*windowed, *stateful, *joined):
        output.write_to(sinks.noop())
    return p


def memory_mb(pids: Sequence[int]) -> float:
    """What the processes have now."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def children() -> list[int]:
    me = os.getpid()
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # gone
            continue
        if int(fields[1]) == me:
            found.append(int(path.parent.name))
    return found


def slope(values: Sequence[tuple[float, float]]) -> float:
    """Of the line through the points that leaves the least squares."""
    mean_x = sum(x for x, _ in values) / len(values)
    mean_y = sum(y for _, y in values) / len(values)
    across = sum((x - mean_x) * (y - mean_y) for x, y in values)
    return across / sum((x - mean_x) ** 2 for x, _ in values)


def watch(seconds: float, rate: int, members: int, *, top: bool) -> None:
    with EmbeddedEngine(members=members) as engine:
        job = engine.submit(pipeline(rate))
        while not job.metrics():
            time.sleep(0.05)
        pids = [os.getpid(), *children()]
        values: list[tuple[float, float]] = []
        start, shown = time.monotonic(), 0.0
        before: Any = None
        while (elapsed := time.monotonic() - start) < seconds:
            time.sleep(min(1.0, seconds / 30))
            values.append((elapsed, memory_mb(pids)))
            if elapsed >= shown:
                print(f"  {elapsed:5.0f} s {values[-1][1]:8.1f} MB", flush=True)
                shown += seconds / 10
            if top and elapsed > seconds / 4 and not tracemalloc.is_tracing():
                tracemalloc.start()
            elif top and before is None and elapsed > seconds / 2:
                gc.collect()
                before = tracemalloc.take_snapshot()
        metrics = job.metrics()
        if before is not None:
            gc.collect()
            for line in tracemalloc.take_snapshot().compare_to(before, "lineno")[:15]:
                print(f"  {line}")
        job.cancel()
    source = next(vertex for vertex in job.dag.vertices if not job.dag.inbound(vertex))
    events = metrics[source.name].emitted // len(job.dag.outbound(source))
    late = sum(m.counters.get("late_events", 0) for m in metrics.values())
    steady = [value for value in values if value[0] > seconds / 5]
    growth = slope(steady) * seconds
    print(
        f"  {events} events, {late} late, {events // EVENTS_PER_KEY} keys in {seconds:g} s; memory "
        f"from {min(y for _, y in steady):.1f} to {max(y for _, y in steady):.1f} MB"
    )
    at_most(f"growth over {seconds:g} s, MB", growth, GROWTH_LIMIT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--top", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    seconds = 3.0 if arguments.quick else 60 * arguments.minutes
    watch(seconds, arguments.rate, arguments.members, top=arguments.top)


if __name__ == "__main__":
    main()
