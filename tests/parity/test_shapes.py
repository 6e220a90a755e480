"""Pipelines whose branches meet again, and others that are hard to lay out, on every engine."""

from __future__ import annotations

from collections import Counter

from jetlet import JoinClause, Pipeline, agg, entry_key, entry_value, sinks, sources, whole_item

MANY = range(6000)
"""More than all queues of an edge hold, so that nothing passes just because it fits into them."""


def bag(items):
    return sorted(map(repr, items))


def test_stage_joined_with_an_aggregate_of_itself(engine):
    p = Pipeline("self-join")
    numbers = p.read_from(sources.items(MANY)).map(lambda x: x + 1)
    share, frequency = sinks.collect(), sinks.collect()
    total = numbers.aggregate(agg.summing())
    numbers.hash_join(total, lambda x: 0, lambda t: 0).write_to(share)
    counts = numbers.grouping_key(lambda x: x % 10).aggregate(agg.counting())
    numbers.hash_join(
        counts, lambda x: x % 10, entry_key, to_output=lambda x, entry: (x, entry[1])
    ).write_to(frequency)

    engine.run(p)

    expected = sum(range(1, 6001))
    assert bag(share.items) == bag((x + 1, expected) for x in MANY)
    assert bag(frequency.items) == bag((x + 1, 600) for x in MANY)


def test_stage_joined_with_itself(engine):
    p = Pipeline("joined-with-itself")
    numbers = p.read_from(sources.items(MANY))
    direct, filtered = sinks.collect(), sinks.collect()
    numbers.inner_hash_join(numbers, lambda x: x + 1, whole_item).write_to(direct)
    numbers.inner_hash_join(
        JoinClause(numbers.filter(lambda x: x % 2), whole_item, whole_item),
        JoinClause(numbers.filter(lambda x: x % 3), whole_item, whole_item),
    ).map(lambda row: row[0]).write_to(filtered)

    engine.run(p)

    assert bag(direct.items) == bag((x, x + 1) for x in MANY[:-1])
    assert bag(filtered.items) == bag(x for x in MANY if x % 2 and x % 3)


def test_two_stages_joined_crosswise(engine):
    p = Pipeline("crosswise")
    a = p.read_from(sources.items(MANY), name="a")
    b = p.read_from(sources.items(range(3000, 9000)), name="b")
    ab, ba = sinks.collect(), sinks.collect()
    a.inner_hash_join(b, whole_item, whole_item).write_to(ab)
    b.inner_hash_join(a, whole_item, whole_item).write_to(ba)

    engine.run(p)

    assert bag(ab.items) == bag(ba.items) == bag((x, x) for x in range(3000, 6000))


def test_join_of_joins_of_one_source(engine):
    p = Pipeline("nested")
    numbers = p.read_from(sources.items(MANY))
    pairs = numbers.inner_hash_join(
        numbers.filter(lambda x: x % 5 == 0), lambda x: x - x % 5, whole_item
    )
    out = sinks.collect()
    numbers.inner_hash_join(pairs, whole_item, entry_key).write_to(out)

    engine.run(p)

    assert bag(out.items) == bag((x, (x, x - x % 5)) for x in MANY)


def test_global_aggregate_merged_with_a_wide_stage(engine):
    p = Pipeline("merged")
    numbers = p.read_from(sources.items(MANY))
    counted = numbers.aggregate(agg.counting())
    groups = numbers.grouping_key(lambda x: x % 3).aggregate(agg.counting()).map(entry_value)
    wide, sums = sinks.collect(), sinks.collect()
    merged = counted.merge(numbers, groups)
    merged.write_to(wide)
    merged.grouping_key(lambda x: x % 2).aggregate(agg.summing()).write_to(sums)

    engine.run(p)

    expected = [*MANY, 6000, 2000, 2000, 2000]
    assert bag(wide.items) == bag(expected)
    assert dict(sums.items) == {key: sum(x for x in expected if x % 2 == key) for key in range(2)}


