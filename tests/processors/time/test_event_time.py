"""Watermarks, as one processor makes them of the partitions it reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core.items import IDLE, QuietWatermark, Watermark
from jetlet.errors import InvalidArgumentError, ItemFailedError
from jetlet.processors.time.event_time import (
    EventTimePolicy,
    WatermarkSource,
    bad_timestamp,
    check_times,
    timestamp_loop,
)


class Source(WatermarkSource):
    """Told the time in milliseconds, as a reader with nothing to do sees it: poll by poll."""

    def __init__(self, partitions=1, **policy):
        super().__init__(EventTimePolicy(**policy), range(partitions), 0)
        self._time = 0

    def until(self, time):
        emitted = ()
        while self._time < time:
            self._time = min(time, self._time + 10)
            self.polled(self._time * 1_000_000, has_seen_all=True)
            if self._time < time:
                emitted += super().check_idle()
        return emitted

    def observe(self, partition, highest, time):
        return self.until(time) + super().observe(partition, highest)

    def check_idle(self, time):
        return self.until(time) + super().check_idle()


source = Source


def test_a_watermark_is_the_highest_time_less_the_lag():
    watermarks = source(allowed_lag=10)
    assert watermarks.observe(0, 100, 0) == (Watermark(90),)
    assert watermarks.observe(0, 95, 0) == ()
    assert watermarks.observe(0, 101, 0) == (Watermark(91),)


def test_watermarks_are_multiples_of_the_step():
    watermarks = source(allowed_lag=10, step=50)
    assert watermarks.observe(0, 109, 0) == (Watermark(50),)
    assert watermarks.observe(0, 159, 0) == (Watermark(100),)
    assert watermarks.observe(0, 159, 0) == ()
    assert source(step=50).observe(0, -1, 0) == (Watermark(-50),)


def test_the_slowest_partition_counts():
    watermarks = source(2)
    assert watermarks.observe(0, 100, 0) == ()
    assert watermarks.observe(1, 50, 0) == (Watermark(50),)
    assert watermarks.observe(1, 120, 0) == (Watermark(100),)


def test_a_quiet_partition_is_not_waited_for_after_the_timeout():
    watermarks = source(2, idle_timeout=1000)
    watermarks.observe(0, 100, 10)
    watermarks.observe(1, 50, 900)
    assert watermarks.check_idle(1009) == ()
    assert watermarks.check_idle(1110) == ()
    assert watermarks.observe(1, 200, 1120) == (Watermark(200),)


def test_the_timeout_runs_from_the_start_where_nothing_ever_came():
    watermarks = source(2, idle_timeout=1000)
    watermarks.observe(0, 100, 500)
    assert watermarks.check_idle(999) == ()
    assert watermarks.check_idle(1100) == (Watermark(100),)


def test_when_all_are_idle_the_top_watermark_comes_and_then_the_idle_message():
    watermarks = source(2, idle_timeout=1000)
    watermarks.observe(0, 100, 0)
    watermarks.observe(1, 50, 0)
    assert watermarks.check_idle(1000) == (Watermark(100), IDLE)
    assert watermarks.check_idle(5000) == ()


def test_an_idle_partition_that_goes_on_is_waited_for_again():
    watermarks = source(2, idle_timeout=1000)
    watermarks.observe(0, 100, 0)
    watermarks.observe(1, 100, 0)
    watermarks.check_idle(1000)
    assert watermarks.observe(0, 90, 1500) == ()  # behind its own watermark, but awake
    assert watermarks.observe(0, 130, 1600) == (Watermark(130),)
    assert watermarks.observe(1, 120, 1700) == ()
    assert watermarks.observe(1, 140, 1800) == ()
    assert watermarks.observe(0, 150, 1900) == (Watermark(140),)
    assert watermarks.check_idle(2950) == (Watermark(150), IDLE)


@given(gaps=st.lists(st.integers(0, 10**10)), timeout=st.integers(2, 10**6))
def test_time_that_a_reader_is_held_up_does_not_count(gaps, timeout):
    watermarks = WatermarkSource(EventTimePolicy(idle_timeout=timeout), (0,), 0)
    now = counted = 0
    for gap in gaps:
        now += gap
        counted += min(gap, 200_000_000, timeout // 2 * 1_000_000)
        watermarks.polled(now, has_seen_all=True)
        is_idle = bool(watermarks.check_idle())
        assert not is_idle or counted >= timeout * 1_000_000
        if is_idle:
            break
    else:
        assert counted < (timeout + 100) * 1_000_000


def test_only_a_poll_that_finds_a_partition_empty_counts():
    watermarks = WatermarkSource(EventTimePolicy(idle_timeout=100), (0, 1), 0)
    for n in range(100):
        watermarks.polled(n * 20_000_000, has_seen_all=n < 3)
        watermarks.observe(0, n)
        assert watermarks.check_idle() == ()


def test_a_reader_has_the_last_word_on_whether_a_partition_is_quiet():
    watermarks = source(idle_timeout=100)
    watermarks.observe(0, 7, 0)
    watermarks.until(99)
    watermarks.polled(100_000_000, has_seen_all=True)
    assert WatermarkSource.check_idle(watermarks, lambda partition: False) == ()
    watermarks.polled(100_000_000, has_seen_all=True)
    assert WatermarkSource.check_idle(watermarks, lambda partition: True) == (IDLE,)


def test_time_follows_the_clock_once_all_partitions_are_idle():
    watermarks = source(2, idle_timeout=1000, follows_clock=True)
    watermarks.observe(0, 100, 0)
    watermarks.observe(1, 50, 500)
    told = watermarks.check_idle(1900)
    assert told[:2] == (Watermark(100), IDLE)
    assert told[-1] == QuietWatermark(400, 300)  # from when it was seen that all are quiet
    assert watermarks.observe(1, 60, 1950) == (QuietWatermark(500, 400), Watermark(60))[:1]
    assert QuietWatermark not in map(type, watermarks.check_idle(2800))
    told = watermarks.check_idle(3500)
    assert told[-1] == QuietWatermark(100 + told[-1].elapsed, told[-1].elapsed)
    assert told[-1].elapsed <= 600


def test_time_does_not_follow_the_clock_while_a_reader_is_held_up():
    watermarks = source(idle_timeout=1000, follows_clock=True)
    watermarks.observe(0, 100, 0)
    watermarks.check_idle(1100)
    watermarks.polled(10**15, has_seen_all=True)
    (told,) = WatermarkSource.check_idle(watermarks)
    assert told.elapsed <= 300


def test_time_stands_while_a_reader_does_not_agree_that_all_is_quiet():
    watermarks = source(idle_timeout=1000, follows_clock=True)
    watermarks.observe(0, 100, 0)
    watermarks.check_idle(1000)
    watermarks.polled(1_200_000_000, has_seen_all=True)
    assert WatermarkSource.check_idle(watermarks, lambda partition: False) == ()
    assert WatermarkSource.check_idle(watermarks, lambda partition: True) != ()


def test_without_a_timeout_nobody_is_ever_idle():
    watermarks = source(idle_timeout=0)
    assert watermarks.check_idle(10**6) == ()


def test_short_timeouts_are_looked_at_more_often():
    assert EventTimePolicy(idle_timeout=60_000).check_interval == 100
    assert EventTimePolicy(idle_timeout=20).check_interval == 20


def test_restored_watermarks_are_not_emitted_again():
    watermarks = source(2)
    watermarks.observe(0, 100, 0)
    watermarks.observe(1, 80, 0)
    restored = source(2)
    for partition in range(2):
        restored.restore(partition, watermarks.watermark_of(partition))
    assert restored.observe(1, 80, 0) == ()
    assert restored.observe(1, 99, 0) == (Watermark(99),)
    assert restored.watermark_of(0) == 100


@given(
    partitions=st.integers(1, 4),
    lag=st.integers(0, 50),
    step=st.integers(1, 50),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(-200, 1000))),
)
def test_watermarks_increase_and_no_partition_is_overtaken(partitions, lag, step, steps):
    watermarks = source(partitions, allowed_lag=lag, step=step)
    highest, emitted = dict.fromkeys(range(partitions), -(2**63)), []
    for partition, time in steps:
        partition %= partitions
        highest[partition] = max(time, highest[partition])
        for each in watermarks.observe(partition, time, 0):
            assert each.timestamp % step == 0
            assert each.timestamp <= min(highest.values()) - lag < each.timestamp + step
            emitted.append(each.timestamp)
    assert emitted == sorted(set(emitted))


def test_timestamps_of_many_items():
    assert timestamp_loop(lambda item: item["t"])([{"t": 1}, {"t": 2}]) == [1, 2]
    assert timestamp_loop(len)(["a", "bb"]) == [1, 2]


@pytest.mark.parametrize("bad", [None, 1.5, "2024-01-01", True])
def test_a_timestamp_that_is_no_int_is_refused(bad):
    check_times([1, 2], ["a", "b"], "step")
    with pytest.raises(ItemFailedError) as caught:
        check_times([1, bad], ["a", "b"], "step")
    assert (caught.value.item, caught.value.step) == ("b", "step")
    assert isinstance(caught.value.__cause__, InvalidArgumentError)
    assert "int(value.timestamp() * 1000)" in str(bad_timestamp(bad))
