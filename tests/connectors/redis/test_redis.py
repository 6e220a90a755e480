from __future__ import annotations

import pickle
import socket
import threading
import time
from datetime import UTC, datetime

import cloudpickle
import pytest

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
from jetlet.connectors.redis import client as redis_client
from jetlet.connectors.redis import sink as redis_sink
from jetlet.connectors.redis import source as redis_source
from jetlet.connectors.redis.source import RedisEntry
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
    RestartableError,
    ServerUnreachableError,
)
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.processors.ends.write import WriteProcessor
from jetlet.testing import assert_collected_eventually, verify_processor
from jetlet.testing.clock import ManualClock

RUNS = 10
"""How often :func:`verify_processor` feeds a sink."""


def add(redis, stream, times, value="x"):
    """Entries with these times in their ids."""
    with redis.client.pipeline(transaction=False) as pipeline:
        for i, at in enumerate(times):
            pipeline.xadd(stream, {"v": f"{value}{i}"}, id=f"{at}-*")
        pipeline.execute()


class FakeServer:
    """A server that answers what it is told to."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(10)
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"
        self._accepted = []

    def accept(self):
        connection, _ = self._listening.accept()
        connection.settimeout(10)
        self._accepted.append(connection)
        return connection

    def answer_all(self, *answers):
        """Answer whatever comes with OK, until it is a command of ours; then as told."""
        connection = self.accept()
        while data := connection.recv(65536):
            if b"XREAD" in data or b"XADD" in data:
                for answer in answers:
                    connection.sendall(answer)
                return
            connection.sendall(b"+OK\r\n" * data.count(b"CLIENT"))

    def close(self):
        for each in (self._listening, *self._accepted):
            each.close()


@pytest.fixture
def fake():
    server = FakeServer()
    yield server
    server.close()


class TestSource:
    @pytest.fixture
    def opened(self, redis):
        """Opens readers, which are closed at the end."""
        readers = []

        def open_reader(streams="s", *, context=None, url=redis.url, **options):
            source = sources.redis_stream(streams, url, **options)
            there = pickle.loads(cloudpickle.dumps(source))
            partitions = pickle.loads(pickle.dumps(there.partitions()))
            readers.append(there.open(partitions, context or ProcessorContext()))
            return readers[-1]

        yield open_reader
        for reader in readers:
            reader.close()

    def polled(self, reader, count, limit=100):
        """So many entries, as (partition, timestamp, item); those of a stream in order."""
        found = []
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < deadline, found
            for each in reader.poll(limit):
                assert 0 < len(each.items) <= limit
                found += (
                    (each.partition, at, item)
                    for at, item in zip(each.timestamps, each.items, strict=True)
                )
        return sorted(found, key=lambda record: record[0])

    def test_reads_all_streams_with_the_times_of_their_ids(self, redis, opened):
        names, expected = ["a", "b", "c"], []
        for index, name in enumerate(names):
            times = [1 + (1000 * index + i) // 3 for i in range(500)]
            add(redis, name, times, value=name)
            expected += ((index, at, {"v": f"{name}{i}"}) for i, at in enumerate(times))
        reader = opened(names)
        assert self.polled(reader, 1500, limit=7) == expected
        add(redis, "b", [10**6])
        assert self.polled(reader, 1) == [(1, 10**6, {"v": "x0"})]

    def test_fields_are_strings_or_bytes(self, redis, opened):
        redis.client.xadd("s", {"name": "grün", "raw": b"\xff"}, id="5-1")
        reader = opened(encoding=None)
        assert self.polled(reader, 1) == [
            (0, 5, {b"name": "grün".encode(), b"raw": b"\xff"}),
        ]
        with pytest.raises(BadRecordError, match=r"stream 's', entry 5-1: .*write encoding=None"):
            self.polled(opened(), 1)

    def test_a_projection_sees_the_whole_entry(self, redis, opened):
        redis.client.xadd("s", {"n": 7}, id="5-1")
        reader = opened(project=whole_item)
        ((_, _, entry),) = self.polled(reader, 1)
        assert entry == RedisEntry("s", "5-1", {"n": "7"})
        assert entry.timestamp == 5
        reader = opened(project=lambda entry: int(entry.fields["n"]))
        assert self.polled(reader, 1) == [(0, 5, 7)]
        with pytest.raises(BadRecordError, match="entry 5-1: cannot be decoded: KeyError"):
            self.polled(opened(project=lambda entry: entry.fields["m"]), 1)

    @pytest.mark.parametrize(
        ("start", "expected"),
        [
            ("earliest", "abcd"),
            ("latest", ""),
            ({"s": "10-0"}, "bcd"),
            ({"s": "10", "t": "15-0"}, "bd"),
            (15, "bcd"),
            (0, "abcd"),
            (21, "d"),
            (datetime(1970, 1, 1, 0, 0, 0, 25_000, tzinfo=UTC), "d"),
        ],
    )
    def test_starts_where_told(self, redis, opened, start, expected):
        for stream, at, value in [("s", 10, "a"), ("s", 20, "b"), ("t", 15, "c"), ("t", 25, "d")]:
            redis.client.xadd(stream, {"v": value}, id=f"{at}-0")
        reader = opened(["s", "t"], start=start)
        redis.client.xadd("s", {"v": "x"}, id="30-0")
        found = self.polled(reader, len(expected) + 1)
        assert sorted(item["v"] for _, _, item in found) == sorted(expected + "x")

    def test_goes_on_where_it_was_saved(self, redis, opened):
        add(redis, "s", range(1, 21))
        add(redis, "t", range(1, 21), value="y")
        reader = opened(["s", "t"])
        assert reader.save() == ["0-0", "0-0"]
        first = self.polled(reader, 13, limit=2)
        saved = pickle.loads(pickle.dumps(reader.save()))
        reader = opened(["s", "t"])
        reader.restore(saved)
        rest = self.polled(reader, 40 - len(first))
        assert sorted((at, item["v"]) for _, at, item in first + rest) == sorted(
            (i + 1, f"{value}{i}") for i in range(20) for value in "xy"
        )
        reader = opened(["s", "t"], start={"s": "19-0", "t": "20-0"})
        reader.restore([None, "18-0"])
        assert [item["v"] for _, _, item in self.polled(reader, 3)] == ["x19", "y18", "y19"]

    def test_streams_keep_their_identity_in_another_list(self, redis):
        redis.client.xadd("s", {"v": 1})
        source = sources.redis_stream("s", redis.url)
        (partition,) = source.partitions()
        assert source.partition_key(0, partition) == "s"

    def test_streams_may_be_made_later(self, redis, opened):
        reader = opened(["s", "t"], must_exist=False, start="latest")
        redis.client.xadd("t", {"v": "a"}, id="7-0")
        assert self.polled(reader, 1) == [(1, 7, {"v": "a"})]

    def test_key_that_is_taken_by_something_else_fails_the_job(self, redis, opened):
        reader = opened(must_exist=False)
        redis.client.set("s", "text")
        with pytest.raises(Exception, match="WRONGTYPE"):
            self.polled(reader, 1)

    def test_connection_that_is_lost_is_made_again(self, redis_process, opened, caplog):
        redis_process.client.flushall()
        add(redis_process, "s", [1, 2])
        reader = opened()
        assert len(self.polled(reader, 2)) == 2
        assert reader.poll(1) == ()
        redis_process.stop()
        try:
            while "connecting again in 0.2 s" not in caplog.text:
                assert reader.poll(1) == ()
        finally:
            redis_process.start()
        add(redis_process, "s", [1, 2, 3])
        assert self.polled(reader, 1) == [(0, 3, {"v": "x2"})]
        assert "lost the connection to Redis at redis://127.0.0.1" in caplog.text
        assert "cannot connect to Redis at redis://127.0.0.1" in caplog.text

    def test_pauses_grow_up_to_a_limit(self, opened, redis, monkeypatch, caplog):
        redis.client.xadd("s", {"v": 1})
        monkeypatch.setattr(redis_source, "POLL_TIMEOUT", 0.001)
        clock = ManualClock()
        reader = opened(context=ProcessorContext(clock=clock), start="latest")
        refuse = ServerUnreachableError("no")
        monkeypatch.setattr(
            redis_client.RedisConnection, "connect", lambda self: (_ for _ in ()).throw(refuse)
        )
        for expected in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0):
            caplog.clear()
            while not caplog.records:
                assert reader.poll(1) == ()
            assert f"no; connecting again in {expected} s" in caplog.text
            clock.advance(expected - 0.002)
            caplog.clear()
            for _ in range(3):
                assert reader.poll(1) == ()
            assert not caplog.records
            clock.advance(ms=3)

    def test_server_that_does_not_answer_is_lost(self, fake, monkeypatch, caplog):
        clock = ManualClock()
        source = sources.redis_stream("s", fake.url)
        partition = redis_source.RedisPartition("s", "0-0")
        reader = source.open([partition], ProcessorContext(clock=clock))
        server = threading.Thread(target=fake.answer_all)
        server.start()
        while reader._asked_ns is None:
            assert reader.poll(1) == ()
        assert reader.poll(1) == ()
        assert not caplog.records
        clock.advance(6.1)
        assert reader.poll(1) == ()
        assert "no answer for 6.1 s; connecting again" in caplog.text
        server.join()
        reader.close()

    @pytest.mark.parametrize("answer", [b"", b"*1\r\n*2\r\n$1\r\ns"])
    def test_interrupted_poll_returns_whatever_it_waits_for(self, fake, answer):
        """Also in the middle of a reply, and if the server says nothing at all."""
        source = sources.redis_stream("s", fake.url)
        reader = source.open([redis_source.RedisPartition("s", "0-0")], ProcessorContext())
        server = threading.Thread(target=fake.answer_all, args=(answer,))
        server.start()
        results = []

        def keep_polling():
            while not reader._interrupted.is_set():
                results.append(reader.poll(1))

        poller = threading.Thread(target=keep_polling)
        poller.start()
        server.join()  # has answered
        reader.interrupt()
        poller.join(60)
        assert not poller.is_alive()
        assert set(results) == {()}
        assert reader.poll(1) == ()
        reader.close()

    def test_connecting_that_never_ends_holds_nothing_up(self, redis, opened, monkeypatch):
        redis.client.xadd("s", {"v": 1})
        gate, entered = threading.Event(), threading.Event()
        connect = redis_client.RedisConnection.connect

        def wait(self):
            entered.set()
            gate.wait()
            connect(self)

        reader = opened()
        monkeypatch.setattr(redis_client.RedisConnection, "connect", wait)
        while not entered.is_set():
            assert reader.poll(1) == ()
        reader.interrupt()
        reader.close()
        attempt = reader._attempt
        gate.set()
        assert attempt.has_ended.wait(60)
        with attempt._lock:
            assert attempt.connection._client._sock is None

    def test_as_a_processor(self, redis):
        add(redis, "s", range(1, 6))
        supplier = StreamReadSupplier(sources.redis_stream("s", redis.url), Timestamps())
        supplier.prepare(1)
        verify_processor(
            supplier,
            expect_output=[{"v": f"x{i}"} for i in range(5)],
            may_wait=True,
            endless=True,
        )

    def test_says_what_it_is(self):
        source = sources.redis_stream(["s", "t", "s"], "redis://host", local_parallelism=2)
        assert source.has_native_timestamps and source.is_replayable and source.is_blocking
        assert source.name == "redis-source(s,t)"
        assert source.preferred_local_parallelism == 2


class TestMistakes:
    def test_server_that_is_not_there_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as unused:
            url = f"redis://me:secret@127.0.0.1:{unused.getsockname()[1]}"
        for check in (
            sources.redis_stream("s", url).partitions,
            lambda: sinks.redis_stream("s", url).begin("run"),
        ):
            with pytest.raises(ServerUnreachableError, match=r"refused.*check url=") as caught:
                check()
            assert "secret" not in str(caught.value)

    def test_server_that_does_not_answer_is_named(self, fake, monkeypatch):
        monkeypatch.setattr(redis_client, "ANSWER_TIMEOUT", 0.1)
        with pytest.raises(ServerUnreachableError, match=rf"Redis at {fake.url}.*[Tt]imeout"):
            sources.redis_stream("s", fake.url).partitions()

    def test_server_that_turns_us_away_is_named(self, redis):
        redis.client.config_set("requirepass", "secret")
        try:
            with pytest.raises(ServerUnreachableError, match="Authentication required"):
                sources.redis_stream("s", redis.url).partitions()
            url = redis.url.replace("//", "//:wrong@")
            with pytest.raises(ServerUnreachableError, match=r"cannot connect.*password"):
                sources.redis_stream("s", url).partitions()
            url = redis.url.replace("//", "//:secret@")
            with pytest.raises(InputNotFoundError):
                sources.redis_stream("s", url).partitions()
        finally:
            redis.client.config_set("requirepass", "")

    def test_missing_stream_is_named(self, redis):
        with pytest.raises(InputNotFoundError, match=r"\('nope'\).*write must_exist=False"):
            sources.redis_stream("nope", redis.url).partitions()

    def test_what_is_not_a_stream_is_refused(self, redis):
        redis.client.set("text", "x")
        with pytest.raises(InvalidArgumentError, match=r"is a string; write the key of a stream"):
            sources.redis_stream("text", redis.url).partitions()
        with pytest.raises(InvalidArgumentError, match=r"is a string; write the key of a stream"):
            sinks.redis_stream("text", redis.url).begin("run")

    def test_settings_that_the_client_does_not_know(self, redis):
        with pytest.raises(InvalidArgumentError, match=r"no_such.*write options"):
            sources.redis_stream("s", redis.url, settings={"no_such": 1}).partitions()

    @pytest.mark.parametrize(
        "options",
        [
            {"streams": ""},
            {"streams": []},
            {"streams": ["a", 3]},
            {"streams": None},
            {"url": ""},
            {"url": "host:6379"},
            {"url": "http://host"},
            {"url": "redis://"},
            {"url": "redis://host:port"},
            {"url": "unix://"},
            {"url": None},
            {"start": "now"},
            {"start": 1.5},
            {"start": True},
            {"start": {"other": "1-0"}},
            {"start": {"s": 5}},
            {"start": {"s": "x"}},
            {"encoding": "nope"},
            {"project": 3},
            {"settings": []},
            {"settings": {"decode_responses": True}},
            {"name": ""},
            {"local_parallelism": 0},
        ],
    )
    def test_arguments_that_cannot_work_are_refused(self, options):
        with pytest.raises(InvalidArgumentError, match=r"sources\.redis_stream.*write"):
            sources.redis_stream(**{"streams": "s", "url": "redis://host", **options})

    @pytest.mark.parametrize("options", [{"streams": 1}, {"fields": 3}, {"key": 3}, {"maxlen": 0}])
    def test_so_are_those_of_the_sink(self, options):
        with pytest.raises(InvalidArgumentError, match=r"sinks\.redis_stream.*write"):
            sinks.redis_stream(**{"streams": "s", "url": "redis://host", **options})

    def test_missing_client_is_named(self, monkeypatch):
        monkeypatch.setattr(redis_client, "find_spec", lambda name: None)
        with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[redis\]'"):
            sources.redis_stream("s", "redis://host")
        with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[redis\]'"):
            sinks.redis_stream("s", "redis://host")


class TestSink:
    def test_adds_entries_in_order(self, redis, write_all):
        items = [{"n": i, "x": 0.5, b"raw": b"y"} for i in range(2000)]
        write_all(sinks.redis_stream("s", redis.url), items)
        found = [fields for _, fields in redis.client.xrange("s")]
        assert found == [{"n": str(i), "x": "0.5", "raw": "y"} for i in range(2000)]

    def test_fields_are_made_by_a_function(self, redis, write_all):
        write_all(sinks.redis_stream("s", redis.url, fields=lambda n: {"n": n}), [1, 2])
        assert [fields for _, fields in redis.client.xrange("s")] == [{"n": "1"}, {"n": "2"}]

    def test_equal_keys_share_a_stream_and_keep_their_order(self, redis, write_all):
        items = [{"k": i % 10, "n": i} for i in range(1000)]
        names = ["a", "b", "c"]
        write_all(sinks.redis_stream(names, redis.url, key=lambda item: item["k"]), items)
        where, found = {}, []
        for name in names:
            last = {}
            for _, fields in redis.client.xrange(name):
                key, n = int(fields["k"]), int(fields["n"])
                assert where.setdefault(key, name) == name
                assert last.get(key, -1) < n
                last[key] = n
                found.append(n)
        assert sorted(found) == list(range(1000))
        assert len(set(where.values())) > 1

    def test_batches_take_the_streams_in_turn(self, redis):
        writer = sinks.redis_stream(["a", "b"], redis.url).open("run", "w")
        for i in range(4):
            writer.write([{"n": i}, {"n": i}])
        writer.finish()
        assert [fields["n"] for _, fields in redis.client.xrange("b")] == ["1", "1", "3", "3"]

    def test_streams_are_trimmed(self, redis, write_all):
        sink = sinks.redis_stream("s", redis.url, fields=lambda n: {"n": n}, maxlen=100)
        write_all(sink, list(range(5000)))
        assert 100 <= redis.client.xlen("s") < 400

    @pytest.mark.parametrize("item", [3, {}, {"a": None}, {"a": True}, {"a": [1]}, {None: 1}])
    def test_item_that_cannot_be_an_entry_is_named(self, redis, item):
        writer = sinks.redis_stream("s", redis.url).open("run", "w")
        with pytest.raises(ItemFailedError) as caught:
            writer.write([{"fine": 1}, item])
        assert caught.value.item == item
        assert isinstance(caught.value.__cause__, BadRecordError)
        assert "write fields=" in str(caught.value.__cause__)
        writer.abort()

    @pytest.mark.parametrize("parameter", ["fields", "key"])
    def test_function_that_fails_is_told_with_its_item(self, redis, parameter):
        p = Pipeline("p")
        options = {"fields": lambda n: {"n": n}, parameter: lambda n: {"n": 1 // n}}
        sink = sinks.redis_stream("s", redis.url, **options, name="out")
        p.read_from(sources.items([1, 0, 2])).write_to(sink)
        with pytest.raises(JobFailedError) as caught:
            p.run(on="embedded")
        assert (caught.value.vertex, caught.value.item) == ("out", "0")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_refusal_fails_the_job_with_the_item(self, redis):
        writer = sinks.redis_stream("s", redis.url).open("run", "w")
        redis.client.set("s", "text")
        with pytest.raises(ItemFailedError) as caught:
            writer.write([{"n": 1}])
        assert caught.value.item == {"n": 1}
        assert "WRONGTYPE" in str(caught.value.__cause__)
        writer.abort()

    def test_connection_that_is_lost_fails_the_job(self, redis):
        writer = sinks.redis_stream("s", redis.url).open("run", "w")
        redis.client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(RestartableError, match="lost the connection to Redis at redis://127"):
            writer.write([{"n": 1}])
        writer.abort()

    def test_server_that_does_not_answer_fails_the_job(self, fake, monkeypatch):
        monkeypatch.setattr(redis_sink, "WAIT", 0.005)
        monkeypatch.setattr(redis_sink, "ANSWER_TIMEOUT", 0.05)
        server = threading.Thread(target=fake.answer_all)
        server.start()
        writer = sinks.redis_stream("s", fake.url).open("run", "w")
        with pytest.raises(RestartableError, match=r"no answer for 0\.05 s"):
            writer.write([{"n": 1}])
        server.join()
        writer.abort()

    def test_interrupt_ends_the_waiting(self, fake):
        server = threading.Thread(target=fake.answer_all)
        server.start()
        writer = sinks.redis_stream("s", fake.url).open("run", "w")
        ends = []

        def run():
            with pytest.raises(JetletError):
                writer.write([{"n": 1}])
            ends.append(True)

        waiting = threading.Thread(target=run)
        waiting.start()
        server.join()  # has got the command
        writer.interrupt()
        waiting.join(60)
        assert ends == [True]
        writer.abort()

    def test_as_a_processor(self, redis):
        items = [{"n": i} for i in range(4)]
        sink = sinks.redis_stream("s", redis.url)
        verify_processor(
            lambda: WriteProcessor(sink), input=items, expect_outputs=[], columns=False
        )
        assert redis.client.xlen("s") == 4 * RUNS

    def test_says_what_it_is(self):
        sink = sinks.redis_stream("s", "redis://host")
        assert sink.is_blocking
        assert sink.name == "redis-sink(s)"


class TestPipelines:
    @pytest.fixture
    def engine(self):
        with EmbeddedEngine() as running:
            yield running

    def counting(self, redis, streams, out, *, idle_timeout=60_000, **options):
        """A pipeline that counts entries in windows of 100 ms by the times of their ids."""
        p = Pipeline("count")
        (
            p.read_from(sources.redis_stream(streams, redis.url, **options))
            .with_native_timestamps(0, idle_timeout=idle_timeout)
            .window(windows.tumbling(100))
            .aggregate(agg.counting())
            .write_to(out)
        )
        return p

    @pytest.mark.parametrize("readers", [1, 3])
    def test_each_stream_has_its_own_watermark(self, redis, engine, readers):
        """One that is far ahead makes no entry of the others late, whoever reads them."""
        for stream, first in zip("abcd", [1, 1, 5001, 9001], strict=True):
            add(redis, stream, range(first, first + 300))
        out = sinks.collect()
        p = self.counting(redis, list("abcd"), out, local_parallelism=readers)
        job = engine.submit(p)
        expected = [(0, 100, None, 198), (100, 200, None, 200), (200, 300, None, 200)]
        assert_collected_eventually(job, out, expected)
        for stream in "abcd":
            add(redis, stream, [10_000])
        rest = [(300, 400, None, 2)]
        for start in (5000, 9000):
            counts = enumerate([99, 100, 100, 1])
            rest += ((start + 100 * i, start + 100 * i + 100, None, n) for i, n in counts)
        assert_collected_eventually(job, out, expected + rest)
        job.cancel()

    def test_round_trip_through_windows(self, redis, engine):
        """From a sink to a source, through windows to a sink and a source: each once, exactly."""
        events = [{"user": i % 7, "at": i} for i in range(5000)]
        names = ["in-0", "in-1", "in-2"]
        fill = Pipeline("fill")
        fill.read_from(sources.items(events)).write_to(
            sinks.redis_stream(names, redis.url, key=lambda event: event["user"])
        )
        engine.submit(fill).join(60)
        count = Pipeline("count")
        (
            count.read_from(sources.redis_stream(names, redis.url))
            .with_timestamps(lambda event: int(event["at"]), allowed_lag=0, idle_timeout=200)
            .grouping_key(lambda event: int(event["user"]))
            .window(windows.tumbling(100))
            .aggregate(agg.counting())
            .write_to(
                sinks.redis_stream(
                    "out",
                    redis.url,
                    fields=lambda w: {"start": w.start, "key": w.key, "n": w.result},
                )
            )
        )
        p, out = Pipeline("collect"), sinks.collect()
        results = sources.redis_stream("out", redis.url, must_exist=False)
        p.read_from(results).with_native_timestamps(0).write_to(out)
        expected = {}
        for event in events[:4900]:  # the last window stays open
            window = event["at"] // 100 * 100, event["user"]
            expected[window] = expected.get(window, 0) + 1
        wanted = [
            {"start": str(start), "key": str(user), "n": str(n)}
            for (start, user), n in expected.items()
        ]
        jobs = [engine.submit(p), engine.submit(count)]
        assert_collected_eventually(jobs[0], out, wanted, timeout=60)
        for job in jobs:
            job.cancel()

    @pytest.mark.cluster
    def test_members_share_the_streams(self, redis):
        for stream in "abcd":
            add(redis, stream, range(1, 301))
        out = sinks.collect()
        with EmbeddedEngine(members=2) as engine:
            job = engine.submit(self.counting(redis, list("abcd"), out))
            expected = [(0, 100, None, 396), (100, 200, None, 400), (200, 300, None, 400)]
            assert_collected_eventually(job, out, expected, timeout=60)
            job.cancel()
            metrics = job.metrics()["redis-source(a,b,c,d)"]
        assert [each["emitted"] >= 600 for each in metrics.processors] == [True, True]

    def test_job_that_waits_for_entries_is_cancelled(self, redis, engine):
        redis.client.xadd("s", {"v": 1})
        p, out = Pipeline("p"), sinks.collect()
        p.read_from(sources.redis_stream("s", redis.url)).without_timestamps().write_to(out)
        for _ in range(3):
            job = engine.submit(p)
            assert_collected_eventually(job, out, [{"v": "1"}])
            job.cancel()
            with pytest.raises(JobCancelledError):
                job.join(0)


class TestDiscovery:
    def test_streams_that_match_are_found_and_those_that_are_deleted_end(self, redis, tmp_path):
        source = sources.redis_stream(
            "events:*",
            redis.url,
            match=True,
            start="latest",
            discovery_interval=20,
            project=lambda entry: f"{entry.stream} {entry.fields['v']}",
        )
        redis.client.set("events:none", "no stream")
        p, out, seen = Pipeline("p"), sinks.collect(), sinks.collect(name="seen")
        stage = p.read_from(source, local_parallelism=2).with_native_timestamps(idle_timeout=0)
        stage.write_to(seen)
        stage.window(windows.tumbling(10)).aggregate(agg.to_list()).write_to(out)
        config = JobConfig(processing_guarantee="exactly-once", snapshot_dir=str(tmp_path))

        def values(expected):
            def check(items):
                assert sorted(value for each in items for value in each.result) == expected

            return check

        with EmbeddedEngine() as engine:
            job = engine.submit(p, config)
            add(redis, "events:a", [1, 20])
            assert_collected_eventually(job, out, values(["events:a x0"]), timeout=60)
            job.suspend()
            add(redis, "events:b", [50, 52], "y")
            add(redis, "events:a", [45], "z")
            job.resume()
            read = ["events:a x0", "events:a x1", "events:a z0", "events:b y0", "events:b y1"]
            assert_collected_eventually(job, seen, read, timeout=60)
            add(redis, "events:a", [70])
            expected = ["events:a x0", "events:a x1", "events:a z0"]
            assert_collected_eventually(job, out, values(expected), timeout=60)
            # The one that is left must not wait for the other one any more.
            redis.client.delete("events:b")
            expected += ["events:b y0", "events:b y1"]
            assert_collected_eventually(job, out, values(expected), timeout=60)
            job.cancel()

    def test_patterns_can_be_read_to_an_end(self, redis):
        add(redis, "events:a", [1, 2])
        add(redis, "events:b", [3])
        add(redis, "other", [4])
        source = sources.redis_stream("events:*", redis.url, match=True, until="end")
        assert [span.partition.stream for span in source.spans()] == ["events:a", "events:b"]
        assert source.discovery_ms is None
