from __future__ import annotations

import pickle
import threading
import time

import pytest

from jetlet import EmbeddedEngine
from jetlet.errors import (
    BadRecordError,
    InvalidArgumentError,
    JetletError,
    ServerUnreachableError,
)
from jetlet.tasks import Input, TaskApplication, TaskConfig, checkpoints, stores, systems
from jetlet.tasks.envelope import OutgoingEnvelope, SystemStreamPartition
from jetlet.tasks.state.container_storage import Checkpoint
from jetlet.tasks.systems.system import EARLIEST, LATEST, Start

QUICK = {"fetch.wait.max.ms": 10}
"""The cluster of the tests does not answer sooner when a record comes."""


@pytest.fixture
def topic(kafka):
    return kafka.topic()


@pytest.fixture
def system(kafka):
    def make(**options):
        made = systems.kafka(kafka.servers, **{"settings": QUICK, **options})
        return pickle.loads(pickle.dumps(made))

    return make


def partitions(topic, count=4):
    return [SystemStreamPartition("kafka", topic, i) for i in range(count)]


def poll_until(consumer, wanted, count, limit=100):
    """So many messages, as (partition, offset, message)."""
    found = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, found
        for polled in consumer.poll(wanted, limit):
            assert polled.partition in wanted
            assert len(polled.envelopes) <= limit
            assert all(envelope.partition == polled.partition for envelope in polled.envelopes)
            found += ((e.partition.partition, e.offset, e.message) for e in polled.envelopes)
    return found


class TestStreams:
    def test_a_topic_has_partitions(self, system, topic):
        assert system().partition_count(topic) == 4

    @pytest.mark.parametrize("name", ["", "a b", "a/b"])
    def test_a_name_that_cannot_be_a_topic_is_refused(self, system, name):
        with pytest.raises(InvalidArgumentError, match="write the name of a topic"):
            system().partition_count(name)

    def test_the_newest_message_is_known(self, system, kafka, topic):
        kafka.send(topic, 1, [b"a", b"b"])
        assert system().newest(partitions(topic)) == dict(
            zip(partitions(topic), [None, 1, None, None], strict=True)
        )

    def test_what_is_before_a_time_is_known(self, system, kafka, topic):
        kafka.send(topic, 1, [b"a", b"b", b"c"], timestamps=[1000, 2000, 3000])
        first, second, *_ = partitions(topic)
        found = system().before([first, second], 1500)
        assert found[first] == -1
        assert found[second] in (0, 2)  # the cluster of the tests knows ends only

    def test_an_output_with_other_partitions_is_refused(self, system, topic):
        system().prepare_output(topic, None, 9)
        system().prepare_output(topic, 4, 9)
        with pytest.raises(InvalidArgumentError, match="has 4 partitions, not 3"):
            system().prepare_output(topic, 3, 9)

    def test_servers_that_are_not_there_are_named(self, monkeypatch):
        monkeypatch.setattr("jetlet.connectors.kafka.client.ANSWER_TIMEOUT", 0.3)
        with pytest.raises(ServerUnreachableError, match=r"systems.kafka: .*127.0.0.1:1 "):
            systems.kafka("127.0.0.1:1").partition_count("views")


