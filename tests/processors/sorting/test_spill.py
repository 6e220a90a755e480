from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from operator import add

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.errors import InvalidArgumentError, UnstableKeyError
from jetlet.processors.sorting.spill import SpillFile, SpillingTable, average_size, size_of

# --- Sizes ------------------------------------------------------------------------------------


def test_size_of_rows_is_what_they_take_up():
    row = (10**9, "some text")
    expected = sum(map(sys.getsizeof, [row, *row]))
    assert expected <= size_of(row) <= expected + 3 * 16


def test_size_of_a_large_list_is_sampled_from_all_of_it():
    texts = [str(i) * 10 for i in range(10_000, 20_000)]
    expected = sys.getsizeof(texts) + sum(map(sys.getsizeof, texts))
    assert expected * 0.8 < size_of(texts) < expected * 1.2


def test_what_the_interpreter_shares_takes_no_room():
    assert size_of(None) == size_of(True) == size_of(7) == 0


@dataclass
class Plain:
    text: str = field(default_factory=lambda: "x" * 1000)


@dataclass(slots=True)
class Slotted:
    text: str = field(default_factory=lambda: "x" * 1000)


@pytest.mark.parametrize(
    "item",
    [
        Plain(),
        Slotted(),
        {"a": "x" * 1000},
        ["x" * 1000],
        {"x" * 1000},
        {"x" * 1000: 1},
        ([("x" * 1000,)],),
    ],
    ids=repr,
)
def test_size_of_an_object_has_what_is_inside(item):
    assert 1000 < size_of(item) < 2500


def test_size_of_takes_objects_that_refer_to_themselves():
    loop: list[object] = []
    loop.append(loop)
    assert size_of(loop) > 0


class BrokenSize:
    def __sizeof__(self):
        raise RuntimeError("no")


def test_size_of_takes_objects_that_do_not_know_their_size():
    assert size_of(BrokenSize()) > 0


class Buffers:
    __slots__ = ()
    nbytes = 1_000_000


def test_size_of_counts_buffers_that_an_object_admits_to():
    assert size_of(Buffers()) > 1_000_000


def test_average_size_counts_the_batch_own_slot():
    assert average_size([None, None]) == 8


# --- Files ------------------------------------------------------------------------------------


def test_chunks_are_read_in_any_order():
    file = SpillFile()
    first = file.append([1, None, "x"])
    second = file.append([(2, b"y")])
    assert file.read(second) == [(2, b"y")]
    assert file.read(first) == [1, None, "x"]
    assert file.chunks == 2
    file.close()
    file.close()
    assert file.is_closed


def test_chunks_move_between_files_as_bytes():
    one, other = SpillFile(), SpillFile()
    chunk = one.append(["item"])
    other.append([0] * 100)
    moved = other.append_bytes(one.read_bytes(chunk))
    assert other.read(moved) == ["item"]
    one.close()
    other.close()


def test_functions_and_local_classes_are_written_too():
    class Local:
        value = 3

    file = SpillFile()
    function, instance = file.read(file.append([lambda x: x + 1, Local()]))
    assert function(1) == 2
    assert instance.value == 3
    assert isinstance(instance, Local)
    file.close()


def test_what_cannot_be_pickled_is_refused_with_advice():
    file = SpillFile()
    with pytest.raises(InvalidArgumentError, match="memory_limit"):
        file.append([threading.Lock()])
    file.close()


def test_a_file_has_no_name(tmp_path):
    file = SpillFile(str(tmp_path))
    file.append([1])
    assert list(tmp_path.iterdir()) == []
    file.close()


def test_a_killed_process_leaves_nothing_behind(tmp_path):
    code = (
        "import os, sys; from jetlet.processors.sorting.spill import SpillFile\n"
        "file = SpillFile(sys.argv[1]); file.append([1] * 1000); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        SpillFile(str(tmp_path / "missing"))
    assert any(str(tmp_path) in note and "TMPDIR" in note for note in raised.value.__notes__)


def test_a_full_disk_is_reported_with_the_place(monkeypatch, tmp_path):
    def pwrite(fd, data, offset):
        raise OSError(28, "No space left on device")

    file = SpillFile(str(tmp_path))
    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="No space") as raised:
        file.append([1])
    assert any(str(tmp_path) in note for note in raised.value.__notes__)
    file.close()


