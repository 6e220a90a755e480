from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core import DAG, Inbox, Processor, ProcessorContext, Watermark, between
from jetlet.errors import InvalidArgumentError, ItemFailedError, JobFailedError
from jetlet.jobs.embedded import EmbeddedEngine
from jetlet.pipeline.errors import DeadLetter
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.service_map import BLOCKING_TURN_NS, ServiceSupplier
from jetlet.testing import ManualClock, verify_processor
from jetlet.testing.outbox import CheckedOutbox

FAIL = ErrorPolicy("step")
SKIP = ErrorPolicy("step", "skip")
DEAD_LETTER = ErrorPolicy("step", "dead-letter", 1)


@dataclass
class Rates:
    """A service that knows a factor."""

    factor: int = 10
    is_closed: bool = False

    def times(self, item):
        assert not self.is_closed
        return self.factor * item


@dataclass
class Services:
    """Counts what is made and given back."""

    made: list = field(default_factory=list)
    contexts: list = field(default_factory=list)

    def create(self, context):
        self.contexts.append(context)
        self.made.append(Rates())
        return self.made[-1]

    def destroy(self, service):
        assert not service.is_closed, "given back twice"
        service.is_closed = True

    @property
    def open(self):
        return [service for service in self.made if not service.is_closed]


def supplier(
    kind, fn, policy=FAIL, *, services=None, shared=True, blocking=False, data_ordinals=None
):
    services = services or Services()
    factory = ServiceFactory(services.create, services.destroy, shared, blocking)
    return ServiceSupplier(kind, fn, factory, policy=policy, data_ordinals=data_ordinals)


KINDS = {
    "map": (lambda rates, item: rates.times(item), lambda items: [10 * item for item in items]),
    "filter": (
        lambda rates, item: rates.times(item) > 20,
        lambda items: [item for item in items if item > 2],
    ),
    "flat_map": (
        lambda rates, item: (rates.times(item) for _ in range(item)),
        lambda items: [10 * item for item in items for _ in range(item)],
    ),
}


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("policy", [FAIL, SKIP])
@pytest.mark.parametrize("kind", KINDS)
def test_function_gets_the_service_and_each_item(kind, policy, shared, blocking):
    fn, expected = KINDS[kind]

    @settings(max_examples=15)
    @given(items=st.lists(st.integers(0, 5), max_size=6))
    def check(items):
        services = Services()
        verify_processor(
            supplier(kind, fn, policy, services=services, shared=shared, blocking=blocking),
            input=[*items, Watermark(1)],
            expect_output=[*expected(items), Watermark(1)],
        )
        assert services.made
        assert not services.open

    check()


def test_none_is_an_ordinary_item_and_result():
    verify_processor(
        supplier("map", lambda rates, item: item), input=[None, 1], expect_output=[None, 1]
    )


