"""Partitions are idle when their source has nothing, not when their reader is held up."""

from __future__ import annotations

import itertools
import socket
import threading

import pytest

from jetlet import sources
from jetlet.core.items import IDLE, Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.log import Log
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.processors.time.event_time import EventTimePolicy
from jetlet.testing import ManualClock
from jetlet.testing.outbox import CheckedOutbox

TIMEOUT = 2000
HOURS = 2 * 3600 * 1000
MANY, FEW = 15_000, 5
"""Events of the busy partition, more than many polls take, and of the other one."""


class JumpyClock(ManualClock):
    """Its wall clock is set forward and back by hours every time that it is looked at."""

    def __init__(self):
        super().__init__(10 * HOURS)
        self._steps = itertools.cycle([0, HOURS, -HOURS])

    def time_ms(self):
        return super().time_ms() + next(self._steps)


class Reader:
    """A reader of a stream of numbers, which are their own timestamps."""

    def __init__(self, source, clock):
        policy = EventTimePolicy(idle_timeout=TIMEOUT)
        supplier = StreamReadSupplier(source, Timestamps("function", int, policy))
        supplier.prepare(1)
        self.clock = clock
        self.outbox = CheckedOutbox(1, is_tight=False)
        self.processor = supplier.get()
        self.processor.init(self.outbox, ProcessorContext(clock=clock))
        self.late, self.events, self.is_idle = [], [], False
        self.watermark = -1

    def poll(self, *, held_up_ms=0):
        self.clock.advance(ms=held_up_ms)
        self.outbox.begin_call()
        self.processor.complete()
        self.outbox.end_call()
        for each in self.outbox.outputs[0]:
            if each is IDLE:
                self.is_idle = True
            elif isinstance(each, Watermark):
                self.watermark = each.timestamp
            else:
                self.is_idle = False
                self.events.append(int(each[1]))
                if each[0] < self.watermark:
                    self.late.append(each)
        self.outbox.outputs[0].clear()

    def poll_until(self, count, *, held_up_ms=0):
        for _ in range(10_000):
            if len(self.events) >= count:
                return
            self.poll(held_up_ms=held_up_ms)
        raise AssertionError(f"{len(self.events)} of {count} events")


class Queues:
    """Queues that the test fills, two partitions of one reader."""

    partitions = 2

    def __init__(self, request):
        self.queues = [[], []]
        self.source = sources.stream("queues", create=self._queue, partitions=2, **self.functions())

    def _queue(self, context):
        return self.queues[context.partition]

    def functions(self):
        def fill(queue, buffer):
            buffer.add_all(queue[: buffer.room])
            del queue[: buffer.room]

        return {"fill": fill}

    def write(self, partition, numbers):
        self.queues[partition] += numbers


class Generators(Queues):
    def functions(self):
        def generate(queue):
            while True:
                yield queue.pop(0) if queue else None

        return {"generator": generate}


class Threads(Queues):
    """Each partition is read on a thread of its own, which the polls may keep waiting."""

    def functions(self):
        return {**super().functions(), "blocking": True}


class Logs:
    partitions = 2

    def __init__(self, request):
        directory = request.getfixturevalue("tmp_path") / "log"
        self.log = Log(directory, partitions=2)
        request.addfinalizer(self.log.close)
        self.source = sources.log(directory, partitions=2, local_parallelism=1)

    def write(self, partition, numbers):
        self.log.append(numbers, partition=partition)


class Kafka:
    partitions = 2

    def __init__(self, request):
        self.kafka = request.getfixturevalue("kafka")
        self.topic = self.kafka.topic()
        self.source = sources.kafka(
            self.topic, self.kafka.servers, value=int, settings={"fetch.wait.max.ms": 10}
        )

    def write(self, partition, numbers):
        self.kafka.send(self.topic, partition, [str(number) for number in numbers])


class Redis:
    partitions = 2

    def __init__(self, request):
        self.redis = request.getfixturevalue("redis")
        self.source = sources.redis_stream(
            ["0", "1"],
            url=self.redis.url,
            project=lambda entry: int(entry.fields["n"]),
            must_exist=False,
            start="earliest",
        )

    def write(self, partition, numbers):
        with self.redis.client.pipeline() as pipeline:
            for number in numbers:
                pipeline.xadd(str(partition), {"n": number})
            pipeline.execute()


class Tail:
    partitions = 1

    def __init__(self, request):
        self.path = request.getfixturevalue("tmp_path") / "lines.log"
        self.path.touch()
        self.source = sources.tail(self.path)

    def write(self, partition, numbers):
        with self.path.open("a") as file:
            file.writelines(f"{number}\n" for number in numbers)


class Socket:
    partitions = 1

    def __init__(self, request):
        self.server = socket.create_server(("127.0.0.1", 0))
        request.addfinalizer(self.server.close)
        self.source = sources.socket("127.0.0.1", self.server.getsockname()[1])
        self.client = None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        self.client = self.server.accept()[0]

    def write(self, partition, numbers):
        self.client.sendall(b"".join(b"%d\n" % number for number in numbers))


@pytest.fixture(params=[Queues, Generators, Threads, Logs, Kafka, Redis, Tail, Socket])
def system(request):
    return request.param(request)


@pytest.fixture
def reader(system):
    reader = Reader(system.source, JumpyClock())
    yield reader
    reader.processor.interrupt()
    reader.processor.close()
    if isinstance(system, Socket) and system.client is not None:
        system.client.close()


def start(system, reader):
    while isinstance(system, Socket) and system.client is None:
        reader.poll()
    for partition in range(system.partitions):
        system.write(partition, [0])
    reader.poll_until(system.partitions)


def test_events_that_wait_while_the_reader_is_held_up_are_not_late(system, reader):
    start(system, reader)
    # The busy partition first, so that the other one is kept waiting for it, too.
    system.write(0, range(1, MANY + 1))
    if system.partitions > 1:
        system.write(1, range(1, FEW + 1))
    reader.poll_until(MANY + 1 + (FEW + 1) * (system.partitions - 1), held_up_ms=10 * TIMEOUT)
    assert reader.late == []
    assert not reader.is_idle


def test_a_source_that_has_nothing_is_idle_after_the_timeout(system, reader):
    start(system, reader)
    before = reader.clock.monotonic_ns()
    while not reader.is_idle:
        assert reader.clock.monotonic_ns() - before < 1e9 * 600
        reader.poll(held_up_ms=150)
    assert reader.clock.monotonic_ns() - before >= TIMEOUT * 1e6
