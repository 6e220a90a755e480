"""A driver of a job in micro-batches that can be told where to die, for tests:
``micro_batch_driver.py DIRECTORY [STEP [BATCH]]``.

It reads the files of DIRECTORY/in, one per batch, and writes to files, to a log and to a database
in DIRECTORY. At STEP of BATCH the process is killed, with the JVM and all.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from jetlet import JobConfig, Pipeline, SparkEngine, agg, sinks, sources, windows
from jetlet.connectors.files.sink import FileSink
from jetlet.connectors.files.transactions import FileTransactionWriter
from jetlet.spark.launch import session
from jetlet.spark.micro_batch.batch_log import BatchLog
from jetlet.spark.micro_batch.runner import MicroBatchRunner
from jetlet.spark.micro_batch.sinks import BatchSinks
from jetlet.spark.micro_batch.streaming_query import HandedBatch

SCHEMA = "time long, key string, value long"
STEPS = {
    "handed over": (MicroBatchRunner, "_run_handed", "before"),
    "state saved, transactions prepared": (MicroBatchRunner, "_deliver", "before"),
    "about to record": (BatchLog, "write", "before"),
    "recorded": (BatchLog, "write", "after"),
    "one of the sinks committed": (FileTransactionWriter, "commit", "after"),
    "committed": (BatchSinks, "commit", "after"),
    "all done but for Spark's note": (HandedBatch, "done", "before"),
    "committed at the end": (FileSink, "commit_last", "after"),
}
IN_A_TASK = "in the middle of a task"


def die() -> None:
    """Without a word to anybody."""
    if session._jvm is not None:
        session._jvm.process.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(step: str, batch: int) -> None:
    """Be killed before or after a method is called in a batch; what comes later than any is the
    last one, which has no input."""
    owner, name, when = STEPS[step]
    method = getattr(owner, name)
    running = [-1]
    begin = MicroBatchRunner._begin

    def begin_batch(self, number, *arguments, **options):
        running[0] = number
        return begin(self, number, *arguments, **options)

    def call(self, *arguments, **options):
        is_time = (
            running[0] == batch
            or (name == "_run_handed" and arguments[1].number == batch)
            or name == "commit_last"
        )
        if is_time and when == "before":
            die()
        result = method(self, *arguments, **options)
        if is_time:
            die()
        return result

    MicroBatchRunner._begin = begin_batch
    setattr(owner, name, call)


def killing(driver: int, value: int):
    """A function of an item that kills the driver."""

    def look(event):
        if event["value"] == value:
            os.kill(driver, signal.SIGKILL)
        return event

    return look


def main(directory: Path, step: str | None = None, batch: int = 0) -> None:
    p = Pipeline("crashing")
    source = sources.spark_stream(
        lambda spark: (
            spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .json(str(directory / "in"))
        ),
        available_now=True,
    )
    events = p.read_from(source).with_timestamps(lambda event: event["time"], 50)
    if step == IN_A_TASK:
        # On some event of the batch, which is one file.
        file = sorted((directory / "in").glob("*.json"))[batch]
        value = int(file.read_text().splitlines()[-1].rpartition(":")[2].strip(" }"))
        events = events.map(killing(os.getpid(), value))
    elif step is not None:
        die_at(step, batch)
    keyed = events.grouping_key(lambda event: event["key"])
    counts = keyed.window(windows.sliding(300, 100)).aggregate(agg.counting())
    counts.map(lambda w: (w.start, w.key, w.result)).write_to(sinks.csv(directory / "counts"))
    numbered = keyed.map_stateful(list, number)
    numbered.write_to(sinks.log(directory / "log", partitions=1))
    numbered.write_to(sinks.sql(f"sqlite:///{directory}/results.db", "numbered"))
    config = JobConfig(snapshot_dir=str(directory / "state"), processing_guarantee="exactly-once")
    with SparkEngine("local[2]") as engine:
        engine.submit(p, config).join()


def number(seen, key, event):
    seen.append(event["value"])
    return key, len(seen), event["value"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3], *map(int, sys.argv[3:4]))
