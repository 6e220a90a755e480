"""The file of records: what is needed can be read, whatever is written over what is not."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.storage.record_index import ALL_BITS, FACTOR, LOCATION, LOCATION_BITS, RecordIndex
from jetlet.storage.record_log import LEAST_SEGMENTS, SIZES, RecordLog

SEGMENT = 256


class Table:
    """The newest record of each key, each of which has a hash of its own."""

    def __init__(self, log, number):
        self.log = log
        self.number = number
        self.index = RecordIndex()
        self.slots = {}

    def put(self, entries):
        numbers = [key * FACTOR & ALL_BITS for key in entries]
        places = self.log.append(self.number, numbers, entries.values())
        for key, number, place in zip(entries, numbers, places, strict=True):
            self._move(key, number, place)
        self.log.flush()
        self.log.clean(sum(map(len, entries.values())))

    def _move(self, key, number, place):
        self.index.forget_copies()
        if key in self.slots:
            self.log.leave((self.slots[key],))
            self.index.replace(number, self.slots[key], place)
        else:
            self.index.add(number, place)
        (self.slots[key],) = self.index.find(number)

    def remove(self, key):
        slot = self.slots.pop(key)
        self.index.forget_copies()
        self.index.remove(key * FACTOR & ALL_BITS, slot)
        self.log.leave((slot,))

    def move(self, records):
        for number, location, data in records:
            for key, slot in list(self.slots.items()):
                if slot & LOCATION == location:
                    (place,) = self.log.append(self.number, [number], [data])
                    self._move(key, number, place)

    def contents(self, sizes):
        found = {key: self.log.read(slot)[: sizes[key]] for key, slot in self.slots.items()}
        slots = list(self.slots.values())
        several = zip(self.slots, self.log.read_all(slots), strict=True)
        assert {key: data[: sizes[key]] for key, data in several} == found
        return found


@pytest.fixture
def file(tmp_path):
    with (tmp_path / "records").open("w+b", buffering=0) as opened:
        yield opened


KEYS = st.integers(0, 12)
DATA = st.builds(
    lambda size, byte: bytes([byte]) * size,
    st.one_of(st.integers(1, 60), st.sampled_from([*SIZES[1:9], 241, 257, 3000, 20_000])),
    st.integers(0, 255),
)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 1), st.dictionaries(KEYS, DATA, max_size=6)),
            st.tuples(st.just("remove"), st.integers(0, 1), KEYS),
            st.tuples(st.just("view"), st.integers(0, 1), st.none()),
            st.tuples(st.just("forget"), st.integers(0, 9), st.none()),
        ),
        max_size=80,
    )
)
def test_log_has_what_is_needed(tmp_path_factory, operations):
    path = tmp_path_factory.mktemp("log") / "records"
    with path.open("w+b", buffering=0) as opened:
        tables = {}
        log = RecordLog(opened, SEGMENT, tables.get)
        tables.update({n: Table(log, n) for n in range(2)})
        oracles, views = [{}, {}], []
        for name, n, argument in operations:
            if name == "put":
                tables[n].put(argument)
                oracles[n].update(argument)
            elif name == "remove" and argument in oracles[n]:
                tables[n].remove(argument)
                del oracles[n][argument]
            elif name == "view":
                view = log.view(tables[n].index.copy())
                views.append((n, view, sorted(oracles[n].values())))
            elif name == "forget" and views:
                views.pop(n % len(views))
        for table, oracle in zip(tables.values(), oracles, strict=True):
            sizes = {key: len(data) for key, data in oracle.items()}
            assert table.contents(sizes) == oracle
        for n, view, expected in views:
            found = [
                data
                for segment, units in view.segments
                for table, number, location, data in log.records(segment, units)
                if table == n and view.index.has(number, location)
            ]
            assert sorted(found) == expected


def test_file_does_not_grow_with_what_is_written(file):
    tables = {}
    log = RecordLog(file, 1 << 12, tables.get)
    tables[0] = table = Table(log, 0)
    table.put(dict.fromkeys(range(200), b"first" * 30))
    for turn in range(300):
        table.put({(turn * 7 + n) % 200: bytes([turn % 256]) * 150 for n in range(20)})
    needed = 200 * (16 + 150)
    assert file.seek(0, 2) < max(3 * needed, (LEAST_SEGMENTS + 2) << 12)


def test_views_keep_what_they_show_and_no_longer(file):
    tables = {}
    log = RecordLog(file, 1 << 12, tables.get)
    tables[0] = table = Table(log, 0)

    def write_over():
        for turn in range(100):
            table.put({key: bytes([turn]) * 200 for key in range(100)})

    write_over()
    size = file.seek(0, 2)
    view = log.view(table.index.copy())
    write_over()
    assert file.seek(0, 2) > 5 * size
    del view
    gc.collect()
    size = file.seek(0, 2)
    write_over()
    assert file.seek(0, 2) <= size + (1 << 12)  # the rest of the segment that was open


def test_long_records_are_marked_as_such(file):
    log = RecordLog(file, 1 << 16, {}.get)
    for size in (*SIZES[1:], SIZES[-1] + 1, 1 << 20):
        (place,) = log.append(1, [7], [b"x" * size])
        log.flush()
        assert log.read(place)[:size] == b"x" * size
        assert place >> LOCATION_BITS == (SIZES.index(size) if size in SIZES else len(SIZES))
