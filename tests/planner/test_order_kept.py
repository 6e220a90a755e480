"""For any chain of stateless stages: with ``preserve_order`` the order of each partition of each
source reaches the sink; without it every item arrives once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import EmbeddedEngine, JobConfig, Pipeline, service, shared_service, sinks, sources


async def hesitate(x):
    # Later items are ready before earlier ones.
    for _ in range(x[2] % 3):
        await asyncio.sleep(0)
    return x


async def hesitate_twice(x):
    await hesitate(x)
    return [x, x]


def some(x):
    return x[2] % 4 != 1


# Each is (how it is added to a stage, what it does to the items of one partition).
STAGES = {
    "map": (lambda s, **o: s.map(lambda x: x, **o), list),
    "filter": (lambda s, **o: s.filter(some, **o), lambda xs: list(filter(some, xs))),
    "flat_map": (
        lambda s, **o: s.flat_map(lambda x: [x] * (x[2] % 3), **o),
        lambda xs: [x for x in xs for _ in range(x[2] % 3)],
    ),
    "async": (lambda s, **o: s.map_async(hesitate, max_concurrency=7, **o), list),
    "flat_async": (
        lambda s, **o: s.flat_map_async(hesitate_twice, **o),
        lambda xs: [x for x in xs for _ in range(2)],
    ),
    "batched": (lambda s, **o: s.map_batched(list, 5, **o), list),
    "service": (
        lambda s, **o: s.map_using_service(service(lambda context: 0), lambda _, x: x, **o),
        list,
    ),
    "blocking": (
        lambda s, **o: s.filter_using_service(
            shared_service(lambda context: 0, blocking=True), lambda _, x: some(x), **o
        ),
        lambda xs: list(filter(some, xs)),
    ),
    "merge": None,
}


NAMES = [*sorted(STAGES), "merge", "merge"]
"""What is hardest more often."""


@st.composite
def source_shapes(draw):
    """Sizes of the splits, and how many readers share them."""
    sizes = draw(st.lists(st.sampled_from([0, 1, 10, 200, 1500, 2500]), min_size=1, max_size=4))
    return sizes, draw(st.integers(1, 3))


@st.composite
def pipelines(draw):
    parallelism = st.one_of(st.none(), st.integers(1, 3))
    chain = draw(st.lists(st.tuples(st.sampled_from(NAMES), parallelism), min_size=1, max_size=6))
    merges = sum(1 for name, _ in chain if name == "merge")
    shapes = draw(st.lists(source_shapes(), min_size=merges + 1, max_size=merges + 1))
    return chain, shapes


def build(chain, shapes, *, preserve_order):
    """The pipeline, its sink, and what is expected for each partition of each source."""
    p = Pipeline("random", preserve_order=preserve_order)
    expected = {}

    def read(index):
        sizes, readers = shapes[index]
        for split, size in enumerate(sizes):
            expected[index, split] = [(index, split, i) for i in range(size)]
        source = sources.batch(
            f"source-{index}",
            lambda split: ((index, split, i) for i in range(sizes[split])),
            splits=list(range(len(sizes))),
        )
        return p.read_from(source, local_parallelism=readers)

    stage = read(0)
    merged = 0
    for name, parallelism in chain:
        if name == "merge":
            merged += 1
            stage = stage.merge(read(merged), local_parallelism=parallelism)
            continue
        add, effect = STAGES[name]
        stage = add(stage, local_parallelism=parallelism)
        expected = {part: effect(items) for part, items in expected.items()}
        if sum(map(len, expected.values())) > 20_000:
            break
    out = sinks.collect()
    stage.write_to(out)
    return p, out, {part: items for part, items in expected.items() if items}


@pytest.fixture(scope="module")
def engines():
    with EmbeddedEngine(workers=1) as one, EmbeddedEngine(workers=2) as two:
        yield {1: one, 2: two}


CASES = (pipelines(), st.sampled_from([1, 2]), st.integers(1, 3))


@given(*CASES)
def test_order_of_each_partition_is_that_of_its_source(engines, pipeline, workers, parallelism):
    p, out, expected = build(*pipeline, preserve_order=True)

    engines[workers].submit(p, JobConfig(default_parallelism=parallelism)).join(60)

    found = defaultdict(list)
    for item in out.items:
        found[item[:2]].append(item)
    assert found == expected


@given(*CASES)
@settings(max_examples=40)
def test_every_item_arrives_once(engines, pipeline, workers, parallelism):
    p, out, expected = build(*pipeline, preserve_order=False)

    engines[workers].submit(p, JobConfig(default_parallelism=parallelism)).join(60)

    assert Counter(out.items) == Counter(x for items in expected.values() for x in items)
