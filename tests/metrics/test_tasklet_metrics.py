"""Event time in the metrics of a processor, from the processor to the job."""

from __future__ import annotations

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, windows
from jetlet.core.items import IDLE_TIMESTAMP, Watermark
from jetlet.metrics.job_metrics import JobMetrics
from jetlet.metrics.tasklet_metrics import TaskletMetrics
from jetlet.testing import (
    Timed,
    VirtualClock,
    assert_collected_eventually,
    pause,
    scripted_stream,
)


class Clock:
    now = 1000

    def time_ms(self) -> int:
        return self.now

    def monotonic_ns(self) -> int:
        return self.now * 1_000_000


def of(*metrics):
    return JobMetrics(("v", each.snapshot()) for each in metrics)["v"]


def test_lag_is_by_how_much_event_time_is_behind_the_clock():
    clock = Clock()
    metrics = TaskletMetrics("v", 0, clock=clock)
    assert metrics.snapshot()["watermark_lag"] is None
    metrics.advance(Watermark(980))
    assert metrics.snapshot()["watermark_lag"] == 20
    clock.now += 5
    assert metrics.snapshot()["watermark_lag"] == 25
    metrics.advance(Watermark(2000))
    assert metrics.snapshot()["watermark_lag"] == -995


def test_idle_input_does_not_lag():
    metrics = TaskletMetrics("v", 0, clock=Clock())
    metrics.advance(Watermark(980))
    metrics.advance(Watermark(IDLE_TIMESTAMP))
    assert metrics.snapshot()["watermark"] == 980
    assert metrics.snapshot()["watermark_lag"] is None
    metrics.advance(Watermark(990))
    assert metrics.snapshot()["watermark_lag"] == 10


def test_each_partition_of_a_source_says_how_far_event_time_is():
    first = [Timed(40, "a"), pause(1000), Timed(2000, "b"), pause(10**9)]
    p, out = Pipeline("p"), sinks.collect()
    source = p.read_from(
        scripted_stream(first, [Timed(1007, "c"), pause(10**9)]), local_parallelism=1
    )
    source.with_native_timestamps(0, idle_timeout=500).write_to(out)
    clock = VirtualClock()
    with EmbeddedEngine(clock=clock) as engine:
        job = engine.submit(p)
        assert_collected_eventually(job, out, ["a", "b", "c"])
        (row,) = job.metrics()["scripted-stream"].processors
        ahead, behind = row["partitions"]
    assert (ahead["name"], ahead["watermark"]) == ("0", 2000)
    assert behind == {"name": "1", "watermark": 1000, "watermark_lag": None, "is_idle": True}


def test_vertex_lags_as_its_slowest_processor_does():
    clock = Clock()
    slow, fast, idle, unused = (TaskletMetrics("v", i, clock=clock) for i in range(4))
    slow.advance(Watermark(900))
    fast.advance(Watermark(990))
    idle.advance(Watermark(10))
    idle.advance(Watermark(IDLE_TIMESTAMP))
    assert of(slow, fast, idle, unused).watermark_lag == 100
    assert of(idle, unused).watermark_lag is None
    assert of(idle, unused).watermark == 10


@pytest.mark.parametrize("workers", [1, 2])
def test_every_vertex_of_a_stream_says_how_far_event_time_is(workers):
    p, out = Pipeline("p"), sinks.collect()
    stream = scripted_stream([Timed(n, n) for n in range(35)] + [pause(100), Timed(60, 60)])
    stage = p.read_from(stream).with_native_timestamps(3).map(abs, name="map")
    stage.window(windows.tumbling(10)).aggregate(agg.counting(), name="w").write_to(out)
    clock = VirtualClock()
    with EmbeddedEngine(workers=workers, clock=clock) as engine:
        job = engine.submit(p, JobConfig(default_parallelism=workers))
        assert_collected_eventually(job, out, lambda items: len(items) == 4)
        metrics = job.metrics()
        # The lag is told by the clock of the job, and of the source by what it has emitted.
        for vertex in metrics.values():
            assert vertex.watermark == 50
            assert vertex.watermark_lag <= clock.time_ms() - 50
            assert vertex.watermark_lag >= 100 - 50
