"""Word count over 100 MB of text on Spark with two cores: pipeline against RDD and mapInArrow.

The same Python functions everywhere, except in the native DataFrame version, which is only printed
beside. By hand: count in a dict per partition, shuffle the partial counts once, combine. The
session is started before, and each version runs once before it is measured. It runs on whichever
Spark is installed where it is called; ``--by-hand`` races only what tells how good Jetlet is there:

    .venv-sparks/3.5/bin/python -m benchmarks.spark_word_count --by-hand
"""

from __future__ import annotations

import pickle
import re
import sys
from collections import Counter
from collections.abc import Iterator
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pyarrow as pa

from benchmarks.measure import Contest, at_least, race, sample_text, tree_time
from jetlet import Pipeline, SparkEngine, agg, sinks, sources, whole_item
from jetlet.spark.launch.versions import NEWEST, arrow_batches, repartition_by_id, spark_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CORES = 2
OLDER_LIMIT = 0.87
"""How much of the speed of what is written by hand there has to be on an older Spark."""
BY_HAND = "mapInArrow, dict per partition"
split = lambda line: re.split(r"\W+", line.lower())


def pipeline(engine: SparkEngine, path: Path) -> dict[str, int]:
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


def rdd_plain(engine: SparkEngine, path: Path) -> dict[str, int]:
    lines = engine.session.sparkContext.textFile(str(path))
    words = lines.flatMap(split).filter(bool)
    return dict(words.map(lambda word: (word, 1)).reduceByKey(add).collect())


def count_words(lines: Iterator[str]) -> Iterator[tuple[str, int]]:
    counts: Counter[str] = Counter()
    counts.update(word for line in lines for word in split(line) if word)
    return iter(counts.items())


def combine(entries: Iterator[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    counts: dict[str, int] = {}
    get = counts.get
    for word, count in entries:
        counts[word] = get(word, 0) + count
    return iter(counts.items())


def rdd_by_hand(engine: SparkEngine, path: Path) -> dict[str, int]:
    lines = engine.session.sparkContext.textFile(str(path))
    partial = lines.mapPartitions(count_words).partitionBy(CORES, portable_hash)
    return dict(partial.mapPartitions(combine).collect())


def portable_hash(word: str) -> int:
    return crc32(word.encode())


def count_in_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    counts: Counter[str] = Counter()
    for batch in batches:
        lines = batch.column(0).to_pylist()
        counts.update([word for line in lines for word in split(line) if word])
    shares: list[dict[str, int]] = [{} for _ in range(CORES)]
    for word, count in counts.items():
        shares[portable_hash(word) % CORES][word] = count
    payloads = [pickle.dumps(share, protocol=5) for share in shares]
    yield pa.RecordBatch.from_arrays(
        [pa.array(range(CORES), pa.int32()), pa.array(payloads, pa.binary())],
        names=["target", "payload"],
    )


def combine_in_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    counts: dict[str, int] = {}
    get = counts.get
    for batch in batches:
        for payload in batch.column("payload").to_pylist():
            for word, count in pickle.loads(payload).items():
                counts[word] = get(word, 0) + count
    yield pa.RecordBatch.from_arrays(
        [pa.array(counts.keys(), pa.string()), pa.array(counts.values(), pa.int64())],
        names=["word", "count"],
    )


def arrow_by_hand(engine: SparkEngine, path: Path) -> dict[str, int]:
    lines = engine.session.read.text(str(path))
    partial = lines.mapInArrow(count_in_arrow, "target int, payload binary")
    shuffled = repartition_by_id(partial, CORES, "target")
    return collect(shuffled.mapInArrow(combine_in_arrow, "word string, count long"))


def collect(frame: DataFrame) -> dict[str, int]:
    table = pa.Table.from_batches(arrow_batches(frame))
    return dict(zip(*(c.to_pylist() for c in table.columns), strict=True))


def native(engine: SparkEngine, path: Path) -> dict[str, int]:
    from pyspark.sql import functions as f

    words = f.explode(f.split(f.lower("value"), r"\W+")).alias("word")
    frame = engine.session.read.text(str(path)).select(words).where("word != ''")
    return collect(frame.groupBy("word").count())


def main(megabytes: int = 100, repeats: int = 7, *, only_by_hand: bool = False) -> None:
    with sample_text(megabytes) as path, SparkEngine(f"local[{CORES}]") as engine:
        versions = {"pipeline": pipeline, BY_HAND: arrow_by_hand}
        if not only_by_hand:
            versions |= {
                "RDD, dict per partition": rdd_by_hand,
                "RDD, reduceByKey": rdd_plain,
                "native DataFrame": native,
            }
        contest: Contest = {n: lambda v=v: v(engine, path) for n, v in versions.items()}  # type: ignore[misc]
        expected = pipeline(engine, path)
        for name, run in contest.items():
            assert run() == expected, name
        jvm = engine.session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        best = race(contest, repeats, lambda: tree_time(jvm))
        mine = best["pipeline"]
        limit = 1 if spark_version(engine.session) == NEWEST else OLDER_LIMIT
        print(f"  on Spark {engine.session.version}")
        at_least("mapInArrow by hand against pipeline", best[BY_HAND] / mine, limit)
        if only_by_hand:
            return
        at_least("RDD reduceByKey against pipeline", best["RDD, reduceByKey"] / mine, 2.5)
        at_least("RDD by hand against pipeline", best["RDD, dict per partition"] / mine, 1)
        print(f"  native DataFrame against pipeline: {best['native DataFrame'] / mine:.2f}")


if __name__ == "__main__":
    is_short = "--by-hand" in sys.argv
    size = (2, 1) if "--quick" in sys.argv else (100, 3 if is_short else 7)
    main(*size, only_by_hand=is_short)
