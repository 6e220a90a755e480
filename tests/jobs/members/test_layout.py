"""How many members a job has may change from one attempt to the next."""

from __future__ import annotations

import time

import pytest

from jetlet import JobConfig, JobStatus, Pipeline, sinks, sources
from jetlet.core.clock import SYSTEM_CLOCK
from jetlet.execution.tuning import Tuning
from jetlet.jobs.job import Job
from jetlet.jobs.members.launcher import ProcessLauncher
from jetlet.jobs.members.layout import Layout
from jetlet.jobs.members.runner import MembersRunner
from jetlet.log import Log
from jetlet.snapshots.job_snapshots import JobSnapshots

PROMPT = 60.0


def counting(directory):
    def count(state, key, item):
        state[0] += 1
        return (key, state[0])

    p, out = Pipeline("counting"), sinks.collect()
    stream = p.read_from(sources.log(directory, serializer="json")).without_timestamps()
    stream.grouping_key(lambda n: n % 5).map_stateful(lambda: [0], count).write_to(out)
    return p.plan(default_parallelism=1), out


def test_processors_are_counted_and_work_is_planned_when_the_answer_is_new(tmp_path):
    with Log(tmp_path, partitions=3, serializer="json"):
        pass
    dag, _ = counting(tmp_path)
    answers = iter([2, 2, 3])
    planned = []
    source = next(iter(dag)).supplier
    prepare = source.prepare
    source.prepare = lambda total: (planned.append(total), prepare(total))
    layout = Layout(dag, 1, lambda: next(answers))
    assert (layout.members, layout.processors["map-stateful"]) == (2, 2)
    layout.settle()
    assert len(planned) == 1
    layout.settle()
    assert (layout.members, layout.processors["map-stateful"]) == (3, 3)
    assert len(planned) == 2


@pytest.mark.cluster
@pytest.mark.slow
def test_a_restart_with_another_number_of_members_goes_on_exactly(tmp_path):
    with Log(tmp_path / "log", partitions=3, serializer="json") as log:
        dag, out = counting(tmp_path / "log")
        count = 1
        layout = Layout(dag, 1, lambda: count)
        config = JobConfig(
            processing_guarantee="exactly-once",
            snapshot_interval=0.1,
            snapshot_dir=str(tmp_path / "state"),
        )
        runner = MembersRunner(layout, ProcessLauncher, tuning=Tuning(1))
        snapshots = JobSnapshots(dag, "counting", config, layout, SYSTEM_CLOCK)
        job = Job(dag, config, runner, snapshots=snapshots)
        job.start()

        def wait_until(condition):
            deadline = time.monotonic() + PROMPT
            while not condition():
                assert not job.status.is_final
                assert time.monotonic() < deadline
                time.sleep(0.01)

        try:
            for round, count in enumerate([3, 2, 2], 1):
                wait_until(lambda: job.status is JobStatus.RUNNING)
                log.append(range(round * 100 - 100, round * 100))
                wait_until(lambda: len(out.items) >= 100 * round)  # noqa: B023
                job.restart()
                wait_until(lambda: job.status is JobStatus.RUNNING)
                assert layout.members == count
        finally:
            job.cancel()
    assert sorted(out.items) == [(key, n) for key in range(5) for n in range(1, 61)]
