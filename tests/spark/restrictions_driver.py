"""Runs jobs under what a managed Spark may restrict: ``restrictions_driver.py DIRECTORY NAME...``.

Each name is one of ``RESTRICTIONS``, and gets a session of its own; what comes of it is printed as
a line of JSON. It is a process of its own, because a process has one Spark session at a time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jetlet import JobConfig, Pipeline, SparkEngine, agg, sinks, sources, whole_item
from jetlet.errors import JetletError
from jetlet.spark.launch import session

PATIENCE = 200
WORDS = [f"w{n * n % 97}" for n in range(5000)]


def batch(engine: SparkEngine, directory: Path) -> Any:
    """A shuffle, a broadcast, and DataFrames at both ends."""
    p, counts = Pipeline("words"), sinks.collect()
    words = p.read_from(sources.items(WORDS)).rebalance()
    words.grouping_key(whole_item).aggregate(agg.counting()).write_to(counts)
    engine.submit(p).join(PATIENCE)

    target = str(directory / "frames")
    p = Pipeline("frames")
    names = p.read_from(sources.items([(n, f"name {n}") for n in range(10)]))
    rows = p.read_from(sources.spark(lambda spark: spark.range(0, 100, 1, 4), items="tuple"))
    joined = rows.hash_join(names, lambda row: row[0] % 10, lambda pair: pair[0])
    columns = joined.map(lambda pair: (pair[0][0], pair[1][1]))
    columns.write_to(sinks.spark(lambda df: df.write.json(target), "n long, name string"))
    engine.submit(p).join(PATIENCE)
    frames = sorted(map(list, engine.session.read.json(target).select("n", "name").collect()))
    return [dict(counts.items), frames]


def members(engine: SparkEngine, directory: Path) -> Any:
    """How many members there are room for, and what they give."""
    p, out = Pipeline("members"), sinks.collect()
    stage = p.read_from(sources.items(WORDS)).grouping_key(whole_item)
    stage.aggregate(agg.counting()).write_to(out)
    job = engine.submit(p, JobConfig(streaming="members"))
    job.join(PATIENCE)
    return dict(out.items)


def refusal(engine: SparkEngine, directory: Path) -> Any:
    p = Pipeline("refused")
    p.read_from(sources.items([1])).map(whole_item).write_to(sinks.collect())
    try:
        engine.submit(p).join(PATIENCE)
    except JetletError as error:
        return str(error)


def members_refusal(engine: SparkEngine, directory: Path) -> Any:
    p = Pipeline("refused")
    p.read_from(sources.item_stream(10)).without_timestamps().write_to(sinks.collect())
    try:
        engine.submit(p).cancel()
    except JetletError as error:
        return str(error)


def adaptive_in_spite_of_us() -> None:
    """As on a platform that lets nobody switch it off."""
    lean = dict(session.LEAN_SETTINGS)
    del lean["spark.sql.adaptive.enabled"]
    session.LEAN_SETTINGS = lean  # type: ignore[misc]


def python_of_executors(name: str) -> Callable[[], None]:
    """The interpreter that a variable names."""

    def choose() -> None:
        session.end_jvm()  # the next one gives its workers PySpark, which they may not have
        os.environ["PYSPARK_PYTHON"] = os.environ[name]

    return choose


ADAPTIVE = "spark.sql.adaptive"
RESTRICTIONS: dict[str, tuple[dict[str, object], Callable[[], None] | None, tuple[Any, ...]]] = {
    "ansi_on": ({"spark.sql.ansi.enabled": True}, None, (batch,)),
    "ansi_off": ({"spark.sql.ansi.enabled": False}, None, (batch,)),
    "two_cores_per_task": ({"spark.task.cpus": 2}, None, (batch, members)),
    "speculation": (
        {
            "spark.speculation": True,
            "spark.speculation.interval": "10ms",
            "spark.speculation.multiplier": 1.01,
            "spark.speculation.quantile": 0.1,
        },
        None,
        (batch, members),
    ),
    "encrypted": ({"spark.io.encryption.enabled": True}, None, (batch, members)),
    "dynamic_allocation": (
        {"spark.dynamicAllocation.enabled": True},
        None,
        (batch, members_refusal),
    ),
    "adaptive": (
        {
            f"{ADAPTIVE}.enabled": True,
            f"{ADAPTIVE}.forceApply": True,
            f"{ADAPTIVE}.coalescePartitions.parallelismFirst": False,
            f"{ADAPTIVE}.advisoryPartitionSizeInBytes": "64MB",
        },
        adaptive_in_spite_of_us,
        (batch, members),
    ),
    "without_jetlet": ({}, python_of_executors("BARE_PYTHON"), (batch, members)),
    "without_pyarrow": ({}, python_of_executors("EMPTY_PYTHON"), (refusal,)),
    "another_python": ({}, python_of_executors("OTHER_PYTHON"), (refusal,)),
}


def main() -> None:
    directory, names = Path(sys.argv[1]), sys.argv[2:]
    for name in names:
        config, prepare, scenarios = RESTRICTIONS[name]
        if prepare is not None:
            prepare()
        own = directory / name
        own.mkdir()
        with SparkEngine("local[2]", config=config) as engine:
            results = [scenario(engine, own) for scenario in scenarios]
        print(json.dumps([name, results]), flush=True)
    session.end_jvm()


if __name__ == "__main__":
    main()
