"""Aggregation in one stage and two, by key and over all items."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import agg, whole_item
from jetlet.core import ProcessorContext
from jetlet.core.inbox import Inbox
from jetlet.errors import ItemFailedError, UnstableKeyError
from jetlet.processors import aggregate
from jetlet.processors.aggregate import (
    AccumulateByKeyProcessor,
    AccumulateProcessor,
    CombineByKeyProcessor,
    CombineProcessor,
)
from jetlet.testing import verify_processor

ONE_STAGE = agg.of(create=list, accumulate=lambda acc, x: [*acc, x], finish=len)
MANY = range(40)


def tens(x):
    return x // 10


def by_key(operation, key_fn=tens, *, is_final=False):
    return partial(AccumulateByKeyProcessor, [key_fn], operation, is_final=is_final, step="sum")


@pytest.fixture
def small_batches(monkeypatch):
    """So that many keys are more than are emitted in one call."""
    monkeypatch.setattr(aggregate, "BATCH_SIZE", 16)


class Outbox:
    """Takes everything."""

    def __init__(self):
        self.items = []

    def offer_batch(self, batch, ordinal=None):
        self.items += batch
        return True


def run(make, *batches, context=None):
    """Process batches and complete; returns what was emitted, and the processor."""
    processor, outbox = make(), Outbox()
    processor.init(outbox, context or ProcessorContext())
    for ordinal, batch in batches:
        inbox = Inbox(batch)
        while inbox:
            processor.process(ordinal, inbox)
    while not processor.complete():
        pass
    processor.close()
    return outbox.items, processor


class TestAccumulateByKey:
    def test_first_stage_emits_accumulators(self):
        verify_processor(
            by_key(agg.counting()),
            input=[1, 25, 3, 21, 2],
            expect_output=[(0, 3), (2, 2)],
            order_matters=False,
        )

    def test_only_stage_emits_results(self):
        verify_processor(
            by_key(ONE_STAGE, is_final=True),
            input=[1, 25, 3],
            expect_output=[(0, 2), (2, 1)],
            order_matters=False,
        )

    def test_item_itself_is_the_key(self):
        verify_processor(
            by_key(agg.counting(), whole_item),
            input=["a", None, "a", None],
            expect_output=[("a", 2), (None, 2)],
            order_matters=False,
        )

    def test_more_keys_than_are_emitted_at_once(self, small_batches):
        verify_processor(
            by_key(agg.summing(), whole_item),
            input=[*MANY, *MANY],
            expect_output=[(x, 2 * x) for x in MANY],
            order_matters=False,
        )

    def test_inputs_have_keys_and_operations_of_their_own(self):
        verify_processor(
            partial(
                AccumulateByKeyProcessor,
                [len, whole_item],
                agg.co_aggregate(agg.counting(), agg.summing()),
                is_final=True,
            ),
            inputs=[["a", "bc", "d"], [1, 3, 1]],
            expect_output=[(1, (2, 2)), (2, (1, 0)), (3, (0, 3))],
            order_matters=False,
        )

    def test_no_items_no_groups(self):
        verify_processor(by_key(agg.counting()), input=[], expect_output=[])

    def test_first_stage_passes_a_table_of_many_keys_on(self, monkeypatch):
        monkeypatch.setattr(aggregate, "MAX_PARTIAL_KEYS", 3)

        emitted, _ = run(by_key(agg.counting(), whole_item), *[(0, list(range(4)))] * 6)

        assert len(emitted) > 4
        totals = Counter()
        for key, count in emitted:
            totals[key] += count
        assert totals == dict.fromkeys(range(4), 6)

    def test_first_stage_passes_a_table_of_many_items_on(self, monkeypatch):
        monkeypatch.setattr(aggregate, "MAX_PARTIAL_ITEMS", 3)

        emitted, _ = run(by_key(agg.to_list(), whole_item), *[(0, list(range(4)))] * 6)

        assert len(emitted) > 4
        totals = defaultdict(list)
        for key, items in emitted:
            totals[key] += items
        assert totals == {key: [key] * 6 for key in range(4)}

    def test_first_stage_keeps_mere_numbers_whatever_their_items(self, monkeypatch):
        monkeypatch.setattr(aggregate, "MAX_PARTIAL_ITEMS", 3)

        emitted, _ = run(by_key(agg.counting(), whole_item), *[(0, list(range(4)))] * 6)

        assert emitted == [(key, 6) for key in range(4)]

    def test_only_stage_keeps_a_large_table(self, monkeypatch):
        monkeypatch.setattr(aggregate, "MAX_PARTIAL_KEYS", 5)

        emitted, _ = run(by_key(ONE_STAGE, whole_item, is_final=True), *[(0, range(8))] * 3)

        assert emitted == [(x, 3) for x in range(8)]

    def test_state_of_several_processors_is_put_together(self):
        processor = by_key(agg.counting(), whole_item)()
        outbox = Outbox()
        processor.init(outbox, ProcessorContext())
        processor.restore_from_snapshot(Inbox([("a", 2), ("b", 1), ("a", 3)]))
        processor.complete()

        assert outbox.items == [("a", 5), ("b", 1)]


class TestFailures:
    @pytest.mark.parametrize(
        ("make", "items", "culprit", "cause"),
        [
            (by_key(agg.counting(), len), ["a", 5, "b"], 5, TypeError),
            (by_key(agg.summing(len), lambda x: 0), ["a", 5, "b"], 5, TypeError),
            (by_key(agg.counting(), whole_item), ["a", ["x"], "b"], ["x"], UnstableKeyError),
            (by_key(agg.summing(len), lambda x: [x]), ["a", "b"], "a", UnstableKeyError),
            (by_key(agg.all_of(agg.counting(), agg.max_by())), [1, 2, 3 + 4j], 3 + 4j, TypeError),
            (
                partial(AccumulateProcessor, agg.summing(len), is_final=False),
                ["a", 5],
                5,
                TypeError,
            ),
            (partial(AccumulateProcessor, agg.max_by(), is_final=True), [1, "a"], "a", TypeError),
        ],
    )
    def test_item_is_named(self, make, items, culprit, cause):
        with pytest.raises(ItemFailedError) as caught:
            run(make, (0, items))

        assert caught.value.item == culprit
        assert isinstance(caught.value.__cause__, cause)

    def test_stop_iteration_of_a_key_function_loses_nothing(self):
        def key_fn(x):
            if x == 2:
                raise StopIteration
            return x

        with pytest.raises(ItemFailedError) as caught:
            run(by_key(agg.counting(), key_fn), (0, [1, 2, 3]))

        assert (caught.value.item, caught.value.step) == (2, "sum")
        assert isinstance(caught.value.__cause__, StopIteration)

    def test_error_that_does_not_happen_again_is_raised_as_it_is(self):
        calls = []

        def fail_once(x):
            calls.append(x)
            if len(calls) == 2:
                raise ConnectionError("gone")
            return x

        make = partial(AccumulateProcessor, agg.summing(fail_once), is_final=True)
        with pytest.raises(ConnectionError, match="gone"):
            run(make, (0, [1, 2, 3]))

    def test_group_is_named_if_its_result_fails(self):
        inverse = agg.summing().and_then(lambda total: 1 // total)

        with pytest.raises(ItemFailedError) as caught:
            run(partial(CombineByKeyProcessor, inverse, step="inverse"), (0, [("a", 1), ("b", 0)]))

        assert (caught.value.item, caught.value.step) == (("b", 0), "inverse")

    def test_group_is_named_if_it_cannot_be_combined(self):
        make = partial(CombineByKeyProcessor, agg.summing())

        with pytest.raises(ItemFailedError) as caught:
            run(make, (0, [("a", 1), ("b", 1), ("a", "x")]))

        assert caught.value.item == ("a", "x")

    @pytest.mark.parametrize("key", [math.nan, object(), (1, math.nan), 1.5 + math.nan * 1j])
    def test_key_without_a_stable_hash_fails_without_anything_to_route(self, key):
        with pytest.raises(ItemFailedError) as caught:
            run(by_key(agg.counting(), lambda x: key if x == 3 else x), (0, range(6)))

        assert caught.value.item == key or caught.value.item is key
        assert isinstance(caught.value.__cause__, UnstableKeyError)


class TestCombineByKey:
    def test_parts_of_a_group_become_one_result(self):
        emitted, _ = run(
            partial(CombineByKeyProcessor, agg.averaging()),
            (0, [("a", [2, 10]), ("b", [1, 4])]),
            (0, [("a", [1, 2])]),
        )

        assert emitted == [("a", 4.0), ("b", 4.0)]

    def test_more_groups_than_are_emitted_at_once(self, small_batches):
        verify_processor(
            partial(CombineByKeyProcessor, agg.counting()),
            input=[(x, 1) for x in [*MANY, *MANY]],
            expect_output=[(x, 2) for x in MANY],
            order_matters=False,
        )

    def test_what_is_too_large_for_memory_goes_to_disk_and_comes_back(self, small_batches):
        verify_processor(
            partial(CombineByKeyProcessor, agg.counting(), memory_limit=1000),
            input=[(x, 1) for x in [*MANY, *MANY]],
            expect_output=[(x, 2) for x in MANY],
            order_matters=False,
            may_wait=True,
        )

    def test_temporary_file_is_closed(self):
        emitted, processor = run(
            partial(CombineByKeyProcessor, agg.counting(), memory_limit=1000),
            *[(0, [(f"key {x}", 1) for x in range(i, i + 100)]) for i in range(0, 3000, 50)],
        )

        assert sum(count for _, count in emitted) == 6000
        assert len(emitted) == len(dict(emitted)) == 3050
        assert processor._table._file.is_closed


class TestGlobal:
    def test_first_stage_emits_one_accumulator(self):
        verify_processor(
            partial(AccumulateProcessor, agg.counting(), is_final=False),
            input=[1, None, 3],
            expect_output=[3],
        )

    def test_only_stage_emits_the_result(self):
        verify_processor(
            partial(AccumulateProcessor, ONE_STAGE, is_final=True),
            input=[1, None, 3],
            expect_output=[3],
        )

    def test_no_items_one_result(self):
        verify_processor(
            partial(AccumulateProcessor, agg.summing(), is_final=True), input=[], expect_output=[0]
        )

    def test_accumulators_become_one_result(self):
        verify_processor(
            partial(CombineProcessor, agg.counting()), input=[2, 3, 4], expect_output=[9]
        )

    def test_several_inputs(self):
        verify_processor(
            partial(
                AccumulateProcessor,
                agg.co_aggregate(agg.counting(), agg.summing()),
                is_final=True,
            ),
            inputs=[["a", "b"], [1, 2, 3]],
            expect_output=[(2, 6)],
        )

    def test_each_of_several_processors_takes_its_own_state_back(self):
        saved = []

        class Snapshot(Outbox):
            def offer_to_snapshot(self, key, value):
                saved.append((key, value))
                return True

        def make(index, parallelism):
            processor, outbox = AccumulateProcessor(agg.counting(), is_final=False), Snapshot()
            context = ProcessorContext(local_index=index, local_parallelism=parallelism)
            processor.init(outbox, context)
            return processor, outbox

        for index, items in enumerate(([1, 2], [3], [4, 5, 6])):
            processor, _ = make(index, 3)
            processor.process(0, Inbox(items))
            processor.save_to_snapshot()
        emitted = []
        for index in range(2):  # as many as there were, or fewer
            processor, outbox = make(index, 2)
            processor.restore_from_snapshot(Inbox(saved))
            processor.complete()
            emitted += outbox.items

        assert sorted(emitted) == [1, 5]


@given(
    st.lists(st.integers(-20, 20), max_size=40),
    st.integers(1, 4),
    st.integers(1, 7),
)
def test_two_stages_give_what_one_gives(items, processors, batch):
    operation = agg.all_of(agg.counting(), agg.summing(), agg.min_by(), agg.to_list())
    key_fn = lambda x: x % 3
    partials = []
    for index in range(processors):
        mine = items[index::processors]
        batches = [(0, mine[i : i + batch]) for i in range(0, len(mine), batch)]
        emitted, _ = run(by_key(operation, key_fn), *batches)
        partials.append((0, emitted))
    two, _ = run(partial(CombineByKeyProcessor, operation), *(p for p in partials if p[1]))

    groups = {}
    for x in items:
        groups.setdefault(key_fn(x), []).append(x)
    assert {k: (*r[:3], sorted(r[3])) for k, r in two} == {
        k: (len(xs), sum(xs), min(xs), sorted(xs)) for k, xs in groups.items()
    }


@pytest.mark.parametrize("items", [[], [3, 4]])
def test_of_no_items_nothing_is_emitted_where_it_is_asked_for(items):
    options = {"emits_empty": False}
    for is_final in (True, False):
        verify_processor(
            partial(AccumulateProcessor, agg.summing(), is_final=is_final, **options),
            input=items,
            expect_output=[7] if items else [],
        )
    verify_processor(
        partial(CombineProcessor, agg.summing(), **options),
        input=items,
        expect_output=[7] if items else [],
    )
