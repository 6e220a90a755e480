"""Moving state to an application that has another number of tasks."""

from __future__ import annotations

import time

import pytest

from jetlet import EmbeddedEngine
from jetlet.core import partition_id
from jetlet.errors import InvalidArgumentError
from jetlet.log import Log
from jetlet.tasks import TaskApplication, checkpoints, stores, systems

WORDS = [f"word {i}" for i in range(40)]


class Count:
    def init(self, context):
        self.counts = context.store("counts")

    def process(self, envelope, collector, coordinator):
        count = self.counts.get(envelope.message, 0) + 1
        self.counts.put(envelope.message, count)
        collector.send("s.out", (envelope.message, count))


def counting(folder, partitions, *, name="count", **options):
    return TaskApplication(
        name,
        Count,
        systems={"s": systems.log(folder / "data")},
        inputs=[f"s.in-{partitions}"],
        outputs=["s.out"],
        stores={
            "counts": stores.sqlite(
                folder / "state", key=str, value=int, changelog=folder / f"changes-{partitions}"
            )
        },
        checkpoints=checkpoints.in_directory(folder / f"checkpoints-{partitions}"),
        **options,
    )


def send(folder, partitions):
    with Log(folder / "data" / f"in-{partitions}", partitions=partitions) as log:
        log.append(WORDS * 3, key=lambda word: word)


def run(app, messages):
    with EmbeddedEngine() as engine:
        job = engine.submit(app)
        processed = lambda: sum(each["process_calls"] for each in job.metrics().containers)
        while processed() < messages and not job.status.is_final:
            time.sleep(0.01)
        job.drain()
        job.join(60)


def last_counts(folder):
    with Log(folder / "data" / "out") as log:
        found = {}
        for part in range(log.partition_count):
            for word, count in log.read(part, 0, limit=10_000).items:
                found[word] = max(count, found.get(word, 0))
    return found


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2)])
def test_counts_go_on_with_more_and_with_fewer_tasks(tmp_path, before, after):
    send(tmp_path, before)
    run(counting(tmp_path, before), 120)
    send(tmp_path, after)
    new = counting(tmp_path, after, name="count again")
    new.take_over(counting(tmp_path, before), lambda store, key: partition_id(key, after))
    run(new, 120)
    assert last_counts(tmp_path) == dict.fromkeys(WORDS, 6)


def test_what_cannot_be_taken_over_is_refused(tmp_path):
    for partitions in (2, 3):
        send(tmp_path, partitions)
    run(counting(tmp_path, 2), 120)
    new = counting(tmp_path, 3, name="count again")
    with pytest.raises(InvalidArgumentError, match="the number of a task, from 0 to 2"):
        new.take_over(counting(tmp_path, 2), lambda store, key: 3)
    new.take_over(counting(tmp_path, 2), lambda store, key: partition_id(key, 3))
    with pytest.raises(InvalidArgumentError, match="has a checkpoint of its own"):
        new.take_over(counting(tmp_path, 2), lambda store, key: 0)
