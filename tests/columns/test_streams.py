"""Streams that come in columns give what they give in items."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jetlet import Pipeline, agg, col, it, record, sinks, windows
from jetlet.core.table import Table
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

ROWS = [{"key": "abcd"[i % 4], "at": i // 3, "n": i % 11} for i in range(6000)]
SIZES = (700, 60, 1000)
"""Rows of one poll: of some there are too few for columns."""


class Rows(StreamSource):
    """Two partitions, one of which is behind the other."""

    name = "rows"
    has_native_timestamps = True
    has_columns = True

    def __init__(self, *, as_tables):
        self.as_tables = as_tables

    def partitions(self):
        return [0, 1]

    def open(self, partitions, context):
        return RowReader(partitions, as_tables=self.as_tables)


class RowReader(StreamReader):
    def __init__(self, partitions, *, as_tables):
        self._rows = {number: ROWS[part::2] for number, part in enumerate(partitions)}
        self._as_tables = as_tables
        self._polls = 0

    def poll(self, limit):
        if not any(self._rows.values()):
            return None
        polled = []
        for number, rows in self._rows.items():
            self._polls += 1
            size = SIZES[self._polls % len(SIZES)]
            taken, self._rows[number] = rows[:size], rows[size:]
            batch = taken
            if self._as_tables and taken:
                batch = Table.of(pa.RecordBatch.from_pylist(taken))
            is_end = not self._rows[number]
            polled.append(Polled(number, batch, [row["at"] for row in taken], is_end))
        return polled


TIMES = {
    "function": lambda stage: stage.with_timestamps(col("at")),
    "a lambda": lambda stage: stage.with_timestamps(lambda row: row["at"]),
    "native": lambda stage: stage.with_native_timestamps(),
}


def found(times, *, as_tables, window):
    p, out, late = Pipeline("stream"), sinks.collect(), sinks.collect(name="late")
    (
        TIMES[times](p.read_from(Rows(as_tables=as_tables)))
        .filter(col("n") != 3)
        .map(record(key=col("key"), n=col("n") * 2))
        .grouping_key(col("key"))
        .window(window)
        .aggregate(agg.all_of(agg.counting(), agg.summing(it.n)), late=late)
        .write_to(out)
    )
    p.run(on="embedded", workers=1)
    assert not late.items
    return sorted(map(repr, out.items))


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("window", [windows.tumbling(100), windows.sliding(300, 50)])
def test_windows_of_tables_are_those_of_items(times, window):
    of_items = found(times, as_tables=False, window=window)

    assert found(times, as_tables=True, window=window) == of_items
    assert len(of_items) > 40


def test_all_comes_at_once_where_nobody_works_on_columns():
    p, out = Pipeline("items"), sinks.collect()
    stage = p.read_from(Rows(as_tables=True)).with_ingestion_timestamps()
    stage.map(lambda row: row["n"]).write_to(out)
    p.run(on="embedded")
    assert sorted(out.items) == sorted(row["n"] for row in ROWS)


def test_a_stream_without_times_comes_in_columns():
    p, out = Pipeline("none"), sinks.collect()
    stage = p.read_from(Rows(as_tables=True)).without_timestamps()
    stage.filter(it.n > 4).map(it.n).write_to(out)
    p.run(on="embedded")
    assert sorted(out.items) == sorted(row["n"] for row in ROWS if row["n"] > 4)
