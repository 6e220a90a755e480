"""Approximate operations: their error, and that it does not matter who counted."""

import os
import random
import subprocess
import sys
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from itertools import chain
from uuid import UUID

import pytest

from jetlet import agg
from jetlet.errors import UnstableKeyError
from jetlet.pipeline.aggregates.sketches import countable

pytest.importorskip("datasketches")


class Colour(IntEnum):
    RED = 1


def accumulated(operation, items):
    return operation.batch_accumulator()(operation.create(), items)


@pytest.mark.parametrize("count", [100, 390, 1000, 20_000])
def test_distinct_estimate_depends_on_the_values_only(count):
    operation = agg.approx_distinct()
    rng = random.Random(count)
    items = [rng.randrange(10**12) for _ in range(count)]
    estimates = set()
    for cut in (0, count // 3, count):
        rng.shuffle(items)
        left, right = accumulated(operation, items[:cut]), accumulated(operation, items[cut:])
        acc = operation.combine(left, right)
        acc = operation.combine(acc, right)
        estimates.add(operation.export(operation.batch_accumulator()(acc, items[:50])))
    estimates.add(operation.export(accumulated(operation, items)))
    assert len(estimates) == 1
    assert abs(estimates.pop() - count) <= 4 * 0.0163 * count


def test_equal_values_count_once_and_others_do_not():
    np = pytest.importorskip("numpy")
    equal = [
        [1, 1.0, True, Decimal(1), Fraction(1), 1 + 0j, Colour.RED, np.int64(1), np.bool_(1)],
        [0, 0.0, -0.0, False, np.float32(0)],
        [0.5, Decimal("0.5"), Fraction(1, 2)],
        [2**64, float(2**64)],
        [2**64 + 1],
        [-1],
        [-2],
        [float("inf"), Decimal("inf")],
        [float("nan"), Decimal("nan")],
        [1j],
        ["1"],
        [""],
        [b""],
        [b"a"],
        ["a", np.str_("a")],
        [None],
        [("a", "b"), ("a", "b")],
        [("ab",)],
        [(1, "1"), (True, "1")],
        [("1", 1)],
        [()],
        [UUID(int=1)],
        [frozenset({1, 2}), frozenset({2, 1})],
    ]
    assert [len(set(map(countable, values))) for values in equal] == [1] * len(equal)
    operation = agg.approx_distinct()
    assert operation.export(accumulated(operation, list(chain.from_iterable(equal)))) == len(equal)


def test_values_that_are_equal_only_to_themselves_are_refused():
    operation = agg.approx_distinct()
    with pytest.raises(UnstableKeyError):
        accumulated(operation, [object()])


def test_distinct_values_are_the_same_in_every_process():
    script = (
        "from jetlet.pipeline.aggregates.sketches import countable; "
        "print(ascii([countable(v) for v in"
        " ('text', b'text', 2.5, ('a', 1, None), frozenset({'x', 'y'}))]))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1 and "text" in seen.pop()


def test_quantiles_are_within_their_error():
    operation = agg.approx_quantiles([0.1, 0.5, 0.99])
    rng = random.Random(7)
    items = list(range(20_000))
    rng.shuffle(items)
    acc = operation.combine(
        accumulated(operation, items[:5000]), accumulated(operation, items[5000:])
    )
    for value, fraction in zip(operation.export(acc), [0.1, 0.5, 0.99], strict=True):
        assert abs(value / 20_000 - fraction) < 0.04


def test_quantiles_leave_out_what_is_not_a_number():
    operation = agg.approx_quantiles([0.5])
    acc = operation.accumulate[0](operation.create(), float("nan"))
    assert operation.export(acc) == [None]
    acc = operation.batch_accumulator()(acc, [1, float("nan"), 1])
    assert operation.export(acc) == [1.0]


def test_aggregates_do_not_import_what_only_sketches_need():
    script = "import jetlet.agg, sys; print({'datasketches', 'numpy'} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.strip() == "set()"
