"""Watermarks on their way between the tasks of a batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jetlet.core.edge import Routing
from jetlet.core.inbox import Inbox
from jetlet.core.items import IDLE, Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.spark.batch.exchange import OutputPort, RowStream, TaskOutput
from jetlet.spark.micro_batch.exchange import BatchExchangeReader, BatchExchangeWriter
from jetlet.spark.micro_batch.time import BatchEnd
from jetlet.testing.outbox import CheckedOutbox

CHANNEL, OTHER = 3, 4


def sent(task, items, *watermarks, targets=2):
    """The rows that a task sends to each target."""
    output = TaskOutput(task)
    port = OutputPort(CHANNEL, "source", Routing.PARTITIONED, None, "key", targets)
    writer = BatchExchangeWriter(output, port)
    writer.init(None, ProcessorContext(member_index=task, member_count=4))
    inbox = Inbox(items)
    while inbox:
        writer.process(0, inbox)
    for watermark in watermarks:
        assert writer.try_process_watermark(Watermark(watermark))
    while not writer.save_to_snapshot():
        pass
    output.close()
    rows = [row for batch in output.batches() for row in batch.to_pylist()]
    return [[row for row in rows if row["target"] == target] for target in range(targets)]


def received(rows, *, is_last=False, is_tight=False):
    """What a reader of two channels emits over each, and whether it has completed."""
    ended = []
    end = None if is_last else BatchEnd(lambda: ended.append(True))
    columns = {name: [row[name] for row in rows] for name in ("channel", "payload")}
    stream = RowStream(iter([pa.RecordBatch.from_pydict(columns)]), {CHANNEL: 0, OTHER: 0}, print)
    reader = BatchExchangeReader(end, stream, 0, {CHANNEL: 0, OTHER: 1})
    outbox = CheckedOutbox(2, is_tight=is_tight)
    reader.init(outbox, ProcessorContext())
    completed = False
    for _ in range(50):
        outbox.begin_call()
        completed = completed or reader.complete()
    assert ended == ([] if is_last else [True])
    return (*outbox.outputs, completed)


@pytest.mark.parametrize("is_tight", [False, True])
def test_the_lowest_watermark_of_all_tasks_follows_all_items(is_tight):
    rows = sent(0, range(10), 100, 300)[1] + sent(1, range(10, 20), 200)[1]
    items, idle, completed = received(rows, is_tight=is_tight)
    assert items[-1] == Watermark(200)
    assert all(type(item) is int for item in items[:-1])
    assert idle == [IDLE]
    assert not completed


def test_every_target_hears_of_it():
    for rows in sent(0, [1], 100):
        assert received(rows)[0][-1] == Watermark(100)


def test_a_task_that_says_nothing_is_not_waited_for():
    rows = sent(0, range(10), 100)[0] + sent(1, range(10))[0]
    assert received(rows)[0][-1] == Watermark(100)


def test_the_last_batch_completes():
    items, _, completed = received(sent(0, range(10))[0], is_last=True)
    assert completed
    assert IDLE not in items
