"""Transactions on Kafka: against a model of what Kafka promises, and with the real client.

The cluster that librdkafka plays takes transactions, but neither keeps their offsets nor tells
producers of one name apart.
"""

from __future__ import annotations

import pytest

from jetlet import sinks
from jetlet.errors import InvalidArgumentError, ItemFailedError, JetletError, RestartableError
from jetlet.pipeline.sink import TransactionId, WriterPlace


def transaction(number, writer=0, attempt="1"):
    return TransactionId("run", "sink", number, writer, attempt)


def open_writer(sink, index=0, attempt="1"):
    return sink.open_transactional(WriterPlace("run", "sink", attempt, index, 1))


def prepared(into, items, number=0, **place):
    into.begin(transaction(number, **place))
    into.write(items)
    return into.prepare()


@pytest.fixture
def model(kafka_model, monkeypatch):
    model = kafka_model()
    model.install(monkeypatch)
    return model


@pytest.fixture
def sink():
    return sinks.kafka("topic", "host:9092")


class TestModel:
    def test_records_are_visible_when_they_are_committed(self, model, sink):
        writer = open_writer(sink)
        first = prepared(writer, ["a", "b"])
        second = prepared(writer, ["c"], 1)
        assert model.records == []
        writer.commit(first)
        assert model.records == ["a", "b"]
        writer.commit(second)
        writer.close()
        assert model.records == ["a", "b", "c"]

    def test_repeated_commit_sends_nothing(self, model, sink):
        writer = open_writer(sink)
        first, second = prepared(writer, ["a"]), prepared(writer, ["b"], 1)
        writer.commit(first)
        writer.commit(first)
        open_writer(sink, attempt="2").recover([first, second])
        open_writer(sink, attempt="3").recover([first, second])
        sink.commit_last("run", "sink", [first, second])
        assert model.records == ["a", "b"]

    def test_another_attempt_may_count_as_the_first_did(self, model, sink):
        """As it does if the last snapshot is damaged, and the one before it is used."""
        writer = open_writer(sink)
        writer.commit(prepared(writer, ["a"], 7))
        writer = open_writer(sink, attempt="2")
        writer.commit(prepared(writer, ["b"], 7, attempt="2"))
        assert model.records == ["a", "b"]

    def test_writer_that_was_superseded_cannot_commit(self, model, sink):
        zombie = open_writer(sink)
        zombie.commit(prepared(zombie, ["a"]))
        left = prepared(zombie, ["b"], 1)
        open_writer(sink, attempt="2").recover([left])
        with pytest.raises(RestartableError, match="has failed"):
            zombie.commit(left)
        assert model.records == ["a", "b"]

    def test_writers_and_sinks_of_a_job_do_not_mix(self, model, sink):
        for vertex, index in (("a", 0), ("a", 1), ("b", 0)):
            writer = sink.open_transactional(WriterPlace("run", vertex, "1", index, 2))
            writer.begin(TransactionId("run", vertex, 0, index, "1"))
            writer.write([f"{vertex}{index}"])
            writer.commit(writer.prepare())
        assert model.records == ["a0", "a1", "b0"]

    @pytest.mark.parametrize(
        ("options", "item", "message"),
        [
            ({}, 3, "3 cannot be sent"),
            ({"key": lambda item: 1.5}, "x", "1.5 cannot be sent"),
            ({"headers": lambda item: {"a": 1}}, "x", "is not a header"),
            ({"timestamp": lambda item: "now"}, "x", "returned 'now'"),
            ({}, "x" * 1_000_000, "the record has 1000512 bytes"),
            ({"settings": {"message.max.bytes": 2000}}, b"x" * 2000, "the record has 2512 bytes"),
        ],
    )
    def test_what_cannot_be_sent_is_refused_when_it_comes(self, model, options, item, message):
        writer = open_writer(sinks.kafka("topic", "host:9092", **options))
        writer.begin(transaction(0))
        with pytest.raises(ItemFailedError) as failed:
            writer.write([item])
        assert failed.value.item == item
        assert message in str(failed.value.__cause__)

    def test_settings_do_not_name_transactions(self):
        with pytest.raises(InvalidArgumentError, match="processing_guarantee='exactly-once'"):
            sinks.kafka("topic", "host:9092", settings={"transactional.id": "x"})


class TestClient:
    def test_transaction_arrives_with_all_that_belongs_to_it(self, kafka):
        topic = kafka.topic()
        sink = sinks.kafka(
            topic,
            kafka.servers,
            value=lambda item: f"value-{item}",
            key=lambda item: f"key-{item % 3}",
            timestamp=lambda item: 1000 + item,
            headers=lambda item: {"n": str(item)},
        )
        writer = open_writer(sink)
        first = prepared(writer, range(50))
        second = prepared(writer, range(50, 60), 1)
        writer.commit(first)
        writer.commit(second)
        writer.close()
        found = {message.value(): message for message in kafka.read(topic, 60)}
        assert len(found) == 60
        message = found[b"value-7"]
        assert message.key() == b"key-1"
        assert message.timestamp()[1] == 1007
        assert message.headers() == [("n", b"7")]

    def test_last_transactions_are_sent_from_where_the_job_was_submitted(self, kafka):
        topic = kafka.topic()
        sink = sinks.kafka(topic, kafka.servers)
        writer = open_writer(sink)
        last = prepared(writer, ["a"])
        writer.close()
        sink.commit_last("run", "sink", [last])
        assert [message.value() for message in kafka.read(topic, 1)] == [b"a"]

    def test_writer_that_waits_for_servers_is_interrupted(self):
        writer = open_writer(sinks.kafka("topic", "127.0.0.1:1", settings={"log_level": 0}))
        left = prepared(writer, ["a"])
        writer.interrupt()
        with pytest.raises(JetletError) as failed:
            writer.commit(left)
        writer.close()
        assert not isinstance(failed.value, RestartableError)
