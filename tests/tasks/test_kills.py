"""A container that is killed, again and again: what it had committed stays, and nothing is lost.

``python tests/tasks/test_kills.py`` is the long form: 30 kills over a million messages.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from jetlet import EmbeddedEngine
from jetlet.log import Log
from jetlet.tasks import Scope, TaskApplication, TaskConfig, checkpoints, stores, systems
from jetlet.tasks.state.changelog import in_log
from jetlet.tasks.state.checkpoints import decode_checkpoint
from jetlet.tasks.state.container_storage import StoreContext
from jetlet.tasks.state.ordered_keys import decode_key

MESSAGES = 40_000
KILLS = 4
PARTITIONS = 4
KEYS = 1000
STOP = -1
CALLS = {"after prepare": "prepare", "before commit": "commit", "after commit": "commit"}
"""Where a container with transactions may be killed besides: at which call of its producers."""


class Count:
    """Counts numbers by their remainder, sends them on, and ends with the last one."""

    left = 0
    """Messages before this process is killed, on a thread of its own."""

    def init(self, context):
        self.counts = context.store("counts")

    def process(self, envelope, collector, coordinator):
        Count.left -= 1
        if Count.left == 0:
            threading.Thread(target=os.kill, args=[os.getpid(), signal.SIGKILL]).start()
        number = envelope.message
        if number == STOP:
            coordinator.shutdown(Scope.CURRENT_TASK)
            return
        key = number % KEYS
        self.counts.put(key, self.counts.get(key, 0) + 1)
        collector.send("log.seen", number)


def application(directory, guarantee="at-least-once"):
    return TaskApplication(
        "count",
        Count,
        systems={"log": systems.log(directory)},
        inputs=["log.numbers"],
        outputs=["log.seen"],
        stores={
            "counts": stores.sqlite(
                directory / "state", value=int, changelog=directory / "changelogs"
            )
        },
        checkpoints=checkpoints.in_log(directory / "checkpoints"),
        config=TaskConfig(commit_interval=0.05, processing_guarantee=guarantee),
    )


def fill(directory, messages, *, stops=True):
    with Log(directory / "numbers", partitions=PARTITIONS) as log:
        for partition in range(PARTITIONS):
            log.append(range(partition, messages, PARTITIONS), partition=partition)
            if stops:
                log.append([STOP], partition=partition)


def drain_at_the_end(job, directory):
    """End the job once all that it has to send is to be seen."""
    with Log(directory / "numbers") as numbers, Log(directory / "seen") as seen:
        while sum(seen.end_offsets()) < sum(numbers.end_offsets()) and not job.status.is_final:
            time.sleep(0.05)
    job.drain()


def kill_while_it_runs(directory, kills, most, guarantee="at-least-once", places=("process",)):
    """Each time after so many messages, or a few calls at other places; then let it run on."""
    rng = random.Random(3)
    schedule = [
        (where, rng.randrange(1, most if where == "process" else 6))
        for where in places
        for _ in range(kills)
    ]
    for where, left in [*schedule, ("process", 0)]:
        arguments = [str(directory), str(left), guarantee, where]
        process = subprocess.run([sys.executable, __file__, *arguments], check=False)
        assert process.returncode == (-signal.SIGKILL if left else 0), (where, left)


def items_of(log, partition):
    at, end = log.start_offsets()[partition], log.end_offsets()[partition]
    while at < end:
        records = log.read(partition, at, 10_000)
        yield from records.items
        at = records.next_offset


def check(directory, messages, guarantee="at-least-once"):
    with Log(directory / "seen") as log:
        seen = [number for i in range(PARTITIONS) for number in items_of(log, i)]
    if guarantee == "exactly-once":
        assert sorted(seen) == list(range(messages))
        assert not list(Path(directory / "seen").glob("staged-*/*"))
    assert set(seen) == set(range(messages))
    for partition in range(PARTITIONS):
        task = f"partition {partition}"
        expected = dict(Counter(n % KEYS for n in range(partition, messages, PARTITIONS)))
        committed = -1
        with Log(directory / "checkpoints" / "count" / task) as log:
            for data in items_of(log, 0):
                checkpoint, _ = decode_checkpoint(data)
                # A commit may be due before the first message.
                offset = next(iter(checkpoint.offsets.values()), -1)
                assert offset >= committed
                committed = offset
        stops = guarantee != "exactly-once"
        assert committed == len(range(partition, messages, PARTITIONS)) - 1 + stops
        context = StoreContext(
            "count", task, "counts", partition, PARTITIONS, checkpoint.stores["counts"]
        )
        store = application(directory).stores["counts"].open(context)
        assert dict(store.all()) == expected
        store.close()
        assert replayed(context, directory) == expected


def replayed(context, directory):
    changelog = in_log(directory / "changelogs").open(context)
    at, end = changelog.bounds()
    entries = {}
    while at < end:
        changes, position = changelog.read(at, end)
        entries.update(changes)
        at = position.end
    changelog.close()
    return {
        decode_key(key): int.from_bytes(value, "big") for key, value in entries.items() if value
    }


@pytest.mark.fault
@pytest.mark.slow
def test_a_container_may_be_killed_at_any_time(tmp_path):
    fill(tmp_path, MESSAGES)
    kill_while_it_runs(tmp_path, KILLS, most=MESSAGES // KILLS)
    check(tmp_path, MESSAGES)


@pytest.mark.fault
@pytest.mark.slow
def test_what_a_killed_container_has_sent_is_there_once(tmp_path):
    fill(tmp_path, MESSAGES, stops=False)
    places = ("process", *CALLS)
    kill_while_it_runs(tmp_path, 1, MESSAGES // 2, "exactly-once", places)
    check(tmp_path, MESSAGES, "exactly-once")


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fill(directory, 1_000_000)
        kill_while_it_runs(directory, 30, most=1_000_000 // 30)
        check(directory, 1_000_000)
        print("30 kills over 1,000,000 messages: nothing lost, stores exact, no way back")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fill(directory, 1_000_000, stops=False)
        places = ("process", *CALLS) * 2
        kill_while_it_runs(directory, 5, 1_000_000 // 20, "exactly-once", places)
        check(directory, 1_000_000, "exactly-once")
        print("40 kills over 1,000,000 messages with transactions: nothing lost, nothing twice")


def die_at(where, left):
    """Be killed before or after a step of a commit, the so many times that it is taken."""
    from jetlet.tasks.systems.log_transactions import LogTransactions

    name = CALLS[where]
    original = getattr(LogTransactions, name)
    calls = itertools.count(1)

    def killed(self, *arguments):
        is_last = next(calls) == left
        if is_last and where.startswith("before"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(self, *arguments)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(LogTransactions, name, killed)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        _, name, calls, guarantee, where = sys.argv
        if where == "process":
            Count.left = int(calls)
        elif int(calls):
            die_at(where, int(calls))
        with EmbeddedEngine() as engine:
            job = engine.submit(application(Path(name), guarantee))
            if guarantee == "exactly-once":
                drain_at_the_end(job, Path(name))
            job.join()