def halve(rates, item):
    if item % 2:
        raise ValueError(f"odd: {item}")
    return [item // 2] * 2


def halve_lazily(rates, item):
    """Fails in the middle of its results."""
    yield item // 2
    if item % 2:
        raise ValueError(f"odd: {item}")
    yield item // 2


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_error_names_the_item(kind, blocking):
    fn = halve_lazily if kind == "flat_map" else halve
    with pytest.raises(ItemFailedError) as caught:
        verify_processor(
            supplier(kind, fn, blocking=blocking), input=[2, 4, 5, 6], expect_output=[]
        )
    assert (caught.value.item, caught.value.step) == (5, "step")
    assert isinstance(caught.value.__cause__, ValueError)


def test_stop_iteration_from_the_function_is_an_error_like_any_other():
    def stop(rates, item):
        raise StopIteration

    for kind in KINDS:
        with pytest.raises(ItemFailedError) as caught:
            verify_processor(supplier(kind, stop), input=[1, 2], expect_output=[])
        assert caught.value.item == 1


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(
    ("kind", "fn", "results"),
    [("map", halve, [[1, 1]]), ("filter", halve, [2]), ("flat_map", halve_lazily, [0, 1, 1, 1])],
)
def test_items_that_fail_may_be_skipped_or_become_dead_letters(kind, fn, results, blocking):
    verify_processor(
        supplier(kind, fn, SKIP, blocking=blocking), input=[1, 2, 3], expect_output=results
    )
    verify_processor(
        supplier(kind, fn, DEAD_LETTER, blocking=blocking, data_ordinals=(0,)),
        input=[1, 2, 3],
        expect_outputs=[
            results,
            [DeadLetter(n, "step", "ValueError", f"odd: {n}") for n in (1, 3)],
        ],
    )


def test_skipped_items_are_counted():
    counts = Counter()
    context = ProcessorContext(count=lambda name, amount: counts.update({name: amount}))
    made = supplier("map", halve, SKIP)
    made.init(context)
    processor = made.get()
    processor.init(CheckedOutbox(1, is_tight=False), context)
    processor.process(0, Inbox([1, 2, 3]))
    processor.close()
    made.close(None)
    assert counts == {"skipped": 2}


# --- Life --------------------------------------------------------------------------------------


def test_shared_service_is_made_once_for_all_processors():
    services = Services()
    made = supplier("map", halve, services=services)
    made.init(ProcessorContext(vertex_name="v"))
    processors = [made.get() for _ in range(3)]
    for processor in processors:
        processor.init(CheckedOutbox(1, is_tight=False), ProcessorContext())
    assert len(services.made) == 1
    assert services.contexts[0].vertex_name == "v"
    for processor in processors:
        processor.close()
    assert services.open
    made.close(None)
    assert not services.open


def test_own_service_is_made_for_each_processor():
    services = Services()
    made = supplier("map", halve, services=services, shared=False)
    made.init(ProcessorContext())
    processors = [made.get() for _ in range(3)]
    assert not services.made
    for index, processor in enumerate(processors):
        processor.init(CheckedOutbox(1, is_tight=False), ProcessorContext(local_index=index))
    assert [context.local_index for context in services.contexts] == [0, 1, 2]
    for left in (2, 1, 0):
        processors[left].close()
        assert len(services.open) == left
    made.close(None)
    assert len(services.made) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_service_that_cannot_be_made_is_not_given_back(shared):
    given_back = []

    def create(context):
        raise ConnectionError("no server")

    factory = ServiceFactory(create, given_back.append, is_shared=shared)
    made = ServiceSupplier("map", halve, factory, policy=FAIL)
    with pytest.raises(ConnectionError):
        verify_processor(made, input=[], expect_output=[])
    assert given_back == []


def test_service_may_be_none():
    given_back = []
    factory = ServiceFactory(lambda context: None, given_back.append)
    made = ServiceSupplier("map", lambda none, item: item, factory, policy=FAIL)
    verify_processor(made, input=[1], expect_output=[1], snapshots=False, columns=False)
    assert given_back == [None] * 4


def test_destroy_is_optional():
    factory = ServiceFactory(lambda context: Rates())
    made = ServiceSupplier("map", lambda rates, item: rates.times(item), factory, policy=FAIL)
    verify_processor(made, input=[1], expect_output=[10])


def test_supplier_travels_without_its_service():
    class Connection:
        def __reduce__(self):
            raise TypeError("a connection stays where it is")

    factory = ServiceFactory(lambda context: Connection())
    made = ServiceSupplier("map", lambda connection, item: item, factory, policy=FAIL)
    made.init(ProcessorContext())
    copy = cloudpickle.loads(cloudpickle.dumps(made))
    made.close(None)
    verify_processor(copy, input=[1], expect_output=[1])


# --- Blocking ----------------------------------------------------------------------------------


def test_blocking_processor_returns_in_time_and_resumes():
    clock = ManualClock()
    context = ProcessorContext(clock=clock)
    seen = []

    def slow(rates, item):
        clock.advance(ns=BLOCKING_TURN_NS // 3)
        seen.append(item)
        return item

    made = supplier("map", slow, blocking=True)
    made.init(context)
    processor = made.get()
    assert not processor.is_cooperative
    outbox = CheckedOutbox(1, is_tight=False)
    processor.init(outbox, context)
    inbox = Inbox(list(range(7)))
    sizes = []
    while inbox:
        outbox.begin_call()
        processor.process(0, inbox)
        outbox.end_call()
        sizes.append(len(inbox))
    processor.close()
    made.close(None)
    assert sizes == [7, 0]
    assert seen == outbox.outputs[0] == list(range(7))


def test_processor_is_cooperative_unless_told_otherwise():
    made = supplier("map", halve)
    made.init(ProcessorContext())
    assert made.get().is_cooperative
    made.close(None)


# --- What users write --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fold", halve, ServiceFactory(Rates)), "'map', 'filter' or 'flat_map'"),
        (("map", halve, ServiceFactory(None)), "create is None: write a function"),
        (("filter", 3, ServiceFactory(Rates)), "filter_using_service: fn=3"),
    ],
)
def test_what_cannot_work_is_refused(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        ServiceSupplier(*arguments, policy=FAIL)


# --- On the engine -----------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_services_are_given_back_when_the_job_fails(shared, blocking):
    services = Services()

    class Source(Processor):
        def complete(self):
            return self.outbox.offer_batch([2, 4, 5])

    class Sink(Processor):
        def process(self, ordinal, inbox):
            inbox.clear()

    dag = DAG("services")
    step = supplier("map", halve, services=services, shared=shared, blocking=blocking)
    source = dag.new_vertex("source", Source, 1)
    halving = dag.new_vertex("halving", step, 2)
    sink = dag.new_vertex("sink", Sink, 1)
    dag.edge(between(source, halving)).edge(between(halving, sink))
    with EmbeddedEngine() as engine:
        job = engine.submit(dag)
        with pytest.raises(JobFailedError, match=r"'halving'.*on item 5: ValueError"):
            job.join(60)
    assert len(services.made) == (1 if shared else 2)
    assert not services.open
