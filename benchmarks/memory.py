"""Memory: word count over 2 GB of text, and sorting five million rows within 200 MB."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measure import at_most, memory_mb, sample_text
from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, whole_item

SORT_LIMIT = 200 * 1024 * 1024


def count_words(path: str) -> None:
    """In a process of its own: prints the memory above that of an empty pipeline."""
    with EmbeddedEngine() as engine:
        _word_count(engine, sources.items(["a b"]))
        before = memory_mb()
        _word_count(engine, sources.text(path))
        print(memory_mb() - before)


def _word_count(engine: EmbeddedEngine, source: object) -> None:
    p = Pipeline("word-count")
    (
        p.read_from(source)  # type: ignore[call-overload]
        .flat_map(lambda line: re.split(r"\W+", line.lower()))
        .filter(bool)
        .grouping_key(whole_item)
        .aggregate(agg.counting())
        .write_to(sinks.noop())
    )
    engine.submit(p).join()


def sort_rows(count: int) -> None:
    """In a process of its own: prints the memory above that of an empty pipeline."""

    def rows(split: int) -> Iterator[tuple[int, str]]:
        rng = random.Random(split)
        for _ in range(count // 10):
            number = rng.randrange(1 << 40)
            yield number, f"row {number}"

    last = [(-1, "")]
    seen = [0]

    def check(row: tuple[int, str]) -> None:
        assert last[0] <= row
        last[0] = row
        seen[0] += 1

    before = memory_mb()
    p = Pipeline("sort")
    source = sources.batch("rows", rows, splits=list(range(10)))
    p.read_from(source).sort(memory_limit=SORT_LIMIT).write_to(sinks.client(check))
    with EmbeddedEngine() as engine:
        engine.submit(p).join()
    assert seen[0] == count
    print(memory_mb() - before)


def elsewhere(*arguments: str) -> float:
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    if "--count-words" in sys.argv:
        count_words(sys.argv[-1])
        return
    if "--sort-rows" in sys.argv:
        sort_rows(int(sys.argv[-1]))
        return
    quick = "--quick" in sys.argv
    with sample_text(20 if quick else 2000) as path:
        used = elsewhere("--count-words", str(path))
        at_most("word count, MB with its table of words", used, 200)
    used = elsewhere("--sort-rows", "100000" if quick else "5000000")
    at_most("sort within 200 MB, MB", used, 300)


if __name__ == "__main__":
    main()
