from __future__ import annotations

import pickle

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import sources
from jetlet.core.items import Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.processors.time.event_time import EventTimePolicy
from jetlet.testing import verify_processor
from jetlet.testing.clock import ManualClock


def open_reader(source, clock):
    source = pickle.loads(cloudpickle.dumps(source))
    return source.open(source.partitions(), ProcessorContext(clock=clock))


def events(polled):
    return [
        (time, item)
        for each in polled
        for time, item in zip(each.timestamps, each.items, strict=True)
    ]


def test_items_become_due_by_the_clock():
    clock = ManualClock(1000)
    reader = open_reader(sources.item_stream(100), clock)
    assert events(reader.poll(10)) == [(1000, 0)]
    assert reader.poll(10) == ()
    clock.advance(ms=9)
    assert reader.poll(10) == ()
    clock.advance(ms=1)
    assert events(reader.poll(10)) == [(1010, 1)]
    clock.advance(ms=25)
    assert events(reader.poll(10)) == [(1020, 2), (1030, 3)]


def test_items_are_made_of_sequence_and_timestamp():
    reader = open_reader(sources.item_stream(2, lambda n, time: f"{n}@{time}"), ManualClock(5))
    assert events(reader.poll(1)) == [(5, "0@5")]


def test_catches_up_after_a_pause_with_the_timestamps_it_should_have_had():
    clock = ManualClock()
    reader = open_reader(sources.item_stream(1000), clock)
    clock.advance(5)
    found = []
    while polled := reader.poll(512):
        assert len(polled[0].items) <= 512
        found += events(polled)
    assert found == [(i, i) for i in range(5001)]


@given(
    st.one_of(st.integers(1, 10**6), st.sampled_from([0.5, 0.1, 1 / 3, 29.97])),
    st.lists(st.integers(0, 3 * 10**8), max_size=20),
)
def test_rate_is_exact_however_it_is_polled(rate, steps):
    clock = ManualClock(10**12)
    reader = open_reader(sources.item_stream(rate), clock)
    found = 0
    for step in [0, *steps]:
        clock.advance(ns=step)
        while polled := reader.poll(10**6):
            for time, item in events(polled):
                assert item == found
                assert time <= clock.time_ms()
                assert abs(time - 10**12 - item * 1000 / rate) <= 1 + item / 1000
                found += 1
    elapsed = sum(steps) / 1e9
    assert abs(found - 1 - elapsed * rate) <= 1 + elapsed * rate * 1e-6


def test_resumed_stream_goes_on_with_the_same_items():
    clock = ManualClock(1000)
    source = sources.item_stream(100)
    reader = open_reader(source, clock)
    reader.poll(10)
    saved = pickle.loads(pickle.dumps(reader.save()))
    clock.advance(ms=35)
    resumed = open_reader(source, clock)
    resumed.restore(saved)
    assert events(resumed.poll(10)) == events(reader.poll(10)) == [(1010, 1), (1020, 2), (1030, 3)]
    anew = open_reader(source, clock)
    anew.restore([None])
    assert events(anew.poll(10)) == [(1035, 0)]


def test_as_a_processor():
    class Running(ManualClock):
        """Goes on by 10 ms whenever it is looked at."""

        def monotonic_ns(self):
            self.advance(ms=10)
            return super().monotonic_ns()

    timestamps = Timestamps("native", policy=EventTimePolicy(step=10))
    supplier = StreamReadSupplier(sources.item_stream(100, lambda n, _: f"#{n}"), timestamps)
    supplier.prepare(1)

    def compare(expected, actual):
        times = [e[0] for e in actual if not isinstance(e, Watermark)]
        assert times == sorted(set(times))
        assert [e[1] for e in actual if not isinstance(e, Watermark)][:3] == ["#0", "#1", "#2"]

    verify_processor(
        supplier,
        expect_output=[None] * 20,
        compare=compare,
        endless=True,
        may_wait=True,
        context=ProcessorContext(clock=Running()),
    )


def test_says_what_it_is():
    source = sources.item_stream(10)
    assert source.has_native_timestamps and source.is_replayable and not source.is_blocking
    assert source.name == "item-stream(10/s)"
    assert sources.item_stream(10, name="mine").name == "mine"


@pytest.mark.parametrize("rate", [0, -1, "10", None, True, float("inf"), float("nan"), 1e10, 1e-9])
def test_rates_that_cannot_work_are_refused(rate):
    with pytest.raises(InvalidArgumentError, match=r"sources\.item_stream.*write"):
        sources.item_stream(rate)


def test_create_must_be_a_function():
    with pytest.raises(InvalidArgumentError, match=r"sources\.item_stream: create=5: write"):
        sources.item_stream(1, 5)
