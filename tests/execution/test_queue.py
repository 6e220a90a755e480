"""BoundedQueue: batches in order, bounded in items, with special items in their place."""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core import DONE, Watermark
from jetlet.core.table import VALUE, Table
from jetlet.execution.queue import WHOLE, BoundedQueue
from jetlet.execution.tasklet import Waker


class Counter:
    def __init__(self):
        self.wakes = 0

    def wake(self):
        self.wakes += 1


def waker(counter):
    made = Waker()
    made.worker = counter
    return made


def test_batch_that_fits_is_handed_on_as_it_is():
    queue = BoundedQueue(4)
    batch = [1, 2, 3]
    assert queue.offer(batch) == 3
    assert queue.poll(10) is batch
    assert queue.poll(10) is None


def test_batch_larger_than_the_queue_is_accepted_in_part():
    queue = BoundedQueue(4)
    batch = list(range(10))
    assert queue.offer(batch) == 4
    assert queue.offer(batch, 4) == 0
    assert queue.poll(100) == [0, 1, 2, 3]
    assert queue.offer(batch, 4) == 4
    assert queue.poll(100) == [4, 5, 6, 7]
    assert queue.offer(batch, 8) == 2
    assert queue.poll(100) == [8, 9]
    assert batch == list(range(10))


def test_nearly_full_queue_does_not_grind_batches_into_crumbs():
    queue = BoundedQueue(8)  # takes a part only if that is two items or more
    assert queue.offer([0] * 7) == 7
    assert queue.offer([1, 2, 3]) == 0
    assert queue.offer([1]) == 1
    queue.poll(2)
    assert queue.offer([1, 2, 3]) == 2


def test_long_batch_is_polled_in_slices():
    queue = BoundedQueue(10)
    queue.offer(range(7))
    assert [list(queue.poll(3)) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert queue.poll(3) is None


def test_part_that_was_polled_makes_room():
    queue = BoundedQueue(4)
    queue.offer([1, 2, 3, 4])
    queue.poll(1)
    assert len(queue) == 3
    assert queue.offer([5]) == 1
    assert not queue.offer_special(DONE)


def test_special_item_counts_as_one_and_keeps_its_place():
    queue = BoundedQueue(3)
    queue.offer([1])
    assert queue.offer_special(Watermark(5))
    queue.offer([2])
    assert len(queue) == 3
    assert not queue.offer_special(DONE)
    assert [queue.poll(9) for _ in range(4)] == [[1], Watermark(5), [2], None]


def test_none_is_an_ordinary_item():
    queue = BoundedQueue(3)
    queue.offer([None, None])
    assert queue.poll(1) == [None]
    assert queue.poll(1) == [None]
    assert queue.is_empty()


def test_offering_wakes_the_consumer_and_polling_the_producer():
    consumer, producer = Counter(), Counter()
    queue = BoundedQueue(2)
    queue.consumer, queue.producer = waker(consumer), waker(producer)
    queue.offer([1])
    queue.offer_special(DONE)
    assert (consumer.wakes, producer.wakes) == (2, 0)
    assert queue.offer([2]) == 0
    assert consumer.wakes == 2
    queue.poll(9)
    queue.poll(9)
    assert (consumer.wakes, producer.wakes) == (2, 2)
    assert queue.poll(9) is None
    assert producer.wakes == 2


OPERATIONS = st.one_of(
    st.tuples(st.just("offer"), st.sampled_from([*range(1, 13), 50, 170])),
    st.tuples(st.just("special"), st.none()),
    st.tuples(st.just("poll"), st.integers(1, 12)),
)


@settings(max_examples=300)
@given(st.integers(1, 10), st.booleans(), st.lists(OPERATIONS, max_size=60))
def test_queue_is_first_in_first_out_and_never_over_its_bound(capacity, takes_whole, operations):
    queue, model = BoundedQueue(capacity, takes_whole=takes_whole), deque()
    number = 0
    pending, start = [], 0  # as a producer does: what was not accepted is offered again
    for name, argument in operations:
        if name == "offer":
            if start == len(pending):
                pending, start = list(range(number, number + argument)), 0
                number += argument
            room = max(0, capacity - len(model))
            if takes_whole and not model:
                room = WHOLE * capacity
            left = len(pending) - start
            accepted = queue.offer(pending, start)
            assert accepted <= min(room, left)
            if left <= room:
                assert accepted == left
            elif not model:
                assert accepted > 0, "an empty queue must take something"
            model.extend(pending[start : start + accepted])
            start += accepted
        elif name == "special":
            item = Watermark(number)
            if start < len(pending):
                continue
            assert queue.offer_special(item) == (len(model) < capacity)
            if len(model) < capacity:
                model.append(item)
                number += 1
        else:
            entry = queue.poll(argument)
            if entry is None:
                assert not model
            elif isinstance(entry, Watermark):
                assert entry == model.popleft()
            else:
                assert 0 < len(entry) <= argument
                assert list(entry) == [model.popleft() for _ in entry]
        assert len(queue) == len(model) <= capacity * (WHOLE if takes_whole else 1)
        assert queue.is_empty() == (not model)


@pytest.mark.parametrize("capacity", [1, 3, 64])
def test_producer_and_consumer_on_two_threads_lose_nothing(capacity):
    queue, count, got = BoundedQueue(capacity), 2_000 * capacity, []

    yield_core = partial(time.sleep, 0)

    def produce():
        batch, start = range(count), 0
        while start < count:
            accepted = queue.offer(batch[start : start + 100])
            start += accepted
            assert 0 <= len(queue) <= capacity
            if not accepted:
                yield_core()
        while not queue.offer_special(DONE):
            yield_core()

    thread = threading.Thread(target=produce)
    thread.start()
    while (entry := queue.poll(50)) is not DONE:
        if entry is None:
            yield_core()
        else:
            got.extend(entry)
    thread.join()
    assert got == list(range(count))
    assert len(queue) == 0


def test_an_empty_queue_takes_a_whole_batch_if_told_to():
    queue = BoundedQueue(4, takes_whole=True)
    assert queue.offer(range(10)) == 10
    assert queue.offer([0]) == 0 and len(queue) == 10
    assert [*queue.poll(8)] == [*range(8)]
    assert queue.offer(range(10), 3) == 2  # no longer empty: bounded as ever
    assert [*queue.poll(8)] == [8, 9] and [*queue.poll(8)] == [3, 4]
    assert queue.offer(range(10), 5) == 5
    assert [*queue.poll(8)] == [5, 6, 7, 8, 9] and queue.is_empty()


def table_of(count):
    return Table.of_arrays([pa.array(range(count))], VALUE)


def test_table_is_taken_whole_when_nothing_waits_behind_what_is_worked_off():
    queue = BoundedQueue(4)
    table = table_of(100)
    assert queue.offer(table) == 100
    assert queue.offer(table_of(100)) == 0
    assert list(queue.poll(30)) == list(range(30))
    assert queue.offer(table_of(50)) == 50
    assert queue.offer(table_of(50)) == 0
    assert not queue.offer_special(Watermark(1))
    assert list(queue.poll(1000)) == list(range(30, 100))
    assert list(queue.poll(1000)) == list(range(50))
    assert queue.offer_special(Watermark(1))


def test_part_of_a_table_that_is_polled_is_a_table():
    queue = BoundedQueue(1024)
    queue.offer(table_of(10))

    assert isinstance(queue.poll(3), Table)
