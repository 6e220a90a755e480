"""Members that die, hang or are cut off, and submitters that do."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from jetlet import EmbeddedEngine, JobConfig, JobStatus
from jetlet.core import DAG, Processor, Vertex, between
from jetlet.errors import JobFailedError, RestartableError
from jetlet.jobs.members import members_coordinator
from jetlet.processors.ends.write import ClientSinkHook, ClientSinkProcessor
from jetlet.sinks import client

pytestmark = [pytest.mark.fault, pytest.mark.cluster, pytest.mark.slow]

PROMPT = 60.0


class Numbers(Processor):
    """A source without an end, that says who it is."""

    def complete(self):
        self.outbox.offer_batch([(self.context.member_index, os.getpid())] * 10)
        return False


class PassOn(Processor):
    def process(self, ordinal, inbox):
        if self.outbox.offer_batch(list(inbox.items())):
            inbox.clear()


def endless(source=Numbers, sink=lambda item: None, middle=PassOn):
    """Source, a network edge, and a sink of this process."""
    dag = DAG("endless")
    a = dag.new_vertex("source", source, 1)
    b = dag.new_vertex("middle", middle, 1)
    c = dag.vertex(
        Vertex("out", ClientSinkProcessor, 1, hook=ClientSinkHook(client(sink, name="out")))
    )
    dag.edge(between(a, b).distributed())
    dag.edge(between(b, c))
    return dag


class Members:
    """A running job and the processes of its members."""

    def __init__(self, engine, **options):
        self.pids = {}
        seen = threading.Event()
        count = engine._members

        def sink(item):
            member, pid = item
            self.pids[member] = pid
            if len(self.pids) == count:
                seen.set()

        self.job = engine.submit(endless(sink=sink, **options))
        if not seen.wait(PROMPT):
            self.job.join(0)
            pytest.fail("the job does not run")

    def failure(self):
        """The error that the job ends with."""
        with pytest.raises(JobFailedError) as caught:
            self.job.join(PROMPT)
        assert all(not is_running(pid) for pid in self.pids.values())
        return caught.value


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition):
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(monkeypatch, tmp_path_factory):
    tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        before = set(threading.enumerate())  # of engines that other tests share
        yield
        assert list(Path(directory).iterdir()) == []
    names = [thread.name for thread in set(threading.enumerate()) - before]
    # Spark tests in the same process leave the thread that shows the JVM's output.
    assert [n for n in names if n.startswith("jetlet") and not n.startswith("jetlet-spark")] == []


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_member_fails_the_job_as_restartable(victim):
    with EmbeddedEngine(members=3) as engine:
        members = Members(engine)
        os.kill(members.pids[victim], signal.SIGKILL)
        failure = members.failure()
    assert isinstance(failure, RestartableError)
    assert f"member {victim} was ended by SIGKILL" in str(failure)
    assert members.job.status is JobStatus.FAILED


def test_stopped_member_is_given_up(monkeypatch):
    monkeypatch.setattr(members_coordinator, "HEARTBEAT_LIMIT", 2.0)
    with EmbeddedEngine(members=2) as engine:
        members = Members(engine)
        os.kill(members.pids[1], signal.SIGSTOP)
        failure = members.failure()
    assert isinstance(failure, RestartableError)
    assert "member 1 was silent for 2" in str(failure)


def test_member_that_is_cut_off_from_another_fails_the_job():
    with EmbeddedEngine(members=2) as engine:
        members = Members(engine, source=Saboteur)
        failure = members.failure()
    assert isinstance(failure, RestartableError)
    assert "cannot be reached by member" in str(failure)


class Saboteur(Numbers):
    """Cuts the connection between two members, a while after both have been seen."""

    def init(self, outbox, context):
        super().init(outbox, context)
        if context.member_index == 0:
            threading.Timer(1.0, cut_connections, ["member"]).start()


class Hermit(Numbers):
    """Hangs up on the coordinator."""

    def init(self, outbox, context):
        super().init(outbox, context)
        if context.member_index == 0:
            threading.Timer(1.0, cut_connections, ["coordinator"]).start()


def cut_connections(whose):
    import gc

    from jetlet.network.connection import Connection

    gc.unfreeze()  # the engine hides from the collector what lives as long as the job
    for each in gc.get_objects():
        if isinstance(each, Connection) and (each.peer < 0) == (whose == "coordinator"):
            each.abort("sabotage")


def test_member_that_hangs_up_on_the_coordinator_fails_the_job():
    with EmbeddedEngine(members=2) as engine:
        members = Members(engine, source=Hermit)
        failure = members.failure()
    assert isinstance(failure, RestartableError)
    assert "member 0" in str(failure)


class Dying(Numbers):
    """Prints something and ends its process, as native code may."""

    def complete(self):
        if self.context.member_index == 1 and self.context.clock.monotonic_ns() > self.deadline:
            print("these are my last words", file=sys.stderr)
            os._exit(7)
        return super().complete()

    def init(self, outbox, context):
        super().init(outbox, context)
        self.deadline = context.clock.monotonic_ns() + 1_000_000_000


def test_last_words_of_a_member_are_in_the_error():
    with EmbeddedEngine(members=2) as engine:
        members = Members(engine, source=Dying)
        failure = members.failure()
    assert isinstance(failure, RestartableError)
    assert "member 1 exited with code 7" in str(failure)
    assert "these are my last words" in str(failure)


class Crashing(Dying):
    def complete(self):
        if self.context.member_index == 1 and self.context.clock.monotonic_ns() > self.deadline:
            faulthandler._sigsegv()
        return Numbers.complete(self)


def test_crash_of_native_code_leaves_a_traceback():
    with EmbeddedEngine(members=2) as engine:
        failure = Members(engine, source=Crashing).failure()
    assert "was ended by SIGSEGV" in str(failure)
    assert "in complete" in str(failure)


class Hog(PassOn):
    """Holds the interpreter for longer than the heartbeat's limit, as a sort of many items may."""

    def __init__(self, spin):
        self._spin = spin

    def process(self, ordinal, inbox):
        if self.context.member_index == 1:
            # One call into C that never lets go.
            sum(range(self._spin))
            self._spin = 0
        super().process(ordinal, inbox)


