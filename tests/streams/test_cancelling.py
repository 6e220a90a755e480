"""A stream can be cancelled, whatever its source, its functions or its sinks wait for.

The product's limit is 200 ms, which ``benchmarks.cancelling`` measures. The limit here is one that
only a job breaks that waits for what never comes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from contextlib import suppress

import pytest

from jetlet import EmbeddedEngine, Pipeline, service, sinks, sources
from jetlet.connectors import socket_stream
from jetlet.errors import JobCancelledError
from jetlet.jobs.job import JobStatus
from jetlet.jobs.members import members_coordinator
from jetlet.log import Log
from jetlet.pipeline.stream_source import StreamReader, StreamSource

LIMIT = 60.0


class Gate:
    """Something that functions wait for, in vain until the end of the test."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()

    def wait(self, *_: object) -> bool:
        self.entered.set()
        return self._opened.wait(4 * LIMIT)

    def open(self) -> None:
        self._opened.set()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()


@pytest.fixture
def gate():
    """All that waits for it is let go in the end, and then no thread may be left."""
    before = set(threading.enumerate())
    gate = Gate()
    yield gate
    gate.open()
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT)
        assert not thread.is_alive(), thread


@pytest.fixture
def engine(gate):
    with EmbeddedEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
def members():
    with EmbeddedEngine(members=2) as engine:
        yield engine


def cancel(engine, pipeline, entered=None):
    """Cancel a job that runs, and has come to where it waits."""
    job = engine.submit(pipeline)
    if entered is not None:
        assert entered.wait(LIMIT)
    else:
        deadline = time.monotonic() + LIMIT
        while job.status is not JobStatus.RUNNING:
            assert time.monotonic() < deadline
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.join(0)


def reading(source):
    p = Pipeline("p")
    p.read_from(source).without_timestamps().write_to(sinks.noop())
    return p


def numbers():
    p = Pipeline("p")
    return p, p.read_from(sources.item_stream(1000)).without_timestamps()


# --- Sources ----------------------------------------------------------------------------------


def test_stream_between_two_items(engine):
    cancel(engine, reading(sources.item_stream(0.001)))


def test_file_that_does_not_grow(engine, tmp_path):
    cancel(engine, reading(sources.tail(tmp_path)))


def test_log_that_nobody_writes_to(engine, tmp_path):
    with Log(tmp_path / "log", partitions=2):
        cancel(engine, reading(sources.log(tmp_path / "log")))


def test_server_that_says_nothing(engine):
    with socket.create_server(("127.0.0.1", 0)) as server:
        p = reading(sources.socket(*server.getsockname()))
        accepted = threading.Event()

        def accept():
            with server.accept()[0] as connection:
                accepted.set()
                connection.recv(1)

        thread = threading.Thread(target=accept)
        thread.start()
        cancel(engine, p, accepted)
        # The connection was closed, or the thread would still read from it.
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_server_that_does_not_answer(engine):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        waiting = []
        try:
            # A full queue: whoever comes next gets no answer.
            for _ in range(4):
                client = socket.socket()
                client.setblocking(False)
                with suppress(BlockingIOError):
                    client.connect(server.getsockname())
                waiting.append(client)
            cancel(engine, reading(sources.socket(*server.getsockname())))
        finally:
            for client in waiting:
                client.close()


def test_server_that_is_not_there(engine):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    cancel(engine, reading(sources.socket(*address)))


def test_host_that_is_looked_up_for_ever(engine, gate, monkeypatch):
    monkeypatch.setattr(socket_stream, "_look_up", lambda *_: gate.wait() and [])
    cancel(engine, reading(sources.socket("host.example", 80)), gate.entered)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("stuck", ["create", "fill", "generator", "destroy"])
def test_function_of_a_built_stream_that_waits(engine, gate, stuck, blocking, caplog):
    entered = gate.entered

    def generator(_):
        yield gate.wait()

    functions = {"create": lambda _: 1, "fill": lambda _, buffer: entered.set()}
    if stuck == "generator":
        functions = {"create": lambda _: 1, "generator": generator}
    else:
        functions[stuck] = gate.wait
    if stuck == "destroy":
        entered = threading.Event()
        functions["fill"] = lambda _, buffer: entered.set()
    cancel(engine, reading(sources.stream("s", **functions, blocking=blocking)), entered)
    assert "end when they return" in caplog.text or "ends when that does" in caplog.text


@pytest.mark.parametrize("stuck", ["open", "poll", "close"])
@pytest.mark.parametrize("is_blocking", [True, False])
def test_reader_that_cannot_be_interrupted(engine, gate, stuck, is_blocking, caplog):
    polled = threading.Event()

    class Stuck(StreamSource[int], StreamReader[int]):
        name = "stuck"

        def partitions(self):
            return [0]

        def open(self, partitions, context):
            return gate.wait() and self if stuck == "open" else self

        def poll(self, limit):
            polled.set()
            if stuck == "poll":
                gate.wait()
            return ()

        def close(self):
            if stuck == "close":
                gate.wait()

    Stuck.is_blocking = is_blocking
    entered = polled if stuck == "close" else gate.entered
    cancel(engine, reading(Stuck()), entered)
    assert "job p has ended, but" in caplog.text


