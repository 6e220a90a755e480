"""Streams on members that Spark hosts, on two cores of this machine."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from jetlet import JobConfig, Pipeline, SparkEngine, agg, sinks, sources, windows
from jetlet.errors import (
    JobCancelledError,
    JobFailedError,
    JobStateError,
    PlanningError,
    UnpicklableFunctionError,
    UnsupportedFeatureError,
)
from jetlet.jobs.job import JobStatus
from jetlet.jobs.members import members_coordinator
from jetlet.log import Log
from jetlet.spark.members import hosted
from jetlet.testing import END, Timed, scripted_stream

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROMPT = 60.0
"""Seconds that nothing here should come near, however busy the machine."""
MEMBERS = JobConfig(streaming="members")


def wait_until(condition):
    deadline = time.monotonic() + PROMPT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_alive(process):
    """True if there is such a process, and it is not merely waited for by its parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def endless(name="endless"):
    """A stream, and a sink that gets (process, number)."""
    p, out = Pipeline(name), sinks.collect()
    stream = p.read_from(sources.item_stream(500), local_parallelism=1).without_timestamps()
    numbers = stream.map(lambda event: event[1] if isinstance(event, tuple) else event)
    numbers.rebalance().map(lambda n: (os.getpid(), n)).write_to(out)
    return p, out


@contextmanager
def running(engine, pipeline, config=None):
    job = engine.submit(pipeline, config)
    try:
        wait_until(lambda: job.status is not JobStatus.STARTING)
        yield job
    finally:
        job.cancel()


class Reading:
    """What a test sends through a job; its class is known in this process only."""

    def __init__(self, process, value):
        self.process = process
        self.value = value


# --- The way to the driver ----------------------------------------------------------------------


def test_members_that_cannot_reach_the_driver_say_what_they_need(engine, monkeypatch):
    # It listens at one address of this machine, and is known by another one.
    monkeypatch.setattr(
        "jetlet.spark.members.hosted.place_of_driver", lambda spark: ("127.0.0.1", "127.0.0.2")
    )
    p, _ = endless("unreachable")
    with pytest.raises(JobFailedError) as told:
        engine.submit(p).join(PROMPT)
    message = str(told.value)
    assert "cannot reach the driver at tcp:127.0.0.2:" in message
    assert "Members need a way back to it from the executors: open the firewall" in message
    assert "over Spark Connect, run this program where they reach it" in message
    assert "\n" not in message


# --- Results ----------------------------------------------------------------------------------


def test_windows_of_a_stream_on_two_members(engine):
    events = [(n * 3, n) for n in range(2000)]
    parts = [[*(Timed(*e) for e in events[i::4]), END] for i in range(4)]
    p, out, seen = Pipeline("windows"), sinks.collect(), sinks.collect()
    stream = p.read_from(scripted_stream(*parts)).with_native_timestamps(50)
    stream.map(lambda n: Reading(os.getpid(), n)).write_to(seen)
    keyed = stream.grouping_key(lambda n: n % 7).window(windows.tumbling(500))
    keyed.aggregate(agg.counting()).write_to(out)

    job = engine.submit(p)
    job.join(PROMPT)

    expected = Counter((at - at % 500, n % 7) for at, n in events)
    assert {(w.start, w.key): w.result for w in out.items} == expected
    assert all(type(item) is Reading for item in seen.items)
    assert sorted(item.value for item in seen.items) == list(range(2000))
    processes = {item.process for item in seen.items}
    assert len(processes) == 2
    assert job.metrics()["collect-sink-2"].received == len(out.items)
    assert {row["member"] for row in job.metrics().edges} == {0, 1}
    # A Python worker that has been a member is not used for anything else.
    wait_until(lambda: not any(map(is_alive, processes)))


def test_a_bounded_pipeline_on_members_gives_what_the_batch_job_gives(engine):
    found = []
    for config in (MEMBERS, JobConfig()):
        p, out = Pipeline("squares"), sinks.collect()
        stage = p.read_from(sources.items(range(3000))).grouping_key(lambda n: n % 11)
        stage.aggregate(agg.summing()).write_to(out)
        engine.submit(p, config).join(PROMPT)
        found.append(sorted(out.items))
    assert found[0] == found[1]
    assert len(found[0]) == 11


