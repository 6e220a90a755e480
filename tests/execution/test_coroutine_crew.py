"""CoroutineCrew: how many tasks are started, what they are given, how they end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jetlet.execution.coroutine_crew import MAX_STREAK, CoroutineCrew
from jetlet.execution.shared_event_loop import SharedEventLoop

PROMPT = 60.0


class Recorder(CoroutineCrew):
    """Notes what it does; things that are asyncio events are waited for."""

    def __init__(self, size, loop):
        super().__init__(size, loop)
        self.done = []
        self.highest = 0
        self.started = 0
        self.changed = threading.Condition()

    async def _work(self):
        self.started += 1
        streak = 0
        while self._todo:
            self.highest = max(self.highest, len(self._tasks))
            thing = self._todo.popleft()
            if isinstance(thing, asyncio.Event):
                await thing.wait()
            streak += 1
            if streak % MAX_STREAK == 0:
                await asyncio.sleep(0)
            with self.changed:
                self.done.append(thing)
                self.changed.notify_all()

    def await_done(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.done) >= count, PROMPT)


@pytest.fixture
def loop():
    shared = SharedEventLoop("test")
    yield shared.lease()
    shared.release()


def on(loop, function, *arguments):
    async def call():
        return function(*arguments)

    return asyncio.run_coroutine_threadsafe(call(), loop).result(PROMPT)


def test_things_that_never_wait_are_done_in_order_by_few(loop):
    crew = Recorder(100, loop)
    crew.submit(range(50))
    crew.await_done(50)
    assert crew.done == list(range(50))
    assert crew.started == 1


def test_as_many_as_wait_are_started_up_to_the_size(loop):
    crew = Recorder(20, loop)
    events = on(loop, lambda: [asyncio.Event() for _ in range(30)])
    crew.submit(events)
    on(loop, asyncio.Event)  # a turn of the loop
    for event in reversed(events):
        loop.call_soon_threadsafe(event.set)
    crew.await_done(30)
    assert crew.highest == 20


def test_one_that_has_run_out_starts_again(loop):
    crew = Recorder(2, loop)
    for i in range(20):
        crew.submit([i])
        crew.await_done(i + 1)
    assert crew.done == list(range(20))


def test_what_was_not_begun_can_be_taken_back_from_the_end(loop):
    crew = Recorder(1, loop)
    gate = on(loop, asyncio.Event)
    crew.submit([gate])
    while not crew.started:
        on(loop, asyncio.Event)
    crew.submit(["a", "b"])
    assert crew.withdraw() == ["b", "a"]
    loop.call_soon_threadsafe(gate.set)
    crew.await_done(1)
    crew.submit(["c"])
    crew.await_done(2)
    assert crew.done == [gate, "c"]


def test_closing_cancels_what_runs_and_nothing_begins_after_it(loop):
    crew = Recorder(2, loop)
    events = on(loop, lambda: [asyncio.Event() for _ in range(3)])
    crew.submit(events)
    assert crew.close(PROMPT)
    crew.submit(["late"])
    on(loop, asyncio.Event)
    assert crew.done == []
