"""Where a computation begins, and how it is run."""

from __future__ import annotations

import pytest

from jetlet import JobStatus, Pipeline, sinks, sources
from jetlet.errors import (
    InvalidArgumentError,
    JobFailedError,
    MissingSinkError,
    UnsupportedFeatureError,
)


def ready(name="p"):
    p = Pipeline(name)
    out = sinks.collect()
    p.read_from(sources.items([1, 2, 3])).map(lambda x: 6 // x).write_to(out)
    return p, out


@pytest.mark.parametrize("name", ["", 5, None])
def test_name_must_be_text(name):
    with pytest.raises(InvalidArgumentError, match='Pipeline\\("word-count"\\)'):
        Pipeline(name)


def test_steps_are_listed_in_order():
    p, _ = ready()

    assert [t.name for t in p.transforms] == ["items-source", "map", "collect-sink"]
    assert repr(p) == "Pipeline('p', 3 steps)"
    assert Pipeline().name == "pipeline"


@pytest.mark.parametrize("wrong", [[1, 2], "books/*.txt", sinks.collect(), None])
def test_what_is_not_a_source_is_refused(wrong):
    with pytest.raises(InvalidArgumentError, match=r"sources\.text\(\.\.\.\)"):
        Pipeline("p").read_from(wrong)


def test_source_is_named_and_may_be_parallel():
    p = Pipeline("p")
    p.read_from(sources.items([1]), name="mine", local_parallelism=3)

    assert (p.transforms[0].name, p.transforms[0].local_parallelism) == ("mine", 3)
    with pytest.raises(InvalidArgumentError, match="whole number from 1 on"):
        p.read_from(sources.items([1]), local_parallelism=0)
    with pytest.raises(InvalidArgumentError, match='name="parse"'):
        p.read_from(sources.items([1]), name=7)


def test_run_waits_and_returns_the_job():
    p, out = ready("runs")

    job = p.run(on="embedded", workers=2)

    assert job.status is JobStatus.COMPLETED
    assert job.name == "runs"
    assert sorted(out.items) == [2, 3, 6]


def test_run_raises_what_the_job_raises():
    p = Pipeline("fails")
    p.read_from(sources.items([0])).map(lambda x: 1 // x).write_to(sinks.collect())

    with pytest.raises(JobFailedError, match="'fails' failed in vertex 'map' on item 0: ZeroDiv"):
        p.run(on="embedded")


def test_unknown_engine_is_refused():
    p, _ = ready()

    with pytest.raises(InvalidArgumentError, match='"spark" or "embedded"'):
        p.run(on="flink")


def test_what_an_engine_cannot_do_is_refused_before_it_runs():
    p = Pipeline("needs-spark")
    p.read_from(sources.spark(lambda spark: spark.range(3))).write_to(sinks.collect())

    with pytest.raises(UnsupportedFeatureError) as caught:
        p.run(on="embedded")

    assert "p.run()" in str(caught.value)


def test_unfinished_pipeline_is_refused_before_an_engine_starts():
    p = Pipeline("unfinished")
    p.read_from(sources.items([1]))

    with pytest.raises(MissingSinkError):
        p.run(on="embedded")


def test_pipeline_can_be_planned_and_run_again_after_it_has_grown():
    p, out = ready()
    p.run(on="embedded")
    more = sinks.collect()
    p.read_from(sources.items(["abc"])).write_to(more)
    p.run(on="embedded")

    assert sorted(out.items) == [2, 3, 6]
    assert more.items == ["abc"]
