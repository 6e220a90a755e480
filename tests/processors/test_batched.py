from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import Pipeline, service, shared_service, sinks, sources
from jetlet.core import DAG, Inbox, Processor, ProcessorContext, Watermark, between
from jetlet.errors import InvalidArgumentError, ItemFailedError
from jetlet.jobs.embedded import EmbeddedEngine
from jetlet.pipeline.errors import DeadLetter
from jetlet.processors.base import TURN_NS, ErrorPolicy
from jetlet.processors.batched import BLOCKING_TURN_NS, BatchedProcessor, BatchedSupplier
from jetlet.processors.coroutines.async_map import AsyncMapSupplier
from jetlet.processors.service_lease import ServiceLease
from jetlet.testing import ManualClock, verify_processor
from jetlet.testing.outbox import CheckedOutbox

FAIL = ErrorPolicy("step")
SKIP = ErrorPolicy("step", "skip")
DEAD_LETTER = ErrorPolicy("step", "dead-letter", 1)


def double_all(items):
    return [2 * item for item in items]


def batched(fn, max_batch, policy=FAIL, **options):
    return lambda: BatchedProcessor(fn, max_batch, policy=policy, **options)


class Recorder:
    """A function that remembers the lists it was given."""

    def __init__(self):
        self.calls = []

    def __call__(self, items):
        self.calls.append(list(items))
        return items


class Driver:
    def __init__(self, fn, max_batch, policy=FAIL, *, clock=None, is_tight=False, **options):
        self.outbox = CheckedOutbox(1, is_tight=is_tight)
        self.counts = Counter()
        context = ProcessorContext(
            clock=clock or ManualClock(),
            count=lambda name, amount: self.counts.update({name: amount}),
        )
        self.processor = BatchedProcessor(fn, max_batch, policy=policy, **options)
        self.processor.init(self.outbox, context)

    def call(self, callback, *args):
        self.outbox.begin_call()
        result = getattr(self.processor, callback)(*args)
        self.outbox.end_call()
        return result

    def feed(self, items):
        """As the engine does: a look whether work is due, then the inbox until it is empty."""
        assert self.call("try_process")
        inbox = Inbox(items)
        calls = 0
        while inbox:
            self.call("process", 0, inbox)
            calls += 1
        return calls

    @property
    def output(self):
        return self.outbox.outputs[0]


@given(items=st.lists(st.integers(), max_size=12), max_batch=st.integers(1, 5))
def test_results_come_in_order_however_items_are_batched(items, max_batch):
    verify_processor(
        batched(double_all, max_batch), input=items, expect_output=[2 * item for item in items]
    )


@given(sizes=st.lists(st.integers(1, 9), max_size=8), max_batch=st.integers(1, 7))
def test_batches_are_full_but_for_the_last_while_input_flows(sizes, max_batch):
    recorder = Recorder()
    driver = Driver(recorder, max_batch)
    position = 0
    for size in sizes:
        driver.feed(list(range(position, position + size)))
        position += size
    assert driver.call("complete")
    items = list(range(position))
    assert recorder.calls == [
        items[start : start + max_batch] for start in range(0, position, max_batch)
    ]
    assert driver.output == items


def test_partial_batch_is_handed_over_when_the_input_pauses():
    recorder = Recorder()
    driver = Driver(recorder, 10)
    driver.feed([1, 2])
    assert driver.call("try_process")
    assert recorder.calls == []
    # No inbox since the last look.
    assert driver.call("try_process")
    assert recorder.calls == [[1, 2]]
    assert driver.output == [1, 2]
    assert driver.call("try_process")
    driver.feed([3])
    assert driver.call("complete")
    assert recorder.calls == [[1, 2], [3]]


def test_watermark_and_snapshot_do_not_overtake_items():
    recorder = Recorder()
    driver = Driver(recorder, 10)
    driver.feed([1, 2])
    assert driver.call("try_process_watermark", Watermark(1))
    driver.feed([3])
    assert driver.call("save_to_snapshot")
    assert recorder.calls == [[1, 2], [3]]
    assert driver.output == [1, 2, Watermark(1), 3]
    verify_processor(
        batched(double_all, 3),
        input=[1, Watermark(1), 2, 3, Watermark(2), 4, 5, 6, 7],
        expect_output=[2, Watermark(1), 4, 6, Watermark(2), 8, 10, 12, 14],
    )


def test_there_may_be_more_or_fewer_results_than_items():
    verify_processor(
        batched(lambda items: (i for i in items for _ in range(i)), 2),
        input=[0, 2, 1, 0],
        expect_output=[2, 2, 1],
    )
    verify_processor(batched(lambda items: [], 2), input=[1, 2, 3], expect_output=[])


def test_function_may_do_what_it_likes_with_its_lists():
    result = []

    def reuse(items):
        result.clear()
        while items:
            result.append(items.pop(0))
        return result

    verify_processor(batched(reuse, 2), input=[1, 2, 3, None], expect_output=[1, 2, 3, None])


