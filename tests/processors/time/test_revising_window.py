"""Windows that take late events, one processor at a time, in every condition of an engine."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import agg, windows
from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError, SnapshotError
from jetlet.log import plain
from jetlet.pipeline.windows import EarlyWindowResult, RevisedWindowResult, WindowResult
from jetlet.processors.time.revising_window import RevisingWindowProcessor
from jetlet.testing import ManualClock, verify_processor
from jetlet.testing.outbox import CheckedOutbox


def key(item):
    return item[0]


def make(window, operation=None, key_fns=(key,), **options):
    return lambda: RevisingWindowProcessor(window, operation or agg.counting(), key_fns, **options)


def result(start, end, key, value):
    return (end - 1, WindowResult(start, end, key, value))


def revised(start, end, key, value, revision):
    return (end - 1, RevisedWindowResult(start, end, key, value, revision))


def told(event):
    """What two results must have in common, which as tuples are equal without it."""
    if isinstance(event, Watermark):
        return (event.timestamp, "")
    time, window = event
    return (time, type(window).__name__, window.revision, repr(tuple(window)))


def compare(expected, actual):
    assert sorted(map(told, expected)) == sorted(map(told, actual))


TEN = windows.tumbling(10).allow_lateness(15)


def test_a_result_comes_again_when_something_came_late():
    verify_processor(
        make(TEN),
        input=[
            (1, "a1"),
            (2, "b1"),
            Watermark(10),
            (3, "a2"),
            (4, "a3"),
            (12, "a4"),
            Watermark(14),
        ],
        expect_output=[
            result(0, 10, "a", 1),
            result(0, 10, "b", 1),
            Watermark(10),
            revised(0, 10, "a", 3, 2),
            Watermark(14),
            result(10, 20, "a", 1),
        ],
        compare=compare,
    )


def test_what_is_later_than_allowed_is_late():
    counters = defaultdict(int)
    context = ProcessorContext(count=lambda name, n: counters.update({name: counters[name] + n}))
    verify_processor(
        make(TEN, late_ordinal=1, data_ordinals=(0,)),
        input=[(1, "a1"), Watermark(24), (2, "a2"), Watermark(25), (3, "a3")],
        expect_outputs=[
            [result(0, 10, "a", 1), Watermark(24), revised(0, 10, "a", 2, 1), Watermark(25)],
            [Watermark(24), Watermark(25), "a3"],
        ],
        context=context,
    )
    assert counters["late_events"] >= 1


WINDOWS = st.one_of(
    st.builds(windows.tumbling, st.integers(1, 20)),
    st.builds(windows.sliding, st.integers(1, 20), st.integers(1, 20)),
    st.builds(
        lambda step, times, offset: windows.cumulative(step * times, step, offset=offset),
        st.integers(1, 9),
        st.integers(1, 4),
        st.integers(-9, 9),
    ),
    st.just(windows.calendar_days("UTC")),
)


def bounds(window, frame_end):
    """The windows that have the frame."""
    found, end = [], window.next_end(frame_end - 1)
    while window.start_of(end) < frame_end:
        found.append(end)
        end = window.next_end(end)
    return found


def oracle(window, feed):
    now, held, dirty, out = -(2**63), {}, set(), []

    def value(end, key):
        entries = [
            numbers
            for (frame, k), numbers in held.items()
            if k == key and window.start_of(end) < frame <= end
        ]
        return sum(n for n, _ in entries), sum(late for _, late in entries)

    def advance(time):
        for end, key in sorted({(e, k) for f, k in dirty for e in bounds(window, f) if e <= now}):
            count, late = value(end, key)
            out.append(revised(window.start_of(end), end, key, count, late))
        dirty.clear()
        ends = {(e, k) for f, k in held for e in bounds(window, f)}
        for end, key in sorted(ends):
            if now < end <= time:
                out.append(result(window.start_of(end), end, key, value(end, key)[0]))

    for each in feed:
        if isinstance(each, Watermark):
            advance(each.timestamp)
            now = each.timestamp
            out.append(each)
            continue
        time, item = each
        start, end = window.frame_at(time)
        if window.is_in_gap(start) or end + window.lateness <= now:
            continue
        numbers = held.setdefault((end, item[0]), [0, 0])
        numbers[0] += 1
        if end <= now:
            numbers[1] += 1
            dirty.add((end, item[0]))
    advance(2**62)
    return out


@settings(max_examples=80)
@given(
    window=WINDOWS,
    lateness=st.integers(1, 30),
    steps=st.lists(
        st.one_of(
            st.tuples(st.integers(-20, 90), st.sampled_from("ab")),
            st.integers(1, 15),
        ),
        max_size=40,
    ),
)
def test_results_and_revisions_are_those_of_the_oracle(window, lateness, steps):
    window = window.allow_lateness(lateness)
    feed, time = [], -20
    for step in steps:
        if isinstance(step, int):
            time += step
            feed.append(Watermark(time))
        else:
            feed.append(step)
    verify_processor(make(window), input=feed, expect_output=oracle(window, feed), compare=compare)


class Engine:
    """Calls one processor by hand."""

    def __init__(self, processor):
        self.clock = ManualClock()
        self.outbox = CheckedOutbox(1, is_tight=False)
        self.processor = processor
        processor.init(self.outbox, ProcessorContext(clock=self.clock))

    def call(self, callback, *args):
        self.outbox.begin_call()
        done = getattr(self.processor, callback)(*args)
        self.outbox.end_call()
        return done

    def emitted(self):
        items, self.outbox.outputs[0] = self.outbox.outputs[0], []
        return [each for each in items if not isinstance(each, Watermark)]


def test_state_is_kept_until_the_lateness_is_over():
    engine = Engine(make(TEN)())
    engine.call("process", 0, Inbox([(1, "a1")]))
    engine.call("try_process_watermark", Watermark(24))
    assert dict(engine.processor.tables) == {10: {"a": [1, 0, 0]}}
    engine.call("try_process_watermark", Watermark(25))
    assert dict(engine.processor.tables) == {}


def test_early_results_are_of_windows_that_are_not_complete():
    engine = Engine(make(TEN.early_results(100))())
    engine.call("process", 0, Inbox([(1, "a1"), (11, "a2")]))
    engine.call("try_process_watermark", Watermark(10))
    engine.emitted()
    engine.clock.advance(ms=100)
    engine.call("try_process")
    assert [told(each) for each in engine.emitted()] == [
        (19, EarlyWindowResult.__name__, 0, "(10, 20, 'a', 1)")
    ]


def test_a_failing_item_or_result_is_named():
    engine = Engine(make(TEN, key_fns=(lambda item: 1 // item,))())
    with pytest.raises(ItemFailedError) as caught:
        engine.call("process", 0, Inbox([(1, 5), (2, 0)]))
    assert caught.value.item == 0
    engine = Engine(make(TEN, agg.counting().and_then(lambda n: 1 // (n - 1)))())
    engine.call("process", 0, Inbox([(1, "a")]))
    with pytest.raises(ItemFailedError) as caught:
        engine.call("complete")
    assert caught.value.item == WindowResult(0, 10, "a", 1)


def test_less_lateness_goes_on_with_what_was_saved():
    saved = make(TEN)().state_definition()
    make(windows.tumbling(10).allow_lateness(5))().restored_from(saved)
    for other in (windows.tumbling(10).allow_lateness(16), windows.tumbling(20).allow_lateness(15)):
        with pytest.raises(SnapshotError, match="its state was made by"):
            make(other)().restored_from(saved)


def test_a_revised_result_is_one_of_windows_wherever_it_goes():
    one = RevisedWindowResult(0, 10, "a", 5, 3)
    for each in (pickle.loads(pickle.dumps(one)), copy.copy(one), plain.loads(plain.dumps(one))):
        assert each == one == (0, 10, "a", 5)
        assert (type(each), each.revision, each.is_early) == (RevisedWindowResult, 3, False)
    assert (one._replace(key=None).key, one._replace(key=None).revision) == (None, 3)
    assert WindowResult(0, 10, "a", 5).revision == 0
