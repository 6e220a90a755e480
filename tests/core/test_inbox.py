"""The inbox: per item or per batch, never changing what it was given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core import Inbox


def test_iterating_removes_each_item_as_it_is_yielded():
    inbox = Inbox([1, 2, 3])
    for item in inbox:
        if item == 2:
            break
    assert list(inbox.items()) == [3]


def test_peek_leaves_the_item_and_remove_takes_it():
    inbox = Inbox([1, 2])
    assert inbox.peek() == inbox.peek() == 1
    inbox.remove()
    assert inbox.peek() == 2
    assert len(inbox) == 1


def test_none_is_an_ordinary_item():
    inbox = Inbox([None, None])
    assert len(inbox) == 2 and inbox
    assert inbox.poll() is None
    assert list(inbox) == [None]
    assert not inbox


def test_empty_inbox_has_nothing_to_peek_or_poll():
    inbox = Inbox()
    assert inbox.peek() is None and inbox.poll() is None
    assert not inbox and len(inbox) == 0


@pytest.mark.parametrize("count", [3, -1])
def test_removing_what_is_not_there_is_refused(count):
    inbox = Inbox([1, 2])
    with pytest.raises(IndexError, match="from an inbox of 2"):
        inbox.remove(count)


def test_take_returns_all_that_is_left():
    inbox = Inbox([1, 2, 3])
    inbox.poll()
    assert list(inbox.take()) == [2, 3]
    assert not inbox


def test_drain_passes_items_on_and_counts_them():
    got = []
    inbox = Inbox([1, 2, 3])
    assert inbox.drain(got.append) == 3
    assert got == [1, 2, 3] and not inbox


def test_drain_that_fails_keeps_what_was_not_reached():
    inbox = Inbox([1, 0, 2])
    with pytest.raises(ZeroDivisionError):
        inbox.drain(lambda item: 1 / item)
    assert list(inbox.items()) == [2]


def test_batch_is_not_copied_when_the_inbox_was_empty():
    batch = [1, 2]
    inbox = Inbox()
    inbox.add(batch)
    assert inbox.items() is batch


# --- The item at hand, which an error names --------------------------------------------------


def test_item_at_hand_is_the_one_handed_out_last():
    inbox = Inbox(["a", "b", "c"])
    assert inbox.at_hand() == ()
    inbox.peek()
    assert inbox.at_hand() == ("a",)
    inbox.remove()
    assert inbox.at_hand() == ("a",)
    inbox.poll()
    assert inbox.at_hand() == ("b",)
    for _ in inbox:
        assert inbox.at_hand() == ("c",)


def test_no_single_item_is_at_hand_once_the_batch_was_looked_at():
    for look in (Inbox.items, Inbox.take, Inbox.clear, lambda inbox: inbox.add([5])):
        inbox = Inbox(["a", "b"])
        inbox.peek()
        look(inbox)
        assert inbox.at_hand() == ()


def test_none_can_be_the_item_at_hand():
    inbox = Inbox([None])
    inbox.poll()
    assert inbox.at_hand() == (None,)


# --- Against a model -------------------------------------------------------------------------

OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, 9), max_size=5)),
    st.tuples(st.sampled_from(["poll", "peek", "take", "clear", "items", "iterate"]), st.none()),
    st.tuples(st.just("remove"), st.integers(0, 3)),
)


@given(st.lists(OPERATIONS, max_size=30))
def test_inbox_behaves_like_a_list(operations):
    inbox, model = Inbox(), []
    for name, argument in operations:
        if name == "add":
            given_batch = list(argument)
            inbox.add(argument)
            model += given_batch
        elif name == "poll":
            assert inbox.poll() == (model.pop(0) if model else None)
        elif name == "peek":
            assert inbox.peek() == (model[0] if model else None)
        elif name == "take":
            assert list(inbox.take()) == model
            model.clear()
        elif name == "clear":
            inbox.clear()
            model.clear()
        elif name == "items":
            assert list(inbox.items()) == model
        elif name == "iterate":
            for item in inbox:
                assert item == model.pop(0)
                if item % 2:
                    break
        elif argument <= len(model):
            inbox.remove(argument)
            del model[:argument]
        assert len(inbox) == len(model)
        assert bool(inbox) == bool(model)
