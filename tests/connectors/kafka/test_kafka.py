from __future__ import annotations

import json
import pickle
import socket
import threading
import time
from datetime import UTC, datetime

import cloudpickle
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from jetlet import (
    EmbeddedEngine,
    JobConfig,
    Pipeline,
    agg,
    sinks,
    sources,
    whole_item,
    windows,
)
from jetlet.connectors.kafka import client as kafka_client
from jetlet.connectors.kafka.client import KafkaDirectory
from jetlet.connectors.kafka.consumer import KafkaRecord
from jetlet.core.processor import ProcessorContext
from jetlet.errors import (
    BadRecordError,
    InputNotFoundError,
    InvalidArgumentError,
    ItemFailedError,
    JetletError,
    JobCancelledError,
    JobFailedError,
    MissingDependencyError,
    ServerUnreachableError,
)
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.processors.ends.write import WriteProcessor
from jetlet.testing import assert_collected_eventually, verify_processor

RUNS = 10
"""How often :func:`verify_processor` feeds a sink."""
QUICK = {"fetch.wait.max.ms": 10}
"""The cluster of the tests does not answer sooner when a record comes."""


@pytest.fixture
def topic(kafka):
    return kafka.topic()


@pytest.fixture
def deaf():
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(kafka_client, "ANSWER_TIMEOUT", 0.5)


