"""Sinks that commit batch by batch."""

from __future__ import annotations

import json

import pytest

from jetlet import Pipeline, sinks, sources
from jetlet.core.inbox import Inbox
from jetlet.core.processor import ProcessorContext
from jetlet.pipeline.sink import Sink, SinkWriter
from jetlet.spark.micro_batch.sinks import BatchAttempt, BatchSinks, Prepared, batch_writer


class Shelf(Sink):
    """A sink without transactions that holds back; what happens to it is noted."""

    name = "shelf"

    def __init__(self):
        self.calls = []

    def begin(self, run_id):
        self.calls.append(("begin", run_id))

    def open(self, run_id, writer_id):
        return ShelfWriter(run_id)

    def commit(self, run_id, messages):
        self.calls.append(("commit", run_id, *messages))

    def abort(self, run_id):
        self.calls.append(("abort", run_id))


class ShelfWriter(SinkWriter):
    def __init__(self, run_id):
        self.items = [run_id]

    def write(self, batch):
        self.items += batch

    def finish(self):
        return self.items

    def abort(self):
        pass


def dag_with(sink):
    p = Pipeline()
    p.read_from(sources.items([1])).write_to(sink, name="sink")
    return p.plan(default_parallelism=1)


def run_task(sink, batch, items, *, epoch=1, number=0, ends=True):
    """What a task prepares."""
    told = []
    writer = batch_writer(sink, BatchAttempt(batch, epoch, number))
    writer.init(None, ProcessorContext(run_id="run", vertex_name="sink", report=told.append))
    if items:
        writer.process(0, Inbox(items))
    if ends:
        assert writer.save_to_snapshot()
    writer.close()
    assert all(isinstance(each, Prepared) for each in told)
    return {"sink": [each.what for each in told]}


def written(directory):
    parts = sorted(directory.glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


@pytest.fixture
def files(tmp_path):
    sink = sinks.json_lines(tmp_path / "out")
    sink.begin("run")
    return sink


def test_files_of_a_batch_are_there_when_it_is_committed(files, tmp_path):
    batches = BatchSinks(dag_with(files), "run", 1)
    for batch in range(3):
        prepared = run_task(files, batch, [batch, batch])
        assert written(tmp_path / "out") == [n for n in range(batch) for _ in range(2)]
        batches.commit(batch, prepared)
    batches.close()
    assert written(tmp_path / "out") == [0, 0, 1, 1, 2, 2]


def test_a_batch_that_was_recorded_is_committed_by_the_next_attempt_once(files, tmp_path):
    batches = BatchSinks(dag_with(files), "run", 1)
    batches.commit(0, run_task(files, 0, [0]))
    prepared = run_task(files, 1, [1])
    run_task(files, 2, ["never recorded"])
    batches.close()
    for epoch in (2, 3):
        again = BatchSinks(dag_with(files), "run", epoch)
        again.recover(1, prepared)
        again.close()
        assert written(tmp_path / "out") == [0, 1]
    # The numbers of the batch that was given up are free.
    again = BatchSinks(dag_with(files), "run", 4)
    again.commit(2, run_task(files, 2, [2], epoch=4))
    again.close()
    (last,) = again.last({}).values()
    files.commit_last("run", "sink", last.prepared)
    assert written(tmp_path / "out") == [0, 1, 2]
    assert not list((tmp_path / "out").glob(".*"))


def test_attempts_of_spark_at_one_task_do_not_meet(files, tmp_path):
    run_task(files, 0, ["lost"], ends=True, number=0)
    prepared = run_task(files, 0, ["kept"], number=9)
    batches = BatchSinks(dag_with(files), "run", 1)
    batches.commit(0, prepared)
    batches.close()
    assert written(tmp_path / "out") == ["kept"]


def test_transactions_are_numbered_in_the_order_of_their_batches():
    numbers = [BatchAttempt(b, 1, n).transaction_number for b in range(3) for n in (0, 63, 64)]
    assert numbers == [0, 63, 0, 64, 127, 64, 128, 191, 128]


def test_a_batch_without_items_prepares_nothing(files):
    assert run_task(files, 0, []) == {"sink": []}


def test_to_other_sinks_each_batch_is_a_run():
    shelf = Shelf()
    batches = BatchSinks(dag_with(shelf), "run", 1)
    batches.begin(0)
    prepared = run_task(shelf, 0, [1, 2])
    batches.commit(0, prepared)
    batches.recover(0, prepared)
    batches.close()
    assert shelf.calls == [
        ("begin", "run-0"),
        ("commit", "run-0", ["run-0", 1, 2]),
        ("commit", "run-0", ["run-0", 1, 2]),
        ("abort", "run-1"),
    ]
