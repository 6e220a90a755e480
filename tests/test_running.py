from __future__ import annotations

import sys

import pytest

from jetlet import JobStatus, Pipeline, sinks, sources
from jetlet.errors import InvalidArgumentError, JobFailedError, MissingSinkError
from jetlet.running import make_engine


@pytest.fixture
def pipeline():
    p = Pipeline("p")
    p.read_from(sources.items([1, 2])).write_to(sinks.noop())
    return p


def test_run_returns_the_job_when_it_has_ended(pipeline):
    job = pipeline.run(on="embedded", workers=2)
    assert job.status is JobStatus.COMPLETED
    assert job.metrics()["noop-sink"].received == 2


def test_run_raises_what_the_job_failed_with():
    p = Pipeline("p")
    p.read_from(sources.items([0])).map(lambda n: 1 / n).write_to(sinks.noop())
    with pytest.raises(JobFailedError, match="ZeroDivisionError"):
        p.run(on="embedded")


def test_unknown_engine_is_refused(pipeline):
    with pytest.raises(InvalidArgumentError, match='"spark" or "embedded", not \'local\''):
        pipeline.run(on="local")


@pytest.mark.parametrize(
    ("on", "option", "known"), [("embedded", "master", "workers"), ("spark", "workers", "master")]
)
def test_option_of_another_engine_is_refused_with_those_that_there_are(on, option, known):
    with pytest.raises(InvalidArgumentError, match=rf"no option '{option}'.*\b{known}\b"):
        make_engine(on, **{option: 2})


def test_pipeline_is_planned_before_an_engine_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "jetlet.spark.engine", None)  # importing it would fail
    p = Pipeline("p")
    p.read_from(sources.items([1]))
    with pytest.raises(MissingSinkError):
        p.run()
