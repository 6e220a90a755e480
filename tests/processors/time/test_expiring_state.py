"""States that expire, in every condition of an engine."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import count

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import agg, whole_item
from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError, SnapshotError, UnstableKeyError
from jetlet.pipeline.errors import DeadLetter
from jetlet.processors.base import TURN_NS, ErrorPolicy
from jetlet.processors.state_saver import SavedTime
from jetlet.processors.stateful import FILTER, FLAT_MAP, MAP, StatefulProcessor
from jetlet.processors.time.expiring_state import SLICE, expiring_rolling, expiring_stateful
from jetlet.testing import ManualClock, verify_processor
from jetlet.testing.outbox import CheckedOutbox

TTL = 10
POLICY = ErrorPolicy("my-step")


def key(item):
    return item[0]


def collected(state, key, item):
    state.append(item)
    return list(state)


def evicted(state, key, time):
    return f"{key} has {len(state)} at {time}"


def stateful(kind=MAP, fn=collected, create=list, key_fn=key, ttl=TTL, policy=POLICY, **options):
    return partial(expiring_stateful, kind, create, fn, key_fn, ttl, policy=policy, **options)


def test_a_state_is_dropped_when_the_watermark_is_past_its_time_to_live():
    verify_processor(
        stateful(on_evict=evicted),
        input=[
            (0, "a1"),
            (5, "b1"),
            Watermark(10),  # a state lives as long as an event at its last moment may come
            (10, "a2"),
            Watermark(15),
            Watermark(16),  # b's is over
            (20, "a3"),
            (20, "b2"),
            Watermark(100),
        ],
        expect_output=[
            (0, ["a1"]),
            (5, ["b1"]),
            Watermark(10),
            (10, ["a1", "a2"]),
            Watermark(15),
            (16, "b has 1 at 16"),
            Watermark(16),
            (20, ["a1", "a2", "a3"]),
            (20, ["b2"]),
            (100, "a has 3 at 100"),
            (100, "b has 1 at 100"),
            Watermark(100),
        ],
    )


def test_at_the_end_all_states_are_dropped_when_their_time_would_have_been_over():
    verify_processor(
        stateful(on_evict=evicted),
        input=[(7, "a1"), (3, "b1"), (5, "a2")],
        expect_output=[
            (7, ["a1"]),
            (3, ["b1"]),
            (5, ["a1", "a2"]),
            (13, "b has 1 at 13"),
            (17, "a has 2 at 17"),
        ],
    )


def test_it_is_the_latest_event_that_counts_not_the_last_one():
    verify_processor(
        stateful(on_evict=evicted),
        input=[(20, "a1"), (3, "a2"), Watermark(30), Watermark(31)],
        expect_output=[
            (20, ["a1"]),
            (3, ["a1", "a2"]),
            Watermark(30),
            (31, "a has 2 at 31"),
            Watermark(31),
        ],
    )


@pytest.mark.parametrize(
    ("kind", "fn", "on_evict", "expected"),
    [
        (MAP, collected, lambda *args: None, [(1, ["a1"]), (2, ["a1", "a2"])]),
        (MAP, collected, None, [(1, ["a1"]), (2, ["a1", "a2"])]),
        (FILTER, lambda *args: args[2] == "a2", None, [(2, "a2")]),
        (FILTER, lambda *args: False, evicted, [(12, "a has 0 at 12")]),
        (FILTER, lambda *args: False, lambda *args: None, []),
        (
            FLAT_MAP,
            lambda state, key, item: (each for each in item),
            lambda state, key, time: [key, time, None],
            [(1, "a"), (1, "1"), (2, "a"), (2, "2"), (12, "a"), (12, 12), (12, None)],
        ),
        (FLAT_MAP, lambda *args: (), lambda *args: (), []),
    ],
)
def test_what_is_emitted_by_each_kind(kind, fn, on_evict, expected):
    verify_processor(
        stateful(kind, fn, on_evict=on_evict), input=[(1, "a1"), (2, "a2")], expect_output=expected
    )


@pytest.mark.parametrize("is_at_hand", [True, False])
def test_a_state_is_dropped_when_it_says_so(is_at_hand):
    def twice(state, key, item):
        yield item
        state.append(item)
        yield len(state)

    verify_processor(
        stateful(
            FLAT_MAP,
            (lambda *args: list(twice(*args))) if is_at_hand else twice,
            drop_when=lambda state: len(state) == 2,
            on_evict=lambda state, key, time: [(key, len(state))],
        ),
        input=[(0, "a1"), (1, "a2"), (2, "a3"), (4, "b1"), Watermark(12), Watermark(13)],
        expect_output=[
            (0, "a1"),
            (0, 1),
            (1, "a2"),
            (1, 2),
            (2, "a3"),
            (2, 1),
            (4, "b1"),
            (4, 1),
            Watermark(12),
            (13, ("a", 1)),
            Watermark(13),
            (14, ("b", 1)),
        ],
    )


def test_keys_that_are_dropped_and_come_again_leave_few_deadlines_behind():
    processor = stateful(ttl=10**9, drop_when=bool)()
    outbox = CheckedOutbox(1, is_tight=False)
    processor.init(outbox, ProcessorContext())
    for time in range(10):
        outbox.begin_call()
        processor.process(0, Inbox([(time, "a")] * 1000))
        outbox.end_call()
    assert len(processor._deadlines) < 3000


def test_rolling_aggregates_begin_anew():
    for operation in (agg.summing(lambda item: int(item[1])), agg.all_of(agg.counting())):
        two, one = (3, 2) if operation.name == "summing" else ((2,), (1,))
        verify_processor(
            partial(expiring_rolling, operation, key, TTL, policy=POLICY),
            input=[(0, "a1"), (5, "a2"), Watermark(15), (16, "b2"), Watermark(16), (17, "a2")],
            expect_output=[
                (0, ("a", 1 if operation.name == "summing" else (1,))),
                (5, ("a", two)),
                Watermark(15),
                (16, ("b", one)),
                Watermark(16),
                (17, ("a", one)),
            ],
        )


def test_late_events_are_counted_and_leave_over_their_own_edge():
    counters = defaultdict(int)
    context = ProcessorContext(count=lambda name, n: counters.update({name: counters[name] + n}))
    for policy in (POLICY, ErrorPolicy("my-step", "skip")):
        counters.clear()
        verify_processor(
            stateful(late_ordinal=1, data_ordinals=(0,), policy=policy),
            input=[(5, "a1"), Watermark(12), (11, "a2"), (12, "a3")],
            expect_outputs=[
                [(5, ["a1"]), Watermark(12), (12, ["a1", "a3"])],
                [Watermark(12), "a2"],
            ],
            context=context,
            snapshots=False,
            columns=False,
        )
        assert counters == {"late_events": 4}  # once in each run


def test_without_an_edge_late_events_are_only_counted():
    verify_processor(stateful(), input=[Watermark(12), (11, "a2")], expect_output=[Watermark(12)])


@st.composite
def streams(draw):
    """Events with any disorder, and watermarks in between that say nothing about them."""
    steps = draw(
        st.lists(
            st.one_of(
                st.tuples(st.integers(0, 60), st.tuples(st.integers(0, 3), st.integers())),
                st.integers(0, 60).map(Watermark),
            ),
            max_size=25,
        )
    )
    top, increasing = -1, []
    for step in steps:
        if isinstance(step, Watermark):
            if step.timestamp <= top:
                continue
            top = step.timestamp
        increasing.append(step)
    return increasing


def model(steps, ttl):
    """What comes out, by the words of the documentation."""
    states, last, watermark, out = {}, {}, -1, []

    def evict(deadlines):
        for time, name in sorted(deadlines, key=lambda pair: pair[0]):
            out.append((time, ("evicted", name, states.pop(name))))
            del last[name]

    for step in steps:
        if isinstance(step, Watermark):
            watermark = step.timestamp
            evict([(watermark, name) for name in last if last[name] + ttl < watermark])
            out.append(step)
        elif step[0] >= watermark:
            time, (name, value) = step
            states[name] = [*states.get(name, []), value]
            last[name] = max(time, last.get(name, time))
            out.append((time, (name, list(states[name]))))
    evict([(last[name] + ttl, name) for name in last])
    return out


def shuffled_evictions(expected, actual):
    """Which of those that are dropped at the same time comes first is not said."""

    def normal(items):
        return [
            sorted(map(repr, items)) if is_eviction else list(items)
            for is_eviction, items in runs(items)
        ]

    def runs(items):
        found = []
        for item in items:
            is_eviction = not isinstance(item, Watermark) and item[1][0] == "evicted"
            if found and found[-1][0] == is_eviction:
                found[-1][1].append(item)
            else:
                found.append((is_eviction, [item]))
        return found

    assert normal(actual) == normal(expected)


@settings(max_examples=80)
@given(steps=streams(), ttl=st.integers(1, 30), action=st.sampled_from(["fail", "skip"]))
def test_results_are_those_of_the_model(steps, ttl, action):
    def fn(state, key, item):
        state.append(item[1])
        return key, list(state)

    verify_processor(
        stateful(
            fn=fn,
            ttl=ttl,
            on_evict=lambda state, key, time: ("evicted", key, state),
            policy=ErrorPolicy("my-step", action),
        ),
        input=steps,
        expect_output=model(steps, ttl),
        compare=shuffled_evictions,
    )


# --- Errors -----------------------------------------------------------------------------------


def inverse(state, key, item):
    state.append(item)
    return 1 / item


@pytest.mark.parametrize("which", ["fn", "key", "create"])
def test_a_failing_function_names_the_item(which):
    functions = {
        "fn": {"fn": inverse, "key_fn": whole_item},
        "key": {"key_fn": lambda item: 1 / item},
        "create": {"create": lambda: 1 / 0, "key_fn": whole_item},
    }
    with pytest.raises(ItemFailedError, match="my-step failed") as raised:
        verify_processor(stateful(**functions[which]), input=[(5, 0), (6, 1)], expect_output=[])
    assert raised.value.item == 0
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_failing_on_evict_names_the_key():
    for input in ([(5, "a1"), Watermark(50)], [(5, "a1")]):
        with pytest.raises(ItemFailedError, match="my-step failed") as raised:
            verify_processor(
                stateful(on_evict=lambda state, key, time: 1 / 0), input=input, expect_output=[]
            )
        assert raised.value.item == "a"


def test_dead_letters_leave_by_their_edge():
    verify_processor(
        stateful(
            FLAT_MAP,
            lambda state, key, item: [1, 1 / item],
            key_fn=whole_item,
            on_evict=lambda state, key, time: [time, 10 / (key - 2)],
            policy=ErrorPolicy("my-step", "dead-letter", 1),
            data_ordinals=0,
        ),
        input=[(1, 2), (2, 0), (3, 4)],
        expect_outputs=[
            [(1, 1), (1, 0.5), (3, 1), (3, 0.25), (12, 12), (12, -5), (13, 13), (13, 5)],
            [
                DeadLetter(0, "my-step", "ZeroDivisionError", "division by zero"),
                DeadLetter(2, "my-step", "ZeroDivisionError", "division by zero"),
            ],
        ],
        order_matters=False,
    )


def test_a_key_that_cannot_be_routed_is_refused_when_it_first_comes():
    for bad in ([1], object()):
        with pytest.raises(ItemFailedError) as raised:
            verify_processor(
                stateful(key_fn=lambda item, bad=bad: bad), input=[(1, "a")], expect_output=[]
            )
        assert isinstance(raised.value.__cause__, UnstableKeyError)


def test_arguments_travel_pickled():
    for supplier, expected in (
        (stateful(), [(1, ["a"])]),
        (partial(expiring_rolling, agg.counting(), key, 5, policy=POLICY), [(1, ("a", 1))]),
    ):
        verify_processor(
            cloudpickle.loads(cloudpickle.dumps(supplier)),
            input=[(1, "a")],
            expect_output=expected,
        )


# --- Turns ------------------------------------------------------------------------------------


class TickingClock(ManualClock):
    """A clock on which every look takes time."""

    def monotonic_ns(self):
        self.advance(ns=TURN_NS)
        return super().monotonic_ns()


@pytest.mark.parametrize("on_evict", [None, lambda state, key, time: key])
def test_many_states_are_dropped_in_several_turns(on_evict):
    wakes = []
    processor = stateful(FILTER, lambda *args: False, key_fn=whole_item, on_evict=on_evict)()
    outbox = CheckedOutbox(1, is_tight=False)
    context = ProcessorContext(clock=TickingClock(), wake=lambda: wakes.append(1))
    processor.init(outbox, context)
    count = 5 * SLICE
    outbox.begin_call()
    processor.process(0, Inbox([(n % 7, n) for n in range(count)]))
    outbox.end_call()
    calls = 0
    is_done = False
    while not is_done:
        calls += 1
        outbox.begin_call()
        is_done = processor.try_process_watermark(Watermark(1000))
        outbox.end_call()
    assert calls >= 5
    emitted = [item for item in outbox.outputs[0] if not isinstance(item, Watermark)]
    assert sorted(emitted) == ([] if on_evict is None else [(1000, n) for n in range(count)])
    assert wakes
    # Nothing is left.
    outbox.begin_call()
    assert processor.complete()
    assert not processor._entries
    assert not processor._deadlines


@pytest.mark.parametrize("end", ["try_process_watermark", "complete", "on_end"])
def test_last_words_without_an_end_are_handed_on_in_turns(end):
    closed = []

    def endless(*arguments):
        try:
            yield from count()
        finally:
            closed.append(True)

    if end == "on_end":
        processor = StatefulProcessor(FLAT_MAP, list, lambda *_: [], whole_item, on_end=endless)
        inbox, callback, arguments = Inbox(["a"]), "complete", ()
    else:
        processor = stateful(FLAT_MAP, lambda *_: [], key_fn=whole_item, on_evict=endless)()
        inbox, callback = Inbox([(1, "a")]), end
        arguments = (Watermark(100),) if end == "try_process_watermark" else ()
    outbox = CheckedOutbox(1, is_tight=False)
    processor.init(outbox, ProcessorContext(clock=TickingClock()))
    outbox.begin_call()
    processor.process(0, inbox)
    outbox.end_call()
    for _ in range(3):
        before = len(outbox.outputs[0])
        outbox.begin_call()
        assert not getattr(processor, callback)(*arguments)
        outbox.end_call()
        assert len(outbox.outputs[0]) > before
    emitted = [each if end == "on_end" else each[1] for each in outbox.outputs[0]]
    assert emitted == list(range(len(emitted)))
    processor.close()
    assert closed


def test_a_busy_key_has_one_deadline_and_moves_it_on():
    processor = stateful(FILTER, lambda *args: False, key_fn=whole_item)()
    outbox = CheckedOutbox(1, is_tight=False)
    processor.init(outbox, ProcessorContext())
    for time in range(0, 1000, 5):
        outbox.begin_call()
        processor.process(0, Inbox([(time, "busy"), (time, time)]))
        outbox.end_call()
        outbox.begin_call()
        assert processor.try_process_watermark(Watermark(time + 1))
        outbox.end_call()
        assert len(processor._deadlines) == len(processor._entries) <= 4
    assert "busy" in processor._entries


class Visits:
    """State whose form has changed: once it was a number."""

    schema_version = 2

    def __init__(self, count=0):
        self.count = count

    @staticmethod
    def upgrade(old_version, state):
        assert old_version == 1
        return Visits(state)


def test_state_of_an_older_form_is_upgraded():
    processor = expiring_stateful(
        MAP, Visits, lambda state, key, item: state.count, lambda item: item, 10, policy=POLICY
    )
    assert processor.schema_version == 2
    processor.init(CheckedOutbox(1, is_tight=False), ProcessorContext(vertex_name="visits"))
    saved = [("a", [7, 100]), SavedTime.entry(0, 50)]
    processor.restore_from_snapshot(Inbox([(k, processor.upgrade(1, v)) for k, v in saved]))
    assert processor.finish_snapshot_restore()
    processor.outbox.begin_call()
    processor.process(0, Inbox([(100, "a"), (49, "a")]))
    assert processor.outbox.outputs == [[(100, 7)]]

    without = expiring_stateful(MAP, int, lambda *_: 0, lambda item: item, 10, policy=POLICY)
    without.init(processor.outbox, processor.context)
    with pytest.raises(SnapshotError, match="define upgrade"):
        without.upgrade(0, [7, 100])