def test_blocking_read_from_a_pipe(engine, gate):
    receiver, sender = os.pipe()

    def read(_, buffer):
        gate.entered.set()
        os.read(receiver, 1)
        buffer.close()

    source = sources.stream("pipe", create=lambda _: 1, fill=read, blocking=True)
    cancel(engine, reading(source), gate.entered)
    os.write(sender, b"x")
    gate.open()
    os.close(sender)


# --- Functions and sinks ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["waits", "will not be cancelled", "blocks the loop"])
def test_map_async_with_items_in_flight(engine, gate, how):
    async def fetch(item):
        gate.entered.set()
        if how == "blocks the loop":
            gate.wait()
        while not gate.is_open:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                if how == "waits":
                    raise

    p, stage = numbers()
    stage.map_async(fetch).write_to(sinks.noop())
    cancel(engine, p, gate.entered)


@pytest.mark.parametrize("blocking", [True, False])
def test_service_that_waits(engine, gate, blocking):
    p, stage = numbers()
    made = service(lambda context: 1, blocking=blocking)
    stage.map_using_service(made, gate.wait).write_to(sinks.noop())
    cancel(engine, p, gate.entered)


def test_sink_of_this_process_that_waits(engine, gate):
    p, stage = numbers()
    stage.write_to(sinks.client(gate.wait))
    cancel(engine, p, gate.entered)


@pytest.mark.parametrize("blocking", [True, False])
def test_built_sink_that_waits(engine, gate, blocking):
    p, stage = numbers()
    stage.write_to(
        sinks.builder("slow", create=lambda context: 1, receive=gate.wait, blocking=blocking)
    )
    cancel(engine, p, gate.entered)


# --- What is left behind ----------------------------------------------------------------------


def test_stuck_function_is_named_and_closed_when_it_returns(gate, caplog):
    destroyed = threading.Event()
    source = sources.stream(
        "s", create=lambda _: 1, fill=gate.wait, destroy=lambda _: destroyed.set()
    )
    with EmbeddedEngine() as engine:
        cancel(engine, reading(source), gate.entered)
        assert "but s#0 did not return within" in caplog.text
    # The engine is closed, and nobody waited for the function.
    assert not destroyed.is_set()
    gate.open()
    assert destroyed.wait(LIMIT)


def test_job_that_has_failed_but_waits_can_be_cancelled(engine, gate):
    p = Pipeline("p")
    stuck = p.read_from(sources.batch("stuck", lambda split: iter([gate.wait()]), blocking=True))
    stuck.write_to(sinks.noop())
    failing = p.read_from(sources.batch("failing", lambda split: iter([gate.entered.wait(LIMIT)])))
    failing.map(lambda item: 1 / 0, name="divide").write_to(sinks.noop())
    job = engine.submit(p)
    assert gate.entered.wait(LIMIT)
    deadline = time.monotonic() + LIMIT
    while not job._runner._plan_run.execution.is_dismissed:
        assert time.monotonic() < deadline
    job.cancel()
    assert job.error.vertex == "divide"


def test_output_is_discarded_though_something_is_stuck(engine, gate, tmp_path):
    p = Pipeline("p")
    stage = p.read_from(sources.item_stream(1000)).without_timestamps()
    stage.map(str).write_to(sinks.text(tmp_path / "out"))
    stage.filter(gate.wait).write_to(sinks.noop())
    cancel(engine, p, gate.entered)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


# --- Members ----------------------------------------------------------------------------------


@pytest.mark.cluster
class TestMembers:
    @pytest.fixture(autouse=True)
    def _stuck_members_are_killed_soon(self, monkeypatch):
        monkeypatch.setattr(members_coordinator, "STOP_LIMIT", 0.2)

    @pytest.mark.parametrize("blocking", [True, False])
    @pytest.mark.parametrize("stuck", ["create", "fill"])
    def test_function_that_waits(self, members, tmp_path, stuck, blocking):
        entered = tmp_path / "entered"

        def wait(*_):
            entered.touch()
            time.sleep(3600)

        functions = {"create": lambda _: 1, stuck: wait}
        functions.setdefault("fill", lambda _, buffer: None)
        p = reading(sources.stream("s", **functions, blocking=blocking))
        cancel(members, p, _File(entered))

    def test_map_async_with_items_in_flight(self, members, tmp_path):
        entered = tmp_path / "entered"

        async def fetch(item):
            entered.touch()
            await asyncio.sleep(3600)

        p, stage = numbers()
        stage.map_async(fetch).write_to(sinks.noop())
        cancel(members, p, _File(entered))

    def test_server_that_says_nothing(self, members):
        with socket.create_server(("127.0.0.1", 0)) as server:
            p = reading(sources.socket(*server.getsockname()))
            accepted = threading.Event()
            thread = threading.Thread(target=lambda: (server.accept()[0].close(), accepted.set()))
            thread.start()
            cancel(members, p, accepted)
            thread.join(LIMIT)

    def test_sink_of_this_process_that_waits(self, members, gate):
        p, stage = numbers()
        stage.write_to(sinks.client(gate.wait))
        cancel(members, p, gate.entered)


class _File:
    """What another process tells by making a file."""

    def __init__(self, path) -> None:
        self._path = path

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not self._path.exists():
            if time.monotonic() > deadline:
                return False
        return True
