"""Which functions are written out instead of being called."""

from __future__ import annotations

import operator
from types import SimpleNamespace

import pytest

from jetlet.pipeline.accessors import accessor_text

LIMIT = 3


class Outer:
    private = staticmethod(lambda x: x.__hidden)


def deep(x):
    return x.a["b"][-1]


@pytest.mark.parametrize(
    ("fn", "text", "item", "value"),
    [
        (lambda x: x[1], "it[1]", [5, 6], 6),
        (lambda x: x["it's"], 'it["it\'s"]', {"it's": 7}, 7),
        (lambda x: x.real, "it.real", 8, 8),
        (deep, "it.a['b'][-1]", SimpleNamespace(a={"b": [9]}), 9),
        (Outer.private, "it._Outer__hidden", SimpleNamespace(_Outer__hidden=1), 1),
    ],
)
def test_a_part_of_the_argument(fn, text, item, value):
    assert accessor_text(fn, "it") == text
    assert eval(text, {"it": item}) == fn(item) == value


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x,
        lambda x: 1,
        lambda x: x[LIMIT],
        lambda x: x[x[0]],
        lambda x: x[1:2],
        lambda x: x[True],
        lambda x: x[None],
        lambda x: x[1, 2],
        lambda x: x[0] + 1,
        lambda x: (x[0], x[1]),
        lambda x: x.upper(),
        lambda x: x.a if x else 0,
        lambda x, y=1: x[y],
        lambda x, *, y=1: x[1],
        lambda *x: x[0],
        lambda **x: x["a"],
        lambda x: (yield x[0]),
        lambda x: [x for _ in x],
        len,
        str.upper,
        operator.itemgetter(1),
        Outer,
        Outer().private.__call__,
    ],
)
def test_anything_else_is_called(fn):
    assert accessor_text(fn, "it") is None


def test_coroutines_are_called():
    async def fetch(x):
        return x[1]

    assert accessor_text(fetch, "it") is None
