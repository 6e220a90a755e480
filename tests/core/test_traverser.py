"""Traversers: lazy steps over one next(), which may say "nothing" and go on later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core import traverse, traverse_fn, traverse_items


def drain(traverser):
    return list(traverser)


class Counted:
    """An iterable that knows how much was asked of it."""

    def __init__(self, items):
        self.items = items
        self.asked = 0

    def __iter__(self):
        for item in self.items:
            self.asked += 1
            yield item


# --- Building --------------------------------------------------------------------------------


def test_from_an_iterable_a_generator_items_and_a_function():
    assert drain(traverse([1, 2])) == [1, 2]
    assert drain(traverse(i for i in range(3))) == [0, 1, 2]
    assert drain(traverse_items("a", "b")) == ["a", "b"]
    items = iter([1, 2])
    assert drain(traverse_fn(lambda: next(items, None))) == [1, 2]


def test_exhausted_traverser_goes_on_saying_none():
    traverser = traverse([1])
    assert [traverser.next() for _ in range(4)] == [1, None, None, None]


def test_none_among_the_items_is_refused():
    traverser = traverse([1, None])
    assert traverser.next() == 1
    with pytest.raises(ValueError, match="None cannot be an item"):
        traverser.next()


def test_function_may_have_an_item_again_after_none():
    answers = iter([1, None, 2, None, None, 3])
    traverser = traverse_fn(lambda: next(answers)).map(lambda item: item * 10)
    assert [traverser.next() for _ in range(6)] == [10, None, 20, None, None, 30]


# --- Steps -----------------------------------------------------------------------------------


def test_map_drops_what_becomes_none():
    assert drain(traverse(range(5)).map(lambda i: i * 2 if i % 2 else None)) == [2, 6]


def test_filter():
    assert drain(traverse(range(6)).filter(lambda i: i % 3 == 0)) == [0, 3]


def test_flat_map_takes_traversers_and_iterables_and_skips_empty_ones():
    traverser = traverse([0, 2, 1]).flat_map(lambda n: [n] * n if n < 2 else traverse("xy"))
    assert drain(traverser) == ["x", "y", 1]


def test_append_yields_its_items_once_when_the_source_first_pauses():
    answers = iter([1, None, 2, None])
    traverser = traverse_fn(lambda: next(answers, None)).append("end")
    assert [traverser.next() for _ in range(5)] == [1, "end", 2, None, None]
    assert drain(traverse([1]).append(2, 3)) == [1, 2, 3]


def test_prepend():
    assert drain(traverse([3]).prepend(1, 2)) == [1, 2, 3]


def test_take_while_ends_for_good():
    traverser = traverse([1, 2, 9, 1]).take_while(lambda i: i < 5)
    assert [traverser.next() for _ in range(4)] == [1, 2, None, None]


def test_take_while_outlasts_a_pause():
    answers = iter([1, None, 2, 9, 3])
    traverser = traverse_fn(lambda: next(answers)).take_while(lambda i: i < 5)
    assert [traverser.next() for _ in range(5)] == [1, None, 2, None, None]


def test_drop_while_drops_only_at_the_beginning():
    assert drain(traverse([1, 2, 9, 1]).drop_while(lambda i: i < 5)) == [9, 1]


def test_drop_while_goes_on_dropping_after_a_pause():
    answers = iter([1, None, 2, 9, 1])
    traverser = traverse_fn(lambda: next(answers)).drop_while(lambda i: i < 5)
    assert [traverser.next() for _ in range(3)] == [None, 9, 1]


def test_peek_sees_every_item_once():
    seen = []
    assert drain(traverse([1, 2]).peek(seen.append)) == [1, 2] == seen


def test_on_first_none_is_called_once():
    calls = []
    traverser = traverse([1]).on_first_none(lambda: calls.append("end"))
    assert traverser.next() == 1
    assert calls == []
    assert [traverser.next(), traverser.next()] == [None, None]
    assert calls == ["end"]


# --- Laziness --------------------------------------------------------------------------------


def test_nothing_is_asked_of_the_source_before_next():
    source = Counted(range(100))
    traverser = (
        traverse(source)
        .map(lambda i: i + 1)
        .filter(lambda i: i % 10 == 0)
        .flat_map(lambda i: [i, i])
        .append(0)
        .prepend(-1)
    )
    assert source.asked == 0
    assert traverser.next() == -1
    assert source.asked == 0
    assert traverser.next() == 10
    assert source.asked == 10
    assert traverser.next() == 10
    assert source.asked == 10


def test_infinite_source_is_fine():
    naturals = iter(int, 1)  # endless zeros, which are not None
    traverser = traverse(naturals).map(lambda i: i + 1)
    assert [traverser.next() for _ in range(3)] == [1, 1, 1]


# --- Against the like with lists --------------------------------------------------------------

STEPS = {
    "map": (lambda t: t.map(lambda i: i + 1), lambda xs: [i + 1 for i in xs]),
    "filter": (lambda t: t.filter(lambda i: i % 2), lambda xs: [i for i in xs if i % 2]),
    "flat_map": (
        lambda t: t.flat_map(lambda i: range(i % 3)),
        lambda xs: [j for i in xs for j in range(i % 3)],
    ),
    "append": (lambda t: t.append(7, 8), lambda xs: [*xs, 7, 8]),
    "prepend": (lambda t: t.prepend(7, 8), lambda xs: [7, 8, *xs]),
    "peek": (lambda t: t.peek(lambda i: None), lambda xs: xs),
}


@given(st.lists(st.integers(0, 20)), st.lists(st.sampled_from(sorted(STEPS)), max_size=6))
def test_chains_of_steps_give_what_lists_would(items, names):
    traverser, expected = traverse(items), items
    for name in names:
        lazy, eager = STEPS[name]
        traverser, expected = lazy(traverser), eager(expected)
    assert drain(traverser) == expected
