"""Jobs in this process that take snapshots, are stopped in many ways, and go on."""

from __future__ import annotations

import io
import random
import re
import shutil
import threading
from functools import partial

import pytest

from jetlet import EmbeddedEngine, JobConfig, JobStatus, Pipeline, sinks, sources
from jetlet.core import DAG, Processor, State, Traits, Vertex, between, from_
from jetlet.errors import (
    InvalidArgumentError,
    JobCancelledError,
    JobFailedError,
    JobStateError,
    RestartableError,
    SnapshotError,
)
from jetlet.pipeline.source import BatchSource
from jetlet.processors.ends.read import ReadSupplier
from jetlet.snapshots import driver
from jetlet.snapshots.directory import RecordInDoubtError, SnapshotDirectory
from jetlet.snapshots.store import SnapshotStore
from jetlet.storage.file_systems import LocalStorage, locate
from jetlet.testing import END, VirtualClock, pause, scripted_stream

pytestmark = pytest.mark.usefixtures("no_thread_left")

COUNT = 20_000


@pytest.fixture(params=[1, 2], ids=["1 worker", "2 workers"])
def engine(request):
    with EmbeddedEngine(workers=request.param) as made:
        yield made


@pytest.fixture
def config(tmp_path):
    """A configuration with a directory of the test's own."""

    def make(**settings):
        settings.setdefault("processing_guarantee", "exactly-once")
        settings.setdefault("snapshot_interval", 0.005)
        settings.setdefault("restart_pause", 0.001)
        return JobConfig(snapshot_dir=str(tmp_path / "state"), **settings)

    return make


def taken(job):
    return job.metrics().snapshots["taken"]


def take_some(kit, job, count=2):
    """Wait until the job has taken so many snapshots more."""
    before = taken(job)
    kit.eventually(lambda: taken(job) >= before + count or job.status.is_final)


def check_exact(ledger, kit, count=COUNT):
    assert sorted((key, n) for key, n, _ in ledger.items) == kit.counted(count)
    assert sorted(item for _, _, item in ledger.items) == list(range(count))


# --- Going on ---------------------------------------------------------------------------------


def test_job_that_is_not_disturbed_completes(engine, kit, config):
    ledger = kit.Ledger()
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), hook=ledger)
    job = engine.submit(dag, config())
    job.join(kit.PROMPT)
    check_exact(ledger, kit)
    assert job.status is JobStatus.COMPLETED
    assert job.metrics().snapshots["failed"] == 0
    assert ledger.calls == ["begin", "commit"]


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_suspended_job_goes_on_where_it_was(engine, kit, config, guarantee):
    # Terminal barriers are aligned whatever the guarantee, so nothing is done twice.
    ledger, tap = kit.Ledger(), kit.Tap(1000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config(processing_guarantee=guarantee, default_parallelism=2))
    for limit in (3000, 7000, None):
        job.suspend()
        assert job.status is JobStatus.SUSPENDED
        assert job.metrics().snapshots["failed"] == 0
        before = len(ledger.items)
        with pytest.raises(TimeoutError, match="is still suspended"):
            job.join(0.01)
        assert len(ledger.items) == before
        tap.limit = limit
        job.resume()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)
    assert ledger.calls == ["begin", "commit"]
    # What is counted goes on from one attempt to the next.
    assert job.metrics()["counts"].received == COUNT
    assert job.metrics()["counts"].queue_size == 0


def test_all_output_is_committed_when_a_job_is_suspended(engine, kit, config):
    ledger, tap = kit.Ledger(), kit.Tap(1000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config(snapshot_interval=1000.0))
    kit.eventually(lambda: "counts" in job.metrics() and job.metrics()["counts"].received == 1000)
    assert ledger.items == []
    job.suspend()
    check_exact(ledger, kit, 1000)
    job.cancel()


