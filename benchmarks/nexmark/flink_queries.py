"""The queries in Flink SQL, on one core; run by a Python that has apache-flink, and nothing else.

    FLINK_PYTHON DIRECTORY REPEATS QUERY... prints a line of JSON for each query.

Flink's distribution on PyPI reads no Parquet, so the same events are in CSV files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

STREAMS = {
    "persons": "id BIGINT, name STRING, email STRING, city STRING, state STRING, event_ms BIGINT",
    "auctions": "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, "
    "reserve BIGINT, event_ms BIGINT, expires_ms BIGINT, seller BIGINT, category BIGINT, "
    "expires AS TO_TIMESTAMP_LTZ(expires_ms, 3)",
    "bids": "auction BIGINT, bidder BIGINT, price BIGINT, event_ms BIGINT, extra STRING",
}
TUMBLE = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(date_time), INTERVAL '10' SECOND))"
WINDOW = "window_start, window_end"
QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bids",
    "q1": "SELECT auction, bidder, price * 0.908e0, date_time, extra FROM bids",
    "q2": "SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0",
    "q3": "SELECT p.name, p.city, p.state, a.id FROM auctions a JOIN persons p ON a.seller = p.id "
    "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
    "q4": "SELECT category, AVG(price) FROM (SELECT a.id, a.category, MAX(b.price) AS price "
    "FROM auctions a JOIN bids b ON a.id = b.auction "
    "WHERE b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category) "
    "GROUP BY category",
    "q5": f"SELECT window_start, auction, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY "
    f"{WINDOW} ORDER BY n DESC, auction ASC) AS place FROM (SELECT auction, COUNT(*) AS n, "
    f"{WINDOW} FROM TABLE(HOP(TABLE bids, DESCRIPTOR(date_time), INTERVAL '2' SECOND, "
    f"INTERVAL '10' SECOND)) GROUP BY auction, {WINDOW})) WHERE place <= 1",
    "q7": f"SELECT window_start, auction, price FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY "
    f"{WINDOW} ORDER BY price DESC, auction ASC, bidder ASC) AS place "
    f"FROM {TUMBLE.format('bids')}) WHERE place <= 1",
    "q8": f"SELECT p.id, p.name, p.window_start FROM (SELECT id, name, {WINDOW} "
    f"FROM {TUMBLE.format('persons')} GROUP BY id, name, {WINDOW}) p JOIN (SELECT seller, {WINDOW} "
    f"FROM {TUMBLE.format('auctions')} GROUP BY seller, {WINDOW}) a ON p.id = a.seller "
    f"AND p.window_start = a.window_start AND p.window_end = a.window_end",
}


def processor_seconds() -> float:
    """Of this process and the Java that it has started."""
    times: dict[int, float] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
        times[int(path.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sum(times.get(each, 0.0) for each in found)


def main() -> None:
    from pyflink.table import (  # type: ignore[import-not-found]
        EnvironmentSettings,
        TableDescriptor,
        TableEnvironment,
    )

    directory, repeats, *names = sys.argv[1:]
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", "1")
    for stream, columns in STREAMS.items():
        tables.execute_sql(
            f"CREATE TABLE {stream} ({columns}, date_time AS TO_TIMESTAMP_LTZ(event_ms, 3), "
            f"WATERMARK FOR date_time AS date_time) WITH ('connector' = 'filesystem', "
            f"'path' = 'file://{directory}/{stream}.csv', 'format' = 'csv')"
        )
    dropped = TableDescriptor.for_connector("blackhole").build()
    for name in names:
        results = tables.sql_query(QUERIES[name])
        best: list[tuple[float, float]] = []
        for _ in range(int(repeats)):
            started, used = time.perf_counter(), processor_seconds()
            results.execute_insert(dropped).wait()
            best.append((time.perf_counter() - started, processor_seconds() - used))
        seconds, busy = (min(each) for each in zip(*best, strict=True))
        print(json.dumps({"query": name, "seconds": seconds, "busy": busy}), flush=True)


if __name__ == "__main__":
    main()
