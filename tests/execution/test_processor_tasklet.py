"""ProcessorTasklet: which callback is called when, and what the worker hears of it."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlet.core import DONE, IDLE, Processor, Watermark
from jetlet.errors import ProcessorContractError
from jetlet.execution import progress_state as progress
from jetlet.execution.call_reports import BLOCKING_CALL_NS, SLOW_CALL_NS, STALLED_CALLS
from jetlet.execution.processor_state import State
from jetlet.execution.processor_tasklet import FIRST_INBOX, MAX_INBOX
from jetlet.execution.progress_state import MADE_PROGRESS, NO_PROGRESS
from jetlet.execution.tuning import CALL_TARGET_NS

ONE_INPUT = ({},)
TWO_INPUTS = ({}, {})


def with_try_process(scripted, answer):
    """A scripted processor that overrides try_process too."""

    class Nullary(scripted):
        def try_process(self):
            self.log.append(("try_process",))
            return answer(self)

    return Nullary()


# --- Life -------------------------------------------------------------------------------------


def test_source_goes_from_complete_to_the_end(bench, scripted):
    source = bench(scripted())
    source.processor.answers["complete"].extend([False, False])
    assert source.tasklet.state is State.COMPLETE
    assert source.tasklet.call() is NO_PROGRESS
    assert source.tasklet.call() is NO_PROGRESS
    assert source.run() == [State.COMPLETE, State.CLOSE, State.END]
    assert source.output() == [DONE]
    assert source.taken_log() == [("complete",)] * 3 + [("close",)]


def test_callbacks_come_in_order(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT)
    step.feed(0, [1, 2], Watermark(5), [3], DONE)
    assert step.run()[-1] is State.END
    assert step.taken_log() == [
        ("process", 0, [1, 2]),
        ("watermark", 5),
        ("process", 0, [3]),
        ("complete_edge", 0),
        ("complete",),
        ("close",),
    ]
    assert step.output() == [1, 2, Watermark(5), 3, DONE]


def test_callback_that_is_not_finished_is_called_again(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT)
    for name in ("watermark", "complete_edge", "complete"):
        step.processor.answers[name].append(False)
    step.feed(0, Watermark(5), DONE)
    while step.tasklet.call() is not progress.DONE:
        pass
    counts = Counter(name for name, *_ in step.taken_log())
    assert counts == {"watermark": 2, "complete_edge": 2, "complete": 2, "close": 1}
    assert step.output() == [Watermark(5), DONE]


def test_idle_tasklet_makes_no_progress_and_no_callback(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS)
    assert [step.tasklet.call() for _ in range(3)] == [NO_PROGRESS] * 3
    assert step.taken_log() == []


def test_each_call_makes_at_most_one_callback_that_does_work(bench, scripted):
    def answer(processor):
        return processor.outbox.offer("due")

    step = bench(with_try_process(scripted, answer), inputs=TWO_INPUTS)
    step.feed(0, [1], Watermark(1), [2], Watermark(2), DONE)
    step.feed(1, [3], Watermark(3), DONE)
    while True:
        state = step.tasklet.call()
        assert len(step.taken_log()) <= 1
        if state is progress.DONE:
            break
    out = [item for item in step.output() if item != "due"]
    assert sorted(item for item in out if isinstance(item, int)) == [1, 2, 3]
    assert out[-1] is DONE


# --- try_process ------------------------------------------------------------------------------


def test_try_process_comes_before_each_batch_and_without_input(bench, scripted):
    step = bench(with_try_process(scripted, lambda processor: True), inputs=ONE_INPUT)
    assert step.tasklet.call() is NO_PROGRESS
    step.feed(0, [1])
    step.tasklet.call()
    step.tasklet.call()
    assert step.taken_log() == [
        ("try_process",),
        ("try_process",),
        ("process", 0, [1]),
        ("try_process",),
    ]


def test_try_process_that_is_not_finished_holds_the_input_back(bench, scripted):
    answers = [False, False, True]
    step = bench(with_try_process(scripted, lambda processor: answers.pop(0)), inputs=ONE_INPUT)
    step.feed(0, [1])
    assert step.tasklet.call() is NO_PROGRESS
    assert step.tasklet.call() is NO_PROGRESS
    assert step.tasklet.call() is MADE_PROGRESS
    assert step.taken_log() == [("try_process",)] * 3 + [("process", 0, [1])]


# --- Input ------------------------------------------------------------------------------------


def test_what_is_left_in_the_inbox_comes_back_before_anything_else(bench, scripted):
    step = bench(
        scripted(on_process=lambda ordinal, inbox: inbox.remove()), inputs=TWO_INPUTS, outputs=0
    )
    step.feed(0, [1, 2, 3])
    step.feed(1, [4])
    step.run()
    assert step.taken_log() == [
        ("process", 0, [1, 2, 3]),
        ("process", 0, [2, 3]),
        ("process", 0, [3]),
        ("process", 1, [4]),
    ]


def test_inputs_of_one_priority_take_turns(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS)
    step.tasklet._limit = 1
    step.feed(0, ["a"] * 3)
    step.feed(1, ["b"] * 3)
    step.run()
    assert step.output() == ["a", "b"] * 3


def test_input_with_a_lower_value_is_drained_to_its_end_first(bench, scripted):
    step = bench(scripted(), inputs=({"priority": 1}, {"priority": -1}, {"priority": 1}))
    step.feed(0, ["late"], DONE)
    step.feed(2, ["late too"], DONE)
    step.feed(1, ["early"])
    step.run()
    assert step.output() == ["early"]
    assert len(step.inputs[0][0]) == 2, "not even taken out of its queue"
    step.feed(1, ["still early"], DONE)
    step.run()
    assert step.output() == ["still early", "late", "late too", DONE]
    assert [entry[1] for entry in step.taken_log() if entry[0] == "complete_edge"] == [1, 0, 2]


def test_input_is_released_when_the_batch_is_done(bench, scripted):
    batch = [object()]
    step = bench(scripted(on_process=lambda ordinal, inbox: [*inbox]), inputs=ONE_INPUT)
    step.feed(0, batch)
    step.run()
    assert step.tasklet._inbox._batch is not batch


# --- Output -----------------------------------------------------------------------------------


def test_processor_is_not_called_while_its_output_waits_for_room(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, capacity=2)
    step.feed(0, [1, 2, 3, 4, 5])
    assert step.tasklet.call() is MADE_PROGRESS
    step.feed(0, [6])
    step.taken_log()
    assert step.tasklet.call() is NO_PROGRESS
    assert step.tasklet.metrics.blocked_calls == 1
    got = step.output()
    assert step.tasklet.call() is MADE_PROGRESS, "delivering is progress"
    assert step.taken_log() == []
    for _ in range(5):
        got += step.output()
        step.tasklet.call()
    assert got + step.output() == [1, 2, 3, 4, 5, 6]


def test_end_waits_until_the_done_item_is_delivered(bench, scripted):
    source = bench(scripted(), capacity=1)
    source.outputs[0].offer(["full"])
    source.run()
    assert source.processor.closed == 0
    assert source.output() == ["full"]
    assert source.run()[-1] is State.END
    assert source.output() == [DONE]


def test_item_that_was_refused_and_forgotten_at_the_end_is_a_breach(bench, scripted):
    class Careless(scripted):
        def complete(self):
            while self.outbox.offer("item"):
                pass
            return True

    source = bench(Careless())
    with pytest.raises(ProcessorContractError, match=r"complete\(\) returned True without"):
        source.tasklet.call()


def test_sink_drops_what_it_offers(bench, scripted):
    sink = bench(scripted(), inputs=ONE_INPUT, outputs=0)
    sink.feed(0, [1], Watermark(1), IDLE, DONE)
    assert sink.run()[-1] is State.END


# --- Watermarks -------------------------------------------------------------------------------


def test_watermark_is_the_minimum_over_the_inputs(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS)
    step.feed(0, Watermark(10))
    step.run()
    assert step.output() == []
    step.feed(1, Watermark(7), [1], Watermark(20))
    step.run()
    assert step.output() == [Watermark(7), 1, Watermark(10)]
    assert step.tasklet.metrics.watermark == 10


def test_ended_input_releases_a_watermark(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS)
    step.feed(0, Watermark(10))
    step.feed(1, DONE)
    step.run()
    assert step.output() == [Watermark(10)]


def test_idle_message_passes_the_processor_by(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS)
    step.feed(0, Watermark(10), IDLE)
    step.feed(1, IDLE)
    step.run()
    assert step.output() == [Watermark(10), IDLE]
    assert step.taken_log() == [("watermark", 10)]
    assert step.tasklet.metrics.watermark == 10


def test_data_ends_the_idleness_of_its_input(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS)
    step.feed(0, Watermark(5), IDLE)
    step.feed(1, Watermark(4))
    step.run()
    step.feed(0, ["not idle any more"])
    step.run()
    step.output()
    step.feed(1, Watermark(100))
    step.run()
    assert step.output() == [Watermark(5)], "time must not run ahead of input 0"


def test_watermark_keeps_its_place_among_the_items(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, capacity=1)
    step.feed(0, [1, 2], Watermark(5), [3])
    got = []
    for _ in range(20):
        step.tasklet.call()
        got += step.output()
    assert got == [1, 2, Watermark(5), 3]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.one_of(st.integers(1, 8), st.just("watermark")), max_size=15),
    st.integers(1, 5),
    st.integers(1, 6),
)
def test_all_that_goes_in_comes_out_in_order(bench, scripted, plan, capacity, limit):
    step = bench(scripted(), inputs=ONE_INPUT, capacity=capacity)
    step.tasklet._limit = limit
    expected, number = [], 0
    for entry in plan:
        if entry == "watermark":
            number += 1
            expected.append(Watermark(number))
            step.feed(0, Watermark(number))
        else:
            batch = list(range(number, number + entry))
            number += entry
            expected += batch
            step.feed(0, batch)
    step.feed(0, DONE)
    got, state = [], None
    for _ in range(2000):
        state = step.tasklet.call()
        assert len(step.outputs[0]) <= capacity
        got += step.output()
        if state is progress.DONE:
            break
    assert state is progress.DONE
    assert got == [*expected, DONE]


# --- Closing ----------------------------------------------------------------------------------


def test_cooperative_processor_is_closed_by_the_closer(bench, scripted):
    errands = []
    source = bench(scripted(), closer=lambda *errand: errands.append(errand))
    source.run()
    assert source.tasklet.state is State.CLOSE
    assert source.processor.closed == 0
    assert source.tasklet.call() is NO_PROGRESS
    (action, then), *others = errands
    assert not others
    action()
    then()
    assert source.tasklet.call() is progress.DONE
    source.tasklet.close()
    assert source.processor.closed == 1


def test_processor_with_a_thread_of_its_own_is_closed_there(bench, scripted):
    source = bench(scripted(is_cooperative=False), closer=lambda *errand: pytest.fail("not needed"))
    assert source.run()[-1] is State.END
    assert source.processor.closed == 1


@pytest.mark.parametrize("is_cooperative", [True, False])
def test_processor_that_fails_to_close_fails_the_call(bench, scripted, is_cooperative):
    class Unclosable(scripted):
        def close(self):
            super().close()
            raise OSError("disk full")

    source = bench(Unclosable(is_cooperative=is_cooperative))
    with pytest.raises(OSError, match="disk full"):
        source.run()
    source.tasklet.close()
    assert source.processor.closed == 1


def test_interrupt_reaches_a_processor_that_has_one(bench, scripted):
    class Interruptible(scripted):
        interrupted = False

        def interrupt(self):
            self.interrupted = True

    source = bench(Interruptible())
    source.tasklet.interrupt()
    assert source.processor.interrupted
    bench(scripted()).tasklet.interrupt()


# --- The item at hand -------------------------------------------------------------------------


def failing_at(value, how):
    def on_process(ordinal, inbox):
        for item in how(inbox):
            if item == value:
                raise ValueError(value)

    return on_process


def peeked(inbox):
    while inbox:
        yield inbox.peek()
        inbox.remove()


@pytest.mark.parametrize("how", [iter, peeked])
def test_failure_names_the_item_at_hand(bench, scripted, how):
    step = bench(scripted(on_process=failing_at("bad", how)), inputs=ONE_INPUT)
    step.feed(0, ["good", "bad", "next"])
    with pytest.raises(ValueError, match="bad"):
        step.tasklet.call()
    assert step.tasklet.describe_failure() == "'bad'"


def test_failure_on_a_whole_batch_names_no_item(bench, scripted):
    step = bench(
        scripted(on_process=failing_at("bad", lambda inbox: inbox.items())), inputs=ONE_INPUT
    )
    step.feed(0, ["good", "bad"])
    with pytest.raises(ValueError, match="bad"):
        step.tasklet.call()
    assert step.tasklet.describe_failure() is None


def test_failure_after_the_input_names_no_item(bench, scripted):
    class Failing(scripted):
        def complete(self):
            raise ValueError("at the end")

    step = bench(Failing(on_process=lambda ordinal, inbox: [*inbox]), inputs=ONE_INPUT)
    step.feed(0, ["good"], DONE)
    with pytest.raises(ValueError, match="at the end"):
        step.run()
    assert step.tasklet.describe_failure() is None


# --- Metrics and reports ----------------------------------------------------------------------


def test_metrics_count_what_passes(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS, outputs=2)
    step.feed(0, [1, 2, 3])
    step.feed(1, [4])
    step.run()
    step.feed(0, [5, 6])
    metrics = step.tasklet.metrics.snapshot()
    assert metrics["received"] == 4
    assert metrics["batches"] == 2
    assert metrics["emitted"] == 8, "each of two edges"
    assert metrics["queue_size"] == 2
    assert metrics["queue_capacity"] == 2048


def test_counter_of_a_processor_cannot_shadow_one_of_the_engine(bench, scripted):
    class Counting(scripted):
        def complete(self):
            self.context.count("skipped", 2)
            self.context.count("received", 7)
            return True

    source = bench(Counting())
    source.run()
    metrics = source.tasklet.metrics.snapshot()
    assert metrics["counters"] == {"skipped": 2, "received": 7}
    assert metrics["received"] == 0


def inbox_sizes(step, count):
    """Let the tasklet work off a full queue in ``count`` calls; how many items each took."""
    sizes = []
    for _ in range(count):
        step.feed(0, range(step.inputs[0][0].capacity - len(step.inputs[0][0])))
        step.tasklet.call()
        sizes.append(len(step.taken_log()[-1][2]))
    return sizes


def test_inbox_grows_while_calls_are_fast(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, outputs=0)
    assert inbox_sizes(step, 1) == [FIRST_INBOX]
    step.tasklet.record_call(CALL_TARGET_NS // 10)
    assert inbox_sizes(step, 1) == [2 * FIRST_INBOX]
    step.tasklet.record_call(CALL_TARGET_NS // 2)
    assert inbox_sizes(step, 1) == [FIRST_INBOX * 7 // 2], "not to more than what fits"
    step.tasklet.record_call(CALL_TARGET_NS * 3 // 4)
    assert inbox_sizes(step, 1) == [FIRST_INBOX * 7 // 2], "fast enough to stay, too slow to grow"


def test_inbox_never_grows_beyond_its_bound(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, outputs=0)
    step.tasklet._limit = 1500
    for _ in range(8):
        step.tasklet._batch_size = step.tasklet._limit
        step.tasklet.record_call(1)
    assert step.tasklet._limit == MAX_INBOX


def test_inbox_shrinks_to_what_fits_at_the_second_long_call(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, outputs=0)
    inbox_sizes(step, 1)
    step.tasklet.record_call(16 * CALL_TARGET_NS)
    assert inbox_sizes(step, 1) == [FIRST_INBOX // 2]
    step.tasklet.record_call(16 * CALL_TARGET_NS)
    assert inbox_sizes(step, 1) == [FIRST_INBOX // 64]
    step.tasklet.record_call(1000 * CALL_TARGET_NS)
    assert inbox_sizes(step, 1) == [1]


def test_one_long_call_among_short_ones_costs_half_the_inbox(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, outputs=0)
    for elapsed in (1000 * CALL_TARGET_NS, CALL_TARGET_NS * 3 // 4, 1000 * CALL_TARGET_NS):
        inbox_sizes(step, 1)
        step.tasklet.record_call(elapsed)
    assert inbox_sizes(step, 1) == [FIRST_INBOX // 4]


def test_short_batch_says_nothing_about_a_larger_one(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, outputs=0)
    step.feed(0, [1])
    step.tasklet.call()
    step.tasklet.record_call(1)
    step.taken_log()
    assert inbox_sizes(step, 1) == [FIRST_INBOX]


def test_call_without_input_does_not_change_the_inbox(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, outputs=0)
    step.tasklet.call()
    step.tasklet.record_call(100 * CALL_TARGET_NS)
    assert inbox_sizes(step, 1) == [FIRST_INBOX]


def test_processor_with_its_own_thread_gets_large_batches_and_is_never_slow(
    bench, scripted, caplog
):
    step = bench(scripted(is_cooperative=False), inputs=ONE_INPUT, outputs=0)
    assert inbox_sizes(step, 1) == [1024]
    step.tasklet.record_call(1000 * SLOW_CALL_NS)
    assert inbox_sizes(step, 1) == [1024]
    assert not caplog.records
    assert step.tasklet.metrics.slow_calls == 0


def test_blocking_call_is_reported_with_the_vertex_but_not_too_often(bench, scripted, caplog):
    source = bench(scripted())
    with caplog.at_level(logging.WARNING, "jetlet.execution"):
        source.tasklet.record_call(SLOW_CALL_NS + 1)
        assert not caplog.records, "that happens to anybody on a busy machine"
        for _ in range(3):
            source.tasklet.record_call(2 * BLOCKING_CALL_NS)
        assert len(caplog.records) == 1
        source.clock.advance(6)
        source.tasklet.record_call(2 * BLOCKING_CALL_NS)
    assert len(caplog.records) == 2
    assert "vertex vertex#0 blocked its cooperative worker for 200.0 ms" in caplog.text
    assert source.tasklet.metrics.slow_calls == 5


def test_slow_call_is_in_the_log_for_those_who_look_for_it(bench, scripted, caplog):
    source = bench(scripted())
    with caplog.at_level(logging.INFO, "jetlet.execution"):
        source.tasklet.record_call(SLOW_CALL_NS)
        assert not caplog.records
        source.tasklet.record_call(SLOW_CALL_NS + 1)
    assert "vertex vertex#0" in caplog.text


def test_single_call_that_takes_very_long_is_warned_of_at_once(bench, scripted, caplog):
    source = bench(scripted())
    with caplog.at_level(logging.WARNING, "jetlet.execution"):
        source.tasklet.record_call(10 * BLOCKING_CALL_NS)
        assert not caplog.records
        source.tasklet.record_call(10 * BLOCKING_CALL_NS + 1)
    assert "vertex vertex#0" in caplog.text


def test_calls_are_counted_by_duration(bench, scripted):
    source = bench(scripted())
    for elapsed in (900, 1000, 100_000):
        source.tasklet.record_call(elapsed)
    metrics = source.tasklet.metrics.snapshot()
    assert metrics["call_histogram"] == {1024: 2, 131072: 1}
    assert metrics["longest_call_ns"] == 100_000
    assert metrics["busy_ns"] == 101_900
    assert metrics["calls"] == 3


def test_processor_that_never_takes_its_input_is_reported(bench, scripted, caplog):
    step = bench(scripted(on_process=lambda ordinal, inbox: None), inputs=ONE_INPUT)
    step.feed(0, ["rock"])
    with caplog.at_level(logging.WARNING, "jetlet.execution"):
        for _ in range(STALLED_CALLS - 1):
            assert step.tasklet.call() is NO_PROGRESS
        assert not caplog.records
        step.tasklet.call()
    assert "vertex vertex#0 returned from process() 1000 times" in caplog.text
    assert "stuck at 'rock'" in caplog.text
    assert step.tasklet.metrics.stalled_calls == STALLED_CALLS


def test_processor_that_says_it_waits_is_not_reported(bench, scripted):
    processor = scripted(on_process=lambda ordinal, inbox: None)
    processor.is_waiting = True
    step = bench(processor, inputs=ONE_INPUT)
    step.feed(0, ["patience"])
    for _ in range(STALLED_CALLS):
        step.tasklet.call()
    assert step.tasklet.metrics.stalled_calls == 0


def test_processor_that_emits_without_taking_its_input_is_not_stalled(bench, scripted):
    processor = scripted()
    processor._on_process = lambda ordinal, inbox: processor.outbox.offer("more")
    step = bench(processor, inputs=ONE_INPUT)
    step.feed(0, [1])
    for _ in range(10):
        assert step.tasklet.call() is MADE_PROGRESS
        step.output()
    assert step.tasklet.metrics.stalled_calls == 0


def test_minimal_processor_has_no_nullary_callback_to_pay_for(bench):
    assert not bench(Processor()).tasklet._has_try_process


# --- Where its time goes ------------------------------------------------------------------------


def test_time_with_something_left_to_deliver_counts_as_blocked(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, capacity=2)
    clock = step.clock
    step.feed(0, [1, 2])
    step.tasklet.call()
    clock.advance(ms=5)
    step.feed(0, [3, 4])
    step.tasklet.call()
    clock.advance(ms=7)
    step.tasklet.call()
    clock.advance(ms=2)
    blocked = step.tasklet.metrics.blocked.ns
    step.output()
    step.tasklet.call()
    clock.advance(ms=100)

    assert blocked == 9_000_000
    assert step.tasklet.metrics.blocked.ns == 9_000_000
    assert step.tasklet.metrics.snapshot()["elapsed_ns"] == 114_000_000
