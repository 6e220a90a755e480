from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import struct
import threading

import cloudpickle
import pytest

from jetlet import EmbeddedEngine, sources
from jetlet.connectors import socket_stream
from jetlet.core import DAG, Processor, Vertex, between
from jetlet.core.processor import ProcessorContext
from jetlet.errors import BadRecordError, InvalidArgumentError, JobCancelledError
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.testing import verify_processor
from jetlet.testing.clock import ManualClock

RESET = struct.pack("ii", 1, 0)
"""As SO_LINGER, makes closing a connection look like a crash."""


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        yield listening


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(socket_stream, "FIRST_PAUSE_MS", 1)


@pytest.fixture
def connect(server):
    """Opens a reader; ``connect.client(reader)`` is the server's end of its connection."""
    with contextlib.ExitStack() as stack:

        def open_reader(*, host="127.0.0.1", clock=None, **options):
            source = pickle.loads(
                cloudpickle.dumps(sources.socket(host, server.getsockname()[1], **options))
            )
            context = ProcessorContext(clock=clock) if clock else ProcessorContext()
            reader = source.open(source.partitions(), context)
            stack.callback(reader.close)
            return reader

        def client(reader):
            accepted = []
            accepting = threading.Thread(target=lambda: accepted.append(server.accept()[0]))
            accepting.start()
            while accepting.is_alive() or not reader._is_connected:
                assert reader.poll(10) == ()
            return stack.enter_context(accepted[0])

        open_reader.client = client
        yield open_reader


def lines(reader, count, limit=100):
    """So many lines, which may come in several polls."""
    found = []
    while len(found) < count:
        for each in reader.poll(limit):
            assert each.partition == 0
            assert 0 < len(each.items) <= limit
            found += each.items
    return found


def test_lines_come_as_they_are_sent(connect):
    reader = connect()
    client = connect.client(reader)
    client.sendall(b"one\ntwo\r\nthr")
    assert lines(reader, 2) == ["one", "two"]
    assert reader.poll(10) == ()
    client.sendall("ee\ngrün\n".encode())
    assert lines(reader, 2) == ["three", "grün"]


def test_limit_is_kept(connect):
    reader = connect()
    client = connect.client(reader)
    client.sendall(b"".join(b"%d\n" % i for i in range(500)))
    assert lines(reader, 500, limit=7) == [str(i) for i in range(500)]


def test_host_can_be_a_name(connect):
    reader = connect(host="localhost")
    connect.client(reader).sendall(b"a\n")
    assert lines(reader, 1) == ["a"]


def test_unknown_host_is_tried_again(connect, quick, monkeypatch):
    answers = iter([socket.gaierror(-2, "Name or service not known")])
    look_up = socket.getaddrinfo

    def fail_once(*args, **options):
        for error in answers:
            raise error
        return look_up("127.0.0.1", args[1], **options)

    monkeypatch.setattr(socket, "getaddrinfo", fail_once)
    reader = connect(host="example.invalid")
    connect.client(reader).sendall(b"a\n")
    assert lines(reader, 1) == ["a"]


def test_connects_again_and_the_last_line_counts(connect, quick):
    reader = connect()
    client = connect.client(reader)
    client.sendall(b"one\ntwo")
    client.close()
    assert lines(reader, 2) == ["one", "two"]
    connect.client(reader).sendall(b"three\n")
    assert lines(reader, 1) == ["three"]


def test_torn_line_is_dropped_when_the_connection_breaks(connect, quick, caplog):
    reader = connect()
    client = connect.client(reader)
    client.sendall(b"one\ntw")
    assert lines(reader, 1) == ["one"]
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
    client = connect.client(reader)
    client.sendall(b"three\n")
    assert lines(reader, 1) == ["three"]
    assert "dropped 2 bytes" in caplog.text


def test_pauses_grow_up_to_a_limit(connect, server, monkeypatch, caplog):
    monkeypatch.setattr(socket_stream, "POLL_TIMEOUT", 0)
    clock = ManualClock()
    reader = connect(clock=clock, max_pause=500)
    server.close()
    tries = []
    for expected in (0.1, 0.2, 0.4, 0.5, 0.5):
        caplog.clear()
        while not caplog.records:
            assert reader.poll(1) == ()
        tries.append(f"trying again in {expected} s" in caplog.text)
        clock.advance(expected - 0.001)
        caplog.clear()
        for _ in range(5):
            assert reader.poll(1) == ()
        assert not caplog.records
        clock.advance(ms=1)
    assert tries == [True] * 5


