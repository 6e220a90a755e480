"""Processes with timers, in every condition of an engine."""

from __future__ import annotations

from functools import partial

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import KeyedProcess
from jetlet.core.inbox import Inbox
from jetlet.core.items import MIN_TIMESTAMP, Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError, ItemFailedError, UnstableKeyError
from jetlet.pipeline.errors import DeadLetter
from jetlet.pipeline.stages.key_batches import KeyBatches
from jetlet.processors.base import TURN_NS, ErrorPolicy
from jetlet.processors.time.keyed_process import KeyedProcessProcessor
from jetlet.testing import ManualClock, verify_processor
from jetlet.testing.outbox import CheckedOutbox

EVENTS = ErrorPolicy("my-step", takes_events=True)
ITEMS = ErrorPolicy("my-step")


def key(item):
    return item[0]


def processor(process, policy=EVENTS, key_fn=key, **options):
    return partial(KeyedProcessProcessor, process, key_fn, policy=policy, **options)


class Silence(KeyedProcess):
    def create(self):
        return []

    def on_item(self, ctx, state, item):
        state.append(item)
        ctx.set_timer("silence", ctx.time + 10)

    def on_timer(self, ctx, state, timer):
        ctx.emit((ctx.key, timer.name, timer.time, len(state)))


def test_a_timer_is_due_when_the_watermark_comes_to_it_and_can_be_moved():
    verify_processor(
        processor(Silence),
        input=[
            (0, "a1"),
            (5, "b1"),
            Watermark(9),
            (9, "a2"),
            Watermark(15),
            Watermark(30),
            (31, "b2"),
        ],
        expect_output=[
            Watermark(9),
            (15, ("b", "silence", 15, 1)),
            Watermark(15),
            (19, ("a", "silence", 19, 2)),
            Watermark(30),
            (41, ("b", "silence", 41, 2)),
        ],
    )


# --- Against a model ----------------------------------------------------------------------------


class Program(KeyedProcess):
    """Items are (key, what to do, with which timer, how much later)."""

    def create(self):
        return {"items": 0}

    def on_item(self, ctx, state, item):
        _, action, name, delta = item
        state["items"] += 1
        if action == "set":
            ctx.set_timer(name, ctx.time + delta)
        elif action == "cancel":
            ctx.cancel_timer(name)
        elif action == "drop":
            ctx.drop_state()
        elif action == "begin anew":
            ctx.drop_state()
            ctx.set_timer(name, ctx.time + delta)
        else:
            ctx.emit((ctx.key, "item", state["items"]))

    def on_timer(self, ctx, state, timer):
        ctx.emit((ctx.key, timer.name, timer.time, state["items"]))
        if timer.name == "again":
            ctx.set_timer("again", timer.time + 9)
        elif timer.name == "cancels":
            ctx.cancel_timer("again")
            ctx.drop_state()

    def on_end(self, ctx, state):
        ctx.emit((ctx.key, "end", state["items"]))


class Model:
    """The same by hand: the timers of all keys in one list."""

    def __init__(self):
        self.time = MIN_TIMESTAMP
        self.keys = {}
        self.out = []

    def take(self, time, item):
        name, action, timer, delta = item
        if time < self.time:
            return
        state = self.keys.setdefault(name, {"items": 0, "time": time, "timers": {}})
        state["time"] = max(state["time"], time)
        state["items"] += 1
        if action == "set":
            state["timers"][timer] = time + delta
        elif action == "cancel":
            state["timers"].pop(timer, None)
        elif action == "drop":
            del self.keys[name]
        elif action == "begin anew":
            self.keys[name] = {"items": 0, "time": time, "timers": {timer: time + delta}}
        else:
            self.out.append((time, (name, "item", state["items"])))

    def advance(self, watermark):
        before, self.time = self.time, watermark
        while due := self.due(watermark):
            self.fire(*min(due), before)

    def due(self, upto):
        return [
            (at, name, timer)
            for name, state in self.keys.items()
            for timer, at in state["timers"].items()
            if at <= upto
        ]

    def fire(self, at, name, timer, before):
        state = self.keys[name]
        del state["timers"][timer]
        self.out.append((max(at, before), (name, timer, at, state["items"])))
        if timer == "again":
            state["timers"]["again"] = at + 9
        elif timer == "cancels":
            del self.keys[name]

    def end(self):
        left = set(self.due(10**9))
        while left:
            first = min(left)
            left.remove(first)
            at, name, timer = first
            if name in self.keys and self.keys[name]["timers"].get(timer) == at:
                self.fire(*first, self.time)
        for name, state in self.keys.items():
            self.out.append((max(self.time, state["time"]), (name, "end", state["items"])))


