"""Who follows the executors that come and go; without Spark."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jetlet import JobConfig, JobStatus, Pipeline, SparkEngine, sinks, sources
from jetlet.errors import InvalidArgumentError, PlanningError
from jetlet.spark.members.follower import STEADY, Follower


class Cluster:
    """A job of two members, and as many slots as somebody says."""

    name = "job"

    def __init__(self):
        self.status = JobStatus.RUNNING
        self.slots = self.members = 2
        self.restarts = []
        self._follower = Follower(self, self, SimpleNamespace(now=lambda: self.slots))

    def restart(self):
        self.restarts.append(self.slots)
        self.members = self.slots

    def look(self, *found):
        for self.slots in found:
            self._follower.look()
        return self.restarts


def test_a_job_takes_the_slots_of_executors_that_have_come():
    cluster = Cluster()
    assert cluster.look(*[2] * 10) == []
    assert cluster.look(*[4] * 10) == [4]
    assert cluster.look(*[5] * 10) == [4, 5]


def test_it_waits_until_no_more_come():
    cluster = Cluster()
    assert cluster.look(3, 3, 4, 4, 5) == []
    assert cluster.look(*[5] * STEADY) == [5]


def test_fewer_slots_are_not_for_it_to_see_to():
    assert Cluster().look(*[1] * 10) == []


def test_a_job_that_does_not_run_is_left_alone():
    cluster = Cluster()
    cluster.status = JobStatus.SUSPENDED
    assert cluster.look(*[4] * 10) == []
    cluster.status = JobStatus.RUNNING
    assert cluster.look(*[4] * (STEADY - 1)) == []


@pytest.mark.parametrize("members", [0, "some", 1.5])
def test_members_are_a_number_or_all(members):
    with pytest.raises(InvalidArgumentError, match="members must be a number from 1 on, or 'all'"):
        SparkEngine("local[1]", members=members)


@pytest.mark.spark
@pytest.mark.parametrize("config", [{}, {"snapshot_dir": "state"}])
def test_a_job_that_cannot_follow_is_refused(spark_engine, config):
    p = Pipeline("stream")
    p.read_from(sources.item_stream(10)).without_timestamps().write_to(sinks.noop())
    engine = SparkEngine(session=spark_engine.session, members="all")
    with engine, pytest.raises(PlanningError, match="write JobConfig"):
        engine.submit(p, JobConfig(**config))
