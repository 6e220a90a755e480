"""Stages that look at one item at a time, on every engine."""

from __future__ import annotations

import asyncio
import functools
import threading

import pytest

from jetlet import (
    Pipeline,
    agg,
    service,
    shared_service,
    sinks,
    sources,
    whole_item,
    windows,
)
from jetlet.core import Processor

NUMBERS = range(2500)


def bag(items):
    return sorted(map(repr, items))


def collectors(names):
    return {name: sinks.collect(name=name) for name in names.split()}


def add_two(stage):
    return stage.map(lambda x: x + 1).map(lambda x: x + 1, name="second")


class Doubler(Processor):
    def process_item(self, ordinal, item):
        return self.try_emit(2 * item)


def chunk_sums(items):
    return [sum(items)] * len(items)


def test_functions_with_a_cache_travel(engine):
    loads = []

    @functools.cache
    def model():
        loads.append(1)
        return {"factor": 3}

    @functools.lru_cache(maxsize=8)
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    p, out = Pipeline("cached"), sinks.collect()
    (
        p.read_from(sources.items(range(10)))
        .map(lambda n: (n, n * model()["factor"]))
        .map(lambda pair: (*pair, fibonacci(pair[0])))
        .write_to(out)
    )
    engine.run(p)
    assert sorted(out.items)[7:] == [(7, 21, 13), (8, 24, 21), (9, 27, 34)]


def test_map_filter_flat_map_and_their_fusion(engine):
    p = Pipeline("stateless")
    numbers = p.read_from(sources.items(NUMBERS))
    out = collectors("map filter flat_map fused split")
    numbers.map(str).write_to(out["map"])
    numbers.filter(lambda x: x % 3).write_to(out["filter"])
    numbers.flat_map(lambda x: range(x % 4)).write_to(out["flat_map"])
    fused = (
        numbers.map(lambda x: x * 2)
        .filter(lambda x: x % 3 == 0)
        .flat_map(lambda x: (x, -x))
        .map(whole_item)
        .filter(bool)
        .map(lambda x: x + 1)
    )
    fused.write_to(out["fused"])
    # A second reader ends the run; what follows is another one.
    fused.map(str).filter(lambda s: "7" in s).write_to(out["split"])

    engine.run(p)

    expected = [y + 1 for x in NUMBERS if x * 2 % 3 == 0 for y in (2 * x, -2 * x) if y]
    assert bag(out["map"].items) == bag(map(str, NUMBERS))
    assert bag(out["filter"].items) == bag(x for x in NUMBERS if x % 3)
    assert bag(out["flat_map"].items) == bag(y for x in NUMBERS for y in range(x % 4))
    assert bag(out["fused"].items) == bag(expected)
    assert bag(out["split"].items) == bag(s for s in map(str, expected) if "7" in s)


def test_none_is_an_item_like_any_other(engine):
    items = [None, 1, None, 0, "", None]
    p = Pipeline("none")
    given = p.read_from(sources.items(items))
    out = collectors("same map flat filter distinct")
    given.write_to(out["same"])
    given.map(lambda x: None).write_to(out["map"])
    given.flat_map(lambda x: [None, x]).write_to(out["flat"])
    given.filter(lambda x: x is None).write_to(out["filter"])
    given.distinct().write_to(out["distinct"])

    engine.run(p)

    assert bag(out["same"].items) == bag(items)
    assert out["map"].items == [None] * 6
    assert bag(out["flat"].items) == bag([*items, *[None] * 6])
    assert out["filter"].items == [None] * 3
    assert bag(out["distinct"].items) == bag([None, 1, 0, ""])


def test_nothing_in_nothing_out(engine):
    p = Pipeline("empty")
    empty = p.read_from(sources.items([]))
    mapped, flat, kept = sinks.collect(), sinks.collect(), sinks.collect()
    empty.map(lambda x: 1 / 0).write_to(mapped)
    p.read_from(sources.batch("no-splits", lambda split: [split], splits=[])).write_to(flat)
    p.read_from(sources.items(NUMBERS)).filter(lambda x: False).rebalance().map(str).write_to(kept)

    engine.run(p)

    assert mapped.items == flat.items == kept.items == []