ACTIONS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["set", "set", "set", "cancel", "drop", "begin anew", "emit"]),
    # Of one key no two of those that matter to each other are due at the same time.
    st.sampled_from(["once", "again", "cancels"]),
    st.integers(-3, 30),
)
STEPS = st.lists(st.one_of(st.tuples(st.integers(0, 60), ACTIONS), st.integers(1, 20)), max_size=25)


@settings(max_examples=150)
@given(steps=STEPS, action=st.sampled_from(["fail", "skip"]))
def test_timers_are_those_of_the_model(steps, action):
    model, feed, watermark = Model(), [], 0
    for step in steps:
        if isinstance(step, int):
            watermark += step
            model.advance(watermark)
            feed.append(Watermark(watermark))
        else:
            # A time of its own for each pair of key and timer: they are due one after the other.
            time, item = step
            rank = "abc".index(item[0]) * 3 + ["once", "again", "cancels"].index(item[2])
            item = (*item[:3], 9 * item[3] - time + rank)
            model.take(time, item)
            feed.append((time, item))
    model.end()
    verify_processor(
        processor(Program, ErrorPolicy("step", action, takes_events=True)),
        input=feed,
        expect_output=[*model.out, *(each for each in feed if isinstance(each, Watermark))],
        order_matters=False,
    )


# --- Processing time ------------------------------------------------------------------------


def remind(ctx, state, item):
    state.append(item)
    ctx.set_timer(f"due {item[1]}", ctx.now + item[1], processing_time=True)


def reminded(ctx, state, timer):
    ctx.emit((ctx.key, timer.name, timer.is_processing_time, ctx.now - timer.time))


class Functions:
    """A process that is made of functions, as the stage makes it."""

    def __new__(cls, *fns):
        from jetlet.pipeline.keyed_process import keyed_process

        on_item, create, on_timer, on_end = [*fns, None, None, None][:4]
        return keyed_process(on_item, create, on_timer, on_end)


class Engine:
    """Calls one processor by hand."""

    def __init__(self, made, clock=None, **context):
        self.clock = clock or ManualClock()
        self.outbox = CheckedOutbox(1, is_tight=False)
        self.processor = made
        made.init(self.outbox, ProcessorContext(clock=self.clock, **context))

    def call(self, callback, *args):
        self.outbox.begin_call()
        done = getattr(self.processor, callback)(*args)
        self.outbox.end_call()
        return done

    def take(self, *items):
        self.call("process", 0, Inbox(list(items)))

    def emitted(self):
        items, self.outbox.outputs[0] = self.outbox.outputs[0], []
        return items

    def saved(self):
        self.outbox.begin_snapshot()
        while not self.call("save_to_snapshot"):
            pass
        return self.outbox.end_snapshot()


def test_timers_of_the_clock_are_due_once_whatever_else_comes():
    make = processor(Functions(remind, list, reminded), ITEMS)
    engine = Engine(make())
    engine.take(("a", 50), ("b", 20), ("a", 70))
    assert engine.call("try_process")
    engine.clock.advance(ms=20)
    assert engine.call("try_process")
    assert engine.call("try_process")
    assert engine.emitted() == [("b", "due 20", True, 0)]

    # One that is overdue after a restart comes at once, and the others when it is time.
    again = Engine(make(), engine.clock)
    again.call("restore_from_snapshot", Inbox(engine.saved()))
    assert again.call("finish_snapshot_restore")
    again.clock.advance(ms=35)
    assert again.call("try_process")
    assert again.emitted() == [("a", "due 50", True, 5)]
    again.clock.advance(ms=15)
    # Where a micro-batch ends the clock has moved, and nobody asks again.
    state = [value for _, value in again.saved() if isinstance(value, list)]
    assert again.emitted() == [("a", "due 70", True, 0)]
    assert [timers for _, _, timers in state] == [{}, {}]


def test_nobody_waits_for_the_clock_at_the_end():
    def left(ctx, state):
        ctx.emit((ctx.key, len(state)))

    engine = Engine(processor(Functions(remind, list, reminded, left), ITEMS)())
    engine.take(("a", 50), ("b", 20), ("a", 70))
    assert engine.call("complete")
    assert engine.emitted() == [("a", 2), ("b", 1)]
    assert len(engine.saved()) == 1


