"""The index of records finds what it was told, and a copy of it what was there then."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlet.storage import record_index
from jetlet.storage.record_index import ALL_BITS, FACTOR, LOCATION, RecordIndex

NUMBERS = st.one_of(
    st.integers(0, 40).map(lambda n: n * FACTOR & ALL_BITS),
    st.integers(0, 3).map(lambda n: 5 * FACTOR + n & ALL_BITS),  # alike but for their last bits
    st.integers(0, ALL_BITS),
)


@pytest.fixture(params=[2, 5])
def short_arrays(request, monkeypatch):
    monkeypatch.setattr(record_index, "MOST", request.param)


class Both:
    """An index, and where the record of each number is. Numbers may come more than once."""

    def __init__(self, expected):
        self.index = RecordIndex(expected)
        self.places = {}
        """By place, its number."""
        self._next = 0

    def new_place(self):
        self._next += 1
        return self._next

    def slot(self, place):
        """The slot of a place."""
        (found,) = [s for s in self.index.find(self.places[place]) if s & LOCATION == place]
        return found

    def add_all(self, numbers):
        places = [self.new_place() for _ in numbers]
        unsure = self.index.add_all(numbers, places)
        for n, (number, place) in enumerate(zip(numbers, places, strict=True)):
            if n in unsure:
                assert self.index.find(number)
                self.index.add(number, place)
            else:
                assert number not in self.places.values()
            self.places[place] = number

    def replace_all(self, which):
        old = sorted(self.places)
        chosen = [old[n % len(old)] for n in which] if old else []
        chosen = list(dict.fromkeys(chosen))
        numbers = [self.places[place] for place in chosen]
        new = [self.new_place() for _ in chosen]
        slots = [self.slot(place) for place in chosen]
        before, unsure = self.index.replace_all(numbers, new, range(len(new)))
        assert sorted(before) == sorted(s for n, s in enumerate(slots) if n not in unsure)
        for n in unsure:
            self.index.replace(numbers[n], slots[n], new[n])
        for place in chosen:
            del self.places[place]
        self.places.update(zip(new, numbers, strict=True))

    def remove(self, which):
        if self.places:
            place = sorted(self.places)[which % len(self.places)]
            self.index.remove(self.places[place], self.slot(place))
            del self.places[place]


def check(index, places):
    assert sorted(slot & LOCATION for slot in index) == sorted(places)
    found, unsure = index.find_all(places.values())
    for n, (place, number) in enumerate(places.items()):
        assert index.has(number, place)
        assert place in [slot & LOCATION for slot in index.find(number)]
        assert n in unsure or found[n] & LOCATION == place
    listed, address = [], 0
    while address is not None:
        slots, address = index.slots_from(address)
        listed += [slot & LOCATION for slot in slots]
    assert sorted(listed) == sorted(places)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from([0, 3, 40]),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(NUMBERS, max_size=8)),
            st.tuples(st.just("replace"), st.lists(st.integers(0, 99), max_size=8)),
            st.tuples(st.just("remove"), st.integers(0, 99)),
            st.tuples(st.just("copy"), st.none()),
            st.tuples(st.just("forget"), st.integers(0, 99)),
        ),
        max_size=40,
    ),
)
def test_index_and_its_copies_have_what_they_were_told(short_arrays, expected, operations):
    both, copies = Both(expected), []
    for name, argument in operations:
        both.index.forget_copies()
        if name == "add":
            both.add_all(argument)
        elif name == "replace":
            both.replace_all(argument)
        elif name == "remove":
            both.remove(argument)
        elif name == "copy":
            copies.append((both.index.copy(), dict(both.places)))
        elif copies:
            copies.pop(argument % len(copies))
        check(both.index, both.places)
    for copy, places in copies:
        check(copy, places)
    assert both.index.size >= 9 * len(both.places)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(NUMBERS, max_size=20), st.lists(st.lists(NUMBERS, max_size=8), max_size=10))
def test_going_over_all_misses_nothing_while_others_come(short_arrays, numbers, others):
    both = Both(0)
    both.add_all(numbers)
    staying = set(both.places)
    seen, address, batches = [], 0, iter(others)
    while address is not None:
        slots, address = both.index.slots_from(address)
        seen += [slot & LOCATION for slot in slots]
        both.add_all(next(batches, []))
    assert staying <= set(seen)
    assert len(seen) == len(set(seen))


def test_what_only_a_copy_has_is_not_kept_for_ever():
    both = Both(0)
    both.add_all([n * FACTOR & ALL_BITS for n in range(1000)])
    alone = both.index.size
    copy = both.index.copy()
    both.replace_all(range(1000))
    assert both.index.size > 1.5 * alone
    del copy
    gc.collect()
    both.index.forget_copies()
    assert both.index.size == alone
