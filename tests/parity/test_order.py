"""Sorting, order that is kept, and items that are spread anew, on every engine."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict

import pytest

from jetlet import Pipeline, agg, service, sinks, sources
from jetlet.errors import OrderNotPreservableError

SHUFFLED = random.Random(3).sample(range(4000), 4000)


def bag(items):
    return sorted(map(repr, items))


def collectors(names):
    return {name: sinks.collect(name=name) for name in names.split()}


def one_partition(items):
    return sources.batch("one", lambda split: iter(items), splits=[0])


async def same(x):
    return x


def test_sort_and_its_options(engine):
    p = Pipeline("sort", preserve_order=True)
    numbers = p.read_from(one_partition(SHUFFLED))
    out = collectors("plain key reverse spilled empty")
    numbers.sort().write_to(out["plain"])
    # Equal keys keep the order of arrival, also backwards.
    numbers.sort(lambda x: x % 10, name="by last digit").write_to(out["key"])
    numbers.sort(key=lambda x: x % 10, reverse=True).write_to(out["reverse"])
    numbers.sort(memory_limit=20_000).write_to(out["spilled"])
    numbers.filter(lambda x: False).sort().write_to(out["empty"])

    engine.run(p)

    assert out["plain"].items == out["spilled"].items == list(range(4000))
    assert out["key"].items == sorted(SHUFFLED, key=lambda x: x % 10)
    assert out["reverse"].items == sorted(SHUFFLED, key=lambda x: x % 10, reverse=True)
    assert out["empty"].items == []


def test_sorted_items_stay_in_order_up_to_the_sink(engine, tmp_path):
    p = Pipeline("sorted")
    in_order = p.read_from(sources.items(SHUFFLED)).sort()
    out = collectors("chain joined stateful list groups")
    (
        in_order.map(lambda x: x + 1)
        .map_using_service(service(lambda context: 1), lambda one, x: x - one)
        .map_async(same)
        .map_batched(list, 100)
        .flat_map(lambda x: (x, x))
        .write_to(out["chain"])
    )
    in_order.inner_hash_join(
        p.read_from(sources.items(range(0, 4000, 3))), lambda x: x, lambda y: y
    ).map(lambda pair: pair[0]).write_to(out["joined"])
    in_order.rolling_aggregate(agg.counting()).map(str).map_async(same).write_to(out["stateful"])
    in_order.aggregate(agg.to_list()).write_to(out["list"])
    in_order.grouping_key(lambda x: x % 3).aggregate(agg.to_list()).write_to(out["groups"])
    in_order.map(str).write_to(sinks.text(tmp_path / "out"))

    engine.run(p)

    assert out["chain"].items == [x for x in range(4000) for _ in range(2)]
    assert out["joined"].items == list(range(0, 4000, 3))
    assert out["stateful"].items == [str(x) for x in range(1, 4001)]
    assert out["list"].items == [list(range(4000))]
    assert dict(out["groups"].items) == {i: list(range(i, 4000, 3)) for i in range(3)}
    (part,) = (tmp_path / "out").glob("part-*")
    assert part.read_text().split() == [str(x) for x in range(4000)]


def test_order_of_each_source_partition_is_kept(engine):
    p = Pipeline("ordered", preserve_order=True)
    source = sources.batch(
        "parts",
        lambda part: ((part, i) for i in range(700)),
        splits=["a", "b", "c", "d", "e"],
        local_parallelism=2,
    )
    read = p.read_from(source)
    chain, by_key = sinks.collect(), sinks.collect()
    (
        read.map(lambda x: x, local_parallelism=3)
        .map_async(same)
        .merge(p.read_from(one_partition([("one", i) for i in range(900)]), name="one"))
        .flat_map(lambda x: [x])
        .map_batched(list, 64)
        .write_to(chain)
    )
    # Behind a key there is more parallelism, and the order per key.
    (
        read.rebalance(lambda x: x[0])
        .map(lambda x: x, local_parallelism=3)
        .map_async(same, local_parallelism=3)
        .write_to(by_key)
    )

    engine.run(p)

    lengths = dict.fromkeys("abcde", 700)
    assert _positions(chain.items) == {
        part: list(range(n)) for part, n in {**lengths, "one": 900}.items()
    }
    assert _positions(by_key.items) == {part: list(range(n)) for part, n in lengths.items()}


def test_rebalance_loses_nothing_and_by_key_keeps_keys_together(engine):
    who = service(lambda context: uuid.uuid4().hex)
    p = Pipeline("rebalance")
    numbers = p.read_from(sources.items(SHUFFLED), local_parallelism=1)
    spread, keyed, sink = sinks.collect(), sinks.collect(), sinks.collect()
    numbers.rebalance().map(lambda x: x, local_parallelism=2).write_to(spread)
    numbers.rebalance(lambda x: x % 20).map_using_service(
        who, lambda me, x: (x % 20, me), local_parallelism=2
    ).write_to(keyed)
    numbers.rebalance().rebalance(lambda x: x).write_to(sink)

    engine.run(p)

    assert bag(spread.items) == bag(sink.items) == bag(SHUFFLED)
    assert len(keyed.items) == 4000
    places = defaultdict(set)
    for key, me in keyed.items:
        places[key].add(me)
    assert len(places) == 20 and all(len(found) == 1 for found in places.values())


async def later(x):
    return x


def test_what_would_break_the_order_is_refused_unless_asked_for(engine):
    p = Pipeline("broken", preserve_order=True)
    p.read_from(sources.items([1])).map_async(later, ordered=False).write_to(sinks.collect())
    with pytest.raises(OrderNotPreservableError, match="write ordered=True"):
        engine.submit(p)

    p, out = Pipeline("on purpose", preserve_order=True), sinks.collect()
    p.read_from(sources.items(range(100))).rebalance().write_to(out)
    engine.run(p)
    assert sorted(out.items) == list(range(100))


def _positions(items):
    found = defaultdict(list)
    for part, position in items:
        found[part].append(position)
    return dict(found)
