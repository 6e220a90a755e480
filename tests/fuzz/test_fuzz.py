"""Random pipelines on every host against plain Python: some here, and for hours ``make fuzz``."""

from __future__ import annotations

import pytest
from fuzzing import steps
from fuzzing.faults import Fault
from fuzzing.programs import Branch, Program, programs
from fuzzing.running import Difference, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def few(max_examples):
    return settings(
        max_examples=min(max_examples, settings().max_examples),  # a quick profile has fewer
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )


def together(least, most, **options):
    """Programs that can be run as one pipeline."""
    program = programs(fails=False, **options).filter(lambda each: not each.preserves_order)
    return st.lists(program, min_size=least, max_size=most)


@pytest.mark.parametrize("name", ["embedded-1", "embedded-2"])
@few(150)
@given(program=programs())
def test_embedded(hosts, name, program):
    host, submit = hosts(name)
    host.check([program], submit)


@pytest.mark.cluster
@few(3)
@given(several=together(5, 10))
def test_members(hosts, several):
    host, submit = hosts("members")
    host.check(several, submit)


@pytest.mark.spark
@few(3)
@given(several=together(5, 10))
def test_spark(hosts, several):
    host, submit = hosts("spark")
    host.check(several, submit)


@pytest.mark.spark
@few(3)
@given(program=programs(fails=False, streams=True, longest=4))
def test_micro_batches(hosts, program):
    host, submit = hosts("micro-batches")
    host.check([program], submit)


# --- The fuzzer itself ------------------------------------------------------------------------

ITEMS = (("a", 1, 0), (1, 2, 10), (True, 3, 20), ("a", 4, 30))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda items: items[1:],
        lambda items: [*items, items[0]],
        lambda items: [(key, n + 1, time) for key, n, time in items],
        lambda items: [("b" if key == 1 else key, n, time) for key, n, time in items],
    ],
    ids=["lost", "twice", "changed", "key"],
)
def test_a_difference_is_found(hosts, wrong):
    """Where a step of a pipeline does not what plain Python expects of it."""

    class Wrong(steps.Custom):
        def expect(self, items, expected):
            return wrong(items)

    _, submit = hosts("embedded-1")
    with pytest.raises(Difference, match="other items"):
        check([Program(Branch(ITEMS, (Wrong("s1", None, "fail", "processor"),)))], submit)


@pytest.mark.parametrize(
    ("on_error", "what"), [("fail", "it failed"), ("letters", "other letters")]
)
def test_a_failure_that_is_not_expected_is_found(hosts, on_error, what):
    class Wrong(steps.Map):
        def expect(self, items, expected):
            told = steps.Expected()
            return super().expect(items, told)

    step = Wrong("s1", Fault("KeyError", 2, 0), on_error, "map", "next")
    _, submit = hosts("embedded-1")
    with pytest.raises(Difference, match=what):
        check([Program(Branch(ITEMS, (step,)))], submit)
