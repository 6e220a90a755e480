"""What an item expands into is handed on bit by bit, however long it is and whatever makes it."""

from __future__ import annotations

import itertools
import threading
from functools import partial

import pytest

from jetlet import EmbeddedEngine, Pipeline, service, sinks, sources, whole_item
from jetlet.core.inbox import Inbox
from jetlet.core.processor import ProcessorContext
from jetlet.errors import JobCancelledError
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.fused import FusedProcessor, Step, fuse
from jetlet.testing import verify_processor
from jetlet.testing.outbox import CheckedOutbox

NOTHING = service(lambda context: None)
WAITING = service(lambda context: None, blocking=True)

STAGES = {
    "flat_map": lambda s, fn: s.flat_map(fn),
    "flat_map among others": lambda s, fn: s.map(abs).flat_map(fn).map(whole_item).filter(str),
    "two": lambda s, fn: s.flat_map(lambda x: [x]).flat_map(fn),
    "the first of two": lambda s, fn: s.flat_map(fn).flat_map(lambda x: (x,)),
    "on_error": lambda s, fn: s.flat_map(fn, on_error="skip").map(abs, on_error="skip"),
    "with a service": lambda s, fn: s.flat_map_using_service(NOTHING, lambda none, x: fn(x)),
    "with a service that blocks": lambda s, fn: s.flat_map_using_service(
        WAITING, lambda none, x: fn(x)
    ),
    "with state": lambda s, fn: s.flat_map_stateful(list, lambda state, x: fn(x)),
    "with state by key": lambda s, fn: s.grouping_key(abs).flat_map_stateful(
        list, lambda state, key, x: fn(x)
    ),
    "behind timestamps": lambda s, fn: s.add_timestamps(abs).flat_map(fn),
    "with a service behind timestamps": lambda s, fn: s.add_timestamps(abs).flat_map_using_service(
        NOTHING, lambda none, x: fn(x)
    ),
    "with state that expires": lambda s, fn: (
        s.add_timestamps(abs)
        .grouping_key(abs)
        .flat_map_stateful(list, lambda state, key, x: fn(x), ttl=1000)
    ),
}


@pytest.fixture(params=STAGES)
def expanded(request):
    return STAGES[request.param]


def test_an_endless_one_holds_up_nobody_and_can_be_cancelled(expanded):
    has_come, other_has_come, was_closed = (threading.Event() for _ in range(3))

    def endless(x):
        try:
            yield from itertools.count()
        finally:
            was_closed.set()

    def take(x):
        if x > 20_000:
            has_come.set()

    p = Pipeline("endless")
    expanded(p.read_from(sources.items([1])), endless).write_to(sinks.client(take))
    p.read_from(sources.items(range(10_000))).map(abs).write_to(
        sinks.client(lambda x: x < 9_999 or other_has_come.set())
    )
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(p)
        assert has_come.wait(30)
        assert other_has_come.wait(30)
        job.cancel()
        with pytest.raises(JobCancelledError):
            job.join(30)
    assert was_closed.wait(30)


LENGTHS = [0, 1, 5, 31, 32, 33, 1023, 1024, 1025, 0, 2048, 9000, 3]


@pytest.mark.parametrize("kind", ["range", "generator", "list", "mixed"])
def test_all_results_come_in_order(expanded, kind):
    def make(x):
        results = range(x * 10_000, x * 10_000 + LENGTHS[x % len(LENGTHS)])
        forms = [results, iter(results), list(results), tuple(results), (y for y in results)]
        return forms[{"range": 0, "generator": 4, "list": 2, "mixed": x % 5}[kind]]

    p, out = Pipeline("all", preserve_order=True), sinks.collect()
    expanded(p.read_from(sources.items(range(40))), make).write_to(out)
    with EmbeddedEngine(workers=1) as engine:
        engine.submit(p).join(60)
    expected = [x * 10_000 + n for x in range(40) for n in range(LENGTHS[x % len(LENGTHS)])]
    assert sorted(out.items) == expected
    of_each = [[x for x in out.items if x // 10_000 == item] for item in range(40)]
    assert list(itertools.chain.from_iterable(of_each)) == expected


def processor(*steps):
    return partial(FusedProcessor, fuse([Step(kind, fn, POLICY) for kind, fn in steps]))


POLICY = ErrorPolicy("step")


def test_processor_under_all_conditions():
    verify_processor(
        processor(
            ("map", abs),
            ("flat_map", lambda x: (y for y in range(x))),
            ("filter", lambda x: x % 2),
            ("flat_map", lambda x: iter([x, -x])),
            ("map", str),
        ),
        input=[3000, 2, -5],
        expect_output=[str(y) for n in (3000, 2, 5) for x in range(1, n, 2) for y in (x, -x)],
    )


def test_no_more_is_drawn_than_is_handed_on():
    drawn = itertools.count()
    run = processor(("flat_map", lambda x: (next(drawn) for _ in itertools.count())))()
    outbox = CheckedOutbox(1, is_tight=False)
    run.init(outbox, ProcessorContext())
    inbox = Inbox([1, 2])
    for _ in range(10):
        outbox.begin_call()
        run.process(0, inbox)
        outbox.end_call()
        assert len(inbox) == 2
        assert next(drawn) - len(outbox.outputs[0]) <= 2048 + 10
    run.close()


@pytest.mark.parametrize("length", [0, 3, 5000])
def test_what_came_before_an_error_stands(length):
    def fail_late(x):
        yield from range(length)
        raise ValueError(x)

    def run(how):
        p, out, letters = Pipeline("half"), sinks.collect(), sinks.collect(name="letters")
        how(p.read_from(sources.items([7, 8])), letters).write_to(out)
        with EmbeddedEngine(workers=1) as engine:
            engine.submit(p).join(30)
        assert sorted(out.items) == sorted([*range(length)] * 2)
        assert sorted(letter.item for letter in letters.items) == [7, 8]

    run(lambda s, e: s.flat_map(fail_late, on_error=e))
    run(lambda s, e: s.flat_map(fail_late, on_error=e).map(abs))
    run(lambda s, e: s.add_timestamps(abs).flat_map(fail_late, on_error=e))
    run(lambda s, e: s.flat_map_using_service(NOTHING, lambda _, x: fail_late(x), on_error=e))
    run(lambda s, e: s.flat_map_using_service(WAITING, lambda _, x: fail_late(x), on_error=e))
    run(lambda s, e: s.flat_map_stateful(list, lambda _, x: fail_late(x), on_error=e))
    run(
        lambda s, e: (
            s.add_timestamps(abs)
            .grouping_key(abs)
            .flat_map_stateful(list, lambda state, key, x: fail_late(x), ttl=10, on_error=e)
        )
    )
