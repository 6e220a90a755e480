"""Systems: in memory and in logs; the same suite over both, then what is special."""

from __future__ import annotations

import pytest

from jetlet.errors import InputNotFoundError, InvalidArgumentError
from jetlet.log import Log
from jetlet.tasks import systems
from jetlet.tasks.envelope import OutgoingEnvelope, SystemStreamPartition
from jetlet.tasks.systems.system import Start

P0, P1 = (SystemStreamPartition("s", "in", i) for i in range(2))


@pytest.fixture(params=["memory", "log"])
def system(request, tmp_path):
    made = systems.in_memory() if request.param == "memory" else systems.log(tmp_path)
    made.prepare_output("in", 2, default=1)
    return made


def send(system, *messages, partition=0, stream="in"):
    producer = system.producer()
    producer.send(stream, [OutgoingEnvelope(m, None, partition) for m in messages])
    producer.flush()
    producer.close()


def read(consumer, *wanted, limit=100):
    return [
        (envelope.partition.partition, envelope.offset, envelope.message)
        for polled in consumer.poll(wanted, limit) or ()
        for envelope in polled.envelopes
    ]


def test_messages_come_in_order_with_their_offsets(system):
    send(system, "a", "b")
    send(system, "c", partition=1)
    consumer = system.consumer({P0: Start(None), P1: Start(None)})
    consumer.start(lambda: None)
    assert read(consumer, P0, P1) == [(0, 0, "a"), (0, 1, "b"), (1, 0, "c")]
    assert read(consumer, P0, P1) == []
    send(system, "d")
    assert read(consumer, P0, P1) == [(0, 2, "d")]
    consumer.close()
    consumer.close()


def test_only_what_is_wanted_is_read_and_no_more_than_the_limit(system):
    send(system, *range(10))
    send(system, "x", partition=1)
    consumer = system.consumer({P0: Start(None), P1: Start(None)})
    assert [m for _, _, m in read(consumer, P0, limit=4)] == [0, 1, 2, 3]
    assert [m for _, _, m in read(consumer, P1)] == ["x"]
    assert [m for _, _, m in read(consumer, P0, limit=100)] == [4, 5, 6, 7, 8, 9]
    consumer.close()


def test_reading_begins_behind_an_offset_or_at_either_end(system):
    send(system, "a", "b", "c")
    behind = system.consumer({P0: Start(0)})
    latest = system.consumer({P0: Start(None, "latest")})
    ended = system.consumer({P0: Start(2)})
    send(system, "d")
    assert [m for _, _, m in read(behind, P0)] == ["b", "c", "d"]
    assert [m for _, _, m in read(latest, P0)] == ["d"]
    assert read(ended, P0) == [(0, 3, "d")]
    for consumer in (behind, latest, ended):
        consumer.close()


def test_newest_and_lag(system):
    assert system.newest([P0, P1]) == {P0: None, P1: None}
    send(system, "a", "b", "c")
    assert system.newest([P0, P1]) == {P0: 2, P1: None}
    consumer = system.consumer({P0: Start(None)})
    assert consumer.lag(P0, None) == 3
    assert consumer.lag(P0, 0) == 2
    assert consumer.lag(P0, 2) == 0
    latest = system.consumer({P0: Start(None, "latest")})
    assert latest.lag(P0, None) == 0
    send(system, "d")
    assert latest.lag(P0, None) == 1
    for each in (consumer, latest):
        each.close()


def test_timestamps_are_kept(system):
    producer = system.producer()
    producer.send("in", [OutgoingEnvelope("a", None, 0, 1234), OutgoingEnvelope("b", None, 0)])
    producer.close()
    consumer = system.consumer({P0: Start(None)})
    (polled,) = consumer.poll([P0], 10)
    assert polled.envelopes[0].timestamp == 1234
    assert polled.envelopes[1].timestamp > 1_600_000_000_000
    consumer.close()


def test_a_stream_that_is_not_there(system):
    with pytest.raises(InputNotFoundError):
        system.partition_count("nothing")