def test_writes_and_reads_that_are_cut_short_go_on(monkeypatch):
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 5), at))
    file = SpillFile()
    chunks = [file.append([i, "text"]) for i in range(3)]
    assert [file.read(chunk) for chunk in chunks] == [[i, "text"] for i in range(3)]
    file.close()


# --- Tables -----------------------------------------------------------------------------------


def drained(table):
    """All entries of a table, which must have each key once."""
    result = {}
    for batch in table.drain():
        for key, accumulator in batch:
            assert key not in result
            result[key] = accumulator
    return result


keys = st.one_of(st.integers(0, 50), st.text(max_size=2), st.none(), st.tuples(st.integers(0, 3)))


@settings(max_examples=60)
@given(
    batches=st.lists(st.lists(st.tuples(keys, st.integers()), max_size=30), max_size=8),
    limit=st.sampled_from([1, 300, 1000, 3000, 10_000]),
)
def test_the_entries_are_those_of_a_dict_in_order_of_accumulation(batches, limit):
    spilling = SpillingTable(add, limit)
    expected: dict[object, list[int]] = {}
    for batch in batches:
        for key, value in batch:
            spilling.table.setdefault(key, []).append(value)
            expected.setdefault(key, []).append(value)
        spilling.maybe_spill()
    assert drained(spilling) == expected
    spilling.close()


@settings(max_examples=30)
@given(
    batches=st.lists(st.lists(st.tuples(keys, st.integers()), max_size=30), max_size=8),
    limit=st.sampled_from([1, 1000, 10_000]),
)
def test_parts_hold_everything_and_change_nothing(batches, limit):
    spilling = SpillingTable(add, limit)
    expected: Counter[object] = Counter()
    for batch in batches:
        spilling.add(batch)
        for key, value in batch:
            expected[key] += value
        spilling.maybe_spill()
    copy = SpillingTable(add)
    for part in spilling.parts():
        copy.add(part)
    assert copy.table == dict(expected)
    assert drained(spilling) == dict(expected)


@settings(max_examples=40)
@given(
    batches=st.lists(st.lists(st.tuples(keys, st.integers()), max_size=30), max_size=6),
    limit=st.sampled_from([1, 300, 1000, 10_000]),
    size=st.integers(1, 8),
)
def test_parts_are_what_is_left_at_every_step_of_draining(batches, limit, size):
    spilling = SpillingTable(add, limit)
    expected: dict[object, list[int]] = {}
    for batch in batches:
        for key, value in batch:
            spilling.table.setdefault(key, []).append(value)
            expected.setdefault(key, []).append(value)
        spilling.maybe_spill()
    for drained_batch in spilling.drain(size):
        for key, values in drained_batch:
            assert expected.pop(key) == values
        left: dict[object, list[int]] = {}
        for part in spilling.parts():
            for key, values in part:
                left[key] = left.get(key, []) + values
        assert left == expected
    spilling.close()


def test_a_table_within_its_bound_stays_in_memory_and_in_order():
    table = SpillingTable(add, 1_000_000)
    for i in range(2500):
        table.table[i] = i
    table.maybe_spill()
    assert not table.has_spilled
    batches = list(table.drain(1000))
    assert [len(batch) for batch in batches] == [1000, 1000, 500]
    assert [key for batch in batches for key, _ in batch] == list(range(2500))
    assert len(table) == 0