def test_server_that_does_not_answer_is_given_up(connect, monkeypatch, caplog):
    class Silent(socket.socket):
        def connect_ex(self, address):
            return socket_stream.errno.EINPROGRESS

    monkeypatch.setattr(socket_stream, "POLL_TIMEOUT", 0)
    monkeypatch.setattr(socket_stream.selectors.DefaultSelector, "select", lambda self, t: [])
    monkeypatch.setattr(socket, "socket", Silent)
    clock = ManualClock()
    reader = connect(clock=clock)
    for _ in range(5):
        assert reader.poll(1) == ()
    assert not caplog.records
    clock.advance(10)
    assert reader.poll(1) == ()
    assert "no answer; trying again" in caplog.text


def test_stream_can_end_with_the_connection(connect):
    reader = connect(reconnect=False)
    client = connect.client(reader)
    client.sendall(b"one\ntwo")
    client.close()
    found = []
    while (polled := reader.poll(1)) is not None:
        found += (line for each in polled for line in each.items)
    assert found == ["one", "two"]
    assert reader.poll(1) is None


def test_connection_that_is_not_made_is_an_error_if_there_is_only_one(connect, server):
    reader = connect(reconnect=False)
    server.close()
    with pytest.raises(ConnectionRefusedError):
        while True:
            reader.poll(1)


def test_bytes_of_another_encoding_are_told(connect):
    reader = connect()
    connect.client(reader).sendall(b"ok\n\xff\n")
    with pytest.raises(BadRecordError, match=r"127\.0\.0\.1:\d+: byte 3 is not utf-8"):
        lines(reader, 2)


def test_interrupted_poll_returns_at_once(connect, monkeypatch):
    reader = connect()
    connect.client(reader)
    monkeypatch.setattr(socket_stream, "POLL_TIMEOUT", 1000)
    results = []
    poller = threading.Thread(target=lambda: results.append(reader.poll(1)))
    poller.start()
    reader.interrupt()
    poller.join()
    assert results == [()]
    assert reader.poll(1) == ()


def test_interrupting_a_closed_reader_does_no_harm(connect, server):
    reader = sources.socket("127.0.0.1", server.getsockname()[1]).open(
        [("127.0.0.1", 1)], ProcessorContext()
    )
    reader.close()
    reader.interrupt()


def test_look_up_that_never_ends_holds_nothing_up(connect, monkeypatch):
    gate = threading.Event()
    entered = threading.Event()

    def wait(*args, **options):
        entered.set()
        gate.wait()
        raise socket.gaierror(-2, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    monkeypatch.setattr(socket_stream, "POLL_TIMEOUT", 0.001)
    reader = connect(host="example.invalid")
    while not entered.is_set():
        assert reader.poll(1) == ()
    assert reader.poll(1) == ()
    gate.set()


def test_as_a_processor(server, caplog):
    caplog.set_level(logging.ERROR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = server.accept()
                with accepted:
                    accepted.sendall(b"one\ntwo\nthree\n")

    serving = threading.Thread(target=serve)
    serving.start()
    supplier = StreamReadSupplier(
        sources.socket("127.0.0.1", server.getsockname()[1], reconnect=False), Timestamps()
    )
    supplier.prepare(1)
    verify_processor(
        supplier, expect_output=["one", "two", "three"], snapshots=False, may_wait=True
    )
    server.shutdown(socket.SHUT_RDWR)
    serving.join()


def test_job_that_waits_for_a_server_can_be_cancelled(server):
    class Ignore(Processor):
        def process(self, ordinal, inbox):
            inbox.clear()

    dag = DAG()
    source = sources.socket("127.0.0.1", server.getsockname()[1])
    read = dag.vertex(Vertex("read", StreamReadSupplier(source, Timestamps()), 1))
    dag.edge(between(read, dag.vertex(Vertex("ignore", Ignore, 1))))
    with EmbeddedEngine() as engine:
        job = engine.submit(dag)
        client, _ = server.accept()
        with client:
            job.cancel()
            with pytest.raises(JobCancelledError):
                job.join()
            assert client.recv(1) == b""  # it hung up


def test_says_what_it_is():
    source = sources.socket("example.org", 7)
    assert source.is_blocking and not source.is_replayable and not source.has_native_timestamps
    assert source.name == "socket(example.org:7)"


@pytest.mark.parametrize(
    "options",
    [
        {"host": ""},
        {"host": None},
        {"port": 0},
        {"port": "80"},
        {"port": 70000},
        {"encoding": "utf-16"},
        {"name": ""},
    ],
)
def test_arguments_that_cannot_work_are_refused(options):
    with pytest.raises(InvalidArgumentError, match=r"sources\.socket.*write"):
        sources.socket(**{"host": "x", "port": 1, **options})
