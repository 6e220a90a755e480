from __future__ import annotations

import pytest

from jetlet.errors import InvalidArgumentError, UnstableKeyError
from jetlet.processors.item_failure import item_failure, lookup_error


@pytest.mark.parametrize("batch", [[4, 0, 2], (4, 0, 2), [0], [1, 0]])
def test_the_item_that_an_iterator_gave_last_is_named(batch):
    it = iter(batch)
    with pytest.raises(ZeroDivisionError):
        [1 / item for item in it]
    failure = item_failure(batch, it, "my step")
    assert failure.item == 0
    assert failure.step == "my step"


def test_a_key_that_cannot_be_looked_up_is_explained():
    error = lookup_error(TypeError("unhashable"), "item", [str, lambda item: [item]])
    assert isinstance(error, UnstableKeyError)
    assert "tuple(key)" in str(error)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __jetlet_key__(self):
        return 1


def test_any_object_that_cannot_be_looked_up_is_explained():
    error = lookup_error(TypeError("unhashable"), Unhashable(), [None])
    assert isinstance(error, InvalidArgumentError | UnstableKeyError)


def test_other_errors_stay_as_they_are():
    error = TypeError("of the function, not of the key")
    assert lookup_error(error, "item", [None, lambda item: item.missing]) is error
    other = ValueError("no")
    assert lookup_error(other, ["item"], [None]) is other