class TestConsumer:
    @pytest.fixture
    def consumer(self, system, topic):
        opened = []

        def make(starts=None, **options):
            starts = starts or dict.fromkeys(partitions(topic), Start(None, EARLIEST))
            opened.append(system(**options).consumer(starts))
            return opened[-1]

        yield make
        for each in opened:
            each.close()
            each.close()

    def test_messages_have_all_that_kafka_knows(self, kafka, topic, consumer):
        kafka.send(topic, 2, [b'{"a":1}', None], timestamps=[1000, 2000], key=b"ann")
        polled = consumer(key=str, value=dict[str, int])
        wanted = partitions(topic)
        kafka.send(topic, 2, [b"\x81\xa1a\x01"], timestamps=[3000])
        with pytest.raises(BadRecordError, match=rf"{topic}\[2\], offset 0: cannot be decoded"):
            poll_until(polled, wanted, 1)
        later = consumer({wanted[2]: Start(0)}, key=str, value=dict[str, int])
        found = []
        while len(found) < 2:
            found += (e for each in later.poll(wanted[2:3], 10) for e in each.envelopes)
        assert [(e.offset, e.message, e.key, e.timestamp) for e in found] == [
            (1, None, "ann", 2000),
            (2, {"a": 1}, None, 3000),
        ]

    def test_reading_starts_behind_what_was_committed(self, kafka, topic, consumer):
        for i in range(3):
            kafka.send(topic, i, [b"0", b"1", b"2"])
        first, second, third, _ = wanted = partitions(topic)
        starts = [Start(1), Start(None, EARLIEST), Start(None, LATEST), Start(None, LATEST)]
        reading = consumer(dict(zip(wanted, starts, strict=True)))
        assert sorted(poll_until(reading, wanted, 4)) == [
            (first.partition, 2, b"2"),
            *((second.partition, i, b"%d" % i) for i in range(3)),
        ]
        kafka.send(topic, 2, [b"new"])
        assert poll_until(reading, wanted, 1) == [(third.partition, 3, b"new")]

    def test_only_wanted_partitions_are_read_and_nothing_is_lost(self, kafka, topic, consumer):
        for i in range(4):
            kafka.send(topic, i, [b"%d" % n for n in range(200)])
        reading = consumer()
        wanted = partitions(topic)
        found = poll_until(reading, wanted[:1], 50, limit=10)
        found += poll_until(reading, wanted[1:3], 100, limit=10)
        found += poll_until(reading, wanted, 800 - len(found), limit=100)
        for i in range(4):
            of_partition = [each[1:] for each in found if each[0] == i]
            assert of_partition == [(n, b"%d" % n) for n in range(200)]

    def test_lag_is_known_without_asking(self, kafka, topic, consumer):
        kafka.send(topic, 0, [b"0", b"1", b"2"])
        reading = consumer()
        first = partitions(topic)[0]
        poll_until(reading, [first], 3)
        assert reading.lag(first, 2) == 0
        assert reading.lag(first, 0) == 2
        reading.close()
        assert reading.lag(first, 0) is None


class TestProducer:
    @pytest.fixture
    def producer(self, system):
        opened = []

        def make(**options):
            opened.append(system(**options).producer())
            return opened[-1]

        yield make
        for each in opened:
            each.close()
            each.close()

    def test_a_flush_waits_until_kafka_has_everything(self, kafka, topic, producer):
        sending = producer(key=str, value=int)
        batch = [OutgoingEnvelope(i, f"key-{i % 5}", None, 1000 + i) for i in range(500)]
        batch += [OutgoingEnvelope(-1, None, 3), OutgoingEnvelope(None, "gone", 2)]
        sending.send(topic, batch)
        sending.flush()
        found = kafka.read(topic, 502)
        by_key = {}
        for message in found:
            by_key.setdefault(message.key(), []).append(message)
        for i in range(5):
            mine = by_key[b"key-%d" % i]
            assert len({message.partition() for message in mine}) == 1
            values = [int.from_bytes(message.value(), "big") for message in mine]
            assert values == list(range(i, 500, 5))
            assert [message.timestamp()[1] for message in mine] == [1000 + v for v in values]
        assert [(m.partition(), m.value()) for m in by_key[None]] == [(3, b"\xff")]
        assert [(m.partition(), m.value()) for m in by_key[b"gone"]] == [(2, None)]

    @pytest.mark.parametrize(
        "wrong",
        [OutgoingEnvelope("text"), OutgoingEnvelope(b"a", 5), OutgoingEnvelope(b"a" * 2**21)],
    )
    def test_what_kafka_does_not_take_is_refused(self, topic, producer, wrong):
        with pytest.raises(BadRecordError, match=f"cannot be sent to topic {topic!r}"):
            producer().send(topic, [wrong])

    def test_what_was_not_delivered_is_told(self, topic, producer):
        sending = producer(settings={"message.timeout.ms": 500})
        sending.send(topic, [OutgoingEnvelope(b"a", None, 77)])
        with pytest.raises(JetletError, match="was not delivered"):
            sending.flush()


