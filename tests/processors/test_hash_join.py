from __future__ import annotations

import pickle
import sys
from functools import partial
from itertools import product

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError, ItemFailedError, UnstableKeyError
from jetlet.pipeline.errors import DeadLetter
from jetlet.pipeline.functions import entry_key, entry_value, whole_item
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.hash_join import HashJoinProcessor
from jetlet.testing import verify_processor

DIVISION = (
    "division by zero" if sys.version_info >= (3, 14) else "integer division or modulo by zero"
)
"""What Python says."""

ORDERS = [("o1", 1), ("o2", 2), ("o3", 9), ("o4", 1)]
CUSTOMERS = [(1, "Ann"), (2, "Bob"), (3, "Cid")]


def verify_join(supplier, probe, *builds, expect_output):
    """Through the harness, with the build sides drained first."""
    verify_processor(
        supplier,
        inputs=[probe, *builds],
        priorities=[1, *[0] * len(builds)],
        expect_output=expect_output,
    )


def nested_loops(probe, builds, probe_keys, build_keys, inner):
    """The result of a join by its definition."""
    out = []
    for item in probe:
        sides = []
        for build, *keys, is_inner in zip(builds, probe_keys, build_keys, inner, strict=True):
            matches = [b for b in build if keys[1](b) == keys[0](item)]
            sides.append(matches or ([] if is_inner else [None]))
        out += [(item, *row) for row in product(*sides)]
    return out


@pytest.mark.parametrize("action", ["fail", "skip"])
def test_left_outer_join_has_none_for_what_is_missing(action):
    verify_join(
        partial(HashJoinProcessor, [entry_key], [entry_value], policy=ErrorPolicy("join", action)),
        ORDERS,
        CUSTOMERS,
        expect_output=[
            (("o1", 1), (1, "Ann")),
            (("o2", 2), (2, "Bob")),
            (("o3", 9), None),
            (("o4", 1), (1, "Ann")),
        ],
    )


@pytest.mark.parametrize("action", ["fail", "skip"])
def test_inner_join_drops_what_is_missing(action):
    verify_join(
        partial(
            HashJoinProcessor,
            [entry_key],
            [entry_value],
            inner=True,
            policy=ErrorPolicy("join", action),
        ),
        ORDERS,
        CUSTOMERS,
        expect_output=[
            (("o1", 1), (1, "Ann")),
            (("o2", 2), (2, "Bob")),
            (("o4", 1), (1, "Ann")),
        ],
    )


@pytest.mark.parametrize("inner", [False, True])
def test_output_and_values_are_made_by_functions(inner):
    verify_join(
        partial(
            HashJoinProcessor,
            [entry_key],
            [entry_value],
            lambda order, name: f"{order[0]} {name}",
            inner=inner,
            build_value_fns=[entry_value],
        ),
        ORDERS,
        CUSTOMERS,
        expect_output=["o1 Ann", "o2 Bob", *([] if inner else ["o3 None"]), "o4 Ann"],
    )


@pytest.mark.parametrize("action", ["fail", "skip"])
def test_several_values_of_a_key_give_every_combination(action):
    verify_join(
        partial(
            HashJoinProcessor,
            [entry_key, entry_key],
            [whole_item, whole_item],
            build_value_fns=[entry_value, entry_value],
            policy=ErrorPolicy("join", action),
        ),
        [1, 2, 3],
        [(1, "a"), (2, "b"), (1, "c")],
        [(1, "x"), (1, "y"), (3, "z")],
        expect_output=[
            (1, "a", "x"),
            (1, "a", "y"),
            (1, "c", "x"),
            (1, "c", "y"),
            (2, "b", None),
            (3, None, "z"),
        ],
    )


def test_a_value_of_none_is_found():
    verify_join(
        partial(
            HashJoinProcessor, [entry_key], [whole_item], inner=True, build_value_fns=[entry_value]
        ),
        [1, 2],
        [(1, None)],
        expect_output=[(1, None)],
    )


