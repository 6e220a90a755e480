from __future__ import annotations

import pickle
import threading
import time

import pytest

from jetlet import EmbeddedEngine
from jetlet.errors import (
    BadRecordError,
    InputNotFoundError,
    InvalidArgumentError,
    JetletError,
    ServerUnreachableError,
)
from jetlet.tasks import TaskApplication, TaskConfig, checkpoints, stores, systems
from jetlet.tasks.envelope import OutgoingEnvelope, SystemStreamPartition
from jetlet.tasks.systems import redis_system
from jetlet.tasks.systems.system import EARLIEST, LATEST, Start


@pytest.fixture
def system(redis):
    def make(**options):
        return pickle.loads(pickle.dumps(systems.redis(redis.url, **options)))

    return make


def partitions(count, stream="views"):
    return [SystemStreamPartition("redis", stream, i) for i in range(count)]


def poll_until(consumer, wanted, count, limit=100):
    """So many messages, as (partition, message)."""
    found = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, found
        for polled in consumer.poll(wanted, limit):
            assert polled.partition in wanted
            assert all(envelope.partition == polled.partition for envelope in polled.envelopes)
            found += ((e.partition.partition, e.message) for e in polled.envelopes)
    return found


class TestStreams:
    def test_one_partition_is_the_stream_itself(self, system, redis):
        redis.client.xadd("views", {"a": 1})
        assert system().partition_count("views") == 1

    def test_several_partitions_are_streams_of_their_own(self, system, redis):
        redis.client.xadd("views:2", {"a": 1})
        assert system(partitions=4).partition_count("views") == 4
        with pytest.raises(InputNotFoundError, match="no stream 'views'; check the name and part"):
            system().partition_count("views")

    def test_what_is_not_a_stream_is_refused(self, system, redis):
        redis.client.set("views", "x")
        with pytest.raises(InvalidArgumentError, match="at 'views' is a string"):
            system().partition_count("views")
        with pytest.raises(InvalidArgumentError, match="at 'views' is a string"):
            system().prepare_output("views", None, 1)

    def test_an_output_has_the_partitions_of_its_system(self, system):
        system(partitions=2).prepare_output("counts", None, 7)
        system(partitions=2).prepare_output("counts", 2, 7)
        with pytest.raises(InvalidArgumentError, match=r"write systems.redis\(..., partitions=3\)"):
            system(partitions=2).prepare_output("counts", 3, 7)

    def test_the_newest_message_is_known(self, system, redis):
        redis.client.xadd("views:1", {"a": 1}, id="5-1")
        redis.client.xadd("views:1", {"a": 2}, id="5-2")
        first, second = partitions(2)
        assert system(partitions=2).newest([first, second]) == {first: None, second: "5-2"}

    def test_offsets_are_ordered_by_number(self, system):
        ids = ["10-2", "9-0", "1700000000000-0", "10-11", "10-0"]
        expected = ["9-0", "10-0", "10-2", "10-11", "1700000000000-0"]
        assert sorted(ids, key=system().order) == expected

    def test_a_server_that_is_not_there_is_named(self):
        with pytest.raises(ServerUnreachableError, match=r"systems.redis: .*127.0.0.1:1"):
            systems.redis("redis://127.0.0.1:1").partition_count("views")

    @pytest.mark.parametrize("wrong", [{"partitions": 0}, {"maxlen": 0}, {"value": 5}])
    def test_mistakes_are_refused(self, wrong):
        with pytest.raises(InvalidArgumentError, match=f"systems.redis: {next(iter(wrong))}="):
            systems.redis("redis://127.0.0.1:1", **wrong)


