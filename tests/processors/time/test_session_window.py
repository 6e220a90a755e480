"""Session windows, in every condition of an engine."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import agg, whole_item
from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError, UnstableKeyError
from jetlet.pipeline.windows import EarlyWindowResult, WindowResult, session
from jetlet.processors.time.limited_session import LimitedSessionProcessor
from jetlet.processors.time.session_window import SessionWindowProcessor
from jetlet.testing import ManualClock, verify_processor
from jetlet.testing.outbox import CheckedOutbox

SESSION = session(10)


def key(item):
    return item[0]


def sessions(operation=None, key_fns=(key,), window=SESSION, **options):
    return lambda: SessionWindowProcessor(window, operation or agg.counting(), key_fns, **options)


def result(start, end, key, value):
    return (end - 1, WindowResult(start, end, key, value))


def test_a_session_ends_when_its_key_has_been_quiet_for_the_gap():
    verify_processor(
        sessions(),
        input=[
            (0, "a1"),
            (8, "a2"),
            (9, "b1"),
            Watermark(9),
            (18, "a3"),  # just within the gap
            Watermark(20),
            (29, "a4"),  # just outside
            Watermark(28),
            Watermark(29),
        ],
        expect_output=[
            Watermark(9),
            result(9, 19, "b", 1),
            Watermark(20),
            Watermark(28),
            result(0, 28, "a", 3),
            Watermark(29),
            result(29, 39, "a", 1),
        ],
    )


def test_an_event_between_two_sessions_joins_them():
    verify_processor(
        sessions(agg.to_list(whole_item).and_then(sorted)),
        input=[(0, "a1"), (20, "a2"), (50, "a3"), (10, "a4"), Watermark(31)],
        expect_output=[
            result(0, 30, "a", ["a1", "a2", "a4"]),
            Watermark(31),
            result(50, 60, "a", ["a3"]),
        ],
    )


def test_late_events_are_counted_and_leave_over_their_own_edge():
    counters = defaultdict(int)
    context = ProcessorContext(count=lambda name, n: counters.update({name: counters[name] + n}))
    verify_processor(
        sessions(late_ordinal=1, data_ordinals=(0,)),
        input=[(5, "a1"), Watermark(12), (11, "a2"), (12, "a3")],
        expect_outputs=[[Watermark(12), result(5, 22, "a", 2)], [Watermark(12), "a2"]],
        context=context,
        snapshots=False,
        columns=False,
    )
    assert counters == {"late_events": 4}  # once in each run


def test_sessions_without_keys_and_without_timestamps():
    verify_processor(
        sessions(key_fns=None, emits_events=False),
        input=[(0, "a"), (10, "b"), (21, "c")],
        expect_output=[WindowResult(0, 20, None, 2), WindowResult(21, 31, None, 1)],
    )


def test_items_that_are_their_own_keys_and_several_inputs():
    verify_processor(
        sessions(agg.co_aggregate(agg.counting(), agg.counting()), (whole_item, key)),
        inputs=[[(0, "a"), (3, "b")], [(5, "a1"), (60, "a2")]],
        expect_output=[
            result(0, 15, "a", (1, 1)),
            result(3, 13, "b", (1, 0)),
            result(60, 70, "a", (0, 1)),
        ],
        order_matters=False,
    )


@settings(max_examples=60)
@given(
    gap=st.integers(1, 20),
    events=st.lists(st.tuples(st.integers(-30, 60), st.sampled_from("abc")), max_size=40),
    disorder=st.integers(0, 15),
)
def test_sessions_are_those_of_the_oracle(gap, events, disorder):
    """Events come in an order that is off by no more than the disorder; none is late."""
    events = sorted(events, key=lambda event: event[0] + ord(event[1]) % (disorder + 1))
    feed, highest, last = [], -1000, -1000
    for event in events:
        feed.append(event)
        highest = max(highest, event[0] - disorder)
        if highest > last and event[0] % 3 == 0:
            last = highest
            feed.append(Watermark(last))
    expected = []
    for name in "abc":
        bounds: list[list[int]] = []
        for time in sorted(t for t, k in events if k == name):
            if bounds and time <= bounds[-1][1]:
                bounds[-1][1] = time + gap
                bounds[-1][2] += 1
            else:
                bounds.append([time, time + gap, 1])
        expected += [result(start, end, name, n) for start, end, n in bounds]
    verify_processor(
        sessions(key_fns=(whole_item,), window=session(gap)),
        input=feed,
        expect_output=[*expected, *(each for each in feed if isinstance(each, Watermark))],
        order_matters=False,
    )


@given(
    gap=st.integers(1, 20),
    longest=st.integers(1, 40),
    events=st.lists(st.tuples(st.integers(-30, 90), st.sampled_from("ab")), max_size=90),
    disorder=st.integers(0, 15),
)
def test_limited_sessions_are_those_of_the_oracle(gap, longest, events, disorder):
    """They are the same in whatever order the events come."""
    events = sorted(events, key=lambda event: event[0] + ord(event[1]) % (disorder + 1))
    feed, highest, last = [], -1000, -1000
    for event in events:
        feed.append(event)
        highest = max(highest, event[0] - disorder)
        if highest > last and event[0] % 3 == 0:
            last = highest
            feed.append(Watermark(last))
    expected = []
    for name in "ab":
        bounds: list[list[int]] = []
        for time in sorted(t for t, k in events if k == name):
            if bounds and time <= bounds[-1][1] and time < bounds[-1][0] + longest:
                bounds[-1][1] = time + gap
                bounds[-1][2] += 1
            else:
                bounds.append([time, time + gap, 1])
        expected += [result(s, min(e, s + longest), name, n) for s, e, n in bounds]
    window = session(gap, max_length=longest)
    verify_processor(
        lambda: LimitedSessionProcessor(window, agg.counting(), (whole_item,)),
        input=feed,
        expect_output=[*expected, *(each for each in feed if isinstance(each, Watermark))],
        order_matters=False,
    )


def test_many_events_of_a_limited_session_are_put_together():
    engine = Engine(LimitedSessionProcessor(session(10, max_length=500), agg.counting(), (key,)))
    for time in range(1000):
        engine.call("process", 0, Inbox([(time, "a1")]))
        engine.call("try_process_watermark", Watermark(time))
    assert len(engine.processor.tables[0]["a"]) <= 66
    engine.call("complete")
    assert engine.processor.tables[0] == {}


def test_early_results_of_a_limited_session():
    window = session(10, max_length=12).early_results(100)
    engine = Engine(LimitedSessionProcessor(window, agg.to_list(), (key,)))
    engine.call("process", 0, Inbox([(8, "a1"), (0, "a2"), (14, "a3")]))
    engine.clock.advance(ms=200)
    for _ in range(2):  # they change nothing
        engine.call("try_process")
        engine.clock.advance(ms=100)
        early = [each for _, each in engine.emitted()]
        assert early == [(0, 12, "a", ["a2", "a1"]), (14, 24, "a", ["a3"])]
        assert all(isinstance(each, EarlyWindowResult) for each in early)


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
        return items


def test_early_results_are_what_open_sessions_hold():
    engine = Engine(sessions(window=session(10).early_results(100))())
    engine.call("process", 0, Inbox([(0, "a1"), (5, "a2"), (40, "a3")]))
    assert engine.call("try_process")
    assert engine.emitted() == []
    engine.clock.advance(ms=100)
    assert engine.call("try_process")
    early = engine.emitted()
    assert early == [result(0, 15, "a", 2), result(40, 50, "a", 1)]
    assert all(type(each) is EarlyWindowResult for _, each in early)
    assert engine.call("complete")
    final = engine.emitted()
    assert final == early
    assert not any(each.is_early for _, each in final)


def test_many_early_results_come_in_batches():
    engine = Engine(sessions(key_fns=(whole_item,), window=session(10).early_results(1))())
    engine.call("process", 0, Inbox([(0, n) for n in range(3000)]))
    engine.clock.advance(1)
    assert engine.call("try_process")
    assert len(engine.emitted()) == 3000


def test_failures_name_the_item_or_the_session():
    engine = Engine(sessions(key_fns=(lambda item: 1 // item,))())
    with pytest.raises(ItemFailedError) as caught:
        engine.call("process", 0, Inbox([(1, 5), (2, 0)]))
    assert caught.value.item == 0
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    engine = Engine(sessions(agg.counting().and_then(lambda n: 1 // (n - 1)))())
    engine.call("process", 0, Inbox([(1, "a")]))
    with pytest.raises(ItemFailedError) as caught:
        engine.call("complete")
    assert caught.value.item == WindowResult(1, 11, "a", 1)


@pytest.mark.parametrize("bad", [[], object()])
def test_a_key_that_has_no_stable_hash_is_refused(bad):
    engine = Engine(sessions(key_fns=(whole_item,))())
    with pytest.raises(ItemFailedError) as caught:
        engine.call("process", 0, Inbox([(1, bad)]))
    assert isinstance(caught.value.__cause__, UnstableKeyError)
    assert caught.value.item is bad
