"""The queries in Flink SQL, on one core; run by a Python that has apache-flink, and nothing else.

Each line on its input is JSON: ``{"query": NAME, "tables": {STREAM: FILE, ...}, "wants_results":
BOOL}``. Each is answered by a line with the results, or with none. The files are streams of Arrow,
of which Flink has all batches in memory before it begins.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import Any

ROWS = 10_000
"""In a batch of Arrow's, as many as Flink has in one of its own."""
TEXT = frozenset({"name", "email", "city", "state", "item_name", "description", "extra"})
TUMBLE = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(date_time), INTERVAL '10' SECOND))"
WINDOW = "window_start, window_end"
QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time_ms, extra FROM bids",
    "q1": "SELECT auction, bidder, price * 0.908e0, date_time_ms, extra FROM bids",
    "q2": "SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0",
    "q3": "SELECT p.name, p.city, p.state, a.id FROM auctions a JOIN persons p ON a.seller = p.id "
    "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
    "q4": "SELECT category, AVG(CAST(price AS DOUBLE)) FROM (SELECT a.id, a.category, "
    "MAX(b.price) AS price FROM auctions a JOIN bids b ON a.id = b.auction "
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


class FlinkQueries:
    """A table for each stream, with the columns of a query."""

    def __init__(self) -> None:
        from pathlib import Path

        import pyflink  # type: ignore[import-not-found]
        from pyflink.table import (  # type: ignore[import-not-found]
            EnvironmentSettings,
            TableEnvironment,
        )

        self._tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        options = self._tables.get_config()
        options.set("parallelism.default", "1")
        options.set("pipeline.object-reuse", "true")
        options.set("table.local-time-zone", "UTC")
        (with_arrow,) = Path(pyflink.__file__).parent.glob("opt/flink-python-*.jar")
        options.set("pipeline.jars", with_arrow.as_uri())
        self._described: dict[str, Any] = {}

    def run(self, name: str, tables: dict[str, str], *, wants_results: bool) -> list[Any]:
        from pyflink.table import TableDescriptor

        # What other queries, or more events, have in memory is not needed any more.
        self._described = {file: self._described.get(file) for file in tables.values()}
        for stream, file in tables.items():
            if self._described[file] is None:
                self._described[file] = self._describe(file)
            self._tables.drop_temporary_table(stream)
            self._tables._j_tenv.createTemporaryTable(stream, self._described[file])
        results = self._tables.sql_query(QUERIES[name])
        if not wants_results:
            results.execute_insert(TableDescriptor.for_connector("blackhole").build()).wait()
            return []
        return _rows_of(results)

    def _describe(self, file: str) -> Any:
        """A table that Flink has in memory: what ``from_pandas`` makes, with a watermark."""
        from pyflink.java_gateway import get_gateway  # type: ignore[import-not-found]
        from pyflink.table import DataTypes, Schema
        from pyflink.table.types import _to_java_data_type  # type: ignore[import-not-found]
        from pyflink.util.java_utils import load_java_class  # type: ignore[import-not-found]

        _, _, *names = file.rpartition("/")[2].split("-")
        times = [name for name in names if name in ("date_time", "expires")]
        columns = {
            f"{name}_ms" if name in times else name: DataTypes.STRING()
            if name in TEXT
            else DataTypes.BIGINT()
            for name in names
        }
        row = DataTypes.ROW([DataTypes.FIELD(name, kind) for name, kind in columns.items()])
        kind = _to_java_data_type(row).notNull()
        kind = kind.bridgedTo(load_java_class("org.apache.flink.table.data.RowData"))
        arrow = get_gateway().jvm.org.apache.flink.table.runtime.arrow.ArrowUtils
        schema = Schema.new_builder()
        for name, each in columns.items():
            schema.column(name, each)
        for name in times:
            schema.column_by_expression(name, f"TO_TIMESTAMP_LTZ({name}_ms, 3)")
        if "date_time" in times:
            schema.watermark("date_time", "date_time")
        described = arrow.createArrowTableSourceDesc(kind, file)
        return described.toBuilder().schema(schema.build()._j_schema).build()


def _rows_of(results: Any) -> list[Any]:
    """What is left of the rows, of which some take back others."""
    rows: dict[tuple[Any, ...], int] = {}
    with results.execute().collect() as found:
        for row in found:
            values = tuple(map(_plain, row))
            is_taken_back = row.get_row_kind().name in ("DELETE", "UPDATE_BEFORE")
            rows[values] = rows.get(values, 0) + (-1 if is_taken_back else 1)
    return [values for values, count in rows.items() for _ in range(count)]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):  # of a window, in UTC
        return round(value.replace(tzinfo=timezone.utc).timestamp() * 1000)  # noqa: UP017
    return value


def main() -> None:
    queries = FlinkQueries()
    for line in sys.stdin:
        asked = json.loads(line)
        found = queries.run(asked["query"], asked["tables"], wants_results=asked["wants_results"])
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
