"""The receive window: what the reference says it does, and the arithmetic under it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetlet.network.receive_window import (
    ACK_PERIOD_NS,
    INITIAL_WINDOW,
    UNIT_BITS,
    ReceiveWindow,
    compress,
    is_within,
    weigh,
    wrap,
)

UNIT = 1 << UNIT_BITS


class Driven:
    """A window that is asked once per period."""

    def __init__(self, processed=0):
        self.window = ReceiveWindow()
        self.processed = processed
        self.now = 0
        self.limit = self.window.limit(processed, 0, is_starved=True)

    def period(self, units, *, is_starved=False, periods=1.0):
        self.processed += units * UNIT
        self.now += int(ACK_PERIOD_NS * periods)
        self.limit = self.window.limit(self.processed, self.now, is_starved=is_starved)
        return self.window.size


def test_without_data_the_window_stays():
    driven = Driven()
    assert [driven.period(0, is_starved=True) for _ in range(20)] == [INITIAL_WINDOW] * 20
    assert driven.limit == INITIAL_WINDOW


def test_first_call_only_records_a_baseline():
    window = ReceiveWindow()
    assert window.limit(5000 * UNIT, 123_456, is_starved=False) == 5000 + INITIAL_WINDOW
    assert window.size == INITIAL_WINDOW
    window.limit(6000 * UNIT, 123_456 + ACK_PERIOD_NS, is_starved=False)
    assert window.size == (INITIAL_WINDOW + 3000) // 2


def test_steady_flow_converges_to_three_periods_within_two_seconds():
    driven = Driven()
    sizes = [driven.period(1000) for _ in range(20)]
    assert abs(sizes[-1] - 3000) <= 2
    assert sizes == sorted(sizes)


def test_slower_flow_converges_from_above():
    driven = Driven()
    for _ in range(20):
        driven.period(1000)
    sizes = [driven.period(100) for _ in range(20)]
    assert abs(sizes[-1] - 300) <= 2
    assert sizes == sorted(sizes, reverse=True)


def test_hiccup_closes_the_window_and_it_recovers_with_one_acknowledgement():
    driven = Driven()
    for _ in range(20):
        driven.period(1000)
    for _ in range(20):
        size = driven.period(0)
    assert size in {0, 1}
    # What had come before the stall is worked off at once, and makes up for it.
    assert driven.period(3000) >= 3000


def test_window_does_not_shrink_while_the_receiver_is_starved():
    driven = Driven()
    for _ in range(20):
        size = driven.period(1000)
    assert driven.period(10, is_starved=True) == size
    assert driven.period(0, is_starved=True) == size
    assert driven.period(2000, is_starved=True) > size
    assert driven.period(10, is_starved=False) < size


def test_rate_is_normalised_to_the_period():
    late, early, steady = Driven(), Driven(), Driven()
    for _ in range(20):
        late.period(2000, periods=2)
        early.period(500, periods=0.5)
        steady.period(1000)
    assert late.window.size == early.window.size == steady.window.size


def test_two_calls_at_the_same_moment_change_nothing():
    driven = Driven()
    size = driven.period(1000)
    assert driven.period(1000, periods=0) == size
    assert driven.limit == 2000 + size


def test_stalled_window_keeps_its_last_unit():
    # -1 // 2 is -1: a window that is rounded down would lose it.
    driven = Driven()
    driven.window.size = 1
    assert driven.period(0) == 1


def test_sequence_numbers_wrap_around():
    edge = 2**31
    assert compress((edge - 1) * UNIT) == edge - 1
    assert compress(edge * UNIT) == -edge
    assert compress((2 * edge + 5) * UNIT) == 5
    # The limit has wrapped around and the sequence has not yet, and the other way round.
    limit = wrap(edge - 10 + 100)
    assert limit < 0
    assert is_within((edge - 5) * UNIT, limit)
    assert is_within((edge + 90) * UNIT, limit)
    assert not is_within((edge + 91) * UNIT, limit)


@given(
    st.integers(0, 2**50), st.integers(0, 2**24), st.integers(0, 2**24), st.integers(0, UNIT - 1)
)
def test_limits_mean_the_same_anywhere_on_the_number_line(base, window, ahead, rest):
    sent = (base + ahead) * UNIT + rest
    assert is_within(sent, wrap(base + window)) == (ahead <= window)


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=50))
def test_window_is_never_negative_and_the_limit_never_below_what_was_processed(steps):
    driven = Driven()
    for units, is_starved in steps:
        assert driven.period(units, is_starved=is_starved) >= 0
        assert wrap(driven.limit - compress(driven.processed)) == driven.window.size


def test_limit_survives_the_wrap_around():
    driven = Driven((2**31 - 1500) * UNIT)
    for _ in range(20):
        driven.period(1000, is_starved=True)
    assert driven.limit == wrap(driven.processed // UNIT + driven.window.size)
    assert is_within(driven.processed, driven.limit)
    assert not is_within(driven.processed + (driven.window.size + 1) * UNIT, driven.limit)


def test_items_weigh_more_than_their_bytes():
    assert weigh(100, 1) > 100
    assert weigh(100, 10) > weigh(100, 1)
