from __future__ import annotations

import os
import sys
from collections import Counter
from functools import wraps

import pytest

from jetlet import (
    EmbeddedEngine,
    JobStatus,
    Pipeline,
    agg,
    running,
    sinks,
    sources,
    whole_item,
)
from jetlet.connectors.files.input import FileSet
from jetlet.core import DAG, Processor, from_
from jetlet.errors import (
    InputNotFoundError,
    InvalidArgumentError,
    InvalidDagError,
    JobFailedError,
    MissingSinkError,
)
from jetlet.execution.plan import ExecutionPlan
from jetlet.planner import planner
from jetlet.running import make_engine, planned_for_spark


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


def test_run_does_not_log_what_it_raises_however_soon_the_job_has_failed(monkeypatch, caplog):
    def join(job, progress):
        assert job._ended.wait(60)
        job.join()

    monkeypatch.setattr(running, "_join", join)
    p = Pipeline("p")
    p.read_from(sources.items([0])).map(lambda n: 1 / n).write_to(sinks.noop())
    with pytest.raises(JobFailedError):
        p.run(on="embedded")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("has_gil", [True, False])
def test_dot_shows_as_many_processors_as_run(monkeypatch, has_gil):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_gil, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    p = Pipeline("p")
    p.read_from(sources.items(range(9))).map_batched(list, name="m").write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        job = engine.submit(p)
        job.join(60)
    ran = len(job.metrics()["m"].processors)
    assert ran == (1 if has_gil else 3)
    assert f'"m" [localParallelism={ran}]' in p.to_dot(on="embedded")
    assert '"m" [localParallelism=1]' in p.to_dot(on="spark")
    assert '"m" [localParallelism=2]' in p.to_dot(on="spark", default_parallelism=2)


def test_unknown_engine_is_refused(pipeline):
    with pytest.raises(InvalidArgumentError, match='"spark" or "embedded", not \'local\''):
        pipeline.to_dot(on="local")
    with pytest.raises(InvalidArgumentError, match='"spark" or "embedded", not \'local\''):
        pipeline.run(on="local")


@pytest.mark.parametrize(
    ("on", "option", "known"), [("embedded", "master", "workers"), ("spark", "clock", "master")]
)
def test_option_of_another_engine_is_refused_with_those_that_there_are(on, option, known):
    with pytest.raises(InvalidArgumentError, match=rf"no option '{option}'.*\b{known}\b"):
        make_engine(on, **{option: 2})


def test_an_invalid_dag_is_refused_when_it_is_submitted():
    dag = DAG()
    a, b = dag.new_vertex("a", Processor), dag.new_vertex("b", Processor)
    dag.edge(from_(a, 1).to(b))
    with EmbeddedEngine() as engine, pytest.raises(InvalidDagError, match="0 is missing"):
        engine.submit(dag)


class Counting:
    """Counts the calls of methods, which do what they did before."""

    def __init__(self, monkeypatch):
        self.calls = Counter()
        self._monkeypatch = monkeypatch

    def watch(self, owner, name):
        original = getattr(owner, name)

        @wraps(original)
        def counted(*args, **kwargs):
            self.calls[f"{owner.__name__}.{name}"] += 1
            return original(*args, **kwargs)

        self._monkeypatch.setattr(owner, name, counted)


def test_a_submission_is_planned_validated_laid_out_and_its_files_listed_once(
    tmp_path, monkeypatch
):
    (tmp_path / "book.txt").write_text("one two\ntwo\n")
    counts = sinks.collect()
    p = Pipeline("word-count")
    (
        p.read_from(sources.text(str(tmp_path / "*.txt")))
        .flat_map(str.split)
        .grouping_key(whole_item)
        .aggregate(agg.counting())
        .write_to(counts)
    )
    counting = Counting(monkeypatch)
    counting.watch(planner, "plan")
    for owner, name in (
        (DAG, "validate"),
        (ExecutionPlan, "__init__"),
        (ExecutionPlan, "prepare"),
        (FileSet, "list"),
    ):
        counting.watch(owner, name)
    p.run(on="embedded")
    assert sorted(counts.items) == [("one", 1), ("two", 2)]
    assert dict(counting.calls) == {
        "jetlet.planner.planner.plan": 1,
        "DAG.validate": 1,
        "ExecutionPlan.__init__": 1,
        "ExecutionPlan.prepare": 1,
        "FileSet.list": 1,
    }


def test_what_was_seen_before_spark_started_is_what_is_read_there_and_seen_again_next_time(
    tmp_path, monkeypatch
):
    (tmp_path / "a.txt").write_text("one\n")
    p = Pipeline("p")
    p.read_from(sources.text(str(tmp_path))).write_to(sinks.noop())
    counting = Counting(monkeypatch)
    counting.watch(FileSet, "list")
    for expected in (1, 2):
        source = planned_for_spark(p).vertices[0].supplier
        source.prepare(4)
        assert counting.calls["FileSet.list"] == expected
        assert len(source.splits) == expected
        (tmp_path / "b.txt").write_text("two\n")
    source.prepare(4)
    assert counting.calls["FileSet.list"] == 3


@pytest.mark.parametrize("on", ["embedded", "spark"])
def test_a_misspelt_path_is_told_before_an_engine_starts(on, monkeypatch):
    monkeypatch.setitem(sys.modules, "jetlet.spark.engine", None)  # importing it would fail
    p = Pipeline("p")
    p.read_from(sources.text("no/such/*.txt")).write_to(sinks.noop())
    with pytest.raises(InputNotFoundError, match="no/such"):
        p.run(on)


def test_pipeline_is_planned_before_an_engine_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "jetlet.spark.engine", None)  # importing it would fail
    p = Pipeline("p")
    p.read_from(sources.items([1]))
    with pytest.raises(MissingSinkError):
        p.run()
