"""Sinks under snapshots: jobs that crash anywhere, and whose output has every item exactly once.

There is no engine here: a :class:`CrashingJob` does to the processors of a sink what one would do,
and stops dead wherever the script says, also in the middle of what the sink does to its files.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

import cloudpickle
import confluent_kafka
import pytest
from hypothesis import Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from jetlet import sinks, sources
from jetlet.connectors.sql.database import SqlDatabase
from jetlet.core import ProcessorContext
from jetlet.core.inbox import Inbox
from jetlet.errors import InputNotFoundError
from jetlet.log import Log
from jetlet.processors.ends.transactional_write import TransactionalWriteProcessor
from jetlet.processors.ends.write import SinkHook, SinkSupplier
from jetlet.storage.file_systems import FsspecStorage, LocalStorage
from jetlet.testing.outbox import CheckedOutbox

ITEMS = 40

pytestmark = [
    pytest.mark.slow,
    # Whoever crashes closes nothing.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Crash(BaseException):
    """The process is gone."""


class Faults:
    """Counts the steps that a sink makes, and crashes before one of them."""

    def __init__(self):
        self.left = None
        self.made = 0

    def step(self):
        self.made += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash

    def watch(self, monkeypatch, owner, *names):
        """Let each call of these functions be two steps: one before it and one behind it."""
        for name in names:
            function = getattr(owner, name)

            def call(*args, function=function, **options):
                self.step()
                result = function(*args, **options)
                self.step()
                return result

            monkeypatch.setattr(owner, name, call)


@dataclass
class Snapshot:
    position: int
    parallelism: int
    entries: list
    ended: frozenset
    reports: dict


@dataclass
class Attempt:
    """What happens until the next crash."""

    parallelism: int
    steps: list = field(default_factory=list)
    armed_at: int = 0
    """The number of the step, from the start to the end of the job, in which it crashes."""
    armed_when: str = "begun"
    """How far that must be, if it is a snapshot."""
    crash_after: int | None = None
    """How much may be done from there on."""
    kills_all: bool = False
    """The submitting process dies too."""


class CrashingJob:
    """A job with one sink, to which the numbers up to ``ITEMS`` go."""

    def __init__(self, make_sink, read, faults, on_crash):
        self.make_sink = make_sink
        self.read = read
        self.faults = faults
        self.on_crash = on_crash
        self.snapshot = None
        self.final_reports = None
        self.epoch = 0
        self.graveyard = []

    # --- Life -------------------------------------------------------------------------------

    def run(self, attempts):
        self.begin()
        for attempt in attempts:
            with suppress(Crash):
                self.attempt(attempt)
                self.faults.step()
            self.faults.left = None
            for processor in self.graveyard:
                self.on_crash(processor)
            self.check()
            if attempt.kills_all:
                if self.snapshot is None and self.final_reports is None:
                    self.begin()
                else:
                    self.hook.resume(self.run_id)
        self.attempt(Attempt(1))
        assert Counter(self.visible()) == Counter(range(ITEMS))

    def bury(self):
        """Close what was open when its process died."""
        self.faults.left = None
        for processor in self.graveyard:
            with suppress(Exception):
                processor.close()

    def begin(self):
        self.run_id = uuid.uuid4().hex
        self.sink = self.make_sink()
        self.hook = SinkHook(self.sink)
        self.hook.begin(self.run_id)

    def check(self):
        """Whatever happened: what is seen is part of a snapshot, and nothing is seen twice."""
        seen = Counter(self.visible())
        assert not seen or max(seen.values()) == 1
        decided = 0 if self.snapshot is None else self.snapshot.position
        if self.final_reports is not None:
            decided = ITEMS
        assert set(seen) <= set(range(decided))

    def visible(self):
        return [int(item) for item in self.read()]

    def attempt(self, attempt):
        steps = []
        if self.final_reports is None:
            steps = [("start", attempt.parallelism), *attempt.steps, ("complete",)]
        for number, (kind, *arguments) in enumerate([*steps, ("commit",)]):
            is_armed = number == attempt.armed_at % (len(steps) + 1)
            self.arm = attempt if is_armed else None
            if kind != "take" or attempt.armed_when == "begun":
                self.arm_faults("begun")
            getattr(self, kind)(*arguments)

    def arm_faults(self, when):
        """Crash soon, if it is time."""
        if self.arm is not None and when in ("begun", self.arm.armed_when):
            self.faults.left = self.arm.crash_after

    def start(self, parallelism):
        self.epoch += 1
        self.parallelism = parallelism
        snapshot = self.snapshot
        self.position, self.ended, self.reports = 0, set(), {}
        if snapshot is not None:
            self.position = snapshot.position
            self.reports = dict(snapshot.reports)
            if snapshot.parallelism == parallelism:
                self.ended = set(snapshot.ended)
        self.processors = {}
        for index in range(parallelism):
            if index not in self.ended:
                self.processors[index] = self.processor(index, parallelism)
        for processor, outbox in self.processors.values():
            if snapshot is not None:
                outbox.begin_call()
                processor.restore_from_snapshot(Inbox(pickle.loads(snapshot.entries)))
                assert processor.finish_snapshot_restore()

    def processor(self, index, parallelism):
        key = (self.epoch, index)

        def report(message):
            self.reports[key] = pickle.loads(pickle.dumps(message))

        context = ProcessorContext(
            run_id=self.run_id,
            attempt=str(self.epoch),
            local_index=index,
            local_parallelism=parallelism,
            processing_guarantee="exactly-once",
            takes_snapshots=True,
            report=report,
        )
        supplier = pickle.loads(cloudpickle.dumps(SinkSupplier(self.sink, is_stream=True)))
        supplier.init(context)
        processor = supplier.get()
        assert isinstance(processor, TransactionalWriteProcessor)
        outbox = CheckedOutbox(0, is_tight=False)
        processor.init(outbox, context)
        self.graveyard.append(processor)
        return processor, outbox

    # --- Steps ------------------------------------------------------------------------------

    def write(self, count, writer):
        """So many items to one of the writers."""
        live = sorted(self.processors)
        batch = list(range(self.position, min(self.position + count, ITEMS)))
        if batch and live:
            processor, outbox = self.processors[live[writer % len(live)]]
            outbox.begin_call()
            processor.process(0, Inbox([str(item) for item in batch]))
            self.position += len(batch)

    def take(self, is_good, between):
        """A snapshot, while which some more items come."""
        position = self.position
        entries = []
        for processor, outbox in self.processors.values():
            outbox.begin_call()
            outbox.begin_snapshot()
            assert processor.save_to_snapshot()
            assert processor.snapshot_commit_prepare()
            entries += outbox.end_snapshot()
        snapshot = Snapshot(
            position,
            self.parallelism,
            pickle.dumps(entries),
            frozenset(self.ended),
            dict(self.reports),
        )
        for writer in range(between):
            self.write(1, writer)
        self.arm_faults("prepared")
        self.faults.step()
        if is_good:
            self.snapshot = snapshot
        self.arm_faults("recorded")
        self.faults.step()
        for processor, _ in self.processors.values():
            assert processor.snapshot_commit_finish(is_good)

    def end(self, writer):
        """One of the writers has no more input; another must be left for the rest."""
        live = sorted(self.processors)
        if len(live) > 1:
            self.end_one(live[writer % len(live)])

    def end_one(self, index):
        processor, _ = self.processors.pop(index)
        assert processor.complete()
        processor.close()
        self.ended.add(index)

    def complete(self):
        while self.position < ITEMS:
            self.write(7, self.position)
        for index in list(self.processors):
            self.end_one(index)
        self.faults.step()
        self.final_reports = list(self.reports.values())
        self.faults.step()

    def commit(self):
        self.hook.commit(self.run_id, self.final_reports)
        self.faults.step()


WRITES = st.tuples(st.just("write"), st.integers(1, 4), st.integers(0, 2))
SNAPSHOTS = st.tuples(st.just("take"), st.booleans(), st.integers(0, 2))
ENDS = st.tuples(st.just("end"), st.integers(0, 2))
ROUNDS = st.builds(
    lambda writes, others: [*writes, *others],
    st.lists(WRITES, min_size=1, max_size=3),
    st.lists(st.one_of(SNAPSHOTS, SNAPSHOTS, ENDS), min_size=1, max_size=2),
)
ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        st.integers(1, 3),
        st.lists(ROUNDS, max_size=3).map(lambda rounds: list(chain(*rounds))),
        st.integers(0, 9),
        st.sampled_from(["recorded", "prepared", "begun"]),
        st.integers(0, 20),
        st.booleans(),
    ),
    max_size=4,
)

DISK = ("create", "close_durably", "move", "sync_directory", "remove")


def lines_of(location, read_all):
    """What a reader finds in a directory of text files."""
    try:
        return read_all(sources.text(location))
    except InputNotFoundError:
        return []


def crash(attempts, make_sink, read, *watched, on_crash=lambda processor: None):
    """Run a job that crashes while any of the watched functions is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        faults = Faults()
        for owner, *names in watched:
            faults.watch(patch, owner, *names)
        job = CrashingJob(make_sink, read, faults, on_crash)
        try:
            job.run(attempts)
        finally:
            job.bury()
    return job


