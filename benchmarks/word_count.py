"""Word count over 100 MB of text on one core: pipeline, the best plain Python, bytewax."""

from __future__ import annotations

import re
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

from benchmarks.measure import Contest, at_least, at_most, race, sample_text
from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, whole_item

split = lambda line: re.split(r"\W+", line.lower())


def plain(path: Path) -> dict[str, int]:
    counts: Counter[str] = Counter()
    with path.open(encoding="utf-8") as file:
        while lines := list(islice(file, 1024)):
            counts.update([word for line in lines for word in split(line) if word])
    return counts


def pipeline(engine: EmbeddedEngine, path: Path) -> dict[str, int]:
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
    engine.submit(p).join()
    return dict(out.items)


def bytewax(path: Path) -> dict[str, int]:
    import bytewax.operators as op
    from bytewax.connectors.files import FileSource
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, run_main

    out: list[tuple[str, int]] = []
    flow = Dataflow("word-count")
    lines = op.input("in", flow, FileSource(path))
    words = op.filter("words", op.flat_map("split", lines, split), bool)
    op.output("out", op.count_final("count", words, lambda word: word), TestingSink(out))
    run_main(flow)
    return dict(out)


def main() -> None:
    quick = "--quick" in sys.argv
    with sample_text(2 if quick else 100) as path, EmbeddedEngine() as engine:
        assert pipeline(engine, path) == plain(path)
        contest: Contest = {
            "plain Python": lambda: plain(path),
            "pipeline": lambda: pipeline(engine, path),
        }
        best = race(contest, 1 if quick else 3)
        at_most("pipeline against plain Python", best["pipeline"] / best["plain Python"], 1.1)
        try:
            # Once: it takes minutes.
            peer = race({"bytewax": lambda: bytewax(path)}, 1)
            at_least("bytewax against pipeline", peer["bytewax"] / best["pipeline"], 6)
        except ImportError:
            print("  bytewax is not installed: make bench")


if __name__ == "__main__":
    main()
