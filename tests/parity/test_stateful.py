"""Stages with state, rolling aggregates and distinct, on every engine.

On bounded input a state lives to the end, whatever its time-to-live: there are no watermarks.
"""

from __future__ import annotations

from collections import Counter

from jetlet import Pipeline, agg, sinks, sources, whole_item, windows

NUMBERS = range(1200)


def bag(items):
    return sorted(map(repr, items))


def collectors(names):
    return {name: sinks.collect(name=name) for name in names.split()}


class Box:
    def __init__(self):
        self.value = 0

    def add(self, x):
        self.value += x
        return self.value


def running_totals(items):
    box = Box()
    return [box.add(x) for x in items]


def every_third(box, *key_and_item):
    return box.add(1) % 3 == 0


def test_one_state_for_all_items(engine):
    p = Pipeline("global-state", preserve_order=True)
    numbers = p.read_from(sources.batch("one", lambda split: iter(NUMBERS), splits=[0]))
    out = collectors("map filter flat rolling")
    numbers.map_stateful(Box, Box.add).write_to(out["map"])
    numbers.filter_stateful(Box, every_third, name="thirds").write_to(out["filter"])
    numbers.flat_map_stateful(Box, lambda box, x: [x, box.add(x)][x % 2 :]).write_to(out["flat"])
    # The order goes on through the stages behind.
    numbers.rolling_aggregate(agg.summing()).map(lambda x: x).map_batched(list).write_to(
        out["rolling"]
    )

    engine.run(p)

    box = Box()
    assert out["map"].items == out["rolling"].items == running_totals(NUMBERS)
    assert out["filter"].items == list(range(2, 1200, 3))
    assert out["flat"].items == [y for x in NUMBERS for y in [x, box.add(x)][x % 2 :]]


def test_a_state_per_key(engine):
    p = Pipeline("keyed-state", preserve_order=True)
    numbers = p.read_from(sources.batch("one", lambda split: iter(NUMBERS), splits=[0]))
    keyed = numbers.grouping_key(lambda x: x % 7)
    out = collectors("map filter flat rolling")
    keyed.map_stateful(Box, lambda box, key, x: (key, box.add(x))).write_to(out["map"])
    keyed.filter_stateful(Box, every_third, local_parallelism=3).write_to(out["filter"])
    keyed.flat_map_stateful(
        Box, lambda box, key, x: [(key, box.add(1))] * key, name="repeat"
    ).write_to(out["flat"])
    # Per key, the order goes on through the stages behind.
    keyed.rolling_aggregate(agg.summing()).map(lambda x: x).map_batched(list).write_to(
        out["rolling"]
    )

    engine.run(p)

    groups = {key: [x for x in NUMBERS if x % 7 == key] for key in range(7)}
    for name in ("map", "rolling"):
        for key, items in groups.items():
            totals = [total for k, total in out[name].items if k == key]
            assert totals == running_totals(items), (name, key)
    assert bag(out["filter"].items) == bag(x for items in groups.values() for x in items[2::3])
    assert Counter(out["flat"].items) == {
        (key, count): key for key in range(1, 7) for count in range(1, len(groups[key]) + 1)
    }


def boxed(box, *key_and_item):
    return box.add(1)


def rest(box, *key):
    return ("rest", *key, box.value)


def test_states_that_are_dropped_and_what_is_left_at_the_end(engine):
    p = Pipeline("ends")
    numbers = p.read_from(sources.items(NUMBERS))
    keyed = numbers.grouping_key(lambda x: x % 7)
    out = collectors("map filter flat all nobody")
    ends = {"drop_when": lambda box: box.value == 5, "on_end": rest}
    keyed.map_stateful(Box, boxed, **ends).write_to(out["map"])
    keyed.filter_stateful(Box, every_third, **ends).write_to(out["filter"])
    keyed.flat_map_stateful(
        Box, lambda box, key, x: iter([boxed(box)] * 2), **ends, local_parallelism=2
    ).write_to(out["flat"])
    numbers.map_stateful(Box, boxed, drop_when=lambda box: box.value == 7, on_end=rest).write_to(
        out["all"]
    )
    numbers.filter(lambda x: False).map_stateful(Box, boxed, on_end=rest).write_to(out["nobody"])

    engine.run(p)

    groups = {key: [x for x in NUMBERS if x % 7 == key] for key in range(7)}
    counts = [n % 5 + 1 for items in groups.values() for n in range(len(items))]
    rests = [("rest", key, len(items) % 5) for key, items in groups.items() if len(items) % 5]
    assert bag(out["map"].items) == bag([*counts, *rests])
    assert bag(out["flat"].items) == bag([*counts, *counts, *(y for each in rests for y in each)])
    assert len(out["filter"].items) == counts.count(3) + len(rests)
    assert bag(out["all"].items) == bag([*(n % 7 + 1 for n in range(1200)), ("rest", 1200 % 7)])
    assert out["nobody"].items == []


