from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import sources
from jetlet.errors import InvalidArgumentError, PlanningError


@given(st.integers(0, 5000), st.integers(1, 9), st.sampled_from([list, tuple, range, iter]))
def test_items_are_sliced_among_the_splits(read_all, size, target, kind):
    items = range(size) if kind is range else kind(list(range(size)))
    source = sources.items(items)
    assert len(source.splits(target)) == min(size, target)
    assert read_all(source, target) == list(range(size))


def test_generator_is_kept_for_the_next_run(read_all):
    source = sources.items(i * i for i in range(5))
    assert read_all(source, 2) == read_all(source, 3) == [0, 1, 4, 9, 16]


def test_list_is_read_when_the_job_is_submitted(read_all):
    items = [1]
    source = sources.items(items)
    items.append(2)
    splits = source.splits(1)
    items.append(3)
    assert [batch for split in splits for batch in source.read(split)] == [[1, 2]]


def test_none_is_an_item(read_all):
    assert read_all(sources.items([None, None]), 2) == [None, None]


def test_source_travels_without_the_items():
    source = sources.items([bytes(1_000_000)])
    copy = pickle.dumps(source)
    assert len(copy) < 1000
    with pytest.raises(PlanningError, match="without its items"):
        pickle.loads(copy).splits(1)
    assert len(source.splits(1)) == 1


@pytest.mark.parametrize(
    "items",
    [5, None, "text", b"bytes", itertools.count(), itertools.cycle([1]), itertools.repeat(1)],
)
def test_what_is_no_bounded_collection_is_refused(items):
    with pytest.raises(InvalidArgumentError, match=r"write.*sources\.items\("):
        sources.items(items)


def test_repeat_with_an_end_is_fine(read_all):
    assert read_all(sources.items(itertools.repeat("x", 3))) == ["x"] * 3
