from __future__ import annotations

import itertools
import pickle
import threading
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core.edge import Routing
from jetlet.core.inbox import Inbox
from jetlet.core.pickling import dump
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError, JobFailedError, UnstableKeyError
from jetlet.spark.batch import exchange
from jetlet.spark.batch.exchange import (
    CHUNK_BYTES,
    FLUSH_ROWS,
    MAX_WAITING,
    METRICS,
    SEQUENCE_BITS,
    BroadcastReader,
    Chunks,
    ExchangeReader,
    ExchangeWriter,
    FrameOutput,
    OutputPort,
    RowStream,
    TaskOutput,
    frame_column,
)
from jetlet.testing import verify_processor


def rows_of(output):
    output.close()
    return [row for batch in output.batches() for row in batch.to_pylist()]


def port(routing, targets, *, key_fn=None, is_repeatable=True):
    return OutputPort(3, "source", routing, key_fn, "key", targets, is_repeatable=is_repeatable)


def write(port, batches, task=0):
    """What a writer sends, as {target: [item, ...]}."""
    output = TaskOutput(task)
    writer = ExchangeWriter(output, port)
    writer.init(None, ProcessorContext(member_index=task, member_count=4))
    for batch in batches:
        inbox = Inbox(batch)
        while inbox:
            writer.process(0, inbox)
    while not writer.complete():
        pass
    sent = {target: [] for target in range(port.targets)}
    for row in rows_of(output):
        assert row["at"] >> SEQUENCE_BITS == task
        assert row["channel"] == 3
        sent[row["target"]] += pickle.loads(row["payload"])
    return sent


class TestTaskOutput:
    def test_rows_come_out_in_order_with_their_numbers(self):
        output = TaskOutput(7)
        output.add(0, 1, b"a")
        output.add(-1, 0, b"b")
        assert rows_of(output) == [
            {"target": 1, "at": (7 << 32) + 1, "channel": 0, "payload": b"a"},
            {"target": 0, "at": (7 << 32) + 2, "channel": -1, "payload": b"b"},
        ]

    def test_many_rows_are_handed_on_before_the_end(self):
        output = TaskOutput(0)
        for _ in range(FLUSH_ROWS):
            output.add(0, 0, b"x")
        assert next(output.batches()).num_rows == FLUSH_ROWS

    def test_it_is_congested_until_spark_takes_a_batch_and_wakes_who_was_refused(self):
        output = TaskOutput(0)
        woken = threading.Event()
        output.wake = woken.set
        for _ in range(MAX_WAITING):
            assert not output.is_congested
            for _ in range(FLUSH_ROWS):
                output.add(0, 0, b"x")
        batches = output.batches()
        assert output.is_congested
        next(batches)
        assert woken.is_set()
        assert not output.is_congested
        woken.clear()
        next(batches)
        assert not woken.is_set()

    def test_a_frame_alone_has_its_columns_and_nothing_else(self):
        items = pa.array([{"n": 1, "s": "a"}, {"n": 2, "s": None}])
        output = FrameOutput(3, {7: items.type})
        output.add(METRICS, 0, b"dropped")
        output.add_frame(7, items)
        output.close()
        (batch,) = output.batches()
        assert batch.to_pylist() == items.to_pylist()

    def test_rows_of_a_frame_have_columns_of_their_own(self):
        kind = pa.struct([("n", pa.int64())])
        output = TaskOutput(0, {5: kind, 6: kind})
        output.add(-1, 0, b"message")
        output.add_frame(6, pa.array([{"n": 1}, {"n": 2}], kind))
        rows = rows_of(output)
        found = [(r["channel"], r["payload"], r[frame_column(5)], r[frame_column(6)]) for r in rows]
        assert sorted(found, key=str) == [
            (-1, b"message", None, None),
            (6, None, None, {"n": 1}),
            (6, None, None, {"n": 2}),
        ]


