from __future__ import annotations

import operator
import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core.inbox import Inbox
from jetlet.core.partitioning import partition_id
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError, ItemFailedError
from jetlet.pipeline.errors import DeadLetter
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.sorting import sort
from jetlet.processors.sorting.sort import SortPart, SortProcessor
from jetlet.processors.sorting.spill import SpillFile
from jetlet.testing import verify_processor

first = operator.itemgetter(0)


class Collector:
    """An outbox that takes everything."""

    edge_count = 1

    def __init__(self):
        self.items = []
        self.batches = []
        self.entries = []

    def offer_batch(self, batch, ordinal=None):
        self.items += batch
        self.batches.append(len(batch))
        return True

    def offer_batch_to_snapshot(self, entries):
        self.entries += entries
        return True

    def has_unfinished_item(self):
        return False


def started(processor):
    processor.init(Collector(), ProcessorContext())
    return processor


def feed(processor, items, batch=100):
    for start in range(0, len(items), batch):
        processor.process(0, Inbox(items[start : start + batch]))


def finish(processor):
    while not processor.complete():
        pass
    processor.close()
    return processor.outbox.items


@pytest.fixture
def small_runs(monkeypatch):
    """Runs of a few items, so that few items make many runs."""
    monkeypatch.setattr(sort, "FEWEST_RUN_ITEMS", 4)
    monkeypatch.setattr(sort, "RUNS_IN_MEMORY", 4)


@pytest.fixture
def files(monkeypatch):
    """All files that are made."""
    made = []
    original = SpillFile.__init__

    def recorded(self, directory=None):
        original(self, directory)
        made.append(self)

    monkeypatch.setattr(SpillFile, "__init__", recorded)
    return made


ITEMS_IN_ORDER = list(range(1000, 1300))
ITEMS = [(3, "a"), (1, "b"), (2, "c"), (1, "d"), (3, "e"), (0, None), (1, "f")]


@pytest.mark.parametrize("memory_limit", [1, 400, 1_000_000])
@pytest.mark.parametrize("reverse", [False, True])
def test_harness(memory_limit, reverse, small_runs):
    verify_processor(
        partial(SortProcessor, first, reverse, memory_limit=memory_limit, fan_in=2),
        input=ITEMS * 5,
        expect_output=sorted(ITEMS * 5, key=first, reverse=reverse),
    )


def test_harness_without_a_key():
    items = ["b", "a", "", "c", "a"]
    verify_processor(SortProcessor, input=items, expect_output=sorted(items))


def test_harness_without_input():
    verify_processor(SortProcessor, input=[], expect_output=[])


def test_harness_with_dead_letters():
    policy = ErrorPolicy("by-price", "dead-letter", 1)
    verify_processor(
        partial(SortProcessor, first, memory_limit=1, policy=policy, data_ordinals=0),
        input=[(2,), (), (1,)],
        expect_outputs=[
            [(1,), (2,)],
            [DeadLetter((), "by-price", "IndexError", "tuple index out of range")],
        ],
    )


keys = st.one_of(st.integers(-5, 5), st.integers())


