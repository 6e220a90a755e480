from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.errors import InvalidArgumentError, MissingDependencyError
from jetlet.tasks.state import serdes
from jetlet.tasks.state.serdes import key_serde, value_serde

LONGS = st.integers(-(2**63), 2**63 - 1)


@dataclasses.dataclass
class PageView:
    user: str
    seconds: int = 0


@pytest.mark.parametrize(
    ("given_type", "value"),
    [
        (str, "a\x00é"),
        (bytes, b"\x00\xff"),
        (int, 2**70),
        (int, -1),
        (int, 0),
        (float, -0.5),
        (None, {"any": [object]}),
        (PageView, PageView("ann", 3)),
        (dict[str, PageView], {"a": PageView("ann")}),
        (list[int], [1, 2]),
        (serdes.json(PageView), PageView("ann", 3)),
        (serdes.json(), {"a": [1, None]}),
        (serdes.msgpack(), {"a": [1, None]}),
        (serdes.pickle(), ("a", {1})),
    ],
)
def test_values_come_back_also_by_a_serde_that_travelled(given_type, value):
    serde = value_serde("store", given_type)
    there = pickle.loads(pickle.dumps(serde))
    assert there.decode(serde.encode(value)) == value


@given(st.one_of(st.integers(), LONGS))
def test_integers_of_any_size_are_values(value):
    serde = value_serde("store", int)
    assert serde.decode(serde.encode(value)) == value


@pytest.mark.parametrize(
    ("given_type", "keys"), [(str, st.text()), (bytes, st.binary()), (int, LONGS)]
)
def test_keys_keep_their_order(given_type, keys):
    serde = key_serde("store", given_type)

    @given(keys, keys)
    def keep_their_order(a, b):
        assert (serde.encode(a) < serde.encode(b)) is (a < b)
        assert serde.decode(serde.encode(a)) == a

    keep_their_order()


@pytest.mark.parametrize("given_type", [str, bytes, int])
@pytest.mark.parametrize("role", [key_serde, value_serde])
def test_a_value_of_another_type_is_refused(role, given_type):
    with pytest.raises(TypeError, match=r"expected|'str'"):
        role("store", given_type).encode([1])


def test_a_key_beyond_64_bits_is_refused():
    for key in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(ValueError, match="leave key=int out"):
            key_serde("store", int).encode(key)


def test_json_is_checked_against_its_type_and_readable():
    serde = serdes.json(PageView)
    assert serde.encode(PageView("ann", 3)) == b'{"user":"ann","seconds":3}'
    with pytest.raises(ValueError, match="user"):
        serde.decode(b'{"seconds":3}')


@pytest.mark.parametrize("wrong", [PageView, serdes.json(str), serdes.pickle(), "str", 5, [str]])
def test_keys_without_an_order_are_refused(wrong):
    with pytest.raises(InvalidArgumentError, match=r"store: key=.* has no order; write key=str"):
        key_serde("store", wrong)


def test_a_key_serde_of_ones_own_says_that_it_is_ordered():
    class Reversed:
        is_ordered = True

        def encode(self, key):
            return key[::-1].encode()

        def decode(self, data):
            return data.decode()[::-1]

    mine = Reversed()
    assert key_serde("store", mine) is mine
    assert value_serde("store", mine) is mine


def test_a_type_that_msgspec_does_not_know_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"store: value=5.*use serdes.pickle\(\)"):
        value_serde("store", 5)


def test_msgspec_is_asked_for_when_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "msgspec.json", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[msgspec\]'"):
        serdes.json(int)
