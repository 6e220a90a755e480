"""The first items, on every engine."""

from __future__ import annotations

import itertools
import random

import pytest

from jetlet import Pipeline, agg, sinks, sources, windows

SHUFFLED = random.Random(5).sample(range(4000), 4000)


def collectors(names):
    return {name: sinks.collect(name=name) for name in names.split()}


def test_the_first_of_what_is_in_order(engine):
    p, out = Pipeline("first", preserve_order=True), collectors("sorted split few more all")
    numbers = p.read_from(sources.batch("one", lambda split: iter(SHUFFLED), splits=[0]))
    numbers.sort().take(10).map(lambda n: -n).write_to(out["sorted"])
    numbers.map(lambda n: n + 1).take(5).write_to(out["split"])
    numbers.sort(reverse=True).take(2000).take(3).write_to(out["few"])
    numbers.filter(lambda n: n < 7).take(100).aggregate(agg.counting()).write_to(out["more"])
    # Who reads from the same source gets everything.
    numbers.aggregate(agg.counting()).write_to(out["all"])

    engine.run(p)

    assert out["sorted"].items == [-n for n in range(10)]
    assert out["split"].items == [n + 1 for n in SHUFFLED[:5]]
    assert out["few"].items == [3999, 3998, 3997]
    assert out["more"].items == [7]
    assert out["all"].items == [4000]


@pytest.mark.parametrize("count", [1, 1500, 5000])
def test_so_many_of_what_is_in_no_order(engine, count):
    p, out = Pipeline("some"), sinks.collect()
    p.read_from(sources.items(SHUFFLED)).rebalance().map(lambda n: n + 1).take(count).write_to(out)

    engine.run(p)

    assert len(out.items) == len(set(out.items)) == min(count, 4000)
    assert {n - 1 for n in out.items} <= set(SHUFFLED)


def test_items_keep_their_times(engine):
    p, out = Pipeline("times", preserve_order=True), sinks.collect()
    numbers = p.read_from(sources.batch("one", lambda split: range(100), splits=[0]))
    first = numbers.add_timestamps(lambda n: n).take(25)
    first.window(windows.tumbling(10)).aggregate(agg.counting()).write_to(out)

    engine.run(p)

    assert sorted((w.start, w.result) for w in out.items) == [(0, 10), (10, 10), (20, 5)]


def test_sources_without_end_end(engine):
    p, out = Pipeline("endless"), sinks.collect()
    numbers = p.read_from(
        sources.batch("endless", lambda split: itertools.count(), splits=range(3))
    )
    names = p.read_from(sources.items([(0, "even"), (1, "odd")]))
    named = numbers.hash_join(names, lambda n: n % 2, lambda pair: pair[0])
    named.flat_map(lambda pair: [pair[1][1]] * 2).filter(bool).take(3000).write_to(out)

    engine.run(p)

    assert len(out.items) == 3000
    assert set(out.items) == {"even", "odd"}
