from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import sys
import threading
import time
from collections import Counter, deque
from contextlib import contextmanager

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core import DAG, BroadcastKey, Inbox, Processor, ProcessorContext, Watermark, between
from jetlet.errors import (
    InvalidArgumentError,
    ItemFailedError,
    JobCancelledError,
    JobFailedError,
)
from jetlet.jobs.embedded import EmbeddedEngine
from jetlet.pipeline.errors import DeadLetter
from jetlet.planner.events import applied_async
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.coroutines import coroutine_pool
from jetlet.processors.coroutines.async_map import AsyncMapSupplier
from jetlet.processors.coroutines.coroutine_pool import (
    MAX_HELD,
    AsyncOptions,
    FlatCall,
    make_attempt,
)
from jetlet.testing import verify_processor
from jetlet.testing.outbox import CheckedOutbox

DIVISION = (
    "division by zero" if sys.version_info >= (3, 14) else "integer division or modulo by zero"
)
"""What Python says."""

FAIL = ErrorPolicy("step")
SKIP = ErrorPolicy("step", "skip")
DEAD_LETTER = ErrorPolicy("step", "dead-letter", 1)

LOOP_THREAD = "jetlet-asyncio"


def loop_threads():
    return [thread for thread in threading.enumerate() if thread.name == LOOP_THREAD]


