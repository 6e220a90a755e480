from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.metrics.shares import Shares
from jetlet.metrics.stopwatch import Stopwatch

TIME = st.integers(0, 10**15)


@given(st.integers(1, 10**15), TIME, TIME)
def test_shares_add_up_to_one_however_the_times_were_read(elapsed, busy, blocked):
    shares = Shares.of(elapsed, busy, blocked)

    assert shares.busy + shares.blocked + shares.waiting == pytest.approx(1)
    assert min(shares.busy, shares.blocked, shares.waiting) >= 0


def test_shares_are_those_of_the_time():
    assert Shares.of(100, 50, 30) == Shares(0.5, 0.3, 0.2)
    assert Shares.of(100, 120, 30) == Shares(1.0, 0.0, 0.0)
    assert Shares.of(0, 0, 0) is None


def test_stopwatch_adds_up_and_shows_the_time_under_way():
    now = 0
    watch = Stopwatch(lambda: now)
    watch.stop()
    assert watch.ns == 0
    watch.start()
    now = 5
    watch.start()
    assert watch.ns == 5
    watch.stop()
    now = 20
    assert watch.ns == 5
    watch.start()
    now = 21
    assert watch.ns == 6


def test_stopwatch_never_goes_back_whenever_it_is_read():
    now, seen, is_reading = 0, [], False

    def clock():
        # In the middle of starting and stopping, as other threads do.
        nonlocal now, is_reading
        if not is_reading:
            is_reading = True
            seen.append(watch.ns)
            is_reading = False
        now += 1
        return now

    watch = Stopwatch(clock)
    for _ in range(3):
        watch.start()
        seen.append(watch.ns)
        watch.stop()
    assert seen == sorted(seen)
    assert seen[-1] > 0
