"""Streams whose only worker is held up for longer than the idle timeout."""

from __future__ import annotations

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
