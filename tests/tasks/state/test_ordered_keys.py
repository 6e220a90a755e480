from __future__ import annotations

import math
from functools import cmp_to_key

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.tasks.state.ordered_keys import decode_key, encode_key

NUMBERS = st.one_of(
    st.integers(),
    st.integers(-300, 300),
    st.floats(allow_nan=False),
    st.floats(-3, 3),
    st.booleans(),
)
TEXT = st.one_of(st.text(), st.text("a\x00\xff"), st.text(st.characters(categories=["Cs"])))
SCALARS = st.one_of(st.none(), NUMBERS, TEXT, st.binary(), st.binary(max_size=3))
KEYS = st.recursive(SCALARS, lambda keys: st.lists(keys, max_size=3).map(tuple), max_leaves=6)


def kind(key):
    if key is None:
        return 0
    return 1 if isinstance(key, int | float) else 2 + [str, bytes, tuple].index(type(key))


def compared(a, b):
    """As Python compares, with an order of kinds."""
    if kind(a) != kind(b):
        return kind(a) - kind(b)
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=False):
            if by_element := compared(x, y):
                return by_element
        return len(a) - len(b)
    if a is None:
        return 0
    return (a > b) - (a < b)


@given(st.lists(KEYS, max_size=20))
def test_bytes_compare_as_keys_do(keys):
    expected = sorted(keys, key=cmp_to_key(compared))
    assert [decode_key(data) for data in sorted(map(encode_key, keys))] == expected


@given(NUMBERS, NUMBERS)
def test_numbers_compare_by_value(a, b):
    assert (encode_key(a) < encode_key(b)) is (a < b)
    assert (encode_key(a) == encode_key(b)) is (a == b)


@given(TEXT, TEXT)
def test_strings_compare_by_code_points(a, b):
    assert (encode_key(a) < encode_key(b)) is (a < b)


@given(KEYS)
def test_keys_come_back(key):
    assert decode_key(encode_key(key)) == key


def test_equal_keys_are_one_key():
    assert encode_key(1) == encode_key(1.0) == encode_key(True)
    assert encode_key((0.0, "a")) == encode_key((-0.0, "a"))


def test_neighbours_of_large_numbers_are_told_apart():
    assert encode_key(2**53) < encode_key(2**53 + 1) < encode_key(float(2**54))


@pytest.mark.parametrize("key", [math.nan, ("a", math.nan), [1], ("a", {"b"}), object()])
def test_keys_without_an_order_are_refused(key):
    with pytest.raises(InvalidArgumentError, match="write numbers, strings"):
        encode_key(key)


def test_a_number_of_many_digits_is_refused():
    with pytest.raises(InvalidArgumentError, match="write it as a string"):
        encode_key(1 << 2000)


@pytest.mark.parametrize("key", [0, -1, 2.5, "ab", b"ab", ("a", (1, 2)), 10**30])
def test_what_is_not_a_key_is_not_decoded(key):
    data = encode_key(key)
    for wrong in [data[:i] for i in range(len(data))] + [data + b"\x01", b"\x09" + data]:
        with pytest.raises(BadRecordError, match="is not a key"):
            decode_key(wrong)
