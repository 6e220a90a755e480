"""Jobs on several member processes: results, errors, cancelling, and nothing left behind."""

from __future__ import annotations

import csv
import itertools
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from jetlet import EmbeddedEngine, JobConfig, JobStatus, Pipeline, agg, sinks, sources, whole_item
from jetlet.core import DAG, Processor, ProcessorSupplier, Vertex, between
from jetlet.errors import (
    InvalidArgumentError,
    JobCancelledError,
    JobFailedError,
    UnpicklableFunctionError,
)
from jetlet.jobs.members import attempt as attempt_module
from jetlet.jobs.members import members_coordinator
from jetlet.jobs.members.attempt import MembersAttempt
from jetlet.jobs.members.client_delivery import WINDOW
from jetlet.jobs.members.launcher import ProcessLauncher
from jetlet.processors.ends.write import ClientSinkHook, ClientSinkProcessor
from jetlet.testing.clock import ManualClock

pytestmark = pytest.mark.cluster

PROMPT = 60.0
"""Seconds that nothing here should come near, however busy the machine."""


def children():
    """Processes that this one has started and that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.append(int(path.parent.name))
    return set(found)


def leftovers():
    directories = {p.name for p in Path(tempfile.gettempdir()).glob("jetlet-*")}
    threads = {t.name for t in threading.enumerate() if _is_ours(t.name)}
    return children(), directories, threads


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(monkeypatch, tmp_path_factory):
    tmp_path_factory.getbasetemp()  # which must not be within the directory below
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        before = leftovers()
        yield
        # On a busy machine a thread that was left behind may need a moment to end.
        deadline = time.monotonic() + 60
        while True:
            left = [now - then for now, then in zip(leftovers(), before, strict=True)]
            if not any(left) or time.monotonic() > deadline:
                break
            time.sleep(0.01)
    assert left == [set(), set(), set()]


@pytest.fixture
def engine():
    with EmbeddedEngine(members=2) as engine:
        yield engine


def run(engine, what):
    job = engine.submit(what)
    job.join(PROMPT)
    return job


def failure_of(job):
    with pytest.raises(JobFailedError) as caught:
        job.join(PROMPT)
    return caught.value


def until(condition):
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Here(Processor):
    """A source that emits (member, number) forever, or for so many items."""

    def __init__(self, count=None):
        self._left = count

    def complete(self):
        if self._left is None:
            self.outbox.offer_batch([(self.context.member_index, 0)] * 100)
            return False
        batch = [(self.context.member_index, n) for n in range(self._left)]
        return self.outbox.offer_batch(batch) if batch else True


def dag_to(sink, name, *suppliers):
    """The suppliers, one after the other, and a sink of this process."""
    dag = DAG(name)
    vertices = [dag.new_vertex(f"v{i}", s, 1) for i, s in enumerate(suppliers)]
    vertices.append(dag.vertex(Vertex("out", ClientSinkProcessor, 1, hook=ClientSinkHook(sink))))
    for a, b in itertools.pairwise(vertices):
        dag.edge(between(a, b))
    return dag


# --- Results --------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [2, 3])
def test_items_of_all_members_come_together(members, tmp_path):
    p, out = Pipeline("count"), sinks.collect()
    counts = (
        p.read_from(sources.items(range(20_000)))
        .map(lambda n: n % 1000)
        .grouping_key(whole_item)
        .aggregate(agg.counting())
    )
    counts.write_to(out)
    counts.write_to(sinks.csv(str(tmp_path / "out")))
    with EmbeddedEngine(members=members, workers=1) as engine:
        job = run(engine, p)
    expected = {(n, 20) for n in range(1000)}
    assert len(out.items) == 1000
    assert set(out.items) == expected
    rows = [
        (int(k), int(v))
        for file in (tmp_path / "out").glob("*.csv")
        for k, v in csv.reader(file.read_text().splitlines())
    ]
    assert len(rows) == 1000
    assert set(rows) == expected

    metrics = job.metrics()
    assert sum(v.received for n, v in metrics.items() if n == "map") == 20_000
    assert all(len(v.processors) == members for v in metrics.values())
    sent = [e for e in metrics.edges if e["direction"] == "out"]
    received = [e for e in metrics.edges if e["direction"] == "in"]
    assert {(e["member"], e["peer"]) for e in sent} == {
        (a, b) for a in range(members) for b in range(members) if a != b
    }
    for key in ("items", "bytes", "packets"):
        assert sum(e[key] for e in sent) == sum(e[key] for e in received) > 0
    assert all(e["window"] > 0 for e in received)


def test_source_divides_its_splits_among_the_members(engine, tmp_path):
    for n in range(6):
        (tmp_path / f"{n}.txt").write_text("".join(f"{n} {i}\n" for i in range(100)))
    p, out = Pipeline("files"), sinks.collect()
    p.read_from(sources.text(str(tmp_path / "*.txt"))).map(
        lambda line: (line, os.getpid())
    ).write_to(out)
    run(engine, p)
    assert Counter(line for line, _ in out.items) == Counter(
        f"{n} {i}" for n in range(6) for i in range(100)
    )
    pids = {pid for _, pid in out.items}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_what_members_print_is_not_lost(engine, capfd):
    def talk(n):
        print(f"out {n}")
        print(f"err {n}", file=sys.stderr)
        return n

    p = Pipeline("talk")
    p.read_from(sources.items(range(20))).map(talk).write_to(sinks.noop())
    run(engine, p)
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == sorted(f"out {n}" for n in range(20))
    assert sorted(err.splitlines()) == sorted(f"err {n}" for n in range(20))


def test_large_items_travel_whole(engine):
    p, out = Pipeline("large"), sinks.collect()
    (
        p.read_from(sources.items(range(8)))
        .map(lambda n: (n, bytes([n]) * 3_000_000))
        .rebalance()
        .map(lambda pair: (*pair, os.getpid()))
        .write_to(out)
    )
    run(engine, p)
    assert {(n, data) for n, data, _ in out.items} == {
        (n, bytes([n]) * 3_000_000) for n in range(8)
    }


def test_several_jobs_at_a_time(engine):
    jobs, outs = [], []
    for i in range(3):
        p, out = Pipeline(f"job-{i}"), sinks.collect()
        p.read_from(sources.items(range(i * 100, i * 100 + 100))).rebalance().map(
            lambda n: -n
        ).write_to(out)
        jobs.append(engine.submit(p))
        outs.append(out)
    for i, (job, out) in enumerate(zip(jobs, outs, strict=True)):
        job.join(PROMPT)
        assert sorted(out.items) == [-n for n in reversed(range(i * 100, i * 100 + 100))]


SCRIPT = """
import enum, sys, typing
from collections import namedtuple
from dataclasses import dataclass
from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources
from beside import double, Beside