class TestSource:
    @pytest.fixture
    def source(self, kafka, topic):
        def make(**options):
            given = {"settings": QUICK, **options}
            return sources.kafka(given.pop("topic", topic), kafka.servers, **given)

        return make

    @pytest.fixture
    def opened(self, source):
        """Opens readers, which are closed at the end."""
        readers = []

        def open_reader(*, context=None, **options):
            there = pickle.loads(cloudpickle.dumps(source(**options)))
            partitions = pickle.loads(pickle.dumps(there.partitions()))
            readers.append(there.open(partitions, context or ProcessorContext()))
            return readers[-1]

        yield open_reader
        for reader in readers:
            reader.close()

    def polled(self, reader, count, limit=100):
        """So many records, as (partition, timestamp, item); those of a partition in order."""
        found = []
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < deadline, found
            polled = reader.poll(limit)
            assert sum(len(each.items) for each in polled) <= limit
            for each in polled:
                found += (
                    (each.partition, at, item)
                    for at, item in zip(each.timestamps, each.items, strict=True)
                )
        return sorted(found, key=lambda record: record[0])

    def test_reads_all_partitions_with_their_timestamps(self, kafka, topic, opened):
        expected = []
        for partition in range(4):
            values = [f"{partition}-{i}".encode() for i in range(500)]
            times = [1000 * partition + i for i in range(1, 501)]
            kafka.send(topic, partition, values, timestamps=times)
            expected += ((partition, *each) for each in zip(times, values, strict=True))
        reader = opened()
        assert self.polled(reader, 2000, limit=7) == expected
        kafka.send(topic, 2, [b"new"], timestamps=[5])
        assert self.polled(reader, 1) == [(2, 5, b"new")]

    def test_several_topics_are_read_as_one_stream(self, kafka, topic, opened):
        other = kafka.topic()
        kafka.send(topic, 1, [b"a"], timestamps=[1])
        kafka.send(other, 1, [b"b"], timestamps=[2])
        reader = opened(topic=[topic, other])
        assert self.polled(reader, 2) == [(1, 1, b"a"), (5, 2, b"b")]

    def test_values_are_deserialised(self, kafka, topic, opened):
        kafka.send(topic, 0, [b'{"a": 1}', None, b"2"], timestamps=[1, 2, 3])
        reader = opened(value=json.loads)
        assert self.polled(reader, 3) == [(0, 1, {"a": 1}), (0, 2, None), (0, 3, 2)]

    def test_a_projection_sees_the_whole_record(self, kafka, topic, opened):
        kafka.send(topic, 3, [b"5"], timestamps=[7], key=b"k", headers=[("h", b"1"), ("h", None)])
        kafka.send(topic, 3, [None], timestamps=[8])
        reader = opened(value=int, key=bytes.decode, project=whole_item)
        first, second = self.polled(reader, 2)
        assert first[2] == KafkaRecord(topic, 3, 0, 7, "k", 5, [("h", b"1"), ("h", None)])
        assert second[2] == KafkaRecord(topic, 3, 1, 8, None, None, [])
        reader = opened(project=lambda record: (record.key, record.value))
        assert self.polled(reader, 2)[0][2] == (b"k", b"5")

    def test_record_that_cannot_be_decoded_is_named(self, kafka, topic, opened):
        kafka.send(topic, 1, [b"1", b"2", b"x"])
        with pytest.raises(BadRecordError, match=rf"{topic}\[1\], offset 2: .*ValueError.*'x'"):
            self.polled(opened(value=int), 3)

    @pytest.mark.parametrize(
        ("start", "expected"),
        [
            ("earliest", {b"a", b"b", b"c", b"d"}),
            ("latest", set()),
            ({0: 1}, {b"b", b"c", b"d"}),
            ({0: 2, 1: 1}, {b"d"}),
            ("committed", {b"b", b"c", b"d"}),
        ],
    )
    def test_starts_where_told(self, kafka, topic, opened, start, expected):
        kafka.send(topic, 0, [b"a", b"b"])
        kafka.send(topic, 1, [b"c", b"d"])
        consumer = kafka.consumer(**{"group.id": "others"})
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        consumer.close()
        reader = opened(start=start, group="others")
        kafka.send(topic, 2, [b"new"])
        found = self.polled(reader, len(expected) + 1)
        assert {item for _, _, item in found} == expected | {b"new"}

    def test_starts_at_a_time(self, kafka, topic, opened, monkeypatch):
        # The cluster of the tests knows no times, and answers that there is nothing so late.
        kafka.send(topic, 0, [b"a", b"b"], timestamps=[10, 20])
        reader = opened(start=15)
        assert reader.save() == [2, 0, 0, 0]
        asked = []

        def offsets_at(self, places, time_ms):
            asked.append(time_ms)
            return [1, 0, 0, 0]

        monkeypatch.setattr(KafkaDirectory, "offsets_at", offsets_at)
        reader = opened(start=datetime(1970, 1, 1, 0, 0, 0, 15_000, tzinfo=UTC))
        assert self.polled(reader, 1) == [(0, 20, b"b")]
        assert asked == [15]

    def test_latest_is_when_the_job_is_submitted(self, kafka, topic, source):
        kafka.send(topic, 1, [b"old"])
        latest = source(start="latest")
        partitions = latest.partitions()
        kafka.send(topic, 1, [b"new"], timestamps=[50])
        reader = latest.open(partitions, ProcessorContext())
        assert self.polled(reader, 1) == [(1, 50, b"new")]
        reader.close()

    def test_goes_on_where_it_was_saved(self, kafka, topic, opened):
        for partition in range(4):
            values = [b"%d" % (10 * partition + i) for i in range(10)]
            kafka.send(topic, partition, values, timestamps=range(1, 11))
        reader = opened()
        assert reader.save() == [0] * 4
        first = self.polled(reader, 13, limit=1)
        saved = pickle.loads(pickle.dumps(reader.save()))
        assert sum(saved) == 13
        reader = opened()
        reader.restore(saved)
        rest = self.polled(reader, 27)
        assert sorted(int(item) for _, _, item in first + rest) == list(range(40))
        reader = opened(start={0: 9, 1: 10, 2: 10, 3: 10})
        reader.restore([None, 8, None, None])
        assert [item for _, _, item in self.polled(reader, 3)] == [b"9", b"18", b"19"]

    def test_partitions_keep_their_identity_when_others_are_added(self, kafka, topic, source):
        partitions = source().partitions()
        keys = [source().partition_key(i, each) for i, each in enumerate(partitions)]
        assert keys == [(topic, i) for i in range(4)]
        assert source().partition_name(1, partitions[1]) == f"{topic}[1]"

    @pytest.fixture
    def gone(self, kafka, topic):
        """The offset that partition 0 begins with; the cluster keeps 5 MiB."""
        kafka.send(topic, 0, [b"%4d" % i + b"." * 50_000 for i in range(130)])
        with KafkaDirectory(kafka_client.KafkaServers.of("test", kafka.servers)) as directory:
            start, end = directory.bounds((topic, 0))
        assert 0 < start < end == 130
        return start

    def test_gap_is_skipped_and_counted(self, opened, gone, caplog):
        counted = []
        context = ProcessorContext(count=lambda name, amount: counted.append((name, amount)))
        reader = opened(start={0: 3}, context=context)
        first = self.polled(reader, 1, limit=1)[0][2]
        assert int(first[:4]) == gone
        assert counted == [("skipped_offsets", gone - 3)]
        assert f"records 3 to {gone - 1} are gone; going on at {gone}" in caplog.text

    def test_gap_can_fail_the_job(self, opened, gone):
        with pytest.raises(BadRecordError, match=r"are gone; write on_gap='skip'"):
            self.polled(opened(start={0: 3}, on_gap="fail"), 1)

    def test_position_behind_the_end_goes_on_at_the_end(self, kafka, topic, opened, caplog):
        kafka.send(topic, 0, [b"old"])
        reader = opened()
        reader.restore([100, None, None, None])
        while "ends at 1, before offset 100; going on at 1" not in caplog.text:
            assert reader.poll(1) == []
        kafka.send(topic, 0, [b"new"], timestamps=[1])
        assert self.polled(reader, 1) == [(0, 1, b"new")]

    def test_gap_is_closed_as_soon_as_the_servers_answer(self, opened, gone):
        class Silent:
            """A client whose server does not say where a partition begins."""

            def __init__(self, client):
                self.client = client

            def __getattr__(self, name):
                return getattr(self.client, name)

            def get_watermark_offsets(self, *args):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        reader = opened(start={0: 3})
        consumer = reader._consumer
        consumer._client = Silent(consumer._client)
        while not consumer._out_of_range:
            assert reader.poll(1) == []
        assert reader.poll(1) == []
        assert reader.save() == [3, 0, 0, 0]
        consumer._client = consumer._client.client
        assert int(self.polled(reader, 1, limit=1)[0][2][:4]) == gone

    def test_error_of_the_client_fails_the_job_unless_it_may_pass(self, opened, topic, caplog):
        consumer = opened()._consumer
        consumer._observe(KafkaError(KafkaError._TRANSPORT), None, None)
        assert "trying again" in caplog.text
        denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(JetletError, match=rf"{topic}\[0\] of Kafka at 127.*authorization"):
            consumer._observe(denied, topic, 0)

    def test_as_a_processor(self, kafka, topic, source):
        values = [b"one", b"two", b"three"]
        kafka.send(topic, 2, values)
        supplier = StreamReadSupplier(source(), Timestamps())
        supplier.prepare(1)
        verify_processor(supplier, expect_output=values, may_wait=True, endless=True)

    def test_says_what_it_is(self, source, topic):
        made = source()
        assert made.has_native_timestamps and made.is_replayable and made.is_blocking
        assert made.name == f"kafka-source({topic})"
        assert source(local_parallelism=3).preferred_local_parallelism == 3


