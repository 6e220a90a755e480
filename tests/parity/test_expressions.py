"""Expressions wherever a function can stand, on every engine: what they give when called."""

from __future__ import annotations

import pytest

from jetlet import Pipeline, agg, col, it, record, sinks, sources, when, windows
from jetlet.errors import JobFailedError

ROWS = [
    {
        "user": "abc"[n % 3],
        "price": None if n % 7 == 0 else n,
        "at": n * 10,
        "tags": [n, n + 1] if n % 2 else None,
    }
    for n in range(300)
]
CENTS = record(user=col("user").upper(), cents=col("price") * 100 - 1, at=it.at)
KEPT = (col("price") % 2 == 0) | col("price").is_null()


def test_stages_of_one_item(engine):
    p, out, flat = Pipeline("expressions"), sinks.collect(name="out"), sinks.collect(name="flat")
    rows = p.read_from(sources.items(ROWS))
    rows.filter(KEPT).map(CENTS).map(lambda row: (row["at"], row)).map(it[1]).write_to(out)
    rows.flat_map(record(user=it.user, tag=it.tags.explode() + 1)).write_to(flat)

    engine.run(p)

    expected = [CENTS(row) for row in ROWS if KEPT(row)]
    assert sorted(out.items, key=col("at")) == expected
    assert sorted(flat.items, key=lambda row: row["tag"]) == sorted(
        ({"user": row["user"], "tag": tag + 1} for row in ROWS for tag in row["tags"] or ()),
        key=lambda row: row["tag"],
    )


def test_keys_aggregates_and_sorting(engine):
    p, out, top = Pipeline("expressions"), sinks.collect(name="out"), sinks.collect(name="top")
    rows = p.read_from(sources.items(ROWS)).filter(~col("price").is_null())
    (
        rows.grouping_key(record(it.user, it.price % 2))
        .aggregate(
            agg.all_of(
                agg.counting(),
                agg.summing(col("price") * 2),
                agg.max_by(col("price")),
                agg.to_set(col("price") // 100),
            )
        )
        .write_to(out)
    )
    rows.sort(-col("price")).take(3).map(it.price).write_to(top)

    engine.run(p)

    expected = {}
    for row in ROWS:
        if row["price"] is not None:
            expected.setdefault((row["user"], row["price"] % 2), []).append(row)
    assert dict(out.items) == {
        key: (
            len(group),
            sum(row["price"] * 2 for row in group),
            group[-1],
            {row["price"] // 100 for row in group},
        )
        for key, group in expected.items()
    }
    assert top.items == [299, 298, 297]


def test_joins_and_windows(engine):
    p, joined, windowed = Pipeline("more"), sinks.collect(name="joined"), sinks.collect(name="win")
    rows = p.read_from(sources.items(ROWS))
    names = p.read_from(sources.items([("a", "Ann"), ("b", "Bob")]))
    named = record(it[0].at, it[1][1])
    rows.inner_hash_join(names, it.user, it[0], to_output=named).write_to(joined)
    (
        rows.add_timestamps(col("at"), 0)
        .grouping_key(col("user"))
        .window(windows.tumbling(1000))
        .aggregate(agg.summing(it.price.fill_null(0)))
        .map(record(it.key, it.end, it.result))
        .write_to(windowed)
    )

    engine.run(p)

    known = {"a": "Ann", "b": "Bob"}
    assert sorted(joined.items) == [
        (row["at"], known[row["user"]]) for row in ROWS if row["user"] in known
    ]
    sums = {}
    for row in ROWS:
        key = (row["user"], row["at"] // 1000 * 1000 + 1000)
        sums[key] = sums.get(key, 0) + (row["price"] or 0)
    assert sorted(windowed.items) == sorted((*key, total) for key, total in sums.items())


def test_errors_name_the_expression(engine):
    p, out, bad = Pipeline("bad"), sinks.collect(name="out"), sinks.collect(name="bad")
    chosen = when(it.price > 290).then(it.price // (it.price - 295)).otherwise(it.at)
    p.read_from(sources.items(ROWS)).map(chosen, on_error=bad).write_to(out)

    engine.run(p)

    assert len(out.items) == len(ROWS) - 1
    (letter,) = bad.items
    assert letter.item == ROWS[295]
    assert letter.error_type == "ZeroDivisionError"
    assert letter.error.endswith(f"(in the expression {chosen})")


def test_integers_do_not_wrap(engine):
    p = Pipeline("overflow")
    p.read_from(sources.items([1, 2**62])).map(it * 3 - 1).write_to(sinks.noop())

    with pytest.raises(JobFailedError, match=r"does not fit into 64 bits .in the expression it"):
        engine.run(p)
