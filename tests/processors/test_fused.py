"""The compiled function of a run of stages: its source, its results, and what it says of errors."""

from __future__ import annotations

import linecache
import pickle
import sys
import traceback
from functools import partial

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import DeadLetter, whole_item
from jetlet.core import ProcessorContext
from jetlet.core.items import Watermark
from jetlet.errors import ItemFailedError
from jetlet.processors import fused
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.expansion import returns_display
from jetlet.processors.fused import (
    FusedFunction,
    FusedProcessor,
    IdentityProcessor,
    Step,
    fuse,
)
from jetlet.processors.item_failure import item_at
from jetlet.testing import verify_processor

FAIL = ErrorPolicy("step")
SKIP = ErrorPolicy("step", "skip")
DIVISION = (
    "division by zero" if sys.version_info >= (3, 14) else "integer division or modulo by zero"
)
"""What Python says."""

LISTS = "<listcomp>" if sys.version_info < (3, 12) else "fused"
"""What a traceback calls a comprehension."""

FORMS = {"loops": (False, False), "comprehensions, but for flat maps": (True, False)}
if fused.KEEPS_VARIABLES:
    FORMS["comprehensions"] = (True, True)


@pytest.fixture(autouse=True, scope="module", params=FORMS.values(), ids=FORMS)
def comprehends(request):
    """All tests of this file see to all forms that there are."""
    comprehends, keeps_variables = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "COMPREHENDS", comprehends)
        patch.setattr(fused, "KEEPS_VARIABLES", keeps_variables)
        yield comprehends


AT_HAND = "r0 if r0.__class__ is list or r0.__class__ is tuple else expand(r0, x0)"


def step(kind, fn, policy=None, name="step"):
    return Step(kind, fn, policy or ErrorPolicy(name))


def letters(name, ordinal=1):
    return ErrorPolicy(name, "dead-letter", ordinal)


def source_of(*steps):
    function = FusedFunction(steps)
    return "".join(linecache.getlines(function.filename))


def located(function, batch):
    """What a function says of its own failure with a batch."""
    position = iter(batch)
    try:
        function.call(position, no_reject, all_of)
    except Exception as error:
        return function.locate(error, lambda: item_at(batch, position))
    raise AssertionError("it did not fail")


def no_reject(index, item, error):
    raise AssertionError((index, item, error))


def all_of(results, item, *time):
    return list(results)


def call(steps, batch):
    return FusedFunction(steps).call(batch, no_reject, all_of)


def half(x):
    return 6 // x


def halves(x):
    yield x
    yield 6 // x


class Truthless:
    def __bool__(self):
        raise TypeError("neither true nor false")


# --- The source -----------------------------------------------------------------------------


def test_source_is_what_one_would_write_by_hand(comprehends):
    source = source_of(
        step("flat_map", str.split), step("filter", bool), step("map", len), step("filter", abs)
    )

    if comprehends and fused.KEEPS_VARIABLES:
        assert source == (
            "def fused(batch, reject, expand):\n"
            "    return [\n"
            "        x3\n"
            "        for x0 in batch\n"
            "        for r0 in (f0(x0),)\n"
            f"        for x1 in ({AT_HAND})\n"
            "        if x1\n"
            "        for x3 in (f2(x1),)\n"
            "        if f3(x3)\n"
            "    ]\n"
        )
    else:
        assert source == (
            "def fused(batch, reject, expand):\n"
            "    out = []\n"
            "    for x0 in batch:\n"
            "        r0 = f0(x0)\n"
            f"        for x1 in ({AT_HAND}):\n"
            "            if not x1:\n"
            "                continue\n"
            "            x3 = f2(x1)\n"
            "            if not f3(x3):\n"
            "                continue\n"
            "            out.append(x3)\n"
            "    return out\n"
        )


def test_last_step_writes_straight_into_the_output(comprehends):
    add = "        {}\n" if comprehends else "        out.append({})\n"
    assert add.format("f0(x0)") in source_of(step("map", str))
    assert "        out.extend(r0)\n" in source_of(step("flat_map", list))
    assert add.format("x0") in source_of(step("filter", len))


