"""Files that are written of columns are those that are written of items."""

from __future__ import annotations

import datetime as dt
import io
import json
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import Pipeline, col, record, sinks, sources
from jetlet.core.table import VALUE, Entry, Table
from jetlet.errors import BadRecordError
from jetlet.spark.frame_sink import FrameRows

COLUMNS = {
    "i": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "u": (st.integers(0, 2**64 - 1), pa.uint64()),
    "f": (st.floats(), pa.float64()),
    "g": (st.floats(width=32), pa.float32()),
    "b": (st.booleans(), pa.bool_()),
    "s": (st.text(), pa.string()),
    'odd "{}" name': (st.text('a,"\r\n\\'), pa.large_string()),
    "d": (st.dates(), pa.date32()),
    "l": (st.lists(st.integers(0, 9), max_size=2), pa.list_(pa.int64())),
}


@st.composite
def tables(draw):
    size = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=4, unique=True))
    arrays = {}
    for name in names:
        values, kind = COLUMNS[name]
        each = draw(st.lists(values | st.none(), min_size=size, max_size=size))
        arrays[name] = pa.array(each, kind)
    return Table.of(pa.record_batch(arrays))


def written(sink, *batches):
    file = io.BytesIO()
    encoder = sink.encoder(file)
    try:
        for batch in batches:
            encoder.write(batch)
        encoder.close()
    except BadRecordError as error:
        return str(error)
    return file.getvalue()


@given(table=tables(), is_named=st.booleans(), kind=st.sampled_from(["csv", "json_lines"]))
def test_bytes_are_the_same(tmp_path_factory, table, is_named, kind):
    options = {"header": table.columns.schema.names[::-1]} if kind == "csv" and is_named else {}
    sink = getattr(sinks, kind)(tmp_path_factory.getbasetemp() / "unused", **options)

    assert written(sink, table, table) == written(sink, table.items(), table.items())
    assert table[:0].items() == []


def test_no_items_are_made(tmp_path):
    table = Table.of(pa.record_batch({"a": [1, None], "b": ["x", "y"]}))
    for sink in (sinks.csv(tmp_path / "a"), sinks.json_lines(tmp_path / "b")):
        written(sink, table)
        assert table._items is None


@pytest.mark.parametrize("kind", ["csv", "json_lines"])
def test_a_pipeline_writes_what_stays_in_columns(tmp_path, kind):
    numbers = pa.table({"a": range(1000), "f": [math.nan, 0.5] * 500})
    p = Pipeline("write")
    kept = p.read_from(sources.items(numbers)).filter(col("a") >= 998)
    kept.map(record(a=col("a"), f=col("f"))).write_to(getattr(sinks, kind)(tmp_path / "out"))
    p.run(on="embedded")

    texts = [path.read_text() for path in sorted((tmp_path / "out").glob("part-*"))]
    if kind == "csv":
        assert "".join(texts) == "a,f\n998,nan\n999,0.5\n"
    else:
        assert [json.loads(line)["a"] for line in "".join(texts).splitlines()] == [998, 999]


def test_rows_of_a_dataframe_are_the_same():
    kinds = pa.struct([("a", pa.int64()), ("s", pa.string()), ("d", pa.date32())])
    rows = FrameRows(kinds)
    table = Table.of(
        pa.record_batch(
            {
                "s": pa.array(["x", None, "x"]).dictionary_encode(),
                "a": pa.array([1, 2, None], pa.int16()),
                "d": [dt.date(2020, 1, 1)] * 3,
            }
        )
    )
    assert rows.of_table(table).equals(rows.array(table.items()))
    pairs = Table.of_arrays(list(table.columns.columns), Entry((VALUE,) * 3))
    assert rows.of_table(pairs) is None  # the first one is text, and the first column a number
    assert rows.of_table(Table.of(table.columns.select(["a", "s"]))) is None
    strict = FrameRows(pa.struct([pa.field("a", pa.int64(), nullable=False)]))
    assert strict.of_table(Table.of(table.columns.select(["a"]))) is None
