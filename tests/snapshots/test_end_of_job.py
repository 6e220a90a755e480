"""Jobs whose process is killed at the beginning and at the end of its life, and started again."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.errors import JobFailedError
from jetlet.log import Log
from jetlet.snapshots.job_snapshots import JobSnapshots
from jetlet.snapshots.store import SnapshotStore

COUNT = 3000
SPLITS = 4

SCRIPT = """
    import os, signal, sys, time
    from pathlib import Path
    from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
    from jetlet.jobs.job import Run
    from jetlet.snapshots.job_snapshots import JobSnapshots
    from jetlet.processors.ends.write import SinkHook
    from jetlet.snapshots.store import SnapshotStore

    ROOT = Path({root!r})

    def read(split):
        with (ROOT / "reads.txt").open("a") as file:
            file.write("read\\n")
        for number in range(split, {count}, {splits}):
            if number % 100 < {splits}:
                time.sleep(0.003)
            yield number

    def pipeline():
        p = Pipeline("numbers")
        numbers = p.read_from(sources.batch("numbers", read, splits=range({splits})))
        numbers.write_to(sinks.text(ROOT / "files"))
        numbers.write_to(sinks.log(ROOT / "log", partitions=2, serializer="json"))
        numbers.write_to(sinks.sql(f"sqlite:///{{ROOT}}/results.db", "numbers"))
        return p

    def die_in(owner, name, *, calls=1, after=False):
        original = getattr(owner, name)
        left = [calls]

        def call(*args, **settings):
            left[0] -= 1
            result = original(*args, **settings) if left[0] or after else None
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, call)

    DEATHS = {{
        "before the first snapshot": lambda: die_in(SnapshotStore, "write_record"),
        "when the last snapshot is recorded": lambda: die_in(Run, "commit"),
        "when a sink has committed": lambda: die_in(SinkHook, "commit", after=True),
        "when all but one sink have": lambda: die_in(SinkHook, "commit", calls=3),
        "when all sinks have committed": lambda: die_in(JobSnapshots, "complete"),
        "before snapshots are removed": lambda: die_in(SnapshotStore, "_clear_areas", calls=2),
        "never": lambda: None,
    }}

    def main(members, death):
        DEATHS[death]()
        config = JobConfig(
            processing_guarantee="exactly-once",
            snapshot_interval={interval},
            snapshot_dir=str(ROOT / "state"),
        )
        with EmbeddedEngine(members=int(members), workers=1) as engine:
            engine.submit(pipeline(), config).join()
        print("done", flush=True)

    if __name__ == "__main__":
        main(*sys.argv[1:])