def test_none_is_a_key():
    verify_join(
        partial(HashJoinProcessor, [whole_item], [whole_item], inner=True),
        [1, None],
        [None],
        expect_output=[(None, None)],
    )


class Odd:
    """Cannot be compared, like an array."""

    def __eq__(self, other):
        raise ValueError("ambiguous")

    __hash__ = object.__hash__


def test_values_are_never_compared():
    odd = Odd()
    processor = HashJoinProcessor(
        [lambda item: 1] * 2, [lambda item: 1] * 2, lambda *row: len(row), inner=True
    )
    processor.init(outbox := Recorder(), ProcessorContext())
    processor.process(1, Inbox([odd]))
    processor.process(2, Inbox([odd]))
    processor.process(0, Inbox([odd]))
    assert outbox.batches == [[3]]


class Recorder:
    """An outbox that takes a batch in every second call."""

    edge_count = 1

    def __init__(self, is_slow=False):
        self.batches = []
        self.entries = []
        self._is_slow = is_slow
        self._is_full = False

    def offer_batch(self, batch, ordinal=None):
        if self._is_full:
            self._is_full = False
            return False
        self._is_full = self._is_slow
        self.batches.append(list(batch))
        return True

    def save_later(self, entries):
        self.entries += entries


def test_many_matches_are_emitted_bit_by_bit():
    made = []

    def to_output(item, value):
        made.append(value)
        return value

    processor = HashJoinProcessor([lambda item: 1], [lambda item: 1], to_output)
    processor.init(outbox := Recorder(is_slow=True), ProcessorContext())
    processor.process(1, Inbox(list(range(5000))))
    inbox = Inbox(["item"])
    processor.process(0, inbox)
    assert inbox
    assert len(made) <= 2 * 1024
    while inbox:
        processor.process(0, inbox)
    assert [value for batch in outbox.batches for value in batch] == list(range(5000))
    assert max(map(len, outbox.batches)) == 1024


rows = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 100)), max_size=12)