def test_each_item_is_acted_on_once_however_it_is_driven():
    """By a timer that is due at once, or at the end."""

    def at_once(ctx, state, item):
        state.append(item)
        ctx.set_timer("now", ctx.now, processing_time=True)

    def flush(ctx, state, timer=None):
        for each in state:
            ctx.emit(each)
        state.clear()

    items = [(n % 3, n) for n in range(12)]
    verify_processor(
        processor(Functions(at_once, list, flush, flush), ITEMS),
        input=items,
        expect_output=items,
        order_matters=False,
        context=ProcessorContext(clock=ManualClock()),
    )


def test_what_the_clock_brings_has_the_time_of_the_key_or_of_the_watermark():
    engine = Engine(processor(Functions(remind, list, reminded))())
    engine.take((7, ("a", 1)), (3, ("a", 2)))
    engine.clock.advance(ms=1)
    engine.call("try_process")
    engine.call("try_process_watermark", Watermark(12))
    engine.clock.advance(ms=1)
    engine.call("try_process")
    assert [each[0] for each in engine.emitted() if not isinstance(each, Watermark)] == [7, 12]


def test_a_timer_can_change_from_one_kind_of_time_to_the_other():
    def change(ctx, state, item):
        ctx.set_timer("t", ctx.time + 5)
        ctx.set_timer("t", ctx.now + 5, processing_time=True)

    engine = Engine(processor(Functions(change, None, reminded))())
    engine.take((0, "a"))
    engine.call("try_process_watermark", Watermark(100))
    assert engine.emitted() == [Watermark(100)]
    engine.clock.advance(ms=5)
    engine.call("try_process")
    assert engine.emitted() == [(100, ("a", "t", True, 0))]


def test_a_batch_is_full_or_has_waited():
    make = processor(partial(KeyBatches, 3, 50), ITEMS)
    items = [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("a", 5)]
    verify_processor(
        make,
        input=items,
        expect_output=[("a", [items[0], *items[2:4]]), ("b", [items[1]]), ("a", [items[4]])],
        order_matters=False,
        context=ProcessorContext(clock=ManualClock()),
    )
    engine = Engine(make())
    engine.take(*items[:2])
    engine.clock.advance(ms=49)
    engine.call("try_process")
    engine.take(*items[2:])
    assert engine.emitted() == [("a", [items[0], *items[2:4]])]
    engine.clock.advance(ms=1)
    engine.call("try_process")
    assert engine.emitted() == [("b", [items[1]])]
    engine.clock.advance(ms=49)
    engine.call("try_process")
    assert engine.emitted() == [("a", [items[4]])]


def test_one_that_takes_late_events_has_them_at_their_time():
    verify_processor(
        processor(partial(KeyBatches, 2, None), takes_late=True),
        input=[(5, "a1"), Watermark(7), (6, "a2"), (6, "b1"), Watermark(9), (1, "b2")],
        expect_output=[
            Watermark(7),
            (6, ("a", ["a1", "a2"])),
            Watermark(9),
            (1, ("b", ["b1", "b2"])),
        ],
    )


# --- Turns and size ---------------------------------------------------------------------------


class TickingClock(ManualClock):
    """A clock on which every look takes time."""

    def monotonic_ns(self):
        self.advance(ns=TURN_NS)
        return super().monotonic_ns()


def test_many_timers_are_worked_off_in_several_turns():
    wakes = []
    engine = Engine(processor(Silence)(), TickingClock(), wake=lambda: wakes.append(1))
    engine.take(*[(0, (n,)) for n in range(3000)])
    calls = 0
    while not engine.call("try_process_watermark", Watermark(10)):
        calls += 1
        assert calls < 1000
    assert len(engine.emitted()) == 3001
    assert calls > 20 and wakes


def test_a_timer_that_is_moved_or_set_anew_leaves_little_behind():
    def move(ctx, state, item):
        ctx.set_timer("later", ctx.time + 10**6)
        ctx.cancel_timer("gone")
        ctx.set_timer("gone", 10**9 - ctx.time)

    made = processor(Functions(move))()
    engine = Engine(made)
    for time in range(20_000):
        engine.take((time, "a"))
    assert len(made._event_timers) < 3000


# --- Failures -----------------------------------------------------------------------------------


def fails_at_two(ctx, state, item):
    ctx.emit(item)
    if item[1] == 2:
        raise StopIteration("two")
    ctx.set_timer("t", ctx.time + item[1])


def fails_at_three(ctx, state, timer):
    if timer.time == 3:
        raise ZeroDivisionError
    ctx.emit(timer.time)


