"""Sinks that take part in snapshots, seen from the engine's side."""

from __future__ import annotations

import pytest

from jetlet.core import ProcessorContext
from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey
from jetlet.errors import SnapshotError
from jetlet.pipeline.sink import (
    Sink,
    SinkWriter,
    TransactionalSink,
    TransactionId,
    TransactionWriter,
    WriterPlace,
)
from jetlet.processors.ends.transactional_write import (
    ROLL_NS,
    LastTransactions,
    TransactionalWriteProcessor,
)
from jetlet.processors.ends.write import SinkHook, SinkSupplier, WriteProcessor
from jetlet.testing import verify_processor
from jetlet.testing.outbox import CheckedOutbox


class Plain(Sink):
    name = "plain"

    def open(self, run_id, writer_id):
        return SinkWriter()

    def commit(self, run_id, messages):
        self.messages = messages

    def abort(self, run_id):
        pass


class Memory(Plain, TransactionalSink):
    """Transactions are lists of items."""

    def __init__(self, *, holds_back=False):
        self.holds_back = holds_back
        self.committed = {}
        self.log = []

    @property
    def items(self):
        return [item for _, items in sorted(self.committed.items()) for item in items]

    def open_transactional(self, place):
        self.place = place
        return MemoryWriter(self)

    def commit_last(self, run_id, vertex, prepared):
        self.log.append(("last", run_id, vertex))
        self.committed.update(prepared)

    def resume(self, run_id):
        self.log.append(("resume", run_id))


class MemoryWriter(TransactionWriter):
    def __init__(self, sink):
        self.sink = sink
        self.open = None

    def begin(self, transaction):
        assert self.open is None
        self.open = (transaction, [])

    def write(self, batch):
        self.open[1].extend(batch)

    def prepare(self):
        prepared, self.open = self.open, None
        return prepared

    def commit(self, prepared):
        transaction, items = prepared
        self.sink.committed[transaction] = items

    def recover(self, prepared):
        self.sink.log.append(("recover", list(prepared)))
        for each in prepared:
            self.commit(each)

    def keep(self, prepared):
        self.sink.log.append(("keep", prepared[0].number))

    def interrupt(self):
        self.sink.log.append("interrupt")

    def close(self):
        self.sink.log.append("close")


class Clock:
    def __init__(self):
        self.now = 0

    def monotonic_ns(self):
        return self.now


class Host:
    """Does what the engine does, one callback at a time."""

    def __init__(self, sink, *, rolls=False, takes_snapshots=True, **context):
        self.sink = sink
        self.clock = Clock()
        self.reports = []
        self.outbox = CheckedOutbox(0, is_tight=False)
        self.processor = TransactionalWriteProcessor(sink, rolls=rolls)
        options = {"vertex_name": "sink", "attempt": "1", **context}
        self.processor.init(
            self.outbox,
            ProcessorContext(
                clock=self.clock,
                report=self.reports.append,
                takes_snapshots=takes_snapshots,
                **options,
            ),
        )

    def write(self, *items):
        self.processor.process(0, Inbox(items))

    def prepare(self):
        """Phase 1; returns the entries that the snapshot gets."""
        self.outbox.begin_call()
        self.outbox.begin_snapshot()
        assert self.processor.save_to_snapshot()
        assert self.outbox.entries == []
        assert self.processor.snapshot_commit_prepare()
        return self.outbox.end_snapshot()

    def finish(self, *, success=True):
        assert self.processor.snapshot_commit_finish(success)

    def restore(self, *entries):
        self.processor.restore_from_snapshot(Inbox(entries))
        assert self.processor.finish_snapshot_restore()


def entry(writer, number, *transactions):
    return BroadcastKey(("transactions", writer)), (number, "Memory", transactions)


def transaction(number, *items, writer=0, attempt="1"):
    return TransactionId("run", "sink", number, writer, attempt), list(items)


