from __future__ import annotations

from collections import defaultdict
from functools import partial

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.errors import InvalidArgumentError, ItemFailedError, UnstableKeyError
from jetlet.pipeline.errors import DeadLetter
from jetlet.pipeline.functions import whole_item
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.stateful import FILTER, FLAT_MAP, MAP, StatefulProcessor
from jetlet.testing import verify_processor


def parity(item):
    return item % 2


def count(state, item):
    """The number of items so far, with the item."""
    state.append(item)
    return len(state), item


def count_by_key(state, key, item):
    state.append(item)
    return key, len(state), item


def is_new_maximum(state, *args):
    item = args[-1]
    if state and state[0] >= item:
        return False
    state[:] = [item]
    return True


def with_previous(state, *args):
    """The item and the one before it, if there is one."""
    item = args[-1]
    previous = list(state)
    state[:] = [item]
    return [*previous, item]


ITEMS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def test_map_by_key():
    verify_processor(
        partial(StatefulProcessor, MAP, list, count_by_key, parity),
        input=[3, 1, 4, 5, 2],
        expect_output=[(1, 1, 3), (1, 2, 1), (0, 1, 4), (1, 3, 5), (0, 2, 2)],
    )


def test_map_of_all_items():
    verify_processor(
        partial(StatefulProcessor, MAP, list, count),
        input=["a", None, "b"],
        expect_output=[(1, "a"), (2, None), (3, "b")],
    )


def test_filter_by_key():
    verify_processor(
        partial(StatefulProcessor, FILTER, list, is_new_maximum, parity),
        input=ITEMS,
        expect_output=[3, 4, 5, 9, 6],
    )


def test_filter_of_all_items():
    verify_processor(
        partial(StatefulProcessor, FILTER, list, is_new_maximum),
        input=ITEMS,
        expect_output=[3, 4, 5, 9],
    )


def test_flat_map_by_key():
    verify_processor(
        partial(StatefulProcessor, FLAT_MAP, list, with_previous, parity),
        input=[1, 2, 3, 4],
        expect_output=[1, 2, 1, 3, 2, 4],
    )


def test_flat_map_of_all_items():
    verify_processor(
        partial(StatefulProcessor, FLAT_MAP, list, with_previous),
        input=[1, 2, 3],
        expect_output=[1, 1, 2, 2, 3],
    )


def test_flat_map_takes_any_iterable():
    verify_processor(
        partial(StatefulProcessor, FLAT_MAP, list, lambda state, item: (x for x in range(item))),
        input=[2, 0, 1],
        expect_output=[0, 1, 0],
    )


@pytest.mark.parametrize("action", ["fail", "skip"])
@pytest.mark.parametrize(
    ("kind", "key_fn", "fn", "expected"),
    [
        (MAP, parity, count_by_key, [(9, (1, 1, 3)), (5, (1, 2, 1)), (7, (0, 1, 4))]),
        (MAP, whole_item, count_by_key, [(9, (3, 1, 3)), (5, (1, 1, 1)), (7, (4, 1, 4))]),
        (MAP, None, count, [(9, (1, 3)), (5, (2, 1)), (7, (3, 4))]),
        (FILTER, parity, is_new_maximum, [(9, 3), (7, 4)]),
        (FILTER, None, is_new_maximum, [(9, 3), (7, 4)]),
        (FLAT_MAP, parity, with_previous, [(9, 3), (5, 3), (5, 1), (7, 4)]),
        (FLAT_MAP, None, with_previous, [(9, 3), (5, 3), (5, 1), (7, 1), (7, 4)]),
    ],
)
def test_results_of_events_have_their_times(kind, key_fn, fn, expected, action):
    policy = ErrorPolicy("step", action, takes_events=True)
    verify_processor(
        partial(StatefulProcessor, kind, list, fn, key_fn, policy=policy),
        input=[(9, 3), (5, 1), (7, 4)],
        expect_output=expected,
    )


def test_none_is_a_result_like_any_other():
    verify_processor(
        partial(StatefulProcessor, MAP, list, lambda state, item: None),
        input=[1, 2],
        expect_output=[None, None],
    )


