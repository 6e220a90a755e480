"""What the page costs a job: processor time with nobody looking, and with one who does.

A quiet stream of twelve vertices runs in this process, first without a page. Then it has one, then
somebody reads its events from another process, whose time does not count. Phases take turns, and of
each the lowest share of a core counts. In the end a pipeline of ints runs with and without markers
for latency, which are sent ten times a second.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.measure import at_most, race
from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, sources

READER = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1] + "events") as events:
    for line in events:
        if line.startswith(b"data"):
            print(len(line), flush=True)
"""


def pipeline() -> Pipeline:
    p = Pipeline("quiet")

    def ticks(_: object) -> Iterator[int]:
        while True:
            time.sleep(0.01)
            yield 1

    stage = p.read_from(
        sources.stream("ticks", create=lambda _: None, generator=ticks, blocking=True)
    ).without_timestamps()
    for number in range(5):
        stage = stage.rebalance().map(lambda x: x + 1, name=f"step-{number}")
        stage.rebalance().write_to(sinks.noop(name=f"out-{number}"))
    stage.rolling_aggregate(agg.counting()).write_to(sinks.noop())
    return p


def chain(engine: EmbeddedEngine, limit: int, markers: float | None) -> None:
    """Two stages over ints."""
    p = Pipeline("chain")
    numbers = sources.batch(
        "numbers", lambda _: (range(i, i + 1000) for i in range(0, limit, 1000)), batched=True
    )
    stage = p.read_from(numbers).map(lambda x: x + 1).rebalance().map(lambda x: x * 2)
    stage.write_to(sinks.noop())
    engine.submit(p, JobConfig(latency_markers=markers)).join()


def share(seconds: float) -> float:
    """The share of a core that this process takes, in percent."""
    used, started = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    return (time.process_time() - used) / (time.perf_counter() - started) * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    is_quick = parser.parse_args().quick
    seconds, rounds = (1.0, 1) if is_quick else (6.0, 5)
    shares: dict[str, list[float]] = {"no page": [], "nobody looks": [], "one looks": []}
    for _ in range(rounds):
        with EmbeddedEngine() as engine:
            job = engine.submit(pipeline(), JobConfig())
            time.sleep(0.5)
            shares["no page"].append(share(seconds))
            page = engine.ui()
            shares["nobody looks"].append(share(seconds))
            reader = subprocess.Popen(
                [sys.executable, "-c", READER, page.url], stdout=subprocess.PIPE, text=True
            )
            size = int(reader.stdout.readline())
            shares["one looks"].append(share(seconds))
            reader.kill()
            reader.wait()
            job.cancel()
    best = {name: min(values) for name, values in shares.items()}
    for name, value in best.items():
        print(f"  {name:36} {value:8.2f} % of a core")
    print(f"  a state has {size:,} bytes")
    limit = 100_000 if is_quick else 3_000_000
    with EmbeddedEngine() as engine:
        times = race(
            {
                "without markers": lambda: chain(engine, limit, None),
                "with markers": lambda: chain(engine, limit, 0.1),
            },
            rounds,
        )
    at_most(
        "time with markers, to that without",
        times["with markers"] / times["without markers"],
        1.05,
    )
    at_most("percent of a core while nobody looks", best["nobody looks"] - best["no page"], 1)
    at_most("percent of a core while one does", best["one looks"] - best["no page"], 3)


if __name__ == "__main__":
    main()
