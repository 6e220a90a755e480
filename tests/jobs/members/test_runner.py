"""MembersRunner and its attempt, with launchers that misbehave."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from jetlet.core import DAG, Processor
from jetlet.errors import JobFailedError, RestartableError
from jetlet.execution.tuning import Tuning
from jetlet.jobs.config import JobConfig
from jetlet.jobs.job import Job, JobStatus
from jetlet.jobs.members import members_coordinator
from jetlet.jobs.members.launcher import ProcessLauncher
from jetlet.jobs.members.layout import Layout, LocalPlaces
from jetlet.jobs.members.runner import MembersRunner

PROMPT = 60.0


class Nothing(Processor):
    pass


class Launcher:
    """Starts nobody, and remembers what it was asked for."""

    def __init__(self):
        self.bootstraps = {}
        self.killed = []
        self.is_closed = False
        self._deaths = {}

    def launch(self, bootstrap, on_death):
        self.bootstraps[bootstrap.index] = bootstrap
        self._deaths[bootstrap.index] = on_death

    def kill(self, member):
        self.killed.append(member)
        if member in self._deaths:
            self._deaths[member](member, "was ended by SIGKILL")

    def is_busy(self, member):
        return False

    def close(self):
        self.is_closed = True


def job_with(launcher, count=2, dag=None, **options):
    if dag is None:
        dag = DAG("job")
        dag.new_vertex("v", Nothing)
    layout = Layout(dag, 1, LocalPlaces(count))
    runner = MembersRunner(layout, lambda: launcher, tuning=Tuning(1), **options)
    job = Job(dag, JobConfig(), runner)
    job.start()
    return job


def until(condition):
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def threads():
    return {t.name for t in threading.enumerate() if _is_ours(t.name)}


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = threads()  # of engines that other tests share
    yield
    assert threads() - before == set()


def test_launcher_that_fails_fails_the_job():
    class Broken(Launcher):
        def launch(self, bootstrap, on_death):
            raise OSError("no more processes")

    launcher = Broken()
    job = job_with(launcher)
    with pytest.raises(JobFailedError, match="no more processes"):
        job.join(PROMPT)
    assert launcher.is_closed


def test_members_that_never_come_fail_the_job_as_restartable(monkeypatch):
    monkeypatch.setattr(members_coordinator, "JOIN_LIMIT", 0.2)
    launcher = Launcher()
    with pytest.raises(RestartableError, match="member 0 did not start within"):
        job_with(launcher).join(PROMPT)
    assert launcher.killed == [0, 1]


def test_member_that_dies_at_once_fails_the_job_with_its_last_words():
    class Deadly(Launcher):
        def launch(self, bootstrap, on_death):
            super().launch(bootstrap, on_death)
            if bootstrap.index == 1:
                on_death(1, "exited with code 1; its last words:\nno such thing")

    with pytest.raises(RestartableError, match="member 1 exited with code 1") as caught:
        job_with(Deadly()).join(PROMPT)
    assert "no such thing" in str(caught.value)


def test_private_directory_is_gone_after_the_job(monkeypatch):
    launcher = Launcher()
    job = job_with(launcher)
    until(lambda: len(launcher.bootstraps) == 2)
    directory = Path(launcher.bootstraps[0].directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert len(list(directory.iterdir())) == 1
    job.cancel()
    assert not directory.exists()
    assert job.status is JobStatus.CANCELLED


def test_every_job_has_a_secret_of_its_own():
    secrets = set()
    for _ in range(3):
        launcher = Launcher()
        job = job_with(launcher)
        until(lambda launcher=launcher: len(launcher.bootstraps) == 2)
        secrets |= {b.secret for b in launcher.bootstraps.values()}
        job.cancel()
    assert len(secrets) == 3
    assert all(len(bytes.fromhex(secret)) == 32 for secret in secrets)


def test_stranger_at_the_coordinators_door_changes_nothing(caplog):
    launcher = Launcher()
    job = job_with(launcher, use_tcp=True)
    until(lambda: len(launcher.bootstraps) == 2)
    address = launcher.bootstraps[0].address
    assert address.startswith("tcp:127.0.0.1:")
    assert launcher.bootstraps[0].directory is None
    host, port = address.split(":")[1:]
    with socket.create_connection((host, int(port)), 10) as stranger:
        stranger.sendall(b"x" * 1000)
        try:
            while stranger.recv(1000):
                pass
        except ConnectionResetError:
            pass
    assert job.status is JobStatus.STARTING
    job.cancel()
    assert "does not speak this protocol" in caplog.text


@pytest.mark.cluster
def test_job_over_tcp():
    class Counting(Processor):
        def complete(self):
            self.context.report(self.context.member_index)
            return True

    dag = DAG("tcp")
    dag.new_vertex("v", Counting)
    job = job_with(ProcessLauncher(), 3, dag, use_tcp=True)
    job.join(PROMPT)
    assert sorted(job._run._messages["v"]) == [0, 1, 2]


@pytest.mark.cluster
def test_report_that_cannot_travel_fails_the_job():
    class Reporting(Processor):
        def complete(self):
            self.context.report(threading.Lock())
            return True

    dag = DAG("report")
    dag.new_vertex("v", Reporting)
    with pytest.raises(JobFailedError, match="has to report cannot be sent"):
        job_with(ProcessLauncher(), 2, dag).join(PROMPT)


@pytest.mark.cluster
def test_code_that_members_cannot_load_fails_the_job_with_the_reason():
    class Shy(Processor):
        def __reduce__(self):
            return (__import__, ("no_such_module_anywhere",))

    shy = Shy()
    dag = DAG("shy")
    dag.new_vertex("v", lambda: shy)
    with pytest.raises(JobFailedError, match="No module named 'no_such_module_anywhere'") as e:
        job_with(ProcessLauncher(), 2, dag).join(PROMPT)
    assert not isinstance(e.value, RestartableError)
    assert isinstance(e.value.__cause__, ModuleNotFoundError)


def _is_ours(name):
    """Not the thread that shows a JVM's output: Spark tests in the same process leave it."""
    return name.startswith("jetlet") and not name.startswith("jetlet-spark")