def test_the_item_can_be_the_key():
    verify_processor(
        partial(StatefulProcessor, MAP, list, count_by_key, whole_item),
        input=["a", "b", "a"],
        expect_output=[("a", 1, "a"), ("b", 1, "b"), ("a", 2, "a")],
    )


@given(
    items=st.lists(st.integers(0, 20)),
    kind=st.sampled_from([MAP, FILTER, FLAT_MAP]),
    is_keyed=st.booleans(),
    action=st.sampled_from(["fail", "skip"]),
)
def test_results_are_those_of_a_plain_loop(items, kind, is_keyed, action):
    functions = {MAP: lambda s, *a: (len(s), *a), FILTER: is_new_maximum, FLAT_MAP: with_previous}

    def fn(state, *args):
        result = functions[kind](state, *args)
        state.append(args[-1])
        return result

    states: defaultdict[object, list[int]] = defaultdict(list)
    expected = []
    for item in items:
        args = (parity(item), item) if is_keyed else (item,)
        result = fn(states[parity(item) if is_keyed else None], *args)
        if kind == FLAT_MAP:
            expected += result
        elif kind == MAP or result:
            expected.append(result if kind == MAP else item)
    verify_processor(
        partial(
            StatefulProcessor,
            kind,
            list,
            fn,
            parity if is_keyed else None,
            policy=ErrorPolicy("step", action),
        ),
        input=items,
        expect_output=expected,
        snapshots=False,
    )


# --- Errors -----------------------------------------------------------------------------------


def inverse(state, *args):
    state.append(args[-1])
    return 1 / args[-1]


def inverses(state, *args):
    """Fails after it has given something."""
    yield 0
    yield 1 / args[-1]


@pytest.mark.parametrize("key_fn", [None, whole_item, lambda item: "key"])
@pytest.mark.parametrize(("kind", "fn"), [(MAP, inverse), (FILTER, inverse), (FLAT_MAP, inverses)])
def test_a_failing_function_names_the_item(kind, fn, key_fn):
    with pytest.raises(ItemFailedError, match="my-step failed") as raised:
        verify_processor(
            partial(StatefulProcessor, kind, list, fn, key_fn, policy=ErrorPolicy("my-step")),
            input=[2, 0, 4],
            expect_output=[],
        )
    assert raised.value.item == 0
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_failing_key_names_the_item():
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(
            partial(StatefulProcessor, MAP, list, count_by_key, lambda item: 1 / item),
            input=[2, 0, 4],
            expect_output=[],
        )
    assert raised.value.item == 0


@pytest.mark.parametrize("which", ["key", "fn"])
def test_stop_iteration_is_an_error_and_not_the_end_of_the_batch(which):
    def fail(*args):
        return next(iter(()))

    key_fn = fail if which == "key" else parity
    fn = fail if which == "fn" else count_by_key
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(
            partial(StatefulProcessor, MAP, list, fn, key_fn), input=[7, 8], expect_output=[]
        )
    assert raised.value.item == 7


def test_a_flat_map_that_returns_no_iterable_names_the_item():
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(
            partial(StatefulProcessor, FLAT_MAP, list, lambda state, item: None),
            input=[7],
            expect_output=[],
        )
    assert raised.value.item == 7
    assert isinstance(raised.value.__cause__, TypeError)


@pytest.mark.parametrize("action", ["fail", "skip"])
def test_a_key_that_cannot_be_looked_up_is_explained(action):
    processor = partial(
        StatefulProcessor,
        MAP,
        list,
        count_by_key,
        lambda item: [item],
        policy=ErrorPolicy("step", action, 1 if action == "skip" else None),
        data_ordinals=0,
    )
    if action == "fail":
        with pytest.raises(ItemFailedError) as raised:
            verify_processor(processor, input=[7], expect_output=[])
        assert isinstance(raised.value.__cause__, UnstableKeyError)
        assert "tuple(key)" in str(raised.value.__cause__)
    else:

        def compare(expected, actual):
            return all("tuple(key)" in letter.error for letter in actual)

        verify_processor(processor, input=[7], expect_outputs=[[], []], compare=compare)


