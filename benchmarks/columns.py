"""Expressions over columns, beside the same by hand, with lambdas, in DuckDB and in Polars.

All of them have one core: Polars and DuckDB are held to one thread, and the engine has one worker.
Each contest is run in turns in this process. Peers that are not installed are left out.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict

os.environ["POLARS_MAX_THREADS"] = "1"  # read when it is imported

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Contest, at_least, race
from benchmarks.sliding_window import SIZE, SLIDE, Taken, TakenSink, best_by_hand, make_events
from jetlet import EmbeddedEngine, Pipeline, agg, col, it, record, sinks, sources, windows

pa.set_cpu_count(1)


def duck() -> Any:
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads TO 1")
    return connection


def with_peers(contest: Contest, **peers: Callable[[], object]) -> Contest:
    """The contest with those peers that are installed."""
    for name, run in peers.items():
        if find_spec(name) is not None:
            contest[name] = run
        else:
            print(f"  {name} is not installed: make bench")
    return contest


def better_than(best: dict[str, float], name: str, *peers: str) -> None:
    for peer in peers:
        if peer in best:
            at_least(f"{peer} against {name}", best[peer] / best[name], 1)


# --- A chain over ints ------------------------------------------------------------------------


def chain_by_hand(limit: int) -> int:
    triple, keep = lambda x: x * 3 + 1, lambda x: x % 7 != 0
    total = 0
    for x in range(limit):
        y = triple(x)
        if keep(y):
            total += y
    return total


def chain(engine: EmbeddedEngine, limit: int, *, in_columns: bool, as_lambdas: bool = False) -> int:
    p = Pipeline("chain")
    out = sinks.collect()
    numbers = sources.items(range(limit))
    if not in_columns:
        numbers = sources.batch(  # type: ignore[assignment]
            "numbers",
            lambda _: (range(i, min(i + 1024, limit)) for i in range(0, limit, 1024)),
            batched=True,
        )
    stage = p.read_from(numbers)
    if as_lambdas:
        stage = stage.map(lambda x: x * 3 + 1).filter(lambda x: x % 7 != 0)
    else:
        stage = stage.map(it * 3 + 1).filter(it % 7 != 0)
    stage.aggregate(agg.summing()).write_to(out)
    engine.submit(p).join()
    return out.items[0]  # type: ignore[no-any-return]


def chain_in_duckdb(limit: int) -> int:
    query = f"SELECT sum(y) FROM (SELECT range * 3 + 1 AS y FROM range({limit})) WHERE y % 7 != 0"
    return int(duck().execute(query).fetchone()[0])


def chain_in_polars(limit: int) -> int:
    import polars as pl

    y = pl.int_range(limit, eager=True).to_frame("x").lazy().select(y=pl.col("x") * 3 + 1)
    return int(y.filter(pl.col("y") % 7 != 0).sum().collect().item())


def race_chain(engine: EmbeddedEngine, limit: int, repeats: int) -> None:
    print(f"chain: map, filter and sum over {limit:,} ints")
    runs: dict[str, Callable[[int], int]] = {
        "plain loop": chain_by_hand,
        "lambdas": lambda n: chain(engine, n, in_columns=False, as_lambdas=True),
        "expressions, items": lambda n: chain(engine, n, in_columns=False),
        "expressions, columns": lambda n: chain(engine, n, in_columns=True),
    }
    assert len({run(100_000) for run in runs.values()}) == 1
    contest: Contest = {name: (lambda run=run: run(limit)) for name, run in runs.items()}
    with_peers(
        contest, duckdb=lambda: chain_in_duckdb(limit), polars=lambda: chain_in_polars(limit)
    )
    best = race(contest, repeats)
    at_least("plain loop against columns", best["plain loop"] / best["expressions, columns"], 5)
    at_least("plain loop against items", best["plain loop"] / best["expressions, items"], 1.8)
    better_than(best, "expressions, columns", "duckdb", "polars")


# --- Parquet ----------------------------------------------------------------------------------


def write_orders(path: Path, rows: int) -> None:
    rng = np.random.default_rng(1)
    status = np.array(["paid", "open", "void"])[rng.integers(0, 3, rows)]
    table = pa.table(
        {
            "user": rng.integers(0, 10_000, rows),
            "status": status,
            "price": rng.integers(1, 10_000, rows),
            "quantity": rng.integers(0, 10, rows),
            "discount": rng.random(rows),
            "weight": rng.random(rows),
        }
    )
    pq.write_table(table, path, row_group_size=1 << 20)


def revenue(engine: EmbeddedEngine, source: Path, target: Path, *, as_lambdas: bool) -> None:
    p = Pipeline("revenue")
    stage = p.read_from(sources.parquet(source))
    if as_lambdas:
        result = (
            stage.filter(lambda row: row["status"] == "paid")
            .map(lambda row: {"user": row["user"], "cents": row["price"] * row["quantity"]})
            .grouping_key(lambda row: row["user"])
            .aggregate(agg.all_of(agg.counting(), agg.summing(lambda row: row["cents"])))
            .map(lambda e: {"user": e[0], "count": e[1][0], "cents": e[1][1]})
        )
    else:
        result = (
            stage.filter(col("status") == "paid")
            .map(record(user=col("user"), cents=col("price") * col("quantity")))
            .grouping_key(col("user"))
            .aggregate(agg.all_of(agg.counting(), agg.summing(col("cents"))))
            .map(record(user=it[0], count=it[1][0], cents=it[1][1]))
        )
    result.write_to(sinks.parquet(target))
    engine.submit(p).join()


def revenue_in_polars(source: Path, target: Path) -> None:
    import polars as pl

    (
        pl.scan_parquet(source)
        .filter(pl.col("status") == "paid")
        .select("user", cents=pl.col("price") * pl.col("quantity"))
        .group_by("user")
        .agg(count=pl.len(), cents=pl.col("cents").sum())
        .sink_parquet(target / "polars.parquet")
    )


def revenue_in_duckdb(source: Path, target: Path) -> None:
    duck().execute(
        f"COPY (SELECT user, count(*) AS count, sum(price * quantity) AS cents FROM '{source}' "
        f"WHERE status = 'paid' GROUP BY user) TO '{target / 'duckdb.parquet'}'"
    )


def race_parquet(engine: EmbeddedEngine, rows: int, repeats: int) -> None:
    print(f"parquet: {rows:,} rows of 6 columns: filter, product, count and sum of 10,000 keys")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        source = root / "orders.parquet"
        write_orders(source, rows)
        contest: Contest = {
            "columns": lambda: revenue(engine, source, root / "columns", as_lambdas=False),
            "lambdas": lambda: revenue(engine, source, root / "lambdas", as_lambdas=True),
        }
        with_peers(
            contest,
            polars=lambda: revenue_in_polars(source, root),
            duckdb=lambda: revenue_in_duckdb(source, root),
        )
        lambdas = contest.pop("lambdas")
        best = race(contest, repeats) | race({"lambdas": lambdas}, 1)
        found = [pq.read_table(root / each).sort_by("user") for each in ("columns", "lambdas")]
        assert found[0].equals(found[1])
        if "polars" in best:
            theirs = pq.read_table(root / "polars.parquet").sort_by("user")
            assert theirs.cast(found[0].schema).equals(found[0])
            at_least("polars against columns", best["polars"] / best["columns"], 0.5)
        at_least("lambdas against columns", best["lambdas"] / best["columns"], 10)


# --- JSON lines -------------------------------------------------------------------------------


class Order(TypedDict):
    """A line of the file, as far as anybody looks at it."""

    user: str
    status: str
    price: int
    quantity: int


def write_lines(path: Path, size: int) -> None:
    """About so many bytes of objects with some fields that nobody asks for."""
    rng = np.random.default_rng(1)
    count = 100_000
    users, prices = rng.integers(0, 10_000, count), rng.integers(1, 10_000, count)
    quantities, paid = rng.integers(0, 10, count), rng.integers(0, 3, count)
    lines = "".join(
        f'{{"id":{i},"user":"user{user}","status":"{"paid" if is_paid else "open"}",'
        f'"price":{price},"quantity":{quantity},"note":"as soon as it can be, please",'
        f'"tags":["a","b"]}}\n'
        for i, (user, price, quantity, is_paid) in enumerate(
            zip(users, prices, quantities, paid, strict=True)
        )
    )
    with path.open("w") as file:
        for _ in range(max(1, size // len(lines))):
            file.write(lines)


def count_lines(engine: EmbeddedEngine, path: Path, *, as_lambdas: bool) -> dict[str, int]:
    p, out = Pipeline("json"), sinks.collect()
    if as_lambdas:
        lines = p.read_from(sources.text(path)).map(json.loads)
        paid = lines.filter(lambda row: row["status"] == "paid")
        keyed = paid.grouping_key(lambda row: row["user"])
    else:
        orders = p.read_from(sources.json_lines(path, schema=Order))
        keyed = orders.filter(col("status") == "paid").grouping_key(col("user"))
    keyed.aggregate(agg.counting()).write_to(out)
    engine.submit(p).join()
    return dict(out.items)


def race_json(engine: EmbeddedEngine, size: int, repeats: int) -> None:
    print(f"JSON lines: {size / 1e9:g} GB: parse, filter, and count of 10,000 keys")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "orders.jsonl"
        write_lines(path, size)
        found: dict[str, dict[str, int]] = {}
        contest: Contest = {
            name: partial(
                _keep, found, name, lambda b=as_lambdas: count_lines(engine, path, as_lambdas=b)
            )
            for name, as_lambdas in (("columns", False), ("lambdas", True))
        }
        best = race(contest, repeats)
        assert found["columns"] == found["lambdas"]
        at_least("lambdas against columns", best["lambdas"] / best["columns"], 4)


def _keep(found: dict[str, Any], name: str, run: Callable[[], Any]) -> None:
    found[name] = run()


# --- Sliding windows --------------------------------------------------------------------------


def sliding(engine: EmbeddedEngine, events: pa.Table, taken: Taken) -> None:
    p = Pipeline("windows")
    (
        p.read_from(sources.items(events))
        .add_timestamps(col("time"), allowed_lag=0)
        .grouping_key(col("key"))
        .window(windows.sliding(SIZE, SLIDE))
        .aggregate(agg.all_of(agg.counting(), agg.summing(col("value"))))
        .write_to(TakenSink(taken))
    )
    engine.submit(p).join()


def sliding_in_polars(events: pa.Table, taken: Taken) -> None:
    import polars as pl

    frame = pl.from_arrow(events)
    partials = frame.group_by("key", frame=pl.col("time") // SLIDE).agg(  # type: ignore[union-attr, call-arg]
        count=pl.len(), total=pl.col("value").sum()
    )
    shifts = pl.DataFrame({"shift": range(SIZE // SLIDE)})
    result = (
        partials.join(shifts, how="cross")
        .group_by("key", end=(pl.col("frame") + 1 + pl.col("shift")) * SLIDE)
        .agg(pl.col("count").sum(), pl.col("total").sum())
    )
    taken.count += len(result)


def sliding_in_duckdb(events: pa.Table, taken: Taken) -> None:
    connection = duck()
    connection.register("events", events)
    result = connection.execute(
        f"""
        WITH partials AS (
            SELECT key, time // {SLIDE} AS frame, count(*) AS count, sum(value) AS total
            FROM events GROUP BY key, frame)
        SELECT key, (frame + 1 + shift) * {SLIDE} AS stop, sum(count) AS count, sum(total) AS total
        FROM partials, range({SIZE // SLIDE}) AS shifts(shift) GROUP BY key, stop
        """
    ).to_arrow_table()
    taken.count += len(result)


def race_windows(engine: EmbeddedEngine, count: int, repeats: int) -> None:
    print(f"sliding window: {count:,} events, 10,000 keys, 10 s by 1 s")
    small = make_events(100_000, 50)
    names = ("time", "key", "value")
    by_hand, in_columns = Taken(keeps=True), Taken(keeps=True)
    best_by_hand(small, by_hand)
    sliding(engine, pa.table(dict(zip(names, zip(*small, strict=True), strict=True))), in_columns)
    assert sorted(by_hand.kept) == sorted(in_columns.kept)

    events = make_events(count, 10_000)
    table = pa.table(dict(zip(names, zip(*events, strict=True), strict=True)))
    counts: set[int] = set()

    def counted(run: Callable[[Taken], object]) -> Callable[[], None]:
        def counting() -> None:
            taken = Taken()
            run(taken)
            counts.add(taken.count)

        return counting

    contest: Contest = {
        "best by hand": counted(lambda taken: best_by_hand(events, taken)),
        "columns": counted(lambda taken: sliding(engine, table, taken)),
    }
    with_peers(
        contest,
        polars=counted(lambda taken: sliding_in_polars(table, taken)),
        duckdb=counted(lambda taken: sliding_in_duckdb(table, taken)),
    )
    best = race(contest, repeats)
    assert len(counts) == 1, counts
    at_least("best by hand against columns", best["best by hand"] / best["columns"], 7)
    better_than(best, "columns", "polars", "duckdb")


# --- Members ----------------------------------------------------------------------------------


def sliding_on_members(engine: EmbeddedEngine, events: pa.Table) -> int:
    """How many results there are, which stay where they are made."""
    p, out = Pipeline("members"), sinks.collect()
    (
        p.read_from(sources.items(events))
        .add_timestamps(col("time"), allowed_lag=0)
        .grouping_key(col("key"))
        .window(windows.sliding(SIZE, SLIDE))
        .aggregate(agg.all_of(agg.counting(), agg.summing(col("value"))))
        .aggregate(agg.counting())
        .write_to(out)
    )
    engine.submit(p).join()
    return out.items[0]  # type: ignore[no-any-return]


def race_members(count: int, repeats: int) -> None:
    print(f"sliding window on members, which are processes: {count:,} events, 10,000 keys")
    names = ("time", "key", "value")
    columns = zip(*make_events(count, 10_000), strict=True)
    table = pa.table(dict(zip(names, columns, strict=True)))
    with EmbeddedEngine(members=1) as one, EmbeddedEngine(members=2) as two:
        assert sliding_on_members(one, table) == sliding_on_members(two, table)
        contest: Contest = {
            "one member": lambda: sliding_on_members(one, table),
            "two members": lambda: sliding_on_members(two, table),
        }
        best = race(contest, repeats)
    at_least("one member against two", best["one member"] / best["two members"], 1.6)


def main() -> None:
    quick = "--quick" in sys.argv
    only = [each for each in sys.argv[1:] if not each.startswith("-")]
    repeats = 1 if quick else 5
    with EmbeddedEngine() as engine:
        races: dict[str, Callable[[], None]] = {
            "chain": lambda: race_chain(engine, 200_000 if quick else 5_000_000, repeats),
            "parquet": lambda: race_parquet(engine, 100_000 if quick else 10_000_000, repeats),
            "json": lambda: race_json(engine, 10**6 if quick else 10**9, 1),
            "windows": lambda: race_windows(engine, 100_000 if quick else 2_000_000, repeats),
        }
        races["members"] = lambda: race_members(100_000 if quick else 10_000_000, min(repeats, 3))
        for name, run in races.items():
            if not only or name in only:
                run()


if __name__ == "__main__":
    main()