class TestMistakes:
    def test_server_that_is_not_there_is_named(self, impatient, deaf):
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        with pytest.raises(ServerUnreachableError, match=rf"127.*{port}.*refused.*check servers="):
            sources.kafka("t", f"127.0.0.1:{port}").partitions()
        with pytest.raises(ServerUnreachableError, match=rf"no answer from Kafka at {deaf}"):
            sinks.kafka("t", deaf).begin("run")

    def test_a_pipeline_is_refused_before_it_runs(self, impatient, deaf):
        p = Pipeline("p")
        p.read_from(sources.kafka("t", deaf)).without_timestamps().write_to(sinks.noop())
        with EmbeddedEngine() as engine, pytest.raises(ServerUnreachableError):
            engine.submit(p).join()

    def test_missing_topic_is_named_and_not_made(self, kafka):
        for _ in range(2):
            with pytest.raises(InputNotFoundError, match=r"sources\.kafka\('nope'\).*create it"):
                sources.kafka("nope", kafka.servers).partitions()
            with pytest.raises(InputNotFoundError, match=r"sinks\.kafka\('nope'\).*create it"):
                sinks.kafka("nope", kafka.servers).begin("run")

    def test_unknown_partition_is_refused(self, kafka, topic):
        with pytest.raises(InvalidArgumentError, match=rf"no partition \('{topic}', 7\)"):
            sources.kafka(topic, kafka.servers, start={7: 0}).partitions()

    @pytest.mark.parametrize(
        "settings", [{"no.such.setting": 1}, {"security.protocol": "?"}, {"fetch.wait.max.ms": []}]
    )
    def test_settings_that_the_client_does_not_know(self, kafka, topic, settings):
        with pytest.raises(InvalidArgumentError, match=r"sources\.kafka: settings.*librdkafka"):
            sources.kafka(topic, kafka.servers, settings=settings).partitions()

    @pytest.mark.parametrize(
        "options",
        [
            {"topic": ""},
            {"topic": "a b"},
            {"topic": []},
            {"topic": ["a", 3]},
            {"topic": None},
            {"servers": ""},
            {"servers": "host:port"},
            {"servers": "host:99999"},
            {"servers": "http://host:9092"},
            {"servers": ["a:1", ""]},
            {"servers": None},
            {"start": "now"},
            {"start": 1.5},
            {"start": True},
            {"start": "committed"},
            {"group": ""},
            {"on_gap": "?"},
            {"value": 3},
            {"key": bytes.decode},
            {"settings": []},
            {"settings": {"bootstrap.servers": "x"}},
            {"settings": {"auto.offset.reset": "earliest"}},
            {"name": ""},
            {"local_parallelism": 0},
        ],
    )
    def test_arguments_that_cannot_work_are_refused(self, options):
        with pytest.raises(InvalidArgumentError, match=r"sources\.kafka.*write"):
            sources.kafka(**{"topic": "t", "servers": "host:9092", **options})

    @pytest.mark.parametrize(
        "options",
        [{"topic": ["t"]}, {"servers": 1}, {"value": 3}, {"settings": {"transactional.id": "x"}}],
    )
    def test_so_are_those_of_the_sink(self, options):
        with pytest.raises(InvalidArgumentError, match=r"sinks\.kafka.*write"):
            sinks.kafka(**{"topic": "t", "servers": "host:9092", **options})

    @pytest.mark.parametrize("servers", ["host", "a:1,b:2", "a:1, b:2", ["[::1]:9092", "b"]])
    def test_addresses_are_taken_as_kafka_writes_them(self, servers):
        assert sources.kafka("t", servers).name == "kafka-source(t)"

    def test_missing_client_is_named(self, monkeypatch):
        monkeypatch.setattr(kafka_client, "find_spec", lambda name: None)
        with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[kafka\]'"):
            sources.kafka("t", "host:9092")
        with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[kafka\]'"):
            sinks.kafka("t", "host:9092")


