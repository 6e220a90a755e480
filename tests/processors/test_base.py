"""What the stock processors have in common: whole batches, resumed after a refusal."""

from __future__ import annotations

import pytest

from jetlet import DeadLetter
from jetlet.core import ProcessorContext
from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.errors import ItemFailedError
from jetlet.processors.base import BatchProcessor, ErrorPolicy
from jetlet.testing import verify_processor


class Repeater(BatchProcessor):
    """Sends each item as often as it says, in batches of its own; rejects negative ones."""

    def __init__(self, policy=None):
        super().__init__(data_ordinals=None if policy is None or policy.ordinal is None else (0,))
        self.policy = policy or ErrorPolicy("repeat")
        self.calls = 0

    def process_batch(self, ordinal, batch):
        self.calls += 1
        for item in batch:
            if item < 0:
                self.reject(self.policy, item, ValueError(f"negative: {item}"))
            else:
                self.send([item] * item)


def test_batches_leave_whole_and_in_order_under_all_conditions():
    verify_processor(
        Repeater,
        input=[1, 0, 3, Watermark(5), 2, Watermark(9)],
        expect_output=[1, 3, 3, 3, Watermark(5), 2, 2, Watermark(9)],
    )


def test_letters_leave_over_their_edge_in_order():
    verify_processor(
        lambda: Repeater(ErrorPolicy("repeat", "dead-letter", 1)),
        input=[1, -2, -3, 2, -4],
        expect_outputs=[
            [1, 2, 2],
            [DeadLetter(x, "repeat", "ValueError", f"negative: {x}") for x in (-2, -3, -4)],
        ],
    )


def test_skipped_and_dead_items_are_counted():
    for policy, name in (
        (ErrorPolicy("repeat", "skip"), "skipped"),
        (ErrorPolicy("repeat", "dead-letter", 1), "dead_letters"),
    ):
        counted = []
        processor = Repeater(policy)
        context = ProcessorContext(count=lambda *what, counted=counted: counted.append(what))
        processor.init(Outbox([True] * 9), context)

        processor.process(0, Inbox([-1, 2, -3]))

        assert counted == [(name, 1), (name, 1)]


def test_failing_policy_raises_with_item_and_cause():
    processor = Repeater()
    processor.init(Outbox([]), ProcessorContext())

    with pytest.raises(ItemFailedError) as caught:
        processor.process(0, Inbox([-1]))

    assert (caught.value.item, caught.value.step) == (-1, "repeat")
    assert str(caught.value.__cause__) == "negative: -1"


def test_batch_is_processed_once_and_stays_in_the_inbox_until_all_is_out():
    answers = [True, False, False, True, True]
    outbox = Outbox(answers)
    processor = Repeater()
    processor.init(outbox, ProcessorContext())
    inbox = Inbox([1, 2, 3])

    left = []
    while inbox:
        processor.process(0, inbox)
        left.append(len(inbox))

    assert left == [3, 3, 0]
    assert processor.calls == 1
    assert outbox.offers == [[1], [2, 2], [2, 2], [2, 2], [3, 3, 3]]


def test_watermark_waits_for_what_was_sent_before_it():
    outbox = Outbox([False, False, True, True])
    processor = Repeater()
    processor.init(outbox, ProcessorContext())
    processor.send([7])

    assert not processor.try_process_watermark(Watermark(1))
    assert not processor.try_process_watermark(Watermark(1))
    assert processor.try_process_watermark(Watermark(1))
    assert outbox.offers == [[7], [7], [7], Watermark(1)]


def test_empty_batches_are_not_sent():
    outbox = Outbox([])
    processor = Repeater()
    processor.init(outbox, ProcessorContext())
    processor.send([])

    assert processor.flush()
    assert outbox.offers == []


class Outbox:
    """Accepts or refuses offers as it is told."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.offers = []

    def offer(self, item, ordinal=None):
        self.offers.append(item)
        return self.answers.pop(0)

    offer_batch = offer


def test_what_is_reported_of_an_event_is_its_item():
    plain, timed = (ErrorPolicy("step", takes_events=is_event) for is_event in (False, True))
    assert (plain.reported((5, "x")), timed.reported((5, "x"))) == ((5, "x"), "x")
    failure = timed.failure((5, "x"))
    assert (failure.item, failure.step) == ("x", "step")


class Slow(BatchProcessor):
    """Emits in the end what was rejected by the way, and takes a turn for each number."""

    def __init__(self):
        super().__init__(data_ordinals=(0,))
        self.numbers = []

    def process_batch(self, ordinal, batch):
        self.numbers += batch

    def complete(self):
        if self._emitting is None and self.numbers:
            self._emitting = self.output()
        return self._emit()

    def output(self):
        policy = ErrorPolicy("slow", "dead-letter", 1)
        while self.numbers:
            number = self.numbers.pop(0)
            if number < 0:
                self.reject(policy, number, ValueError("negative"))
            else:
                yield [number]


def test_what_is_emitted_over_several_turns_ends_with_what_was_rejected():
    verify_processor(
        Slow,
        input=[1, -1, 2, -2],
        expect_outputs=[
            [1, 2],
            [DeadLetter(n, "slow", "ValueError", "negative") for n in (-1, -2)],
        ],
        snapshots=False,
    )
