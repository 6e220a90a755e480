"""Sliding and tumbling windows, one processor at a time, in every condition of an engine."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import agg, whole_item
from jetlet.core.inbox import Inbox
from jetlet.core.items import MIN_TIMESTAMP, Watermark
from jetlet.core.partitioning import PartitionId
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError, SnapshotError, UnstableKeyError
from jetlet.pipeline.windows import (
    CumulativeWindow,
    EarlyWindowResult,
    WindowResult,
    calendar_days,
    cumulative,
    sliding,
    tumbling,
)
from jetlet.processors.base import TURN_NS
from jetlet.processors.time.frames import SLICE, Frame, frame_key
from jetlet.processors.time.sliding_window import SlidingWindowProcessor
from jetlet.testing import ManualClock, verify_processor
from jetlet.testing.outbox import CheckedOutbox

TUMBLING = tumbling(10)
COUNT_AND_SUM = agg.all_of(agg.counting(), agg.summing(lambda item: item[1]))


def key(item):
    return item[0]


def window_processor(window=TUMBLING, operation=None, key_fns=(key,), **options):
    return lambda: SlidingWindowProcessor(window, operation or agg.counting(), key_fns, **options)


class Copying(SlidingWindowProcessor):
    """Takes copies of frames: the processor owns what it is sent, and the harness keeps its own."""

    def process_batch(self, ordinal, batch):
        super().process_batch(ordinal, copy.deepcopy(batch))


def result(start, end, key, value):
    return (end - 1, WindowResult(start, end, key, value))


def same_between_watermarks(expected, actual):
    """The keys of a window come in any order."""

    def runs(items):
        return [
            run if is_watermark else sorted(run)
            for is_watermark, group in groupby(items, lambda item: isinstance(item, Watermark))
            if (run := list(group))
        ]

    assert runs(expected) == runs(actual)


def test_tumbling_windows_are_emitted_when_the_watermark_reaches_their_end():
    verify_processor(
        window_processor(),
        input=[
            (1, ("a", 1)),
            (9, ("b", 1)),
            Watermark(9),
            (9, ("a", 1)),
            (10, ("a", 1)),
            Watermark(10),
            Watermark(15),
            Watermark(29),
        ],
        expect_output=[
            Watermark(9),
            result(0, 10, "a", 2),
            result(0, 10, "b", 1),
            Watermark(10),
            Watermark(15),
            result(10, 20, "a", 1),
            Watermark(29),
        ],
        compare=same_between_watermarks,
    )


def test_windows_that_are_open_at_the_end_are_emitted_in_order():
    verify_processor(
        window_processor(sliding(20, 10)),
        input=[(31, ("a", 1)), (5, ("a", 1)), (-5, ("a", 1))],
        expect_output=[
            result(-20, 0, "a", 1),
            result(-10, 10, "a", 2),
            result(0, 20, "a", 1),
            result(20, 40, "a", 1),
            result(30, 50, "a", 1),
        ],
    )


@pytest.mark.parametrize(
    "operation",
    [COUNT_AND_SUM, COUNT_AND_SUM.without_deduct()],
    ids=["deducting", "combining anew"],
)
def test_a_sliding_window_slides(operation):
    verify_processor(
        window_processor(sliding(30, 10), operation),
        input=[
            (0, ("a", 1)),
            (12, ("a", 2)),
            (13, ("b", 4)),
            (25, ("a", 8)),
            Watermark(20),
            (38, ("b", 16)),
            Watermark(41),
        ],
        expect_output=[
            result(-20, 10, "a", (1, 1)),
            result(-10, 20, "a", (2, 3)),
            result(-10, 20, "b", (1, 4)),
            Watermark(20),
            result(0, 30, "a", (3, 11)),
            result(0, 30, "b", (1, 4)),
            result(10, 40, "a", (2, 10)),
            result(10, 40, "b", (2, 20)),
            Watermark(41),
            result(20, 50, "a", (1, 8)),
            result(20, 50, "b", (1, 16)),
            result(30, 60, "b", (1, 16)),
        ],
        order_matters=False,
    )


def test_a_key_whose_sum_is_zero_is_still_in_the_window():
    verify_processor(
        window_processor(sliding(20, 10), agg.summing(lambda item: item[1])),
        input=[(0, ("a", 5)), (10, ("a", -5)), Watermark(20), Watermark(30), Watermark(40)],
        expect_output=[
            result(-10, 10, "a", 5),
            result(0, 20, "a", 0),
            Watermark(20),
            result(10, 30, "a", -5),
            Watermark(30),
            Watermark(40),
        ],
    )


def test_late_events_are_counted_and_leave_over_their_own_edge():
    counters = defaultdict(int)
    context = ProcessorContext(count=lambda name, n: counters.update({name: counters[name] + n}))
    verify_processor(
        window_processor(sliding(20, 10), late_ordinal=1, data_ordinals=(0,)),
        input=[
            (5, ("a", 1)),
            Watermark(12),
            (9, ("late", 1)),
            (10, ("in time", 1)),
            (-3, ("late", 2)),
            (19, ("in time", 1)),
        ],
        expect_outputs=[
            [
                result(-10, 10, "a", 1),
                Watermark(12),
                result(0, 20, "a", 1),
                result(0, 20, "in time", 2),
                result(10, 30, "in time", 2),
            ],
            [Watermark(12), ("late", 1), ("late", 2)],
        ],
        context=context,
        snapshots=False,
        columns=False,
    )
    assert counters == {"late_events": 2 * 4}  # once in each of the four runs


def test_windows_without_keys():
    verify_processor(
        window_processor(sliding(20, 10), COUNT_AND_SUM, None),
        input=[(0, ("a", 1)), (3, ("b", 2)), (15, ("c", 4)), Watermark(20), (1, ("late", 9))],
        expect_output=[
            result(-10, 10, None, (2, 3)),
            result(0, 20, None, (3, 7)),
            Watermark(20),
            result(10, 30, None, (1, 4)),
        ],
    )


def test_several_inputs_share_their_windows():
    operation = agg.co_aggregate(agg.counting(), agg.summing())
    verify_processor(
        window_processor(tumbling(10), operation, (key, lambda n: "a" if n < 5 else "b")),
        inputs=[[(1, ("a", 0)), (12, ("a", 0))], [(2, 3), (3, 7)]],
        expect_output=[
            result(0, 10, "a", (1, 3)),
            result(0, 10, "b", (0, 7)),
            result(10, 20, "a", (1, 0)),
        ],
        order_matters=False,
    )


def test_results_without_timestamps_where_nobody_needs_them():
    verify_processor(
        window_processor(emits_events=False),
        input=[(1, ("a", 1)), Watermark(10)],
        expect_output=[WindowResult(0, 10, "a", 1), Watermark(10)],
    )


def test_an_operation_that_cannot_combine_works_in_tumbling_windows():
    operation = agg.of(create=list, accumulate=lambda acc, item: [*acc, item[1]])
    verify_processor(
        window_processor(tumbling(10), operation),
        input=[(1, ("a", 1)), (2, ("a", 2)), (11, ("a", 3))],
        expect_output=[result(0, 10, "a", [1, 2]), result(10, 20, "a", [3])],
    )


# --- Two stages -----------------------------------------------------------------------------


def merged(frames):
    """Frames, or parts of them, put together: which key is where with how much."""
    found = defaultdict(int)
    for frame in frames:
        if isinstance(frame, Frame):
            for each, count in frame.table.items():
                found[frame.key, frame.end, each] += count
    return found


@pytest.mark.parametrize("targets", [1, 4])
def test_a_first_stage_emits_frames_before_the_watermark(targets):
    input = [(5, (n, 1)) for n in range(10)] + [(5, (3, 1)), (17, (3, 1)), Watermark(10)]

    def same(expected, actual):
        before = actual[: actual.index(Watermark(10))]
        assert sum(count for (_, end, _), count in merged(before).items() if end == 10) == 11
        parts = merged(actual)
        assert sum(parts.values()) == 12
        assert {where for where, _, _ in parts} == {PartitionId(n) for n in range(targets)}
        owners = defaultdict(set)
        for where, _, each in parts:
            owners[each].add(where)
        assert all(len(where) == 1 for where in owners.values())

    verify_processor(
        window_processor(emits_frames=True, target_parallelism=targets),
        input=input,
        expect_output=[],
        compare=same,
    )


def test_a_second_stage_makes_windows_of_parts_of_frames():
    def frame(end, **table):
        return Frame(PartitionId(0), end, table)

    verify_processor(
        lambda: Copying(sliding(20, 10), agg.counting(), None, takes_frames=True),
        input=[
            frame(10, a=1),
            frame(20, a=5),
            frame(10, a=2, b=3),
            Watermark(10),
            frame(20, b=1),
            frame(10, a=100),  # too late
            Watermark(20),
        ],
        expect_output=[
            result(-10, 10, "a", 3),
            result(-10, 10, "b", 3),
            Watermark(10),
            result(0, 20, "a", 8),
            result(0, 20, "b", 4),
            Watermark(20),
            result(10, 30, "a", 5),
            result(10, 30, "b", 1),
        ],
        order_matters=False,
    )


def test_the_key_of_a_frame_says_which_processor_it_is_for():
    assert frame_key(Frame(PartitionId(7), 10, {})) == PartitionId(7)


# --- Against an oracle ----------------------------------------------------------------------

WINDOWS = st.one_of(
    st.builds(
        lambda slide, times: sliding(slide * times, slide), st.integers(1, 12), st.integers(1, 4)
    ),
    st.builds(
        lambda size, slide, offset: sliding(size, slide, offset=offset),
        st.integers(1, 24),
        st.integers(1, 24),
        st.integers(-30, 30),
    ),
    st.builds(
        lambda step, times, offset: cumulative(step * times, step, offset=offset),
        st.integers(1, 12),
        st.integers(1, 4),
        st.integers(-30, 30),
    ),
)
EVENTS = st.lists(st.tuples(st.integers(-30, 60), st.tuples(st.integers(0, 3), st.integers(-9, 9))))


def windows_with(window, time):
    if isinstance(window, CumulativeWindow):
        start = time - (time - window.offset) % window.size
        ends = range(start + window.step, start + window.size + 1, window.step)
        return [(start, end) for end in ends if end > time]
    first = time - (time - window.offset) % window.slide
    return [(s, s + window.size) for s in range(first, time - window.size, -window.slide)]


def with_watermarks(events, every):
    """The events in the order of time, roughly, with a watermark now and then; none is late."""
    events = sorted(events, key=lambda event: event[0])
    feed, last = [], MIN_TIMESTAMP
    for i, event in enumerate(events):
        feed.append(event)
        if i % every == 0 and event[0] > last:
            last = event[0]
            feed.append(Watermark(last))
    return feed


@settings(max_examples=60)
@given(
    window=WINDOWS,
    events=EVENTS,
    every=st.integers(1, 5),
    operation=st.sampled_from([COUNT_AND_SUM, COUNT_AND_SUM.without_deduct()]),
)
def test_all_windows_have_what_belongs_to_them(window, events, every, operation):
    expected = defaultdict(lambda: [0, 0])
    for time, item in events:
        for bounds in windows_with(window, time):
            counts = expected[*bounds, item[0]]
            counts[0] += 1
            counts[1] += item[1]
    feed = with_watermarks(events, every)
    verify_processor(
        window_processor(window, operation),
        input=feed,
        expect_output=[
            *(result(*bounds, tuple(v)) for bounds, v in expected.items()),
            *(each for each in feed if isinstance(each, Watermark)),
        ],
        order_matters=False,
    )


HOUR = 3_600_000
ZONES = ["Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu"]


@settings(max_examples=40)
@given(
    zone=st.sampled_from(ZONES),
    begin=st.integers(-(2**39), 2**40),
    hours=st.lists(st.integers(0, 24 * 400), max_size=20),
)
def test_calendar_days_are_those_of_the_clocks_there(zone, begin, hours):
    times = sorted(begin + hour * HOUR for hour in hours)
    expected = Counter(datetime.fromtimestamp(t / 1000, ZoneInfo(zone)).date() for t in times)
    feed = [(time, ("k", time)) for time in times]
    engine = Engine(window_processor(calendar_days(zone), agg.counting())())
    engine.take(*feed)
    assert engine.call("complete")
    results = [each for _, each in engine.emitted()]
    found = {}
    for each in results:
        (inside,) = {
            datetime.fromtimestamp(t / 1000, ZoneInfo(zone)).date()
            for t in (each.start, each.end - 1)
        }
        before = datetime.fromtimestamp((each.start - 1) / 1000, ZoneInfo(zone)).date()
        assert before < inside
        found[inside] = each.result
    assert found == expected


def test_days_on_which_clocks_are_changed():
    days = calendar_days("Europe/Berlin")
    hours = {}
    for day in ("2024-03-30", "2024-03-31", "2024-10-27"):
        noon = datetime.fromisoformat(f"{day}T12:00+00:00")
        start, end = days.frame_at(int(noon.timestamp()) * 1000)
        hours[day] = (end - start) // HOUR
    assert hours == {"2024-03-30": 24, "2024-03-31": 23, "2024-10-27": 25}


def test_a_day_does_not_end_twice_where_clocks_are_set_back_over_midnight():
    """In Newfoundland until 2011: at one past midnight it was one past eleven again."""
    days = calendar_days("America/St_Johns")
    start, end = days.frame_at(int(datetime(2010, 11, 6, 12, tzinfo=UTC).timestamp()) * 1000)
    assert end - start == 24 * HOUR
    next_day = (end, end + 25 * HOUR)
    for minutes in (0, 1, 30, 61, 24 * 60, 25 * 60 - 1):
        assert days.frame_at(end + minutes * 60_000) == next_day
    assert days.frame_at(end - 1) == (start, end)
    assert days.start_of(end + 25 * HOUR) == end


def test_no_calendar_goes_as_far_as_time():
    for time in (-(2**62), 2**62):
        start, end = calendar_days("Europe/Berlin").frame_at(time)
        assert start <= time < end


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (tumbling(10), tumbling(10, offset=5)),
        (tumbling(10), cumulative(10, 5)),
        (cumulative(10, 5), cumulative(20, 5)),
        (calendar_days("UTC"), calendar_days("Europe/Berlin")),
        (calendar_days("UTC"), tumbling(86_400_000)),
    ],
)
def test_state_of_other_windows_is_refused(before, after):
    saved = window_processor(before, agg.counting())().state_definition()
    with pytest.raises(SnapshotError, match="its state was made by"):
        window_processor(after, agg.counting())().restored_from(saved)


# --- Early results --------------------------------------------------------------------------


class Engine:
    """Calls one processor by hand."""

    def __init__(self, processor, clock=None, *, is_tight=False, **context):
        self.clock = clock or ManualClock()
        self.outbox = CheckedOutbox(1, is_tight=is_tight)
        self.processor = processor
        processor.init(self.outbox, ProcessorContext(clock=self.clock, **context))

    def call(self, callback, *args):
        self.outbox.begin_call()
        done = getattr(self.processor, callback)(*args)
        self.outbox.end_call()
        return done

    def take(self, *events):
        self.call("process", 0, Inbox(list(events)))

    def emitted(self):
        items, self.outbox.outputs[0] = self.outbox.outputs[0], []
        return items


@pytest.mark.parametrize("operation", [agg.counting(), agg.counting().without_deduct()])
def test_early_results_are_what_open_windows_hold(operation):
    engine = Engine(window_processor(sliding(20, 10).early_results(100), operation)())
    engine.take((5, ("a", 1)), (15, ("a", 1)))
    assert engine.call("try_process")
    assert engine.emitted() == []
    engine.clock.advance(ms=100)
    assert engine.call("try_process")
    early = engine.emitted()
    assert early == [
        result(-10, 10, "a", 1),
        result(0, 20, "a", 2),
        result(10, 30, "a", 1),
    ]
    assert all(each.is_early and type(each) is EarlyWindowResult for _, each in early)
    assert engine.call("try_process")
    assert engine.emitted() == []
    assert engine.call("try_process_watermark", Watermark(10))
    engine.clock.advance(ms=100)
    engine.call("try_process")
    final, _, *early = engine.emitted()
    assert final == result(-10, 10, "a", 1) and not final[1].is_early
    assert early == [result(0, 20, "a", 2), result(10, 30, "a", 1)]
    assert engine.call("complete")
    final = engine.emitted()
    assert final == early and not any(each.is_early for _, each in final)


def test_early_results_of_no_events_are_none():
    engine = Engine(window_processor(tumbling(10).early_results(100))())
    engine.clock.advance(1)
    assert engine.call("try_process")
    assert engine.emitted() == []


def test_early_results_leave_gaps_between_windows_out():
    engine = Engine(window_processor(tumbling(10).early_results(1))())
    engine.take((5, ("a", 1)), (1_000_000_005, ("a", 1)))
    engine.clock.advance(1)
    assert engine.call("try_process")
    assert [each.end for _, each in engine.emitted()] == [10, 1_000_000_010]


# --- Turns ----------------------------------------------------------------------------------


class TickingClock(ManualClock):
    """A clock on which every look takes time."""

    def monotonic_ns(self):
        self.advance(ns=TURN_NS)
        return super().monotonic_ns()


@pytest.mark.parametrize("options", [{}, {"emits_frames": True, "target_parallelism": 3}])
def test_large_tables_are_worked_off_in_several_turns(options):
    wakes = []
    engine = Engine(
        window_processor(sliding(20, 10), agg.summing(lambda item: item[1]), **options)(),
        TickingClock(),
        wake=lambda: wakes.append(1),
    )
    engine.take(*[(5, (n, 1)) for n in range(10_000)])
    calls = 0
    while not engine.call("complete"):
        calls += 1
        assert calls < 1000
    items = engine.emitted()
    if options:
        assert sum(len(frame.table) for frame in items) == 10_000
        assert max(len(frame.table) for frame in items) <= SLICE
    else:
        assert len(items) == 20_000
        # Combining and deducting emit nothing, so the engine has to be told to go on.
        assert calls > 20 and wakes


def test_a_snapshot_in_the_middle_of_the_results_waits_for_the_rest():
    engine = Engine(window_processor()(), is_tight=True)
    engine.take(*[(5, (n, 1)) for n in range(5000)])
    assert not engine.call("complete")
    engine.outbox.begin_snapshot()
    while not engine.call("save_to_snapshot"):
        pass
    saved = engine.outbox.end_snapshot()
    assert len(engine.emitted()) == 5000
    assert [state for _, state in saved] == [10]  # only up to where it is done


def test_a_first_stage_keeps_nothing_back_while_nobody_waits_for_it():
    engine = Engine(window_processor(emits_frames=True)())
    engine.take((5, ("a", 1)), (15, ("b", 1)))
    assert engine.call("try_process_idle")
    assert [(frame.end, dict(frame.table)) for frame in engine.emitted()] == [
        (10, {"a": 1}),
        (20, {"b": 1}),
    ]
    assert engine.call("try_process_idle")
    assert engine.emitted() == []


# --- Failures -------------------------------------------------------------------------------


def failure_of(processor, *events, finish=False):
    engine = Engine(processor)
    with pytest.raises(ItemFailedError) as caught:
        engine.take(*events)
        if finish:
            engine.call("complete")
    return caught.value


def test_a_failing_key_function_names_the_item():
    error = failure_of(window_processor(key_fns=(lambda item: 1 // item,))(), (1, 5), (2, 0))
    assert error.item == 0
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_failing_accumulate_function_names_the_item():
    operation = agg.summing(lambda item: item["n"])
    for key_fns in ((lambda item: 1,), None):
        processor = window_processor(tumbling(5), operation, key_fns)()
        error = failure_of(processor, (1, {"n": 1}), (1, {}))
        assert error.item == {}
        assert isinstance(error.__cause__, KeyError)


def test_a_failing_finish_function_names_the_window():
    operation = agg.counting().and_then(lambda n: 1 // (n - 2))
    events = [(1, "a"), (1, "b"), (2, "b")]
    processor = window_processor(tumbling(10), operation, (whole_item,))()
    error = failure_of(processor, *events, finish=True)
    assert error.item == WindowResult(0, 10, "b", 2)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_key_that_has_no_stable_hash_is_refused():
    class Plain:
        pass

    unhashable = failure_of(window_processor(key_fns=(whole_item,))(), (1, []))
    assert isinstance(unhashable.__cause__, UnstableKeyError)
    for options in ({}, {"emits_frames": True}):
        processor = window_processor(key_fns=(lambda item: Plain(),), **options)()
        unstable = failure_of(processor, (1, 1), finish=True)
        assert isinstance(unstable.__cause__, UnstableKeyError)


@pytest.mark.parametrize(
    "operation",
    [COUNT_AND_SUM, COUNT_AND_SUM.without_deduct()],
    ids=["deducting", "combining anew"],
)
def test_a_size_that_is_no_multiple_of_the_slide(operation):
    verify_processor(
        window_processor(sliding(25, 10), operation),
        input=[
            (1, ("a", 1)),
            (12, ("a", 2)),
            Watermark(10),
            (17, ("b", 4)),
            Watermark(15),
            (33, ("a", 8)),
            Watermark(29),
        ],
        expect_output=[
            result(-20, 5, "a", (1, 1)),
            Watermark(10),
            result(-10, 15, "a", (2, 3)),
            Watermark(15),
            result(0, 25, "a", (2, 3)),
            result(0, 25, "b", (1, 4)),
            Watermark(29),
            result(10, 35, "a", (2, 10)),
            result(10, 35, "b", (1, 4)),
            result(20, 45, "a", (1, 8)),
            result(30, 55, "a", (1, 8)),
        ],
        compare=same_between_watermarks,
    )


@pytest.mark.parametrize("size", [10, 15])
@pytest.mark.parametrize("key_fns", [(key,), None])
def test_events_between_two_windows_are_in_none_and_not_late(size, key_fns):
    counter = {}
    context = ProcessorContext(count=lambda name, amount: counter.update({name: amount}))
    name = None if key_fns is None else "a"
    verify_processor(
        window_processor(sliding(size, 20), agg.counting(), key_fns),
        input=[
            (0, ("a", 1)),
            (16, ("a", 1)),
            (-4, ("a", 1)),
            (21, ("a", 1)),
            Watermark(38),
            (17, ("a", 1)),
            (41, ("a", 1)),
        ],
        expect_output=[
            result(0, size, name, 1),
            result(20, 20 + size, name, 1),
            Watermark(38),
            result(40, 40 + size, name, 1),
        ],
        context=context,
    )
    assert not counter


def test_one_frame_for_many_windows_costs_one_update():
    calls = []

    def accumulate(acc, item):
        calls.append(item)
        return acc + 1

    operation = replace(
        agg.counting(), accumulate=(accumulate,), accumulate_keyed=None, loop_bodies=None
    )
    engine = Engine(window_processor(sliding(10_000, 10), operation)())
    engine.take((5, ("a", 1)), (7, ("b", 1)))
    engine.call("complete")
    assert len(engine.emitted()) == 2000
    assert len(calls) == 2