def test_a_failing_function_ends_the_job_with_its_error(engine):
    p = Pipeline("bad")
    stage = p.read_from(sources.items([2, 1, 0]))
    stage.map(lambda n: 6 // n, name="divide").write_to(sinks.collect())
    with pytest.raises(JobFailedError, match="'divide'") as failure:
        engine.submit(p, MEMBERS).join(PROMPT)
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


# --- Ends -------------------------------------------------------------------------------------


def test_cancelling_leaves_no_process(engine):
    p, out = endless()
    with running(engine, p) as job:
        wait_until(lambda: len({process for process, _ in out.items}) == 2)
        processes = {process for process, _ in out.items}
        assert all(map(is_alive, processes))
        job.cancel()
    wait_until(lambda: not any(map(is_alive, processes)))
    with pytest.raises(JobCancelledError):
        job.join()
    names = [thread.name for thread in threading.enumerate()]
    ours = ("jetlet-members", "jetlet-coordinator", "jetlet-job")
    assert not [name for name in names if name.startswith(ours)]


def test_a_job_that_has_hardly_begun_can_be_cancelled(engine):
    for pause in (0.0, 0.05, 0.3):
        job = engine.submit(endless()[0])
        time.sleep(pause)
        job.cancel()
        assert isinstance(job.error, JobCancelledError)
    assert not engine.jobs


def test_a_function_that_hangs_does_not_hold_up_the_end(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(members_coordinator, "STOP_LIMIT", 0.2)
    began = tmp_path / "began"

    def hang(n):
        began.write_text(str(os.getpid()))
        time.sleep(1000)

    p = Pipeline("hanging")
    p.read_from(sources.item_stream(10)).without_timestamps().map(hang).write_to(sinks.noop())
    with running(engine, p):
        wait_until(lambda: began.exists() and began.read_text())
    wait_until(lambda: not is_alive(int(began.read_text())))


# --- Snapshots --------------------------------------------------------------------------------

KEYS = 5


class Growing:
    """A log that grows until the end of the block, and what a job makes of it."""

    def __init__(self, directory):
        self.size = 0
        self._directory = directory
        self._members = directory / "members"
        self._members.mkdir()
        self._log = Log(directory / "log", partitions=3, serializer="json")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self):
        while not self._is_over.wait(0.01):
            self._log.append([[n] for n in range(self.size, self.size + 9)], partition=None)
            self.size += 9

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()
        self._log.close()

    def pipeline(self):
        directory, noted = str(self._members), set()

        def count(state, key, item):
            if not noted:
                noted.add(Path(directory, str(os.getpid())).touch())
            state[0] += 1
            return [key, state[0], item[0]]

        p = Pipeline("growing")
        stream = p.read_from(sources.log(self._directory / "log", serializer="json"))
        keyed = stream.without_timestamps().grouping_key(lambda item: item[0] % KEYS)
        counted = keyed.map_stateful(lambda: [0], count)
        counted.write_to(sinks.json_lines(self._directory / "out"))
        return p

    def config(self, **options):
        return JobConfig(
            processing_guarantee="exactly-once",
            snapshot_interval=0.2,
            snapshot_dir=str(self._directory / "state"),
            **options,
        )

    def members(self):
        """The processes of members that have counted and are alive."""
        return [int(each.name) for each in self._members.iterdir() if is_alive(each.name)]

    def results(self):
        parts = (self._directory / "out").glob("part-*")
        return [json.loads(line) for part in parts for line in part.read_text().splitlines()]

    def check(self):
        """Everything is there once, and counted in one go, as if nothing had happened."""
        found = self.results()
        assert sorted(n for _, _, n in found) == list(range(self.size))
        for key in range(KEYS):
            counts = sorted(count for k, count, _ in found if k == key)
            assert counts == list(range(1, len(counts) + 1))


@pytest.mark.fault
def test_exactly_once_through_a_killed_worker_and_all_else(engine, tmp_path):
    with Growing(tmp_path) as growing:
        job = engine.submit(growing.pipeline(), growing.config())

        def has_taken(count):
            return job.status is JobStatus.RUNNING and job.metrics().snapshots["taken"] >= count

        wait_until(lambda: has_taken(2))
        os.kill(growing.members()[0], signal.SIGKILL)
        wait_until(lambda: job.metrics().snapshots["restarts"] == 1)
        wait_until(lambda: has_taken(4))
        job.suspend()
        assert job.status is JobStatus.SUSPENDED
        assert growing.members() == []
        job.resume()
        wait_until(lambda: job.status is JobStatus.RUNNING)
        job.export_snapshot("kept")
        job.restart()
        wait_until(lambda: has_taken(6))
        job.cancel()
        # The next one goes on where that was, with another number of members.
        with SparkEngine(session=engine.session, members=1) as smaller:
            job = smaller.submit(growing.pipeline(), growing.config())
            wait_until(lambda: has_taken(2))
            growing.__exit__()
            wait_until(lambda: len(growing.results()) >= growing.size)
    growing.check()


def test_a_job_goes_on_exactly_with_another_number_of_members(engine, tmp_path):
    with Growing(tmp_path) as growing:
        job = engine.submit(growing.pipeline(), growing.config())

        def runs_on(members):
            workers = {worker["member"] for worker in job.metrics().workers}
            return job.status is JobStatus.RUNNING and len(workers) == members

        wait_until(lambda: runs_on(2))
        with pytest.raises(JobStateError, match="there is no place for 3 members"):
            job.rescale(3)
        job.rescale(1)
        wait_until(lambda: runs_on(1))
        job.rescale(2)
        wait_until(lambda: runs_on(2))
        growing.__exit__()
        wait_until(lambda: len(growing.results()) >= growing.size)
        job.cancel()
    growing.check()


def test_a_job_without_snapshots_says_so_and_fails_with_its_worker(engine):
    p, out = endless()
    job = engine.submit(p)
    wait_until(lambda: out.items)
    with pytest.raises(JobStateError, match="takes no snapshots"):
        job.suspend()
    os.kill(out.items[0][0], signal.SIGKILL)
    with pytest.raises(JobFailedError, match="died with its Python worker"):
        job.join(PROMPT)


# --- Refusals ---------------------------------------------------------------------------------


def test_more_members_than_slots_are_refused_at_once(engine):
    with (
        SparkEngine(session=engine.session, members=3) as wide,
        pytest.raises(PlanningError, match=r"write SparkEngine\(members=2\)"),
    ):
        wide.submit(endless()[0])


def test_jobs_share_the_slots_if_they_are_told_to(engine):
    with SparkEngine(session=engine.session, members=1) as narrow:
        first, out = endless("first")
        second, others = endless("second")
        with running(narrow, first), running(narrow, second):
            wait_until(lambda: out.items and others.items)
            with pytest.raises(PlanningError, match="other jobs hold 2"):
                narrow.submit(endless("third")[0])


def test_members_that_find_their_slots_taken_say_so(engine, monkeypatch):
    p = Pipeline("holding")
    p.read_from(sources.items([1000])).map(time.sleep).write_to(sinks.noop())
    holding = engine.submit(p)
    tracker = engine.session.sparkContext.statusTracker()

    def holds():
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return any(stage is not None and stage.numActiveTasks for stage in stages)

    try:
        wait_until(holds)
        monkeypatch.setattr(hosted, "START_LIMIT", 0.0)
        with pytest.raises(JobFailedError, match=r"got no slot .* other jobs hold them"):
            engine.submit(endless()[0]).join(PROMPT)
    finally:
        holding.cancel()


def test_members_that_start_slowly_blame_nobody(engine, monkeypatch):
    monkeypatch.setattr(hosted, "START_LIMIT", 0.0)
    p, out = endless()
    with running(engine, p):
        wait_until(lambda: out.items)


def test_dataframes_are_for_batch_jobs(engine):
    p, _ = endless()
    frame = sources.spark(lambda spark: spark.range(3))
    p.read_from(frame).write_to(sinks.collect())
    with pytest.raises(UnsupportedFeatureError, match="reads a DataFrame"):
        engine.submit(p)


def test_what_cannot_travel_is_refused_when_submitted(engine):
    lock = threading.Lock()
    p = Pipeline("locked")
    stream = p.read_from(sources.item_stream(10)).without_timestamps()
    stream.map(lambda x: lock and x, name="locked").write_to(sinks.collect())
    with pytest.raises(UnpicklableFunctionError, match="stage 'locked'"):
        engine.submit(p)
    assert not engine.jobs


def test_a_guarantee_needs_a_place(engine):
    with pytest.raises(PlanningError, match="snapshot_dir"):
        engine.submit(endless()[0], JobConfig(processing_guarantee="exactly-once"))
