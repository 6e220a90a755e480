"""A container that is killed, again and again: what it had committed stays, and nothing is lost.

``python tests/tasks/test_kills.py`` is the long form: 30 kills over a million messages.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
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


def application(directory):
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
        config=TaskConfig(commit_interval=0.05),
    )


def fill(directory, messages):
    with Log(directory / "numbers", partitions=PARTITIONS) as log:
        for partition in range(PARTITIONS):
            log.append(range(partition, messages, PARTITIONS), partition=partition)
            log.append([STOP], partition=partition)


def kill_while_it_runs(directory, kills, most):
    """Each time after so many messages; then let it run to its end."""
    rng = random.Random(3)
    for left in [*(rng.randrange(1, most) for _ in range(kills)), 0]:
        process = subprocess.run([sys.executable, __file__, str(directory), str(left)], check=False)
        assert process.returncode == (-signal.SIGKILL if left else 0)


def items_of(log, partition):
    at, end = log.start_offsets()[partition], log.end_offsets()[partition]
    while at < end:
        records = log.read(partition, at, 10_000)
        yield from records.items
        at = records.next_offset


def check(directory, messages):
    with Log(directory / "seen") as log:
        seen = {number for i in range(PARTITIONS) for number in items_of(log, i)}
    assert seen == set(range(messages))
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
        assert committed == len(range(partition, messages, PARTITIONS))
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


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fill(directory, 1_000_000)
        kill_while_it_runs(directory, 30, most=1_000_000 // 30)
        check(directory, 1_000_000)
        print("30 kills over 1,000,000 messages: nothing lost, stores exact, no way back")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        Count.left = int(sys.argv[2])
        with EmbeddedEngine() as engine:
            engine.submit(application(Path(sys.argv[1]))).join()
