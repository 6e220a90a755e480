"""Silence: only the time counts in which somebody listened."""

from __future__ import annotations

from jetlet.network.silence import Silence


def test_silence_grows_until_something_is_heard():
    silence = Silence(1.0, 0.0)
    assert [silence.look(now) for now in (1.0, 2.0, 3.0)] == [1.0, 2.0, 3.0]
    silence.heard(3.5)
    assert [silence.look(now) for now in (4.0, 5.0)] == [0.5, 1.5]


def test_time_in_which_this_process_was_held_up_does_not_count():
    silence = Silence(1.0, 0.0)
    assert silence.look(1.0) == 1.0
    # Stopped for an hour: what the other side said meanwhile has yet to be read.
    assert silence.look(3602.0) == 2.0
    assert silence.look(3603.0) == 3.0


def test_what_was_heard_right_after_a_pause_is_not_in_the_future():
    silence = Silence(1.0, 0.0)
    silence.look(1.0)
    silence.heard(99.9)
    assert silence.look(100.0) == 0.0
    assert silence.look(101.0) == 0.0


def test_looks_that_are_a_little_late_do_not_add_up():
    silence = Silence(1.0, 0.0)
    now = 0.0
    for _ in range(10):
        now += 1.4
        last = silence.look(now)
    assert round(last, 6) == 14.0