@pytest.fixture(autouse=True)
def nothing_is_left(caplog):
    gc.freeze()  # to look for garbage among all that other tests have left takes a second
    yield
    assert not loop_threads()
    gc.collect()  # a task that is destroyed while pending is reported then
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def turns(count):
    """Wait for so many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def double(item):
    await turns(item % 4)
    return 2 * item


async def fail_on_odd(item):
    await turns(item % 3)
    if item % 2:
        raise ValueError(f"odd: {item}")
    return item


def supplier(fn, policy=FAIL, **options):
    return AsyncMapSupplier(fn, policy=policy, **options)


def verify(fn, policy=FAIL, *, input, expect_outputs, order_matters=True, **options):
    if policy.ordinal is not None:
        options["data_ordinals"] = (0,)
    verify_processor(
        supplier(fn, policy, **options),
        input=input,
        expect_outputs=expect_outputs,
        order_matters=order_matters,
        may_wait=True,
    )


class Driver:
    """Calls a processor as the engine would; its pool runs on the real loop."""

    def __init__(self, supplier, context, edges):
        self.woken = threading.Event()
        self.wakes = 0
        self.counts = Counter()
        self.outbox = CheckedOutbox(edges, is_tight=False)
        self.context = context(wake=self.wake, count=self.count)
        self.processor = supplier.get()
        self.processor.init(self.outbox, self.context)

    def wake(self):
        self.wakes += 1
        self.woken.set()

    def count(self, name, amount):
        self.counts[name] += amount

    def call(self, callback, *args):
        self.outbox.begin_call()
        result = getattr(self.processor, callback)(*args)
        self.outbox.end_call()
        return result

    def process(self, items):
        inbox = Inbox(items)
        self.call("process", 0, inbox)
        assert not inbox

    def until(self, condition, callback="try_process", *args):
        """Repeat the call, whenever the processor wakes us, until ``condition()`` holds."""
        deadline = time.monotonic() + 60
        while True:
            self.woken.clear()
            result = self.call(callback, *args)
            if condition is None and result:
                return
            if condition is not None and condition():
                return
            assert time.monotonic() < deadline, "waited in vain"
            self.woken.wait(0.001)

    def complete(self):
        self.until(None, "complete")

    def save(self):
        self.outbox.begin_snapshot()
        self.until(None, "save_to_snapshot")
        return self.outbox.end_snapshot()

    @property
    def output(self):
        return self.outbox.outputs[0]


@contextmanager
def driving(fn, policy=FAIL, *, edges=1, index=0, parallelism=1, **options):
    made = supplier(fn, policy, **options)

    def context(**extra):
        return ProcessorContext(local_index=index, local_parallelism=parallelism, **extra)

    made.init(context())
    driver = Driver(made, context, edges)
    try:
        yield driver
    finally:
        driver.processor.close()
        made.close(None)


class Gate:
    """A coroutine function whose calls end when the test says so."""

    def __init__(self):
        self.futures = {}
        self.started = threading.Semaphore(0)
        self.cancelled = []

    async def __call__(self, item):
        future = asyncio.get_running_loop().create_future()
        self.futures[item] = future
        self.started.release()
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise

    def await_start(self, count):
        for _ in range(count):
            assert self.started.acquire(timeout=60)

    def open(self, item, result=None, error=None):
        future = self.futures[item]
        loop = future.get_loop()
        if error is not None:
            loop.call_soon_threadsafe(future.set_exception, error)
        else:
            loop.call_soon_threadsafe(future.set_result, item if result is None else result)


# --- Results -----------------------------------------------------------------------------------


@settings(max_examples=15)
@given(items=st.lists(st.integers(0, 50), max_size=12), concurrency=st.integers(1, 5))
def test_ordered_results_come_in_the_order_of_the_items(items, concurrency):
    verify(
        double,
        input=items,
        expect_outputs=[[2 * item for item in items]],
        max_concurrency=concurrency,
    )


@settings(max_examples=15)
@given(items=st.lists(st.integers(0, 50), max_size=12), concurrency=st.integers(1, 5))
def test_unordered_results_all_come(items, concurrency):
    verify(
        double,
        input=items,
        expect_outputs=[[2 * item for item in items]],
        order_matters=False,
        ordered=False,
        max_concurrency=concurrency,
    )


def test_none_is_an_ordinary_item_and_result():
    async def same(item):
        return item

    verify(same, input=[None, 0, None], expect_outputs=[[None, 0, None]])


def test_unordered_result_does_not_wait_for_an_older_one():
    gate = Gate()
    with driving(gate, ordered=False) as driver:
        driver.process(["slow", "fast"])
        gate.await_start(2)
        gate.open("fast")
        driver.until(lambda: driver.output == ["fast"])
        gate.open("slow")
        driver.complete()
        assert driver.output == ["fast", "slow"]


def test_ordered_result_waits_for_an_older_one():
    gate = Gate()
    with driving(gate) as driver:
        driver.process(["slow", "fast", "last"])
        gate.await_start(3)
        gate.open("fast")
        gate.open("last")
        driver.woken.wait(60)
        assert driver.call("try_process")
        assert driver.output == []
        gate.open("slow")
        driver.complete()
        assert driver.output == ["slow", "fast", "last"]


@pytest.mark.parametrize("ordered", [True, False])
def test_items_before_a_watermark_leave_before_it(ordered):
    async def slow_first(item):
        await turns(10 - item)
        return item

    def compare(expected, actual):
        assert actual[3] == Watermark(1)
        assert actual[6] == Watermark(2)
        assert [sorted(actual[:3]), sorted(actual[4:6]), actual[7:]] == [[1, 2, 3], [4, 5], [6]]

    verify_processor(
        supplier(slow_first, ordered=ordered),
        input=[1, 2, 3, Watermark(1), 4, 5, Watermark(2), 6],
        expect_output=[],
        compare=compare,
        may_wait=True,
    )


def test_watermark_is_held_while_an_item_is_in_flight():
    gate = Gate()
    with driving(gate, ordered=False) as driver:
        driver.process(["a"])
        gate.await_start(1)
        assert driver.call("try_process_watermark", Watermark(1)) is False
        assert driver.output == []
        gate.open("a")
        driver.until(None, "try_process_watermark", Watermark(1))
        assert driver.output == ["a", Watermark(1)]


def test_complete_waits_for_what_is_in_flight():
    gate = Gate()
    with driving(gate) as driver:
        driver.process(["a"])
        gate.await_start(1)
        assert driver.call("complete") is False
        gate.open("a")
        driver.complete()
        assert driver.output == ["a"]


@pytest.mark.parametrize("ordered", [True, False])
def test_flat_results_are_emitted_one_by_one(ordered):
    async def several(item):
        await turns(item % 2)
        return (item for _ in range(item))

    verify(
        several,
        input=[2, 0, 3],
        expect_outputs=[[2, 2, 3, 3, 3]],
        order_matters=ordered,
        ordered=ordered,
        flat=True,
    )


def test_asynchronous_generators_can_be_flattened():
    closed = []

    async def several(item):
        try:
            for number in range(item):
                await asyncio.sleep(0)
                yield number
        finally:
            closed.append(item)

    async def returns_generator(item):
        return several(item)

    verify(several, input=[2, 0, 1], expect_outputs=[[0, 1, 0]], flat=True)
    verify(returns_generator, input=[2, 0, 1], expect_outputs=[[0, 1, 0]], flat=True)
    assert set(closed) == {0, 1, 2}


def test_timestamps_are_those_of_the_item():
    async def several(item):
        for number in range(item):
            yield number

    async def returns_list(item):
        return list(range(item))

    for fn in (several, returns_list):
        verify(
            applied_async(fn, is_flat=True),
            input=[(7, 2), (8, 1)],
            expect_outputs=[[(7, 0), (7, 1), (8, 0)]],
            flat=True,
        )


# --- Long flat results -------------------------------------------------------------------------


class Endless:
    """An asynchronous generator without an end; waits now and then, or never."""

    def __init__(self, waits_after=None):
        self.waits_after = waits_after
        self.given = Counter()
        self.closed = []
        self.goes_on = threading.Event()

    async def __call__(self, item):
        try:
            while True:
                if self.given[item] == self.waits_after:
                    while not self.goes_on.is_set():
                        await turns(1)
                yield item, self.given[item]
                self.given[item] += 1
        finally:
            self.closed.append(item)


def check_is_endless(driver, endless, item):
    """It gives its results in order, a lot of them, and is not far ahead of who takes them."""
    got = lambda: [number for of, number in driver.output if of == item]
    for size in (1, 10 * MAX_HELD):
        driver.until(lambda size=size: len(got()) >= size)
        assert got() == list(range(len(got())))
        assert endless.given[item] <= len(got()) + MAX_HELD


@pytest.mark.parametrize("options", [{}, {"timeout": 600}, {"retries": 2}])
@pytest.mark.parametrize("ordered", [True, False])
def test_endless_results_are_handed_on_as_they_are_taken(ordered, options):
    endless = Endless()
    with driving(endless, ordered=ordered, flat=True, **options) as driver:
        driver.process(["a"])
        check_is_endless(driver, endless, "a")
    assert endless.closed == ["a"]


def test_endless_results_in_any_order_do_not_hold_up_others():
    endless = Endless()
    with driving(endless, ordered=False, flat=True) as driver:
        driver.process(["a", "b", "c"])
        for item in "bca":
            check_is_endless(driver, endless, item)


def test_endless_results_of_another_item_wait_for_their_turn():
    endless = Endless()
    with driving(endless, ordered=True, flat=True) as driver:
        driver.process(["a", "b"])
        check_is_endless(driver, endless, "a")
        assert {item for item, _ in driver.output} == {"a"}
        assert endless.given["b"] <= MAX_HELD


def test_results_do_not_wait_for_the_next_one():
    endless = Endless(waits_after=3)
    with driving(endless, flat=True) as driver:
        driver.process(["a"])
        driver.until(lambda: len(driver.output) == 3)
        endless.goes_on.set()
        check_is_endless(driver, endless, "a")


def test_an_iterator_that_a_coroutine_returns_may_be_endless():
    async def counts(item):
        return itertools.count()

    with driving(counts, flat=True) as driver:
        driver.process(["a"])
        driver.until(lambda: len(driver.output) >= 5 * MAX_HELD)
        assert driver.output == list(range(len(driver.output)))


def test_the_time_that_results_wait_to_be_taken_does_not_count():
    async def check():
        call = FlatCall("a")
        call.result = deque(range(MAX_HELD))
        async with asyncio.timeout(600) as call.scope:
            deadline = call.scope.when()
            waiting = asyncio.ensure_future(call.wait_for_room())
            await turns(1)
            assert call.scope.when() is None
            call.take_some(asyncio.get_running_loop())
            await waiting
            assert call.scope.when() > deadline

    asyncio.run(check())


@pytest.mark.parametrize("ordered", [True, False])
def test_snapshot_waits_for_items_that_have_emitted_something(ordered):
    first, second = Endless(waits_after=3), Gate()

    async def either(item):
        if item == "a":
            async for each in first(item):
                if each[1] == 5:
                    return
                yield each
        else:
            yield await second(item)

    with driving(either, ordered=ordered, flat=True, max_concurrency=2) as driver:
        driver.process(["a", "b"])
        driver.until(lambda: len(driver.output) == 3)
        driver.outbox.begin_snapshot()
        assert not driver.call("save_to_snapshot")
        first.goes_on.set()
        driver.until(None, "save_to_snapshot")
        # All results of the one have left before the barrier; the other one is done again.
        assert driver.output == [("a", number) for number in range(5)]
        assert [item for _, item in driver.outbox.end_snapshot()] == ["b"]
        second.await_start(1)
        second.open("b")
        driver.complete()
        assert driver.output[5:] == ["b"]


# --- Flow --------------------------------------------------------------------------------------


def test_concurrency_reaches_its_limit_and_never_exceeds_it():
    running = 0
    highest = 0

    async def watch(item):
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await turns(3)
        running -= 1
        return item

    with driving(watch, max_concurrency=4) as driver:
        driver.process(range(30))
        driver.process(range(30, 40))
        driver.complete()
        assert driver.output == list(range(40))
    assert highest == 4


def test_no_input_is_taken_while_enough_is_in_flight():
    gate = Gate()
    with driving(gate, max_concurrency=2) as driver:
        driver.process(["a", "b", "c"])
        assert driver.call("try_process") is True
        driver.process(["d"])
        assert driver.call("try_process") is False
        gate.await_start(2)
        assert set(gate.futures) == {"a", "b"}
        gate.open("a")
        driver.until(lambda: driver.output == ["a"])
        driver.until(None)
        gate.await_start(1)
        gate.open("b")
        gate.open("c")
        gate.await_start(1)
        gate.open("d")
        driver.complete()
        assert driver.output == ["a", "b", "c", "d"]


def test_a_batch_takes_one_signal_to_the_loop_and_few_wakes_back(monkeypatch):
    signals = []
    with driving(double, max_concurrency=1000) as driver:
        loop = driver.processor._loop
        signal = loop.call_soon_threadsafe

        def counting(callback, *args, **kwargs):
            signals.append(callback)
            return signal(callback, *args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
        driver.process(range(500))
        driver.complete()
        monkeypatch.undo()
        assert len(driver.output) == 500
        assert len(signals) == 1
        # Each item waits for 0 to 3 turns, so all of them end within a few.
        assert 1 <= driver.wakes <= 10


def test_no_signal_is_sent_to_a_loop_that_is_busy(monkeypatch):
    gate = Gate()
    with driving(gate, max_concurrency=1) as driver:
        driver.process(["a"])
        gate.await_start(1)
        loop = driver.processor._loop
        monkeypatch.setattr(loop, "call_soon_threadsafe", None)
        driver.process(["b"])
        monkeypatch.undo()
        gate.open("a")
        gate.await_start(1)
        gate.open("b")
        driver.complete()
        assert driver.output == ["a", "b"]


@settings(max_examples=10)
@given(sizes=st.lists(st.integers(1, 5), max_size=40), concurrency=st.integers(1, 3))
def test_no_item_is_forgotten_however_batches_and_ends_interleave(sizes, concurrency):
    async def same(item):
        return item

    with driving(same, max_concurrency=concurrency) as driver:
        position = 0
        for size in sizes:
            driver.process(range(position, position + size))
            position += size
        driver.complete()
        assert driver.output == list(range(position))


def test_function_that_never_waits_leaves_turns_to_others():
    finished = 0
    seen = []

    async def at_once(item):
        nonlocal finished
        if item == 0:
            asyncio.get_running_loop().call_soon(lambda: seen.append(finished))
        finished += 1
        return item

    with driving(at_once, max_concurrency=1) as driver:
        driver.process(range(1000))
        driver.complete()
    assert len(seen) == 1
    assert seen[0] < 1000


# --- Errors ------------------------------------------------------------------------------------


def test_error_fails_the_job_with_item_and_cause():
    with driving(fail_on_odd) as driver:
        driver.process([2, 3, 4])
        with pytest.raises(ItemFailedError) as caught:
            driver.complete()
    assert caught.value.item == 3
    assert caught.value.step == "step"
    assert isinstance(caught.value.__cause__, ValueError)


def test_error_does_not_wait_for_its_turn_in_the_order():
    gate = Gate()
    with driving(gate) as driver:
        driver.process(["slow", "bad"])
        gate.await_start(2)
        gate.open("bad", error=ValueError("bad"))
        with pytest.raises(ItemFailedError) as caught:
            driver.until(None, "complete")
        assert caught.value.item == "bad"


@pytest.mark.parametrize("ordered", [True, False])
def test_errors_may_be_skipped(ordered):
    verify(
        fail_on_odd,
        SKIP,
        input=[1, 2, 3, 4, 5, 6],
        expect_outputs=[[2, 4, 6]],
        order_matters=ordered,
        ordered=ordered,
    )
    with driving(fail_on_odd, SKIP, ordered=ordered) as driver:
        driver.process([1, 2, 3])
        driver.complete()
        assert driver.counts == {"skipped": 2}


@pytest.mark.parametrize("ordered", [True, False])
def test_errors_may_become_dead_letters(ordered):
    verify(
        fail_on_odd,
        DEAD_LETTER,
        input=[1, 2, 3],
        expect_outputs=[
            [2],
            [
                DeadLetter(1, "step", "ValueError", "odd: 1"),
                DeadLetter(3, "step", "ValueError", "odd: 3"),
            ],
        ],
        order_matters=ordered,
        ordered=ordered,
    )


def test_error_in_the_iterable_of_a_flat_result_is_the_items_error():
    async def broken(item):
        return (1 // number for number in range(item, -1, -1))

    verify(
        broken,
        DEAD_LETTER,
        input=[1],
        expect_outputs=[
            [1],  # what came before it stands
            [DeadLetter(1, "step", "ZeroDivisionError", DIVISION)],
        ],
        flat=True,
    )


def test_what_an_attempt_gave_that_is_repeated_does_not_stand():
    attempts = []

    async def broken(item):
        attempts.append(item)
        yield len(attempts)
        await turns(3)
        raise ValueError

    with driving(broken, SKIP, flat=True, retries=2, backoff=0) as driver:
        driver.process(["a"])
        driver.complete()
        assert driver.output == [3]  # the last one


def test_an_item_that_gives_a_lot_is_not_tried_again():
    attempts = []

    async def broken(item):
        attempts.append(item)
        for number in range(MAX_HELD + 1):
            yield number
        raise ValueError

    with driving(broken, SKIP, flat=True, retries=2, backoff=0) as driver:
        driver.process(["a"])
        driver.complete()
        assert driver.output == list(range(MAX_HELD + 1))
    assert attempts == ["a"]


def test_hanging_coroutine_runs_out_of_time():
    async def hang_on_odd(item):
        if item % 2:
            await asyncio.get_running_loop().create_future()
        return item

    with driving(hang_on_odd, DEAD_LETTER, edges=2, data_ordinals=(0,), timeout=0.001) as driver:
        driver.process([1, 2])
        driver.complete()
        assert driver.outbox.outputs == [
            [2],
            [DeadLetter(1, "step", "TimeoutError", "no result within 0.001 s")],
        ]


def test_timeout_error_of_the_function_itself_keeps_its_text():
    async def times_out(item):
        raise TimeoutError("the server's own")

    with driving(times_out, DEAD_LETTER, edges=2, data_ordinals=(0,), timeout=60) as driver:
        driver.process([1])
        driver.complete()
        assert driver.outbox.outputs[1] == [
            DeadLetter(1, "step", "TimeoutError", "the server's own")
        ]


async def cancel_future(item):
    if item % 2:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
    return item


async def cancel_own_task(item):
    if item % 2:
        asyncio.current_task().cancel("by itself")
    await asyncio.sleep(0)
    return item


@pytest.mark.parametrize("fn", [cancel_future, cancel_own_task])
def test_cancelled_coroutine_is_a_failed_item(fn):
    with driving(
        fn, DEAD_LETTER, edges=2, data_ordinals=(0,), max_concurrency=1, timeout=60
    ) as driver:
        driver.process([1, 2, 3, 4])
        driver.complete()
        letters = driver.outbox.outputs[1]
        assert [(letter.item, letter.error_type) for letter in letters] == [
            (1, "CancelledError"),
            (3, "CancelledError"),
        ]
        assert driver.output == [2, 4]
    with driving(fn) as driver:
        driver.process([1])
        with pytest.raises(ItemFailedError) as caught:
            driver.complete()
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)


class Whatever(BaseException):
    pass


@pytest.mark.parametrize("policy", [SKIP, FAIL], ids=["skip", "fail"])
@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, GeneratorExit, Whatever, pytest.fail.Exception]
)
def test_exit_from_a_coroutine_fails_the_job_and_not_the_loop(error, policy):
    async def leave(item):
        raise error("enough")

    with driving(leave, policy) as driver:
        driver.process([1])
        with pytest.raises(ItemFailedError) as caught:
            driver.complete()
        assert isinstance(caught.value.__cause__, error)
        assert loop_threads()


def failing_until(attempt, error=ValueError):
    """Fails for each item until the given attempt."""
    attempts = Counter()

    async def fn(item):
        attempts[item] += 1
        await asyncio.sleep(0)
        if attempts[item] < attempt:
            raise error("not yet")
        return item

    return fn, attempts


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, TimeoutError])
def test_failed_attempts_are_repeated(error):
    fn, attempts = failing_until(3, error)
    with driving(fn, retries=2, backoff=0) as driver:
        driver.process(["a", "b"])
        driver.complete()
        assert driver.output == ["a", "b"]
    assert attempts == {"a": 3, "b": 3}


def test_policy_applies_when_all_attempts_have_failed():
    fn, attempts = failing_until(4)
    with driving(fn, SKIP, retries=2, backoff=0) as driver:
        driver.process(["a"])
        driver.complete()
        assert driver.output == []
        assert driver.counts == {"skipped": 1}
    assert attempts == {"a": 3}


def test_timeout_is_for_each_attempt():
    attempts = []

    async def hang_at_first(item):
        attempts.append(item)
        if len(attempts) < 3:
            await asyncio.get_running_loop().create_future()
        return item

    with driving(hang_at_first, timeout=0.001, retries=2, backoff=0) as driver:
        driver.process(["a"])
        driver.complete()
        assert driver.output == ["a"]


def test_pauses_double_and_have_jitter(monkeypatch):
    pauses = []
    real_sleep = asyncio.sleep

    async def record(seconds):
        pauses.append(seconds)
        await real_sleep(0)

    async def fails(item):
        raise ValueError

    jitter = iter([1.0, 0.0, 0.5, 0.5])
    options = AsyncOptions(fails, FAIL, retries=4, backoff=0.1, jitter=lambda: next(jitter))
    monkeypatch.setattr(coroutine_pool.asyncio, "sleep", record)
    with pytest.raises(ValueError):
        asyncio.run(make_attempt(options, lambda call: None)(1))
    assert pauses == pytest.approx([0.1, 0.1, 0.3, 0.6])


# --- Life --------------------------------------------------------------------------------------


def test_close_cancels_what_is_in_flight():
    gate = Gate()
    with driving(gate, SKIP, max_concurrency=2, retries=5, timeout=60) as driver:
        driver.process(["a", "b", "c"])
        gate.await_start(2)
    assert sorted(gate.cancelled) == ["a", "b"]
    assert "c" not in gate.futures


def test_close_before_anything_ran_is_quiet():
    with driving(double) as driver:
        driver.process([1, 2, 3])


def test_close_goes_on_without_a_coroutine_that_ignores_its_cancellation(monkeypatch, caplog):
    released = threading.Event()
    monkeypatch.setattr("jetlet.processors.coroutines.async_map.CLOSE_TIMEOUT", 0.01)
    gate = Gate()

    async def stubborn(item):
        try:
            await gate(item)
        except asyncio.CancelledError:
            await asyncio.to_thread(released.wait)

    with driving(stubborn) as driver:
        driver.process(["a"])
        gate.await_start(1)
        driver.processor.close()
        assert "ignores its cancellation" in caplog.text
        released.set()


def test_suppliers_share_one_loop_that_ends_with_the_last():
    loops = set()

    async def look(item):
        loops.add(asyncio.get_running_loop())
        return item

    with driving(look) as one:
        with driving(look) as other:
            assert len(loop_threads()) == 1
            one.process([1])
            other.process([2])
            one.complete()
            other.complete()
        assert len(loop_threads()) == 1
        one.process([3])
        one.complete()
    assert len(loops) == 1
    assert not loop_threads()


def test_supplier_can_be_closed_without_having_been_initialised():
    supplier(double).close(None)


def test_supplier_travels_without_its_loop():
    original = supplier(double, max_concurrency=7, timeout=2.0)
    original.init(ProcessorContext())
    try:
        copy = cloudpickle.loads(cloudpickle.dumps(original))
    finally:
        original.close(None)
    copy.close(None)
    assert copy.options.max_concurrency == 7
    assert copy.options.timeout == 2.0
    verify_processor(copy, input=[1, 2], expect_output=[2, 4], may_wait=True)


# --- Snapshots ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_items_in_flight_are_saved_as_unprocessed(ordered):
    gate = Gate()
    with driving(gate, index=1, parallelism=2, ordered=ordered) as driver:
        driver.process(["a", "b", "c"])
        gate.await_start(3)
        gate.open("a")
        driver.until(lambda: driver.output == ["a"])
        entries = driver.save()
        assert entries == [(BroadcastKey((1, 0)), "b"), (BroadcastKey((1, 1)), "c")]
        # Nothing is lost if the job goes on.
        gate.open("b")
        gate.open("c")
        driver.complete()
        assert sorted(driver.output) == ["a", "b", "c"]
    with driving(double, index=1, parallelism=2, ordered=True) as driver:
        inbox = Inbox([(BroadcastKey((1, 1)), 5), (BroadcastKey((0, 0)), 7)])
        driver.call("restore_from_snapshot", inbox)
        driver.call("restore_from_snapshot", Inbox([(BroadcastKey((1, 0)), 4)]))
        assert driver.call("finish_snapshot_restore")
        driver.process([6])
        driver.complete()
        assert driver.output == [8, 10, 12]


def test_each_restored_item_has_one_owner_when_there_are_fewer_processors():
    entries = [(BroadcastKey((index, n)), (index, n)) for index in range(5) for n in range(3)]
    taken = []

    async def same(item):
        return item

    for index in range(2):
        with driving(same, index=index, parallelism=2) as driver:
            driver.call("restore_from_snapshot", Inbox(entries))
            driver.call("finish_snapshot_restore")
            driver.complete()
            assert driver.output == sorted(driver.output)
            taken += driver.output
    assert sorted(taken) == [item for _, item in entries]


# --- What users write --------------------------------------------------------------------------


def plain(item):
    return item


def plain_generator(item):
    yield item


def annotated(item) -> asyncio.Future[int]:
    return asyncio.ensure_future(double(item))


async def generator(item):
    yield item


async def with_option(option, item):
    return item


@functools.wraps(double)
def decorated(item):
    return double(item)


class Client:
    async def fetch(self, item):
        return item

    async def __call__(self, item):
        return item

    def fetch_plain(self, item):
        return item


@pytest.mark.parametrize(
    "fn",
    [
        double,
        annotated,
        decorated,
        functools.partial(with_option, 1),
        Client(),
        Client().fetch,
        lambda item: double(item + 0),
    ],
)
def test_whatever_returns_an_awaitable_is_accepted(fn):
    with driving(fn) as driver:
        driver.process([0])
        driver.complete()
        assert driver.output == [0]


@pytest.mark.parametrize(
    ("fn", "flat", "message"),
    [
        (plain, False, r"write `async def plain\(item\): ...`, or map\(plain\)"),
        (plain, True, r"or flat_map\(plain\)"),
        (plain_generator, True, "`async def plain_generator"),
        (generator, False, r"write flat_map_async\(generator\)"),
        (functools.partial(plain), False, "`async def"),
        (Client().fetch_plain, False, "`async def fetch_plain"),
        (str, False, "`async def str"),
        (len, False, "`async def len"),
        (3, False, "`async def`"),
    ],
)
def test_what_is_no_coroutine_function_is_refused(fn, flat, message):
    with pytest.raises(InvalidArgumentError, match=message):
        supplier(fn, flat=flat)


@pytest.mark.parametrize("flat", [True, False])
def test_plain_lambda_is_refused_when_it_is_called_whatever_the_policy(flat):
    with driving(lambda item: [item], SKIP, flat=flat, retries=3) as driver:
        driver.process([1])
        with pytest.raises(InvalidArgumentError, match="returned 'list', which cannot be awaited"):
            driver.complete()


@pytest.mark.parametrize(
    ("retry_on", "attempts"),
    [
        (Exception, 4),
        (OSError, 4),
        ((KeyError, ConnectionError), 4),
        (KeyError, 1),
        (lambda error: "again" in str(error), 4),
        (lambda error: isinstance(error, KeyError), 1),
    ],
)
def test_only_what_is_worth_another_attempt_gets_one(retry_on, attempts):
    made = []

    async def fail(item):
        made.append(item)
        raise ConnectionError("try again")

    with driving(fail, SKIP, retries=3, backoff=0, retry_on=retry_on) as driver:
        driver.process([1])
        driver.complete()
    assert len(made) == attempts


def test_coroutine_that_cancels_itself_is_tried_again_only_if_that_is_asked_for():
    made = []

    async def cancel(item):
        made.append(item)
        raise asyncio.CancelledError

    for retry_on, attempts in ((Exception, 3), (asyncio.CancelledError, 3), (OSError, 1)):
        made.clear()
        with driving(cancel, SKIP, retries=2, backoff=0, retry_on=retry_on) as driver:
            driver.process([1])
            driver.complete()
        assert len(made) == attempts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_concurrency": 0}, "max_concurrency=0"),
        ({"max_concurrency": 1.5}, "max_concurrency=1.5"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": -1.0}, "timeout=-1.0"),
        ({"retries": -1}, "retries=-1"),
        ({"backoff": -0.1}, "backoff=-0.1"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        supplier(double, **options)


# --- On the engine -----------------------------------------------------------------------------


def dag_over(items, fn, taken, **options):
    class Source(Processor):
        def complete(self):
            return self.outbox.offer_batch(items)

    class Sink(Processor):
        def process(self, ordinal, inbox):
            taken.extend(inbox.take())

    dag = DAG("async")
    source = dag.new_vertex("source", Source, 1)
    step = dag.new_vertex("step", supplier(fn, **options), 1)
    sink = dag.new_vertex("sink", Sink, 1)
    return dag.edge(between(source, step)).edge(between(step, sink))


def test_engine_runs_it():
    taken = []
    with EmbeddedEngine() as engine:
        engine.submit(dag_over(list(range(5000)), double, taken, max_concurrency=100)).join(60)
    assert taken == [2 * item for item in range(5000)]


def test_engine_names_vertex_and_item_of_an_error():
    with EmbeddedEngine() as engine:
        job = engine.submit(dag_over([2, 4, 5, 6], fail_on_odd, []))
        with pytest.raises(JobFailedError, match="'step' on item 5: ValueError: odd: 5"):
            job.join(60)


def test_job_with_hanging_coroutines_can_be_cancelled():
    gate = Gate()
    with EmbeddedEngine() as engine:
        job = engine.submit(dag_over([1, 2], gate, []))
        gate.await_start(2)
        job.cancel()
        with pytest.raises(JobCancelledError):
            job.join(60)
        assert not loop_threads()
    assert sorted(gate.cancelled) == [1, 2]


# --- By key -----------------------------------------------------------------------------------


class OneAtATime:
    """Counts what is under way of each key, and fails the first attempt at some items."""

    def __init__(self):
        self.under_way = Counter()
        self.most = 0
        self.begun = {}
        self.failed = set()

    async def __call__(self, item):
        key = item % 3
        self.under_way[key] += 1
        self.most = max(self.most, sum(self.under_way.values()))
        assert self.under_way[key] == 1
        self.begun.setdefault(key, []).append(item)
        try:
            await turns(item * 7 % 5)
            if item % 4 == 0 and item not in self.failed:
                self.failed.add(item)
                raise OSError(item)
            return item
        finally:
            self.under_way[key] -= 1


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("max_concurrency", [1, 2, 100])
def test_of_a_key_one_is_dealt_with_at_a_time(ordered, max_concurrency):
    calls = OneAtATime()
    supplier = AsyncMapSupplier(
        calls,
        policy=FAIL,
        key_fn=lambda item: item % 3,
        ordered=ordered,
        max_concurrency=max_concurrency,
        retries=1,
        backoff=0,
    )

    def in_order_by_key(expected, actual):
        assert sorted(actual) == sorted(expected)
        for key in range(3):
            found = [item for item in actual if item % 3 == key]
            assert found == sorted(found)
        return True

    verify_processor(
        supplier,
        input=list(range(40)),
        expect_output=list(range(40)),
        compare=in_order_by_key,
        may_wait=True,
    )
    assert (calls.most == 1) == (max_concurrency == 1)
    assert calls.most <= 3


def test_items_of_a_key_go_on_behind_one_that_failed():
    async def fail_on_two(item):
        await turns(2)
        if item == 2:
            raise ValueError(item)
        return item

    verify_processor(
        AsyncMapSupplier(fail_on_two, policy=SKIP, key_fn=lambda item: 0),
        input=[1, 2, 3, 4],
        expect_output=[1, 3, 4],
        may_wait=True,
    )
