"""Groups: sums by key, whether keys have places or are hashed, are those of a plain dict."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jetlet.columns.groups
from jetlet.columns.groups import ROWS, Groups
from jetlet.columns.kernels import LeaveToPython

near = st.integers(-50, 50)
far = st.integers(-(2**63), 2**63 - 1)
edge = st.sampled_from([-(2**63), -(2**63) + 1, 2**63 - 2, 2**63 - 1])
batches = st.lists(
    st.lists(st.tuples(st.one_of(near, near, far, edge, st.none()), near), max_size=30), max_size=8
)


INT = pa.int64()


def rows_of(batch, kind=INT):
    keys = pa.array([key for key, _ in batch], kind)
    values = [value for _, value in batch]
    arrays = [keys, pa.array(values, pa.int64()), pa.array(values, pa.float64())]
    return pa.RecordBatch.from_arrays(arrays, names=["k0", "v0", "v1"])


def expected(batches):
    sums = {}
    for key, value in (row for batch in batches for row in batch):
        total, count = sums.get(key, (0, 0))
        sums[key] = total + value, count + 1
    return {key: (total, float(total), count) for key, (total, count) in sums.items()}


def taken(groups):
    found = groups.take()
    if found is None:
        return {}
    assert found.schema.names == ["k0", "v0", "v1", ROWS]
    keys, *others = (column.to_pylist() for column in found.columns)
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, zip(*others, strict=True), strict=True))


@given(batches=batches, rows_at_once=st.integers(1, 40), few=st.integers(0, 120))
def test_sums_are_those_of_a_dict(batches, rows_at_once, few):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jetlet.columns.groups, "ROWS_AT_ONCE", rows_at_once)
        patch.setattr(jetlet.columns.groups, "FEW_PLACES", few)
        patch.setattr(jetlet.columns.groups, "PLACES_PER_ROW", 1)
        groups = Groups()
        for batch in batches:
            groups.add(rows_of(batch), 50)
        assert taken(groups) == expected(batches)
        assert len(groups) == 0
        groups.add(rows_of([(3, 4)]), 50)
        assert taken(groups) == {3: (4, 4.0, 1)}


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint64()])
def test_small_keys_may_be_far_from_each_other(kind):
    groups = Groups()
    lowest = 0 if pa.types.is_unsigned_integer(kind) else -128
    batches = [[(100, 1), (lowest, 2)], [(127, 3), (100, 4)]]
    for batch in batches:
        groups.add(rows_of(batch, kind), 50)
    assert taken(groups) == expected(batches)


def test_keys_that_lie_apart_do_not_take_memory_for_all_between_them():
    groups = Groups()
    for start in range(0, 10**15, 10**14):
        groups.add(rows_of([(start + i, 1) for i in range(10)]), 50)
    assert len(taken(groups)) == 100


@pytest.mark.parametrize("sign", [-1, 1])
def test_keys_that_rise_or_fall_do_not_copy_all_sums_each_time(sign):
    groups, sizes = Groups(), set()
    batches = [[(sign * (100 * n + i), 1) for i in range(100)] for n in range(400)]
    for batch in batches:
        groups.add(rows_of(batch), 50)
        sizes.add(len(groups._places))
    assert len(sizes) < 20
    assert taken(groups) == expected(batches)


def test_one_key_far_away_does_not_take_memory_for_all_between():
    groups = Groups()
    many = [[(i % 100, 1) for i in range(100_000)]] * 5
    for batch in [*many, [(1_900_000, 1)]]:
        groups.add(rows_of(batch), 50)
    assert len(groups._places) == 100
    assert taken(groups) == expected([*many, [(1_900_000, 1)]])


def test_floats_overflow_as_in_python():
    groups = Groups()
    batches = [[(1, 1e308), (1, 1e308), (2, 1.0)], [(1, -float("inf"))]]
    for batch in batches:
        keys = pa.array([key for key, _ in batch], pa.int64())
        values = pa.array([value for _, value in batch], pa.float64())
        groups.add(pa.RecordBatch.from_arrays([keys, values], names=["k0", "v0"]), 0)
    found = {row["k0"]: (row["v0"], row[ROWS]) for row in groups.take().to_pylist()}
    assert str(found[1]) == "(nan, 3)"
    assert found[2] == (1.0, 1)


def test_rows_of_other_types_are_refused():
    groups = Groups()
    groups.add(rows_of([(1, 1)]), 50)
    with pytest.raises(LeaveToPython):
        groups.check(rows_of([(1, 1)], pa.int32()), 50)
    with pytest.raises(LeaveToPython):
        groups.check(rows_of([(1, 1)]), 2**62)