class TestSink:
    @pytest.fixture
    def sink(self, kafka, topic):
        return lambda **options: sinks.kafka(topic, kafka.servers, **options)

    def test_writes_keys_values_timestamps_and_headers(self, kafka, topic, sink, write_all):
        items = [(i % 10, i) for i in range(1000)]
        write_all(
            sink(
                value=json.dumps,
                key=lambda item: str(item[0]),
                timestamp=lambda item: 1000 + item[1],
                headers=lambda item: {"n": str(item[1])},
            ),
            items[:600],
            items[600:],
        )
        found = kafka.read(topic, 1000)
        by_key = {}
        for message in found:
            key, n = json.loads(message.value())
            assert message.key() == b"%d" % key
            assert message.timestamp()[1] == 1000 + n
            assert message.headers() == [("n", b"%d" % n)]
            by_key.setdefault(key, []).append((message.partition(), message.offset(), n))
        assert sorted((key, n) for key, each in by_key.items() for _, _, n in each) == sorted(items)
        for records in by_key.values():
            assert len({partition for partition, _, _ in records}) == 1
            # Those of one writer are in order; the second one follows the first.
            assert [n for _, _, n in sorted(records)] == sorted(n for _, _, n in records)

    def test_keys_go_where_kafkas_own_clients_put_them(self, kafka, topic, sink, write_all):
        # murmur2 of the bytes, as in the tests of Apache Kafka, over four partitions
        hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
        write_all(sink(key=lambda item: item), list(hashes))
        found = {m.value().decode(): m.partition() for m in kafka.read(topic, 3)}
        assert found == {key: (value & 0x7FFFFFFF) % 4 for key, value in hashes.items()}

    def test_items_are_values_by_default(self, kafka, topic, sink, write_all):
        write_all(sink(), [b"a", "b", None])
        assert {message.value() for message in kafka.read(topic, 3)} == {b"a", b"b", None}

    def test_what_is_written_has_arrived_when_a_snapshot_is_taken(self, kafka, topic, sink):
        writer = sink(settings={"linger.ms": 60_000}).open("run", "w")
        writer.write([b"1", b"2"])
        while not writer.sync():
            pass
        assert len(kafka.read(topic, 2)) == 2
        writer.write([b"3"])
        writer.abort()

    def test_queue_that_is_full_is_waited_for(self, kafka, topic, sink, write_all):
        items = [b"%d" % i for i in range(500)]
        write_all(sink(settings={"queue.buffering.max.messages": 10, "linger.ms": 0}), items)
        assert sorted(m.value() for m in kafka.read(topic, 500)) == sorted(items)

    @pytest.mark.parametrize(
        ("item", "reason"),
        [(12, "bytes"), ({"a": 1}, "bytes"), (b"x" * 2_000_000, "too large")],
    )
    def test_item_that_cannot_be_sent_is_named(self, sink, item, reason):
        writer = sink().open("run", "w")
        with pytest.raises(ItemFailedError) as caught:
            writer.write([b"fine", item, b"fine"])
        assert caught.value.item == item
        assert isinstance(caught.value.__cause__, BadRecordError)
        assert reason in str(caught.value.__cause__)
        assert "write for example value=" in str(caught.value.__cause__)
        writer.abort()

    @pytest.mark.parametrize("timestamp", [0, -1, 1.5, None])
    def test_timestamp_that_kafka_would_not_keep_is_refused(self, sink, timestamp):
        writer = sink(timestamp=lambda item: timestamp).open("run", "w")
        with pytest.raises(ItemFailedError) as caught:
            writer.write([b"x"])
        assert "from 1 on" in str(caught.value.__cause__)
        writer.abort()

    def test_function_that_fails_is_told_with_its_item(self, sink):
        p = Pipeline("p")
        p.read_from(sources.items([1, 0, 2])).write_to(sink(value=lambda n: str(1 // n)))
        with pytest.raises(JobFailedError) as caught:
            p.run(on="embedded")
        assert caught.value.item == "0"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_record_that_is_not_delivered_fails_the_job(self, deaf):
        writer = sinks.kafka("t", deaf, settings={"message.timeout.ms": 50}).open("run", "w")
        writer.write([b"lost"])
        told = rf"not delivered to topic 't' of Kafka at {deaf}"
        with pytest.raises(JetletError, match=told) as caught:
            while not writer.sync():
                pass
        assert isinstance(caught.value.__cause__, KafkaException)
        with pytest.raises(JetletError, match=told):
            writer.write([])
        with pytest.raises(JetletError, match=told):
            writer.finish()
        writer.abort()

    def test_failure_names_the_vertex(self, deaf, monkeypatch):
        p = Pipeline("p")
        sink = sinks.kafka("t", deaf, settings={"message.timeout.ms": 50}, name="out")
        monkeypatch.setattr(sink, "begin", lambda run_id: None)
        p.read_from(sources.items([b"lost"])).write_to(sink)
        with pytest.raises(JobFailedError, match="not delivered") as caught:
            p.run(on="embedded")
        assert caught.value.vertex == "out"

    @pytest.mark.parametrize("waits_in", ["write", "finish"])
    def test_interrupt_ends_the_waiting(self, deaf, waits_in):
        writer = sinks.kafka("t", deaf, settings={"queue.buffering.max.messages": 5}).open("r", "w")
        writer.write([b"x"] * 5)
        wait = (lambda: writer.write([b"y"])) if waits_in == "write" else writer.finish
        ends = []

        def run():
            with pytest.raises(JetletError, match="the job ended before all was delivered"):
                wait()
            ends.append(True)

        waiting = threading.Thread(target=run)
        waiting.start()
        writer.interrupt()
        waiting.join(60)
        assert ends == [True]
        writer.abort()

    def test_as_a_processor(self, kafka, topic, sink):
        values = [b"a", b"b", b"c"]
        quick = {"enable.idempotence": False, "linger.ms": 0}
        made = sink(settings=quick)
        processors = []

        def make():
            processors.append(WriteProcessor(made))
            return processors[-1]

        verify_processor(make, input=values, expect_outputs=[], may_wait=True, columns=False)
        found = [message.value() for message in kafka.read(topic, 3 * RUNS)]
        assert all(found.count(value) == RUNS for value in values)

    def test_says_what_it_is(self, sink, topic):
        assert sink().is_blocking
        assert sink().name == f"kafka-sink({topic})"


class TestPipelines:
    @pytest.fixture
    def engine(self):
        with EmbeddedEngine() as running:
            yield running

    def windows_of(self, topic, kafka, out, *, lag=0, idle_timeout=60_000, **options):
        """A pipeline that counts records in windows of 100 ms by their own timestamps."""
        p = Pipeline("count")
        (
            p.read_from(sources.kafka(topic, kafka.servers, settings=QUICK, **options))
            .with_native_timestamps(lag, idle_timeout=idle_timeout)
            .window(windows.tumbling(100))
            .aggregate(agg.counting())
            .write_to(out)
        )
        return p

    @pytest.mark.parametrize("readers", [1, 3])
    def test_each_partition_has_its_own_watermark(self, kafka, topic, engine, readers):
        """One that is far ahead makes no record of the others late, whoever reads them."""
        for partition, first in enumerate([1, 1, 5001, 9001]):
            times = range(first, first + 300)
            kafka.send(topic, partition, [b"x"] * 300, timestamps=times)
        out = sinks.collect()
        job = engine.submit(self.windows_of(topic, kafka, out, local_parallelism=readers))
        # The two that are behind have come to 300.
        expected = [(0, 100, None, 198), (100, 200, None, 200), (200, 300, None, 200)]
        assert_collected_eventually(job, out, expected)
        for partition in range(4):
            kafka.send(topic, partition, [b"end"], timestamps=[10_000])
        late = [(300, 400, None, 2), (5000, 5100, None, 99), (5100, 5200, None, 100)]
        late += [(5200, 5300, None, 100), (5300, 5400, None, 1)]
        late += [(9000, 9100, None, 99), (9100, 9200, None, 100), (9200, 9300, None, 100)]
        late += [(9300, 9400, None, 1)]
        assert_collected_eventually(job, out, expected + late)
        metrics = job.metrics()
        assert not any(metrics[v.name].counters.get("late_events") for v in job.dag)
        job.cancel()

    def test_a_quiet_partition_is_not_waited_for(self, kafka, topic, engine):
        kafka.send(topic, 0, [b"x"] * 300, timestamps=range(1, 301))
        out = sinks.collect()
        job = engine.submit(self.windows_of(topic, kafka, out, idle_timeout=100))
        expected = [(0, 100, None, 99), (100, 200, None, 100), (200, 300, None, 100)]
        assert_collected_eventually(job, out, expected)
        job.cancel()

    def test_round_trip_through_two_topics(self, kafka, topic, engine):
        """From a sink through windows of a source to a sink to a source: each once, exactly."""
        other = kafka.topic()
        events = [{"user": i % 7, "at": i} for i in range(5000)]
        fill = Pipeline("fill")
        fill.read_from(sources.items(events)).write_to(
            sinks.kafka(
                topic,
                kafka.servers,
                value=json.dumps,
                key=lambda event: str(event["user"]),
                timestamp=lambda event: 1 + event["at"],
            )
        )
        engine.submit(fill).join(60)
        count = Pipeline("count")
        (
            count.read_from(sources.kafka(topic, kafka.servers, value=json.loads, settings=QUICK))
            .with_timestamps(lambda event: event["at"], allowed_lag=0, idle_timeout=200)
            .grouping_key(lambda event: event["user"])
            .window(windows.tumbling(100))
            .aggregate(agg.counting())
            .write_to(
                sinks.kafka(
                    other,
                    kafka.servers,
                    value=json.dumps,
                    key=lambda window: str(window.key),
                    timestamp=lambda window: window.end,
                )
            )
        )
        p, out = Pipeline("collect"), sinks.collect()
        results = sources.kafka(other, kafka.servers, value=json.loads, settings=QUICK)
        p.read_from(results).with_native_timestamps(0).write_to(out)
        expected = {}
        for event in events[:4900]:  # the last window stays open
            window = event["at"] // 100 * 100, event["user"]
            expected[window] = expected.get(window, 0) + 1
        wanted = [[start, start + 100, user, n] for (start, user), n in expected.items()]
        jobs = [engine.submit(p), engine.submit(count)]
        assert_collected_eventually(jobs[0], out, wanted, timeout=60)
        for job in jobs:
            job.cancel()

    @pytest.mark.cluster
    def test_members_share_the_partitions(self, kafka, topic):
        for partition in range(4):
            times = range(1, 301)
            kafka.send(topic, partition, [b"x"] * 300, timestamps=times)
        out = sinks.collect()
        with EmbeddedEngine(members=2) as engine:
            job = engine.submit(self.windows_of(topic, kafka, out))
            expected = [(0, 100, None, 396), (100, 200, None, 400), (200, 300, None, 400)]
            assert_collected_eventually(job, out, expected, timeout=60)
            job.cancel()
            metrics = job.metrics()[f"kafka-source({topic})"]
        assert [each["emitted"] >= 600 for each in metrics.processors] == [True, True]

    def cancel(self, engine, pipeline, is_running):
        job = engine.submit(pipeline)
        is_running(job)
        job.cancel()
        with pytest.raises(JobCancelledError):
            job.join(0)

    def test_job_that_waits_for_records_is_cancelled(self, kafka, topic, engine):
        kafka.send(topic, 0, [b"x"])
        p, out = Pipeline("p"), sinks.collect()
        source = sources.kafka(topic, kafka.servers, settings=QUICK)
        p.read_from(source).without_timestamps().write_to(out)
        for _ in range(3):
            self.cancel(engine, p, lambda job: assert_collected_eventually(job, out, [b"x"]))

    def test_job_that_waits_for_a_server_is_cancelled(self, deaf, engine, monkeypatch):
        """Both ends wait: for records that never come, and to send some."""
        monkeypatch.setattr(KafkaDirectory, "places", lambda self, topics: [(topics[0], 0)])
        monkeypatch.setattr(KafkaDirectory, "bounds", lambda self, place: (0, 0))
        opened = threading.Semaphore(0)
        p = Pipeline("p")
        p.read_from(sources.kafka("t", deaf)).without_timestamps().write_to(sinks.noop())
        sending = p.read_from(sources.item_stream(100_000, lambda n, at: b"x")).without_timestamps()
        sink = sinks.kafka("t", deaf, settings={"queue.buffering.max.messages": 10})
        sending.filter(lambda item: opened.release() is None).write_to(sink)
        for _ in range(3):
            self.cancel(engine, p, lambda job: [opened.acquire() for _ in range(1000)])


class TestDiscovery:
    def make(self, kafka, name):
        """A topic of that name."""
        client = kafka.consumer(**{"allow.auto.create.topics": True})
        while not client.list_topics(name, timeout=60).topics[name].partitions:
            pass
        client.close()

    def test_topics_that_match_later_are_read_from_their_beginning(self, kafka, tmp_path):
        prefix = f"found-{time.monotonic_ns()}"
        source = sources.kafka(
            f"^{prefix}-.*",
            kafka.servers,
            value=int,
            start="latest",
            discovery_interval=50,
            settings=QUICK,
        )
        assert source.partitions() == []
        p, out = Pipeline("p"), sinks.collect()
        p.read_from(source, local_parallelism=2).without_timestamps().write_to(out)
        config = JobConfig(processing_guarantee="exactly-once", snapshot_dir=str(tmp_path))
        with EmbeddedEngine(workers=1) as engine:
            job = engine.submit(p, config)
            self.make(kafka, f"{prefix}-a")
            for partition in range(4):
                kafka.send(f"{prefix}-a", partition, [str(partition)])
            assert_collected_eventually(job, out, [0, 1, 2, 3], timeout=60)
            job.suspend()
            kafka.send(f"{prefix}-a", 0, ["4"])
            self.make(kafka, f"{prefix}-b")
            kafka.send(f"{prefix}-b", 3, ["5"])
            job.resume()
            assert_collected_eventually(job, out, [0, 1, 2, 3, 4, 5], timeout=60)
            job.cancel()

    def test_partitions_that_a_topic_gets_are_found(self, kafka, topic, monkeypatch):
        """The cluster of the tests cannot give a topic more of them: it hides some at first."""
        hidden = threading.Event()
        there = KafkaDirectory._partitions
        monkeypatch.setattr(
            KafkaDirectory,
            "_partitions",
            lambda self, name: there(self, name)[: None if hidden.is_set() else 1],
        )
        kafka.send(topic, 0, ["0"])
        kafka.send(topic, 2, ["2"])
        source = sources.kafka(
            topic, kafka.servers, value=int, discovery_interval=50, settings=QUICK
        )
        p, out = Pipeline("p"), sinks.collect()
        p.read_from(source).without_timestamps().write_to(out)
        with EmbeddedEngine() as engine:
            job = engine.submit(p)
            assert_collected_eventually(job, out, [0], timeout=60)
            hidden.set()
            assert_collected_eventually(job, out, [0, 2], timeout=60)
            job.cancel()

    @pytest.mark.parametrize("bad", ["^(", "^[a"])
    def test_a_pattern_that_is_none_is_refused(self, kafka, bad):
        with pytest.raises(InvalidArgumentError, match="regular expression"):
            sources.kafka(bad, kafka.servers)

    def test_a_fixed_set_of_partitions(self, kafka, topic):
        assert sources.kafka(topic, kafka.servers, discovery_interval=None).discovery_ms is None
        assert sources.kafka(topic, kafka.servers).discovery_ms == 5000
        assert sources.kafka(topic, kafka.servers, until="end").discovery_ms is None
