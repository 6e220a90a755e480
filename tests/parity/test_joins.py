"""Hash joins and merges, on every engine; also of stages with themselves."""

from __future__ import annotations

from jetlet import JoinClause, Pipeline, sinks, sources, whole_item

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
    outer, inner, output = sinks.collect(), sinks.collect(), sinks.collect()
    orders.hash_join(*sides).write_to(outer)
    orders.inner_hash_join(*sides).write_to(inner)
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
