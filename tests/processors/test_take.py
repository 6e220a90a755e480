from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core import Watermark
from jetlet.core.inbox import Inbox
from jetlet.processors.take import TakeProcessor
from jetlet.testing import verify_processor


@pytest.mark.parametrize("count", [1, 3, 4, 100])
def test_the_first_items(count):
    items = ["a", None, "c", "d"]
    verify_processor(partial(TakeProcessor, count), input=items, expect_output=items[:count])


@given(items=st.lists(st.integers()), count=st.integers(1, 20))
def test_items_are_those_of_a_slice(items, count):
    verify_processor(partial(TakeProcessor, count), input=items, expect_output=items[:count])


def test_watermarks_go_on_when_it_has_enough():
    verify_processor(
        partial(TakeProcessor, 1),
        input=[(3, "a"), Watermark(3), (5, "b"), Watermark(5)],
        expect_output=[(3, "a"), Watermark(3), Watermark(5)],
    )


def test_one_that_is_not_final_saves_nothing():
    verify_processor(
        partial(TakeProcessor, 2, is_final=False),
        input=[1, 2, 3],
        expect_output=[1, 2],
        snapshots=False,
    )


def test_it_says_when_it_has_enough_also_when_it_is_restored():
    processor = TakeProcessor(2)
    assert not processor.has_enough

    for left, has_enough in ((1, False), (0, True)):
        inbox = Inbox()
        inbox.add([(None, left)])
        processor.restore_from_snapshot(inbox)
        assert processor.has_enough is has_enough