def test_restarted_job_goes_on_where_it_was(engine, kit, config):
    ledger, tap = kit.Ledger(), kit.Tap(1000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    for limit in (3000, 7000, None):
        job.restart()
        tap.limit = limit
    job.join(kit.PROMPT)
    check_exact(ledger, kit)


def test_ten_restarts_with_a_snapshot_each_few_milliseconds(engine, kit, config):
    ledger, tap = kit.Ledger(), kit.Tap()
    steps = random.Random(7)
    tap.failing_at = {
        steps.randrange(COUNT * 5): RestartableError(f"number {n}") for n in range(10)
    }
    dag = kit.counting_dag(COUNT * 5, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config(snapshot_interval=0.001, max_restarts=10))
    job.join(kit.PROMPT)
    check_exact(ledger, kit, COUNT * 5)
    assert job.metrics().snapshots["restarts"] == 10
    assert ledger.calls == ["begin", "commit"]


def test_at_least_once_loses_nothing(engine, kit, config):
    items, tap = [], kit.Tap()
    tap.failing_at = {n: RestartableError(f"number {n}") for n in range(1000, COUNT, 5000)}
    dag = kit.counting_dag(COUNT, lambda: kit.Bag(items), tap=tap)
    job = engine.submit(dag, config(processing_guarantee="at-least-once"))
    job.join(kit.PROMPT)
    assert {item for _, _, item in items} == set(range(COUNT))


def test_without_a_guarantee_a_job_can_be_suspended(engine, kit, config):
    ledger, tap = kit.Ledger(), kit.Tap(1000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config(processing_guarantee="none"))
    job.suspend()
    assert taken(job) == 1, "only on request"
    tap.open()
    job.resume()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)


# --- Failing ----------------------------------------------------------------------------------


def test_failure_that_a_restart_cannot_cure_ends_the_job(engine, kit, config):
    tap = kit.Tap()
    tap.failing_at = {5000: ValueError("bad")}
    dag = kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=tap)
    job = engine.submit(dag, config())
    with pytest.raises(JobFailedError, match="bad"):
        job.join(kit.PROMPT)
    assert job.metrics().snapshots["restarts"] == 0


def test_restarts_have_a_limit(engine, kit, config):
    class Doomed(Processor):
        traits = Traits(state=State.NONE)

        def complete(self):
            raise RestartableError("no luck")

    dag = DAG("doomed")
    dag.new_vertex("doomed", Doomed, 1)
    job = engine.submit(dag, config(max_restarts=3))
    with pytest.raises(RestartableError, match="no luck"):
        job.join(kit.PROMPT)
    assert job.metrics().snapshots["restarts"] == 3


def test_without_a_guarantee_there_is_no_restart(engine, kit, config):
    tap = kit.Tap()
    tap.failing_at = {5000: RestartableError("lost")}
    dag = kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=tap)
    job = engine.submit(dag, config(processing_guarantee="none"))
    with pytest.raises(RestartableError, match="lost"):
        job.join(kit.PROMPT)


def test_failed_job_is_suspended_if_that_is_wanted(engine, kit, config):
    ledger, tap = kit.Ledger(), kit.Tap()
    tap.failing_at = {5000: ValueError("bad")}
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config(suspend_on_failure=True))
    kit.eventually(lambda: job.status is JobStatus.SUSPENDED)
    assert "bad" in str(job.error)
    job.resume()
    job.join(kit.PROMPT)
    assert job.error is None
    check_exact(ledger, kit)


def test_cancel_ends_a_suspended_job(engine, kit, config):
    ledger = kit.Ledger()
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=kit.Tap(1000), hook=ledger)
    job = engine.submit(dag, config())
    job.suspend()
    job.cancel()
    assert job.status is JobStatus.CANCELLED
    with pytest.raises(JobCancelledError):
        job.join(kit.PROMPT)
    assert ledger.calls == ["begin", "stop"]


def test_job_can_be_cancelled_while_it_waits_to_be_restarted(engine, kit, config):
    tap = kit.Tap()
    tap.failing_at = {500: RestartableError("lost")}
    job = engine.submit(
        kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=tap),
        config(restart_pause=1000.0, max_restart_pause=1000.0),
    )
    kit.eventually(lambda: job.status is JobStatus.NOT_RUNNING)
    job.cancel()
    assert job.status is JobStatus.CANCELLED


def test_job_can_be_suspended_while_it_waits_to_be_restarted(engine, kit, config):
    ledger, tap = kit.Ledger(), kit.Tap()
    tap.failing_at = {500: RestartableError("lost")}
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config(restart_pause=1000.0, max_restart_pause=1000.0))
    kit.eventually(lambda: job.status is JobStatus.NOT_RUNNING)
    job.suspend()
    assert job.status is JobStatus.SUSPENDED
    job.resume()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)


# --- Other processes --------------------------------------------------------------------------


