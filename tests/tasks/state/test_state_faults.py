"""A commit that ends anywhere: stores, changelogs and checkpoints still fit together.

A container in miniature counts messages by key, in a store that has a changelog, and commits in the
order of the real one. It is ended at every single write, and killed for good.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from jetlet.tasks import checkpoints, stores
from jetlet.tasks.envelope import SystemStreamPartition
from jetlet.tasks.state.changelog import in_log
from jetlet.tasks.state.container_storage import Checkpoint, StoreContext

INPUT = SystemStreamPartition("memory", "numbers", 0)
KEYS = 13


class Ended(BaseException):
    """As if the process had ended here."""


class Container:
    def __init__(self, directory, kind="sqlite", place="in_directory", **options):
        self.checkpoints = getattr(checkpoints, place)(directory / "checkpoints").open("app")
        where = () if kind == "in_memory" else (directory / "state",)
        declared = getattr(stores, kind)(
            *where, key=int, value=int, changelog=directory / "changelogs", **options
        )
        try:
            found = self.checkpoints.read("task")
            position = None if found is None else found.stores["counts"]
            self.store = declared.open(StoreContext("app", "task", "counts", position=position))
        except BaseException:
            self.checkpoints.close()
            raise
        self.next = 0 if found is None else found.offsets[INPUT] + 1

    def process(self, messages):
        for message in range(self.next, self.next + messages):
            key = message % KEYS
            if message % 7 == 3:
                self.store.delete(key)
            else:
                self.store.put(key, self.store.get(key, 0) + 1)
        self.next += messages

    def commit(self):
        position = self.store.flush()
        self.checkpoints.write("task", Checkpoint({INPUT: self.next - 1}, {"counts": position}))
        self.store.committed()

    def close(self):
        self.store.close()
        self.checkpoints.close()


def counted(messages):
    """What the store has after so many messages."""
    counts = Counter()
    for message in range(messages):
        if message % 7 == 3:
            del counts[message % KEYS]
        else:
            counts[message % KEYS] += 1
    return dict(counts)


def replayed(directory):
    changelog = in_log(directory / "changelogs").open(StoreContext("app", "task", "counts"))
    at, end = changelog.bounds()
    entries = {}
    while at < end:
        changes, position = changelog.read(at, end)
        entries.update(changes)
        at = position.end
    changelog.close()
    return {key: value for key, value in entries.items() if value is not None}


def check(container, directory):
    """The store is what the messages before the checkpoint made it, and so is the changelog."""
    assert dict(container.store.all()) == counted(container.next)
    encoded = {
        container.store._key(k): container.store._encode_value(v) for k, v in container.store.all()
    }
    assert replayed(directory) == encoded


WRITES = [
    "os.write",
    "os.pwrite",
    "os.replace",
    "os.open",
    "jetlet.tasks.state.local_store.MemoryStore.write",
    "jetlet.tasks.state.sqlite_store.SqliteStore.write",
    "jetlet.tasks.state.rocksdb_store.RocksDbStore.write",
    "jetlet.tasks.state.changelog.LogChangelog.append",
    "jetlet.tasks.state.cached_store.CachedStore.flush",
    "jetlet.tasks.state.cached_store.CachedStore.committed",
    "jetlet.log.writer.PartitionWriter.discard_before",
]


class EndsAt:
    """Ends the process, so to say, before or after its n-th write; from then on none is made."""

    def __init__(self, patch, n):
        self.left = n
        for name in WRITES:
            owner, _, function = name.rpartition(".")
            patch.setattr(name, self.wrapped(self.resolve(owner, function)))

    @staticmethod
    def resolve(owner, function):
        if owner == "os":
            return getattr(os, function)
        module, _, name = owner.rpartition(".")
        return getattr(getattr(sys.modules[module], name), function)

    def wrapped(self, function):
        def write(*arguments, **options):
            self.step()
            result = function(*arguments, **options)
            self.step()
            return result

        return write

    def step(self):
        self.left -= 1
        if self.left == 0:
            raise Ended


@pytest.mark.parametrize("place", ["in_directory", "in_log"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("in_memory", {}),
        ("sqlite", {}),
        ("rocksdb", {}),
        ("sqlite", {"write_buffer": 1000}),
        ("rocksdb", {"write_buffer": 1000}),
    ],
)
def test_it_may_end_at_any_write(kind, options, place, tmp_path, monkeypatch):
    monkeypatch.setattr("jetlet.tasks.state.changelog.CLEAN_FROM", 20)
    monkeypatch.setattr("jetlet.tasks.state.changelog.SEGMENT_BYTES", 300)
    rng = random.Random(1)
    container = Container(tmp_path, kind, place, **options)
    container.process(20)
    container.commit()
    step = ended = 0
    while ended == step:
        step += 1
        committed = container.next
        with pytest.MonkeyPatch.context() as patch:
            EndsAt(patch, step)
            try:
                container.process(rng.randint(1, 9))
                container.commit()
            except Ended:
                ended += 1
        container.close()
        container = Container(tmp_path, kind, place, **options)
        assert committed <= container.next
        check(container, tmp_path)
        container.process(1)
        container.commit()
        check(container, tmp_path)
    container.close()
    assert ended > 10


@pytest.mark.parametrize(("kind", "place"), [("sqlite", "in_directory"), ("rocksdb", "in_log")])
def test_it_may_end_at_any_write_of_a_restore(kind, place, tmp_path):
    """Whatever a container that dies early has done, the next one starts as it did."""
    container = Container(tmp_path, kind, place, write_buffer=1000)
    container.process(100)
    container.commit()
    container.process(50)
    container.store.flush()
    container.close()
    step, is_ended = 0, True
    while is_ended:
        step += 1
        is_ended = False
        with pytest.MonkeyPatch.context() as patch:
            EndsAt(patch, step)
            try:
                Container(tmp_path, kind, place).close()
            except Ended:
                is_ended = True
        container = Container(tmp_path, kind, place, write_buffer=1000)
        assert container.next == 100
        check(container, tmp_path)
        container.close()
    assert step > 5


# --- For good -------------------------------------------------------------------------------

TOTAL = 60_000


def run(directory, kind):
    """In a process of its own, until it is killed or done."""
    container = Container(directory, kind, write_buffer=2000)
    check(container, directory)
    print(container.next, flush=True)
    rng = random.Random()
    while container.next < TOTAL:
        container.process(min(rng.randint(1, 100), TOTAL - container.next))
        container.commit()
    container.close()


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "rocksdb"])
def test_it_may_be_killed(kind, tmp_path):
    rng = random.Random(7)
    started = [0]
    kills = 0
    while True:
        process = subprocess.Popen(
            [sys.executable, __file__, str(tmp_path), kind], stdout=subprocess.PIPE, text=True
        )
        with process:
            line = process.stdout.readline()
            assert line, "it could not start again"
            started.append(int(line))
            if kills < 8:
                try:
                    process.wait(rng.uniform(0.01, 0.15))
                except subprocess.TimeoutExpired:
                    process.kill()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0
            break
        kills += 1
    assert started == sorted(started)
    container = Container(tmp_path, kind)
    assert container.next == TOTAL
    check(container, tmp_path)
    container.close()
    assert kills > 3


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
