"""Stores of tasks: what a put and a get cost beside those of a dict, and a commit beside SQLite's.

Processor time per operation, with keys and values as typical for counters. A put has to turn key
and value into bytes; the bare cost of that is printed beside.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import at_most
from jetlet.tasks import stores
from jetlet.tasks.state.cached_store import CachedStore
from jetlet.tasks.state.container_storage import StoreContext
from jetlet.tasks.state.serdes import key_serde, value_serde


def microseconds(operation: Callable[[], object], count: int, repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        operation()
        best = min(best, time.process_time() - started)
    return best / count * 1e6


def bare_sqlite(path: Path, entries: list[tuple[bytes, bytes]]) -> Callable[[], object]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE e (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def write() -> None:
        connection.execute("BEGIN")
        connection.executemany("REPLACE INTO e VALUES (?, ?)", sorted(entries))
        connection.execute("COMMIT")

    return write


def measure(store: CachedStore[str, int], keys: list[str], repeats: int) -> dict[str, float]:
    """Microseconds of each operation."""

    def put() -> None:
        for key in keys:
            store.put(key, 1)

    def get() -> None:
        for key in keys:
            store.get(key)

    def get_from_store() -> None:
        store._cache.clear()
        get()

    def commit() -> None:
        put()
        store.flush()
        store.committed()

    def iterate() -> None:
        for _ in store.all():
            pass

    operations = [put, get, commit, get_from_store, iterate]
    found = {each.__name__: microseconds(each, len(keys), repeats) for each in operations}
    found["commit"] -= found["put"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    count, repeats = (5_000, 2) if quick else (30_000, 4)
    keys = [f"user-{i}" for i in range(count)]
    random.Random(1).shuffle(keys)
    encode_key, encode_value = key_serde("", str).encode, value_serde("", int).encode

    def serialise() -> None:
        for key in keys:
            encode_key(key)
            encode_value(1)

    serde = microseconds(serialise, count, repeats)
    print(f"  bytes of a key and a value {serde:5.2f} us")
    with tempfile.TemporaryDirectory() as directory:
        entries = [(encode_key(key), encode_value(1)) for key in keys]
        bare = microseconds(bare_sqlite(Path(directory, "bare"), entries), count, repeats)
        print(f"  bare SQLite, executemany   {bare:5.2f} us")
        for kind in ("in_memory", "sqlite", "rocksdb"):
            where = () if kind == "in_memory" else (directory,)
            options = {"key": str, "value": int, "cache_size": 2 * count}
            declared = getattr(stores, kind)(*where, changelog=f"{directory}/{kind}", **options)
            store = declared.open(StoreContext("benchmark", kind, "store"))
            found = measure(store, keys, repeats)
            store.close()
            print(f"  {kind}:", ", ".join(f"{name} {cost:.2f} us" for name, cost in found.items()))
            at_most(f"{kind}: put without bytes, in us", found["put"] - serde, 1.2)
            at_most(f"{kind}: get, in us", found["get"], 1.0)
            if kind == "sqlite":
                at_most("commit with changelog / bare SQLite", found["commit"] / bare, 2.0)


if __name__ == "__main__":
    main()
