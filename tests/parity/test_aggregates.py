"""Every stock aggregate and every way to aggregate, on every engine."""

from __future__ import annotations

import importlib.util
from collections import Counter
from fractions import Fraction

from jetlet import Pipeline, agg, sinks, sources, whole_item

NUMBERS = [x * 37 % 1009 for x in range(1009)]
"""All of 0 to 1008, shuffled."""


def _remember_pair(acc, x):
    return (acc[0] + 1, max(acc[1], x))


OPERATIONS = {
    "counting": (agg.counting(), len),
    "summing": (agg.summing(), sum),
    "summing-fn": (agg.summing(lambda x: x % 7), lambda xs: sum(x % 7 for x in xs)),
    "averaging": (agg.averaging(Fraction), lambda xs: Fraction(sum(xs), len(xs))),
    "min_by": (agg.min_by(), min),
    "max_by": (agg.max_by(lambda x: -x), min),
    "top_n": (agg.top_n(3), lambda xs: sorted(xs)[:-4:-1]),
    "bottom_n": (agg.bottom_n(3, lambda x: -x), lambda xs: sorted(xs)[:-4:-1]),
    "pick_any": (agg.mapping(lambda x: "same", agg.pick_any()), lambda xs: "same"),
    "reducing": (agg.reducing(0, lambda a, x: a ^ x, lambda a, b: a ^ b), "xor"),
    "reducing-one-stage": (agg.reducing(0, lambda a, x: a ^ x), "xor"),
    "linear_trend": (agg.linear_trend(lambda x: x, lambda x: 2 * x), lambda xs: 2.0),
    "to_list": (agg.to_list().and_then(sorted), sorted),
    "to_set": (agg.to_set(lambda x: x % 5), lambda xs: {x % 5 for x in xs}),
    "to_dict": (
        agg.to_dict(lambda x: x % 5, lambda x: x, max),
        lambda xs: {x % 5: max(y for y in xs if y % 5 == x % 5) for x in xs},
    ),
    "concatenating": (
        agg.mapping(lambda x: "a", agg.concatenating(",", "<", ">")),
        lambda xs: f"<{','.join('a' * len(xs))}>",
    ),
    "sorting": (agg.sorting(reverse=True), lambda xs: sorted(xs, reverse=True)),
    "grouping_by": (
        agg.grouping_by(lambda x: x % 3, agg.counting()),
        lambda xs: dict(Counter(x % 3 for x in xs)),
    ),
    "filtering": (
        agg.filtering(lambda x: x % 2, agg.counting()),
        lambda xs: sum(x % 2 for x in xs),
    ),
    "flat_mapping": (
        agg.flat_mapping(lambda x: (x, 1), agg.summing()),
        lambda xs: sum(xs) + len(xs),
    ),
    "all_of": (
        agg.all_of(agg.counting(), agg.summing(), agg.max_by()),
        lambda xs: (len(xs), sum(xs), max(xs)),
    ),
    "of": (
        agg.of(
            create=lambda: (0, -1),
            accumulate=_remember_pair,
            combine=lambda a, b: (a[0] + b[0], max(a[1], b[1])),
        ),
        lambda xs: (len(xs), max(xs)),
    ),
    "of-one-stage": (
        agg.of(create=list, accumulate=lambda acc, x: [*acc, x], finish=len),
        len,
    ),
}
# A new version of Python has to wait for this library.
if importlib.util.find_spec("datasketches") is not None:
    OPERATIONS |= {
        "approx_distinct": (agg.approx_distinct(lambda x: x % 50), lambda xs: 50),
        "approx_quantiles": (agg.approx_quantiles([0.1, 0.9], lambda x: 7), lambda xs: [7.0, 7.0]),
    }
OF_NONE = {
    "counting": 0,
    "summing": 0,
    "averaging": None,
    "min_by": None,
    "top_n": [],
    "to_list": [],
    "to_dict": {},
    "concatenating": "<>",
    "all_of": (0, 0, None),
    "reducing-one-stage": 0,
}


def expected(name, items):
    oracle = OPERATIONS[name][1]
    if oracle == "xor":
        result = 0
        for x in items:
            result ^= x
        return result
    return oracle(items)


def collectors(names):
    return {name: sinks.collect(name=name) for name in names.split()}


def groups_of_operations(engine):
    """The operations one by one; elsewhere, where each takes its time, in two compositions."""
    if engine.runs_here:
        return [[name] for name in OPERATIONS]
    two_stages = [name for name in OPERATIONS if OPERATIONS[name][0].combine is not None]
    return [two_stages, [name for name in OPERATIONS if name not in two_stages]]


def composed(names):
    return agg.all_of(*(OPERATIONS[name][0] for name in names))


def test_every_operation_over_all_items(engine):
    groups = groups_of_operations(engine)
    p = Pipeline("global")
    numbers = p.read_from(sources.items(NUMBERS))
    out = [sinks.collect() for _ in groups]
    for names, sink in zip(groups, out, strict=True):
        numbers.aggregate(composed(names)).write_to(sink)

    engine.run(p)

    for names, sink in zip(groups, out, strict=True):
        (results,) = sink.items
        assert dict(zip(names, results, strict=True)) == {n: expected(n, NUMBERS) for n in names}


