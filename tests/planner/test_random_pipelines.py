"""Pipelines of any shape give what plain Python gives: branches, merges, joins with oneself, ..."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, sources, whole_item

MAX_ITEMS = 6000


def group(xs, key):
    groups = {}
    for x in xs:
        groups.setdefault(key(x), []).append(x)
    return groups


def join(xs, ys, *, inner):
    table = group(ys, lambda y: y % 500)
    return [
        x + (0 if y is None else y) for x in xs for y in table.get(x % 500, [] if inner else [None])
    ]


JOINED = {"to_output": lambda x, y: x + (0 if y is None else y)}
JOIN_KEYS = (lambda x: x % 500, lambda y: y % 500)


# For each kind: how many inputs it has, how it is added, and what plain Python makes of it.
KINDS = {
    "map": (1, lambda a: a.map(lambda x: x + 1), lambda xs: [x + 1 for x in xs]),
    "filter": (1, lambda a: a.filter(lambda x: x % 3), lambda xs: [x for x in xs if x % 3]),
    "flat_map": (
        1,
        lambda a: a.flat_map(lambda x: [x] * (x % 3)),
        lambda xs: [x for x in xs for _ in range(x % 3)],
    ),
    "batched": (
        1,
        lambda a: a.map_batched(lambda xs: [-x for x in xs], 100),
        lambda xs: [-x for x in xs],
    ),
    "rebalance": (1, lambda a: a.rebalance(), list),
    "rebalance_by_key": (1, lambda a: a.rebalance(lambda x: x % 7), list),
    "sort": (1, lambda a: a.sort(), sorted),
    "distinct": (1, lambda a: a.distinct(), lambda xs: list(set(xs))),
    "count": (1, lambda a: a.aggregate(agg.counting()), lambda xs: [len(xs)]),
    "sum_by_key": (
        1,
        lambda a: a.grouping_key(lambda x: x % 50).aggregate(agg.summing()).map(sum),
        lambda xs: [k + sum(g) for k, g in group(xs, lambda x: x % 50).items()],
    ),
    "one_stage": (
        1,
        lambda a: a.aggregate(agg.of(create=int, accumulate=max)),
        lambda xs: [max([0, *xs])],
    ),
    "stateful": (
        1,
        lambda a: a.grouping_key(whole_item).map_stateful(
            lambda: [0], lambda state, key, x: state.__setitem__(0, state[0] + 1) or state[0]
        ),
        lambda xs: [i for n in Counter(xs).values() for i in range(1, n + 1)],
    ),
    "rolling": (
        1,
        lambda a: a.sort(name="sort before").rolling_aggregate(agg.summing()),
        lambda xs: list(accumulate(sorted(xs))),
    ),
    "merge": (2, lambda a, b: a.merge(b), lambda xs, ys: [*xs, *ys]),
    "join": (
        2,
        lambda a, b: a.hash_join(b, *JOIN_KEYS, **JOINED),
        lambda xs, ys: join(xs, ys, inner=False),
    ),
    "inner_join": (
        2,
        lambda a, b: a.inner_hash_join(b, *JOIN_KEYS, local_parallelism=2, **JOINED),
        lambda xs, ys: join(xs, ys, inner=True),
    ),
    "co_aggregate": (
        2,
        lambda a, b: (
            a.grouping_key(lambda x: x % 9)
            .aggregate2(agg.counting(), b.grouping_key(lambda x: x % 4), agg.summing())
            .map(lambda entry: entry[0] + sum(entry[1]))
        ),
        lambda xs, ys: [
            k + sum(x % 9 == k for x in xs) + sum(y for y in ys if y % 4 == k)
            for k in {x % 9 for x in xs} | {y % 4 for y in ys}
        ],
    ),
}

STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 99), st.integers(0, 99)),
    min_size=1,
    max_size=9,
)
SIZES = st.lists(st.sampled_from([0, 1, 30, 1300, 3000]), min_size=1, max_size=2)


def build(sizes, steps):
    """The pipeline, and for each of its sinks what is expected there."""
    p = Pipeline("random")
    stages = [(p.read_from(sources.items(range(size))), list(range(size))) for size in sizes]
    unread = set(range(len(stages)))
    for kind, first, second in steps:
        count, add, effect = KINDS[kind]
        chosen = [index % len(stages) for index in (first, second)][:count]
        inputs = [stages[index] for index in chosen]
        expected = effect(*(items for _, items in inputs))
        if len(expected) <= MAX_ITEMS and all(abs(x) < 10**15 for x in expected):
            unread.difference_update(chosen)
            unread.add(len(stages))
            stages.append((add(*(stage for stage, _ in inputs)), expected))
    results = []
    for index in sorted(unread | {0}):
        stage, expected = stages[index]
        out = sinks.collect()
        stage.write_to(out)
        results.append((out, expected))
    return p, results


@pytest.fixture(scope="module")
def engines():
    with EmbeddedEngine(workers=1) as one, EmbeddedEngine(workers=2) as two:
        yield {1: one, 2: two}


@given(SIZES, STEPS, st.sampled_from([1, 2]), st.integers(1, 3))
def test_any_pipeline_gives_what_plain_python_gives(engines, sizes, steps, workers, parallelism):
    p, results = build(sizes, steps)

    engines[workers].submit(p, JobConfig(default_parallelism=parallelism)).join(60)

    for out, expected in results:
        assert Counter(out.items) == Counter(expected)
