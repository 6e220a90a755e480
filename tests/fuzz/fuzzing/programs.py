"""Programs: items, and the steps that they go through; made by hypothesis, which shrinks them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import count, zip_longest
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzzing import steps
from fuzzing.faults import FATAL, FAULTS, Fault
from fuzzing.operations import OPERATIONS
from fuzzing.values import STABLE, UNSTABLE, has_kind


@dataclass(frozen=True)
class Branch:
    """Items of a source, and the steps behind it."""

    items: tuple[Any, ...]
    steps: tuple[Any, ...] = ()

    def expect(self, expected):
        items = list(self.items)
        for step, after in zip_longest(self.steps, self.steps[1:]):
            # Of several in a row the last one says where items go, and only its keys are looked at.
            if not (isinstance(step, steps.Rebalance) and isinstance(after, steps.Rebalance)):
                items = step.expect(items, expected)
        return items


@dataclass(frozen=True)
class Program:
    main: Branch
    preserves_order: bool = False

    @property
    def is_sorted(self):
        """Whether it ends with a sort, which leaves open the order of what it takes for equal."""
        return bool(self.main.steps) and isinstance(self.main.steps[-1], steps.Sort)

    @property
    def keeps_order(self):
        """Whether the order of what comes out is known."""
        if not self.preserves_order:
            return False
        return all(step.keeps_order for step in self.main.steps)


def keys(*, unstable):
    few = st.sampled_from(STABLE[:3])
    groups = st.one_of(few, st.sampled_from(STABLE))
    stable = groups.flatmap(st.sampled_from)
    return st.one_of(stable, stable, st.sampled_from(UNSTABLE)) if unstable else stable


@st.composite
def items(draw, *, other_kind, unstable=False, most=40):
    # A few keys, each several times: what is done by key has something to do.
    palette = draw(st.lists(keys(unstable=unstable), min_size=1, max_size=6))
    # Python cannot compare all of them: `Decimal(0) == np.int64(0)` raises, and so does a dict that
    # has one and is asked for the other.
    palette = [key for key in palette if not has_kind(key, other_kind)] or [None]
    item = st.tuples(st.sampled_from(palette), st.integers(-3, 12), st.integers(-500, 1500))
    # Left alone, hypothesis mostly makes lists of very few.
    least = min(draw(st.sampled_from([0, 1, 8, 25])), most)
    return tuple(draw(st.lists(item, min_size=least, max_size=most)))


FAULT = st.builds(Fault, st.sampled_from(sorted(FAULTS)), st.integers(2, 7), st.integers(0, 1))
MILD = st.builds(
    Fault, st.sampled_from(sorted(set(FAULTS) - FATAL)), st.integers(2, 7), st.integers(0, 1)
)


@st.composite
def step(draw, name, *, fails, streams, branch, joined):
    pick = lambda *values: draw(st.sampled_from(values))
    kinds = ["Map", "Map", "Filter", "FlatMap", "Custom", "Rebalance", "Stateful", "HashJoin"]
    kinds += ["Windowed", "Merge", "Timestamps", "KeyedMap"]
    if not fails:
        kinds += ["Take"]  # what is not wanted by anybody does not fail
    if not streams:
        kinds += ["Expiring"]
        kinds += ["Distinct", "Sort", "Aggregate", "Aggregate", "Windowed", "WindowJoin"]
    kind = pick(*kinds)
    fault = on_error = None
    if fails and kind not in {"Custom", "Rebalance", "Merge", "WindowJoin", "Take"}:
        on_error = "fail" if kind == "Aggregate" else pick("skip", "letters", "letters", "fail")
        fault = draw(st.none() | (FAULT if on_error == "fail" else MILD))
        if draw(st.integers(0, 9)) == 0:
            fault = draw(FAULT)
    common = {"name": name, "fault": fault, "on_error": on_error or "fail"}
    operation = lambda: pick(*OPERATIONS)
    is_keyed = lambda: draw(st.booleans())
    if kind == "Map":
        how = pick("map", "service", "async", "async unordered", "batched 1", "batched 7")
        made = steps.Map(**common, how=how, fn=pick(*steps.MAPS))
    elif kind == "Filter":
        made = steps.Filter(**common, how=pick("filter", "service"), modulus=pick(2, 3))
    elif kind == "FlatMap":
        how = pick("list", "tuple", "deque", "iterator", "generator", "service", "async")
        is_lazy = how in {"generator", "async"}
        gives = pick(0, 1, 2) if is_lazy else 0
        made = steps.FlatMap(**common, how=how, modulus=pick(2, 3, 4, 9), gives=gives)
    elif kind == "Custom":
        made = steps.Custom(**common, how="processor" if streams else pick("processor", "task"))
    elif kind == "Rebalance":
        made = steps.Rebalance(**common, by_key=is_keyed())
    elif kind == "Stateful":
        how = pick("map", "filter", "flat_map", "rolling")
        # A filter's last words are items, and what came of the others of its state is left out; a
        # state with a fault is dropped, or not, by whoever failed before it was looked at.
        is_simple = how in {"rolling", "filter"} or fault is not None or streams
        made = steps.Stateful(
            **common,
            how=how,
            is_keyed=is_keyed(),
            drops_at=0 if is_simple else pick(0, 0, 2, 3),
            ends=False if is_simple else is_keyed(),
        )
    elif kind == "KeyedMap":
        how = pick("async", "batched", "async batched", "batches")
        made = steps.KeyedMap(**common, how=how)
    elif kind == "HashJoin":
        made = steps.HashJoin(**common, is_inner=is_keyed(), build_side=joined())
    elif kind == "Merge":
        made = steps.Merge(**common, other=None if streams else pick(None, branch()))
    elif kind == "WindowJoin":
        how = pick("inner", "left", "interval")
        made = steps.WindowJoin(**common, how=how, size=pick(10, 100), other=branch())
    elif kind == "Distinct":
        made = steps.Distinct(**common)
    elif kind == "Timestamps":
        made = steps.Timestamps(**common)
    elif kind == "Take":
        made = steps.Take(**common, count=pick(1, 5, 1000))
    elif kind == "Expiring":
        made = steps.Expiring(**common, evicts=is_keyed())
    elif kind == "Sort":
        made = steps.Sort(**common, is_reverse=is_keyed(), memory_limit=pick(1, 10**6))
    elif kind == "Aggregate":
        other = pick(None, None, branch())
        made = steps.Aggregate(**common, operation=operation(), is_keyed=is_keyed(), other=other)
    else:
        assert kind == "Windowed"
        window = pick("tumbling", "sliding", "session", "gaps")
        # One without `combine` is refused for those that overlap.
        mergeable = [each for each in OPERATIONS if window == "tumbling" or each != "own"]
        made = steps.Windowed(
            **common,
            kind=window,
            size=pick(1, 7, 100),
            slide=pick(1, 3, 7, 150) if window == "gaps" else pick(1, 2, 5),
            operation=pick(*mergeable),
            is_keyed=is_keyed(),
        )
    return made


TIMED = steps.Windowed, steps.Timestamps, steps.Expiring, steps.WindowJoin


@st.composite
def programs(draw, *, fails=True, streams=False, longest=6):
    """``fails``: with functions that fail, and keys that are refused."""
    numbers = count(1)
    fails = fails and draw(st.integers(0, 3)) > 0
    is_hard = fails and draw(st.integers(0, 3)) == 0

    other_kind = draw(st.sampled_from([Decimal, np.generic]))

    def branch(*, most=12, unstable=is_hard):
        return Branch(draw(items(other_kind=other_kind, unstable=unstable, most=most)))

    preserves_order = not streams and draw(st.integers(0, 4)) == 0
    chain = [
        draw(
            step(
                f"s{next(numbers)}",
                fails=fails,
                streams=streams,
                branch=branch,
                joined=lambda: branch(most=8),
            )
        )
        for _ in range(draw(st.integers(0, longest)))
    ]
    was_sorted = was_timed = False
    for i, each in enumerate(chain):
        if was_timed and isinstance(each, steps.Stateful):
            chain[i] = replace(each, ends=False)  # its last words would have no time
        was_timed = was_timed or isinstance(each, TIMED)
        if was_sorted and isinstance(each, steps.Map) and not each.keeps_order:
            chain[i] = replace(each, how="async")  # the other is refused
        was_sorted = was_sorted or isinstance(each, steps.Sort)
    if preserves_order:
        chain = [
            each
            for each in chain
            if each.keeps_order or not isinstance(each, steps.Rebalance | steps.Merge | steps.Map)
        ]
        stateless = [each for each in chain if each.keeps_order]
        if draw(st.booleans()):
            chain = [*stateless, steps.RunningSum(f"s{next(numbers)}", None, "fail")]
    return Program(replace(branch(most=40), steps=tuple(chain)), preserves_order)
