"""Applications of tasks on members that Spark hosts, on two cores of this machine."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from jetlet.errors import UnpicklableFunctionError
from jetlet.log import Log
from jetlet.tasks import (
    Scope,
    TaskApplication,
    TaskConfig,
    checkpoints,
    stores,
    systems,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROMPT = 60.0
PARTITIONS = 4
WORDS = [f"w{n * n % 13}" for n in range(400)]


class Count:
    """Counts words in a store; each container ends when its tasks have all been told to."""

    def __init__(self, mark=None):
        self._mark = mark

    def init(self, context):
        self._counts = context.store("counts")
        self._seen = 0

    def process(self, envelope, collector, coordinator):
        word = envelope.message
        if word == "stop":
            collector.send("log.pids", os.getpid())
            coordinator.commit(Scope.CURRENT_TASK)
            coordinator.shutdown(Scope.CURRENT_TASK)
            return
        count = (self._counts.get(word) or 0) + 1
        self._counts.put(word, count)
        collector.send("log.counts", (word, count))
        self._seen += 1
        if self._seen == 50:
            coordinator.commit(Scope.CURRENT_TASK)
        if self._seen == 70 and self._mark is not None:
            self._die_once()

    def _die_once(self):
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PROMPT)


def application(directory, task):
    return TaskApplication(
        "words",
        task,
        systems={"log": systems.log(directory / "data")},
        inputs=["log.words"],
        outputs=["log.counts", "log.pids"],
        stores={"counts": stores.sqlite(directory / "stores")},
        checkpoints=checkpoints.in_directory(directory / "checkpoints"),
        config=TaskConfig(),
    )


@pytest.fixture
def words(tmp_path):
    with Log(tmp_path / "data" / "words", partitions=PARTITIONS) as log:
        log.append(WORDS, key=lambda word: word)
        for partition in range(PARTITIONS):
            log.append(["stop"], partition=partition)


def read(directory, stream):
    with Log(directory / "data" / stream) as log:
        return [item for n in range(log.partition_count) for item in log.read(n, 0, 10_000).items]


def test_containers_are_members_and_divide_the_partitions(engine, words, tmp_path):
    engine.submit(application(tmp_path, Count)).join(PROMPT)
    assert dict(sorted(read(tmp_path, "counts"))) == Counter(WORDS)
    assert len(read(tmp_path, "counts")) == len(WORDS)
    assert sorted(Counter(read(tmp_path, "pids")).values()) == [2, 2]
    # There is nothing left to do for another run.
    with Log(tmp_path / "data" / "words") as log:
        for partition in range(PARTITIONS):
            log.append(["stop"], partition=partition)
    engine.submit(application(tmp_path, Count)).join(PROMPT)
    assert len(read(tmp_path, "counts")) == len(WORDS)


@pytest.mark.fault
def test_a_killed_container_is_started_again_from_its_checkpoints(engine, words, tmp_path):
    mark = tmp_path / "mark"
    job = engine.submit(application(tmp_path, lambda: Count(mark)))

    def nothing_is_missing():
        found = dict(sorted(read(tmp_path, "counts")))
        return all(found.get(word, 0) >= count for word, count in Counter(WORDS).items())

    deadline = time.monotonic() + PROMPT
    # At least once: what came after the last checkpoint may be counted again.
    while not nothing_is_missing():
        assert time.monotonic() < deadline
        assert not job.status.is_final
        time.sleep(0.01)
    job.cancel()
    assert mark.exists()
    assert job._lifecycle.restarts == 1


def test_streams_in_memory_stay_in_their_process(engine):
    memory = systems.in_memory()
    memory.create("words")
    app = TaskApplication("memory", Count, systems={"log": memory}, inputs=["log.words"])
    with pytest.raises(UnpicklableFunctionError, match="one process"):
        engine.submit(app)
