from __future__ import annotations

import pytest

from jetlet.errors import InvalidArgumentError
from jetlet.testing import ManualClock


def test_time_stands_still_until_it_is_advanced():
    clock = ManualClock(time_ms=1_000)
    assert (clock.monotonic_ns(), clock.time_ms()) == (0, 1_000)
    assert (clock.monotonic_ns(), clock.time_ms()) == (0, 1_000)


def test_advance_adds_up_all_units():
    clock = ManualClock(time_ms=1_000)
    clock.advance(1.5, ms=20, ns=3)
    clock.advance(ms=1)
    assert clock.monotonic_ns() == 1_521_000_003
    assert clock.time_ms() == 2_521


def test_time_does_not_go_back():
    clock = ManualClock()
    with pytest.raises(InvalidArgumentError, match="go back"):
        clock.advance(-1)
    assert clock.monotonic_ns() == 0
