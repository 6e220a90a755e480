"""Joins and merges, on every engine; also of stages with themselves."""

from __future__ import annotations

from dataclasses import replace

from jetlet import JoinClause, Pipeline, sinks, sources, whole_item, windows

ORDERS = [(i, i % 9, i % 4) for i in range(600)]
"""(order, customer, product); customer 8 and product 3 do not exist."""
CUSTOMERS = [(i, f"customer {i}") for i in range(8)]
PRODUCTS = [(i, f"product {i}") for i in (0, 1, 1, 2)]
"""Product 1 has two entries."""


def bag(items):
    return sorted(map(repr, items))


def collectors(names):
    return {name: sinks.collect(name=name) for name in names.split()}


def matches(table, key):
    return [entry for entry in table if entry[0] == key] or [None]


def test_hash_joins_with_one_side(engine):
    p = Pipeline("one-side")
    orders = p.read_from(sources.items(ORDERS))
    customers = p.read_from(sources.items(CUSTOMERS))
    products = p.read_from(sources.items(PRODUCTS))
    out = collectors("outer inner twice output empty")
    orders.hash_join(customers, lambda o: o[1], lambda c: c[0]).write_to(out["outer"])
    orders.inner_hash_join(customers, lambda o: o[1], lambda c: c[0]).write_to(out["inner"])
    orders.hash_join(products, lambda o: o[2], lambda c: c[0], name="twice").write_to(out["twice"])
    orders.inner_hash_join(
        products,
        lambda o: o[2],
        lambda c: c[0],
        to_output=lambda o, product: (o[0], product[1]),
        local_parallelism=2,
    ).write_to(out["output"])
    nobody = customers.filter(lambda c: False)
    orders.hash_join(nobody, lambda o: o[1], lambda c: c[0]).write_to(out["empty"])

    engine.run(p)

    outer = [(o, c) for o in ORDERS for c in matches(CUSTOMERS, o[1])]
    twice = [(o, c) for o in ORDERS for c in matches(PRODUCTS, o[2])]
    assert bag(out["outer"].items) == bag(outer)
    assert bag(out["inner"].items) == bag((o, c) for o, c in outer if c)
    assert bag(out["twice"].items) == bag(twice)
    assert bag(out["output"].items) == bag((o[0], c[1]) for o, c in twice if c)
    assert bag(out["empty"].items) == bag((o, None) for o in ORDERS)


def test_hash_joins_with_three_sides(engine):
    p = Pipeline("three-sides")
    orders = p.read_from(sources.items(ORDERS))
    customers = p.read_from(sources.items(CUSTOMERS))
    products = p.read_from(sources.items(PRODUCTS))
    evens = p.read_from(sources.items(range(0, 600, 2)))
    sides = [
        JoinClause(customers, lambda o: o[1], lambda c: c[0]),
        JoinClause(products, lambda o: o[2], lambda c: c[0]),
        JoinClause(evens, lambda o: o[0], whole_item),
    ]
    outer, inner, output, mixed = (sinks.collect(name=str(i)) for i in range(4))
    orders.hash_join(*sides).write_to(outer)
    orders.inner_hash_join(*sides).write_to(inner)
    by_products = replace(sides[1], inner=True)
    orders.hash_join(sides[0], by_products, replace(sides[2], inner=False)).write_to(mixed)
    orders.hash_join(*sides, to_output=lambda o, *found: found.count(None)).write_to(output)

    engine.run(p)

    expected = [
        (o, c, q, o[0] if o[0] % 2 == 0 else None)
        for o in ORDERS
        for c in matches(CUSTOMERS, o[1])
        for q in matches(PRODUCTS, o[2])
    ]
    assert bag(outer.items) == bag(expected)
    assert bag(inner.items) == bag(row for row in expected if None not in row)
    assert bag(output.items) == bag(row.count(None) for row in expected)
    assert bag(mixed.items) == bag(row for row in expected if row[2] is not None)


def test_merge(engine):
    p = Pipeline("merge")
    a = p.read_from(sources.items(range(1500)))
    b = p.read_from(sources.items(list("xyz")))
    c = p.read_from(sources.items([]))
    two, three, again = (sinks.collect() for _ in range(3))
    a.merge(b).write_to(two)
    a.map(str).merge(b, c, name="all", local_parallelism=2).map(len).write_to(three)
    b.merge(b, b.map(str.upper)).write_to(again)

    engine.run(p)

    assert bag(two.items) == bag([*range(1500), *"xyz"])
    assert bag(three.items) == bag([len(str(x)) for x in range(1500)] + [1, 1, 1])
    assert bag(again.items) == bag("xyzxyzXYZ")