@settings(max_examples=60)
@given(
    probe=st.lists(st.integers(0, 8), max_size=12),
    builds=st.lists(rows, min_size=1, max_size=3),
    inner=st.lists(st.booleans(), min_size=3, max_size=3),
    action=st.sampled_from(["fail", "skip"]),
    is_unique=st.booleans(),
)
def test_results_are_those_of_nested_loops(probe, builds, inner, action, is_unique):
    if is_unique:
        builds = [list(dict(build).items()) for build in builds]
    probe_keys = [whole_item, lambda item: item // 2, lambda item: 8 - item][: len(builds)]
    build_keys = [entry_key] * len(builds)
    inner = inner[: len(builds)]
    verify_processor(
        partial(
            HashJoinProcessor,
            build_keys,
            probe_keys,
            inner=inner,
            policy=ErrorPolicy("join", action),
        ),
        inputs=[probe, *builds],
        priorities=[1, *[0] * len(builds)],
        expect_output=nested_loops(probe, builds, probe_keys, build_keys, inner),
        snapshots=False,
    )


# --- Errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("customers", [CUSTOMERS, CUSTOMERS * 2], ids=["unique", "several"])
def test_a_failing_output_names_the_item(inner, customers):
    with pytest.raises(ItemFailedError, match="names failed") as raised:
        verify_join(
            partial(
                HashJoinProcessor,
                [entry_key],
                [entry_value],
                lambda order, customer: 1 / (order[1] - 2),
                inner=inner,
                policy=ErrorPolicy("names"),
            ),
            ORDERS,
            customers,
            expect_output=[],
        )
    assert raised.value.item == ("o2", 2)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("side", ["build", "probe", "value"])
def test_failing_keys_and_values_name_the_item(side):
    def inverse(item):
        return 1 / item

    with pytest.raises(ItemFailedError) as raised:
        verify_join(
            partial(
                HashJoinProcessor,
                [inverse if side == "build" else whole_item],
                [inverse if side == "probe" else whole_item],
                build_value_fns=[inverse if side == "value" else None],
            ),
            [1, 0, 2] if side == "probe" else [1],
            [1] if side == "probe" else [1, 0, 2],
            expect_output=[],
        )
    assert raised.value.item == 0
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("build", [[1], [1, 1], [1, [2]]], ids=["unique", "several", "build"])
def test_keys_that_cannot_be_looked_up_are_explained(build):
    with pytest.raises(ItemFailedError) as raised:
        verify_join(
            partial(HashJoinProcessor, [whole_item], [whole_item]),
            [1, [2]],
            build,
            expect_output=[],
        )
    assert raised.value.item == [2]
    assert isinstance(raised.value.__cause__, UnstableKeyError)
    assert "tuple(key)" in str(raised.value.__cause__)


def test_dead_letters_leave_by_their_edge():
    letter = partial(DeadLetter, stage="names", error_type="ZeroDivisionError")
    verify_processor(
        partial(
            HashJoinProcessor,
            [lambda item: 6 // item],
            [lambda item: 6 // item],
            lambda item, match: (item, match, 1 / (match - 2)),
            policy=ErrorPolicy("names", "dead-letter", 1),
            data_ordinals=0,
        ),
        inputs=[[1, 0, 2, 3], [1, 2, 3, 1, 0]],
        priorities=[1, 0],
        expect_outputs=[
            [(1, 1, -1.0), (1, 1, -1.0), (3, 3, 1.0)],
            [
                letter(0, error=DIVISION),
                letter(0, error=DIVISION),
                letter(2, error="division by zero"),
            ],
        ],
    )


def test_an_item_of_the_build_side_is_rejected_by_one_processor_only():
    counts = []
    for index in range(3):
        processor = HashJoinProcessor(
            [lambda item: 1 / item], [whole_item], policy=ErrorPolicy("join", "skip")
        )
        context = ProcessorContext(
            local_index=index, local_parallelism=3, count=lambda *args: counts.append(args)
        )
        processor.init(Recorder(), context)
        processor.process(1, Inbox([0, 1]))
    assert counts == [("skipped", 1)]


def test_functions_that_do_not_match_are_refused():
    with pytest.raises(InvalidArgumentError, match="2 build_key_fns, 1 probe_key_fns"):
        HashJoinProcessor([whole_item, whole_item], [whole_item])
    with pytest.raises(InvalidArgumentError, match="2 of inner"):
        HashJoinProcessor([whole_item], [whole_item], inner=[True, False])
    with pytest.raises(InvalidArgumentError):
        HashJoinProcessor([], [])


# --- Snapshots --------------------------------------------------------------------------------


def test_tables_are_saved_once_and_restored_everywhere():
    def started(index):
        processor = HashJoinProcessor([entry_key], [whole_item], build_value_fns=[entry_value])
        processor.init(
            outbox := Recorder(), ProcessorContext(local_index=index, local_parallelism=2)
        )
        return processor, outbox

    build = [(i % 2000, i) for i in range(3000)]
    entries = []
    for index in range(2):
        processor, outbox = started(index)
        processor.process(1, Inbox(build))
        while not processor.save_to_snapshot():
            pass
        entries += outbox.entries
    assert len({key for key, _ in entries}) == len(entries) > 1
    assert all(isinstance(key, BroadcastKey) for key, _ in entries)
    for index in range(2):
        processor, outbox = started(index)
        processor.restore_from_snapshot(Inbox(pickle.loads(pickle.dumps(entries))))
        assert processor.finish_snapshot_restore()
        processor.process(0, Inbox([7, 1999, 5000]))
        assert outbox.batches == [[(7, 7), (7, 2007), (1999, 1999), (5000, None)]]


def test_arguments_travel_pickled():
    supplier = cloudpickle.loads(
        cloudpickle.dumps(lambda: HashJoinProcessor([lambda b: b[0]], [lambda item: item]))
    )
    verify_join(supplier, [1], [(1, "a")], expect_output=[(1, (1, "a"))])