def test_job_goes_on_in_another_engine(kit, config):
    ledger = kit.Ledger()
    for limit in (2000, 6000, 11_000):
        with EmbeddedEngine(workers=1) as engine:
            dag = kit.counting_dag(
                COUNT, lambda: kit.LedgerSink(ledger), tap=kit.Tap(limit), hook=ledger
            )
            job = engine.submit(dag, config())
            take_some(kit, job)
    with EmbeddedEngine(workers=1) as engine:
        dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), hook=ledger)
        job = engine.submit(dag, config())
        job.join(kit.PROMPT)
    check_exact(ledger, kit)
    assert ledger.calls == ["begin", "stop", *["resume", "stop"] * 2, "resume", "commit"]


def test_job_that_has_failed_goes_on_when_it_is_submitted_again(engine, kit, config):
    ledger, tap = kit.Ledger(), kit.Tap(5000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    take_some(kit, job)
    tap.failing_at = {9000: ValueError("bad")}
    tap.open()
    with pytest.raises(JobFailedError):
        job.join(kit.PROMPT)
    again = engine.submit(dag, config())
    assert again.id == job.id, "it is the same run"
    again.join(kit.PROMPT)
    check_exact(ledger, kit)


def test_completed_job_begins_anew(engine, kit, config):
    for _ in range(2):
        items = []
        dag = kit.counting_dag(COUNT, partial(kit.Bag, items))
        engine.submit(dag, config()).join(kit.PROMPT)
        assert sorted(item for _, _, item in items) == list(range(COUNT))


def test_job_can_begin_anew_on_request(engine, kit, config):
    dag = kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=kit.Tap(1000))
    job = engine.submit(dag, config())
    take_some(kit, job)
    job.cancel()
    ledger = kit.Ledger()
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), hook=ledger)
    engine.submit(dag, config(start_fresh=True)).join(kit.PROMPT)
    check_exact(ledger, kit)
    assert ledger.calls[0] == "begin"


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_job_goes_on_with_another_parallelism(engine, kit, config, before, after):
    ledger = kit.Ledger()
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=kit.Tap(5000), hook=ledger)
    job = engine.submit(dag, config(default_parallelism=before))
    take_some(kit, job)
    job.cancel()
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), hook=ledger)
    engine.submit(dag, config(default_parallelism=after)).join(kit.PROMPT)
    check_exact(ledger, kit)


def test_newer_attempt_elsewhere_ends_the_older_one(engine, kit, config):
    dag = kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=kit.Tap(1000))
    old = engine.submit(dag, config())
    take_some(kit, old)
    with EmbeddedEngine(workers=1) as other:
        new = other.submit(
            kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=kit.Tap(1000)), config()
        )
        with pytest.raises(JobFailedError, match="another attempt at job 'counting' has begun"):
            old.join(kit.PROMPT)
        take_some(kit, new)
        assert new.status is JobStatus.RUNNING


# --- Exports ----------------------------------------------------------------------------------


def test_job_starts_from_an_export(engine, kit, config):
    ledger, tap = kit.Ledger(), kit.Tap(4000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    kit.eventually(lambda: "counts" in job.metrics() and job.metrics()["counts"].received == 4000)
    job.export_snapshot("half")
    tap.open()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)

    items = []
    other = kit.counting_dag(COUNT, lambda: kit.Bag(items), name="other")
    # The sink of the export is not there any more, and its transactions are not ours.
    engine.submit(other, config(initial_snapshot="half")).join(kit.PROMPT)
    assert sorted(item for _, _, item in items) == list(range(4000, COUNT))
    assert sorted((k, n) for k, n, _ in items) == sorted(
        set(kit.counted(COUNT)) - set(kit.counted(4000))
    )


def test_export_names_are_not_used_twice(engine, kit, config):
    dag = kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=kit.Tap(1000))
    job = engine.submit(dag, config())
    job.export_snapshot("mine")
    with pytest.raises(SnapshotError, match="choose another name"):
        job.export_snapshot("mine")
    job.suspend()
    with pytest.raises(SnapshotError, match="choose another name"):
        job.export_snapshot("mine")
    job.export_snapshot("suspended")
    job.cancel()


def test_job_is_cancelled_and_goes_on_from_its_export(engine, kit, config):
    ledger, tap = kit.Ledger(), kit.Tap(4000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config(name="old"))
    kit.eventually(lambda: "counts" in job.metrics() and job.metrics()["counts"].received == 4000)
    job.cancel_and_export_snapshot("end")
    assert job.status is JobStatus.CANCELLED
    with pytest.raises(JobCancelledError):
        job.join(kit.PROMPT)
    check_exact(ledger, kit, 4000)
    tap.open()
    engine.submit(dag, config(name="new", initial_snapshot="end")).join(kit.PROMPT)
    check_exact(ledger, kit)


