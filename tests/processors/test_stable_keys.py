"""Keys that have no stable hash, found where nothing is routed."""

from __future__ import annotations

import math

import pytest

from jetlet.core import ProcessorContext
from jetlet.errors import ItemFailedError, UnstableKeyError
from jetlet.processors.stable_keys import check_stable_keys

ALONE = ProcessorContext()
ONE_OF_TWO = ProcessorContext(local_parallelism=2)


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["a", b"b", 1, True, None],
        [("a", 1), ("b", None)],
        [1.5, ("a", 2.5), frozenset({1})],
        {"a": 1, ("b",): 2},
        {1, 2, (3, (4, "x"))},
    ],
)
def test_stable_keys_pass(keys):
    check_stable_keys(keys, ALONE, "step")


@pytest.mark.parametrize("key", [math.nan, object(), ("a", math.nan), (1, (2, object())), [1]])
def test_unstable_key_is_named(key):
    with pytest.raises(ItemFailedError) as caught:
        check_stable_keys(["a", 1, key, "b"], ALONE, "sum")

    assert caught.value.item is key
    assert caught.value.step == "sum"
    assert isinstance(caught.value.__cause__, UnstableKeyError)


def test_several_processors_rely_on_the_edge_before_them():
    check_stable_keys([math.nan], ONE_OF_TWO, "step")