def test_distinct_items_and_keys(engine):
    p = Pipeline("distinct")
    numbers = p.read_from(sources.items(NUMBERS))
    items, by_key, kinds = sinks.collect(), sinks.collect(), sinks.collect()
    numbers.map(lambda x: (x % 10, str(x % 3))).distinct().write_to(items)
    numbers.grouping_key(lambda x: x % 11).distinct(local_parallelism=2).write_to(by_key)
    # Keys that are equal are one, whatever their types.
    numbers.flat_map(lambda x: (x % 5, float(x % 5))).distinct(name="equal").write_to(kinds)

    engine.run(p)

    assert sorted(items.items) == sorted({(x % 10, str(x % 3)) for x in NUMBERS})
    assert sorted(x % 11 for x in by_key.items) == list(range(11))
    assert sorted(kinds.items) == [0, 1, 2, 3, 4]


def test_states_of_empty_input_and_of_none_keys(engine):
    p = Pipeline("edge-cases")
    empty, none_keys = sinks.collect(), sinks.collect()
    p.read_from(sources.items([])).rolling_aggregate(agg.counting()).write_to(empty)
    p.read_from(sources.items([None, 1, None])).grouping_key(whole_item).rolling_aggregate(
        agg.counting()
    ).write_to(none_keys)

    engine.run(p)

    assert empty.items == []
    assert bag(none_keys.items) == bag([(None, 1), (1, 1), (None, 2)])


def summed(box, key, x):
    box.add(x)
    return ()


def test_states_that_expire_live_to_the_end(engine):
    p = Pipeline("expiring")
    timed = p.read_from(sources.items(NUMBERS)).add_timestamps(lambda x: 10 * x, 0)
    keyed = timed.grouping_key(lambda x: x % 7)
    out = collectors("map filter flat rolling windows")
    evicted = keyed.flat_map_stateful(
        Box, summed, ttl=50, on_evict=lambda box, key, time: [(key, box.value, time)] * 2
    )
    evicted.write_to(out["flat"])
    # What is emitted at the end has a time as well.
    evicted.window(windows.tumbling(10)).aggregate(agg.counting()).write_to(out["windows"])
    keyed.map_stateful(
        Box,
        lambda box, key, x: box.add(1) and None,
        ttl=50,
        on_evict=lambda box, key, time: (key, box.value) if key else None,
    ).write_to(out["map"])
    keyed.filter_stateful(
        Box, every_third, ttl=50, on_evict=lambda box, key, time: -1 - key, local_parallelism=2
    ).write_to(out["filter"])
    keyed.rolling_aggregate(agg.counting(), ttl=50).write_to(out["rolling"])

    engine.run(p)

    groups = {key: [x for x in NUMBERS if x % 7 == key] for key in range(7)}
    ends = {key: 10 * items[-1] + 50 for key, items in groups.items()}
    assert Counter(out["flat"].items) == {
        (key, sum(items), ends[key]): 2 for key, items in groups.items()
    }
    found = {window.start: window.result for window in out["windows"].items}
    assert found == dict.fromkeys(ends.values(), 2)
    assert Counter(out["map"].items) == {
        None: len(NUMBERS),
        **{(key, len(items)): 1 for key, items in groups.items() if key},
    }
    kept = [x for x in out["filter"].items if x >= 0]
    assert Counter(x % 7 for x in kept) == {key: len(group) // 3 for key, group in groups.items()}
    assert sorted(x for x in out["filter"].items if x < 0) == [*range(-7, 0)]
    assert Counter(out["rolling"].items) == {
        (key, count): 1 for key in groups for count in range(1, len(groups[key]) + 1)
    }
