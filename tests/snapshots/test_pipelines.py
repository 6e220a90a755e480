"""Every stage with state, in jobs that fail again and again and go on with other parallelism.

A job that fails so that a restart may cure it is restarted by the engine. One that fails for good
leaves its last snapshot, and another job goes on from there with more or fewer processors. What is
in the files at the end is what a job gives that nobody disturbs.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter

import pytest

from jetlet import (
    EmbeddedEngine,
    JobConfig,
    JobStatus,
    KeyedProcess,
    Pipeline,
    agg,
    sinks,
    sources,
    windows,
)
from jetlet.core import Processor, State, Traits
from jetlet.errors import JobFailedError, RestartableError
from jetlet.tasks import stores
from jetlet.testing import END, Timed, pause, scripted_stream

pytestmark = pytest.mark.usefixtures("no_thread_left")

PROMPT = 60.0
COUNT = 8_000
KEYS = 50


class Sabotage:
    """Lets one of the processors fail, at the first item after some snapshots; shared by all.

    None of them ends before one has failed.
    """

    def __init__(self, seed):
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self.failures = 0
        self._saves = 0
        self._due = self._rng.randint(1, 4)

    def saved(self):
        with self._lock:
            self._saves += 1

    def check(self):
        with self._lock:
            if self._saves < self._due or self.failures == 8:
                return
            self.failures += 1
            self._saves = 0
            self._due = self._rng.randint(1, 4)
            is_final = self.failures % 2 == 0
        if is_final:
            raise ValueError("sabotage, for good")
        raise RestartableError("sabotage")


class Saboteur(Processor):
    """Passes everything on, as long as it is let."""

    traits = Traits(state=State.NONE, handles_times=True)

    def __init__(self, sabotage):
        self._sabotage = sabotage

    def process(self, ordinal, inbox):
        self._sabotage.check()
        if self.outbox.offer_batch(list(inbox.items())):
            inbox.clear()

    def complete(self):
        self._sabotage.check()
        return self._sabotage.failures > 0

    def save_to_snapshot(self):
        self._sabotage.saved()
        return True


def numbers(p):
    """They take their time, so that there is something to be disturbed."""

    def read(split):
        for start in range(0, COUNT // 4, 100):
            time.sleep(0.0005)
            yield range(split, COUNT, 4)[start : start + 100]

    return p.read_from(sources.batch("numbers", read, splits=range(4), batched=True))


def apart(p):
    """The same, by functions that say that they wait, item by item."""

    def read(split):
        for number in range(split, COUNT, 4):
            if number % 400 == split:
                time.sleep(0.0005)
            yield number

    return p.read_from(sources.batch("numbers", read, splits=range(4), blocking=True))


def events(p):
    rng = random.Random(3)
    scripts = []
    for part in range(4):
        script = []
        for number in range(part, COUNT, 4):
            script.append(Timed(number, (rng.randrange(KEYS), number)))
            if len(script) % 100 == 0:
                script.append(pause(2))
        scripts.append([*script, END])
    return p.read_from(scripted_stream(*scripts)).with_native_timestamps(0)


def key_of(item):
    return item[0]


def count_up(state, key, item):
    state.append(item)
    return (key, len(state))


async def double(item):
    await asyncio.sleep(0)
    return 2 * item


async def bit_by_bit(item):
    """A few results of most items, and a lot of some, which come in several parts."""
    for number in range(3000 if item % 1000 == 7 else 2):
        if number % 500 == 0:
            await asyncio.sleep(0)
        yield item, number


def lazily(item):
    yield from ((item, number) for number in range(3000 if item % 1000 == 7 else 2))


async def double_of_key(key, item):
    return await double(item)


class CountingTask:
    def init(self, context):
        self.store = context.store("seen")

    def process(self, envelope, collector, coordinator):
        remainder = envelope.message % KEYS
        self.store.put(remainder, self.store.get(remainder, 0) + 1)
        collector.send("out", (remainder, self.store.get(remainder)))


def modulo(item):
    return item % KEYS


class Reminders(KeyedProcess):
    """A timer for each item, and one by the clock for all that has come meanwhile."""

    def create(self):
        return []

    def on_item(self, ctx, state, item):
        if isinstance(item, tuple):
            ctx.set_timer(str(item), ctx.time + 30)
        state.append(item)
        ctx.set_timer("flush", ctx.now + 1, processing_time=True)

    def on_timer(self, ctx, state, timer):
        if timer.is_processing_time:
            self.on_end(ctx, state)
        else:
            ctx.emit(f"{timer.name} at {timer.time}")

    def on_end(self, ctx, state):
        for item in state:
            ctx.emit(item)
        state.clear()


SUM = agg.all_of(agg.counting(), agg.summing(lambda item: item[1]))

BOUNDED = {
    "map": lambda p, stage: stage.map(lambda item: item + 1),
    "distinct": lambda p, stage: stage.map(lambda item: item % 997).distinct(),
    "map-stateful": lambda p, stage: stage.grouping_key(modulo).map_stateful(list, count_up),
    "map-stateful that ends": lambda p, stage: stage.grouping_key(modulo).map_stateful(
        list,
        count_up,
        drop_when=lambda state: len(state) == 9,
        on_end=lambda state, key: (key, -len(state)),
    ),
    "rolling": lambda p, stage: stage.grouping_key(modulo).rolling_aggregate(agg.counting()),
    "process": lambda p, stage: stage.grouping_key(modulo).process(Reminders),
    "aggregate": lambda p, stage: stage.grouping_key(modulo).aggregate(agg.summing()),
    "aggregate-all": lambda p, stage: stage.aggregate(agg.averaging()),
    "hash-join": lambda p, stage: stage.hash_join(
        p.read_from(sources.items([(k, f"#{k}") for k in range(0, KEYS, 2)])),
        modulo,
        key_of,
    ),
    "sort": lambda p, stage: stage.map(lambda item: (item * 7919) % COUNT).sort(),
    "take": lambda p, stage: stage.map(lambda item: 1).take(COUNT // 2),
    "map-async": lambda p, stage: stage.map_async(double),
    "flat-map-async": lambda p, stage: stage.flat_map_async(bit_by_bit),
    "flat-map-async, unordered": lambda p, stage: stage.flat_map_async(bit_by_bit, ordered=False),
    "flat-map-async, repeated": lambda p, stage: stage.flat_map_async(bit_by_bit, retries=1),
    "flat-map, long": lambda p, stage: stage.flat_map(lazily),
    "map-async by key": lambda p, stage: stage.grouping_key(modulo).map_async(double_of_key),
    "map-batched": lambda p, stage: stage.map_batched(lambda items: [i + 1 for i in items], 100),
    "task": lambda p, stage: stage.process_with(
        CountingTask, stores={"seen": stores.in_memory(key=int, value=int)}, local_parallelism=1
    ),
}

TIMED = {
    "tumbling": lambda p, stage: (
        stage.grouping_key(key_of).window(windows.tumbling(50)).aggregate(SUM)
    ),
    "sliding": lambda p, stage: (
        stage.grouping_key(key_of).window(windows.sliding(200, 40)).aggregate(SUM)
    ),
    "sliding, no deduct": lambda p, stage: (
        stage.grouping_key(key_of)
        .window(windows.sliding(200, 40))
        .aggregate(agg.max_by(lambda item: item[1]))
    ),
    "sliding, no keys": lambda p, stage: stage.window(windows.sliding(200, 40)).aggregate(SUM),
    "session": lambda p, stage: (
        stage.grouping_key(key_of).window(windows.session(60)).aggregate(SUM)
    ),
    "cumulative": lambda p, stage: (
        stage.grouping_key(key_of)
        .window(windows.cumulative(200, 40, offset=15))
        .aggregate(agg.max_by(lambda item: item[1]))
    ),
    "limited session": lambda p, stage: (
        stage.grouping_key(key_of).window(windows.session(60, max_length=150)).aggregate(SUM)
    ),
    "with lateness": lambda p, stage: (
        stage.grouping_key(key_of)
        .window(windows.sliding(200, 40).allow_lateness(100))
        .aggregate(SUM)
    ),
    "map-stateful with ttl": lambda p, stage: stage.grouping_key(key_of).map_stateful(
        list,
        count_up,
        drop_when=lambda state: len(state) == 9,
        ttl=COUNT // 4,
        on_evict=lambda state, key, time: (key, -len(state)),
    ),
    "process": lambda p, stage: stage.grouping_key(key_of).process(Reminders),
    "interval-join": lambda p, stage: stage.grouping_key(key_of).interval_join(
        events(p).grouping_key(key_of), -20, 20
    ),
}


def pipeline(read, build, directory, sabotage):
    p = Pipeline("p")
    stage = read(p).custom_transform(lambda: Saboteur(sabotage), name="before")
    stage = build(p, stage).custom_transform(lambda: Saboteur(sabotage), name="behind")
    stage.write_to(sinks.json_lines(directory))
    return p


def written(directory):
    return Counter(
        line for file in directory.glob("*.jsonl") for line in file.read_text().splitlines()
    )


def run(p, config, parallelism):
    with EmbeddedEngine() as engine:
        job = engine.submit(p, JobConfig(default_parallelism=parallelism, **config))
        try:
            job.join(PROMPT)
        except JobFailedError:
            return job.status
    return job.status


@pytest.mark.parametrize(
    ("read", "build"),
    [
        *(pytest.param(numbers, build, id=name) for name, build in BOUNDED.items()),
        pytest.param(apart, BOUNDED["map"], id="map, source apart"),
        *(pytest.param(events, build, id=f"{name}, timed") for name, build in TIMED.items()),
    ],
)
def test_nothing_is_lost_and_nothing_comes_twice(read, build, tmp_path):
    class Nobody:
        failures = 1

        def check(self):
            pass

        saved = check

    expected_dir, out = tmp_path / "expected", tmp_path / "out"
    assert run(pipeline(read, build, expected_dir, Nobody()), {}, 2) is JobStatus.COMPLETED

    sabotage = Sabotage(seed=1)
    config = {
        "processing_guarantee": "exactly-once",
        "snapshot_dir": str(tmp_path / "state"),
        "snapshot_interval": 0.002,
        "restart_pause": 0.001,
    }
    parallelisms = iter([2, 3, 1, 2, 4, 3])
    while run(pipeline(read, build, out, sabotage), config, next(parallelisms)) is JobStatus.FAILED:
        pass
    assert written(out) == written(expected_dir)
