"""Streams whose only worker is held up for longer than the idle timeout."""

from __future__ import annotations

import asyncio

import pytest

from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, whole_item, windows
from jetlet.testing import VirtualClock

PARTITIONS = 3
EVENTS = 5000
"""Of each partition: more than a reader takes at a time."""
STALL_MS = 65_000


class StallingClock(VirtualClock):
    def stall(self):
        """The worker that calls this does nothing else for a while."""
        with self._condition:
            self._now_ns += STALL_MS * 1_000_000


def fill(events, buffer):
    buffer.add_all(events[: buffer.room])
    del events[: buffer.room]
    if not events:
        buffer.close()


@pytest.mark.parametrize("timeout", [2000, 60_000])
def test_no_event_is_late_because_of_a_stall(timeout):
    clock = StallingClock()

    def slow(time):
        if time % 500 == 0:
            clock.stall()
        return time

    # All is there from the start, and some partitions are ahead of others.
    stream = sources.stream(
        "waiting",
        create=lambda context: list(
            range(0, EVENTS * 10**context.partition, 10**context.partition)
        ),
        fill=fill,
        partitions=PARTITIONS,
    )
    p, out = Pipeline("stalls"), sinks.collect()
    stage = p.read_from(stream).with_timestamps(whole_item, 0, idle_timeout=timeout).map(slow)
    stage.window(windows.tumbling(100)).aggregate(agg.counting()).write_to(out)
    with EmbeddedEngine(workers=1, clock=clock) as engine:
        engine.submit(p).join(60)
    assert sum(window.result for window in out.items) == PARTITIONS * EVENTS


HOLDERS = {
    "coroutine": lambda s, hold: s.map_async(hold, max_concurrency=1, local_parallelism=2),
    "generator": lambda s, hold: s.flat_map_async(
        _in_a_list(hold), max_concurrency=1, local_parallelism=2
    ),
    "farther away": lambda s, hold: (
        s.map_async(hold, max_concurrency=1, local_parallelism=2)
        .map(whole_item, local_parallelism=2)
        .map_batched(list, local_parallelism=2)
    ),
}


def _in_a_list(fn):
    async def give(item):
        yield await fn(item)

    return give


@pytest.mark.parametrize("holder", HOLDERS)
def test_no_event_is_late_because_a_stage_before_its_timestamp_holds_it(holder):
    """One of two partitions is held up for longer than the idle timeout; the other one goes on."""
    clock = VirtualClock()
    start = clock.time_ms()

    async def hold(item):
        if item == ("held", 5):
            await asyncio.sleep((start + STALL_MS - clock.time_ms()) / 1000)
        return item

    def fill(state, buffer):
        partition, number = state
        last = 10 if partition == "held" else 80
        while number < last and clock.time_ms() >= start + 1000 * number:
            buffer.add((partition, number))
            number += 1
        if number == last:
            buffer.close()
        state[1] = number

    stream = sources.stream(
        "two",
        create=lambda context: [context.partition, 0],
        fill=fill,
        partitions=["held", "free"],
        local_parallelism=2,
    )
    # Else the stages between would mix the partitions.
    p, out = Pipeline("held", preserve_order=True), sinks.collect()
    stage = HOLDERS[holder](p.read_from(stream).without_timestamps(), hold)
    timed = stage.add_timestamps(
        lambda item: 1000 * item[1], 0, idle_timeout=2000, local_parallelism=2
    )
    timed.window(windows.tumbling(1000)).aggregate(agg.counting()).write_to(out)
    with EmbeddedEngine(workers=1, clock=clock) as engine:
        job = engine.submit(p)
        job.join(60)
    assert sum(window.result for window in out.items) == 90
