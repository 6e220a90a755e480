from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, sources, whole_item
from jetlet.errors import InvalidArgumentError
from jetlet.metrics.latency import Latency


@given(st.lists(st.integers(0, 10**7), min_size=1), st.floats(0, 1))
def test_percentiles_are_exact_to_some_four_per_cent(times, share):
    latency = Latency()
    for time in times:
        latency.add(time)
    ordered = sorted(times)
    exact = next(t for i, t in enumerate(ordered, 1) if i >= share * len(times) - 1e-9)

    assert latency.total == len(times)
    assert exact <= latency.at(share) <= exact * 1.045 + 1


def test_without_markers_there_is_no_latency():
    assert Latency().at(0.5) == 0


def counted(count):
    p = Pipeline("marked")
    out = sinks.collect()
    source = p.read_from(sources.batch("numbers", lambda context: iter(range(count))))
    source.rebalance().map(lambda n: n % 7, name="mod").grouping_key(whole_item).rolling_aggregate(
        agg.counting()
    ).write_to(out)
    source.rebalance().write_to(sinks.noop(name="other"))
    return p, out


@pytest.mark.parametrize("members", [1, pytest.param(2, marks=pytest.mark.cluster)])
def test_markers_come_to_all_sinks_and_change_nothing(members, tmp_path):
    p, out = counted(20_000)
    config = JobConfig(latency_markers=1e-6, default_parallelism=2)
    with EmbeddedEngine(members=members) as engine:
        job = engine.submit(p, config)
        job.join()
        metrics = job.metrics()

    assert len(out.items) == 20_000
    assert max(count for _, count in out.items) == 2858
    sent = {name: metrics[name].latency.total for name in metrics}
    assert sent["collect-sink"] == sent["other"] > 0
    assert sent["numbers"] == sent["mod"] == 0
    assert metrics["numbers"].emitted == 40_000


def test_markers_are_off_unless_asked_for():
    p, _ = counted(100)
    with EmbeddedEngine() as engine:
        job = engine.submit(p)
        job.join()
    assert not any(vertex.latency.counts for vertex in job.metrics().values())


def test_markers_pass_snapshots(tmp_path):
    p, out = counted(20_000)
    config = JobConfig(
        latency_markers=1e-6,
        processing_guarantee="exactly-once",
        snapshot_dir=tmp_path,
        snapshot_interval=0.01,
    )
    with EmbeddedEngine() as engine:
        job = engine.submit(p, config)
        job.join()
    assert len(out.items) == 20_000
    assert job.metrics()["collect-sink"].latency.total > 0


def test_a_period_is_positive():
    with pytest.raises(InvalidArgumentError, match="latency_markers"):
        JobConfig(latency_markers=0)
