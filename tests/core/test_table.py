"""Table: a batch that is stored as columns is the same sequence of items."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import date, datetime
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.columns.items import events_table, items_table
from jetlet.core.table import VALUE, Entry, Record, Table, values_of

rows = st.lists(
    st.builds(
        dict,
        id=st.integers(-(2**63), 2**63 - 1) | st.none(),
        name=st.text(st.characters(exclude_categories=["Cs"])) | st.none(),
        price=st.floats(allow_nan=False),
        is_paid=st.booleans() | st.none(),
    ),
    min_size=1,
)


class Point(NamedTuple):
    x: int
    name: str


@given(rows, st.data())
def test_table_is_the_same_sequence_as_the_list(items, data):
    table = items_table(items)
    assert isinstance(table, Sequence)
    assert list(table) == items
    assert len(table) == len(items)
    index = data.draw(st.integers(-len(items), len(items) - 1))
    assert table[index] == items[index]
    cut = data.draw(st.slices(len(items)))
    assert list(table[cut]) == items[cut]
    assert list(items_table(items)[cut]) == items[cut]


@given(rows)
def test_slice_travels_with_nothing_but_its_rows(items):
    table = items_table(items * 20)[len(items) : 2 * len(items)]
    assert list(pickle.loads(pickle.dumps(table, protocol=5))) == items

    outside = []
    data = pickle.dumps(table, protocol=5, buffer_callback=outside.append)
    # From an odd place in memory, as in the middle of a packet.
    moved = [memoryview(b"x" + bytes(each.raw()))[1:] for each in outside]
    assert list(pickle.loads(data, buffers=moved)) == items


def test_slice_of_a_large_table_is_small():
    table = Table.of(pa.record_batch({"x": list(range(100_000))}))

    assert len(pickle.dumps(table[10:20], protocol=5)) < 2000


def test_items_are_values_tuples_and_named_tuples():
    assert list(items_table([1, 2])) == [1, 2]
    pairs = [("a", (1, 2.5)), ("b", (2, 0.5))]
    table = items_table(pairs)
    assert table.form == Entry((VALUE, Entry((VALUE, VALUE))))
    assert list(table) == pairs
    assert list(table.part(1)) == [(1, 2.5), (2, 0.5)]
    points = [Point(1, "one"), Point(2, "two")]
    made = list(items_table(points))
    assert made == points
    assert {type(point) for point in made} == {Point}


def test_timestamps_lie_beside_the_items():
    events = [(10, {"x": 1}), (20, {"x": 2})]
    table = events_table(events)
    assert table.form == Record(("x",))
    assert table.times.to_pylist() == [10, 20]
    assert list(table) == events
    assert list(table[1:]) == events[1:]
    assert list(table.without_times()) == [{"x": 1}, {"x": 2}]
    assert list(pickle.loads(pickle.dumps(table))) == events


def test_rows_are_filtered_and_taken_with_their_timestamps():
    table = events_table([(10, "a"), (20, "b"), (30, "c")])
    assert list(table.filter(pa.array([True, None, True]))) == [(10, "a"), (30, "c")]
    assert list(table.take(pa.array([2, 0]))) == [(30, "c"), (10, "a")]


@pytest.mark.parametrize(
    "items",
    [
        [],
        [1, 2.5],
        [1, True],
        [2**63],
        ["\ud800"],
        [{"a": 1}, {"b": 1}],
        [{}],
        [(1,), (1, 2)],
        [[1], [2]],
        [object()],
    ],
)
def test_what_columns_would_change_stays_a_list(items):
    assert items_table(items) is None


def test_values_that_python_has_other_types_for_come_as_in_pyarrow():
    columns = pa.record_batch(
        {
            "when": pa.array([0, None], pa.timestamp("us", "UTC")),
            "tags": pa.array([["a"], None]),
            "at": pa.array([{"x": 1}, None]),
            "counts": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
            "small": pa.array([1, None], pa.uint8()),
            "half": pa.array([0.5, None], pa.float32()),
        }
    )

    assert list(Table.of(columns)) == columns.to_pylist(maps_as_pydicts="strict")


DAY, LATER = date(1999, 12, 31), datetime(2026, 3, 29, 1, 2, 3, 456789)  # noqa: DTZ001
FIRST_AND_LAST = [datetime.min, datetime.max]  # noqa: DTZ901


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+02:00"])
@pytest.mark.parametrize("more", [[], [None], FIRST_AND_LAST])
def test_times_are_those_that_pyarrow_gives(unit, zone, more):
    values = [datetime(1969, 7, 20), LATER, *more]  # noqa: DTZ001
    whole = [value and value.replace(microsecond=0) for value in values]
    array = pa.array(whole if unit == "s" else values, pa.timestamp("us"))
    array = array.cast(pa.timestamp(unit), safe=False).cast(pa.timestamp(unit, zone))
    try:
        wanted = array.to_pylist()
    except (OverflowError, ValueError) as error:  # the first or last of all times, in a zone
        with pytest.raises(type(error)):
            values_of(array)
        return
    found = values_of(array)
    assert found == wanted
    assert list(map(repr, found)) == list(map(repr, wanted))
    assert values_of(array[1:]) == wanted[1:]


def test_dates_are_those_that_pyarrow_gives():
    array = pa.array([date.min, DAY, None, date.max])
    assert values_of(array) == array.to_pylist()
    assert values_of(array[1:2]) == [DAY]
    assert values_of(pa.array([None], pa.date32())) == [None]


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.date32()])
@pytest.mark.parametrize("sign", [-1, 1])
def test_times_that_python_cannot_have_are_refused_as_by_pyarrow(kind, sign):
    bits = pa.int32() if kind == pa.date32() else pa.int64()
    array = pa.array([sign * (2**30 if kind == pa.date32() else 2**61)], bits).cast(kind)
    with pytest.raises((OverflowError, ValueError)) as wanted:
        array.to_pylist()
    with pytest.raises(wanted.type):
        values_of(array)


def partial_table(rows, times=None):
    """A table of records whose second and fourth column are fetched when they are wanted."""
    batch = pa.RecordBatch.from_pylist(rows)
    names = tuple(batch.schema.names)
    there, others = batch.select(names[::2]), batch.select(names[1::2])
    return Table(there, Record(names), times, lambda: others)


@pytest.mark.parametrize("is_timed", [False, True])
def test_columns_that_are_fetched_late_go_with_the_rows(is_timed):
    rows = [{"a": i, "b": f"b{i}", "c": i / 2, "d": i % 3} for i in range(10)]
    times = pa.array(range(10)) if is_timed else None
    table = partial_table(rows, times)
    events = list(enumerate(rows)) if is_timed else rows
    mask = pa.array([i % 2 == 0 for i in range(10)])

    for find, wanted in (
        (lambda t: t[2:7], events[2:7]),
        (lambda t: t[::3], events[::3]),
        (lambda t: t.take(pa.array([3, 1])), [events[3], events[1]]),
        (lambda t: t.filter(mask)[1:], events[2::2]),
        (lambda t: t.without_times(), rows),
    ):
        found = find(partial_table(rows, times))
        assert found.is_partial
        assert len(found) == len(wanted)
        assert pickle.loads(pickle.dumps(found)).items() == wanted
        assert found.items() == wanted
        assert not found.is_partial
    assert table.columns.schema.names == ["a", "b", "c", "d"]


def test_fields_that_are_there_are_not_fetched():
    rows = [{"a": i, "b": f"b{i}", "c": i / 2, "d": i % 3} for i in range(10)]
    table = partial_table(rows)

    few = table.with_fields({"a", "c"})
    assert few.items() == [{"a": row["a"], "c": row["c"]} for row in rows]
    assert table.is_partial
    more = table.with_fields({"a", "b"})
    assert more.items() == [{"a": row["a"], "b": row["b"]} for row in rows]
    assert not table.is_partial
    assert table.with_fields(set()) is table
