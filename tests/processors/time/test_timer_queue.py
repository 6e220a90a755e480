"""TimerQueue: which timers are due, and when those are that are set meanwhile."""

from __future__ import annotations

import pytest

from jetlet.processors.time.timer_queue import TimerQueue


@pytest.mark.parametrize(
    ("sets", "now", "later"),
    [
        (lambda at: at, [10], [10]),
        (lambda at: at - 7, [10], [3]),
        (lambda at: at + 40, [10, 50, 90], []),
    ],
    ids=["present", "past", "future"],
)
def test_what_is_set_to_the_past_is_due_the_next_time(sets, now, later):
    timers = {}
    queue = TimerQueue(lambda key: timers, is_processing_time=False)
    queue.set(timers, "k", "a", 10)

    def work_off(upto):
        found = []
        for _, name, at in queue.due(upto):
            found.append(at)
            del timers[name]
            if len(found) < 10 and upto == 100:
                queue.set(timers, "k", "a", sets(at))
        return found

    assert work_off(100) == now
    assert work_off(101) == later