ROLL_SIZES = st.sampled_from([None, None, 10, "1 MB"])


@examples(max_examples=200)
@given(ATTEMPTS, ROLL_SIZES)
def test_files_have_every_item_once(tmp_path_factory, read_all, attempts, roll_size):
    out = tmp_path_factory.mktemp("out")
    job = crash(
        attempts,
        lambda: sinks.text(out, roll_size=roll_size),
        lambda: lines_of(out, read_all),
        (LocalStorage, *DISK),
    )
    assert not (out / f".jetlet-{job.run_id}").exists()


@examples(max_examples=100)
@given(ATTEMPTS, ROLL_SIZES)
def test_remote_files_have_every_item_once(read_all, attempts, roll_size):
    url = f"memory://{uuid.uuid4()}"
    crash(
        attempts,
        lambda: sinks.text(url, roll_size=roll_size),
        lambda: lines_of(url, read_all),
        (FsspecStorage, *DISK),
    )


@examples(max_examples=150)
@given(ATTEMPTS, st.integers(1, 3), st.sampled_from([64, 1 << 20]))
def test_log_has_every_item_once(tmp_path_factory, attempts, partitions, segment_bytes):
    directory = tmp_path_factory.mktemp("log") / "log"

    def read():
        with Log(directory) as log:
            return [
                item
                for partition, end in enumerate(log.end_offsets())
                if end
                for item in log.read(partition, 0, limit=end).items
            ]

    def write_half(fd, data):
        return os_write(fd, data[: len(data) // 2 + 1])

    os_write = os.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", write_half)
        job = crash(
            attempts,
            lambda: sinks.log(directory, partitions=partitions, segment_bytes=segment_bytes),
            read,
            (os, "write", "pwrite", "unlink", "replace"),
        )
    assert not list(directory.glob(f"staged-{job.run_id}-*"))


class Rows:
    """A table of numbers, and what the database does in transactions."""

    def __init__(self, url, columns="number INTEGER NOT NULL"):
        self.url = url
        self.table = f"t_{uuid.uuid4().hex}"
        self.engine = SqlDatabase.of("test", url).engine()
        self.execute(f"CREATE TABLE {self.table} ({columns})")

    def execute(self, statement):
        from sqlalchemy import text

        with self.engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    def numbers(self):
        return [number for (number,) in self.execute(f"SELECT number FROM {self.table}")]


def disconnect(processor):
    """What the database does when a process dies."""
    if processor._writer is not None:
        processor._writer._client.close()


def crash_on_database(url, attempts):
    from sqlalchemy import Connection
    from sqlalchemy.engine.default import DefaultDialect

    rows = Rows(url)
    try:
        crash(
            attempts,
            lambda: sinks.sql(url, rows.table, columns=["number"]),
            rows.numbers,
            (Connection, "execute"),
            (DefaultDialect, "do_commit"),
            on_crash=disconnect,
        )
    finally:
        rows.engine.dispose()


@examples(max_examples=40, phases=[Phase.generate])  # to shrink takes too long
@given(ATTEMPTS)
def test_sqlite_table_has_every_item_once(tmp_path_factory, attempts):
    crash_on_database(f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/db", attempts)


@examples(max_examples=20, phases=[Phase.generate])
@given(ATTEMPTS)
def test_postgres_table_has_every_item_once(postgres_url, attempts):
    crash_on_database(postgres_url, attempts)


@pytest.fixture(scope="module")
def postgres_url(postgres):
    return postgres.database()


@examples(max_examples=100)
@given(ATTEMPTS)
def test_topic_has_every_item_once(kafka_model, attempts):
    model = kafka_model()
    with pytest.MonkeyPatch.context() as patch:
        model.install(patch)
        producer = type(confluent_kafka.Producer({"transactional.id": "any"}))
        steps = (
            "init_transactions",
            "produce",
            "send_offsets_to_transaction",
            "commit_transaction",
        )
        crash(
            attempts,
            lambda: sinks.kafka("topic", "host:9092"),
            lambda: model.records,
            (producer, *steps),
        )