class TestSnapshots:
    def test_every_item_is_committed_once_under_all_conditions(self):
        sink = Memory()
        seen = []

        def report(message):
            sink.commit_last("run", "sink", message.prepared)
            seen.append(sink.items)
            sink.committed = {}

        verify_processor(
            lambda: TransactionalWriteProcessor(sink),
            input=[1, None, 3, 4],
            expect_outputs=[],
            context=ProcessorContext(takes_snapshots=True, report=report, attempt="1"),
        )
        assert len(seen) > 4
        assert all(items == [1, None, 3, 4] for items in seen)

    def test_transaction_is_committed_when_its_snapshot_counts(self):
        host = Host(Memory())
        host.write(1, 2)
        host.write(3)
        host.prepare()
        host.write(4)
        assert host.sink.items == []
        host.finish()
        assert host.sink.items == [1, 2, 3]

    def test_snapshot_has_what_is_prepared_and_the_next_number(self):
        host = Host(Memory(), run_id="run")
        host.write(1)
        assert host.prepare() == [entry(0, 1, transaction(0, 1))]
        host.finish()
        assert host.prepare() == [entry(0, 1)]

    def test_transaction_of_a_failed_snapshot_is_committed_with_the_next(self):
        host = Host(Memory(), run_id="run")
        host.write(1)
        host.prepare()
        host.finish(success=False)
        assert host.sink.items == []
        host.write(2)
        assert host.prepare() == [entry(0, 2, transaction(0, 1), transaction(1, 2))]
        host.finish()
        assert host.sink.items == [1, 2]

    def test_refused_entry_is_offered_again_and_nothing_is_prepared_twice(self):
        host = Host(Memory())
        host.write(1)
        host.outbox.begin_call()
        host.outbox.begin_snapshot()
        host.outbox._room = 0
        assert not host.processor.snapshot_commit_prepare()
        host.outbox.begin_call()
        assert host.processor.snapshot_commit_prepare()
        [(_, (number, _, prepared))] = host.outbox.end_snapshot()
        assert (number, len(prepared)) == (1, 1)

    def test_has_a_thread_of_its_own(self):
        assert not TransactionalWriteProcessor.is_cooperative


class TestRestoring:
    def test_what_the_snapshot_has_is_committed_before_anything_is_written(self):
        host = Host(Memory(), run_id="run", attempt="2")
        host.restore(entry(0, 3, transaction(1, "a"), transaction(2, "b")))
        assert host.sink.items == ["a", "b"]
        host.write("c")
        assert host.prepare() == [entry(0, 4, transaction(3, "c", attempt="2"))]

    @pytest.mark.parametrize("count", [1, 2, 3, 5])
    def test_each_is_committed_by_one_processor_however_many_there_are(self, count):
        entries = [entry(w, 1, transaction(0, w, writer=w)) for w in range(4)]
        recovered = []
        for index in range(count):
            host = Host(Memory(), local_index=index, local_parallelism=count)
            host.restore(*entries)
            recovered += host.sink.items
        assert sorted(recovered) == [0, 1, 2, 3]

    def test_numbers_go_on_from_the_highest(self):
        host = Host(Memory(), run_id="run", local_index=0, local_parallelism=2)
        host.restore(entry(0, 3), entry(1, 7))
        host.write(1)
        assert host.prepare() == [entry(0, 8, transaction(7, 1))]

    def test_sink_of_another_kind_is_refused_if_there_is_something_to_commit(self):
        class Other(Memory):
            pass

        Host(Other()).restore(entry(0, 1))
        with pytest.raises(SnapshotError, match="a Memory is to commit, and now it is a Other"):
            Host(Other()).restore(entry(0, 1, transaction(0, 1)))

    def test_without_a_snapshot_leftovers_are_still_dealt_with(self):
        host = Host(Memory(), attempt="2")
        host.write(1)
        assert host.sink.log == [("recover", [])]

    def test_nobody_recovers_in_a_job_without_snapshots(self):
        host = Host(Memory(), takes_snapshots=False)
        host.write(1)
        assert host.sink.log == []