def fail_on_odd(items):
    if any(item % 2 for item in items):
        items.clear()
        raise ValueError("odd")
    return items


def test_error_fails_the_job_with_the_first_item():
    with pytest.raises(ItemFailedError) as caught:
        verify_processor(batched(fail_on_odd, 2), input=[2, 4, 6, 7], expect_output=[])
    assert (caught.value.item, caught.value.step) == (6, "step")
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("max_batch", [1, 2, 3, 100])
def test_policy_applies_to_the_items_that_fail_however_they_come_together(max_batch):
    verify_processor(
        batched(fail_on_odd, max_batch, DEAD_LETTER, data_ordinals=(0,)),
        input=[2, 4, 6, 7, 8, 9],
        expect_outputs=[
            [2, 4, 6, 8],
            [
                DeadLetter(7, "step", "ValueError", "odd"),
                DeadLetter(9, "step", "ValueError", "odd"),
            ],
        ],
    )
    driver = Driver(fail_on_odd, max_batch, SKIP)
    driver.feed([2, 4, 6, 7, 8])
    assert driver.call("complete")
    assert driver.output == [2, 4, 6, 8]
    assert driver.counts == {"skipped": 1}


def test_function_that_returns_nothing_is_told_so():
    with pytest.raises(ItemFailedError) as caught:
        verify_processor(batched(lambda items: None, 2), input=[1], expect_output=[])
    assert "must return a list" in str(caught.value.__cause__)