def test_memory_stays_near_the_bound():
    limit = 1_000_000
    table = SpillingTable(add, limit)
    most = 0
    for start in range(0, 100_000, 500):
        table.add([(f"key number {i}", i) for i in range(start, start + 500)])
        table.maybe_spill()
        parts = (table.table, table._leaving)
        size = sum(sys.getsizeof(item) for part in parts for pair in part.items() for item in pair)
        most = max(most, size + sum(map(sys.getsizeof, parts)))
    assert table.has_spilled
    assert most < 1.1 * limit
    assert len(drained(table)) == 100_000


def test_accumulators_that_grow_are_noticed():
    table = SpillingTable(add, 1_000_000)
    for _ in range(50):
        for key in range(100):
            table.table.setdefault(key, []).extend(range(1000, 1050))
        table.maybe_spill()
    assert table.has_spilled
    assert {key: len(value) for key, value in drained(table).items()} == dict.fromkeys(
        range(100), 2500
    )


def test_no_call_moves_more_than_a_few_entries():
    table = SpillingTable(add, 1_000_000)
    table.add([(i, "x" * 100) for i in range(50_000)])
    table.maybe_spill()
    assert len(table) == 50_000  # set aside
    assert table.table == {}
    table.maybe_spill()
    assert 40_000 < len(table) < 50_000
    steps = sum(1 for batch in table.drain() if not batch)
    assert steps > 40


def test_a_table_that_has_left_keeps_no_slots():
    table = SpillingTable(add, 100_000)
    table.add([(i, i) for i in range(10_000)])
    table.maybe_spill()
    slots = sys.getsizeof(table._leaving)
    while table._leaving:
        table.maybe_spill()
    assert sys.getsizeof(table._leaving) < slots / 100
    table.close()


def test_a_bucket_that_is_too_large_is_spread_again(monkeypatch):
    made = []
    original = SpillFile.__init__

    def counted(self, directory=None):
        made.append(self)
        original(self, directory)

    monkeypatch.setattr(SpillFile, "__init__", counted)
    table = SpillingTable(add, 20_000)
    for start in range(0, 20_000, 500):
        table.add([(i, 1) for i in range(start, start + 500)])
        table.maybe_spill()
    result = {}
    most = 0
    for batch in table.drain():
        result.update(batch)
        deepest = table
        while deepest._child is not None:
            deepest = deepest._child
        most = max(most, len(deepest))
    assert result == dict.fromkeys(range(20_000), 1)
    assert most < 400  # of about 625 in a bucket
    assert len(made) > 10
    assert all(file.is_closed for file in made)


def test_close_gives_files_back_in_the_middle_of_draining(monkeypatch):
    made = []
    original = SpillFile.__init__

    def counted(self, directory=None):
        made.append(self)
        original(self, directory)

    monkeypatch.setattr(SpillFile, "__init__", counted)
    table = SpillingTable(add, 20_000)
    for start in range(0, 20_000, 500):
        table.add([(i, 1) for i in range(start, start + 500)])
        table.maybe_spill()
    results = table.drain()
    while not next(results):
        pass
    table.close()
    assert len(made) > 1
    assert all(file.is_closed for file in made)


def test_without_combine_nothing_is_spilled():
    table = SpillingTable(None, 1)
    table.add((i, i) for i in range(1000))
    table.maybe_spill()
    assert not table.has_spilled
    with pytest.raises(InvalidArgumentError, match="combine"):
        table.add([(1, 1)])


def test_equal_keys_of_different_types_are_one():
    table = SpillingTable(add, 1)
    for key in (1, 1.0, True):
        table.add([(key, 1), ("other", 1)])
        table.maybe_spill()
    assert drained(table) == {1: 3, "other": 3}


def test_a_key_without_a_stable_hash_is_refused_when_it_is_spilled():
    table = SpillingTable(add, 1)
    table.add([(object(), 1), (object(), 2)])
    table.maybe_spill()
    with pytest.raises(UnstableKeyError):
        list(table.drain())
    table.close()


def test_a_bound_of_nothing_is_refused():
    with pytest.raises(InvalidArgumentError, match="memory_limit"):
        SpillingTable(add, 0)
