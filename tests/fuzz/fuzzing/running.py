"""Running programs on a host, and comparing with what is expected."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fuzzing.steps import Expected
from fuzzing.values import frozen
from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.errors import JobFailedError

JOIN_TIMEOUT = 6000


class Written:
    """A program as a pipeline, or a part of one."""

    def __init__(self, pipeline, program, number, make_source):
        self.program = program
        self._pipeline = pipeline
        self._make_source = make_source
        self._number = number
        self._sources = 0
        self.out = sinks.collect(name=f"out {number}")
        self.letters = sinks.collect(name=f"letters {number}")
        self.has_letters = False
        self.build(program.main).write_to(self.out)

    def build(self, branch, *, is_bounded=False):
        self._sources += 1
        name = f"in {self._number}.{self._sources}"
        make = from_items if is_bounded else self._make_source
        stage = make(self._pipeline, branch.items, name, self.program)
        for step in branch.steps:
            stage = step.build(stage, self)
        return stage

    def on_error(self, step):
        return self.letters if step.on_error == "letters" else step.on_error


def from_items(pipeline, items, name, program):
    if program.preserves_order:  # of one split
        return pipeline.read_from(sources.batch(name, lambda split: iter(items), splits=[0]))
    return pipeline.read_from(sources.items(list(items), name=name))


def bag(items):
    return Counter(map(frozen, items))


@dataclass
class Difference(AssertionError):
    """What a host made of a program is not what it should be."""

    what: str
    program: object
    got: object
    expected: object

    def __str__(self):
        return f"{self.what}\n{self.program!r}\ngot      {self.got}\nexpected {self.expected}"


class Hang(BaseException):
    """No exception, so that hypothesis does not wait for it again and again."""


def check(programs, submit, make_source=from_items):
    """Run programs as one pipeline; each has to come to what plain Python says."""
    pipeline = Pipeline("fuzz", preserve_order=all(each.preserves_order for each in programs))
    written = [Written(pipeline, each, i, make_source) for i, each in enumerate(programs)]
    expectations = []
    for each in programs:
        expected = Expected()
        expectations.append((each.main.expect(expected), expected))
    failures = set().union(*(expected.failures for _, expected in expectations))
    certain = {kind for kind in failures if not kind.endswith("?")}
    try:
        job = submit(pipeline)
        job.join(JOIN_TIMEOUT)
    except JobFailedError as error:
        text = str(error)
        if not any(kind.rstrip("?") in text for kind in failures):
            raise Difference("it failed", programs, text, failures or "no failure") from error
        return
    except TimeoutError as error:
        job.cancel()
        raise Hang(Difference("it hangs", programs, str(job.metrics()), "an end")) from error
    if certain:
        raise Difference("it did not fail", programs, "an end", certain)
    for one, (items, expected) in zip(written, expectations, strict=True):
        got = bag(one.out.items)
        if got != bag(items):
            wanted = bag(items)
            raise Difference("other items", one.program, got - wanted, wanted - got)
        if one.program.keeps_order and frozen(one.out.items) != frozen(items):
            raise Difference("another order", one.program, one.out.items, items)
        if one.program.is_sorted and [i[1:] for i in one.out.items] != [i[1:] for i in items]:
            raise Difference("not sorted", one.program, one.out.items, items)
        letters = Counter((x.stage, frozen(x.item), x.error_type) for x in one.letters.items)
        wanted = Counter((name, frozen(item), kind) for name, item, kind in expected.letters)
        if letters != wanted:
            raise Difference("other letters", one.program, letters - wanted, wanted - letters)


# --- Hosts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    open: Callable[[], Any]
    """Gives what submits a pipeline, as a context."""
    is_slow: bool = False
    """It takes a moment to start a job, so that several programs are better run as one."""
    streams: bool = False
    check: Callable[..., None] = check


@contextmanager
def _embedded(**options):
    config = JobConfig(default_parallelism=options.get("workers"))
    with EmbeddedEngine(**options) as engine:
        yield lambda pipeline: engine.submit(pipeline, config)


@contextmanager
def _spark():
    from jetlet import SparkEngine
    from jetlet.spark.launch.session import active_session

    session = active_session()
    with SparkEngine(session=session) if session else SparkEngine("local[2]") as engine:
        yield engine.submit


def from_stream(root, pipeline, items, name, program):
    """A stream of Spark's that brings the items in several batches."""
    directory = Path(root) / name
    directory.mkdir()
    for start in range(0, max(1, len(items)), 15):
        rows = [json.dumps({"i": i}) for i in range(start, min(start + 15, len(items)))]
        (directory / f"{start:05}.json").write_text("\n".join(rows))

    def read(spark):
        reader = spark.readStream.schema("i long").option("maxFilesPerTrigger", 1)
        return reader.json(str(directory))

    rows = pipeline.read_from(sources.spark_stream(read, available_now=True, name=name))
    return rows.without_timestamps().map(lambda row: items[row["i"]], name=f"{name} item")


def check_stream(programs, submit):
    """Like `check`, with the items of each program as a stream in micro-batches."""
    for each in programs:
        with tempfile.TemporaryDirectory() as root:
            check([each], submit, partial(from_stream, root))


HOSTS = {
    "embedded-1": Host(lambda: _embedded(workers=1)),
    "embedded-2": Host(lambda: _embedded(workers=2)),
    "members": Host(lambda: _embedded(members=2), is_slow=True),
    "spark": Host(_spark, is_slow=True),
    "micro-batches": Host(_spark, is_slow=True, streams=True, check=check_stream),
}