class TestExchangeWriter:
    @given(st.lists(st.lists(st.text(max_size=2))), st.integers(1, 4))
    def test_equal_keys_go_to_one_target_in_their_order(self, batches, targets):
        sent = write(port(Routing.PARTITIONED, targets), batches)
        items = [item for batch in batches for item in batch]
        assert Counter(i for share in sent.values() for i in share) == Counter(items)
        homes = {item: target for target, share in sent.items() for item in share}
        for target, share in sent.items():
            assert share == [item for item in items if homes[item] == target]

    @given(st.lists(st.integers(), max_size=50), st.integers(1, 4), st.data())
    def test_a_repeated_task_spreads_items_alike_however_they_are_batched(
        self, items, targets, data
    ):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(items)), max_size=5)))
        bounds = [0, *cuts, len(items)]
        batches = [items[a:b] for a, b in itertools.pairwise(bounds)]
        first = write(port(Routing.UNICAST, targets), [items])
        assert write(port(Routing.UNICAST, targets), batches) == first
        sizes = [len(share) for share in first.values()]
        assert max(sizes) - min(sizes) <= 1

    @given(st.lists(st.one_of(st.integers(), st.text(), st.lists(st.integers()))), st.randoms())
    def test_items_in_no_certain_order_are_spread_by_what_they_are(self, items, random):
        shuffled = list(items)
        random.shuffle(shuffled)
        chance = port(Routing.UNICAST, 3, is_repeatable=False)
        first, second = write(chance, [items]), write(chance, [shuffled])
        for target in first:
            assert sorted(map(repr, first[target])) == sorted(map(repr, second[target]))

    def test_an_isolated_edge_keeps_together_what_a_task_sends(self):
        sent = write(port(Routing.ISOLATED, 2), [[1, 2], [3]], task=3)
        assert sent == {0: [], 1: [1, 2, 3]}

    def test_a_broadcast_is_sent_once(self):
        assert write(port(Routing.BROADCAST, 1), [[1, 2]], task=2) == {0: [1, 2]}

    def test_a_failing_key_function_names_the_item(self):
        with pytest.raises(ItemFailedError) as failure:
            write(port(Routing.PARTITIONED, 2, key_fn=lambda x: 1 // x), [[1, 0]])
        assert failure.value.item == 0
        assert isinstance(failure.value.__cause__, ZeroDivisionError)

    @pytest.mark.parametrize("targets", [1, 2])
    def test_a_key_without_a_stable_hash_is_refused(self, targets):
        with pytest.raises(ItemFailedError) as failure:
            write(port(Routing.PARTITIONED, targets, key_fn=lambda _: object()), [[1]])
        assert isinstance(failure.value.__cause__, UnstableKeyError)

    def test_an_item_that_cannot_be_pickled_is_named_with_its_vertex(self):
        with pytest.raises(JobFailedError, match="cannot be sent to another process") as failure:
            write(port(Routing.ISOLATED, 1), [[1, threading.Lock()]])
        assert failure.value.vertex == "source"
        assert failure.value.item.startswith("<unlocked _thread.lock")

    def test_it_takes_nothing_while_the_output_is_congested(self, monkeypatch):
        monkeypatch.setattr(exchange, "FIRST_CHUNK", 1)
        output = TaskOutput(0)
        writer = ExchangeWriter(output, port(Routing.ISOLATED, 1))
        writer.init(None, ProcessorContext())
        while not output.is_congested:
            output.add(0, 0, bytes(exchange.FLUSH_BYTES))
        inbox = Inbox([1])
        writer.process(0, inbox)
        assert len(inbox) == 1
        assert writer.is_waiting
        assert not writer.complete()
        next(output.batches())
        writer.process(0, inbox)
        assert not inbox
        assert not writer.is_waiting

    def test_large_items_do_not_pile_up(self):
        output = TaskOutput(0)
        writer = ExchangeWriter(output, port(Routing.ISOLATED, 1))
        writer.init(None, ProcessorContext())
        for _ in range(64):
            writer.process(0, Inbox([bytes(CHUNK_BYTES // 4) for _ in range(8)]))
            if output.is_congested:
                next(output.batches())
        assert len(writer._buffers[0]) < 256


class TestChunks:
    def test_payloads_approach_their_size(self):
        chunks = Chunks()
        chunks.learn(100, 100 * 1024)
        assert chunks.size == CHUNK_BYTES // 1024
        chunks.learn(1, 10 * CHUNK_BYTES)
        assert chunks.size == 1
        chunks.learn(1000, 1000)
        assert chunks.size == exchange.CHUNK_ITEMS

    def test_many_targets_share_what_may_be_buffered(self):
        chunks = Chunks(targets=1024)
        chunks.learn(1000, 1000)
        assert chunks.size * 1024 <= exchange.BUFFERED_ITEMS


def batches(rows):
    channels, payloads = zip(*rows, strict=True)
    columns = [pa.array(channels, pa.int32()), pa.array(payloads, pa.binary())]
    return iter([pa.RecordBatch.from_arrays(columns, names=["channel", "payload"])])


class Outbox:
    def __init__(self):
        self.batches = []

    def offer_batch(self, batch, ordinal):
        self.batches.append(batch)
        return True


class TestReaders:
    def test_items_go_to_the_edge_of_their_channel_and_messages_are_passed_on(self):
        told = []
        rows = [(4, dump([1, 2])), (-1, b"message"), (7, dump(["a"])), (4, dump([3]))]

        def read():
            stream = RowStream(batches(rows), {4: 0, 7: 0}, lambda *m: told.append(m))
            return ExchangeReader(stream, 0, {4: 0, 7: 1})

        verify_processor(read, expect_outputs=[[1, 2, 3], ["a"]], snapshots=False)
        assert set(told) == {(-1, b"message")}

    def test_a_large_payload_is_cut_into_batches(self):
        def read():
            stream = RowStream(batches([(0, dump(list(range(5000))))]), {0: 0}, None)
            return ExchangeReader(stream, 0, {0: 0})

        verify_processor(read, expect_output=list(range(5000)), snapshots=False)

    def test_each_reader_ends_with_the_last_row_of_its_rank(self):
        rows = [(1, dump(["first"])), (-1, b"message"), (0, dump(["second"]))]
        stream = RowStream(batches(rows), {0: 1, 1: 0}, lambda *_: None)
        readers = [ExchangeReader(stream, rank, {1 - rank: 0}) for rank in (0, 1)]
        outboxes = [Outbox(), Outbox()]
        for reader, outbox in zip(readers, outboxes, strict=True):
            reader.init(outbox, ProcessorContext())
        # The second is asked first, and waits; the first ends although there are rows left.
        assert not readers[1].complete()
        assert not outboxes[1].batches
        assert not readers[0].complete()
        assert readers[0].complete()
        assert not readers[1].complete()
        assert readers[1].complete()
        assert [outbox.batches for outbox in outboxes] == [[["first"]], [["second"]]]

    def test_readers_on_threads_of_their_own_share_the_rows(self):
        rows = [(channel, dump([(channel, n)])) for channel in range(4) for n in range(500)]
        stream = RowStream(batches(rows), {n: n for n in range(4)}, None)
        got = {}

        def read(rank):
            outbox = Outbox()
            reader = ExchangeReader(stream, rank, {rank: 0})
            reader.init(outbox, ProcessorContext())
            while not reader.complete():
                pass
            got[rank] = [item for batch in outbox.batches for item in batch]

        threads = [threading.Thread(target=read, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {rank: [(rank, n) for n in range(500)] for rank in range(4)}

    def test_a_broadcast_is_read_whole_by_each_task(self):
        def read():
            return BroadcastReader(lambda: [dump([1]), dump([2, 3])])

        verify_processor(read, expect_output=[1, 2, 3], snapshots=False)