@dataclass(frozen=True)
class Point:
    x: int
    y: int

class Color(enum.Enum):
    RED = 1

Named = namedtuple("OtherName", "a b")

class Oops(Exception):
    pass

def make(n):
    return [Point(n, n), Color.RED, Named(n, 2), Beside(n), double(n)]

def fail(n):
    if n == 7:
        raise Oops("no", n)
    return n

if __name__ == "__main__":
    def local():
        class Local:
            def __init__(self, n):
                self.n = n
        return Local
    Local = local()
    with EmbeddedEngine(members=2) as engine:
        p, out = Pipeline("mine"), sinks.collect()
        (p.read_from(sources.items(range(10))).map(make).map(lambda l: [*l, Local(1)])
          .rebalance().map(lambda l: l).write_to(out))
        engine.submit(p).join(60)
        assert len(out.items) == 10
        kinds = [type(x) for x in out.items[0]]
        assert kinds == [Point, Color, Named, Beside, int, Local], kinds
        assert {tuple(l[:5]) for l in out.items} == {tuple(make(n)) for n in range(10)}

        p, out = Pipeline("keyed"), sinks.collect()
        (p.read_from(sources.items(range(10))).map(lambda n: Point(n % 2, 0))
          .grouping_key(lambda p: p).aggregate(agg.counting()).write_to(out))
        engine.submit(p).join(60)
        assert dict(out.items) == {Point(0, 0): 5, Point(1, 0): 5}

        p = Pipeline("failing")
        p.read_from(sources.items(range(10))).map(fail).write_to(sinks.noop())
        job = engine.submit(p)
        try:
            job.join(60)
        except Exception as error:
            assert isinstance(error.__cause__, Oops), error.__cause__
            assert error.__cause__.args == ("no", 7)
            assert error.vertex == "map" and error.item == "7", error
    print("all is well")
