"""Checks that are shared by the stage methods."""

from __future__ import annotations

from functools import partial

import pytest

from jetlet.errors import InvalidArgumentError, UnstableKeyError
from jetlet.pipeline.checks import (
    check_count,
    check_function,
    check_key_function,
    check_seconds,
    check_single,
)


async def coroutine(x):
    return x


class CallMe:
    def __call__(self, x):
        return x


@pytest.mark.parametrize("fn", [len, lambda x: x, CallMe(), partial(max, 1), str])
def test_whatever_can_be_called_is_a_function(fn):
    check_function("map", fn)


@pytest.mark.parametrize("fn", [coroutine, partial(coroutine, 1)])
def test_coroutine_functions_are_for_async_stages(fn):
    check_function("map_async", fn)
    with pytest.raises(InvalidArgumentError, match="map_async"):
        check_function("map", fn)


def test_refusal_shows_an_example_of_the_stage():
    with pytest.raises(InvalidArgumentError) as caught:
        check_function("map_stateful", 5, "a function of state, item", "create, fn")

    assert str(caught.value) == (
        "map_stateful takes a function of state, item, not 5: write .map_stateful(create, fn)"
    )


def test_key_function_with_a_key_of_its_own_is_trusted():
    class Key(list):
        def __jetlet_key__(self):
            return tuple(self)

    check_key_function("grouping_key", Key)


def test_subclass_of_an_unstable_type_is_unstable():
    class Words(list):
        pass

    with pytest.raises(UnstableKeyError, match="Words"):
        check_key_function("grouping_key", Words)


@pytest.mark.parametrize("value", [1, 1000])
def test_counts(value):
    check_count("map_batched", "max_batch", value)


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True, None])
def test_what_is_no_count(value):
    with pytest.raises(InvalidArgumentError, match=r"map_batched: max_batch .* not "):
        check_count("map_batched", "max_batch", value)


@pytest.mark.parametrize("value", [1, 0.001])
def test_seconds(value):
    check_seconds("map_async", "timeout", value)


@pytest.mark.parametrize("value", [0, -0.1, float("nan"), "1", True, None])
def test_what_is_no_time(value):
    with pytest.raises(InvalidArgumentError, match=r"timeout=0\.5"):
        check_seconds("map_async", "timeout", value)


def test_single_processor():
    check_single("sort", None, has_keyed_form=False)
    check_single("sort", 1, has_keyed_form=False)
    with pytest.raises(InvalidArgumentError, match=r"local_parallelism=2 cannot be: leave it out$"):
        check_single("sort", 2, has_keyed_form=False)
    with pytest.raises(InvalidArgumentError, match=r"or write \.grouping_key\(key_fn\)"):
        check_single("map_stateful", 2, has_keyed_form=True)