def test_job_that_cannot_be_exported_is_suspended(engine, kit, config):
    ledger, tap = kit.Ledger(), kit.Tap(4000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    job.export_snapshot("taken")
    with pytest.raises(SnapshotError, match="choose another name"):
        job.cancel_and_export_snapshot("taken")
    assert job.status is JobStatus.SUSPENDED
    tap.open()
    job.resume()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)


def test_export_by_its_path(engine, kit, config, tmp_path):
    dag = kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=kit.Tap(1000))
    job = engine.submit(dag, config())
    job.export_snapshot("mine")
    job.cancel()
    shutil.move(tmp_path / "state/exports/mine", tmp_path / "elsewhere")
    tap = kit.Tap()
    again = kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=tap, name="again")
    with pytest.raises(SnapshotError, match="no snapshot named 'mine'"):
        engine.submit(again, config(initial_snapshot="mine"))
    with pytest.raises(SnapshotError, match="there is no snapshot in"):
        engine.submit(again, config(initial_snapshot=str(tmp_path / "nowhere")))
    engine.submit(again, config(initial_snapshot=str(tmp_path / "elsewhere"))).join(kit.PROMPT)


# --- Trouble with the directory -----------------------------------------------------------------


@pytest.fixture
def trouble(monkeypatch):
    """Files that cannot be created while it is set to an error."""
    current = {"error": None}
    create = LocalStorage.create

    def failing(self, path):
        if current["error"] is not None and path.endswith(current.get("suffix", "")):
            raise current["error"]
        return create(self, path)

    monkeypatch.setattr(LocalStorage, "create", failing)
    return current


@pytest.mark.parametrize("suffix", [".state", ".json.part"], ids=["state", "record"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), PermissionError("denied")], ids=str
)
def test_failed_snapshots_do_not_stop_the_job(engine, kit, config, trouble, error, suffix, caplog):
    ledger, tap = kit.Ledger(), kit.Tap(5000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    take_some(kit, job)
    trouble.update(error=error, suffix=suffix)
    before = job.metrics().snapshots["failed"]
    kit.eventually(lambda: job.metrics().snapshots["failed"] >= before + 3)
    assert str(error) in job.metrics().snapshots["last_error"]
    assert caplog.text.count("failed, the job goes on") == 1, "once, not each time"
    tap.limit = 10_000
    trouble.update(error=None)
    take_some(kit, job)
    tap.failing_at = {12_000: RestartableError("lost")}
    tap.open()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)


class FullDisk(io.BytesIO):
    """A file that is created and cannot be written to."""

    def write(self, data):
        raise OSError(28, "No space left on device")

    def fileno(self):
        return -1


@pytest.mark.parametrize("suffix", ["member-0.state", ".json.part"], ids=["state", "record"])
def test_disk_that_fills_up_does_not_stop_the_job(engine, kit, config, monkeypatch, suffix, caplog):
    create, is_full = LocalStorage.create, []

    def open_full(self, path):
        is_part = "/area-" in path and path.endswith(suffix)
        return FullDisk() if is_full and is_part else create(self, path)

    monkeypatch.setattr(LocalStorage, "create", open_full)
    ledger, tap = kit.Ledger(), kit.Tap(5000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    take_some(kit, job)
    is_full.append(True)
    failed = job.metrics().snapshots["failed"]
    kit.eventually(lambda: job.metrics().snapshots["failed"] >= failed + 3)
    tap.failing_at = {7000: RestartableError("lost")}
    tap.limit = 10_000
    kit.eventually(lambda: job.metrics().snapshots["restarts"] == 1)
    assert "No space left" in job.metrics().snapshots["last_error"]
    is_full.clear()
    take_some(kit, job)
    tap.open()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)
    assert caplog.text.count("failed, the job goes on") == 1


LATE = {"close_durably", "move", "sync_directory"}
"""What may be done although it has failed."""


