from __future__ import annotations

import datetime as dt
import sys
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from jetlet import sinks, sources
from jetlet.connectors.files import parquet
from jetlet.connectors.files.input import SPLITS_PER_READER
from jetlet.errors import BadRecordError, InvalidArgumentError, MissingDependencyError

ROWS = [
    {
        "n": i,
        "maybe": None if i % 3 else i * 0.5,
        "s": f"é{i}",
        "list": [i, None],
        "struct": {"x": i},
        "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=i),
        "flag": i % 2 == 0,
    }
    for i in range(5000)
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=1500)
    return path


class TestSource:
    def test_splits_are_row_groups(self, path, read_all):
        source = sources.parquet(path)
        assert [(each.start, each.end) for each in source.splits(99)] == [
            (0, 1),
            (1, 2),
            (2, 3),
            (3, 4),
        ]
        assert read_all(source) == ROWS
        assert source.is_blocking

    def test_small_row_groups_are_read_together(self, tmp_path, read_all):
        """Opening a file takes the longer the more row groups it has."""
        rows = [{"n": i} for i in range(400)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "small.parquet", row_group_size=1)
        source = sources.parquet(tmp_path)

        splits = source.splits(2)

        assert len(splits) <= 2 * SPLITS_PER_READER + 1
        assert [each.start for each in splits[1:]] == [each.end for each in splits[:-1]]
        assert (splits[0].start, splits[-1].end) == (0, 400)
        assert read_all(source) == rows
        filtered = sources.parquet(tmp_path, filters=[("n", ">", 390)])
        assert read_all(filtered) == rows[391:]

    def test_maps_are_dicts_and_can_be_written_back(self, tmp_path, read_all, write_all):
        pairs = pa.map_(pa.string(), pa.int64())
        schema = pa.schema([("m", pairs), ("l", pa.list_(pairs)), ("s", pa.struct([("m", pairs)]))])
        rows = [
            {"m": {"a": 1, "b": 2}, "l": [{"c": 3}, {}], "s": {"m": {"d": 4}}},
            {"m": None, "l": [], "s": None},
        ]

        write_all(sinks.parquet(tmp_path / "out", schema=schema), rows)

        assert read_all(sources.parquet(tmp_path / "out")) == rows

    @pytest.mark.parametrize("filters", [None, [("x-y", "==", 3)]])
    def test_columns_may_have_any_name(self, tmp_path, read_all, filters):
        row = {"a.b": 1, "a": {"b": 2}, "x-y": 3, "c d": 4}
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "names.parquet")

        assert read_all(sources.parquet(tmp_path, filters=filters)) == [row]
        for name, value in row.items():
            source = sources.parquet(tmp_path, columns=[name], filters=filters)
            assert read_all(source) == [{name: value}]

    def test_reads_the_columns_it_is_told(self, path, read_all):
        source = sources.parquet(path, columns=["s", "n"])
        assert read_all(source)[7] == {"s": "é7", "n": 7}

    @pytest.mark.parametrize(
        "filters",
        [
            [("n", ">=", 1400), ("n", "<", 3100), ("flag", "==", True)],
            (pc.field("n") >= 1400) & (pc.field("n") < 3100) & pc.field("flag"),
        ],
    )
    def test_reads_the_rows_it_is_told(self, path, read_all, filters):
        source = sources.parquet(path, columns=["s"], filters=filters)
        assert read_all(source) == [{"s": f"é{n}"} for n in range(1400, 3100, 2)]

    def test_reads_files_in_the_order_of_their_names(self, path, read_all):
        for name, n in (("b", 2), ("a", 1)):
            pq.write_table(pa.table({"n": [n]}), path.parent / f"{name}.parquet")
        items = read_all(sources.parquet(f"{path.parent}/?.parquet"))
        assert items == [{"n": 1}, {"n": 2}]

    def test_file_without_rows_gives_none(self, tmp_path, read_all):
        pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "x.parquet")
        assert read_all(sources.parquet(tmp_path)) == []

    def test_unknown_column_is_refused(self, path):
        with pytest.raises(InvalidArgumentError, match=r"'m'.*'n'"):
            sources.parquet(path, columns=["n", "m"]).splits(1)

    def test_unknown_filter_is_refused(self, path):
        with pytest.raises(InvalidArgumentError, match=r"write an expression"):
            sources.parquet(path, filters=[("n", "~", 3)]).splits(1)

    def test_other_files_are_refused(self, tmp_path):
        (tmp_path / "x.parquet").write_text("no Parquet")
        with pytest.raises(BadRecordError, match=r"x\.parquet is not a Parquet file"):
            sources.parquet(tmp_path).splits(1)


