"""The ends of a pipeline: writers that are committed, and items sent to the submitting process."""

from __future__ import annotations

from functools import partial

import pytest

from jetlet import sinks
from jetlet.core import ProcessorContext
from jetlet.core.inbox import Inbox
from jetlet.pipeline.sink import Sink, SinkWriter
from jetlet.processors.ends.write import (
    ClientSinkHook,
    ClientSinkProcessor,
    SinkHook,
    WriteProcessor,
)
from jetlet.testing import verify_processor


class Recorder(Sink):
    """Notes what its writers are told."""

    name = "recorder"

    def __init__(self, is_blocking=False, failing=()):
        self.is_blocking = is_blocking
        self.failing = failing
        self.log = []

    def begin(self, run_id):
        self.log.append(("begin", run_id))

    def open(self, run_id, writer_id):
        self.log.append(("open", run_id, writer_id))
        return Writer(self)

    def commit(self, run_id, messages):
        self.log.append(("commit", run_id, messages))

    def abort(self, run_id):
        self.log.append(("abort", run_id))


class Writer(SinkWriter):
    def __init__(self, sink):
        self.sink = sink
        self.items = []

    def note(self, what):
        self.sink.log.append(what)
        if what in self.sink.failing:
            raise OSError(f"{what} failed")

    def write(self, batch):
        self.items += batch
        self.note("write")

    def finish(self):
        self.note("finish")
        return self.items

    def abort(self):
        self.note("abort writer")


def start(sink, **context):
    processor = WriteProcessor(sink)
    processor.init(object(), ProcessorContext(run_id="run", **context))
    return processor


def test_everything_is_written_and_reported_under_all_conditions():
    reports = []
    context = ProcessorContext(run_id="run", report=reports.append)

    verify_processor(
        partial(WriteProcessor, Recorder()),
        input=[1, None, 3],
        expect_outputs=[],
        context=context,
        columns=False,
        snapshots=False,  # a bounded sink is committed at the end
    )

    assert reports == [[1, None, 3]] * 4


def test_writer_is_named_by_its_place_and_attempt():
    sink = Recorder()
    start(sink, local_index=1, local_parallelism=2, member_index=3, member_count=4)
    start(sink, attempt="7-abc")

    assert sink.log == [("open", "run", "00007"), ("open", "run", "00000-7-abc")]


def test_finished_writer_is_not_aborted():
    sink = Recorder()
    processor = start(sink)
    assert processor.complete()
    processor.close()
    processor.close()

    assert sink.log[1:] == ["finish"]


def test_writer_of_a_failed_job_is_aborted_once():
    sink = Recorder()
    processor = start(sink)
    processor.process(0, Inbox([1]))
    processor.close()
    processor.close()

    assert sink.log[1:] == ["write", "abort writer"]


def test_writer_that_cannot_finish_is_aborted():
    sink = Recorder(failing=["finish"])
    reports = []
    processor = start(sink, report=reports.append)
    with pytest.raises(OSError, match="finish failed"):
        processor.complete()
    processor.close()

    assert sink.log[1:] == ["finish", "abort writer"]
    assert reports == []


def test_processor_whose_sink_did_not_open_can_be_closed():
    class Closed(Recorder):
        def open(self, run_id, writer_id):
            raise PermissionError("no")

    processor = WriteProcessor(Closed())
    with pytest.raises(PermissionError):
        processor.init(object(), ProcessorContext())
    processor.close()


def test_snapshot_waits_until_the_writer_is_in_sync():
    answers = iter([False, True])

    class Slow(Recorder):
        def open(self, run_id, writer_id):
            writer = super().open(run_id, writer_id)
            writer.sync = lambda: next(answers)
            return writer

    processor = start(Slow())
    assert not processor.snapshot_commit_prepare()
    assert processor.snapshot_commit_prepare()
    assert start(Recorder()).snapshot_commit_prepare()  # nothing to wait for


def test_writer_is_interrupted_while_there_is_one():
    class Waiting(Recorder):
        def open(self, run_id, writer_id):
            writer = super().open(run_id, writer_id)
            writer.interrupt = lambda: self.log.append("interrupt")
            return writer

    sink = Waiting()
    processor = start(sink)
    processor.interrupt()
    processor.close()
    processor.interrupt()
    assert sink.log[1:] == ["interrupt", "abort writer"]


def test_blocking_sink_gets_a_thread():
    assert WriteProcessor(Recorder()).is_cooperative
    assert not WriteProcessor(Recorder(is_blocking=True)).is_cooperative


def test_hook_begins_commits_and_aborts_its_sink():
    sink = Recorder()
    hook = SinkHook(sink)
    hook.begin("run")
    hook.commit("run", ("a", "b"))
    hook.abort("run", ValueError())

    assert sink.log == [("begin", "run"), ("commit", "run", ("a", "b")), ("abort", "run")]


class TestClientSink:
    def test_batches_are_sent_under_all_conditions(self):
        sent = []
        context = ProcessorContext(send_to_client=lambda batch: sent.extend(batch) or True)

        verify_processor(
            ClientSinkProcessor, input=[1, None, 3], expect_outputs=[], context=context
        )

        assert sent == [1, None, 3] * (len(sent) // 3)

    def test_batch_stays_until_the_client_takes_it(self):
        answers, sent = [False, False, True], []

        def send(batch):
            sent.append(list(batch))
            return answers.pop(0)

        processor = ClientSinkProcessor()
        processor.init(object(), ProcessorContext(send_to_client=send))
        inbox = Inbox([1, 2])

        waiting = []
        while inbox:
            processor.process(0, inbox)
            waiting.append(processor.is_waiting)

        assert sent == [[1, 2]] * 3
        assert waiting == [True, True, False]

    def test_hook_hands_items_to_the_sink_and_tells_it_how_it_ended(self):
        ends = []

        class Sink(type(sinks.collect())):
            def finish(self, error):
                ends.append(error)

        sink = Sink()
        hook = ClientSinkHook(sink)
        error = ValueError()
        hook.begin("run")
        hook.receive([1])
        hook.receive((2, 3))
        hook.commit("run", ())
        hook.abort("run", error)

        assert sink.items == [1, 2, 3]
        assert ends == [None, error]