@settings(max_examples=80)
@given(
    items=st.lists(keys, max_size=400),
    reverse=st.booleans(),
    has_key=st.booleans(),
    memory_limit=st.sampled_from([1, 500, 3000, 20_000, 1_000_000]),
    fan_in=st.integers(2, 4),
    batch=st.integers(1, 50),
    run_items=st.integers(1, 40),
)
def test_order_is_that_of_sorted(items, reverse, has_key, memory_limit, fan_in, batch, run_items):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sort, "FEWEST_RUN_ITEMS", run_items)
        patch.setattr(sort, "RUNS_IN_MEMORY", 8)
        rows = list(enumerate(items)) if has_key else items
        key = operator.itemgetter(1) if has_key else None
        processor = started(SortProcessor(key, reverse, memory_limit=memory_limit, fan_in=fan_in))
        feed(processor, rows, batch)
        assert finish(processor) == sorted(rows, key=key, reverse=reverse)


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("batch", [1, 7])
def test_equal_keys_keep_their_order_wherever_the_work_is_stopped(batch, is_saved, small_runs):
    """In the middle of a spill, of a merge on disk, of both, and when work goes on afterwards."""
    stopped_in = set()
    for count in range(0, 250, 7):
        processor = started(SortProcessor(lambda item: 0, memory_limit=1500, fan_in=2))
        feed(processor, ITEMS_IN_ORDER[:count], batch)
        stopped_in.add((processor._spilling is not None, processor._compacting is not None))
        if is_saved:
            while not processor.save_to_snapshot():
                pass
            feed(processor, ITEMS_IN_ORDER[count:], batch)
            count = len(ITEMS_IN_ORDER)
        assert finish(processor) == ITEMS_IN_ORDER[:count]
    assert stopped_in == {(False, False), (True, False), (False, True), (True, True)}


def test_nan_keys_lose_no_items(small_runs):
    values = [float("nan"), 2.0, 1.0, float("nan"), 0.5] * 20
    processor = started(SortProcessor(first, memory_limit=200, fan_in=2))
    feed(processor, [(value, i) for i, value in enumerate(values)], 7)
    assert sorted(i for _, i in finish(processor)) == list(range(100))


def test_runs_on_disk_are_merged_when_there_are_many(small_runs, files):
    items = random.Random(1).choices(range(1000), k=3000)
    processor = started(SortProcessor(memory_limit=1000, fan_in=3))
    most_open = 0
    for start in range(0, 3000, 10):
        feed(processor, items[start : start + 10])
        most_open = max(most_open, sum(not file.is_closed for file in files))
    assert len(files) > 30
    assert most_open < 20
    assert finish(processor) == sorted(items)
    assert all(file.is_closed for file in files)


def test_little_data_never_touch_the_disk(files):
    processor = started(SortProcessor())
    feed(processor, list(range(10_000, 0, -1)), 1000)
    assert finish(processor) == list(range(1, 10_001))
    assert files == []


def test_space_on_disk_is_given_back_while_emitting(files):
    items = random.Random(1).choices(range(10**6), k=20_000)
    processor = started(SortProcessor(memory_limit=200_000))
    feed(processor, items, 500)
    assert files
    while not processor.complete():
        pass
    assert all(file.is_closed for file in files)
    assert processor.outbox.items == sorted(items)
    processor.close()


def test_close_in_the_middle_gives_all_files_back(files, small_runs):
    processor = started(SortProcessor(memory_limit=1000, fan_in=3))
    feed(processor, list(range(1000)))
    assert any(not file.is_closed for file in files)
    processor.close()
    assert all(file.is_closed for file in files)


def test_spilled_files_are_made_where_told(tmp_path):
    processor = started(SortProcessor(memory_limit=1, spill_dir=str(tmp_path / "missing")))
    with pytest.raises(FileNotFoundError):
        feed(processor, [2, 1])


