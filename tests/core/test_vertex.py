"""A vertex takes whatever makes processors, and says how many there are."""

from __future__ import annotations

from functools import partial

import pytest

from jetlet.core import Processor, ProcessorSupplier, Vertex
from jetlet.errors import InvalidArgumentError, InvalidDagError


class Callable(Processor):
    def __call__(self):
        return self


class Supplier(ProcessorSupplier):
    def get(self):
        return Processor()


def test_function_class_and_supplier_all_make_processors():
    for supplier in (Processor, partial(Processor), Supplier()):
        made = Vertex("v", supplier).supplier
        assert isinstance(made.get(), Processor)
        assert made.get() is not made.get()


def test_supplier_is_used_as_it_is():
    supplier = Supplier()
    assert Vertex("v", supplier).supplier is supplier


@pytest.mark.parametrize("supplier", [Processor(), Callable(), 5, None])
def test_what_does_not_make_processors_is_refused(supplier):
    with pytest.raises(InvalidArgumentError, match=r"vertex 'v': .*write Vertex\('v', lambda"):
        Vertex("v", supplier)


def test_vertex_needs_a_name():
    with pytest.raises(InvalidDagError, match="needs a name"):
        Vertex("", Processor)


@pytest.mark.parametrize("parallelism", [0, -2])
def test_parallelism_below_one_is_refused(parallelism):
    with pytest.raises(InvalidArgumentError, match="local_parallelism must be at least 1"):
        Vertex("v", Processor, parallelism)


@pytest.mark.parametrize(
    ("explicit", "preferred", "default", "expected"),
    [
        (-1, None, 4, 4),
        (-1, 2, 4, 2),
        (-1, 8, 4, 4),
        (3, 2, 4, 3),
        (-1, 0, 4, 1),
    ],
)
def test_parallelism_is_explicit_else_preferred_up_to_the_default(
    explicit, preferred, default, expected
):
    vertex = Vertex("v", Processor, explicit, preferred_parallelism=preferred)
    assert vertex.parallelism(default) == expected
