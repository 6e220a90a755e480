"""The watermark of a batch, and who waits for whom at its end."""

from __future__ import annotations

import pytest

from jetlet.core.items import IDLE, Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.core.traits import BatchPart
from jetlet.processors.ends.stream_read import BatchReadProcessor, Timestamps
from jetlet.processors.time.event_time import BatchWatermark, EventTimePolicy
from jetlet.spark.micro_batch.time import BatchClock, BatchEnd
from jetlet.testing.outbox import CheckedOutbox

POLICY = EventTimePolicy(allowed_lag=10, step=5)


def test_a_watermark_follows_the_latest_event_and_never_goes_back():
    told = []
    watermark = BatchWatermark(POLICY, None)
    assert watermark.begin() == ()
    watermark.observe(113)
    watermark.observe(40)
    assert watermark.end(told.append) == (Watermark(100),)
    behind = BatchWatermark(POLICY, 100)
    assert behind.begin() == (Watermark(100),)
    assert behind.begin() == ()
    behind.observe(90)
    assert behind.end(told.append) == ()
    assert told == [Watermark(100), Watermark(100)]


def test_who_has_seen_no_event_is_not_waited_for():
    told = []
    assert BatchWatermark(POLICY, 100).end(told.append) == (IDLE,)
    assert not told


def test_the_clock_stands_still_until_all_is_read():
    clock = BatchClock(5, 9)
    assert clock.time_ms() == 5
    clock.advance()
    assert clock.time_ms() == 9


def test_a_batch_ends_when_all_its_readers_have():
    told = []
    end = BatchEnd(lambda: told.append("end"))
    end.expect()
    end.expect()
    end.arrive()
    assert not told
    end.arrive()
    assert told == ["end"]


def read(rows, before=None, kind="function", *, is_tight=False):
    """What a reader emits and tells, and whether it has come to its end."""
    ended, told = [], []
    outbox = CheckedOutbox(1, is_tight=is_tight)
    fn = (lambda row: row["t"]) if kind == "function" else None
    reader = BatchReadProcessor(iter(rows), Timestamps(kind, fn, POLICY))
    reader.join_micro_batch(BatchPart(before is None, 777, before, lambda: ended.append(True)))
    reader.init(outbox, ProcessorContext(report=told.append))
    for _ in range(50):
        outbox.begin_call()
        assert not reader.complete()
    assert ended == [True]
    return outbox.outputs[0], told


@pytest.mark.parametrize("is_tight", [False, True])
def test_a_reader_emits_events_between_two_watermarks(is_tight):
    rows = [[{"t": 50}, {"t": 120}], [{"t": 118}]]
    emitted, told = read(rows, before=60, is_tight=is_tight)
    assert emitted == [
        Watermark(60),
        (50, {"t": 50}),
        (120, {"t": 120}),
        (118, {"t": 118}),
        Watermark(110),
    ]
    assert told == [Watermark(110)]


def test_a_reader_without_rows_says_that_it_is_idle():
    assert read([], before=60) == ([IDLE], [])


def test_ingestion_time_is_that_of_the_batch():
    emitted, told = read([[{"t": 1}]], kind="ingestion")
    assert emitted == [(777, {"t": 1}), Watermark(765)]
    assert told == [Watermark(765)]


def test_items_without_timestamps_come_without_watermarks():
    assert read([[{"t": 1}]], kind="none") == ([{"t": 1}], [])