def test_name_and_parallelism_of_each_stage(engine):
    p = Pipeline("named")
    out = sinks.collect(name="results")
    (
        p.read_from(sources.items(NUMBERS), name="numbers", local_parallelism=2)
        .map(lambda x: x + 1, name="increment", local_parallelism=3)
        .filter(lambda x: x % 2, name="odd", local_parallelism=1)
        .write_to(out)
    )

    job = engine.run(p)

    assert bag(out.items) == bag(range(1, 2501, 2))
    metrics = job.metrics()
    assert {"numbers", "increment", "odd", "results"} <= set(metrics)
    assert metrics["increment"].received == 2500
    assert metrics["results"].received == 1250


def test_services_shared_and_not(engine):
    shared = shared_service(lambda context: {"factor": 10, "lock": threading.Lock()})
    own = service(lambda context: [0], destroy=lambda counter: counter.clear())

    def count(counter, item):
        counter[0] += 1  # a destroyed counter would fail
        return counter[0] > 0

    p = Pipeline("services")
    numbers = p.read_from(sources.items(NUMBERS))
    out = collectors("map filter flat blocking")
    numbers.map_using_service(shared, lambda s, x: s["factor"] * x).write_to(out["map"])
    numbers.filter_using_service(own, count).write_to(out["filter"])
    numbers.flat_map_using_service(
        shared, lambda s, x: [x] * (x % 3), name="repeat", local_parallelism=2
    ).write_to(out["flat"])
    blocking = service(lambda context: threading.Event(), blocking=True)
    numbers.map_using_service(blocking, lambda s, x: (s.wait(0), x)).write_to(out["blocking"])

    engine.run(p)

    assert bag(out["map"].items) == bag(10 * x for x in NUMBERS)
    assert bag(out["filter"].items) == bag(NUMBERS)
    assert bag(out["flat"].items) == bag(x for x in NUMBERS for _ in range(x % 3))
    assert bag(out["blocking"].items) == bag((False, x) for x in NUMBERS)


def test_map_batched_with_a_service_and_coroutines(engine):
    model = shared_service(lambda context: {"factor": 10})
    own = service(lambda context: [10], lambda ended: ended.clear(), reload="1ms", blocking=True)

    async def in_turn(items):
        await asyncio.sleep(0.0001 * (items[0] % 3))
        return [10 * x for x in items]

    async def with_client(client, items):
        await asyncio.sleep(0)
        return (client["factor"] * x for x in items)

    p = Pipeline("inference", preserve_order=True)
    numbers = p.read_from(sources.items(NUMBERS))
    plain, blocking, flight, client = collectors("plain blocking flight client").values()
    numbers.map_batched(
        lambda m, items: [m["factor"] * x for x in items], 64, max_wait=0.001, service=model
    ).write_to(plain)
    numbers.map_batched(lambda s, items: [s[0] * x for x in items], 9, service=own).write_to(
        blocking
    )
    numbers.map_batched(in_turn, 32, max_concurrency=3, name="flight").write_to(flight)
    numbers.map_batched(with_client, 50, max_wait=0.001, service=model).write_to(client)

    engine.run(p)

    for out in (plain, blocking, flight, client):
        assert sorted(out.items) == [10 * x for x in NUMBERS]


def test_map_batched_by_key(engine):
    """Items of a key are in one call at a time, in their order."""
    tens = service(lambda context: 10)

    def multiply(factor, keys, items):
        assert keys == [x % 3 for x in items] and len(keys) <= 8
        return [factor * x for x in items]

    def make_gathers():
        busy, lasts = set(), {}

        async def gather(keys, items):
            assert not busy.intersection(keys)
            busy.update(keys)
            await asyncio.sleep(0.0001 * (len(items) % 3))
            busy.difference_update(keys)
            for key, item in zip(keys, items, strict=True):
                assert lasts.get(key, -1) < item
                lasts[key] = item
            return items

        return gather

    p = Pipeline("batched by key", preserve_order=True)
    numbers = p.read_from(sources.batch("numbers", range, [100]))
    keyed = numbers.grouping_key(lambda x: x % 3)
    times, later, plain = collectors("times later plain").values()
    keyed.map_batched(multiply, 8, service=tens).write_to(times)
    keyed.map_batched(make_gathers(), 8, name="later").write_to(later)
    timed = numbers.add_timestamps(lambda x: x).grouping_key(lambda x: x % 3)
    timed.map_batched(lambda keys, items: zip(keys, items, strict=True), name="timed").window(
        windows.tumbling(10)
    ).aggregate(agg.summing(lambda pair: pair[0])).write_to(plain)

    engine.run(p)

    assert sorted(times.items) == [10 * x for x in range(100)]
    assert sorted(later.items) == list(range(100))
    assert {w.start: w.result for w in plain.items} == {
        start: sum(x % 3 for x in range(start, start + 10)) for start in range(0, 100, 10)
    }