class TestConsumer:
    @pytest.fixture
    def consumer(self, system):
        opened = []

        def make(starts, **options):
            opened.append(system(**options).consumer(starts))
            return opened[-1]

        yield make
        for each in opened:
            each.close()
            each.close()

    def test_messages_are_fields_and_offsets_are_ids(self, redis, consumer):
        redis.client.xadd("views", {"user": "ann", "page": "/"}, id="1000-7")
        only = partitions(1)[0]
        reading = consumer({only: Start(None, EARLIEST)})
        polled = []
        while not polled:
            polled = reading.poll([only], 10)
        envelope = polled[0].envelopes[0]
        assert envelope.message == {"user": "ann", "page": "/"}
        assert (envelope.offset, envelope.timestamp, envelope.key) == ("1000-7", 1000, None)

    def test_reading_starts_behind_what_was_committed(self, redis, consumer):
        for stream in ("views:0", "views:1", "views:2"):
            for i in range(1, 4):
                redis.client.xadd(stream, {"i": i}, id=f"{i}-0")
        wanted = partitions(3)
        starts = [Start("2-0"), Start(None, EARLIEST), Start(None, LATEST)]
        reading = consumer(dict(zip(wanted, starts, strict=True)), partitions=3)
        found = sorted(poll_until(reading, wanted, 4), key=repr)
        assert found == [(0, {"i": "3"}), *((1, {"i": str(i)}) for i in range(1, 4))]
        redis.client.xadd("views:2", {"i": "new"})
        assert poll_until(reading, wanted, 1) == [(2, {"i": "new"})]

    def test_only_wanted_partitions_are_read_and_nothing_is_lost(self, redis, consumer):
        with redis.client.pipeline() as pipe:
            for i in range(200):
                for partition in range(4):
                    pipe.xadd(f"views:{partition}", {"i": i})
            pipe.execute()
        wanted = partitions(4)
        reading = consumer(dict.fromkeys(wanted, Start(None)), partitions=4)
        found = poll_until(reading, wanted[:1], 50, limit=10)
        found += poll_until(reading, wanted[1:3], 100, limit=10)
        found += poll_until(reading, wanted, 800 - len(found))
        for partition in range(4):
            mine = [message for number, message in found if number == partition]
            assert mine == [{"i": str(i)} for i in range(200)]

    def test_what_was_asked_before_is_held_until_it_is_wanted(self, redis, consumer):
        first, second = wanted = partitions(2)
        reading = consumer(dict.fromkeys(wanted, Start(None)), partitions=2)
        while reading._reader._asked_ns is None:
            reading.poll(wanted, 10)  # asks for both
        redis.client.xadd("views:0", {"i": 0})
        time_out = time.monotonic() + 60
        while not reading._held:
            assert reading.poll([second], 10) == []
            assert time.monotonic() < time_out
        assert [e.message for e in reading.poll([first], 10)[0].envelopes] == [{"i": "0"}]

    def test_a_partition_that_is_wanted_again_is_not_kept_waiting(
        self, redis, consumer, monkeypatch
    ):
        monkeypatch.setattr(redis_system, "BLOCK_MS", 3_600_000)
        wanted = partitions(2)
        reading = consumer(dict.fromkeys(wanted, Start(None)), partitions=2)
        reading.poll(wanted[1:], 10)
        redis.client.xadd("views:0", {"i": 0})
        assert poll_until(reading, wanted, 1) == [(0, {"i": "0"})]

    def test_a_message_that_cannot_be_decoded_is_named(self, redis, consumer):
        redis.client.xadd("views", {"value": "x" * 9}, id="1-0")
        reading = consumer({partitions(1)[0]: Start(None)}, value=float)
        with pytest.raises(BadRecordError, match="stream 'views', entry 1-0"):
            poll_until(reading, partitions(1), 1)

    def test_a_poll_that_waits_can_be_interrupted(self, redis, consumer):
        reading = consumer({partitions(1)[0]: Start(None)})
        assert reading.poll(partitions(1), 10) == []
        reading.interrupt()
        assert reading.poll(partitions(1), 10) == []


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

    def test_a_flush_waits_until_redis_has_everything(self, redis, producer):
        sending = producer(value=str, partitions=3)
        batch = [OutgoingEnvelope(str(i), f"key-{i % 5}") for i in range(1000)]
        batch += [OutgoingEnvelope("", None, 2)]
        sending.send("counts", batch)
        sending.flush()
        by_key = {}
        for partition in range(3):
            for _, fields in redis.client.xrange(f"counts:{partition}"):
                by_key.setdefault((fields.get("key"), partition), []).append(fields["value"])
        assert by_key.pop((None, 2)) == [""]
        assert {key: values for (key, _), values in by_key.items()} == {
            f"key-{i}": [str(n) for n in range(i, 1000, 5)] for i in range(5)
        }
        assert len(by_key) == 5

    def test_what_was_sent_can_be_read(self, system, producer):
        sending = producer(value=list[int], key=int)
        sending.send("views", [OutgoingEnvelope([i], i) for i in range(10)])
        sending.flush()
        only = partitions(1)[0]
        consumer = system(value=list[int], key=int).consumer({only: Start(None)})
        found = []
        while len(found) < 10:
            found += (e for polled in consumer.poll([only], 3) for e in polled.envelopes)
        assert [(e.message, e.key) for e in found] == [([i], i) for i in range(10)]
        consumer.close()

    def test_fields_are_sent_as_they_are(self, redis, producer):
        sending = producer(maxlen=5)
        sending.send("views", [OutgoingEnvelope({"user": "ann", "n": i}) for i in range(1000)])
        sending.flush()
        assert redis.client.xrevrange("views", count=1)[0][1] == {"user": "ann", "n": "999"}
        assert redis.client.xlen("views") < 1000

    @pytest.mark.parametrize("wrong", ["text", 5, None])
    def test_a_message_that_is_no_dict_is_refused(self, producer, wrong):
        with pytest.raises(BadRecordError, match="a message for Redis is a dict of fields"):
            producer().send("views", [OutgoingEnvelope(wrong)])

    def test_what_redis_does_not_take_is_told_by_the_flush(self, producer):
        sending = producer()
        sending.send("views", [OutgoingEnvelope({"a": [1]})])
        for _ in range(2):
            with pytest.raises(BadRecordError, match="stream 'views': a field is made of"):
                sending.flush()
        with pytest.raises(BadRecordError):
            sending.send("views", [OutgoingEnvelope({"a": 1})])

    def test_a_server_that_goes_away_is_told(self, redis, producer):
        sending = producer()
        sending.send("views", [OutgoingEnvelope({"a": 1})])
        sending.flush()
        redis.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        sending.send("views", [OutgoingEnvelope({"a": 1})])
        with pytest.raises(JetletError, match="lost the connection"):
            sending.flush()

    def test_whoever_sends_too_much_waits(self, redis, producer, monkeypatch):
        monkeypatch.setattr(redis_system, "QUEUE_SIZE", 10)
        sending = producer()
        for i in range(200):
            sending.send("views", [OutgoingEnvelope({"i": i})] * 5)
        assert redis.client.xlen("views") >= 950
        sending.flush()
        assert redis.client.xlen("views") == 1000

    def test_nothing_is_sent_once_it_is_closed(self, producer):
        sending = producer()
        sending.close()
        with pytest.raises(JetletError, match="is closed"):
            sending.send("views", [OutgoingEnvelope({"a": 1})])