def test_messages_without_a_key_are_spread_and_keys_stay_together(system):
    producer = system.producer()
    producer.send("in", [OutgoingEnvelope(i) for i in range(4)])
    producer.send("in", [OutgoingEnvelope(i, "key") for i in range(4, 8)])
    consumer = system.consumer({P0: Start(None), P1: Start(None)})
    parts = [[m for _, _, m in read(consumer, p)] for p in (P0, P1)]
    assert {m % 2 for m in parts[0] if m < 4} == {0}
    assert {m % 2 for m in parts[1] if m < 4} == {1}
    assert sorted(len([m for m in part if m >= 4]) for part in parts) == [0, 4]
    producer.close()
    consumer.close()


# --- In memory ----------------------------------------------------------------------------------


def test_whoever_appends_wakes_the_consumer():
    memory = systems.in_memory()
    memory.create("in", 2)
    consumer = memory.consumer({P0: Start(None)})
    woken = []
    consumer.start(lambda: woken.append(1))
    assert consumer.poll([P0], 10) is None  # it need not be asked again before that
    memory.send("in", "a", partition=0)
    assert woken == [1]
    consumer.close()
    memory.send("in", "b", partition=0)
    assert woken == [1]


def test_the_end_comes_with_the_last_messages():
    memory = systems.in_memory()
    memory.create("in", 2)
    consumer = memory.consumer({P0: Start(None), P1: Start(None)})
    memory.send_all("in", range(3), partition=0)
    memory.end("in")
    ends = {p.partition: (len(p.envelopes), p.is_end) for p in consumer.poll([P0, P1], 2)}
    assert ends == {P0: (2, False), P1: (0, True)}
    ends = {p.partition: (len(p.envelopes), p.is_end) for p in consumer.poll([P0], 2)}
    assert ends == {P0: (1, True)}
    with pytest.raises(InvalidArgumentError, match="has ended"):
        memory.send("in", 1)


def test_a_stream_cannot_have_another_number_of_partitions():
    memory = systems.in_memory()
    memory.create("in", 2)
    memory.create("in", 2)
    with pytest.raises(InvalidArgumentError, match="it has 2"):
        memory.create("in", 3)
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        memory.create("other", 0)
    memory.prepare_output("in", None, default=7)
    assert memory.partition_count("in") == 2


# --- Logs ---------------------------------------------------------------------------------------


def test_records_of_a_log_are_the_messages_themselves(tmp_path):
    system = systems.log(tmp_path)
    system.prepare_output("out", None, default=1)
    send(system, {"a": 1}, stream="out")
    with Log(tmp_path / "out") as log:
        assert list(log.read(0, 0).items) == [{"a": 1}]


def test_keys_come_back_from_a_keyed_log(tmp_path):
    system = systems.log(tmp_path, keyed=True)
    system.prepare_output("in", 1, default=1)
    producer = system.producer()
    producer.send("in", [OutgoingEnvelope("message", "key")])
    producer.close()
    consumer = system.consumer({P0: Start(None)})
    (polled,) = consumer.poll([P0], 10)
    assert (polled.envelopes[0].key, polled.envelopes[0].message) == ("key", "message")
    consumer.close()


def test_a_flush_waits_for_the_disk_if_asked_to(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(Log, "sync", lambda self: synced.append(self.directory))
    for fsync in (False, True):
        system = systems.log(tmp_path, fsync=fsync)
        system.prepare_output("out", None, default=1)
        send(system, 1, stream="out")
    assert len(synced) == 1


def test_a_stream_is_a_directory_of_the_log_system(tmp_path):
    with pytest.raises(InvalidArgumentError, match="name of a directory"):
        systems.log(tmp_path).partition_count("../elsewhere")
    with pytest.raises(InvalidArgumentError):
        systems.log("s3://bucket")


def test_an_id_of_redis_has_the_time_in_it():
    redis = systems.redis("redis://127.0.0.1:1")
    before = redis.before([P0, P1], 1000)[P1]
    assert redis.order("999-7") < redis.order(before) < redis.order("1000-0")
    assert redis.before([P0], 0) == {P0: "0-0"}