@pytest.mark.parametrize("size", [1, 10_000])
def test_memory_falls_while_items_are_spilled(size):
    """With each batch twice as many items leave as arrive."""
    processor = started(SortProcessor(memory_limit=1_000_000))
    count = 60_000 if size == 1 else 1000
    rows = [(10**6 + i * 7919 % 100_000, "x" * (size + i % 2)) for i in range(count)]
    most = 0.0
    for start in range(0, len(rows), count // 120):
        feed(processor, rows[start : start + count // 120], 500)
        most = max(most, processor._memory)
    assert 1_000_000 < most < 1.2 * 1_000_000
    assert finish(processor) == sorted(rows)


def test_output_comes_in_batches():
    processor = started(SortProcessor())
    feed(processor, list(range(50_000)), 4096)
    finish(processor)
    assert len(processor.outbox.batches) > 10
    assert max(processor.outbox.batches) < 5000


def test_none_is_an_item():
    processor = started(SortProcessor(lambda item: item is not None))
    feed(processor, [1, None, 2])
    assert finish(processor) == [None, 1, 2]


def test_a_failing_key_names_the_item():
    processor = started(SortProcessor(lambda item: 1 / item, policy=ErrorPolicy("by-inverse")))
    with pytest.raises(ItemFailedError, match="by-inverse failed") as raised:
        feed(processor, [2, 0, 1])
        finish(processor)
    assert raised.value.item == 0
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("memory_limit", [1, 1_000_000])
def test_keys_that_cannot_be_compared_fail_with_advice(memory_limit, small_runs):
    processor = started(SortProcessor(memory_limit=memory_limit))
    with pytest.raises(ItemFailedError) as raised:
        feed(processor, [1, 2, 3, 4, None, "x"], 1)
        finish(processor)
    assert isinstance(raised.value.__cause__, InvalidArgumentError)
    assert "key=str" in str(raised.value.__cause__)
    processor.close()


def test_keys_of_two_runs_that_cannot_be_compared_fail_with_advice(small_runs):
    processor = started(SortProcessor())
    with pytest.raises(ItemFailedError) as raised:
        feed(processor, [1, 2, 3, 4], 4)
        feed(processor, ["a", "b", "c", "d"], 4)
        finish(processor)
    assert "key=str" in str(raised.value.__cause__)


def test_skipped_items_are_counted():
    counts = []
    processor = SortProcessor(lambda item: 1 / item, policy=ErrorPolicy("sort", "skip"))
    processor.init(Collector(), ProcessorContext(count=lambda *args: counts.append(args)))
    feed(processor, [2, 0, 1])
    assert finish(processor) == [2, 1]
    assert counts == [("skipped", 1)]


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(InvalidArgumentError, match="memory_limit"):
        SortProcessor(memory_limit=0)


@settings(max_examples=40)
@given(
    items=st.lists(st.integers(0, 9), max_size=120),
    cut=st.integers(0, 120),
    blocks=st.integers(0, 3),
    limits=st.tuples(*[st.sampled_from([1, 500, 2000, 10**6])] * 2),
    seed=st.integers(0, 100),
)
def test_state_goes_on_elsewhere(items, cut, blocks, limits, seed):
    """Also under another memory limit, with its parts in any order, in the middle of emitting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sort, "FEWEST_RUN_ITEMS", 4)
        rows = list(enumerate(items))
        by_value = operator.itemgetter(1)
        one = started(SortProcessor(by_value, memory_limit=limits[0], fan_in=2))
        feed(one, rows[:cut], 5)
        if cut >= len(rows):
            for _ in range(blocks):
                one.complete()
        while not one.save_to_snapshot():
            pass
        one.close()
        entries = one.outbox.entries
        assert len({key for key, _ in entries}) == len(entries)
        random.Random(seed).shuffle(entries)
        other = started(SortProcessor(by_value, memory_limit=limits[1], fan_in=2))
        other.restore_from_snapshot(Inbox(entries))
        assert other.finish_snapshot_restore()
        feed(other, rows[cut:], 5)
        assert one.outbox.items + finish(other) == sorted(rows, key=by_value)


def test_what_was_on_disk_is_not_taken_for_being_in_memory(small_runs):
    one = started(SortProcessor(memory_limit=1500))
    feed(one, ITEMS_IN_ORDER, 7)
    while not one.save_to_snapshot():
        pass
    one.close()
    other = started(SortProcessor(memory_limit=1500))
    other.restore_from_snapshot(Inbox(one.outbox.entries))
    other.finish_snapshot_restore()
    assert 0 < other._items_in_memory < 100
    for item in ITEMS_IN_ORDER:
        feed(other, [item])
        assert 0 < other._items_in_memory < 100
    assert finish(other) == sorted(ITEMS_IN_ORDER * 2)


def test_all_parts_of_the_state_go_where_an_all_to_one_edge_leads():
    assert {partition_id(SortPart(0, i)) for i in range(100)} == {partition_id(None)}