def test_every_operation_by_key(engine):
    groups = groups_of_operations(engine)
    p = Pipeline("keyed")
    keyed = p.read_from(sources.items(NUMBERS)).grouping_key(lambda x: x // 340)
    out = [sinks.collect() for _ in groups]
    for names, sink in zip(groups, out, strict=True):
        keyed.aggregate(composed(names), local_parallelism=2).write_to(sink)

    engine.run(p)

    for names, sink in zip(groups, out, strict=True):
        assert sorted(key for key, _ in sink.items) == [0, 1, 2]
        for key, results in sink.items:
            mine = [x for x in NUMBERS if x // 340 == key]
            assert dict(zip(names, results, strict=True)) == {n: expected(n, mine) for n in names}


def test_results_of_no_items(engine):
    two_stages = [name for name in OF_NONE if OPERATIONS[name][0].combine is not None]
    p = Pipeline("none")
    empty = p.read_from(sources.items([]))
    two, one, keyed, both = (sinks.collect() for _ in range(4))
    empty.aggregate(composed(two_stages)).write_to(two)
    empty.aggregate(OPERATIONS["reducing-one-stage"][0]).write_to(one)
    empty.grouping_key(whole_item).aggregate(agg.counting()).write_to(keyed)
    empty.aggregate2(agg.counting(), empty, agg.to_list()).write_to(both)

    engine.run(p)

    assert two.items == [tuple(OF_NONE[name] for name in two_stages)]
    assert one.items == [OF_NONE["reducing-one-stage"]]
    assert keyed.items == []
    assert both.items == [(0, [])]


def test_nothing_of_no_items_where_it_is_asked_for(engine):
    p = Pipeline("nothing")
    empty, few = p.read_from(sources.items([])), p.read_from(sources.items([4, 5]))
    out = {name: sinks.collect(name=name) for name in ("two", "one", "both", "all", "some")}
    one_stage = agg.of(create=int, accumulate=lambda acc, item: acc + item)
    empty.aggregate(agg.counting(), emit_empty=False).write_to(out["two"])
    empty.aggregate(one_stage, emit_empty=False).write_to(out["one"])
    empty.aggregate2(agg.counting(), empty, agg.to_list(), emit_empty=False).write_to(out["both"])
    few.aggregate(one_stage, emit_empty=False).write_to(out["all"])
    empty.aggregate2(agg.counting(), few, agg.summing(), emit_empty=False).write_to(out["some"])

    engine.run(p)

    assert {name: sink.items for name, sink in out.items()} == {
        "two": [],
        "one": [],
        "both": [],
        "all": [9],
        "some": [(0, 9)],
    }


def test_co_aggregation_of_two_three_and_more(engine):
    p = Pipeline("co-aggregation")
    a = p.read_from(sources.items(NUMBERS))
    b = p.read_from(sources.items(range(50)))
    c = p.read_from(sources.items(list("abcabc")))
    out = collectors("two op three many k2 k3 kn one")
    two = agg.co_aggregate(agg.counting(), agg.summing())
    one_stage = agg.of(create=int, accumulate=[lambda acc, x: acc + 1, lambda acc, x: acc + x])
    a.aggregate2(agg.counting(), b, agg.summing()).write_to(out["two"])
    a.aggregate2(b, two, name="given").write_to(out["op"])
    a.aggregate3(agg.counting(), b, agg.summing(), c, agg.to_set()).write_to(out["three"])
    four = agg.co_aggregate(*[agg.counting()] * 4)
    a.co_aggregate(b, c, a, operation=four).write_to(out["many"])
    a3, b3 = a.grouping_key(lambda x: x % 3), b.grouping_key(lambda x: x % 4)
    c3 = c.grouping_key("abc".index)
    a3.aggregate2(agg.counting(), b3, agg.summing()).write_to(out["k2"])
    a3.aggregate3(agg.counting(), b3, agg.summing(), c3, agg.to_set()).write_to(out["k3"])
    a3.co_aggregate(b3, c3, b3, operation=four, local_parallelism=2).write_to(out["kn"])
    a3.aggregate2(b3, one_stage).write_to(out["one"])

    engine.run(p)

    assert out["two"].items == out["op"].items == [(1009, sum(range(50)))]
    assert out["three"].items == [(1009, sum(range(50)), set("abc"))]
    assert out["many"].items == [(1009, 50, 6, 1009)]
    threes = Counter(x % 3 for x in NUMBERS)
    fours = {key: [x for x in range(50) if x % 4 == key] for key in range(4)}
    letters = {0: {"a"}, 1: {"b"}, 2: {"c"}, 3: set()}
    assert dict(out["k2"].items) == {k: (threes[k], sum(fours[k])) for k in range(4)}
    assert dict(out["k3"].items) == {k: (threes[k], sum(fours[k]), letters[k]) for k in range(4)}
    assert dict(out["kn"].items) == {
        k: (threes[k], len(fours[k]), 2 * len(letters[k]), len(fours[k])) for k in range(4)
    }
    assert dict(out["one"].items) == {k: threes[k] + sum(fours[k]) for k in range(4)}


def test_keys_of_many_types(engine):
    keys = [1, 1.0, True, "1", b"1", None, (1, "a"), (1.0, "a"), frozenset({1}), 2.5, -1]
    p = Pipeline("keys")
    out = sinks.collect()
    p.read_from(sources.items(keys * 3)).grouping_key(whole_item).aggregate(
        agg.counting()
    ).write_to(out)

    engine.run(p)

    assert dict(out.items) == Counter(keys * 3)
    assert len(out.items) == len(Counter(keys))


def test_many_keys(engine):
    p = Pipeline("many-keys")
    out = sinks.collect()
    p.read_from(sources.items(range(20_000))).grouping_key(lambda x: f"key {x % 7000}").aggregate(
        agg.counting()
    ).write_to(out)

    engine.run(p)

    assert dict(out.items) == Counter(f"key {x % 7000}" for x in range(20_000))