"""


def test_classes_and_functions_of_the_submitting_script_stay_themselves(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text(
        textwrap.dedent("""
            from dataclasses import dataclass
            @dataclass(frozen=True)
            class Beside:
                n: int
            def double(n):
                return 2 * n
        """)
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        timeout=PROMPT,
        cwd="/",
        check=False,
    )
    assert done.stdout == "all is well\n", done.stderr


def test_member_that_has_ended_stays_in_touch_until_all_have(engine, monkeypatch):
    """Who hangs up first makes the others lose what they have not read yet."""
    broken = []
    monkeypatch.setattr(MembersAttempt, "_cut_off", lambda _, member, reason: broken.append(reason))
    monkeypatch.setattr(attempt_module, "GRACE", 0.0)

    class Late(Processor):
        def complete(self):
            if self.context.member_index == 1:
                return True
            if not hasattr(self, "end"):
                self.end = time.monotonic() + 0.7
            return time.monotonic() > self.end

    dag = DAG("late")
    source = dag.new_vertex("source", Late, 1)
    dag.edge(between(source, dag.new_vertex("sink", Late, 1)).distributed())
    run(engine, dag)
    assert broken == []


# --- Refused, or failed ---------------------------------------------------------------------


def test_clock_of_this_process_is_refused():
    with pytest.raises(InvalidArgumentError, match="write members=1"):
        EmbeddedEngine(members=2, clock=ManualClock())


def test_function_that_cannot_travel_is_refused_at_submit(engine):
    lock = threading.Lock()

    def locked(x):
        with lock:
            return x

    p = Pipeline("stuck")
    p.read_from(sources.items([1])).map(locked, name="guard").write_to(sinks.collect())
    with pytest.raises(UnpicklableFunctionError, match="stage 'guard' cannot be sent") as caught:
        engine.submit(p)
    assert "map_using_service" in str(caught.value)


def test_key_function_that_cannot_travel_is_refused_at_submit(engine):
    lock = threading.Lock()
    p = Pipeline("stuck")
    p.read_from(sources.items([1])).grouping_key(lambda x: lock and x).aggregate(
        agg.counting()
    ).write_to(sinks.collect())
    with pytest.raises(UnpicklableFunctionError, match="aggregate"):
        engine.submit(p)


def test_item_that_cannot_travel_between_members_is_named(engine):
    p = Pipeline("locks")
    (
        p.read_from(sources.items(range(100)))
        .map(lambda n: threading.Lock() if n % 10 == 5 else n, name="make")
        .rebalance()
        .map(lambda x: x, name="take")
        .write_to(sinks.noop())
    )
    failure = failure_of(engine.submit(p))
    assert failure.vertex == "make"
    assert "unlocked _thread.lock" in failure.item
    assert "cannot be sent to another member" in str(failure)
    assert isinstance(failure.__cause__, TypeError)


def test_item_that_cannot_come_back_is_named(engine):
    p = Pipeline("locks")
    p.read_from(sources.items([1, 2])).map(lambda n: threading.Lock()).write_to(
        sinks.collect(name="results")
    )
    failure = failure_of(engine.submit(p))
    assert failure.vertex == "results"
    assert "unlocked _thread.lock" in failure.item
    assert "cannot be sent to the submitting process" in str(failure)


def test_error_on_one_member_ends_the_others_that_wait_for_its_data(engine):
    class Choosy(Here):
        def complete(self):
            if self.context.member_index == 1:
                raise KeyError("only here")
            return False

    dag = dag_to(sinks.collect(), "choosy", Choosy)
    failure = failure_of(engine.submit(dag))
    assert failure.vertex == "v0"
    assert isinstance(failure.__cause__, KeyError)
    assert "In the member:" in failure.__cause__.__notes__[0]


class Unlucky(ProcessorSupplier):
    """Fails on one member, at the given moment."""

    def __init__(self, moment):
        self._moment = moment

    def init(self, context):
        self._member = context.member_index
        self._check("supplier")

    def _check(self, moment):
        if moment == self._moment and self._member == 1:
            raise OSError(f"{moment} failed")

    def get(self):
        self._check("get")
        supplier = self

        class Source(Here):
            def init(self, outbox, context):
                supplier._check("init")
                super().init(outbox, context)

            def close(self):
                supplier._check("close")

        return Source(10)

    def close(self, error):
        self._check("supplier close")


@pytest.mark.parametrize("moment", ["supplier", "get", "init", "close", "supplier close"])
def test_error_outside_processing_on_one_member_fails_the_job(engine, moment):
    dag = DAG("unlucky")
    dag.new_vertex("v0", Unlucky(moment))
    failure = failure_of(engine.submit(dag))
    assert f"{moment} failed" in str(failure)
    assert isinstance(failure.__cause__, OSError)
    assert failure.vertex == "v0"


def test_error_of_a_sink_in_the_submitting_process_fails_the_job(engine):
    def refuse(item):
        raise LookupError(f"do not want {item}")

    p = Pipeline("refused")
    p.read_from(sources.items(range(10_000))).write_to(sinks.client(refuse, name="picky"))
    failure = failure_of(engine.submit(p))
    assert failure.vertex == "picky"
    assert isinstance(failure.__cause__, LookupError)


def test_exception_that_cannot_travel_comes_back_as_its_text(engine):
    def fail(n):
        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__(f"{a} {b}")

        raise Odd("odd", n)

    p = Pipeline("odd")
    p.read_from(sources.items([5])).map(fail).write_to(sinks.noop())
    failure = failure_of(engine.submit(p))
    assert "odd 5" in str(failure)
    assert "odd 5" in str(failure.__cause__)


# --- Sinks of the submitting process --------------------------------------------------------


def test_slow_sink_holds_up_neither_heartbeats_nor_other_sinks(engine):
    release = threading.Event()
    fast = sinks.collect(name="fast")
    slow = []

    def wait(item):
        release.wait(PROMPT)
        slow.append(item)

    p = Pipeline("slow")
    numbers = p.read_from(sources.items(range(1000))).map(lambda n: n)
    numbers.write_to(sinks.client(wait, name="slow"))
    numbers.write_to(fast)
    job = engine.submit(p)
    until(lambda: len(fast.items) == 1000)
    heard = job._runner._attempt._coordinator._heard
    before = dict(heard)
    until(lambda: all(heard[member] > before[member] for member in before))
    assert job.status is JobStatus.RUNNING
    release.set()
    job.join(PROMPT)
    assert sorted(slow) == list(range(1000))


def test_sink_that_stands_still_holds_back_the_members(engine):
    release = threading.Event()
    got = []

    def wait(item):
        release.wait(PROMPT)
        got.append(item[:2])

    p = Pipeline("back-pressure")
    (
        p.read_from(sources.items(range(3000)))
        .map(lambda n: (n, 0, os.urandom(10_000)))
        .write_to(sinks.client(wait, name="out"))
    )
    job = engine.submit(p)

    def received():
        return job.metrics()["out"].received if "out" in job.metrics() else 0

    until(lambda: received() > 100)
    seen = -1
    while seen != received():
        seen = received()
        time.sleep(0.6)
    # Two members; a batch may overshoot the window.
    assert seen * 10_000 < 2 * (WINDOW + 4096 * 10_000)
    assert seen < 3000
    release.set()
    job.join(PROMPT)
    assert sorted(got) == [(n, 0) for n in range(3000)]


# --- Cancelling -----------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["joining", "preparing", "running", "sink"])
def test_cancel_lets_members_end_by_themselves_in_every_phase(engine, phase, monkeypatch):
    seen = threading.Event()
    out = sinks.client(lambda item: seen.set())

    class Slow(ProcessorSupplier):
        def init(self, context):
            if phase == "preparing" and context.member_index == 1:
                time.sleep(1)

        def get(self):
            return Here()

    if phase == "sink":
        out = sinks.client(lambda item: (seen.set(), time.sleep(0.2)))
    job = engine.submit(dag_to(out, "cancelled", Slow()))
    if phase == "preparing":
        until(
            lambda: job._runner._attempt and job._runner._attempt._coordinator.phase.value == phase
        )
    elif phase != "joining":
        assert seen.wait(PROMPT)
    killed = []
    kill = ProcessLauncher.kill
    monkeypatch.setattr(
        ProcessLauncher, "kill", lambda self, index: (killed.append(index), kill(self, index))
    )
    job.cancel()
    # Those that have not come yet have nothing to tidy up.
    assert killed == [] or phase == "joining"
    with pytest.raises(JobCancelledError):
        job.join(PROMPT)
    assert job.status is JobStatus.CANCELLED


def test_sink_may_cancel_its_own_job(engine):
    jobs = []

    def cancel(item):
        jobs[0].cancel()

    ready = threading.Event()
    dag = dag_to(sinks.client(lambda item: ready.wait(PROMPT) and cancel(item)), "own", Here)
    jobs.append(engine.submit(dag))
    ready.set()
    with pytest.raises(JobCancelledError):
        jobs[0].join(PROMPT)


def test_join_gives_up_after_its_timeout(engine):
    job = engine.submit(dag_to(sinks.client(lambda item: None), "endless", Here))
    with pytest.raises(TimeoutError):
        job.join(0.01)
    job.cancel()


def test_closing_the_engine_cancels_what_runs():
    with EmbeddedEngine(members=2) as engine:
        job = engine.submit(dag_to(sinks.client(lambda item: None), "endless", Here))
        until(lambda: job.status is JobStatus.RUNNING)
    assert job.status is JobStatus.CANCELLED


def test_stuck_function_does_not_outlive_the_job(engine, monkeypatch):
    monkeypatch.setattr(members_coordinator, "STOP_LIMIT", 0.1)

    class Stuck(Processor):
        is_cooperative = False

        def complete(self):
            time.sleep(3600)
            return True

    job = engine.submit(dag_to(sinks.collect(), "stuck", Stuck))
    until(lambda: job.status is JobStatus.RUNNING)
    job.cancel()


def _is_ours(name):
    """Not the thread that shows a JVM's output: Spark tests in the same process leave it."""
    return name.startswith("jetlet") and not name.startswith("jetlet-spark")


def test_members_listen_at_the_ports_that_a_firewall_lets_through():
    first, last = 21_000, 21_400

    def reached(item):
        """Ports of the range to which something on this machine is connected."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ports = {int(line[1].partition(":")[2], 16) for line in lines if line[3] == "01"}
        return sorted(port for port in ports if first <= port <= last)

    p, out = Pipeline("ports"), sinks.collect()
    p.read_from(sources.items([1, 2])).rebalance().map(reached).write_to(out)
    with EmbeddedEngine(members=2) as engine:
        engine.submit(p, JobConfig(tls=True, ports=(first, last))).join(PROMPT)
    assert all(len(ports) >= 2 for ports in out.items), "of who submitted, and of a member"