"""


@pytest.fixture
def process(tmp_path):
    """Runs the job in a process of its own, which dies at some point; returns how it ended."""
    with sqlite3.connect(tmp_path / "results.db") as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER)")
    connection.close()
    script = tmp_path / "job.py"

    def run(members, death, interval=0.02):
        values = {"root": str(tmp_path), "count": COUNT, "splits": SPLITS, "interval": interval}
        script.write_text(textwrap.dedent(SCRIPT).format(**values))
        done = subprocess.run(
            [sys.executable, str(script), str(members), death],
            stdout=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
        assert death == "never" or done.returncode == -signal.SIGKILL
        return done.stdout

    return run


def written(directory):
    """What is in the files, the log and the database."""
    files = directory.glob("files/part-*")
    connection = sqlite3.connect(directory / "results.db")
    with Log(directory / "log") as log:
        records = [
            number
            for partition, end in enumerate(log.end_offsets())
            if end
            for number in log.read(partition, 0, limit=end).items
        ]
    rows = [number for (number,) in connection.execute("SELECT number FROM numbers")]
    connection.close()
    return {
        "files": Counter(int(line) for file in files for line in file.read_text().split()),
        "log": Counter(records),
        "database": Counter(rows),
    }


EXPECTED = {name: Counter(range(COUNT)) for name in ("files", "log", "database")}


def check_tidy(directory):
    assert (directory / "files/_SUCCESS").exists()
    assert not list(directory.glob("files/.jetlet-*"))
    assert not list(directory.glob("log/staged-*"))


on_members = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.fault
@pytest.mark.parametrize(
    ("death", "members"),
    [
        ("when the last snapshot is recorded", 1),
        ("when a sink has committed", 1),
        ("when all but one sink have", 1),
        ("when all sinks have committed", 1),
        ("before snapshots are removed", 1),
        pytest.param("when the last snapshot is recorded", 2, marks=on_members),
        pytest.param("when all sinks have committed", 2, marks=on_members),
    ],
)
def test_job_that_is_killed_at_its_end_has_written_all_once(process, tmp_path, members, death):
    process(members, death)
    reads = (tmp_path / "reads.txt").read_text()
    if death == "before snapshots are removed":
        # It has completed. To run it again is another job.
        assert written(tmp_path) == EXPECTED
        return
    assert process(members, "never") == "done\n"
    assert written(tmp_path) == EXPECTED
    assert (tmp_path / "reads.txt").read_text() == reads, "there was nothing left to do"
    check_tidy(tmp_path)


@pytest.mark.fault
@pytest.mark.cluster
@pytest.mark.slow
def test_other_members_commit_what_those_of_a_killed_process_have_left(process, tmp_path):
    process(1, "when the last snapshot is recorded")
    process(2, "when a sink has committed")
    assert process(1, "never") == "done\n"
    assert written(tmp_path) == EXPECTED
    check_tidy(tmp_path)


@pytest.mark.fault
@pytest.mark.parametrize("members", [1, pytest.param(2, marks=on_members)])
def test_nothing_stays_of_attempts_that_died_before_the_first_snapshot(process, tmp_path, members):
    for _ in range(2):
        process(members, "before the first snapshot", interval=0.1)
        assert len(list(tmp_path.glob("files/.jetlet-*"))) == 1
        assert len(list(tmp_path.glob("log/staged-*"))) == 1
    assert list(tmp_path.glob("files/.jetlet-*/*.txt"))
    assert process(members, "never") == "done\n"
    assert written(tmp_path) == EXPECTED
    check_tidy(tmp_path)


# --- In this process --------------------------------------------------------------------------


def numbers(tmp_path):
    p = Pipeline("numbers")
    source = sources.batch("numbers", lambda split: range(split, COUNT, 4), splits=range(4))
    p.read_from(source).write_to(sinks.text(tmp_path / "files"))
    return p


def config(tmp_path, **settings):
    settings.setdefault("processing_guarantee", "exactly-once")
    return JobConfig(snapshot_dir=str(tmp_path / "state"), **settings)


def files(tmp_path):
    parts = tmp_path.glob("files/part-*")
    return Counter(int(line) for part in parts for line in part.read_text().split())


def test_commit_that_fails_is_repeated_when_the_job_is_submitted_again(tmp_path, monkeypatch):
    from jetlet.processors.ends.write import SinkHook

    def refuse(self, run_id, messages):
        raise OSError("not now")

    with EmbeddedEngine(workers=1) as engine, monkeypatch.context() as patch:
        patch.setattr(SinkHook, "commit", refuse)
        with pytest.raises(JobFailedError, match="while committing: OSError: not now"):
            engine.submit(numbers(tmp_path), config(tmp_path)).join()
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(numbers(tmp_path), config(tmp_path))
        job.join()
    assert files(tmp_path) == Counter(range(COUNT))
    assert job.metrics()["numbers"].calls == 0


def test_last_snapshot_that_fails_does_not_keep_the_job_from_completing(
    tmp_path, monkeypatch, caplog
):
    def refuse(self, directory, record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SnapshotStore, "write_record", refuse)
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(numbers(tmp_path), config(tmp_path, snapshot_interval=100.0))
        job.join()
    assert files(tmp_path) == Counter(range(COUNT))
    assert job.metrics().snapshots["failed"] == 1
    assert "No space left" in caplog.text


def test_attempt_that_was_superseded_does_not_commit_at_its_end(tmp_path, monkeypatch):
    begun = JobSnapshots.attach

    def supersede(self, driver):
        if driver is not None:
            SnapshotStore(self.store._storage, str(tmp_path / "state"), "numbers")._epochs.claim()
        begun(self, driver)

    monkeypatch.setattr(JobSnapshots, "attach", supersede)
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(numbers(tmp_path), config(tmp_path, snapshot_interval=100.0))
        with pytest.raises(JobFailedError, match="another attempt at job 'numbers' has begun"):
            job.join()
    assert files(tmp_path) == Counter()


def test_without_a_guarantee_no_snapshot_is_taken_at_the_end(tmp_path):
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(numbers(tmp_path), config(tmp_path, processing_guarantee="none"))
        job.join()
    assert job.metrics().snapshots["taken"] == 0
