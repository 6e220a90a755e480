"""The launcher of hosted members, with a Spark that does as it is told."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace

import pytest

from jetlet.jobs.members.launcher import Bootstrap
from jetlet.spark.members import hosted as hosted_members
from jetlet.spark.members.hosted import HostedMembers, place_of_driver

PROMPT = 60.0


class Spark:
    """A session over Connect, as far as the launcher knows; its stage ends when it is told to."""

    def __init__(self):
        self.end = threading.Event()
        self.error = None
        self.tags = []
        self.interrupted = []
        self.asked = []

    def addTag(self, tag):
        self.tags.append(tag)

    def interruptTag(self, tag):
        self.interrupted.append(tag)
        self.error = RuntimeError("interrupted")
        self.end.set()

    def range(self, *numbers):
        self.asked.append(numbers)
        return self

    def mapInArrow(self, task, schema, barrier):
        assert barrier
        return self

    def collect(self):
        assert self.end.wait(PROMPT)
        if self.error is not None:
            raise self.error


@pytest.fixture
def spark():
    spark = Spark()
    yield spark
    spark.end.set()


@pytest.fixture
def members(spark):
    members = HostedMembers(spark, "job")
    yield members
    spark.end.set()
    members.close()


def launch(members, count=2):
    deaths, all_told = [], threading.Event()

    def on_death(member, words):
        deaths.append((member, words))
        if len(deaths) == count:
            all_told.set()

    for index in range(count):
        members.launch(Bootstrap("tcp:127.0.0.1:1", "", index, count, []), on_death)
    return deaths, all_told


def test_members_learn_where_the_executors_listen(members, spark, monkeypatch):
    executors = [("10.0.0.2", 40030), ("[fd00::3]", 40031)]
    infos = [SimpleNamespace(host=lambda h=h: h, port=lambda p=p: p) for h, p in executors]
    tracker = SimpleNamespace(getExecutorInfos=lambda: infos)
    scala = SimpleNamespace(statusTracker=lambda: tracker)
    context = SimpleNamespace(
        master="spark://m:7077", _jsc=SimpleNamespace(sc=lambda: scala), setJobGroup=print
    )
    monkeypatch.setattr(hosted_members, "context_of", lambda _: context)
    launch(members)
    told = {bootstrap.neighbours for bootstrap in members._bootstraps}
    assert told == {("10.0.0.2:40030", "fd00::3:40031")}
    members.kill(0)


def test_the_stage_begins_with_the_last_of_the_members(members, spark):
    members.launch(Bootstrap("tcp:127.0.0.1:1", "", 0, 2, []), lambda member, words: None)
    assert not spark.asked
    members.launch(Bootstrap("tcp:127.0.0.1:1", "", 1, 2, []), lambda member, words: None)
    spark.end.set()
    members.close()
    assert spark.asked == [(0, 2, 1, 2)]


@pytest.mark.parametrize(
    ("said", "first", "words"),
    [
        (
            (
                "Could not recover from a failed barrier ResultStage. Most recent failure reason: "
                "Stage failed because barrier task ResultTask(3, 1) finished unsuccessfully.\n"
                "Python worker exited unexpectedly (crashed)"
            ),
            1,
            "died with its Python worker",
        ),
        (
            (
                "Lost task 0.0 in stage 3.0: ExecutorLostFailure (executor 7 exited because of "
                "a running task) Reason: Command exited with code 137"
            ),
            0,
            "was lost with executor 7: Command exited with code 137",
        ),
        (
            (
                "Lost task 1.0 in stage 3.0: PythonException: Traceback:\n  File x\n"
                "jetlet.errors.JetletError: cannot reach the driver at tcp:h:1: refused"
            ),
            1,
            "cannot reach the driver at tcp:h:1: refused",
        ),
        ("Job aborted due to stage failure: no slots", 0, "was ended by Spark: .*no slots"),
    ],
)
def test_a_failed_stage_is_the_end_of_all_and_the_culprit_is_told_first(
    members, spark, said, first, words
):
    deaths, all_told = launch(members)
    spark.error = RuntimeError(said)
    spark.end.set()
    assert all_told.wait(PROMPT)
    assert [member for member, _ in deaths] == [first, 1 - first]
    assert all(re.match(words, told) for _, told in deaths)


def test_killing_one_cancels_the_stage(members, spark):
    _, all_told = launch(members)
    members.kill(1)
    assert all_told.wait(PROMPT)
    assert set(spark.interrupted) == set(spark.tags)


def test_a_stage_that_does_not_end_by_itself_is_cancelled(members, spark, monkeypatch):
    monkeypatch.setattr(hosted_members, "EXIT_LIMIT", 0.01)
    launch(members)
    members.close()
    assert spark.interrupted
    assert not members._stage.is_alive()


def test_a_stage_that_ends_by_itself_is_not(members, spark):
    launch(members)
    spark.end.set()
    members.close()
    assert not spark.interrupted


def test_members_that_get_no_slot_are_given_up(members, spark, monkeypatch):
    monkeypatch.setattr(hosted_members, "START_LIMIT", 0.01)
    monkeypatch.setattr(members, "_others_have_its_slots", lambda: True)
    told = threading.Event()
    members.launch(
        Bootstrap("tcp:127.0.0.1:1", "", 0, 1, []),
        lambda member, words: told.set() if "no slot" in words else None,
    )
    assert told.wait(PROMPT)


def test_a_silent_member_is_busy_for_a_while(members, monkeypatch):
    now = 100.0
    monkeypatch.setattr(hosted_members, "time", SimpleNamespace(monotonic=lambda: now))
    for _ in range(39):
        now += 0.5
        assert members.is_busy(0)
    now += 1.0
    assert not members.is_busy(0)
    # It has been heard of meanwhile.
    now += 5.0
    assert members.is_busy(0)


@pytest.mark.parametrize(
    ("master", "settings", "place"),
    [
        ("local[2]", {"spark.driver.host": "10.0.0.1"}, ("127.0.0.1", "127.0.0.1")),
        ("local-cluster[2,1,1024]", {}, ("127.0.0.1", "127.0.0.1")),
        ("spark://m:7077", {"spark.driver.host": "10.0.0.1"}, ("10.0.0.1", "10.0.0.1")),
        (
            "k8s://m",
            {"spark.driver.host": "driver.svc", "spark.driver.bindAddress": "0.0.0.0"},
            ("0.0.0.0", "driver.svc"),
        ),
    ],
)
def test_the_driver_listens_where_executors_reach_it(master, settings, place):
    context = SimpleNamespace(master=master, getConf=lambda: settings)
    spark = SimpleNamespace(_jsparkSession=None, sparkContext=context)
    assert place_of_driver(spark) == place