class TestEnd:
    def test_last_transactions_are_kept_and_reported(self):
        host = Host(Memory(), run_id="run")
        host.write(1)
        host.prepare()
        host.write(2)
        assert host.processor.complete()
        assert host.reports == [
            LastTransactions("sink", [transaction(0, 1), transaction(1, 2)]),
        ]
        assert host.sink.log[1:] == [("keep", 0), ("keep", 1)]

    def test_snapshot_that_was_waited_for_still_commits_its_own(self):
        host = Host(Memory())
        host.write(1)
        host.prepare()
        host.write(2)
        assert host.processor.complete()
        host.finish()
        assert host.sink.items == [1]

    def test_processor_without_items_reports_too(self):
        host = Host(Memory())
        assert host.processor.complete()
        assert host.reports == [LastTransactions("sink", [])]

    def test_hook_commits_what_was_reported(self):
        sink = Memory()
        hook = SinkHook(sink)
        reports = [
            LastTransactions("sink", [transaction(0, 1)]),
            LastTransactions("sink", []),
            LastTransactions("sink", [transaction(0, 2, writer=1)]),
        ]
        hook.resume("run")
        hook.commit("run", reports)
        assert sink.log == [("resume", "run"), ("last", "run", "sink")]
        assert sink.items == [1, 2]

    def test_stopped_processor_drops_what_is_open(self):
        host = Host(Memory())
        host.write(1)
        host.processor.interrupt()
        host.processor.close()
        host.processor.close()
        assert host.sink.items == []
        assert host.sink.log[1:] == ["interrupt", "close"]


class TestRolling:
    """Streams without a guarantee."""

    def test_transactions_end_by_themselves(self):
        host = Host(Memory(), rolls=True, takes_snapshots=False)
        host.write(1)
        host.clock.now = ROLL_NS - 1
        assert host.processor.try_process()
        assert host.sink.items == []
        host.write(2)
        host.clock.now = ROLL_NS
        assert host.processor.try_process()
        assert host.sink.items == [1, 2]
        host.clock.now = 2 * ROLL_NS
        assert host.processor.try_process()
        host.write(3)
        assert host.processor.try_process()
        assert host.sink.items == [1, 2]

    def test_what_is_open_when_the_job_is_cancelled_is_committed(self):
        host = Host(Memory(), rolls=True, takes_snapshots=False)
        host.write(1)
        host.processor.close()
        assert host.sink.items == [1]
        assert host.sink.log == ["close"]

    def test_but_not_if_it_may_be_resumed(self):
        host = Host(Memory(), rolls=True)
        host.write(1)
        host.processor.close()
        assert host.sink.items == []

    def test_no_transaction_ends_by_itself_with_a_guarantee(self):
        host = Host(Memory())
        host.write(1)
        host.clock.now = 10 * ROLL_NS
        assert host.processor.try_process()
        assert host.sink.items == []


@pytest.mark.parametrize("holds_back", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("takes_snapshots", [False, True])
@pytest.mark.parametrize("guarantee", ["none", "at-least-once", "exactly-once"])
def test_transactions_are_used_where_they_are_needed(
    holds_back, is_stream, takes_snapshots, guarantee
):
    supplier = SinkSupplier(Memory(holds_back=holds_back), is_stream=is_stream)
    supplier.init(ProcessorContext(processing_guarantee=guarantee, takes_snapshots=takes_snapshots))
    processor = supplier.get()
    expected = guarantee == "exactly-once" or (
        holds_back and (takes_snapshots or (is_stream and guarantee == "none"))
    )
    assert isinstance(processor, TransactionalWriteProcessor) == expected
    if expected:
        assert processor._rolls == (is_stream and guarantee == "none")
    else:
        assert isinstance(processor, WriteProcessor)


def test_sink_without_transactions_never_has_any():
    supplier = SinkSupplier(Plain(), is_stream=True)
    supplier.init(ProcessorContext(processing_guarantee="exactly-once", takes_snapshots=True))
    assert isinstance(supplier.get(), WriteProcessor)


def test_writer_supersedes_earlier_attempts_of_those_that_it_succeeds():
    place = WriterPlace("run", "sink", "3", 1, 2)
    assert [w for w in range(5) if place.succeeds(w)] == [1, 3]
    assert place.supersedes(1, "2")
    assert place.supersedes(3, "")
    assert not place.supersedes(1, "3")
    assert not place.supersedes(1, "4")
    assert not place.supersedes(2, "1")
