"""Timestamps given and taken off in mid-pipeline."""

from __future__ import annotations

import pytest

from jetlet.core.inbox import Inbox
from jetlet.core.items import IDLE, BroadcastKey, Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError, ItemFailedError
from jetlet.pipeline.errors import DeadLetter
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.time.event_time import EventTimePolicy
from jetlet.processors.time.timestamps import StripProcessor, TimestampProcessor
from jetlet.testing import ManualClock, verify_processor
from jetlet.testing.outbox import CheckedOutbox

FAIL = ErrorPolicy("times")


def timestamps(time_policy=None, policy=FAIL, **options):
    return lambda: TimestampProcessor(lambda item: item, time_policy, policy=policy, **options)


def test_items_become_events():
    verify_processor(timestamps(), input=[5, 3, 9], expect_output=[(5, 5), (3, 3), (9, 9)])


def test_bounded_input_has_no_watermarks_and_those_that_come_in_are_dropped():
    verify_processor(timestamps(), input=[5, Watermark(3), 9], expect_output=[(5, 5), (9, 9)])


@pytest.mark.parametrize("inbox", [1, 3])
def test_watermarks_follow_the_events_they_are_made_of(inbox):
    engine = Engine(timestamps(EventTimePolicy(allowed_lag=2, step=5))())
    items = [11, 8, 20]
    for start in range(0, 3, inbox):
        engine.call("process", 0, Inbox(items[start : start + inbox]))
    expected = [(11, 11), Watermark(5), (8, 8), (20, 20), Watermark(15)]
    assert engine.emitted() == [e for e in expected if inbox == 1 or e != Watermark(5)]


def test_watermarks_go_on_after_a_snapshot():
    verify_processor(
        timestamps(EventTimePolicy()),
        input=[10, 20, 15, 21],
        expect_output=[],
        compare=same_watermarks,
        context=ProcessorContext(clock=ManualClock()),
    )


def same_watermarks(expected, actual):
    assert [e[1] for e in actual if isinstance(e, tuple)] == [10, 20, 15, 21]
    times = [e.timestamp for e in actual if isinstance(e, Watermark)]
    assert times in ([10, 20, 21], [21])  # item by item, or all at once


def test_after_a_restart_all_begin_with_the_slowest():
    engine = Engine(timestamps(EventTimePolicy())())
    entries = [(BroadcastKey(("watermark", i)), time) for i, time in enumerate([30, 10, 20])]
    engine.call("restore_from_snapshot", Inbox(entries))
    assert engine.call("finish_snapshot_restore")
    engine.call("process", 0, Inbox([10]))
    engine.call("process", 0, Inbox([11]))
    assert engine.emitted() == [(10, 10), (11, 11), Watermark(11)]


def test_quiet_input_becomes_idle():
    engine = Engine(timestamps(EventTimePolicy(step=10, idle_timeout=500))())
    engine.call("process", 0, Inbox([19]))
    assert engine.call("try_process")
    for _ in range(4):
        engine.clock.advance(ms=100)
        assert engine.call("try_process")
    engine.clock.advance(ms=99)
    assert engine.call("try_process")
    assert engine.emitted() == [(19, 19), Watermark(10)]
    engine.clock.advance(ms=100)
    assert engine.call("try_process")
    assert engine.emitted() == [IDLE]


@pytest.mark.parametrize("what", ["is worked off", "is kept back"])
def test_input_that_is_there_is_not_quiet(what):
    engine = Engine(timestamps(EventTimePolicy(idle_timeout=500))(), lambda: what == "is kept back")
    for n in range(100):
        engine.clock.advance(ms=100)
        assert engine.call("try_process")
        if what == "is worked off":
            engine.call("process", 0, Inbox([n]))
    assert IDLE not in engine.emitted()


def test_errors_and_bad_timestamps_fail_the_job():
    engine = Engine(TimestampProcessor(lambda item: 1 // item, None, policy=FAIL))
    with pytest.raises(ItemFailedError) as caught:
        engine.call("process", 0, Inbox([1, 0]))
    assert (caught.value.item, caught.value.step) == (0, "times")
    engine = Engine(timestamps()())
    with pytest.raises(ItemFailedError) as caught:
        engine.call("process", 0, Inbox([1, 2.5]))
    assert caught.value.item == 2.5
    assert isinstance(caught.value.__cause__, InvalidArgumentError)


def test_errors_and_bad_timestamps_become_dead_letters():
    verify_processor(
        lambda: TimestampProcessor(
            lambda item: 10 // item if isinstance(item, int) else item,
            EventTimePolicy(),
            policy=ErrorPolicy("times", "dead-letter", 1),
            data_ordinals=(0,),
        ),
        input=[1, 0, "x"],
        expect_outputs=[[], []],
        compare=lambda expected, actual: compare_letters(actual),
        snapshots=False,
    )


def compare_letters(actual):
    items = [each for each in actual if not isinstance(each, Watermark)]
    if isinstance(items[0], DeadLetter):
        assert [letter.item for letter in items] == [0, "x"]
    else:
        assert items == [(10, 1)]


def test_stripping():
    verify_processor(
        StripProcessor,
        input=[(1, "a"), Watermark(1), (2, None)],
        expect_output=["a", Watermark(1), None],
    )


class Engine:
    """Calls one processor by hand."""

    def __init__(self, processor, has_input=lambda: False):
        self.clock = ManualClock()
        self.outbox = CheckedOutbox(1, is_tight=False)
        self.processor = processor
        processor.init(self.outbox, ProcessorContext(clock=self.clock, has_input=has_input))

    def call(self, callback, *args):
        self.outbox.begin_call()
        done = getattr(self.processor, callback)(*args)
        self.outbox.end_call()
        return done

    def emitted(self):
        items, self.outbox.outputs[0] = self.outbox.outputs[0], []
        return items