def test_co_aggregation_of_a_stage_with_itself(engine):
    p = Pipeline("co-aggregated-with-itself")
    numbers = p.read_from(sources.items(MANY))
    tens, pairs = sinks.collect(), sinks.collect()
    numbers.grouping_key(lambda x: x % 10).aggregate2(
        agg.counting(), numbers.grouping_key(lambda x: x // 600), agg.summing()
    ).write_to(tens)
    numbers.aggregate2(agg.counting(), numbers, agg.max_by()).write_to(pairs)

    engine.run(p)

    assert dict(tens.items) == {i: (600, sum(range(i * 600, i * 600 + 600))) for i in range(10)}
    assert pairs.items == [(6000, 5999)]


def test_three_shuffles_in_a_row(engine):
    p = Pipeline("three-shuffles")
    words = [f"word {x % 97}" for x in MANY]
    out = sinks.collect()
    (
        p.read_from(sources.items(words))
        .grouping_key(whole_item)
        .aggregate(agg.counting())
        .grouping_key(entry_value)
        .aggregate(agg.to_list(entry_key))
        .rebalance()
        .flat_map(lambda entry: [(word, entry[0]) for word in entry[1]])
        .grouping_key(lambda entry: entry[0][-1])
        .aggregate(agg.summing(entry_value))
        .write_to(out)
    )

    engine.run(p)

    assert dict(out.items) == Counter(word[-1] for word in words)


def test_sinks_in_different_parts_of_a_pipeline(engine, tmp_path):
    p = Pipeline("sinks-everywhere")
    numbers = p.read_from(sources.items(MANY))
    before, after, both = sinks.collect(), sinks.collect(), sinks.collect(name="both")
    numbers.write_to(before)
    numbers.write_to(sinks.text(tmp_path / "before"))
    numbers.write_to(both)
    groups = numbers.grouping_key(lambda x: x % 50).aggregate(agg.counting())
    groups.write_to(sinks.text(tmp_path / "between"))
    groups.write_to(both)
    total = groups.aggregate(agg.summing(entry_value))
    total.write_to(after)
    total.write_to(sinks.text(tmp_path / "after"))
    total.write_to(both)

    engine.run(p)

    # What a sink in the middle reports arrives exactly once: a part twice is a part too many.
    expected_groups = [(key, 120) for key in range(50)]
    assert bag(before.items) == bag(MANY)
    assert sorted(map(int, _lines(tmp_path / "before"))) == list(MANY)
    assert bag(_lines(tmp_path / "between")) == bag(map(str, expected_groups))
    assert after.items == [6000]
    assert _lines(tmp_path / "after") == ["6000"]
    assert bag(both.items) == bag([*MANY, *expected_groups, 6000])


def test_broadcasts_that_depend_on_each_other(engine):
    p = Pipeline("chained-broadcasts")
    numbers = p.read_from(sources.items(range(3000)))
    least = numbers.aggregate(agg.min_by(), name="least")
    shifted = numbers.hash_join(
        least, lambda x: 0, lambda t: 0, to_output=lambda x, least: x - least
    )
    most = shifted.aggregate(agg.max_by(), name="most")
    scaled, tops = sinks.collect(), sinks.collect()
    shifted.hash_join(most, lambda x: 0, lambda t: 0, to_output=lambda x, most: (x, most)).write_to(
        scaled
    )
    most.write_to(tops)

    engine.run(p)

    assert bag(scaled.items) == bag((x, 2999) for x in range(3000))
    assert tops.items == [2999]


def test_pipelines_that_are_not_connected_run_in_one_job(engine):
    p = Pipeline("several")
    out = [sinks.collect(name=f"out {i}") for i in range(5)]
    for i, sink in enumerate(out):
        stage = p.read_from(sources.items(range(i, 100)))
        if i % 2:
            stage = stage.grouping_key(lambda x: x % 4).aggregate(agg.counting())
        if i == 4:
            stage = stage.sort(reverse=True)
        stage.write_to(sink)

    engine.run(p)

    assert bag(out[0].items) == bag(range(100))
    assert dict(out[1].items) == Counter(x % 4 for x in range(1, 100))
    assert dict(out[3].items) == Counter(x % 4 for x in range(3, 100))
    assert out[4].items == list(range(99, 3, -1))


def _lines(folder):
    parts = sorted(folder.glob("part-*"))
    return [line for path in parts for line in path.read_text().splitlines()]