@pytest.mark.parametrize("seed", range(3))
def test_storage_that_fails_at_random_leaves_no_trace_in_the_results(
    engine, kit, config, monkeypatch, seed
):
    """Whatever it was doing: the outcome of a snapshot is known, or the attempt ends."""
    rng, has_begun = random.Random(seed), []

    def sabotage(name):
        original = getattr(LocalStorage, name)

        def call(self, *args):
            if has_begun and name != "close_durably" and rng.random() < 0.03:
                raise OSError(28, f"No space left on device, to {name}")
            result = original(self, *args)
            if has_begun and name in LATE and rng.random() < 0.03:
                raise OSError(5, f"Input/output error, after {name}")
            return result

        monkeypatch.setattr(LocalStorage, name, call)

    for name in ("create", "close_durably", "make_directory", "move", "sync_directory", "remove"):
        sabotage(name)
    ledger, tap = kit.Ledger(), kit.Tap()
    tap.failing_at = {n: RestartableError(f"number {n}") for n in range(900, COUNT, 1700)}
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    settings = config(snapshot_interval=0.001, max_restarts=1000, max_restart_pause=0.01)
    job = engine.submit(dag, settings)
    has_begun.append(True)
    job.join(kit.PROMPT)
    check_exact(ledger, kit)
    assert job.metrics().snapshots["restarts"] >= len(range(900, COUNT, 1700))


def test_directory_that_vanishes_is_made_again(engine, kit, config, tmp_path):
    ledger, tap = kit.Ledger(), kit.Tap(5000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    for _ in range(3):
        take_some(kit, job)
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
    take_some(kit, job)
    tap.failing_at = {12_000: RestartableError("lost")}
    tap.open()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)


def test_job_whose_snapshots_are_gone_does_not_begin_anew(engine, kit, config, tmp_path):
    """It would write again what was committed with them."""
    ledger, tap = kit.Ledger(), kit.Tap(5000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    take_some(kit, job)
    job.suspend()
    before = list(ledger.items)
    shutil.rmtree(tmp_path / "state")
    job.resume()
    with pytest.raises(
        SnapshotError, match=r"has no snapshot left .* is missing, although it was committed"
    ):
        job.join(kit.PROMPT)
    assert ledger.items == before


def test_each_cause_of_failed_snapshots_is_told_once(engine, kit, config, trouble, caplog):
    dag = kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=kit.Tap(5000))
    job = engine.submit(dag, config())

    def fail(error):
        trouble.update(error=error, suffix=".state")
        before = job.metrics().snapshots["failed"]
        kit.eventually(lambda: job.metrics().snapshots["failed"] >= before + 4)

    def told():
        return [r.getMessage() for r in caplog.records if "goes on" in r.getMessage()]

    fail(OSError(28, "No space left on device"))
    assert len(told()) == 1
    fail(PermissionError("denied"))
    assert len(told()) == 2
    trouble.update(error=None)
    take_some(kit, job)
    fail(PermissionError("denied"))
    assert len(told()) == 3, "in between it was good again"
    job.cancel()


def test_job_is_suspended_even_if_its_last_snapshot_fails(engine, kit, config, trouble):
    ledger, tap = kit.Ledger(), kit.Tap(5000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    take_some(kit, job)
    trouble.update(error=OSError("full"), suffix=".state")
    job.suspend()
    assert job.status is JobStatus.SUSPENDED
    trouble.update(error=None)
    tap.open()
    job.resume()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)


def test_record_in_doubt_restarts_the_job(engine, kit, config, monkeypatch):
    """Neither to commit nor to roll back would be safe; the next attempt looks and knows."""
    write_record, doubts = SnapshotDirectory.write_record, []

    def doubtful(self, record):
        write_record(self, record)
        if record.snapshot_id in (3, 6):
            doubts.append(record)
            raise RecordInDoubtError("who knows")

    monkeypatch.setattr(SnapshotDirectory, "write_record", doubtful)
    ledger, tap = kit.Ledger(), kit.Tap(5000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    kit.eventually(lambda: len(doubts) == 2 and taken(job) > 6)
    tap.open()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)
    assert job.metrics().snapshots["restarts"] == 2


class Stuck(Processor):
    """Passes items on, and does not come back from the first snapshot before it is let go."""

    is_cooperative = False

    def __init__(self, released, limits):
        self._released, self._limits = released, limits

    def process_item(self, ordinal, item):
        return self.try_emit(item)

    def restore_from_snapshot(self, inbox):
        inbox.clear()

    def save_to_snapshot(self):
        if not self._released.is_set():
            self._released.wait(self._limits.pop() if self._limits else 0)
        return True


