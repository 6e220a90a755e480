"""A driver in micro-batches that is killed between any two steps of a batch, and the next one."""

from __future__ import annotations

import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import jetlet
from jetlet.log import Log

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]

DRIVER = Path(__file__).with_name("micro_batch_driver.py")
PER_BATCH = 12
BATCHES = 6
CRASHES = [
    ("handed over", 0),
    ("in the middle of a task", 0),
    ("state saved, transactions prepared", 1),
    ("about to record", 2),
    ("one of the sinks committed", 3),
    ("committed", 4),
    ("all done but for Spark's note", 5),
    ("recorded", 6),
    ("committed at the end", 6),
]
"""Each run goes on from where the one before it was killed. Batch 6 is the last, without input."""


def drive(short_lived, directory, *arguments):
    inherited = {k: v for k, v in os.environ.items() if "SPARK" not in k}
    return subprocess.run(
        [sys.executable, DRIVER, directory, *map(str, arguments)],
        env={
            **inherited,
            "PYTHONPATH": str(Path(jetlet.__file__).parents[1]),
            **short_lived,
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.timeout(900)
def test_results_are_exact_wherever_the_driver_is_killed(tmp_path, short_lived):
    events = [
        {"time": 40 * n - n * 7 % 30, "key": f"k{n * n % 4}", "value": n}
        for n in range(BATCHES * PER_BATCH)
    ]
    (tmp_path / "in").mkdir()
    for number in range(BATCHES):
        file = tmp_path / "in" / f"{number}.json"
        lines = events[number * PER_BATCH : (number + 1) * PER_BATCH]
        file.write_text("".join(json.dumps(event) + "\n" for event in lines))
        os.utime(file, (number, number))
    with sqlite3.connect(tmp_path / "results.db") as database:
        database.execute("create table numbered (key text, number integer, value integer)")

    for step, batch in CRASHES:
        done = drive(short_lived, tmp_path, step, batch)
        assert done.returncode == -signal.SIGKILL, f"{step} {batch}: {done.stderr}"
    done = drive(short_lived, tmp_path)
    assert done.returncode == 0, done.stderr

    assert sorted(written_counts(tmp_path / "counts")) == sorted(windows_of(events))
    expected = sorted(numbered(events))
    with Log(tmp_path / "log") as log:
        assert sorted(log.read(0, 0).items) == expected
    with sqlite3.connect(tmp_path / "results.db") as database:
        assert sorted(database.execute("select * from numbered")) == expected
    assert not list((tmp_path / "counts").glob(".*/"))


def written_counts(directory):
    for part in directory.glob("part-*"):
        with part.open() as file:
            yield from ((int(start), key, int(count)) for start, key, count in csv.reader(file))


def windows_of(events):
    found = Counter()
    for event in events:
        end = event["time"] // 100 * 100 + 100
        for start in range(end - 300, end, 100):
            found[start, event["key"]] += 1
    return [(*key, count) for key, count in found.items()]


def numbered(events):
    seen = Counter()
    for event in events:
        seen[event["key"]] += 1
        yield event["key"], seen[event["key"]], event["value"]
