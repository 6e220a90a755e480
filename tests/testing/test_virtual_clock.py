"""A clock that jumps when the engine it belongs to is idle."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from jetlet import EmbeddedEngine, Pipeline, service, sinks, sources
from jetlet.core import DAG, Processor, between
from jetlet.errors import InvalidArgumentError
from jetlet.testing import VirtualClock, virtual_clock


class Alarm(Processor):
    """Ends at a time, and notes when it was called."""

    def __init__(self, at_ms, seen, *, announce=False):
        self.at_ms = at_ms
        self.seen = seen
        self.announce = announce

    def complete(self):
        clock = self.context.clock
        if self.announce:
            clock.wake_at(self.at_ms)
        now = clock.time_ms()
        if not self.seen or self.seen[-1] != now:
            self.seen.append(now)
        return now >= self.at_ms


def run(clock, workers, *processors):
    dag = DAG("alarms")
    for i, processor in enumerate(processors):
        dag.new_vertex(f"alarm-{i}", lambda processor=processor: processor, 1)
    with EmbeddedEngine(workers=workers, clock=clock) as engine:
        engine.submit(dag).join(60)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_hour_passes_in_a_moment(workers):
    clock, seen = VirtualClock(step_ms=1000), []
    run(clock, workers, Alarm(3_600_000, seen), Alarm(5000, []), Alarm(0, []))
    assert seen == list(range(0, 3_600_001, 1000))
    assert clock.time_ms() >= 3_600_000
    assert clock.monotonic_ns() == clock.time_ms() * 1_000_000


def test_a_jump_does_not_go_past_what_is_known_to_happen():
    clock, seen = VirtualClock(100, step_ms=60_000), []
    run(clock, 1, Alarm(1234, seen, announce=True))
    assert seen == [100, 1234]


def test_nothing_passes_for_a_worker_without_tasklets(monkeypatch):
    monkeypatch.setattr(virtual_clock, "WAIT", 0.001)
    clock = VirtualClock(50)
    worker = clock.make_idle_strategy()
    worker.park()
    assert clock.time_ms() == 50
    assert repr(clock) == "VirtualClock(time_ms=50)"
    worker.idle(virtual_clock.SETTLING_PASSES - 1)
    assert clock.time_ms() == 50
    worker.idle(virtual_clock.SETTLING_PASSES)
    assert clock.time_ms() == 60


def test_nothing_passes_for_a_worker_that_was_woken():
    clock = VirtualClock()
    worker = clock.make_idle_strategy()
    worker.wake()
    worker.idle(100)
    assert clock.time_ms() == 0
    worker.idle(100)
    assert clock.time_ms() == 10
    assert worker.idle_ns == 0


def test_nothing_passes_while_anything_is_done():
    class Busy(Processor):
        left = 1000

        def complete(self):
            if self.outbox.offer(self.context.clock.time_ms()):
                self.left -= 1
            return self.left == 0

    class Collect(Processor):
        times = set()

        def process(self, ordinal, inbox):
            self.times.update(inbox.take())

    dag, clock = DAG("busy"), VirtualClock()
    dag.edge(between(dag.new_vertex("busy", Busy, 1), dag.new_vertex("collect", Collect, 1)))
    with EmbeddedEngine(workers=1, clock=clock) as engine:
        engine.submit(dag).join(60)
    assert Collect.times == {0}


def test_engines_that_have_ended_are_not_waited_for():
    clock = VirtualClock(step_ms=1000)
    for hour in (1, 2):
        run(clock, 2, Alarm(hour * 3_600_000, []))
    assert clock.time_ms() >= 2 * 3_600_000


def test_steps_are_checked():
    with pytest.raises(InvalidArgumentError, match="step_ms must be at least 1"):
        VirtualClock(step_ms=0)


# --- Coroutines -------------------------------------------------------------------------------


async def an_hour(item):
    await asyncio.sleep(3600)
    return item


async def never(item):
    await asyncio.get_running_loop().create_future()


def fails_at_first(times):
    tries = Counter()

    async def call(item):
        tries[item] += 1
        if tries[item] <= times:
            raise ConnectionError
        return item

    return call


def run_async(clock, fn, **options):
    """Run a stage of coroutines; the results, and the virtual seconds that it took."""
    p, out = Pipeline("async"), sinks.collect()
    p.read_from(sources.items([1, 2, 3])).map_async(fn, **options).write_to(out)
    with EmbeddedEngine(clock=clock) as engine:
        began = clock.monotonic_ns()
        engine.submit(p).join(120)
        return sorted(out.items), (clock.monotonic_ns() - began) / 1e9


def test_coroutines_sleep_by_the_clock():
    items, seconds = run_async(VirtualClock(step_ms=1000), an_hour)
    assert items == [1, 2, 3]
    assert seconds >= 3600


def test_timeouts_of_coroutines_go_by_the_clock():
    items, seconds = run_async(VirtualClock(step_ms=1000), never, timeout=600, on_error="skip")
    assert items == []
    assert seconds >= 600


def test_pauses_between_retries_go_by_the_clock():
    clock = VirtualClock(step_ms=1000)
    items, seconds = run_async(clock, fails_at_first(3), retries=3, backoff=100)
    assert items == [1, 2, 3]
    assert seconds >= 350  # 100, 200 and 400, each from a half of it on


def test_time_stands_still_while_a_coroutine_computes():
    clock = VirtualClock(step_ms=1000)

    async def compute(item):
        began = clock.monotonic_ns()
        sum(range(2_000_000))
        return clock.monotonic_ns() - began

    items, _ = run_async(clock, compute)
    assert items == [0, 0, 0]


def test_coroutines_may_wait_for_connections():
    async def exchange(item):
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"%d\n" % item)
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        server.close()
        return int(line)

    async def answer(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    items, _ = run_async(VirtualClock(), exchange, timeout=3600)
    assert items == [1, 2, 3]


def test_services_of_coroutines_are_on_the_same_loop():
    @asynccontextmanager
    async def clocked():
        await asyncio.sleep(100)
        yield asyncio.get_running_loop()

    async def same(loop, item):
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(100)
        return item

    clock = VirtualClock(step_ms=1000)
    items, _ = run_async(clock, same, service=service(lambda context: clocked()))
    assert items == [1, 2, 3]
    assert clock.monotonic_ns() >= 200e9