@dataclass
class Person:
    name: str
    age: int


class Pair(NamedTuple):
    key: str
    result: int


class TestSink:
    def test_rows_come_back_as_they_were_written(self, tmp_path, read_all, write_all):
        write_all(sinks.parquet(tmp_path), ROWS[:4000], ROWS[4000:])
        assert sorted(p.name for p in tmp_path.iterdir()) == [
            "_SUCCESS",
            "part-00000.parquet",
            "part-00001.parquet",
        ]
        assert read_all(sources.parquet(tmp_path)) == ROWS

    @pytest.mark.parametrize(
        ("items", "rows"),
        [
            ([("a", 1), ("b", None)], [{"_1": "a", "_2": 1}, {"_1": "b", "_2": None}]),
            ([Person("ann", 41)], [{"name": "ann", "age": 41}]),
            ([Pair("a", 1)], [{"key": "a", "result": 1}]),
            ([1, None], [{"value": 1}, {"value": None}]),
            ([{"a": 1}, {"b": "x"}], [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ],
    )
    def test_takes_what_aggregates_give(self, tmp_path, read_all, write_all, items, rows):
        write_all(sinks.parquet(tmp_path), items)
        assert read_all(sources.parquet(tmp_path)) == rows

    def test_schema_gives_names_and_types(self, tmp_path, write_all):
        schema = pa.schema([("word", pa.string()), ("n", pa.int16())])
        write_all(sinks.parquet(tmp_path, schema=schema), [("a", 1)], [{"n": 2, "x": 0}])
        for part in ("part-00000.parquet", "part-00001.parquet"):
            assert pq.read_schema(tmp_path / part).equals(schema)
        assert pq.read_table(tmp_path).to_pylist() == [
            {"word": "a", "n": 1},
            {"word": None, "n": 2},
        ]

    def test_list_of_names_names_the_columns(self, tmp_path, write_all, read_all):
        write_all(sinks.parquet(tmp_path, schema=["word", "n"]), [("a", 1)])
        assert read_all(sources.parquet(tmp_path)) == [{"word": "a", "n": 1}]

    def test_types_come_from_many_rows(self, tmp_path, write_all, read_all):
        items = [(None,)] * 3000 + [("late",)]
        write_all(sinks.parquet(tmp_path), items)
        assert read_all(sources.parquet(tmp_path))[-1] == {"_1": "late"}

    def test_row_groups_are_bounded(self, tmp_path, write_all, read_all, monkeypatch):
        monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 1000)
        monkeypatch.setattr(parquet, "ROWS_AT_ONCE", 500)
        items = [(i, str(i)) for i in range(2200)]
        write_all(sinks.parquet(tmp_path), items)
        source = sources.parquet(tmp_path)
        assert len(source.splits(99)) == 5
        assert [tuple(row.values()) for row in read_all(source, 3)] == items

    @pytest.mark.parametrize("compression", [None, "snappy", "zstd", "gzip"])
    def test_compression_is_inside(self, tmp_path, write_all, compression):
        write_all(sinks.parquet(tmp_path, compression=compression), [("a",)] * 100)
        column = pq.ParquetFile(tmp_path / "part-00000.parquet").metadata.row_group(0).column(0)
        assert column.compression == (compression or "uncompressed").upper()

    @pytest.mark.parametrize(
        ("schema", "items", "message"),
        [
            (None, [("a",), (1,)], "column '_1'"),
            (pa.schema([("n", pa.int8())]), [(1000,)], "column 'n' cannot be written as int8"),
            (None, [(1,), (1, 2)], "has 2 columns, not the 1"),
            (None, [{}], "no columns"),
        ],
    )
    def test_rows_that_do_not_fit_are_refused(self, tmp_path, refused_by, schema, items, message):
        assert message in refused_by(sinks.parquet(tmp_path, schema=schema), items)


def test_missing_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for make in (sources.parquet, sinks.parquet):
        with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[arrow\]'"):
            make("x")