def stuck_dag(kit, ledger, tap, released, limits):
    dag = DAG("counting")
    numbers = dag.new_vertex("numbers", lambda: kit.Numbers(COUNT, tap), 1)
    stuck = dag.new_vertex("stuck", lambda: Stuck(released, limits), 1)
    counts = dag.new_vertex("counts", lambda: kit.CountByKey(tap=tap), 1)
    write = dag.vertex(Vertex("write", lambda: kit.LedgerSink(ledger), hook=ledger))
    dag.edge(between(numbers, stuck))
    dag.edge(between(stuck, counts))
    dag.edge(between(counts, write))
    return dag


def test_snapshot_that_takes_too_long_restarts_the_job(engine, kit, config, caplog):
    ledger, tap, released = kit.Ledger(), kit.Tap(1000), threading.Event()
    dag = stuck_dag(kit, ledger, tap, released, [kit.PROMPT])
    job = engine.submit(dag, config(snapshot_timeout=0.3))
    kit.eventually(lambda: job.metrics().snapshots["restarts"] >= 1)
    released.set()
    tap.open()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)
    told = [r.getMessage() for r in caplog.records if "is not complete after" in r.getMessage()]
    assert re.search(r"snapshot 1 is not complete after 0.3 s: no answer from .*stuck#0", told[0])
    assert "after 0.6 s" in told[1]
    assert "after 0.9 s" in told[2]
    assert any("it is restarted" in each and "stuck#0" in each for each in told)


def test_snapshot_that_comes_late_counts(engine, kit, config, monkeypatch):
    monkeypatch.setattr(driver, "MAX_OVERDUE", 60)  # so that it may be rather late
    ledger, tap, released = kit.Ledger(), kit.Tap(1000), threading.Event()
    dag = stuck_dag(kit, ledger, tap, released, [kit.PROMPT])
    job = engine.submit(dag, config(snapshot_timeout=1.0))
    kit.eventually(lambda: job.metrics().snapshots["failed"] == 1)
    assert "no answer from stuck#0" in job.metrics().snapshots["last_error"]
    released.set()
    kit.eventually(lambda: taken(job) >= 2)
    assert job.metrics().snapshots["restarts"] == 0
    tap.open()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)


def test_job_has_completed_even_if_nobody_can_be_told(engine, kit, config, trouble, caplog):
    ledger, tap = kit.Ledger(), kit.Tap(5000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(dag, config())
    take_some(kit, job)
    trouble.update(error=OSError("full"), suffix=".end.part")
    tap.open()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)
    assert "start_fresh=True" in caplog.text


def test_directory_that_cannot_be_used_is_told_by_submit(engine, kit, config, tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(OSError):
        engine.submit(kit.counting_dag(COUNT, lambda: kit.Bag([])), config())
    assert engine.jobs == []


# --- Where and how often ----------------------------------------------------------------------


def test_as_many_snapshots_are_kept_as_wanted(engine, kit, config, tmp_path):
    dag = kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=kit.Tap(1000))
    job = engine.submit(dag, config(keep_snapshots=3))
    take_some(kit, job, 6)
    job.suspend()
    store = SnapshotStore(*locate(str(tmp_path / "state")), "counting")
    kept = [stored.record.snapshot_id for stored in store.snapshots()]
    assert len(kept) in (3, 4), "and perhaps one that would have been the next to go"
    assert kept == sorted(kept, reverse=True)
    assert kept[0] == job.metrics().snapshots["last_id"]
    job.cancel()


def test_snapshots_go_to_any_file_system(engine, kit, memory_url):
    ledger, tap = kit.Ledger(), kit.Tap(1000)
    dag = kit.counting_dag(COUNT, lambda: kit.LedgerSink(ledger), tap=tap, hook=ledger)
    job = engine.submit(
        dag,
        JobConfig(
            processing_guarantee="exactly-once", snapshot_interval=0.005, snapshot_dir=memory_url
        ),
    )
    take_some(kit, job)
    job.export_snapshot("half")
    job.restart()
    tap.open()
    job.join(kit.PROMPT)
    check_exact(ledger, kit)


def test_interval_goes_by_the_clock_of_the_engine(kit, config):
    minutes = [step for n in range(60) for step in (n, pause(60_000))]
    with EmbeddedEngine(workers=1, clock=VirtualClock(step_ms=1000)) as engine:
        p, out = Pipeline("hour"), sinks.collect()
        p.read_from(scripted_stream([*minutes, END])).without_timestamps().write_to(out)
        job = engine.submit(p, config(snapshot_interval=300.0))
        job.join(kit.PROMPT)
    assert out.items == list(range(60))
    assert 11 <= taken(job) <= 12, "every five minutes"


