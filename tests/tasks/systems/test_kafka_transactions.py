"""What a task sends to Kafka in transactions: shown when it is committed, once, whatever happens.

Against a model of what Kafka promises, and with the real client: the cluster that librdkafka plays
takes transactions, but neither keeps their offsets, by which a commit that is repeated is known,
nor fences producers of one name.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jetlet import EmbeddedEngine
from jetlet.errors import (
    BadRecordError,
    InvalidArgumentError,
    JetletError,
    JobFailedError,
    RestartableError,
)
from jetlet.log import Log
from jetlet.tasks import Scope, TaskApplication, TaskConfig, checkpoints, systems
from jetlet.tasks.envelope import OutgoingEnvelope
from jetlet.tasks.systems import kafka_transactions
from jetlet.tasks.systems.kafka_transactions import KafkaTransactions


@pytest.fixture
def model(kafka_model, monkeypatch):
    model = kafka_model()
    model.install(monkeypatch)
    return model


@pytest.fixture
def open_producer():
    """Opens the producer of a task, again and again, as runs that follow each other do.

    What was opened before goes on living, as after a kill that did not work.
    """

    def open_one(prepared=None, servers="host:9092", **options):
        system = systems.kafka(servers, **options)
        opened.append(system.transactional_producer("app", "task 0"))
        opened[-1].recover(["out"], json.loads(json.dumps(prepared or {})))
        return opened[-1]

    opened = []
    yield open_one
    for each in opened:
        each.close()
        each.close()


def send(producer, *messages):
    producer.send("out", [OutgoingEnvelope(message) for message in messages])


class TestModel:
    def test_messages_are_shown_when_they_are_committed(self, model, open_producer):
        producer = open_producer()
        send(producer, b"a", b"b")
        prepared = producer.prepare()
        send(producer, b"c")
        assert model.records == []
        producer.commit(prepared)
        producer.commit(prepared)
        assert model.records == [b"a", b"b"]
        producer.commit(producer.prepare())
        assert model.records == [b"a", b"b", b"c"]
        assert producer.prepare() == {}

    @pytest.mark.parametrize("is_committed", [True, False])
    def test_recovery_shows_it_once(self, model, open_producer, is_committed):
        first = open_producer()
        for message in (b"a", b"b"):
            send(first, message)
            prepared = first.prepare()
            if is_committed or message == b"a":
                first.commit(prepared)
        for _ in range(3):
            open_producer(prepared)
            assert model.records == [b"a", b"b"]
        last = open_producer(prepared)
        send(last, b"c")
        last.commit(last.prepare())
        assert model.records == [b"a", b"b", b"c"]

    def test_what_was_not_prepared_for_the_checkpoint_is_dropped(self, model, open_producer):
        first = open_producer()
        send(first, b"in a checkpoint")
        prepared = first.prepare()
        first.commit(prepared)
        send(first, b"prepared, but in none")
        first.prepare()
        for number, message in enumerate((b"later", b"later still")):
            again = open_producer(prepared)
            send(again, message)
            prepared = again.prepare()
            again.commit(prepared)
            assert len(model.records) == 2 + number
        assert model.records == [b"in a checkpoint", b"later", b"later still"]

    def test_a_run_that_goes_on_cannot_show_what_the_next_has_shown(self, model, open_producer):
        zombie = open_producer()
        send(zombie, b"a")
        prepared = zombie.prepare()
        open_producer(prepared)
        with pytest.raises(RestartableError, match="has failed"):
            zombie.commit(prepared)
        with pytest.raises(JetletError, match="was not committed"):
            zombie.prepare()
        assert model.records == [b"a"]

    def test_after_a_commit_that_failed_nothing_is_prepared(
        self, model, open_producer, monkeypatch
    ):
        """Its checkpoint would take the place of the one that has what was not shown."""
        producer = open_producer()
        send(producer, b"a")
        prepared = producer.prepare()
        with monkeypatch.context() as patch:
            patch.setitem(model.producers, next(iter(model.producers)), None)
            with pytest.raises(RestartableError):
                producer.commit(prepared)
        with pytest.raises(JetletError, match="was not committed"):
            producer.prepare()
        open_producer(prepared)
        assert model.records == [b"a"]

    def test_nothing_is_shown_once_it_is_closed(self, model, open_producer):
        """A commit may be under way on a thread that was left behind."""
        producer = open_producer()
        send(producer, b"a")
        prepared = producer.prepare()
        producer.close()
        with pytest.raises(JetletError, match="was not committed"):
            producer.commit(prepared)
        assert model.records == []

    @pytest.mark.parametrize("change", [-1, 1])
    def test_where_it_cannot_be_known_what_was_shown_it_is_said(self, model, open_producer, change):
        """As when Kafka has forgotten the mark, or the checkpoint is older than it."""
        first = open_producer()
        send(first, b"a")
        prepared = first.prepare()
        first.commit(prepared)
        if change < 0:
            model.offsets.clear()
        else:
            send(first, b"b")
            first.commit(first.prepare())
        before = list(model.records)
        with pytest.raises(JetletError, match="processing_guarantee='at-least-once'"):
            open_producer(prepared)
        assert model.records == before
        opened = systems.kafka("host:9092").transactional_producer("app", "task 0")
        opened.recover(["out"], prepared, exactly=False)
        opened.close()
        assert model.records == (before * 2 if change < 0 else before)

    def test_marks_are_kept_alive_while_nothing_is_sent(self, model, open_producer, monkeypatch):
        producer = open_producer()
        monkeypatch.setattr(kafka_transactions, "REFRESH", 0)
        assert producer.prepare() == {}  # there is no mark yet
        send(producer, b"a")
        producer.commit(producer.prepare())
        (mark,) = model.offsets.values()
        producer.commit(producer.prepare())
        assert list(model.offsets.values()) == [mark + 1]
        assert model.records == [b"a"]

    def test_two_systems_with_the_same_topic_do_not_mix(self, model, open_producer):
        first, second = open_producer(), open_producer()
        send(first, b"a")
        send(second, b"b")
        prepared = first.prepare(), second.prepare()
        first.commit(prepared[0])
        second.commit(prepared[1])
        for each in prepared:
            open_producer(each)
        assert model.records == [b"a", b"b"]

    @pytest.mark.parametrize(
        ("wrong", "error", "message"),
        [
            (OutgoingEnvelope("text"), BadRecordError, "cannot be sent to topic 'out'"),
            (OutgoingEnvelope(b"a", 5), BadRecordError, "expected bytes, not int"),
            (OutgoingEnvelope(b"a" * 2**20), BadRecordError, "the record has"),
            (OutgoingEnvelope(b"a", None, 1), InvalidArgumentError, "from 0 to 0"),
            (OutgoingEnvelope(b"a", None, 0.0), InvalidArgumentError, "from 0 to 0"),
            (OutgoingEnvelope(b"a", None, 0, 1.5), BadRecordError, "write milliseconds"),
            (OutgoingEnvelope(b"a", None, 0, -1), BadRecordError, "write milliseconds"),
        ],
    )
    def test_what_kafka_does_not_take_is_refused_when_it_comes(
        self, model, open_producer, wrong, error, message
    ):
        with pytest.raises(error, match=message):
            open_producer().send("out", [wrong])


# --- In an application ------------------------------------------------------------------------


class Forward:
    """Sends each number on and fails at one, as often as it is told to."""

    failures = 0

    def process(self, envelope, collector, coordinator):
        number = envelope.message
        collector.send(Forward.output, b"%d" % number)
        if number == 15 and Forward.failures:
            Forward.failures -= 1
            raise ValueError("on purpose")
        if number % 10 == 9:
            coordinator.commit(Scope.CURRENT_TASK)
        if number == 29:
            coordinator.shutdown(Scope.CURRENT_TASK)


def application(directory, servers="host:9092", topic="out"):
    Forward.output = f"kafka.{topic}"
    return TaskApplication(
        "forward",
        Forward,
        systems={"log": systems.log(directory), "kafka": systems.kafka(servers)},
        inputs=["log.in"],
        outputs=[Forward.output],
        checkpoints=checkpoints.in_log(directory / "checkpoints"),
        config=TaskConfig(processing_guarantee="exactly-once", poll_interval=0.01),
    )


def fill(directory):
    with Log(directory / "in", partitions=1) as log:
        log.append(range(30), partition=0)


def saved(app):
    manager = app.checkpoints.open(app.name)
    checkpoint = manager.read("partition 0")
    manager.close()
    return checkpoint


EXPECTED = [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("place", ["process", "before checkpoint", "before commit", "after commit"])
def test_a_task_that_fails_sends_nothing_twice(model, tmp_path, monkeypatch, place):
    fill(tmp_path)
    Forward.failures = 2 if place == "process" else 0
    calls = itertools.count(1 if place != "process" else 3)
    name = "prepare" if place == "before checkpoint" else "commit"
    original = getattr(KafkaTransactions, name)

    def failing(self, *arguments):
        is_second = next(calls) == 2
        if is_second and place == "before commit":
            raise ValueError("on purpose")
        result = original(self, *arguments)
        if is_second:
            raise ValueError("on purpose")
        return result

    monkeypatch.setattr(KafkaTransactions, name, failing)
    with EmbeddedEngine() as engine:
        for _ in range(2 if place == "process" else 1):
            with pytest.raises(JobFailedError, match="on purpose"):
                engine.submit(application(tmp_path)).join()
        job = engine.submit(application(tmp_path))
        job.join()
    assert model.records == EXPECTED


def test_a_checkpoint_at_the_end_names_nothing_that_kafka_may_forget(model, tmp_path):
    fill(tmp_path)
    Forward.failures = 0
    with EmbeddedEngine() as engine:
        engine.submit(application(tmp_path)).join()
    checkpoint = saved(application(tmp_path))
    assert list(checkpoint.offsets.values()) == [29]
    assert checkpoint.transactions == {}


class TestClient:
    def test_transactions_arrive_with_all_that_belongs_to_them(self, kafka):
        topic = kafka.topic()
        producer = systems.kafka(kafka.servers, key=str, value=int).transactional_producer("a", "t")
        producer.recover([topic], {})
        producer.send(topic, [OutgoingEnvelope(7, "ann", None, 1000)])
        first = json.loads(json.dumps(producer.prepare()))
        producer.send(topic, [OutgoingEnvelope(None, "gone", 2)])
        producer.commit(first)
        producer.commit(producer.prepare())
        producer.close()
        found = {message.key(): message for message in kafka.read(topic, 2)}
        assert int.from_bytes(found[b"ann"].value(), "big") == 7
        assert found[b"ann"].timestamp()[1] == 1000
        assert (found[b"gone"].value(), found[b"gone"].partition()) == (None, 2)
        assert found[b"gone"].timestamp()[1] > 1000

    @pytest.mark.fault
    @pytest.mark.parametrize("place", ["before checkpoint", "before commit", "after commit"])
    def test_what_a_killed_container_has_sent_is_there_once(self, kafka, tmp_path, place):
        from confluent_kafka import TopicPartition

        fill(tmp_path)
        topic = kafka.topic()

        def run(place):
            arguments = [__file__, str(tmp_path), kafka.servers, topic, place]
            return subprocess.run([sys.executable, *arguments], check=False).returncode

        assert run(place) == -signal.SIGKILL
        checkpoint = saved(application(tmp_path, kafka.servers, topic))
        # The second commit was killed: the first is there, and its mark would be.
        name, number, _ = checkpoint.transactions["kafka"][topic]
        assert number == (1 if place == "before checkpoint" else 2)
        mark = number - (place == "before commit")
        consumer = kafka.consumer(**{"group.id": name})
        consumer.commit(offsets=[TopicPartition(topic, 0, mark)], asynchronous=False)
        consumer.close()
        assert run("nowhere") == 0
        found = [message.value() for message in kafka.read(topic, 30)]
        assert sorted(found) == sorted(EXPECTED)


def die_at(place):
    """Be killed around a step of the second commit."""
    name = "prepare" if place == "before checkpoint" else "commit"
    original = getattr(KafkaTransactions, name)
    calls = []

    def killed(self, *arguments):
        calls.append(arguments)
        is_last = len(calls) == 2
        if is_last and place == "before commit":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(self, *arguments)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(KafkaTransactions, name, killed)


if __name__ == "__main__":
    _, directory, servers, topic, place = sys.argv
    if place != "nowhere":
        die_at(place)
    with EmbeddedEngine() as engine:
        engine.submit(application(Path(directory), servers, topic)).join()