def test_an_application_reads_and_writes_topics(kafka, topic, tmp_path):
    counts = kafka.topic()
    seen = threading.Semaphore(0)

    class Count:
        def init(self, context):
            self.counts = context.store("counts")

        def process(self, envelope, collector, coordinator):
            key = envelope.key
            count = self.counts.get(key, 0) + 1
            self.counts.put(key, count)
            collector.send(f"out.{counts}", count, key=key)
            seen.release()

    def run(messages):
        app = TaskApplication(
            "count",
            Count,
            systems={
                "in": systems.kafka(kafka.servers, key=str, settings=QUICK),
                "out": systems.kafka(kafka.servers, key=str, value=int),
            },
            inputs=[f"in.{topic}"],
            outputs=[f"out.{counts}"],
            stores={"counts": stores.sqlite(tmp_path / "state", key=str, value=int)},
            checkpoints=checkpoints.in_directory(tmp_path / "checkpoints"),
            config=TaskConfig(commit_interval=0.05),
        )
        for i in range(messages):
            kafka.send(topic, i % 4, [b"view"], key=f"user-{i % 8}")
        with EmbeddedEngine() as engine:
            job = engine.submit(app)
            for _ in range(messages):
                assert seen.acquire(timeout=60)
            job.cancel()

    run(40)
    run(16)  # goes on where it was
    found = {}
    for message in kafka.read(counts, 56):
        found.setdefault(message.key(), []).append(int.from_bytes(message.value(), "big"))
    assert found == {f"user-{i}".encode(): list(range(1, 8)) for i in range(8)}


@pytest.mark.parametrize("ends", [["commit"], ["abort"], ["commit", "abort", "abort"]])
@pytest.mark.parametrize("committed", [None, 0, 1])
def test_a_bootstrap_topic_whose_end_is_no_message_is_caught_up_with(
    kafka, topic, ends, committed, tmp_path
):
    """Each transaction ends with a marker, and the records of one that is aborted are none."""
    from confluent_kafka import Producer

    table = kafka.topic()
    producer = Producer(
        {"bootstrap.servers": kafka.servers, "transactional.id": table, "log_level": 0}
    )
    producer.init_transactions(10)
    for end in ends:
        producer.begin_transaction()
        for value in (b"0", b"1"):
            producer.produce(table, value, partition=0)
        producer.flush(10)
        getattr(producer, f"{end}_transaction")(10)
    memory = systems.in_memory()
    memory.create("in")
    memory.create("out")
    memory.send_all("in", ["first"])
    seen = threading.Semaphore(0)

    def task(envelope, collector, coordinator):
        collector.send("m.out", envelope.message)
        if envelope.message == "first":
            seen.release()

    saved = checkpoints.in_memory()
    place = SystemStreamPartition("k", table, 0)
    if committed is not None:
        saved.open("app").write("partition 0", Checkpoint({place: committed}))
    app = TaskApplication(
        "app",
        task,
        systems={"k": systems.kafka(kafka.servers, settings=QUICK), "m": memory},
        inputs=["m.in", Input(f"k.{table}", bootstrap=True)],
        outputs=["m.out"],
        checkpoints=saved,
    )
    with EmbeddedEngine() as engine:
        job = engine.submit(app)
        assert seen.acquire(timeout=20)
        job.cancel()
    # Whether what was aborted is hidden is up to the cluster.
    count = 2 * len(ends) - (0 if committed is None else committed + 1)
    messages = memory.messages("out")
    assert messages.index("first") == len(messages) - 1
    assert len(messages) <= count + 1
