"""How many members there is room for, as Spark says it; without Spark."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from jetlet.errors import JobFailedError, PlanningError, RestartableError, UnsupportedFeatureError
from jetlet.spark.members import slots
from jetlet.spark.members.slots import Slots


class Cluster:
    """As much of a session as slots look at; ``slots`` is how many it has, or an error."""

    def __init__(self, slots=2, master="local[2]", age=0.0, **settings):
        self.slots = slots
        self.registered = 2
        """Of which the driver is one."""
        self.conf = SimpleNamespace(get=settings.get)
        self.sparkContext = SimpleNamespace(
            master=master,
            startTime=(time.time() - age) * 1000,
            defaultParallelism=5,
            _jsc=SimpleNamespace(sc=lambda: self),
            getConf=lambda: {"spark.driver.host": "10.0.0.1", "spark.driver.port": "40010"},
        )
        self._jsparkSession = None

    def getExecutorMemoryStatus(self):
        return SimpleNamespace(size=lambda: self.registered)

    def resourceProfileManager(self):
        return SimpleNamespace(defaultResourceProfile=lambda: None)

    def maxNumConcurrentTasks(self, profile):
        if isinstance(self.slots, Exception):
            raise self.slots
        return self.slots


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(slots, "REPLACEMENT_PATIENCE", 0.0)


def test_members_take_all_slots_or_as_many_as_are_wanted():
    assert Slots(Cluster(4), "job", None).count() == 4
    assert Slots(Cluster(4), "job", 3).count() == 3
    assert Slots(Cluster(4), "job", None, others=lambda: 1).count() == 3


def test_a_spark_that_does_not_tell_its_slots_tells_its_cores():
    absent = RuntimeError("Method maxNumConcurrentTasks([class java.lang.Object]) does not exist")
    assert Slots(Cluster(absent), "job", None).count() == 5
    assert Slots(Cluster(absent, **{"spark.task.cpus": "2"}), "job", None).count() == 2


@pytest.mark.parametrize(
    ("free", "wanted", "others", "message"),
    [
        (2, 3, 0, r"no place for 3 members: Spark runs 2 tasks at a time.*members=2"),
        (2, None, 2, "other jobs hold 2.*cancel one of these jobs"),
        (0, None, 0, r"no executor yet.* with the driver at 10\.0\.0\.1:40010"),
    ],
)
def test_too_few_slots_are_told_at_once(free, wanted, others, message):
    with pytest.raises(PlanningError, match=message):
        Slots(Cluster(free), "job", wanted, others=lambda: others).count()


def test_a_later_attempt_makes_do_with_what_there_is():
    cluster = Cluster(4)
    found = Slots(cluster, "job", 3)
    assert found.count() == 3
    cluster.slots = 2
    assert found.count() == 2
    cluster.slots = 5
    assert found.count() == 3
    cluster.slots = 0
    with pytest.raises(RestartableError, match="'job'"):
        found.count()
    cluster.slots = 1
    assert found.count() == 1


def test_a_later_attempt_waits_for_an_executor_that_comes_back(monkeypatch):
    monkeypatch.setattr(slots, "REPLACEMENT_PATIENCE", 60.0)
    cluster = Cluster(2)
    found = Slots(cluster, "job", None)
    found.count()
    answers = iter([1, 1, 1, 2, 2])
    cluster.maxNumConcurrentTasks = lambda profile: next(answers)
    monkeypatch.setattr(slots, "PERIOD", 0.0)
    assert found.count() == 2
    # Unless nobody wants it any more.
    cluster.maxNumConcurrentTasks = lambda profile: 1
    found.is_cancelled = lambda: True
    assert found.count() == 1


def test_a_driver_that_was_started_again_waits_for_its_executors(monkeypatch):
    monkeypatch.setattr(slots, "PERIOD", 0.0)
    monkeypatch.setattr(slots, "REGISTRATION_PAUSE", 0.0)
    answers = iter([1, 1, 1, 2, 2])
    cluster = Cluster(master="spark://host:7077")
    cluster.maxNumConcurrentTasks = lambda profile: next(answers)
    assert Slots(cluster, "job", 2).count() == 2


def test_a_session_that_has_been_up_for_a_while_waits_for_nobody():
    cluster = Cluster(1, master="spark://host:7077", age=3600)
    with pytest.raises(PlanningError, match="no place for 2 members"):
        Slots(cluster, "job", 2).count()


def test_executors_that_come_and_go_are_refused():
    cluster = Cluster(2, **{"spark.dynamicAllocation.enabled": "true"})
    with pytest.raises(UnsupportedFeatureError, match=r"spark\.dynamicAllocation\.enabled=false"):
        Slots(cluster, "job", None).count()


def test_a_spark_that_is_gone_is_told_in_a_line():
    cluster = Cluster(RuntimeError("Answer from Java side is empty"))
    with pytest.raises(JobFailedError, match="the connection to Spark is lost"):
        Slots(cluster, "job", None).count()


def test_where_nobody_registers_the_address_of_the_driver_is_told(monkeypatch, caplog):
    monkeypatch.setattr(slots, "REGISTRATION_PATIENCE", 0.0)
    cluster = Cluster(0, "spark://m:7077")
    cluster.registered = 1
    slots.await_executors(cluster.sparkContext, patience=0.2)
    (record,) = caplog.records
    assert "with the driver at 10.0.0.1:40010" in record.message
    assert "spark.driver.host" in record.message