# --- Wrong requests ---------------------------------------------------------------------------


def test_job_without_snapshots_says_what_it_needs(engine, kit):
    job = engine.submit(kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=kit.Tap(1000)))
    for ask in (job.suspend, job.resume, job.restart, lambda: job.export_snapshot("x")):
        with pytest.raises(JobStateError, match="snapshot_dir"):
            ask()
    job.cancel()


def test_requests_that_do_not_go_with_the_status_are_refused(engine, kit, config):
    job = engine.submit(kit.counting_dag(COUNT, lambda: kit.Bag([]), tap=kit.Tap(1000)), config())
    with pytest.raises(JobStateError, match="a suspended job can be resumed"):
        job.resume()
    job.suspend()
    with pytest.raises(JobStateError, match="is suspended: a running job can be suspended"):
        job.suspend()
    with pytest.raises(JobStateError, match="is suspended: a running job can be restarted"):
        job.restart()
    job.cancel()
    for ask in (job.suspend, job.resume, job.restart):
        with pytest.raises(JobStateError, match="is cancelled"):
            ask()


def test_guarantee_without_a_directory_is_refused(engine, kit):
    with pytest.raises(InvalidArgumentError, match="snapshot_dir="):
        engine.submit(
            kit.counting_dag(1, lambda: kit.Bag([])), JobConfig(processing_guarantee="exactly-once")
        )


# --- Processors that have ended -----------------------------------------------------------------


def two_inputs(kit, ledger, hook, *, short, long, tap, bag):
    """A short and a long input, joined in one sink; the short one has another sink, too."""
    dag = DAG("two")
    a = dag.new_vertex("short", lambda: kit.Numbers(short))
    b = dag.new_vertex("long", lambda: kit.Numbers(long, tap))
    write = dag.vertex(Vertex("write", lambda: kit.LedgerSink(ledger), hook=hook))
    early = dag.vertex(Vertex("early", lambda: kit.LedgerSink(bag), hook=bag))
    dag.edge(between(a, write))
    dag.edge(from_(a, 1).to(early))
    dag.edge(from_(b).to(write, 1))
    return dag


@pytest.mark.parametrize("after", [1, 3])
def test_processors_that_have_completed_are_not_run_again(engine, kit, config, after):
    ledger, early, tap = kit.Ledger(), kit.Ledger(), kit.Tap(2000)
    dag = two_inputs(kit, ledger, ledger, short=500, long=COUNT, tap=tap, bag=early)
    job = engine.submit(dag, config(default_parallelism=2))
    kit.eventually(lambda: "early" in job.metrics() and job.metrics()["early"].received == 500)
    take_some(kit, job, 3)
    job.cancel()
    tap.open()
    job = engine.submit(dag, config(default_parallelism=after))
    job.join(kit.PROMPT)
    assert sorted(ledger.items) == sorted([*range(500), *range(COUNT)])
    assert sorted(early.items) == list(range(500)), "what it had reported is not forgotten"
    assert job.metrics()["early"].calls == 0, "it was not run again"


def test_processors_that_have_completed_are_not_run_however_often_their_number_changes(
    engine, kit, config
):
    ledger, early, tap = kit.Ledger(), kit.Ledger(), kit.Tap(2000)
    dag = two_inputs(kit, ledger, ledger, short=500, long=COUNT, tap=tap, bag=early)
    job = engine.submit(dag, config(default_parallelism=2))
    kit.eventually(lambda: "early" in job.metrics() and job.metrics()["early"].received == 500)
    take_some(kit, job, 3)
    job.cancel()
    for parallelism in (3, 1, 4):
        job = engine.submit(dag, config(default_parallelism=parallelism))
        take_some(kit, job)
        assert job.metrics()["early"].calls == 0
        job.cancel()
    tap.open()
    job = engine.submit(dag, config(default_parallelism=2))
    job.join(kit.PROMPT)
    assert sorted(ledger.items) == sorted([*range(500), *range(COUNT)])
    assert sorted(early.items) == list(range(500))


