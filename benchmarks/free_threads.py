"""Threads of a free-threaded Python against one, two members, and one worker under the GIL.

``python3.14t -m benchmarks free_threads``. The build with the GIL is ``python3.14``, or what
JETLET_GIL_PYTHON says: it runs the same workloads in its own process, in turns with the others.

The workloads are word count, a chain of small steps over ints, and counts and sums in sliding
windows. Each reads several splits. On a machine that has other things to do the times say little;
the processor time of the busiest thread, which is printed beside, says what they would be.

Beside word count and chain is what plain threads do with the same functions, each on data of its
own: what they share in Python itself, such as the cache of ``re``, holds them up as well, and no
engine does better than that.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from benchmarks.measure import at_least, sample_text
from benchmarks.pipeline_chain import add, keep, twice
from benchmarks.sliding_window import PER_MS, SIZE, SLIDE, Event
from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, whole_item, windows
from jetlet.core import ProcessorContext
from jetlet.interpreter import has_gil
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

Run = Callable[[str], tuple[float, float]]
"""Runs the workload of a name; seconds by the clock, and of the busiest thread."""

Parts = Sequence[Callable[[], None]]
"""What each of several threads does."""

SPLITS = 4
KEYS = 10_000

split = lambda line: re.split(r"\W+", line.lower())


class EventReader(StreamReader[Event]):
    """Makes its events as it goes: they belong to the thread that reads them, as parsed ones do."""

    def __init__(self, keys: Sequence[int], partitions: Sequence[int]) -> None:
        self._keys = keys
        self._at = dict.fromkeys(partitions, 0)

    def poll(self, limit: int) -> Sequence[Polled[Event]] | None:
        keys, polled = self._keys, []
        for index, (partition, start) in enumerate(self._at.items()):
            end = min(start + limit, len(keys) // SPLITS)
            self._at[partition] = end
            each = range(start * SPLITS + partition, end * SPLITS, SPLITS)
            if each:
                polled.append(Polled(index, [(i // PER_MS, keys[i], i & 1023) for i in each]))
        return polled or None


class Partitions(StreamSource[Event]):
    """Events with these keys, dealt to partitions."""

    name = "events"
    preferred_local_parallelism = SPLITS

    def __init__(self, keys: Sequence[int]) -> None:
        self._keys = keys

    def partitions(self) -> Sequence[Any]:
        return range(SPLITS)

    def open(self, partitions: Sequence[Any], context: ProcessorContext) -> StreamReader[Event]:
        return EventReader(self._keys, partitions)


def word_count(path: Path) -> Pipeline:
    p = Pipeline("word-count")
    (
        p.read_from(sources.text(str(path), local_parallelism=os.cpu_count()))
        .flat_map(split)
        .filter(bool)
        .grouping_key(whole_item)
        .aggregate(agg.counting())
        .write_to(sinks.collect())
    )
    return p


def chain(limit: int) -> Pipeline:
    p = Pipeline("chain")
    bounds = [limit * i // SPLITS for i in range(SPLITS + 1)]
    numbers = sources.batch(
        "numbers",
        lambda part: (range(i, min(i + 1024, part[1])) for i in range(*part, 1024)),
        list(pairwise(bounds)),
        batched=True,
        local_parallelism=os.cpu_count(),
    )
    (
        p.read_from(numbers)
        .map(add)
        .filter(keep)
        .flat_map(twice)
        .aggregate(agg.summing())
        .write_to(sinks.collect())
    )
    return p


def sliding_window(keys: Sequence[int]) -> Pipeline:
    p = Pipeline("windows")
    (
        p.read_from(Partitions(keys))
        .with_timestamps(lambda event: event[0], allowed_lag=0)
        .grouping_key(lambda event: event[1])
        .window(windows.sliding(SIZE, SLIDE))
        .aggregate(agg.all_of(agg.counting(), agg.summing(lambda event: event[2])))
        .write_to(sinks.noop(), local_parallelism=os.cpu_count())
    )
    return p


def workloads(quick: bool, text: Path) -> dict[str, Callable[[], Pipeline]]:
    rng = random.Random(1)
    keys = array("i", (rng.randrange(KEYS) for _ in range(20_000 if quick else 500_000)))
    limit = 100_000 if quick else 3_000_000
    return {
        "word count": lambda: word_count(text),
        "chain": lambda: chain(limit),
        "sliding window": lambda: sliding_window(keys),
    }


def words_by_hand(data: bytes) -> None:
    """Word count of a piece of text, as one would write it for a thread."""
    lines, counts = data.decode().splitlines(), Counter[str]()
    for start in range(0, len(lines), 1024):
        counts.update(
            [word for line in lines[start : start + 1024] for word in split(line) if word]
        )


def chain_by_hand(start: int, end: int) -> None:
    """The chain over a part of its numbers."""
    total = 0
    for first in range(start, end, 1024):
        out: list[int] = []
        for x in range(first, min(first + 1024, end)):
            y = add(x)
            if keep(y):
                out.extend(twice(y))
        total += sum(out)


def in_threads(parts: Sequence[Callable[[], None]]) -> float:
    """Processor seconds of the busiest of threads that each do a part."""
    used: list[float] = []

    def work(part: Callable[[], None]) -> None:
        start = time.thread_time()
        part()
        used.append(time.thread_time() - start)

    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(used)


def by_hand(quick: bool, text: Path) -> dict[str, tuple[Parts, Parts]]:
    """For each workload all of it as one part, and as two."""
    data, limit = text.read_bytes(), 100_000 if quick else 3_000_000
    middle = data.rfind(b"\n", 0, len(data) // 2) + 1
    return {
        "word count": (
            [partial(words_by_hand, data)],
            [partial(words_by_hand, data[:middle]), partial(words_by_hand, data[middle:])],
        ),
        "chain": (
            [partial(chain_by_hand, 0, limit)],
            [partial(chain_by_hand, 0, limit // 2), partial(chain_by_hand, limit // 2, limit)],
        ),
    }


def race_by_hand(whole: Parts, halves: Parts, repeats: int) -> None:
    """What two plain threads gain over one."""
    one = two = float("inf")
    for _ in range(repeats):
        one, two = min(one, in_threads(whole)), min(two, in_threads(halves))
    print(f"    {'by hand':24} 1 thread {one:.3f} s, the busiest of 2 {two:.3f} s: {one / two:.2f}")


def busiest() -> dict[str, float]:
    """Processor seconds of each thread of this process."""
    found = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            found[path.parent.name] = int(path.read_text().split()[0]) / 1e9
        except OSError:  # it has just ended
            continue
    return found


def timed(engine: EmbeddedEngine, pipeline: Pipeline) -> tuple[float, float]:
    """Seconds by the clock, and processor seconds of the busiest thread of this process."""
    before, started = busiest(), time.perf_counter()
    engine.submit(pipeline).join()
    elapsed = time.perf_counter() - started
    return elapsed, max(used - before.get(thread, 0.0) for thread, used in busiest().items())


def run_here(
    engine: EmbeddedEngine, made: dict[str, Callable[[], Pipeline]], name: str
) -> tuple[float, float]:
    return timed(engine, made[name]())


def answer(quick: bool, text: Path) -> None:
    """In the other Python: run what is asked for, once each time, and tell how long it took."""
    made = workloads(quick, text)
    with EmbeddedEngine(workers=1) as engine:
        for name in sys.stdin:
            print(*timed(engine, made[name.strip()]()), flush=True)


class Other:
    """The build with the GIL."""

    def __init__(self, python: str, quick: bool, text: Path) -> None:
        options = ["--quick"] if quick else []
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.free_threads", "--answer", str(text), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, name: str) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        elapsed, used = self._process.stdout.readline().split()
        return float(elapsed), float(used)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def main() -> None:
    quick = "--quick" in sys.argv
    if "--answer" in sys.argv:
        answer(quick, Path(sys.argv[sys.argv.index("--answer") + 1]))
        return
    if has_gil():
        print("  this Python has the GIL: python3.14t -m benchmarks free_threads")
    with ExitStack() as stack:
        text = stack.enter_context(sample_text(1 if quick else 20))
        made = workloads(quick, text)
        engines = {
            "1 worker": EmbeddedEngine(workers=1),
            "2 workers": EmbeddedEngine(workers=2),
            "2 members": EmbeddedEngine(members=2, workers=1),
        }
        runs: dict[str, Run] = {
            who: partial(run_here, stack.enter_context(engine), made)
            for who, engine in engines.items()
        }
        other = os.environ.get("JETLET_GIL_PYTHON", "python3.14")
        try:
            runs["1 worker with the GIL"] = stack.enter_context(Other(other, quick, text))
        except OSError:
            print(f"  there is no {other}: set JETLET_GIL_PYTHON")
        hands = by_hand(quick, text)
        for name in made:
            race(name, runs, 1 if quick else 4)
            if name in hands:
                race_by_hand(*hands[name], 1 if quick else 4)


def race(name: str, runs: dict[str, Run], repeats: int) -> None:
    clock = dict.fromkeys(runs, float("inf"))
    busy = dict(clock)
    for _ in range(repeats):
        for who, run in runs.items():
            elapsed, used = run(name)
            clock[who], busy[who] = min(clock[who], elapsed), min(busy[who], used)
    print(f"  {name}:")
    for who in runs:
        shown = "" if who == "2 members" else f", busiest thread {busy[who]:.3f} s"
        print(f"    {who:24} {clock[who]:8.3f} s{shown}")
    one, two, gil = "1 worker", "2 workers", "1 worker with the GIL"
    at_least("2 workers against 1, by the clock", clock[one] / clock[two], 1.7)
    at_least("2 workers against 1, by the busiest thread", busy[one] / busy[two], 1.7)
    if gil in runs:
        at_least("the GIL's time against that of 1 worker", clock[gil] / clock[one], 0.85)
        at_least("the same by the busiest thread", busy[gil] / busy[one], 0.85)


if __name__ == "__main__":
    main()