def test_an_application_reads_and_writes_streams(redis, tmp_path):
    seen = threading.Semaphore(0)

    class Count:
        def init(self, context):
            self.counts = context.store("counts")

        def process(self, envelope, collector, coordinator):
            user = envelope.message["user"]
            count = self.counts.get(user, 0) + 1
            self.counts.put(user, count)
            collector.send("out.counts", count, key=user)
            seen.release()

    def run(messages):
        app = TaskApplication(
            "count",
            Count,
            systems={
                "in": systems.redis(redis.url, partitions=2),
                "out": systems.redis(redis.url, value=int),
            },
            inputs=["in.views"],
            outputs=["out.counts"],
            stores={"counts": stores.sqlite(tmp_path / "state", key=str, value=int)},
            checkpoints=checkpoints.in_directory(tmp_path / "checkpoints"),
            config=TaskConfig(commit_interval=0.05),
        )
        for i in range(messages):
            redis.client.xadd(f"views:{i % 2}", {"user": f"user-{i % 8}"})
        with EmbeddedEngine() as engine:
            job = engine.submit(app)
            for _ in range(messages):
                assert seen.acquire(timeout=60)
            job.cancel()

    run(40)
    run(16)  # goes on where it was
    found = {}
    client = redis.client
    for _, fields in client.xrange("counts"):
        found.setdefault(fields["key"], []).append(fields["value"])
    assert found == {f"user-{i}": [chr(n) for n in range(1, 8)] for i in range(8)}
