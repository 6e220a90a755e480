"""How many members a job has may change from one attempt to the next."""

from __future__ import annotations

import time

import pytest

from jetlet import EmbeddedEngine, JobConfig, JobStatus, Pipeline, sinks, sources
from jetlet.core import DAG
from jetlet.errors import InvalidArgumentError, JobStateError
from jetlet.jobs.members.layout import Layout
from jetlet.log import Log

PROMPT = 60.0


def counting(directory):
    def count(state, key, item):
        state[0] += 1
        return (key, state[0])

    p, out = Pipeline("counting"), sinks.collect()
    stream = p.read_from(sources.log(directory, serializer="json")).without_timestamps()
    stream.grouping_key(lambda n: n % 5).map_stateful(lambda: [0], count).write_to(out)
    return p, out


class Answers:
    """Places of which there are so many, one answer after the other, then the last one again."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def count(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def rescale(self, members):
        self.answers = [members]


def test_processors_are_counted_and_work_is_planned_when_the_answer_is_new(tmp_path):
    with Log(tmp_path, partitions=3, serializer="json"):
        pass
    dag = counting(tmp_path)[0].plan(default_parallelism=1)
    places = Answers(2, 2, 3)
    planned = []
    source = next(iter(dag)).supplier
    prepare = source.prepare
    source.prepare = lambda total: (planned.append(total), prepare(total))
    layout = Layout(dag, 1, places)
    assert (layout.members, layout.processors["map-stateful"]) == (2, 2)
    layout.settle()
    assert len(planned) == 1
    layout.settle()
    assert (layout.members, layout.processors["map-stateful"]) == (3, 3)
    assert len(planned) == 2


@pytest.mark.cluster
@pytest.mark.slow
def test_a_job_goes_on_exactly_with_another_number_of_members(tmp_path):
    config = JobConfig(
        processing_guarantee="exactly-once", snapshot_interval=0.1, snapshot_dir=tmp_path / "state"
    )
    pipeline, out = counting(tmp_path / "log")
    with (
        Log(tmp_path / "log", partitions=3, serializer="json") as log,
        EmbeddedEngine(members=2) as engine,
    ):
        job = engine.submit(pipeline, config)

        def wait_until(condition):
            deadline = time.monotonic() + PROMPT
            while not condition():
                assert not job.status.is_final, job.error
                assert time.monotonic() < deadline
                time.sleep(0.01)

        for round, members in enumerate([3, 1, 2], 1):
            log.append(range(round * 100 - 100, round * 100))
            wait_until(lambda: len(out.items) >= 100 * round)  # noqa: B023
            job.rescale(members)
            wait_until(lambda: members_of(job) == members)  # noqa: B023
        job.suspend()
        job.rescale(3)
        assert job.status is JobStatus.SUSPENDED
        job.resume()
        wait_until(lambda: members_of(job) == 3)
        job.cancel()
    assert sorted(out.items) == [(key, n) for key in range(5) for n in range(1, 61)]


def members_of(job):
    return len({worker["member"] for worker in job.metrics().workers})


@pytest.mark.parametrize(
    ("members", "config", "reason"),
    [
        (1, {"snapshot_dir": "state"}, r"write EmbeddedEngine\(members=2\), or more"),
        (1, {}, "takes no snapshots, so it is not possible to rescale it"),
    ],
    ids=["in this process", "without snapshots"],
)
def test_what_cannot_be_rescaled_says_why_and_goes_on(
    tmp_path, monkeypatch, members, config, reason
):
    monkeypatch.chdir(tmp_path)
    with (
        Log(tmp_path / "log", partitions=1, serializer="json"),
        EmbeddedEngine(members=members) as engine,
    ):
        job = engine.submit(counting(tmp_path / "log")[0], JobConfig(**config))
        with pytest.raises(JobStateError, match=reason):
            job.rescale(3)
        assert not job.status.is_final
        job.cancel()


@pytest.mark.parametrize("members", [0, -1, 1.5, "2"])
def test_a_number_of_members_is_a_number(tmp_path, members):
    layout = Layout(DAG("empty"), 1, Answers(2))
    with pytest.raises(InvalidArgumentError, match="rescale: members"):
        layout.rescale(members)
