"""CompletedMessages: when the event loop is told of what coroutines have completed."""

from __future__ import annotations

import time

import pytest

from jetlet.tasks.loop.coroutines import CompletedMessages


class Turns:
    """An asyncio loop whose turns are taken by hand."""

    def __init__(self):
        self.soon = []
        self.later = []

    def call_soon(self, function):
        self.soon.append(function)

    def call_later(self, delay, function):
        self.later.append(function)

    def turn(self):
        due, self.soon = self.soon, []
        for function in due:
            function()

    def tick(self):
        due, self.later = self.later, []
        for function in due:
            function()


@pytest.fixture
def loop():
    return Turns()


@pytest.fixture
def wakes():
    return []


@pytest.fixture
def completed(loop, wakes):
    return CompletedMessages(loop, lambda: wakes.append(completed))


def test_all_that_ends_in_a_turn_is_announced_once(completed, loop, wakes):
    for _ in range(3):
        completed.announce(at_once=True)
    assert not wakes
    loop.turn()
    assert len(wakes) == 1
    assert completed.has_news


def test_what_nobody_waits_for_is_announced_a_little_later(completed, loop, wakes):
    completed.runners.append(object())
    completed.announce(at_once=False)
    completed.announce(at_once=False)
    loop.turn()
    assert not wakes
    loop.tick()
    assert len(wakes) == 1


def test_nothing_is_announced_that_the_event_loop_has_taken_meanwhile(completed, loop, wakes):
    completed.announce(at_once=False)
    loop.tick()
    assert not wakes


def test_an_event_loop_that_was_told_and_does_not_come_is_let_in(
    completed, loop, wakes, monkeypatch
):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    completed.announce(at_once=True)
    loop.turn()
    loop.tick()
    assert len(pauses) == 1
    completed.has_news = False
    completed.announce(at_once=True)
    loop.turn()
    completed.has_news = False  # it has come
    loop.tick()
    assert len(pauses) == 1
    assert len(wakes) == 2