CLICKS = [(n * 7919 % 3000, n % 13, f"click {n}") for n in range(300)]
SALES = [(n * 104729 % 3000, n % 17, f"sale {n}") for n in range(200)]
"""(time, customer, what); in no order at all."""


def timed(p, events):
    return p.read_from(sources.items(events)).add_timestamps(lambda e: e[0], 0)


def test_interval_joins(engine):
    p = Pipeline("interval")
    clicks, sales = timed(p, CLICKS), timed(p, SALES)
    by_click, by_sale = clicks.grouping_key(lambda e: e[1]), sales.grouping_key(lambda e: e[1])
    sides = {"clicks": (by_click, CLICKS), "sales": (by_sale, SALES)}
    cases = [("clicks", "sales", 0, 500), ("sales", "sales", 1, 1000)]
    if engine.runs_here:
        cases += [("clicks", "sales", -100, 200), ("sales", "clicks", 0, 0)]
    out = {case: sinks.collect(name=f"{case}") for case in cases}
    for (first, second, lower, upper), sink in out.items():
        joined = sides[first][0].interval_join(sides[second][0], lower, upper)
        joined.write_to(sink)
    output, dead = sinks.collect(name="output"), sinks.collect(name="dead")
    by_click.interval_join(
        by_sale, -50, 50, lambda click, sale: 1 / (number(sale) % 2), on_error=dead
    ).write_to(output)

    engine.run(p)

    def pairs(first, second, lower, upper):
        return [
            (x, y)
            for x in sides[first][1]
            for y in sides[second][1]
            if x[1] == y[1] and lower <= y[0] - x[0] <= upper
        ]

    for case, sink in out.items():
        assert bag(sink.items) == bag(pairs(*case)), case
    close = pairs("clicks", "sales", -50, 50)
    failing = [(click, sale) for click, sale in close if number(sale) % 2 == 0]
    assert failing
    assert bag(letter.item for letter in dead.items) == bag(failing)
    assert output.items == [1.0] * (len(close) - len(failing))


def number(event):
    return int(event[2].split()[1])


def test_joins_in_windows(engine):
    p = Pipeline("windows")
    clicks, sales = timed(p, CLICKS), timed(p, SALES)
    by_click, by_sale = clicks.grouping_key(lambda e: e[1]), sales.grouping_key(lambda e: e[1])
    out = collectors("inner left itself")
    by_click.window(windows.tumbling(200)).inner_join(by_sale).write_to(out["inner"])
    by_click.window(windows.sliding(400, 200)).left_join(
        by_sale, lambda click, sale: (click[2], sale and sale[2])
    ).write_to(out["left"])
    by_sale.window(windows.tumbling(1000)).inner_join(by_sale, name="itself").write_to(
        out["itself"]
    )

    engine.run(p)

    def expected(first, second, size, slide, is_inner):
        found = []
        for start in range(slide - size, 3000, slide):
            inside = [[e for e in es if start <= e[0] < start + size] for es in (first, second)]
            for x in inside[0]:
                partners = [y for y in inside[1] if x[1] == y[1]]
                partners = partners or ([] if is_inner else [None])
                found += [(start, start + size, x[1], (x, y)) for y in partners]
        return found

    assert bag(map(tuple, out["inner"].items)) == bag(expected(CLICKS, SALES, 200, 200, True))
    assert bag(map(tuple, out["itself"].items)) == bag(expected(SALES, SALES, 1000, 1000, True))
    left = expected(CLICKS, SALES, 400, 200, False)
    assert bag(map(tuple, out["left"].items)) == bag(
        (start, end, key, (x[2], y and y[2])) for start, end, key, (x, y) in left
    )


def test_table_that_is_read_again(engine, tmp_path):
    (tmp_path / "names.csv").write_text("id,name\n" + "".join(f"{n},n{n}\n" for n in range(5)))
    names = sources.csv(tmp_path / "names.csv", types={"id": int})
    p, left, inner = Pipeline("refreshed"), sinks.collect(), sinks.collect()
    numbers = p.read_from(sources.items(range(600)))
    numbers.hash_join(
        names,
        lambda n: n % 7,
        lambda row: row["id"],
        refresh="1ms",
        to_output=lambda n, row: (n, row and row["name"]),
    ).write_to(left)
    numbers.inner_hash_join(names, lambda n: n % 7, lambda row: row["id"], refresh="1h").write_to(
        inner
    )

    engine.run(p)

    assert sorted(left.items) == sorted((n, f"n{n % 7}" if n % 7 < 5 else None) for n in range(600))
    assert sorted(n for n, _ in inner.items) == [n for n in range(600) if n % 7 < 5]
    assert all(row["name"] == f"n{n % 7}" for n, row in inner.items)
