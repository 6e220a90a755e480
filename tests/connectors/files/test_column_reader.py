"""Columns that nobody asks for are not read, and are there where somebody does after all."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jetlet import Pipeline, agg, col, it, record, sinks, sources, windows
from jetlet.connectors.files import parquet
from jetlet.connectors.files.column_reader import ColumnReader
from jetlet.errors import BadRecordError, JobFailedError

ROWS = [
    {"n": i, "text": f"é{i}", "x": i / 2, "large": 2**62 if i == 2222 else i, "flag": i % 3 == 0}
    for i in range(4000)
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=1500)
    return path


@pytest.fixture
def fetched(monkeypatch):
    """The rows that were read once more, for other columns."""
    found = []
    rows = ColumnReader._rows

    def noted(self, start, count):
        found.append((start, count))
        return rows(self, start, count)

    monkeypatch.setattr(ColumnReader, "_rows", noted)
    return found


def run(source, build):
    p, out, dead = Pipeline("columns"), sinks.collect(), sinks.collect()
    build(p.read_from(source), dead).write_to(out)
    p.run(on="embedded")
    return out.items, [(letter.item, str(letter.error)) for letter in dead.items]


def reader_of(path, row_groups, names, size):
    opened = lambda: nullcontext(path)
    return ColumnReader(opened, path.name, row_groups, names, size, pq.read_metadata(path))


SOURCES = {
    "filter": lambda s, dead: s.filter(col("n") % 2 == 0).map(record(n=col("n"), x=col("x"))),
    "sum": lambda s, dead: s.filter(col("flag")).aggregate(agg.summing(col("n"))),
    "count": lambda s, dead: s.aggregate(agg.counting()),
    "keys": lambda s, dead: s.grouping_key(col("n") % 5).aggregate(agg.summing(col("x"))),
    "window": lambda s, dead: (
        s.add_timestamps(col("n"), allowed_lag=0)
        .grouping_key(col("flag"))
        .window(windows.tumbling(1000))
        .aggregate(agg.counting())
    ),
}


@pytest.mark.parametrize("build", SOURCES.values(), ids=SOURCES)
def test_what_nobody_asks_for_is_not_read(path, fetched, build):
    of_list, _ = run(sources.items(ROWS), build)
    assert sorted(run(sources.parquet(path), build)[0], key=str) == sorted(of_list, key=str)
    assert fetched == []


@pytest.mark.parametrize(
    "build",
    [
        lambda s, dead: s.map(it),
        lambda s, dead: s.filter(col("flag")),
        lambda s, dead: s.filter(col("flag")).map(lambda row: row["text"]),
        lambda s, dead: s.filter(col("flag")).map(it["text"].split()),
        lambda s, dead: s.rebalance(col("n")).map(it["n"]),
    ],
)
def test_whole_items_are_read_at_once(path, fetched, build):
    of_list, _ = run(sources.items(ROWS), build)
    assert sorted(run(sources.parquet(path), build)[0], key=str) == sorted(of_list, key=str)
    assert fetched == []


@pytest.mark.parametrize("size", [100, 1000, 64 * 1024])
def test_item_that_fails_is_whole(path, monkeypatch, size):
    monkeypatch.setattr(parquet, "TABLE_SIZE", size)
    build = lambda s, dead: s.map(col("large") * 4, on_error=dead)

    items, dead = run(sources.parquet(path), build)

    assert sorted(items) == sorted(row["large"] * 4 for row in ROWS if row["n"] != 2222)
    assert dead == run(sources.items(ROWS), build)[1]
    assert dead[0][0] == ROWS[2222]


def test_items_are_whole_once_somebody_has_asked_for_one(path, fetched, monkeypatch):
    monkeypatch.setattr(parquet, "TABLE_SIZE", 100)
    build = lambda s, dead: s.map(record(n=col("n"), t=col("text").upper()))

    items, _ = run(sources.parquet(path), build)  # texts beyond ASCII are left to Python

    assert items == [{"n": row["n"], "t": row["text"].upper()} for row in ROWS]
    assert len(fetched) == 40  # once for each batch of the three row groups


def test_error_names_the_whole_item(path):
    messages = []
    for source in (sources.parquet(path), sources.items(ROWS)):
        with pytest.raises(JobFailedError) as caught:
            run(source, lambda s, dead: s.map(col("large") * 4))
        messages.append(str(caught.value).split("\n")[0])
    assert messages[0] == messages[1]
    assert "é2222" in messages[0]


def test_rows_are_found_in_any_order(path):
    reader = reader_of(path, range(3), ["n", "x"], 700)
    places = [(random.Random(i).randrange(4000), i) for i in range(0, 1600, 7)]
    for start, count in [(0, 4000), (3999, 1), *places]:
        wanted = [{"n": row["n"], "x": row["x"]} for row in ROWS[start : start + count]]
        if wanted and len(wanted) == count:
            assert reader._rows(start, count).to_pylist() == wanted


def test_a_file_that_has_become_another_one_is_refused(path):
    reader = reader_of(path, range(3), ["n", "x"], 700)
    other = path.with_name("other")
    pq.write_table(
        pa.Table.from_pylist([{**row, "n": -row["n"]} for row in ROWS]), other, row_group_size=1500
    )
    other.replace(path)
    for _ in range(2):
        with pytest.raises(BadRecordError, match=r"rows\.parquet was changed while it was read"):
            reader._rows(5, 1)


def test_what_cannot_be_read_now_is_read_when_it_can(path):
    reader = reader_of(path, [0], ["n"], 700)
    away = path.with_name("away")
    path.rename(away)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            reader._rows(5, 1)
    away.rename(path)
    assert reader._rows(5, 1).to_pylist() == [{"n": 5}]


def test_text_that_is_none_is_noticed_by_who_needs_it(tmp_path):
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    table = pa.table({"n": [1], "text": bad})
    pq.write_table(table, tmp_path / "bad.parquet")
    reader = reader_of(tmp_path / "bad.parquet", [0], ["text"], 9)
    with pytest.raises(BadRecordError, match=r"bad\.parquet: a row cannot be read"):
        reader._rows(0, 1)
