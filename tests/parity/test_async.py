"""Coroutines per item, on every engine."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jetlet import Pipeline, agg, service, shared_service, sinks, sources, windows
from jetlet.errors import JobFailedError

NUMBERS = range(500)


def bag(items):
    return sorted(map(repr, items))


async def negate(x):
    # Later items overtake earlier ones.
    await asyncio.sleep(0.0002 * (x % 7))
    return -x


async def spread(x):
    await asyncio.sleep(0)
    return [x] * (x % 3)


async def generate(x):
    for _ in range(x % 3):
        await asyncio.sleep(0)
        yield x


async def hang_on_multiples_of_50(x):
    if x % 50 == 0:
        await asyncio.sleep(60)
    return x


def one_partition(numbers):
    """A source whose items are in one order."""
    return sources.batch("one", lambda split: iter(numbers), splits=[0])


def test_results_of_coroutines_in_order_and_as_they_come(engine):
    p = Pipeline("async", preserve_order=True)
    numbers = p.read_from(one_partition(NUMBERS))
    ordered, few, flat, generated = (sinks.collect() for _ in range(4))
    numbers.map_async(negate).write_to(ordered)
    numbers.map_async(negate, max_concurrency=3, name="three at a time").write_to(few)
    numbers.flat_map_async(spread).write_to(flat)
    numbers.flat_map_async(generate, max_concurrency=20, local_parallelism=2).write_to(generated)
    unordered = Pipeline("unordered")
    any_order, flat_any_order = sinks.collect(), sinks.collect()
    given = unordered.read_from(sources.items(NUMBERS))
    given.map_async(negate, ordered=False, max_concurrency=50).write_to(any_order)
    given.flat_map_async(spread, ordered=False).write_to(flat_any_order)

    engine.run(p)
    engine.run(unordered)

    repeated = [x for x in NUMBERS for _ in range(x % 3)]
    assert ordered.items == few.items == [-x for x in NUMBERS]
    assert flat.items == generated.items == repeated
    assert bag(any_order.items) == bag(-x for x in NUMBERS)
    assert bag(flat_any_order.items) == bag(repeated)


def test_timeouts_and_retries(engine):
    attempts = {}  # of the process that runs the coroutines

    async def fail_twice(x):
        attempts[x] = attempts.get(x, 0) + 1
        if attempts[x] < 3:
            raise ConnectionError("try again")
        return x

    p = Pipeline("retries")
    numbers = p.read_from(sources.items(NUMBERS))
    retried, late, letters = sinks.collect(), sinks.collect(), sinks.collect()
    numbers.map_async(fail_twice, retries=2, backoff=0.0001).write_to(retried)
    numbers.map_async(hang_on_multiples_of_50, timeout=0.05, on_error=letters).write_to(late)

    engine.run(p)

    assert bag(retried.items) == bag(NUMBERS)
    assert bag(late.items) == bag(x for x in NUMBERS if x % 50)
    assert sorted(letter.item for letter in letters.items) == list(range(0, 500, 50))
    assert {letter.error_type for letter in letters.items} == {"TimeoutError"}


def test_timeout_fails_the_job_by_default(engine):
    p = Pipeline("late")
    p.read_from(sources.items([7])).map_async(lambda x: asyncio.sleep(60), timeout=0.01).write_to(
        sinks.collect()
    )

    with pytest.raises(JobFailedError) as caught:
        engine.run(p)

    assert caught.value.item == "7"
    assert isinstance(caught.value.__cause__, TimeoutError)


class Client:
    """Belongs to the loop that it was made on, and is of use while it is open."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.is_open = False

    async def __aenter__(self):
        self.is_open = True
        return self

    async def __aexit__(self, *error):
        self.is_open = False

    async def negate(self, x):
        await asyncio.sleep(0)
        assert self.is_open
        assert asyncio.get_running_loop() is self.loop
        return -x


async def ask(client, x):
    return await client.negate(x)


async def ask_twice(client, x):
    return [await client.negate(x), await client.negate(x)]


async def connect(context):
    return Client()


def test_services_for_coroutines(engine):
    p = Pipeline("async services", preserve_order=True)
    numbers = p.read_from(one_partition(NUMBERS))
    own, shared, flat = (sinks.collect() for _ in range(3))
    numbers.map_async(ask, service=service(lambda context: Client())).write_to(own)
    numbers.map_async(ask, service=shared_service(connect), name="shared").write_to(shared)
    numbers.flat_map_async(ask_twice, service=shared_service(connect)).write_to(flat)

    engine.run(p)  # twice: what the first run leaves behind would be in the way of the second
    engine.run(p)

    assert own.items == shared.items == [-x for x in NUMBERS]
    assert flat.items == [-x for x in NUMBERS for _ in range(2)]


def test_function_that_waits_has_threads_of_its_own(engine):
    def wait_for_three(x):
        meeting.wait(60)  # breaks unless three are there at a time
        return x, threading.current_thread().name.startswith("jetlet-")

    meeting = Meeting(3)
    p = Pipeline("blocking", preserve_order=True)
    out, one = sinks.collect(), sinks.collect()
    numbers = p.read_from(one_partition(range(30)))
    numbers.map(wait_for_three, blocking=True, threads=3).write_to(out)
    numbers.map(lambda x: -x, blocking=True, name="one").write_to(one)

    engine.run(p)

    assert out.items == [(x, True) for x in range(30)]
    assert one.items == [-x for x in range(30)]


class Meeting:
    """A barrier that travels: each process has its own."""

    def __init__(self, count):
        self.count = count
        self.barrier = threading.Barrier(count)

    def __reduce__(self):
        return Meeting, (self.count,)

    def wait(self, timeout):
        self.barrier.wait(timeout)


UNDER_WAY = {}


async def in_turn(factor, key, x):
    """Fails if another item of the key is under way, and gives what number of the key it is."""
    assert key not in UNDER_WAY
    UNDER_WAY[key] = x
    await asyncio.sleep(0.0003 * (x % 5))
    assert UNDER_WAY.pop(key) == x
    return (key, factor * x)


def test_items_of_a_key_are_dealt_with_in_turn(engine):
    UNDER_WAY.clear()
    p, out, timed = Pipeline("in-turn"), sinks.collect(), sinks.collect(name="timed")
    numbers = p.read_from(one_partition(range(300)))
    ten = service(lambda context: 10)
    numbers.grouping_key(lambda x: x % 7).map_async(
        in_turn, service=ten, ordered=False, local_parallelism=2
    ).write_to(out)
    events = numbers.add_timestamps(lambda x: x).grouping_key(lambda x: x % 3)
    doubled = events.map_async(double_by_key, max_concurrency=20)
    doubled.window(windows.tumbling(100)).aggregate(agg.summing()).write_to(timed)

    engine.run(p)

    for key in range(7):
        assert [y for k, y in out.items if k == key] == [10 * x for x in range(key, 300, 7)]
    assert len(out.items) == 300
    assert {w.start: w.result for w in timed.items} == {
        start: 2 * sum(range(start, start + 100)) for start in (0, 100, 200)
    }


async def double_by_key(key, x):
    assert x % 3 == key
    return 2 * x