def spin_for(seconds):
    """How far to count for so long, or longer on a busy machine."""
    start = time.thread_time()
    sum(range(5_000_000))
    return int(5_000_000 * seconds / (time.thread_time() - start))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_busy_member_is_not_taken_for_a_dead_one(monkeypatch):
    monkeypatch.setattr(members_coordinator, "HEARTBEAT_LIMIT", 1.5)
    spin = spin_for(3.0)
    got = []
    with EmbeddedEngine(members=2) as engine:
        dag = endless(sink=got.append, middle=partial(Hog, spin))
        job = engine.submit(dag, JobConfig(link_timeout=2.0))
        # Behind the busy one's first batch.
        until(lambda: sum(member == 1 for member, _ in got) > 2000)
        assert job.status is JobStatus.RUNNING
        job.cancel()


SUBMITTER = """
import os, sys, time
sys.path.insert(0, {folder!r})
from jetlet import EmbeddedEngine
from {module} import endless
seen = set()
def sink(item):
    if item[1] not in seen:
        seen.add(item[1])
        print("pid", item[1], flush=True)
with EmbeddedEngine(members=2) as engine:
    job = engine.submit(endless(sink=sink))
    job.join()
"""


def submitter(tmp_path):
    """A process that runs an endless job, and the processes of its members."""
    script = SUBMITTER.format(folder=str(Path(__file__).parent), module=Path(__file__).stem)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    return process, pids


def test_ctrl_c_at_the_submitter_ends_all(tmp_path):
    process, pids = submitter(tmp_path)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PROMPT)
    assert "KeyboardInterrupt" in err
    assert not any(map(is_running, pids))
    assert list(tmp_path.iterdir()) == []


def test_members_do_not_outlive_a_killed_submitter(tmp_path):
    process, pids = submitter(tmp_path)
    process.kill()
    process.communicate(timeout=PROMPT)
    until(lambda: not any(map(is_running, pids)))
    assert list(tmp_path.iterdir()) == []


def test_stopped_submitter_finds_its_job_running_when_it_goes_on(tmp_path):
    """As after Ctrl-Z: the silence was its own."""
    process, pids = submitter(tmp_path)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.6)
    process.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    assert process.poll() is None
    assert all(map(is_running, pids))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PROMPT)
    assert not any(map(is_running, pids))