@pytest.mark.parametrize("blocking", [False, True])
def test_call_ends_when_its_time_is_up(blocking):
    clock = ManualClock()
    turn = BLOCKING_TURN_NS if blocking else TURN_NS

    def slow(items):
        clock.advance(ns=turn // 3)
        return items

    driver = Driver(slow, 2, clock=clock, blocking=blocking)
    assert driver.processor.is_cooperative is not blocking
    # Of six batches in each call four fit.
    assert driver.feed(list(range(12))) == 2
    assert driver.call("complete")
    assert driver.output == list(range(12))


@pytest.mark.parametrize(
    ("fn", "max_batch", "message"),
    [
        (None, 1, "takes a list of items"),
        (double_all, 0, "max_batch=0"),
        (double_all, 2.0, "max_batch=2.0"),
    ],
)
def test_what_cannot_work_is_refused(fn, max_batch, message):
    with pytest.raises(InvalidArgumentError, match=message):
        BatchedProcessor(fn, max_batch, policy=FAIL)


def test_engine_gives_full_batches_and_the_rest():
    recorder = Recorder()
    taken = []
    items = list(range(1000))

    class Source(Processor):
        position = 0

        def complete(self):
            if self.outbox.offer_batch(items[self.position : self.position + 30]):
                self.position += 30
            return self.position >= len(items)

    class Sink(Processor):
        def process(self, ordinal, inbox):
            taken.extend(inbox.take())

    dag = DAG("batched")
    source = dag.new_vertex("source", Source, 1)
    step = dag.new_vertex("step", batched(recorder, 64), 1)
    sink = dag.new_vertex("sink", Sink, 1)
    dag.edge(between(source, step)).edge(between(step, sink))
    with EmbeddedEngine(workers=1) as engine:
        engine.submit(dag).join(60)
    assert taken == items
    assert [len(call) for call in recorder.calls] == [64] * 15 + [40]


# --- Waiting for others --------------------------------------------------------------------------


def test_batch_is_closed_by_size_or_when_its_first_item_has_waited_long_enough():
    clock, recorder = ManualClock(), Recorder()
    driver = Driver(recorder, 4, clock=clock, max_wait=0.02)
    driver.feed([1, 2])
    clock.advance(0.015)
    for _ in range(3):  # the input has paused, and others may still come
        assert driver.call("try_process")
    driver.feed([3])
    assert recorder.calls == []
    clock.advance(0.005)
    assert driver.call("try_process")
    assert recorder.calls == [[1, 2, 3]]
    driver.feed([4, 5, 6, 7, 8])
    assert recorder.calls[1:] == [[4, 5, 6, 7]]
    clock.advance(0.019)
    assert driver.call("try_process")
    clock.advance(0.001)
    assert driver.call("try_process")
    assert recorder.calls[2:] == [[8]]
    assert driver.output == list(range(1, 9))


@given(items=st.lists(st.integers(), max_size=12), max_batch=st.integers(1, 5))
def test_batches_that_wait_lose_nothing(items, max_batch):
    verify_processor(
        batched(double_all, max_batch, max_wait=3600),
        input=[*items, Watermark(1)],
        expect_output=[*(2 * item for item in items), Watermark(1)],
    )


# --- With a service ------------------------------------------------------------------------------


class Models:
    """Counts what is made and given back; each model has the number of its making."""

    def __init__(self):
        self.made = 0
        self.ended = []
        self.changed = threading.Semaphore(0)

    def create(self, context):
        self.made += 1
        self.changed.release()
        return self.made

    def destroy(self, model):
        self.ended.append(model)
        self.changed.release()

    def await_changes(self, count):
        for _ in range(count):
            assert self.changed.acquire(timeout=60)


@pytest.mark.parametrize("how", [service, shared_service])
def test_function_gets_the_service_and_the_items(how):
    models = Models()
    verify_processor(
        BatchedSupplier(
            lambda model, items: [(model > 0, item) for item in items],
            3,
            how(models.create, models.destroy),
            policy=FAIL,
        ),
        input=[1, 2, 3, 4],
        expect_output=[(True, 1), (True, 2), (True, 3), (True, 4)],
    )
    assert models.made
    assert sorted(models.ended) == list(range(1, models.made + 1))


@pytest.mark.parametrize("how", [service, shared_service])
def test_service_is_replaced_between_two_batches_and_ended_when_nobody_uses_it(how):
    clock, models = ManualClock(), Models()
    made = BatchedSupplier(
        lambda model, items: [(model, item) for item in items],
        1,
        how(models.create, models.destroy, reload="1m"),
        policy=FAIL,
    )
    counts = Counter()
    context = ProcessorContext(clock=clock, count=lambda name, n: counts.update({name: n}))
    made.init(context)
    processor, outbox = made.get(), CheckedOutbox(1, is_tight=False)
    processor.init(outbox, context)
    models.await_changes(1)

    def feed(item):
        outbox.begin_call()
        processor.process(0, Inbox([item]))
        outbox.end_call()

    feed("a")
    clock.advance(59)
    feed("b")
    assert models.made == 1
    clock.advance(1)
    feed("c")  # says that it is time; nobody waits
    models.await_changes(1)
    deadline = time.monotonic() + 60
    while outbox.outputs[0][-1][0] == 1:
        assert time.monotonic() < deadline
        feed("d")
    models.await_changes(1)
    assert models.ended == [1]
    assert counts == {"reloads": 1}
    assert outbox.outputs[0][:3] == [(1, "a"), (1, "b"), (1, "c")]
    assert outbox.outputs[0][-1] == (2, "d")
    processor.close()
    made.close(None)
    assert models.ended == [1, 2]
    assert not [each for each in threading.enumerate() if each.name == "jetlet-service-reload"]


def test_service_that_cannot_be_made_anew_stays(caplog):
    clock, tried = ManualClock(), threading.Event()

    def create(context):
        if context.clock.monotonic_ns():
            tried.set()
            raise OSError("no model")
        return 1

    lease = ServiceLease(service(create, reload=1000))
    context = ProcessorContext(clock=clock)
    one = lease.take(context)
    clock.advance(1)
    assert lease.renewed(one, context) == 1
    assert tried.wait(60)
    lease.give_back(one)  # waits for the attempt
    assert "no model" in caplog.text


# --- With coroutines -----------------------------------------------------------------------------


async def double_each(items):
    await asyncio.sleep(0)
    return [2 * item for item in items]


async def fail_on_odd_items(items):
    await asyncio.sleep(0)
    return fail_on_odd(items)


def in_flight(fn, max_batch, policy=FAIL, **options):
    return AsyncMapSupplier(fn, policy=policy, max_batch=max_batch, **options)


@settings(max_examples=15)
@given(
    items=st.lists(st.integers(), max_size=12),
    max_batch=st.integers(1, 5),
    concurrency=st.integers(1, 3),
    max_wait=st.sampled_from([0, 3600]),
)
def test_results_of_coroutines_come_in_order(items, max_batch, concurrency, max_wait):
    verify_processor(
        in_flight(double_each, max_batch, max_concurrency=concurrency, max_wait=max_wait),
        input=[*items, Watermark(1)],
        expect_outputs=[[*(2 * item for item in items), Watermark(1)]],
        may_wait=True,
    )


def test_coroutines_fail_with_items_as_functions_do():
    verify_processor(
        in_flight(fail_on_odd_items, 4, DEAD_LETTER, data_ordinals=(0,)),
        input=[2, 4, 6, 7, 8, 9],
        expect_outputs=[
            [2, 4, 6, 8],
            [
                DeadLetter(7, "step", "ValueError", "odd"),
                DeadLetter(9, "step", "ValueError", "odd"),
            ],
        ],
        may_wait=True,
    )
    with pytest.raises(ItemFailedError) as caught:
        verify_processor(
            in_flight(fail_on_odd_items, 1), input=[2, 7], expect_output=[], may_wait=True
        )
    assert caught.value.item == 7


def test_several_batches_are_in_flight():
    async def meet(barrier, items):
        async with asyncio.timeout(60):
            await barrier.wait()  # for three of them
        return items

    p, out = Pipeline("flight"), sinks.collect()
    barrier = service(lambda context: asyncio.Barrier(3), lambda barrier: None)
    numbers = p.read_from(sources.items(range(6)))
    numbers.map_batched(meet, 2, max_concurrency=3, service=barrier).write_to(out)
    p.run(on="embedded", workers=1)
    assert out.items == list(range(6))
