"""The pairs of windows, in every condition of an engine."""

from __future__ import annotations

from functools import partial

import pytest

from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError
from jetlet.pipeline.errors import DeadLetter
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.windows import EarlyWindowResult, WindowResult
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.pairs import PairsProcessor
from jetlet.testing import verify_processor
from jetlet.testing.outbox import CheckedOutbox


def window(items, others, start=0, key="k"):
    return WindowResult(start, start + 10, key, (items, others))


def pair(item, other, start=0, key="k"):
    return WindowResult(start, start + 10, key, (item, other))


WINDOWS = [window([1, 2], [3, 4]), window([5], [], 10), window([], [6], 20), window([7], [8], 30)]
PAIRS = [pair(1, 3), pair(1, 4), pair(2, 3), pair(2, 4), pair(7, 8, 30)]


def test_inner_pairs():
    verify_processor(PairsProcessor, input=WINDOWS, expect_output=PAIRS)


def test_items_without_a_partner():
    verify_processor(
        partial(PairsProcessor, inner=False),
        input=WINDOWS,
        expect_output=[*PAIRS[:4], pair(5, None, 10), PAIRS[4]],
    )


def test_events_and_watermarks():
    policy = ErrorPolicy("step", takes_events=True)
    verify_processor(
        partial(PairsProcessor, lambda item, other: item + other, policy=policy),
        input=[(9, window([1], [2, 3])), Watermark(10), (19, window([4], [5], 10))],
        expect_output=[
            (9, WindowResult(0, 10, "k", 3)),
            (9, WindowResult(0, 10, "k", 4)),
            Watermark(10),
            (19, WindowResult(10, 20, "k", 9)),
        ],
    )


def test_early_results_stay_early():
    processor = PairsProcessor()
    outbox = CheckedOutbox(1, is_tight=False)
    processor.init(outbox, ProcessorContext())
    outbox.begin_call()
    processor.process(0, Inbox([EarlyWindowResult(0, 10, "k", ([1], [2])), window([3], [4])]))
    assert outbox.outputs[0] == [pair(1, 2), pair(3, 4)]
    assert [each.is_early for each in outbox.outputs[0]] == [True, False]


def test_any_number_of_pairs_leaves_in_batches():
    count = 3 * BATCH_SIZE
    verify_processor(
        PairsProcessor,
        input=[window(range(2), range(count)), window([7], [8], 30)],
        expect_output=[*(pair(i, n) for i in range(2) for n in range(count)), pair(7, 8, 30)],
    )


def inverse(item, other):
    return item / other


@pytest.mark.parametrize("takes_events", [False, True])
def test_a_failing_function_names_the_pair(takes_events):
    policy = ErrorPolicy("my-step", takes_events=takes_events)
    item = window([1, 2], [1, 0])
    with pytest.raises(ItemFailedError, match="my-step failed") as raised:
        verify_processor(
            partial(PairsProcessor, inverse, policy=policy),
            input=[(9, item) if takes_events else item],
            expect_output=[],
        )
    assert raised.value.item == (1, 0)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_dead_letters_leave_by_their_edge():
    policy = ErrorPolicy("my-step", "dead-letter", 1)
    verify_processor(
        partial(PairsProcessor, inverse, policy=policy, data_ordinals=0),
        input=[window([1], [0, 2]), window([3], [0])],
        expect_outputs=[
            [WindowResult(0, 10, "k", 0.5)],
            [
                DeadLetter(item, "my-step", "ZeroDivisionError", "division by zero")
                for item in ((1, 0), (3, 0))
            ],
        ],
    )
