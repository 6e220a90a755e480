from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from jetlet import JobConfig, Pipeline, sinks, sources
from jetlet.spark.launch.versions import package_version

pytestmark = pytest.mark.spark

LIMIT = 120.0


class Account:
    def __init__(self):
        self.balance = 0


def deposit(account, key, row):
    assert isinstance(account, Account)  # also if it was read from a file
    account.balance += row["value"]
    return key, account.balance


def python_workers():
    """The Python workers of Spark that this process has started, directly or not."""
    parents, commands = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = path.joinpath("stat").read_text().rpartition(")")[2].split()
            parents[int(path.name)] = int(fields[1])
            commands[int(path.name)] = path.joinpath("cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
    mine = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in mine} - mine:
        mine |= more
    daemons = {pid for pid in mine if b"pyspark.daemon" in commands.get(pid, b"")}
    return {pid for pid in daemons if parents[pid] in daemons}


def wait_until(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(
    package_version() < (4, 0),
    reason="Spark before 4.0 gives a task to a worker that is dead, and a local one does so once",
)
def test_state_survives_the_workers_that_have_it(engine, tmp_path):
    stream = tmp_path / "in"
    stream.mkdir()
    keys = [f"key-{number}" for number in range(10_000)]
    out = sinks.collect()
    p = Pipeline("sums")
    (
        p.read_from(
            sources.spark_stream(
                lambda spark: spark.readStream.schema("key string, value long").json(str(stream))
            )
        )
        .without_timestamps()
        .grouping_key(lambda row: row["key"])
        .map_stateful(Account, deposit)
        .write_to(out)
    )
    job = engine.submit(p, JobConfig(snapshot_dir=str(tmp_path / "state")))
    sums = Counter()
    expected = []
    read = []
    try:
        for batch in range(6):
            chosen = keys if batch == 0 else keys[batch * 100 : batch * 100 + 300]
            rows = [{"key": key, "value": batch + 1} for key in chosen]
            aside = tmp_path / "aside.json"
            aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
            aside.replace(stream / f"{batch}.json")
            for row in rows:
                sums[row["key"]] += row["value"]
                expected.append((row["key"], sums[row["key"]]))
            wait_until(lambda: len(out.items) >= len(expected))
            read.append(job.metrics()["map-stateful"].counters.get("state_files_read", 0))
            if batch == 3:
                for pid in python_workers():
                    os.kill(pid, signal.SIGKILL)
    finally:
        job.cancel()
    assert sorted(out.items) == sorted(expected)
    # Both tasks had to read their chain, of four batches, whatever had been read before.
    assert read[4] - read[3] == 2 * 4