def test_a_failing_item_is_named():
    with pytest.raises(ItemFailedError, match="my-step failed") as raised:
        verify_processor(
            processor(Functions(fails_at_two)),
            input=[(0, ("a", 1)), (0, ("a", 2))],
            expect_output=[],
        )
    assert raised.value.item == ("a", 2)
    assert isinstance(raised.value.__cause__, StopIteration)


def test_a_failing_timer_names_the_key():
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(
            processor(Functions(fails_at_two, None, fails_at_three)),
            input=[(0, ("a", 3)), Watermark(5)],
            expect_output=[(0, ("a", 3))],
        )
    assert raised.value.item == "a"
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_dead_letters_leave_by_their_edge_and_what_was_emitted_stands():
    policy = ErrorPolicy("my-step", "dead-letter", 1, takes_events=True)
    verify_processor(
        processor(Functions(fails_at_two, None, fails_at_three), policy, data_ordinals=(0,)),
        input=[(0, ("a", 1)), (0, ("b", 2)), (0, ("c", 3)), (0, ("d", 4))],
        expect_outputs=[
            [(0, ("a", 1)), (0, ("b", 2)), (0, ("c", 3)), (0, ("d", 4)), (1, 1), (4, 4)],
            [
                DeadLetter(("b", 2), "my-step", "StopIteration", "two"),
                DeadLetter("c", "my-step", "ZeroDivisionError", ""),
            ],
        ],
    )


def test_late_events_are_counted_and_leave_over_their_own_edge():
    verify_processor(
        processor(Silence, late_ordinal=1, data_ordinals=(0,)),
        input=[(5, "a1"), Watermark(7), (6, "b1"), (7, "c1")],
        expect_outputs=[
            [Watermark(7), (15, ("a", "silence", 15, 1)), (17, ("c", "silence", 17, 1))],
            [Watermark(7), "b1"],
        ],
    )
    counts = []
    engine = Engine(processor(Silence)(), count=lambda *args: counts.append(args))
    engine.call("try_process_watermark", Watermark(7))
    engine.take((6, "b1"), (7, "c1"), (5, "d1"))
    assert counts == [("late_events", 2)]


@pytest.mark.parametrize(
    ("policy", "arguments", "message"),
    [
        (ITEMS, ("t", 5), r"no timestamps.*processing_time=True"),
        (ITEMS, (), "no timestamps"),
        (EVENTS, ("t", 1.5), "a name and a time, an int in milliseconds, not 't' and 1.5"),
        (EVENTS, (None, 5), "a name and a time"),
    ],
)
def test_what_is_no_timer_is_refused(policy, arguments, message):
    def set_it(ctx, state, item):
        ctx.set_timer(*(arguments or ("t", ctx.time + 5)))

    made = processor(Functions(set_it), policy)()
    with pytest.raises(ItemFailedError) as raised:
        Engine(made).take((0, "a") if policy is EVENTS else "a")
    cause = raised.value.__cause__
    assert isinstance(cause, InvalidArgumentError)
    with pytest.raises(InvalidArgumentError, match=message):
        raise cause


def test_a_key_that_cannot_be_routed_is_refused_when_it_first_comes():
    made = processor(Functions(lambda ctx, state, item: None), ITEMS, key_fn=lambda item: object())
    with pytest.raises(ItemFailedError) as raised:
        Engine(made()).take("a")
    assert isinstance(raised.value.__cause__, UnstableKeyError)


def test_state_of_an_older_form_is_upgraded():
    class Newer(Silence):
        schema_version = 2

        def upgrade(self, old_version, state):
            return [*state, old_version]

    old = processor(Silence)()
    engine = Engine(old)
    engine.take((0, "a1"))
    new = processor(Newer)()
    assert new.schema_version == 2
    restored = [(k, new.upgrade(1, value)) for k, value in engine.saved()]
    again = Engine(new)
    again.call("restore_from_snapshot", Inbox(restored))
    assert again.call("finish_snapshot_restore")
    assert again.call("complete")
    assert again.emitted() == [(10, ("a", "silence", 10, 2))]
    with pytest.raises(NotImplementedError, match=r"define upgrade\(old_version, state\)"):
        old.upgrade(0, [["a1"], 0, {}])


def test_arguments_travel_pickled():
    made = cloudpickle.loads(cloudpickle.dumps(processor(Functions(remind, list, reminded))))()
    engine = Engine(made)
    engine.take((0, ("a", 5)))
