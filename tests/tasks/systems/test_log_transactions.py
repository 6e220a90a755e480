"""What a task sends to logs in transactions: shown when it is committed, once, whatever happens."""

from __future__ import annotations

import json

import pytest

from jetlet import EmbeddedEngine
from jetlet.errors import JobFailedError
from jetlet.log import Log
from jetlet.tasks import Scope, TaskApplication, TaskConfig, checkpoints, systems
from jetlet.tasks.envelope import OutgoingEnvelope, SystemStreamPartition
from jetlet.tasks.state.container_storage import Checkpoint


@pytest.fixture
def open_producer(tmp_path):
    """Opens the producer of a task, again and again, as runs that follow each other do."""
    system = systems.log(tmp_path)
    system.prepare_output("out", 2, 1)
    opened = []

    def open_one(task="task 0", prepared=None):
        producer = system.transactional_producer("app", task)
        producer.recover(["out"], prepared or {})
        opened.append(producer)
        return producer

    yield open_one
    for producer in opened:
        producer.close()


def send(producer, *messages, partition=0):
    producer.send("out", [OutgoingEnvelope(m, None, partition, None) for m in messages])


def shown(tmp_path, partition=0):
    with Log(tmp_path / "out") as log:
        end = log.end_offsets()[partition]
        return list(log.read(partition, 0, end).items) if end else []


def test_messages_are_shown_when_they_are_committed(open_producer, tmp_path):
    producer = open_producer()
    send(producer, "a", "b")
    prepared = producer.prepare()
    send(producer, "c")
    assert shown(tmp_path) == []
    producer.commit(prepared)
    assert shown(tmp_path) == ["a", "b"]
    producer.commit(producer.prepare())
    assert shown(tmp_path) == ["a", "b", "c"]
    assert producer.prepare() == {}


def test_what_was_prepared_goes_through_json(open_producer, tmp_path):
    first = open_producer()
    send(first, "a")
    send(first, *range(5000), partition=1)
    prepared = json.loads(json.dumps(first.prepare()))
    open_producer(prepared=prepared)
    assert shown(tmp_path) == ["a"]
    assert shown(tmp_path, 1) == list(range(5000))


@pytest.mark.parametrize("is_committed", [True, False])
def test_recovery_shows_it_once(open_producer, tmp_path, is_committed):
    first = open_producer()
    send(first, "a")
    prepared = first.prepare()
    if is_committed:
        first.commit(prepared)
    for _ in range(2):
        open_producer(prepared=prepared)
        assert shown(tmp_path) == ["a"]


def test_what_was_not_prepared_for_the_checkpoint_is_dropped(open_producer, tmp_path):
    first = open_producer()
    send(first, "in a checkpoint")
    prepared = first.prepare()
    send(first, "prepared, but in none")
    first.prepare()
    send(first, *["open"] * 5000)
    again = open_producer(prepared=prepared)
    send(again, "later")
    again.commit(again.prepare())
    assert shown(tmp_path) == ["in a checkpoint", "later"]
    assert not list((tmp_path / "out").glob("staged-*/*"))


def test_tasks_do_not_touch_what_others_have_prepared(open_producer, tmp_path):
    first = open_producer("task 0")
    send(first, "a")
    prepared = first.prepare()
    open_producer("task 1")
    first.commit(prepared)
    assert shown(tmp_path) == ["a"]


# --- In an application ------------------------------------------------------------------------


class Forward:
    """Sends each number on and fails at one, as often as it is told to."""

    failures = 0

    def process(self, envelope, collector, coordinator):
        number = envelope.message
        collector.send("log.out", number, partition=0)
        if number == 15 and Forward.failures:
            Forward.failures -= 1
            raise ValueError("on purpose")
        if number % 10 == 9:
            coordinator.commit(Scope.CURRENT_TASK)
        if number == 29:
            coordinator.shutdown(Scope.CURRENT_TASK)


def application(tmp_path, guarantee="exactly-once"):
    return TaskApplication(
        "forward",
        Forward,
        systems={"log": systems.log(tmp_path)},
        inputs=["log.in"],
        outputs=["log.out"],
        checkpoints=checkpoints.in_directory(tmp_path / "checkpoints"),
        config=TaskConfig(processing_guarantee=guarantee),
    )


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_task_that_fails_sends_nothing_twice(tmp_path, guarantee):
    with Log(tmp_path / "in", partitions=1) as log:
        log.append(range(30), partition=0)
    Forward.failures = 2
    with EmbeddedEngine() as engine:
        for _ in range(2):
            with pytest.raises(JobFailedError, match="on purpose"):
                engine.submit(application(tmp_path, guarantee)).join()
        engine.submit(application(tmp_path, guarantee)).join()
    if guarantee == "exactly-once":
        assert shown(tmp_path) == list(range(30))
    else:  # what of a failed attempt is there depends on when the producer has flushed
        assert set(shown(tmp_path)) == set(range(30))


def test_what_was_prepared_is_shown_whatever_the_guarantee_is_later(tmp_path):
    with Log(tmp_path / "in", partitions=1) as log:
        log.append(range(30), partition=0)
    app = application(tmp_path)
    ((task,), manager) = app.assignments(), app.checkpoints.open(app.name)
    app.systems["log"].prepare_output("out", 1, 1)
    producer = app.systems["log"].transactional_producer(app.name, task.name)
    send(producer, "prepared")
    offsets = {SystemStreamPartition("log", "in", 0): 28}
    manager.write(task.name, Checkpoint(offsets, {}, {"log": producer.prepare()}))
    manager.close()
    Forward.failures = 0
    with EmbeddedEngine() as engine:
        engine.submit(application(tmp_path, "at-least-once")).join()
    assert shown(tmp_path) == ["prepared", 29]
    producer.close()
