from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.errors import ItemFailedError, UnstableKeyError
from jetlet.pipeline.errors import DeadLetter
from jetlet.pipeline.functions import whole_item
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.distinct import DistinctProcessor
from jetlet.testing import verify_processor


def first_of_each(items, key_fn):
    seen = {}
    for item in items:
        seen.setdefault(key_fn(item), item)
    return list(seen.values())


@pytest.mark.parametrize("action", ["fail", "skip"])
@pytest.mark.parametrize("key_fn", [None, whole_item])
def test_items_once_in_order_of_arrival(key_fn, action):
    verify_processor(
        partial(DistinctProcessor, key_fn, policy=ErrorPolicy("distinct", action)),
        input=[3, 1, 3, None, 2, 1, None, 3],
        expect_output=[3, 1, None, 2],
    )


@pytest.mark.parametrize("action", ["fail", "skip"])
def test_the_first_item_of_each_key(action):
    verify_processor(
        partial(DistinctProcessor, str.lower, policy=ErrorPolicy("distinct", action)),
        input=["b", "A", "a", "B", "c"],
        expect_output=["b", "A", "c"],
    )


@given(items=st.lists(st.integers(0, 30)), key_fn=st.sampled_from([whole_item, lambda i: i // 3]))
def test_items_are_those_of_a_dict(items, key_fn):
    verify_processor(
        partial(DistinctProcessor, key_fn),
        input=items,
        expect_output=first_of_each(items, key_fn),
        snapshots=False,
    )


@pytest.mark.parametrize("key_fn", [None, lambda item: item])
def test_a_key_that_cannot_be_looked_up_is_explained(key_fn):
    with pytest.raises(ItemFailedError, match="distinct failed") as raised:
        verify_processor(partial(DistinctProcessor, key_fn), input=[1, [2], 3], expect_output=[])
    assert raised.value.item == [2]
    assert isinstance(raised.value.__cause__, UnstableKeyError)
    assert "tuple(key)" in str(raised.value.__cause__)


def test_a_failing_key_names_the_item():
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(
            partial(DistinctProcessor, lambda item: 1 / item), input=[1, 0], expect_output=[]
        )
    assert raised.value.item == 0
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_dead_letters_leave_by_their_edge():
    verify_processor(
        partial(
            DistinctProcessor,
            lambda item: 1 / item,
            policy=ErrorPolicy("unique", "dead-letter", 1),
            data_ordinals=0,
        ),
        input=[1, 0, 1, 2],
        expect_outputs=[
            [1, 2],
            [DeadLetter(0, "unique", "ZeroDivisionError", "division by zero")],
        ],
    )
