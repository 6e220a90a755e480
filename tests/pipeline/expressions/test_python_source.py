# ruff: noqa: PYI024
"""The fast form of an expression gives what the exact form gives, or raises what that raises."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import col, it, lit, record, when
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.expressions.expression import node_of
from jetlet.pipeline.expressions.python_source import each_of, exact_function_of, function_of

INTS = [0, 1, -1, 2, 3, -7, 2**30 - 1, 2**30, -(2**30), 2**62, 2**63 - 1, -(2**63), 2**64, 2**70]
FLOATS = [0.0, -0.0, 1.5, -2.5, math.inf, -math.inf, math.nan, 1e308, 2.0**63]
OTHERS = [
    *(None, True, False, "", "a", "ß", "10", " x ", b"a", Decimal("1.5"), Decimal("NaN")),
    *([], [1, None], {"a": 1}, (1, 2), date(2024, 2, 29), timedelta(days=1)),
    *(datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC), datetime(1969, 12, 31)),  # noqa: DTZ001
]
VALUES = st.sampled_from([*INTS, *FLOATS, *OTHERS]) | st.integers(-(2**66), 2**66)
ROWS = st.fixed_dictionaries(dict.fromkeys("abcd", VALUES)) | VALUES


def arithmetic(parts):
    return st.one_of(
        st.builds(lambda x, y: x + y, parts, parts),
        st.builds(lambda x, y: x - y, parts, parts),
        st.builds(lambda x, y: x * y, parts, parts),
        st.builds(lambda x, y: x / y, parts, parts),
        st.builds(lambda x, y: x // y, parts, parts),
        st.builds(lambda x, y: x % y, parts, parts),
        st.builds(lambda x, y: x**y, parts, st.sampled_from([0, 1, 2, 3, -1, 0.5]).map(lit)),
        st.builds(lambda x: -x, parts),
        st.builds(abs, parts),
        st.builds(round, parts, st.sampled_from([None, 0, 2, -2])),
    )


def conditions(parts):
    return st.one_of(
        st.builds(lambda x, y: x == y, parts, parts),
        st.builds(lambda x, y: x != y, parts, parts),
        st.builds(lambda x, y: x < y, parts, parts),
        st.builds(lambda x, y: x >= y, parts, parts),
        st.builds(lambda x, y: x & y, parts, parts),
        st.builds(lambda x, y: x | y, parts, parts),
        st.builds(lambda x: ~x, parts),
        st.builds(lambda x: x.is_null(), parts),
        st.builds(lambda x: x.is_in([1, 2.5, "a", math.nan]), parts),
        st.builds(lambda x, y: x.startswith(y), parts, parts),
        st.builds(lambda x, y: x.contains(y), parts, parts),
    )


def others(parts):
    return st.one_of(
        st.builds(lambda x, y: x.fill_null(y), parts, parts),
        st.builds(lambda c, x, y: when(c).then(x).otherwise(y), parts, parts, parts),
        st.builds(lambda x, y: record(a=x, b=y), parts, parts),
        st.builds(record, parts, parts),
        st.builds(lambda x: x[0], parts),
        st.builds(lambda x: x["a"], parts),
        st.builds(lambda x: x.cast(int), parts),
        st.builds(lambda x: x.cast(float), parts),
        st.builds(lambda x: x.cast(str), parts),
        st.builds(lambda x: x.cast(bool), parts),
        st.builds(lambda x: x.cast(date), parts),
        st.builds(lambda x: x.len(), parts),
        st.builds(lambda x: x.upper(), parts),
        st.builds(lambda x: x.strip(), parts),
        st.builds(lambda x: x.split("a"), parts),
        st.builds(lambda x, y: x.concat(y), parts, parts),
        st.builds(lambda x: x[1:], parts),
        st.builds(lambda x: x.year(), parts),
        st.builds(lambda x: x.epoch_ms(), parts),
        st.builds(lambda x: x.at_zone("Asia/Kolkata").hour(), parts),
    )


LEAVES = st.one_of(
    st.sampled_from([it, col("a"), col("b"), col("c"), it["d"]]),
    st.sampled_from([*INTS, *FLOATS, "a", True, Decimal("1.5")]).map(lit),
)


@st.composite
def expressions(draw, depth=3):
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(LEAVES)
    parts = expressions(depth=depth - 1)
    kind = draw(st.sampled_from([arithmetic, arithmetic, conditions, others]))
    try:
        return draw(kind(parts))
    except InvalidArgumentError:
        return draw(LEAVES)


def outcome(function, item):
    try:
        value = function(item)
    except Exception as error:
        return type(error), str(error)
    return type(value), repr(value)


@given(expressions(), st.lists(ROWS, min_size=1, max_size=6))
def test_fast_and_exact_forms_are_the_same(expression, items):
    node = node_of(expression)
    exact = [outcome(exact_function_of(node), item) for item in items]

    assert [outcome(function_of(node), item) for item in items] == exact
    assert [outcome(lambda each: each_of(node)([each])[0], item) for item in items] == exact


@pytest.mark.parametrize("value", [2**63 - 1, 2**63 - 2, 2**63 - 6, -(2**63), -(2**63) + 6])
@pytest.mark.parametrize(
    "expression",
    [it + 1 - 5, (it * 1 - 5) + 5, -(it + 1) + 1, 5 - (it - 3), (it + 5) * -1, it + 0, -it],
    ids=str,
)
def test_what_is_inside_has_to_fit_too(expression, value):
    """A check of the result alone covers the parts, but near the bounds."""
    node = node_of(expression)

    assert outcome(function_of(node), value) == outcome(exact_function_of(node), value)


class Keyless:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class Keyed(Keyless):
    def __getitem__(self, name):
        return self.__dict__[name] * 10


def test_fields_of_all_kinds_of_items_mix():
    """Also where an attribute of a dictionary has the name of a key."""
    node = node_of(record(it.items, col("a") + 1))
    items = [
        {"items": 1, "a": 2},
        Keyless(items=1, a=2),
        namedtuple("Pair", "items a")(1, 2),
        Keyed(items=1, a=2),
        MappingProxyType({"items": 1, "a": 2}),
        OrderedDict(items=1, a=2),
    ]
    expected = [(1, 3)] * 3 + [(10, 21)] + [(1, 3)] * 2

    for _ in range(2):  # the second time the classes are known
        assert each_of(node)(items) == expected
        assert [function_of(node)(item) for item in items] == expected
        assert [exact_function_of(node)(item) for item in items] == expected
