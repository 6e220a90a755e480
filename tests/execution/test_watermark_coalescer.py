"""One watermark out of several inputs: the minimum over those that are neither idle nor done."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core import IDLE, Watermark
from jetlet.core.items import MIN_TIMESTAMP, QuietWatermark
from jetlet.errors import ProcessorContractError
from jetlet.execution.watermark_coalescer import WatermarkCoalescer

IDLE_MESSAGE = IDLE.timestamp


def test_minimum_of_all_inputs_is_emitted_when_it_rises():
    coalescer = WatermarkCoalescer([0, 1])
    assert coalescer.observe_watermark(0, 10) == ()
    assert coalescer.observe_watermark(1, 5) == (Watermark(5),)
    assert coalescer.observe_watermark(0, 11) == ()
    assert coalescer.observe_watermark(1, 20) == (Watermark(11),)


def test_single_input_passes_through():
    coalescer = WatermarkCoalescer([0])
    assert coalescer.observe_watermark(0, 1) == (Watermark(1),)
    assert coalescer.observe_watermark(0, 2) == (Watermark(2),)


def test_inputs_may_have_any_numbers():
    coalescer = WatermarkCoalescer([3, 8])
    assert coalescer.observe_watermark(8, 1) == ()
    assert coalescer.observe_watermark(3, 1) == (Watermark(1),)


@pytest.mark.parametrize("timestamp", [5, 4])
def test_watermark_of_an_input_must_increase(timestamp):
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(0, 5)
    with pytest.raises(ProcessorContractError, match=f"{timestamp} follows 5"):
        coalescer.observe_watermark(0, timestamp)


def test_idle_input_is_not_waited_for():
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(0, 10)
    assert coalescer.observe_watermark(1, IDLE_MESSAGE) == (Watermark(10),)


def test_all_idle_emits_the_top_watermark_and_then_the_idle_message():
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(0, 10)
    coalescer.observe_watermark(1, 5)
    assert coalescer.observe_watermark(0, IDLE_MESSAGE) == ()
    assert coalescer.observe_watermark(1, IDLE_MESSAGE) == (Watermark(10), IDLE)


def test_all_idle_without_any_watermark_is_only_the_idle_message():
    coalescer = WatermarkCoalescer([0, 1])
    assert coalescer.observe_watermark(0, IDLE_MESSAGE) == ()
    assert coalescer.observe_watermark(1, IDLE_MESSAGE) == (IDLE,)
    assert coalescer.observe_watermark(1, IDLE_MESSAGE) == ()


def test_event_ends_idleness_without_a_watermark():
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(1, 5)
    coalescer.observe_watermark(1, IDLE_MESSAGE)
    assert coalescer.has_idle_inputs
    coalescer.observe_event(1)
    assert not coalescer.has_idle_inputs
    assert coalescer.observe_watermark(0, 10) == (Watermark(5),)


def test_idle_is_announced_again_after_an_event():
    coalescer = WatermarkCoalescer([0])
    assert coalescer.observe_watermark(0, IDLE_MESSAGE) == (IDLE,)
    coalescer.observe_event(0)
    assert coalescer.observe_watermark(0, IDLE_MESSAGE) == (IDLE,)


def test_input_back_from_idle_does_not_turn_time_back():
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(1, IDLE_MESSAGE)
    assert coalescer.observe_watermark(0, 100) == (Watermark(100),)
    assert coalescer.observe_watermark(1, 50) == ()
    assert coalescer.observe_watermark(1, 101) == ()
    assert coalescer.observe_watermark(0, 102) == (Watermark(101),)


def test_done_input_releases_a_watermark():
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(0, 10)
    assert coalescer.observe_done(1) == (Watermark(10),)


def test_last_active_input_done_leaves_the_idle_ones_idle():
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(0, 10)
    coalescer.observe_watermark(0, IDLE_MESSAGE)
    assert coalescer.observe_done(1) == (Watermark(10), IDLE)


def test_end_of_the_last_input_emits_nothing():
    coalescer = WatermarkCoalescer([0])
    coalescer.observe_watermark(0, 10)
    assert coalescer.observe_done(0) == ()


class Model:
    """The definition, computed anew from all that was observed."""

    def __init__(self, count):
        self.watermarks = dict.fromkeys(range(count), MIN_TIMESTAMP)
        self.idle = set()
        self.top = self.last = MIN_TIMESTAMP
        self.said_idle = False

    def event(self, index):
        if index in self.idle:
            self.idle.remove(index)
            self.said_idle = False

    def watermark(self, index, timestamp):
        self.event(index)
        self.watermarks[index] = timestamp
        self.top = max(self.top, timestamp)
        return self.output()

    def goes_idle(self, index):
        self.idle.add(index)
        return self.output()

    def done(self, index):
        del self.watermarks[index]
        self.idle.discard(index)
        return self.output()

    def output(self):
        if not self.watermarks:
            return []
        awake = [self.watermarks[i] for i in self.watermarks if i not in self.idle]
        if awake:
            return self.rise_to(min(awake))
        if self.said_idle:
            return []
        self.said_idle = True
        return [*self.rise_to(self.top), IDLE]

    def rise_to(self, timestamp):
        if timestamp <= self.last:
            return []
        self.last = timestamp
        return [Watermark(timestamp)]


STEPS = st.tuples(
    st.sampled_from(["watermark", "watermark", "watermark", "idle", "event", "done"]),
    st.integers(0, 3),
    st.integers(1, 10),
)


@settings(max_examples=500)
@given(st.integers(1, 4), st.lists(STEPS, max_size=50))
def test_coalescer_follows_the_definition(count, steps):
    coalescer, model = WatermarkCoalescer(range(count)), Model(count)
    emitted = []
    for name, index, amount in steps:
        if index not in model.watermarks:
            continue
        if name == "watermark":
            timestamp = max(model.watermarks[index], 0) + amount
            output = coalescer.observe_watermark(index, timestamp)
            assert list(output) == model.watermark(index, timestamp)
        elif name == "idle":
            output = coalescer.observe_watermark(index, IDLE_MESSAGE)
            assert list(output) == model.goes_idle(index)
        elif name == "done":
            output = coalescer.observe_done(index)
            assert list(output) == model.done(index)
        else:
            coalescer.observe_event(index)
            model.event(index)
            output = ()
        assert coalescer.has_idle_inputs == bool(model.idle)
        emitted += output
    timestamps = [w.timestamp for w in emitted if w is not IDLE]
    assert timestamps == sorted(set(timestamps)), "each watermark is above the one before"


def test_time_goes_on_with_the_input_that_was_the_last_to_become_idle():
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(0, 10)
    coalescer.observe_watermark(1, 5)
    coalescer.observe_watermark(0, IDLE_MESSAGE)
    assert coalescer.observe(0, QuietWatermark(1010, 1000)) == ()  # the other one is awake
    assert coalescer.observe_watermark(1, 7) == (Watermark(7),)
    assert coalescer.observe_watermark(1, IDLE_MESSAGE) == (Watermark(10), IDLE)
    assert coalescer.observe(1, QuietWatermark(107, 100)) == (QuietWatermark(110, 100),)
    assert coalescer.observe(0, QuietWatermark(1110, 1100)) == ()
    assert coalescer.observe(1, QuietWatermark(207, 200)) == (QuietWatermark(210, 200),)
    coalescer.observe_event(1)
    assert coalescer.observe(0, QuietWatermark(1210, 1200)) == ()
    assert coalescer.observe_watermark(1, 150) == ()  # behind what was told
    assert coalescer.observe_watermark(1, 300) == (Watermark(300),)


def test_an_input_that_only_waits_holds_time():
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(0, 10)
    coalescer.observe_watermark(0, IDLE_MESSAGE)
    coalescer.observe_watermark(1, IDLE_MESSAGE)
    assert coalescer.observe(0, QuietWatermark(110, 100)) == ()
    assert coalescer.observe_done(1) == (QuietWatermark(110, 100),)


def test_inputs_that_have_seen_no_event_do_not_say_how_far_time_is():
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(0, 10)
    coalescer.observe(0, QuietWatermark(20, 10))
    quiet = QuietWatermark(MIN_TIMESTAMP + 50, 50)
    assert coalescer.observe(1, quiet) == (Watermark(10), IDLE, QuietWatermark(20, 10))
