"""Jobs on member processes that are killed, stopped and resumed, with as many members or others."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from jetlet import EmbeddedEngine, JobConfig, JobStatus
from jetlet.core import DAG, Processor, State, Traits, Vertex, between
from jetlet.errors import JobFailedError
from jetlet.jobs.members.messages import Saved
from jetlet.snapshots.format import SnapshotRecord
from jetlet.snapshots.member_report import MemberReport
from jetlet.snapshots.store import SnapshotStore
from jetlet.storage.file_systems import locate

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COUNT = 60_000


class Pace:
    """Lets the sources go so far by the clock, so that a job takes a while in any process."""

    failing_at: dict = {}

    def __init__(self, count, seconds):
        self._count, self._seconds = count, seconds
        self._start = None

    @property
    def limit(self):
        self._start = self._start or time.monotonic()
        return int(self._count * min(1.0, (time.monotonic() - self._start) / self._seconds))


@pytest.fixture
def config(tmp_path):
    def make(**settings):
        settings.setdefault("processing_guarantee", "exactly-once")
        settings.setdefault("snapshot_interval", 0.02)
        settings.setdefault("restart_pause", 0.01)
        return JobConfig(snapshot_dir=str(tmp_path / "state"), **settings)

    return make


@pytest.fixture
def ledger(kit, tmp_path):
    return kit.LedgerFiles(tmp_path / "ledger")


def dag_of(kit, ledger, seconds, count=COUNT):
    return kit.counting_dag(
        count, partial(kit.LedgerSink, ledger), tap=Pace(count, seconds), hook=ledger
    )


def check_exact(ledger, kit, count=COUNT):
    items = ledger.items
    assert sorted(item for _, _, item in items) == list(range(count))
    assert sorted((key, n) for key, n, _ in items) == kit.counted(count)


def taken(job):
    return job.metrics().snapshots["taken"]


def take_some(kit, job, count=2):
    before = taken(job)
    kit.eventually(lambda: taken(job) >= before + count or job.status.is_final)
    assert not job.status.is_final


def kill(job, member):
    children = job._runner._attempt._launcher._children
    os.kill(children[member]._process.pid, signal.SIGKILL)


# --- Members ----------------------------------------------------------------------------------


@pytest.mark.fault
def test_killed_members_leave_no_trace_in_the_results(kit, config, ledger):
    with EmbeddedEngine(members=2, workers=1) as engine:
        job = engine.submit(dag_of(kit, ledger, 3.0), config())
        for member in (0, 1, 1):
            take_some(kit, job, 3)
            kill(job, member)
        job.join(kit.PROMPT)
    assert job.metrics().snapshots["restarts"] == 3
    check_exact(ledger, kit)


@pytest.mark.fault
def test_at_least_once_loses_nothing_when_a_member_is_killed(kit, config, ledger):
    with EmbeddedEngine(members=2, workers=1) as engine:
        job = engine.submit(dag_of(kit, ledger, 2.0), config(processing_guarantee="at-least-once"))
        take_some(kit, job, 3)
        kill(job, 1)
        job.join(kit.PROMPT)
    assert {item for _, _, item in ledger.items} == set(range(COUNT))


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_suspended_members_go_on_where_they_were(kit, config, ledger, guarantee):
    with EmbeddedEngine(members=2, workers=1) as engine:
        job = engine.submit(dag_of(kit, ledger, 1.0), config(processing_guarantee=guarantee))
        take_some(kit, job)
        job.suspend()
        assert job.status is JobStatus.SUSPENDED
        items = len(ledger.items)
        assert items > 0
        job.export_snapshot("suspended")
        job.resume()
        job.join(kit.PROMPT)
    check_exact(ledger, kit)
    assert len(ledger.items) > items
    assert job.metrics()["counts"].received == COUNT


def test_job_goes_on_with_another_number_of_members(kit, config, ledger):
    for members, parallelism in ((2, 1), (3, 2), (1, 3)):
        with EmbeddedEngine(members=members, workers=1) as engine:
            job = engine.submit(dag_of(kit, ledger, 20.0), config(default_parallelism=parallelism))
            take_some(kit, job, 3)
    with EmbeddedEngine(members=2, workers=1) as engine:
        job = engine.submit(dag_of(kit, ledger, 0.5), config())
        job.join(kit.PROMPT)
    check_exact(ledger, kit)


def test_cancelling_during_a_snapshot_leaves_the_one_before_it(kit, config, ledger, tmp_path):
    for _ in range(5):
        with EmbeddedEngine(members=2, workers=1) as engine:
            # With so short an interval there is hardly a moment without a snapshot under way.
            job = engine.submit(dag_of(kit, ledger, 20.0), config(snapshot_interval=0.0001))
            take_some(kit, job, 2)
        storage, root = locate(str(tmp_path / "state"))
        last = SnapshotStore(storage, root, "counting").snapshots()[0]
        assert last.record.vertices["numbers"].entries == 4


def test_members_write_their_own_files(kit, config, ledger, tmp_path):
    with EmbeddedEngine(members=3, workers=1) as engine:
        job = engine.submit(dag_of(kit, ledger, 20.0), config())
        take_some(kit, job)
        job.export_snapshot("mine")
        job.cancel()
    (path,) = (tmp_path / "state/exports/mine").glob("*.json")
    record = SnapshotRecord.from_bytes(path.read_bytes(), "record")
    assert record.members == 3
    assert {file.name.split("-")[-1] for file in record.files} == {
        "0.state",
        "1.state",
        "2.state",
    }
    assert record.vertices["counts"].entries == 5
    assert record.vertices["counts"].processors == 3
    assert record.vertices["numbers"].entries == 4


def test_member_without_room_for_its_file_fails_the_snapshot_only(kit, config, ledger, tmp_path):
    with EmbeddedEngine(members=2, workers=1) as engine:
        job = engine.submit(dag_of(kit, ledger, 3.0), config())
        take_some(kit, job)
        areas = list((tmp_path / "state/jobs/counting").glob("area-*"))
        # Nobody can write into what is not a directory, not even the superuser.
        blocked = [area.with_name(f"{area.name}-aside") for area in areas]
        for area, aside in zip(areas, blocked, strict=True):
            area.rename(aside)
            area.write_text("")
        failed = job.metrics().snapshots["failed"]
        kit.eventually(lambda: job.metrics().snapshots["failed"] >= failed + 2)
        for area in areas:
            area.unlink()
        take_some(kit, job)
        kill(job, 0)
        job.join(kit.PROMPT)
    check_exact(ledger, kit)


def test_failure_that_a_restart_cannot_cure_ends_the_job(kit, config, ledger):
    pace = Pace(COUNT, 1.0)
    pace.failing_at = {1000: ValueError("bad")}
    dag = kit.counting_dag(COUNT, partial(kit.LedgerSink, ledger), tap=pace, hook=ledger)
    with EmbeddedEngine(members=2, workers=1) as engine:
        job = engine.submit(dag, config())
        with pytest.raises(JobFailedError, match="bad"):
            job.join(kit.PROMPT)
    assert job.metrics().snapshots["restarts"] == 0


class UntilMarked:
    """Keeps the last items back until there is a mark, so that no job ends before it."""

    failing_at: dict = {}

    def __init__(self, count, mark):
        self._count, self._mark = count, mark

    @property
    def limit(self):
        return self._count if Path(self._mark).exists() else self._count - 4


class StuckOnce(Processor):
    """The first one of all that is to save does not come back; it leaves a mark for the others."""

    is_cooperative = False
    traits = Traits(state=State.NONE)

    def __init__(self, mark):
        self._mark = mark

    def process_item(self, ordinal, item):
        return self.try_emit(item)

    def restore_from_snapshot(self, inbox):
        inbox.clear()

    def save_to_snapshot(self):
        try:
            Path(self._mark).touch(exist_ok=False)
        except FileExistsError:
            return True
        threading.Event().wait()
        return True


@pytest.mark.fault
def test_member_that_does_not_answer_is_named_and_the_job_restarted(
    kit, config, ledger, tmp_path, caplog
):
    dag, mark = DAG("counting"), str(tmp_path / "mark")
    numbers = dag.new_vertex("numbers", partial(kit.Numbers, COUNT, UntilMarked(COUNT, mark)))
    stuck = dag.new_vertex("stuck", partial(StuckOnce, mark))
    counts = dag.new_vertex("counts", kit.CountByKey)
    write = dag.vertex(Vertex("write", partial(kit.LedgerSink, ledger), hook=ledger))
    dag.edge(between(numbers, stuck))
    dag.edge(between(stuck, counts).partitioned(lambda n: n % 5).distributed())
    dag.edge(between(counts, write))
    with EmbeddedEngine(members=2, workers=1) as engine:
        job = engine.submit(dag, config(snapshot_timeout=1.0))
        job.join(kit.PROMPT)
    check_exact(ledger, kit)
    assert job.metrics().snapshots["restarts"] >= 1
    told = [r.getMessage() for r in caplog.records if "is not complete after" in r.getMessage()]
    assert any(re.search(r"no answer from .*stuck#\d.* on member \d", each) for each in told)


def test_what_another_attempt_says_is_not_heard(kit, config, ledger):
    with EmbeddedEngine(members=2, workers=1) as engine:
        job = engine.submit(dag_of(kit, ledger, 1.0), config())
        take_some(kit, job, 1)
        attempt = job._runner._attempt
        lie = MemberReport(error="a lie")
        for epoch in (0, 2):
            for snapshot_id in range(100):
                attempt.call_soon(attempt._hear_of_snapshot, 0, Saved(epoch, snapshot_id, lie))
        job.join(kit.PROMPT)
    assert job.metrics().snapshots["failed"] == 0
    check_exact(ledger, kit)


# --- The coordinator --------------------------------------------------------------------------

SCRIPT = """
    import sys, time
    sys.path.insert(0, {tests!r})
    import conftest as kit
    from test_member_jobs import Pace
    from jetlet import EmbeddedEngine, JobConfig
    from functools import partial

    def main():
        ledger = kit.LedgerFiles({ledger!r})
        dag = kit.counting_dag(
            {count}, partial(kit.LedgerSink, ledger), tap=Pace({count}, {seconds}), hook=ledger
        )
        config = JobConfig(
            processing_guarantee="exactly-once", snapshot_interval=0.02, snapshot_dir={state!r}
        )
        with EmbeddedEngine(members={members}, workers=1) as engine:
            engine.submit(dag, config).join()
            print("done", flush=True)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.fault
def test_killed_coordinator_leaves_no_trace_in_the_results(kit, ledger, tmp_path):
    script = tmp_path / "job.py"
    values = {
        "tests": str(Path(__file__).parent),
        "ledger": str(tmp_path / "ledger"),
        "state": str(tmp_path / "state"),
        "count": COUNT,
    }

    def start(seconds, members):
        text = textwrap.dedent(SCRIPT).format(**values, seconds=seconds, members=members)
        script.write_text(text)
        return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)

    records = tmp_path / "state/jobs/counting"
    for members in (2, 1, 2):
        before = {path.name for path in records.glob("area-*/*.json")}
        process = start(20.0, members)
        try:
            kit.eventually(
                lambda before=before: (
                    len({path.name for path in records.glob("area-*/*.json")} - before) >= 2
                )
            )
        finally:
            process.kill()
            process.communicate()
    process = start(0.5, 2)
    out, _ = process.communicate(timeout=kit.PROMPT)
    assert out == "done\n"
    check_exact(ledger, kit)