def test_map_batched(engine):
    p = Pipeline("batched")
    numbers = p.read_from(sources.items(NUMBERS))
    sizes, same, fewer = sinks.collect(), sinks.collect(), sinks.collect()
    numbers.map_batched(lambda items: [len(items)], 100).write_to(sizes)
    numbers.map_batched(chunk_sums, max_batch=7, name="sums").write_to(same)
    numbers.map_batched(lambda items: (x for x in items if x > 1)).write_to(fewer)

    engine.run(p)

    assert sum(sizes.items) == 2500 and max(sizes.items) <= 100
    assert len(same.items) == 2500
    assert bag(fewer.items) == bag(range(2, 2500))


def test_apply_custom_transform_and_peek(engine, capfd):
    p = Pipeline("others")
    numbers = p.read_from(sources.items(range(20)))
    applied, doubled, peeked = sinks.collect(), sinks.collect(), sinks.collect()
    numbers.apply(add_two).write_to(applied)
    numbers.custom_transform(Doubler, name="double", local_parallelism=2).write_to(doubled)
    (
        numbers.map(lambda x: x * 100, name="hundreds")
        .peek()
        .peek(lambda x: f"<{x}>", should_log=lambda x: x >= 1800, prefix="big ")
        .map(lambda x: x + 1)
        .write_to(peeked)
    )

    engine.run(p)

    assert bag(applied.items) == bag(range(2, 22))
    assert bag(doubled.items) == bag(range(0, 40, 2))
    assert bag(peeked.items) == bag(x * 100 + 1 for x in range(20))
    printed = capfd.readouterr().out.splitlines()
    assert {f"hundreds: {x * 100}" for x in range(20)} <= set(printed)
    assert {"big <1800>", "big <1900>"} == {line for line in printed if line.startswith("big")}


def test_a_pipeline_runs_again_with_the_same_results(engine):
    p = Pipeline("again")
    out = sinks.collect()
    p.read_from(sources.items(x for x in range(100))).map(lambda x: -x).write_to(out)

    engine.run(p)
    first = out.items
    engine.run(p)

    assert first is not out.items
    assert bag(first) == bag(out.items) == bag(range(-99, 1))


@pytest.mark.parametrize("count", [1, 30])
def test_deep_runs_of_flat_maps_compile(engine, count):
    p = Pipeline("deep")
    out = sinks.collect()
    stage = p.read_from(sources.items([1, 2, 3]))
    for _ in range(count):
        stage = stage.flat_map(lambda x: (x,)).filter(bool).map(whole_item)
    stage.write_to(out)

    engine.run(p)

    assert bag(out.items) == bag([1, 2, 3])


def test_a_sample_is_the_same_everywhere(engine):
    p, out = Pipeline("sample"), {name: sinks.collect(name=name) for name in ("some", "key", "all")}
    numbers = p.read_from(sources.items(range(5000)))
    numbers.sample(0.2).write_to(out["some"])
    numbers.sample(0.5, key=lambda n: n % 20, seed=7).write_to(out["key"])
    numbers.sample(1).sample(0.0).merge(numbers.sample(1.0).take(3)).write_to(out["all"])

    engine.run(p)

    some, kept = set(out["some"].items), {n % 20 for n in out["key"].items}
    assert 850 < len(some) == len(out["some"].items) < 1150
    assert sorted(some)[:10] == [12, 13, 15, 17, 20, 23, 31, 35, 39, 41]
    assert 4 < len(kept) < 16
    assert sorted(out["key"].items) == [n for n in range(5000) if n % 20 in kept]
    assert len(out["all"].items) == 3
