"""Interval joins, in every condition of an engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import whole_item
from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError, UnstableKeyError
from jetlet.pipeline.errors import DeadLetter
from jetlet.processors.base import TURN_NS, ErrorPolicy
from jetlet.processors.time.interval_join import SLACK, SLICE, IntervalJoinProcessor
from jetlet.testing import ManualClock, verify_processor
from jetlet.testing.outbox import CheckedOutbox


def key(item):
    return item[0]


def join(lower, upper, to_output=None, key_fns=(key, key), **options):
    return partial(IntervalJoinProcessor, key_fns, lower, upper, to_output, **options)


def test_pairs_have_the_same_key_and_are_close_enough():
    verify_processor(
        join(-5, 10),
        inputs=[
            [(100, "a1"), (100, "b1")],
            [(94, "a-"), (95, "a+"), (105, "b+"), (110, "a++"), (111, "b-"), (100, "c-")],
        ],
        expect_output=[
            (100, ("a1", "a+")),
            (105, ("b1", "b+")),
            (110, ("a1", "a++")),
        ],
        order_matters=False,
    )


@pytest.mark.parametrize(
    ("lower", "upper", "partners"),
    [(0, 0, [100]), (1, 2, [101, 102]), (-2, -1, [98, 99]), (-1, 1, [99, 100, 101]), (50, 60, [])],
)
def test_bounds_are_included(lower, upper, partners):
    verify_processor(
        join(lower, upper, lambda item, time: time, key_fns=(lambda _: 0, lambda _: 0)),
        inputs=[[(100, "it")], [(time, time) for time in range(95, 106)]],
        expect_output=[(max(100, time), time) for time in partners],
        order_matters=False,
    )


def test_the_second_input_may_be_ahead_and_the_output_keeps_the_order_of_the_inputs():
    verify_processor(
        join(0, 10, lambda item, other: f"{item} {other}", key_fns=(whole_item, whole_item)),
        inputs=[[(3, "x")], [(5, "x"), (12, "x")]],
        expect_output=[(5, "x x"), (12, "x x")],
        order_matters=False,
    )


def drive(processor, *steps):
    """Call a processor by hand: ``(ordinal, events)`` or watermarks; returns what it emits."""
    outbox = CheckedOutbox(1, is_tight=False)
    processor.init(outbox, ProcessorContext())
    for step in steps:
        call(outbox, processor, step)
    return outbox.outputs[0]


def call(outbox, processor, step):
    is_done = False
    inbox = None if isinstance(step, Watermark) else Inbox(step[1])
    calls = 0
    while not is_done:
        calls += 1
        outbox.begin_call()
        if inbox is None:
            is_done = processor.try_process_watermark(step)
        else:
            processor.process(step[0], inbox)
            is_done = not inbox
        outbox.end_call()
    return calls


def test_what_no_partner_can_come_for_is_forgotten():
    processor = join(-2, 5, key_fns=(whole_item, whole_item))()
    drive(
        processor,
        (0, [(10, "a"), (11, "a"), (14, "b")]),
        (1, [(10, "a"), (20, "c")]),
        Watermark(15),
        Watermark(17),
    )
    # What may still have partners: of the first side up to 5 later, of the second up to 2 later.
    assert dict(processor._sides[0]) == {"b": ([14], ["b"])}
    assert dict(processor._sides[1]) == {"c": ([20], ["c"])}
    assert [len(heap) for heap in processor._deadlines] == [1, 1]


def test_the_state_of_a_busy_key_stays_small():
    processor = join(0, 10, key_fns=(whole_item, whole_item))()
    outbox = CheckedOutbox(1, is_tight=False)
    processor.init(outbox, ProcessorContext())
    for time in range(1000):
        call(outbox, processor, (0, [(time, "a")]))
        call(outbox, processor, Watermark(time))
        times, items = processor._sides[0]["a"]
        assert len(times) == len(items) <= 2 * SLACK
        assert len(processor._deadlines[0]) == 1


def test_what_can_have_no_partner_any_more_is_not_kept_at_all():
    processor = join(-100, -50, key_fns=(whole_item, whole_item))()
    drive(processor, Watermark(10), (0, [(20, "a")]), (1, [(20, "a")]))
    assert not processor._sides[0]
    assert processor._sides[1]


def test_late_events_are_counted_and_leave_over_their_own_edge():
    counters = defaultdict(int)
    context = ProcessorContext(count=lambda name, n: counters.update({name: counters[name] + n}))
    verify_processor(
        join(-10, 10, late_ordinal=1, data_ordinals=(0,)),
        inputs=[
            [(5, "a1"), Watermark(12), (11, "a2"), (12, "a3")],
            [(6, "a+"), Watermark(12), (3, "a-"), (13, "a++")],
        ],
        expect_outputs=[[], []],
        compare=late_and_in_time,
        context=context,
        snapshots=False,
        columns=False,
    )
    assert counters == {"late_events": 8}  # two in each run


def late_and_in_time(expected, actual):
    items = [item for item in actual if not isinstance(item, Watermark)]
    if "a2" in items:
        assert sorted(items) == ["a-", "a2"]
    else:
        pairs = [("a1", "a+"), ("a1", "a++"), ("a3", "a+"), ("a3", "a++")]
        assert sorted(pair for _, pair in items) == pairs


times = st.integers(0, 40)
sides = st.lists(st.tuples(times, st.tuples(st.integers(0, 2), st.integers())), max_size=12)


@settings(max_examples=80)
@given(
    sides=st.tuples(sides, sides),
    bounds=st.tuples(st.integers(-30, 30), st.integers(-30, 30)).map(sorted),
    action=st.sampled_from(["fail", "skip"]),
    has_output=st.booleans(),
)
def test_pairs_are_those_of_a_nested_loop(sides, bounds, action, has_output):
    lower, upper = bounds
    expected = [
        (max(time, other_time), (item, other))
        for time, item in sides[0]
        for other_time, other in sides[1]
        if item[0] == other[0] and lower <= other_time - time <= upper
    ]
    to_output = (lambda item, other: (item, other)) if has_output else None
    policy = ErrorPolicy("step", action)
    verify_processor(
        join(lower, upper, to_output, policy=policy),
        inputs=sides,
        expect_output=expected,
        order_matters=False,
    )


@settings(max_examples=80)
@given(
    steps=st.lists(
        st.one_of(st.tuples(st.integers(0, 1), sides), st.integers(0, 60).map(Watermark)),
        max_size=12,
    ),
    bounds=st.tuples(st.integers(-30, 30), st.integers(-30, 30)).map(sorted),
)
def test_with_watermarks_pairs_are_those_of_all_that_is_in_time(steps, bounds):
    lower, upper = bounds
    watermark, in_time, chosen = -1, ([], []), []
    for step in steps:
        if isinstance(step, Watermark):
            if step.timestamp <= watermark:
                continue
            watermark = step.timestamp
        else:
            ordinal, events = step
            if not events:
                continue
            in_time[ordinal].extend(event for event in events if event[0] >= watermark)
        chosen.append(step)
    expected = Counter(
        (max(time, other_time), item, other)
        for time, item in in_time[0]
        for other_time, other in in_time[1]
        if item[0] == other[0] and lower <= other_time - time <= upper
    )
    actual = drive(join(lower, upper)(), *chosen)
    found = Counter((e[0], *e[1]) for e in actual if not isinstance(e, Watermark))
    assert found == expected
    # No result is behind a watermark that has been passed on.
    top = -1
    for each in actual:
        if isinstance(each, Watermark):
            top = each.timestamp
        else:
            assert each[0] >= top


# --- Errors -----------------------------------------------------------------------------------


def divided(item, other):
    return item[1] / other[1]


@pytest.mark.parametrize("first", [0, 1])
def test_a_failing_output_function_names_the_pair(first):
    processor = join(0, 0, divided, policy=ErrorPolicy("my-step"))()
    steps = [(0, [(5, ("a", 1))]), (1, [(5, ("a", 0))])]
    with pytest.raises(ItemFailedError, match="my-step failed") as raised:
        drive(processor, steps[first], steps[1 - first])
    assert raised.value.item == (("a", 1), ("a", 0))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_failing_key_names_the_item():
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(
            join(0, 0, key_fns=(lambda n: 1 / n, whole_item)),
            inputs=[[(1, 2), (1, 0)], []],
            expect_output=[],
        )
    assert raised.value.item == 0


@pytest.mark.parametrize("bad", [[1], object()])
def test_a_key_that_cannot_be_routed_is_refused(bad):
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(
            join(0, 0, key_fns=(lambda item: bad, whole_item)),
            inputs=[[(1, "a")], []],
            expect_output=[],
        )
    assert isinstance(raised.value.__cause__, UnstableKeyError)


def test_pairs_and_items_that_fail_become_dead_letters():
    policy = ErrorPolicy("my-step", "dead-letter", 1)
    verify_processor(
        join(0, 0, divided, (key, key), policy=policy, data_ordinals=0),
        inputs=[
            [(1, ("a", 6)), (1, 5), (1, ("b", 1))],
            [(1, ("a", 2)), (1, ("a", 0)), (1, ("b", 1))],
        ],
        expect_outputs=[
            [(1, 3.0), (1, 1.0)],
            [
                DeadLetter(
                    (("a", 6), ("a", 0)), "my-step", "ZeroDivisionError", "division by zero"
                ),
                DeadLetter(5, "my-step", "TypeError", "'int' object is not subscriptable"),
            ],
        ],
        order_matters=False,
    )


def test_a_type_error_of_the_output_function_is_not_blamed_on_a_key():
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(
            join(0, 0, lambda item, other: item + other, (key, key)),
            inputs=[[(1, {0: "a"})], [(1, {0: "a"})]],
            expect_output=[],
        )
    assert isinstance(raised.value.__cause__, TypeError)
    assert "unsupported operand" in str(raised.value.__cause__)


def test_arguments_travel_pickled():
    supplier = cloudpickle.loads(cloudpickle.dumps(join(0, 0, lambda item, other: other)))
    verify_processor(supplier, inputs=[[(1, "a")], [(1, "a")]], expect_output=[(1, "a")])


# --- Turns ------------------------------------------------------------------------------------


class TickingClock(ManualClock):
    """A clock on which every look takes time."""

    def monotonic_ns(self):
        self.advance(ns=TURN_NS)
        return super().monotonic_ns()


def test_many_pairs_and_many_keys_take_several_turns():
    processor = join(-10, 10, key_fns=(lambda n: 0, lambda n: n % (3 * SLICE)))()
    outbox = CheckedOutbox(1, is_tight=False)
    processor.init(outbox, ProcessorContext(clock=TickingClock()))
    count = 5 * SLICE
    call(outbox, processor, (1, [(5, 0)] * count))
    assert call(outbox, processor, (0, [(5, 0), (6, 0)])) >= 10
    assert len(outbox.outputs[0]) == 2 * count
    call(outbox, processor, (1, [(5, n) for n in range(3 * SLICE)]))
    assert call(outbox, processor, Watermark(1000)) >= 3
    assert processor._sides == ({}, {})
    assert processor._deadlines == ([], [])
