"""Sinks that take part in snapshots, in jobs that fail in every phase and are restarted."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter

import pytest

from jetlet import EmbeddedEngine, JobConfig, JobStatus, Pipeline, sinks, sources
from jetlet.errors import InputNotFoundError, RestartableError
from jetlet.log import Log
from jetlet.processors.ends import transactional_write
from jetlet.processors.ends.transactional_write import TransactionalWriteProcessor

COUNT = 6000
SINKS = ["files", "log", "database"]


class Output:
    """A sink, and what others see of it."""

    def __init__(self, kind, directory):
        self.place = directory / kind
        if kind == "files":
            self.sink, self.read = lambda: sinks.text(self.place), self.lines
        elif kind == "log":
            self.sink = lambda: sinks.log(self.place, partitions=2, serializer="json")
            self.read = self.records
        else:
            url = f"sqlite:///{self.place}"
            with sqlite3.connect(self.place) as connection:
                connection.execute("CREATE TABLE numbers (number INTEGER)")
            connection.close()
            self.sink, self.read = lambda: sinks.sql(url, "numbers"), self.rows

    def lines(self):
        source = sources.text(self.place)
        try:
            return [int(n) for s in source.splits(1) for batch in source.read(s) for n in batch]
        except InputNotFoundError:
            return []

    def records(self):
        with Log(self.place) as log:
            return [
                number
                for partition, end in enumerate(log.end_offsets())
                if end
                for number in log.read(partition, 0, limit=end).items
            ]

    def rows(self):
        connection = sqlite3.connect(self.place, timeout=60)
        try:
            return [number for (number,) in connection.execute("SELECT number FROM numbers")]
        finally:
            connection.close()


@pytest.fixture(params=SINKS)
def output(request, tmp_path):
    return Output(request.param, tmp_path)


@pytest.fixture
def config(tmp_path):
    def make(**settings):
        settings.setdefault("processing_guarantee", "exactly-once")
        return JobConfig(
            snapshot_dir=str(tmp_path / "state"),
            snapshot_interval=0.01,
            restart_pause=0.001,
            max_restart_pause=0.01,
            **settings,
        )

    return make


@pytest.fixture
def failures(monkeypatch):
    """Lets processors of sinks fail, before and behind what they do; returns how often."""
    rng = random.Random(7)
    made = []

    def fail(name):
        if len(made) < 12 and rng.random() < 0.15:
            made.append(name)
            raise RestartableError(f"in {name}")

    def sabotage(name):
        original = getattr(TransactionalWriteProcessor, name)

        def call(self, *args):
            fail(name)
            result = original(self, *args)
            if name != "process":  # an item that was taken would count as one that was not
                fail(name)
            return result

        monkeypatch.setattr(TransactionalWriteProcessor, name, call)

    for name in (
        "process",
        "snapshot_commit_prepare",
        "snapshot_commit_finish",
        "finish_snapshot_restore",
    ):
        sabotage(name)
    return made


def streaming(directory, sink):
    p = Pipeline("numbers")
    p.read_from(sources.log(directory / "in")).without_timestamps().write_to(sink, name="write")
    return p


def append(directory, numbers):
    with Log(directory / "in", partitions=2) as log:
        for start in range(numbers.start, numbers.stop, 50):
            log.append(range(start, min(start + 50, numbers.stop)))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_stream_is_written_once_whatever_fails(
    tmp_path, output, config, failures, kit, parallelism
):
    append(tmp_path, range(1000))
    p = streaming(tmp_path, output.sink())
    with EmbeddedEngine() as engine:
        job = engine.submit(p, config(default_parallelism=parallelism, max_restarts=100))
        for start in range(1000, COUNT, 1000):
            append(tmp_path, range(start, start + 1000))
            kit.eventually(lambda start=start: len(output.read()) >= start - 500)
        kit.eventually(lambda: len(output.read()) >= COUNT)
        job.cancel()
    assert Counter(output.read()) == Counter(range(COUNT))
    assert len(failures) > 5


def test_job_that_ends_has_written_all_once(output, config, failures):
    p = Pipeline()
    numbers = sources.batch("numbers", lambda split: range(split, COUNT, 4), splits=[0, 1, 2, 3])
    p.read_from(numbers).write_to(output.sink())
    with EmbeddedEngine() as engine:
        job = engine.submit(p, config(max_restarts=100))
        job.join(60)
    assert Counter(output.read()) == Counter(range(COUNT))
    if output.place.name == "files":
        assert (output.place / "_SUCCESS").exists()
    for staged in ("**/.jetlet-*", "**/staged-*"):
        assert not list(output.place.parent.glob(staged))


def test_suspended_job_has_written_what_it_read(tmp_path, output, config, kit):
    """Without a guarantee, too: its last snapshot is one that all take part in."""
    append(tmp_path, range(1000))
    p = streaming(tmp_path, output.sink())
    with EmbeddedEngine() as engine:
        job = engine.submit(p, config(processing_guarantee="none"))
        kit.eventually(
            lambda: (
                sum(v["received"] for v in job.metrics().vertices.values()) >= 1000
                if hasattr(job.metrics(), "vertices")
                else True
            )
        )
        job.suspend()
        assert job.status is JobStatus.SUSPENDED
        before = output.read()
        assert len(before) == len(set(before))
        job.resume()
        append(tmp_path, range(1000, 1100))
        job.suspend()
        job.resume()
        while len(output.read()) < 1100:
            job.restart()
        job.cancel()
    assert Counter(output.read()) == Counter(range(1100))


@pytest.mark.parametrize("counts", [(1, 3), (3, 1)])
def test_job_of_another_process_goes_on_with_other_parallelism(
    tmp_path, output, config, kit, counts
):
    for number, parallelism in enumerate(counts):
        append(tmp_path, range(1000 * number, 1000 * (number + 1)))
        with EmbeddedEngine() as engine:
            job = engine.submit(
                streaming(tmp_path, output.sink()), config(default_parallelism=parallelism)
            )
            kit.eventually(lambda number=number: len(output.read()) >= 1000 * (number + 1))
            job.cancel()
    assert Counter(output.read()) == Counter(range(2000))


def test_at_least_once_loses_nothing(tmp_path, output, config, failures, kit):
    append(tmp_path, range(COUNT))
    p = streaming(tmp_path, output.sink())
    with EmbeddedEngine() as engine:
        job = engine.submit(p, config(processing_guarantee="at-least-once", max_restarts=100))
        kit.eventually(lambda: len(set(output.read())) == COUNT)
        job.cancel()


def test_job_that_begins_with_an_exported_snapshot_goes_on_writing(tmp_path, output, config, kit):
    append(tmp_path, range(1000))
    with EmbeddedEngine() as engine:
        job = engine.submit(streaming(tmp_path, output.sink()), config())
        kit.eventually(lambda: len(output.read()) >= 1000)
        append(tmp_path, range(1000, 1500))
        job.cancel_and_export_snapshot("here")
        written = output.read()
        assert len(written) == len(set(written))
        upgraded = config(name="second", initial_snapshot="here")
        job = engine.submit(streaming(tmp_path, output.sink()), upgraded)
        append(tmp_path, range(1500, 1600))
        kit.eventually(lambda: len(output.read()) >= 1600)
        job.cancel()
    assert Counter(output.read()) == Counter(range(1600))


class TestWithoutGuarantee:
    def test_files_of_a_stream_come_one_by_one(self, tmp_path, monkeypatch, kit):
        monkeypatch.setattr(transactional_write, "ROLL_NS", 20_000_000)
        output = Output("files", tmp_path)
        append(tmp_path, range(1000))
        with EmbeddedEngine() as engine:
            job = engine.submit(streaming(tmp_path, output.sink()))
            kit.eventually(lambda: len(output.read()) == 1000)
            append(tmp_path, range(1000, 1500))
            kit.eventually(lambda: len(output.read()) == 1500)
            job.cancel()
        assert len(list(output.place.glob("part-*"))) >= 2

    def test_files_of_a_stream_have_all_when_it_is_cancelled(self, tmp_path, kit):
        output = Output("files", tmp_path)
        append(tmp_path, range(1000))
        with EmbeddedEngine() as engine:
            job = engine.submit(streaming(tmp_path, output.sink()))
            kit.eventually(lambda: list(output.place.glob(".jetlet-*/*.txt")))
            assert output.read() == []
            job.cancel()
        read = output.read()
        assert read
        assert len(read) == len(set(read))
        assert not list(output.place.glob(".jetlet-*"))