def test_source_that_has_ended_in_part_is_read_on_by_others(engine, kit, config):
    """Of four partitions three have ended when the number of readers changes."""

    class Uneven(kit.Numbers):
        def complete(self):
            done = super().complete()
            # The processor with partition 0 waits at the tap, the others are through.
            return done if 0 not in self._positions else done and tap.limit is None

    ledger, tap = kit.Ledger(), kit.Tap(4000)
    dag = DAG("uneven")
    numbers = dag.new_vertex("numbers", lambda: Uneven(4000, tap))
    write = dag.vertex(Vertex("write", lambda: kit.LedgerSink(ledger), hook=ledger))
    dag.edge(between(numbers, write))
    job = engine.submit(dag, config(default_parallelism=4))
    kit.eventually(lambda: "write" in job.metrics() and job.metrics()["write"].received == 4000)
    take_some(kit, job, 3)
    job.cancel()
    tap.open()
    engine.submit(dag, config(default_parallelism=3)).join(kit.PROMPT)
    assert sorted(ledger.items) == list(range(4000))


class Lengths(BatchSource):
    """Splits of so many numbers each; but for the first, they wait at the tap."""

    name = "lengths"

    def __init__(self, lengths, tap):
        self._lengths, self._tap = lengths, tap

    def splits(self, target):
        return range(len(self._lengths))

    def read(self, split):
        for number in range(self._lengths[split]):
            while split and self._tap.limit is not None and number >= self._tap.limit:
                yield []
            yield [(split, number)]


@pytest.mark.parametrize("after", [2, 1, 3])
def test_splits_are_left_to_those_that_are_run_again(engine, kit, config, after):
    """The first reader has come to its end, and the second has several splits before it."""
    lengths = (10, 500, 0, 300, 0, 200)
    ledger, tap = kit.Ledger(), kit.Tap(100)
    dag = DAG("lengths")
    read = dag.new_vertex("read", ReadSupplier(Lengths(lengths, tap)))
    write = dag.vertex(Vertex("write", lambda: kit.LedgerSink(ledger), hook=ledger))
    dag.edge(between(read, write))
    job = engine.submit(dag, config(default_parallelism=2))
    kit.eventually(lambda: "write" in job.metrics() and job.metrics()["write"].received == 110)
    take_some(kit, job, 3)
    job.cancel()
    tap.open()
    engine.submit(dag, config(default_parallelism=after)).join(kit.PROMPT)
    expected = [(split, n) for split, length in enumerate(lengths) for n in range(length)]
    assert sorted(ledger.items) == expected


# --- Edges of higher priority -----------------------------------------------------------------


def test_no_snapshot_while_an_edge_of_higher_priority_is_drained(engine, kit, config):
    """Otherwise it would wait for a barrier on an edge that is not read yet, for ever."""
    first_tap, tap, ledger = kit.Tap(100), kit.Tap(3000), kit.Ledger()
    dag = DAG("priority")
    first = dag.new_vertex("first", lambda: kit.Numbers(1000, first_tap))
    second = dag.new_vertex("second", lambda: kit.Numbers(COUNT, tap))
    write = dag.vertex(Vertex("write", lambda: kit.LedgerSink(ledger), hook=ledger))
    dag.edge(between(first, write).priority(-1))
    dag.edge(from_(second).to(write, 1))
    job = engine.submit(dag, config(snapshot_interval=0.001, default_parallelism=2))
    kit.eventually(lambda: "write" in job.metrics() and job.metrics()["write"].received == 100)
    assert taken(job) == 0
    first_tap.open()
    take_some(kit, job, 3)
    job.restart()
    tap.open()
    job.join(kit.PROMPT)
    assert sorted(ledger.items) == sorted([*range(1000), *range(COUNT)])


@pytest.mark.parametrize("name", ["x" * 251, "é" * 42], ids=["ascii", "beyond"])
def test_a_name_that_file_systems_cannot_hold_is_refused(tmp_path, name):
    p = Pipeline(name)
    p.read_from(sources.items([1])).write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        engine.submit(p).join(60)  # without snapshots it may have any name
        with pytest.raises(InvalidArgumentError, match="choose a shorter one"):
            engine.submit(
                p, JobConfig(processing_guarantee="exactly-once", snapshot_dir=str(tmp_path))
            ).join(60)


@pytest.mark.parametrize("name", ["x" * 250, "é" * 41, "a/b", ".."])
def test_any_other_name_is_that_of_a_directory(tmp_path, name):
    p = Pipeline(name)
    p.read_from(sources.items([1])).write_to(sinks.noop())
    with EmbeddedEngine() as engine:
        engine.submit(
            p, JobConfig(processing_guarantee="exactly-once", snapshot_dir=str(tmp_path))
        ).join(60)

    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]