@pytest.mark.parametrize("key_fn", [None, whole_item, lambda item: "key"])
def test_dead_letters_leave_by_their_edge(key_fn):
    for kind, fn, expected in (
        (MAP, inverse, [0.5, 0.25]),
        (FILTER, inverse, [2, 4]),
        (FLAT_MAP, inverses, [0, 0.5, 0, 0, 0.25]),
    ):
        policy = ErrorPolicy("my-step", "dead-letter", 1)
        verify_processor(
            partial(StatefulProcessor, kind, list, fn, key_fn, policy=policy, data_ordinals=0),
            input=[2, 0, 4],
            expect_outputs=[
                expected,
                [DeadLetter(0, "my-step", "ZeroDivisionError", "division by zero")],
            ],
        )


# --- The end of a state -------------------------------------------------------------------------


def is_full(state):
    return len(state) == 3


def grouped(state, *args):
    state.append(args[-1])
    return tuple(state)


def is_third(state, *args):
    return len(grouped(state, *args)) == 3


def echoed(state, *args):
    """One by one, and the state is only complete with the last of them."""
    for _ in range(args[-1] % 3):
        yield args[-1]
    grouped(state, *args)


def echoed_at_hand(state, *args):
    return list(echoed(state, *args))


def left(state, *key):
    return ("left", *key, *state)


def left_if_odd(state, *key):
    return left(state, *key) if len(state) % 2 else None


@given(
    items=st.lists(st.integers(0, 9), max_size=30),
    kind=st.sampled_from([MAP, FILTER, FLAT_MAP, "at hand"]),
    is_keyed=st.booleans(),
    takes_events=st.booleans(),
    action=st.sampled_from(["fail", "skip"]),
)
def test_a_state_is_dropped_when_it_says_so(items, kind, is_keyed, takes_events, action):
    fn = {MAP: grouped, FILTER: is_third, FLAT_MAP: echoed, "at hand": echoed_at_hand}[kind]
    kind = FLAT_MAP if kind == "at hand" else kind
    states, expected = defaultdict(list), []
    for time, item in enumerate(items):
        key = parity(item) if is_keyed else None
        made = fn(states[key], item)
        results = made if kind == FLAT_MAP else [made] if kind == MAP else [item] * made
        expected += [(time, each) if takes_events else each for each in results]
        if is_full(states[key]):
            del states[key]
    on_end = None
    if not takes_events:
        on_end = {MAP: left_if_odd, FILTER: left_if_odd, FLAT_MAP: left}[kind]
        for key, state in states.items():
            words = on_end(state, key) if is_keyed else on_end(state)
            expected += words if kind == FLAT_MAP else [words] * (words is not None)
    verify_processor(
        partial(
            StatefulProcessor,
            kind,
            list,
            fn,
            parity if is_keyed else None,
            drop_when=is_full,
            on_end=on_end,
            policy=ErrorPolicy("step", action, takes_events=takes_events),
        ),
        input=list(enumerate(items)) if takes_events else items,
        expect_output=expected,
        order_matters=False,  # that of the states at the end is another one after a restore
    )


def test_without_input_there_is_no_state_to_end():
    verify_processor(
        partial(StatefulProcessor, MAP, list, count, on_end=left), input=[], expect_output=[]
    )


def test_a_failing_end_names_the_key():
    supplier = partial(
        StatefulProcessor, MAP, list, count_by_key, parity, on_end=lambda state, key: 1 / 0
    )
    with pytest.raises(ItemFailedError) as raised:
        verify_processor(supplier, input=[5], expect_output=[(1, 1, 5)])
    assert raised.value.item == 1
    verify_processor(
        partial(supplier, policy=ErrorPolicy("step", "skip")),
        input=[5, 7],
        expect_output=[(1, 1, 5), (1, 2, 7)],
    )


def test_an_unknown_kind_is_refused():
    with pytest.raises(InvalidArgumentError, match="reduce"):
        StatefulProcessor("reduce", list, count)


def test_arguments_travel_pickled():
    supplier = cloudpickle.loads(
        cloudpickle.dumps(
            lambda: StatefulProcessor(MAP, dict, lambda s, k, x: (k, x), lambda x: x % 2)
        )
    )
    verify_processor(supplier, input=[1, 2], expect_output=[(1, 1), (0, 2)])
