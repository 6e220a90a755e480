"""A pipeline for ``spark-submit`` and the tests: in each branch a task fails once, near its end.

By then it has written, or sent, most of its items. The results are in the working directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jetlet import Pipeline, sinks, sources
from jetlet.spark.launch import session

HERE = Path.cwd()
SIZE = 30_000
"""Of each of the two splits."""


def numbers(name: str) -> Any:
    ranges = lambda start: range(start, start + SIZE)
    return sources.batch(name, ranges, splits=[0, SIZE])


def fail_once(mark: str) -> Callable[[int], int]:
    """A function that fails near the end of the first split, the first time that it gets there."""
    path = str(HERE / f"{mark}.failed")

    def maybe_fail(number: int) -> int:
        if number == SIZE - 10:
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return number
            raise RuntimeError("only once")
        return number

    return maybe_fail


def write(name: str) -> Any:
    path = str(HERE / name)
    return sinks.spark(lambda df: df.write.parquet(path), "n long")


def settings(spark: Any) -> Any:
    assert session._jvm is None  # it is that of spark-submit
    conf = dict(spark.sparkContext.getConf().getAll())
    (HERE / "settings.json").write_text(json.dumps(conf))
    return spark.range(10)


p = Pipeline("submitted")
p.read_from(numbers("files")).map(fail_once("files")).write_to(sinks.json_lines(HERE / "files"))
p.read_from(numbers("frame")).map(fail_once("frame")).write_to(write("frame"))
p.read_from(numbers("far")).rebalance().map(fail_once("shuffled")).write_to(write("shuffled"))
p.read_from(sources.spark(settings)).write_to(sinks.noop())