def test_nobody_looks_at_what_can_only_be_a_list_or_a_tuple(comprehends):
    twice = step("flat_map", lambda x: (x, x))
    skipping = step("flat_map", lambda x: [x], SKIP)

    assert "        out.extend(f0(x0))\n" in source_of(twice)
    assert "for x1 in f0(x0)" in source_of(twice, step("map", str)).replace("(f0(x0))", "f0(x0)")
    assert "            r0 = f0(x0)\n" in source_of(skipping)
    assert "        out.extend(r0)\n" in source_of(skipping)
    assert "class" not in source_of(twice) + source_of(skipping)


def sometimes_lazy(x):
    if x:
        return [x]
    return range(x)


def sometimes_none(x):
    if x:
        return [x]
    return None


def always_shown(x):
    if x == 3:
        return [x]
    return (x, x)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: (x, x), True),
        (lambda x: [], True),
        (always_shown, True),
        (sometimes_lazy, False),
        (sometimes_none, False),
        (halves, False),
        (lambda x: x and (x, x), False),
        (lambda x: x or [x], False),
        (lambda x: [x] if x else range(x), False),
        (lambda x: (y for y in (x, x)), False),
        (lambda x: x, False),
        (str.split, False),
        (list, False),
        (partial(lambda x, y: [x, y], 1), False),
    ],
)
def test_code_of_a_function_may_show_that_its_results_are_at_hand(fn, expected):
    assert returns_display(fn) is expected


def test_functions_that_do_nothing_are_not_called():
    source = source_of(step("map", whole_item), step("filter", bool), step("map", whole_item))

    assert "f0(" not in source and "f1(" not in source and "f2(" not in source
    assert call([step("map", whole_item), step("filter", bool)], [0, 1, "", "a"]) == [1, "a"]


def test_only_steps_that_go_on_after_errors_are_guarded():
    source = source_of(step("map", str), step("map", int, SKIP), step("filter", bool))

    assert source.count("try:") == 1
    assert "            reject(1, x1, error)\n" in source


def test_functions_with_the_same_source_share_its_name():
    one, other = FusedFunction([step("map", str)]), FusedFunction([step("map", len)])

    assert one.filename == other.filename
    assert one.call([12], no_reject, all_of) == ["12"]
    assert other.call(["12"], no_reject, all_of) == [2]


def test_input_is_left_as_it_is():
    batch = [3, 1, 2]

    assert call([step("filter", lambda x: True)], batch) == batch
    assert batch == [3, 1, 2]


# --- Results --------------------------------------------------------------------------------

