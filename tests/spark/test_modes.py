"""Which way Spark runs a pipeline, and why; without Spark."""

from __future__ import annotations

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.errors import InvalidArgumentError, UnsupportedFeatureError
from jetlet.spark import mode


def bounded():
    p = Pipeline("bounded")
    p.read_from(sources.items([1])).write_to(sinks.noop())
    return p.plan(default_parallelism=1)


def stream():
    p = Pipeline("stream")
    p.read_from(sources.item_stream(10, name="ticks")).without_timestamps().write_to(sinks.noop())
    return p.plan(default_parallelism=1)


@pytest.mark.parametrize(
    ("dag", "streaming", "kind", "reason"),
    [
        (bounded(), None, "batch", "all that it reads comes to an end"),
        (bounded(), "members", "members", "streaming='members' says so"),
        (stream(), None, "members", "'ticks' is a stream"),
        (stream(), "members", "members", "'ticks' is a stream"),
    ],
)
def test_the_way_and_the_reason(dag, streaming, kind, reason):
    found = mode(dag, JobConfig(streaming=streaming))
    assert (found.kind, found.reason) == (kind, reason)
    assert found.is_batch is (kind == "batch")


def test_micro_batches_are_for_streams_that_spark_reads():
    with pytest.raises(UnsupportedFeatureError, match="'ticks' is none: write streaming='members'"):
        mode(stream(), JobConfig(streaming="micro-batch"))
    with pytest.raises(UnsupportedFeatureError, match="spark_stream"):
        mode(bounded(), JobConfig(streaming="micro-batch"))


def test_there_are_two_ways_for_streams():
    with pytest.raises(InvalidArgumentError, match="'members' or 'micro-batch', not 'batch'"):
        JobConfig(streaming="batch")


def test_the_embedded_engine_has_members_only():
    p = Pipeline("p")
    p.read_from(sources.items([1])).write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        with pytest.raises(InvalidArgumentError, match="is for SparkEngine"):
            engine.submit(p, JobConfig(streaming="micro-batch"))
        engine.submit(p, JobConfig(streaming="members")).join(60)