FUNCTIONS = {
    "map": [lambda x: x + 1, lambda x: x * 3, abs, whole_item, lambda x: x // 2],
    "filter": [lambda x: x % 2, lambda x: x > 3, bool, lambda x: True, lambda x: x % 5 == 0],
    "flat_map": [
        lambda x: (x, -x),
        lambda x: [],
        range,
        lambda x: iter([x] * (x % 3)),
        lambda x: (x,),
    ],
}
KINDS = st.sampled_from(sorted(FUNCTIONS))
STEPS = st.lists(
    KINDS.flatmap(lambda k: st.tuples(st.just(k), st.sampled_from(FUNCTIONS[k]))),
    min_size=1,
    max_size=6,
)
ITEMS = st.lists(st.integers(-5, 6), max_size=12)


def plain(steps, items):
    for kind, fn in steps:
        if kind == "map":
            items = [fn(x) for x in items]
        elif kind == "filter":
            items = [x for x in items if fn(x)]
        else:
            items = [y for x in items for y in list(fn(x))[:4]]
    return items


def short(fn, x):
    return list(fn(x))[:4]


@given(STEPS, ITEMS, st.booleans())
def test_any_chain_gives_what_plain_python_gives(steps, items, guarded):
    fused = [
        step(kind, partial(short, fn) if fn is range else fn, SKIP if guarded else FAIL)
        for kind, fn in steps
    ]

    assert call(fused, items) == plain(steps, items)


@given(
    st.lists(st.tuples(KINDS, st.integers(2, 7)), min_size=1, max_size=5),
    st.lists(st.integers(0, 30), max_size=12),
)
def test_guarded_chain_rejects_exactly_what_fails(steps, items):
    def make(kind, divisor):
        def fn(x):
            if x % divisor == 1:
                raise ValueError(x)
            return {"map": x + 1, "filter": x % 3, "flat_map": (x, x + divisor)}[kind]

        return fn

    def run(x, rest):
        """Results and rejects of one item, one step after the other."""
        if not rest:
            return [x], []
        (index, kind, fn), *rest = rest
        try:
            result = fn(x)
        except ValueError:
            return [], [(index, x)]
        following = {"map": [result], "filter": [x] if result else [], "flat_map": result}[kind]
        results, rejects = [], []
        for y in following:
            more, failed = run(y, rest)
            results += more
            rejects += failed
        return results, rejects

    chain = [(i, kind, make(kind, d)) for i, (kind, d) in enumerate(steps)]
    expected = [run(x, chain) for x in items]
    rejected = []
    function = FusedFunction([step(kind, fn, SKIP) for _, kind, fn in chain])

    results = function.call(
        items, lambda index, item, error: rejected.append((index, item)), all_of
    )

    assert results == [y for results, _ in expected for y in results]
    assert rejected == [r for _, rejects in expected for r in rejects]


# --- Errors ---------------------------------------------------------------------------------


def failing_positions():
    """Chains in which the step called "culprit" fails on 0, and it alone."""
    good = {
        "map": partial(step, "map", lambda x: x, name="good"),
        "filter": partial(step, "filter", lambda x: True, name="good"),
        "flat_map": partial(step, "flat_map", lambda x: [x], name="good"),
    }
    bad = {
        "map": step("map", half, name="culprit"),
        "filter": step("filter", lambda x: 6 // x, name="culprit"),
        "filter-truth": step("filter", lambda x: Truthless() if x == 0 else x, name="culprit"),
        "flat_map": step("flat_map", lambda x: [half(x)], name="culprit"),
        "flat_map-lazy": step("flat_map", halves, name="culprit"),
        "flat_map-no-iterable": step("flat_map", lambda x: [x] if x else None, name="culprit"),
    }
    for kind, culprit in bad.items():
        yield pytest.param([culprit], id=f"{kind}-alone")
        for other, make in good.items():
            yield pytest.param([culprit, make()], id=f"{kind}-before-{other}")
            yield pytest.param([make(), culprit], id=f"{kind}-after-{other}")
            yield pytest.param([make(), culprit, make()], id=f"{kind}-between-{other}s")


@pytest.mark.parametrize("steps", list(failing_positions()))
def test_failing_item_and_step_are_found(steps):
    assert located(FusedFunction(steps), [3, 2, 0, 1]) == (0, "culprit")


def test_item_is_the_one_that_reached_the_step():
    function = FusedFunction(
        [step("flat_map", range), step("map", lambda x: x - 2), step("map", half, name="half")]
    )

    assert located(function, [1, 4]) == (0, "half")


@pytest.mark.parametrize("takes_events", [False, True])
def test_item_is_found_again_by_doing_the_steps_before_once_more(takes_events):
    steps = [step("map", lambda x: x - 7), step("filter", lambda x: x < 3), step("map", abs)]
    function = FusedFunction([*steps, step("map", half)], takes_events=takes_events)

    assert function._input_again(3, (5, 3) if takes_events else 3) == 4
    assert located(function, [(1, 12), (2, 7)] if takes_events else [12, 7]) == (0, "step")


def test_error_of_another_function_is_not_located():
    function = FusedFunction([step("map", half)])
    other = FusedFunction([step("map", half)])

    with pytest.raises(ZeroDivisionError) as caught:
        other.call([0], no_reject, all_of)

    for error in (caught.value, ValueError("never raised")):
        assert function.locate(error, lambda: pytest.fail("there is nothing to ask for")) is None


def test_outermost_frame_counts_if_a_function_runs_another_of_the_same_source():
    inner = FusedFunction([step("map", half, name="inner")])
    outer = FusedFunction(
        [step("map", lambda x: inner.call([x - 7], no_reject, all_of), name="outer")]
    )

    assert located(outer, [9, 7]) == (7, "outer")


def test_traceback_shows_generated_line_and_users_function(comprehends):
    function = FusedFunction([step("map", abs), step("map", half)])

    with pytest.raises(ZeroDivisionError) as caught:
        function.call([0], no_reject, all_of)

    generated, users = traceback.extract_tb(caught.value.__traceback__)[-2:]
    expected = (LISTS, "f1(x1)") if comprehends else ("fused", "out.append(f1(x1))")
    assert (generated.name, generated.line) == expected
    assert (users.name, users.filename, users.line) == ("half", __file__, "return 6 // x")


def test_stop_iteration_is_an_error_like_any_other():
    def stop(x):
        raise StopIteration

    for kind in ("map", "filter", "flat_map"):
        for after in ([], [step("map", str)]):
            with pytest.raises(StopIteration):
                call([step(kind, stop), *after], [1, 2])


# --- The processor --------------------------------------------------------------------------


def processor(*steps, ordinals=None):
    return partial(FusedProcessor, fuse(steps), ordinals)


def test_processor_under_all_conditions():
    verify_processor(
        processor(step("flat_map", range), step("filter", bool), step("map", lambda x: -x)),
        input=[3, 0, Watermark(7), 2],
        expect_output=[-1, -2, Watermark(7), -1],
    )


def test_processor_emits_nothing_for_a_batch_that_leaves_nothing():
    verify_processor(processor(step("filter", lambda x: False)), input=[1, 2], expect_output=[])


def test_none_is_an_item():
    verify_processor(
        processor(step("map", lambda x: None)), input=[1, None], expect_output=[None, None]
    )


def test_skipped_items_are_counted():
    counted = []
    context = ProcessorContext(count=lambda name, amount: counted.append((name, amount)))

    verify_processor(
        processor(step("map", half, SKIP), step("map", lambda x: x, SKIP)),
        input=[3, 0, 2],
        expect_output=[2, 3],
        context=context,
        snapshots=False,
        columns=False,
    )

    assert set(counted) == {("skipped", 1)}
    assert len(counted) == 4  # once in each mode of the harness


def test_dead_letters_leave_over_their_own_edges():
    verify_processor(
        processor(
            step("map", half, letters("half", 1)),
            step("filter", lambda x: 1 // (x - 3) or True, letters("three", 2)),
            step("flat_map", halves, letters("lazy", 1)),
            ordinals=(0,),
        ),
        input=[3, 0, 2, 7],
        expect_outputs=[
            [2, 3, 0],
            [
                DeadLetter(0, "half", "ZeroDivisionError", DIVISION),
                DeadLetter(0, "lazy", "ZeroDivisionError", DIVISION),
            ],
            [DeadLetter(3, "three", "ZeroDivisionError", DIVISION)],
        ],
    )


def test_processor_names_item_and_step():
    run = processor(step("map", str), step("map", int, name="parse"))

    with pytest.raises(ItemFailedError) as caught:
        verify_processor(run, input=["1", "x", "2"], expect_output=[1, 2])

    assert (caught.value.item, caught.value.step) == ("x", "parse")
    assert isinstance(caught.value.__cause__, ValueError)


def test_function_travels_by_its_steps():
    offset = 5
    function = FusedFunction([step("map", lambda x: x + offset), step("filter", bool)])

    copy = pickle.loads(cloudpickle.dumps(function))

    assert copy.call([-5, 1], no_reject, all_of) == [6]
    assert [s.kind for s in copy.steps] == ["map", "filter"]
    assert pickle.loads(cloudpickle.dumps(partial(FusedProcessor, (function,))))()


def test_copy_locates_its_own_errors():
    copy = pickle.loads(cloudpickle.dumps(FusedFunction([step("map", half, name="half")])))

    assert located(copy, [1, 0]) == (0, "half")


def test_long_runs_compile():
    steps = [step("filter", lambda x: True) for _ in range(200)]

    assert call(steps, [1, 2]) == [1, 2]


def test_identity_passes_batches_on():
    verify_processor(
        IdentityProcessor,
        inputs=[[1, None, 3], [4]],
        expect_output=[1, None, 3, 4],
        order_matters=False,
    )
