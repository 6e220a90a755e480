from __future__ import annotations

import datetime as dt
import threading
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import Row

from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, whole_item, windows
from jetlet.core.inbox import Inbox
from jetlet.core.processor import ProcessorContext
from jetlet.core.table import VALUE, Table
from jetlet.core.table import Entry as EntryForm
from jetlet.errors import (
    BadRecordError,
    InvalidArgumentError,
    ItemFailedError,
    JobFailedError,
    UnsupportedFeatureError,
)
from jetlet.spark.batch.exchange import TaskOutput, frame_column
from jetlet.spark.frame_sink import FrameRows, FrameWriter
from jetlet.spark.frames import FrameReader, Rows
from jetlet.testing import verify_processor

COLUMNS = pa.struct([("word", pa.string()), ("count", pa.int64())])


@dataclass
class Entry:
    word: str
    count: int


@dataclass
class Partly:
    count: int


class Named(NamedTuple):
    count: int
    word: str


class TestFrameReader:
    BATCH = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]})

    def test_rows_as_dicts(self):
        verify_processor(
            lambda: FrameReader(iter([self.BATCH]), "dict"),
            expect_output=[{"a": 1, "b": "x"}, {"a": 2, "b": None}],
            snapshots=False,
        )

    def test_rows_as_tuples(self):
        verify_processor(
            lambda: FrameReader(iter([self.BATCH, self.BATCH]), "tuple"),
            expect_output=[(1, "x"), (2, None)] * 2,
            snapshots=False,
        )

    def test_a_large_batch_is_cut(self):
        batch = pa.RecordBatch.from_pydict({"a": list(range(5000))})
        verify_processor(
            lambda: FrameReader(iter([batch]), "tuple"),
            expect_output=[(i,) for i in range(5000)],
            snapshots=False,
        )

    @pytest.mark.parametrize("form", ["dict", "tuple"])
    def test_columns_stay_columns_where_they_are_wanted(self, form):
        (table,) = FrameReader(iter([self.BATCH]), form, in_columns=True)._batches
        assert isinstance(table, Table)
        (items,) = FrameReader(iter([self.BATCH]), form)._batches
        assert table.items() == items
        nested = pa.RecordBatch.from_pydict({"a": [{"x": 1}]})
        (items,) = FrameReader(iter([nested]), form, in_columns=True)._batches
        assert items == [{"a": {"x": 1}} if form == "dict" else ({"x": 1},)]

    @pytest.mark.parametrize("high", [0, -1, 2**29, 2**30, -(2**31), 2**40])
    def test_sums_in_two_halves_are_integers_of_any_size(self, high):
        batch = pa.RecordBatch.from_pydict({"k": ["a", "b"], "h": [high, 0], "l": [7, 2**32 + 1]})
        rows = Rows(EntryForm((VALUE, VALUE)), (False, True))
        verify_processor(
            lambda: FrameReader(iter([batch]), rows),
            expect_output=[("a", (high << 32) + 7), ("b", 2**32 + 1)],
            snapshots=False,
        )


class TestFrameRows:
    @pytest.mark.parametrize(
        "item",
        [
            ("a", 1),
            ["a", 1],
            {"count": 1, "word": "a"},
            Entry("a", 1),
            Named(1, "a"),
            Row(count=1, word="a"),
            Row("word", "count")("a", 1),
            Row("a", 1),
        ],
    )
    def test_an_item_may_have_many_forms(self, item):
        assert FrameRows(COLUMNS).array([item]).to_pylist() == [{"word": "a", "count": 1}]

    def test_items_of_different_forms_mix(self):
        items = [("a", 1), {"word": "b", "count": 2}, Entry("c", 3)]
        assert FrameRows(COLUMNS).array(items).to_pylist() == [
            {"word": "a", "count": 1},
            {"word": "b", "count": 2},
            {"word": "c", "count": 3},
        ]

    def test_a_plain_value_is_a_row_of_one_column(self):
        rows = FrameRows(pa.struct([("n", pa.int64())]))
        assert rows.array([1, 2]).to_pylist() == [{"n": 1}, {"n": 2}]
        assert rows.array([{"n": 3}, Partly(4)][:1]).to_pylist() == [{"n": 3}]

    @pytest.mark.parametrize("item", [{"count": 1}, Partly(1), Row(count=1)])
    def test_a_name_that_is_missing_is_null(self, item):
        assert FrameRows(COLUMNS).array([item]).to_pylist() == [{"word": None, "count": 1}]

    @pytest.mark.parametrize(
        ("item", "said"),
        [
            (("a", "x"), "column 'count' is int64"),
            (("a", 1.5), "column 'count' is int64"),
            ((1, 1), "column 'word' is string"),
            (("a", 2**70), "column 'count' is int64"),
            (("a",), "has 1 columns, and the schema 2: word, count"),
            ({"word": "a", "amount": 1}, "'amount', which is not among the columns"),
            ("a", "has 1 columns"),
        ],
    )
    def test_an_item_that_does_not_fit_is_told_why(self, item, said):
        with pytest.raises(BadRecordError, match=said):
            FrameRows(COLUMNS).array([item])

    def test_null_is_refused_where_the_schema_has_none(self):
        rows = FrameRows(pa.struct([pa.field("n", pa.int64(), nullable=False)]))
        with pytest.raises(BadRecordError, match="column 'n' takes no null"):
            rows.array([(None,)])

    def test_values_of_all_kinds(self):
        kinds = {
            "day": pa.date32(),
            "at": pa.timestamp("us", tz="UTC"),
            "local": pa.timestamp("us"),
            "price": pa.decimal128(10, 2),
            "tags": pa.list_(pa.string()),
            "map": pa.map_(pa.string(), pa.int64()),
            "nested": pa.struct([("a", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))]),
            "data": pa.binary(),
        }
        zone = dt.timezone(dt.timedelta(hours=2))
        noon = dt.datetime(2024, 1, 2, 12, tzinfo=zone)
        item = {
            "day": dt.date(2024, 1, 2),
            "at": noon,
            "local": dt.datetime(2024, 1, 2, 12),  # noqa: DTZ001
            "price": Decimal("1.5"),
            "tags": ["a", None],
            "map": {"a": 1},
            "nested": {"a": 1, "m": {"b": 2}},
            "data": b"x",
        }
        (row,) = FrameRows(pa.struct(list(kinds.items()))).array([item]).to_pylist()
        assert row["at"] == noon
        assert row["map"] == [("a", 1)]
        assert row["nested"] == {"a": 1, "m": [("b", 2)]}
        assert row["tags"] == ["a", None]
        assert row["price"] == Decimal("1.50")

    def test_a_time_without_a_zone_is_local_time(self):
        naive = dt.datetime(2024, 7, 1, 12)  # noqa: DTZ001
        rows = FrameRows(pa.struct([("at", pa.timestamp("us", tz="UTC"))]))
        (row,) = rows.array([(naive,)]).to_pylist()
        assert row["at"] == naive.astimezone()


class TestFrameWriter:
    def test_the_item_that_does_not_fit_is_named(self):
        writer = FrameWriter(TaskOutput(0, {1: COLUMNS}), 1, COLUMNS)
        writer.init(None, ProcessorContext(vertex_name="sink"))
        writer.process(0, Inbox([("a", 1), ("b", "two"), ("c", 3)]))
        with pytest.raises(ItemFailedError) as failure:
            writer.complete()
        assert failure.value.item == ("b", "two")

    def test_rows_go_out_in_their_order(self):
        output = TaskOutput(0, {1: COLUMNS})
        writer = FrameWriter(output, 1, COLUMNS)
        writer.init(None, ProcessorContext())
        for i in range(10):
            writer.process(0, Inbox([(str(n), n) for n in range(i * 1000, (i + 1) * 1000)]))
        assert writer.complete()
        output.close()
        column = frame_column(1)
        rows = [row for b in output.batches() for row in b.column(column).to_pylist()]
        assert [row["count"] for row in rows] == list(range(10_000))


@pytest.mark.parametrize(
    "make",
    [
        lambda: sources.spark("path"),
        lambda: sources.spark(len, items="row"),
        lambda: sources.spark(len, columns="id"),
        lambda: sources.spark(len, columns=[]),
        lambda: sources.spark(len, name=""),
        lambda: sinks.spark("path", "n int"),
        lambda: sinks.spark(print, ""),
        lambda: sinks.spark(print, "n int", name=3),
    ],
)
def test_arguments_that_cannot_work_are_refused(make):
    with pytest.raises(InvalidArgumentError):
        make()


def test_a_frame_is_refused_by_the_embedded_engine_when_submitted():
    p = Pipeline("p")
    p.read_from(sources.spark(lambda spark: spark.range(3))).write_to(sinks.collect())
    with (
        EmbeddedEngine() as embedded,
        pytest.raises(UnsupportedFeatureError, match="on Spark only"),
    ):
        embedded.submit(p)


def test_a_sink_of_frames_is_refused_by_the_embedded_engine_when_submitted():
    p = Pipeline("p")
    p.read_from(sources.items([1])).write_to(sinks.spark(print, "n int"))
    with (
        EmbeddedEngine() as embedded,
        pytest.raises(UnsupportedFeatureError, match="on Spark only"),
    ):
        embedded.submit(p)


def test_neither_function_travels():
    lock = threading.Lock()
    from jetlet.spark.shipping import dumps

    dumps(sources.spark(lambda spark: lock))
    dumps(sinks.spark(lambda df: lock, "n int"))


@pytest.mark.spark
class TestOnSpark:
    def run(self, engine, build):
        p = Pipeline("frames")
        out = sinks.collect()
        build(p).write_to(out)
        engine.submit(p).join(90)
        return out.items

    def test_windows_over_a_frame_of_many_partitions(self, engine):
        """Which task a key belongs to does not depend on how many partitions there are."""

        def build(p):
            rows = p.read_from(sources.spark(lambda spark: spark.range(0, 300, 1, 5)))
            keyed = rows.add_timestamps(lambda row: row["id"] // 60)
            keyed = keyed.grouping_key(lambda row: row["id"] % 10)
            return keyed.window(windows.tumbling(1)).aggregate(agg.counting())

        found = self.run(engine, build)
        assert sorted(found) == [(n, n + 1, digit, 6) for n in range(5) for digit in range(10)]

    def test_rows_of_a_frame_are_items(self, engine):
        items = self.run(
            engine,
            lambda p: p.read_from(
                sources.spark(
                    lambda spark: spark.createDataFrame([(1, "a"), (2, "b")], "n int, s string")
                )
            ),
        )
        assert sorted(items, key=str) == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]

    def test_only_the_wanted_columns_are_read(self, engine):
        source = sources.spark(
            lambda spark: spark.range(100).selectExpr("id", "id * 2 as twice", "id * 3 as thrice"),
            columns=["twice", "id"],
            items="tuple",
        )
        items = self.run(engine, lambda p: p.read_from(source))
        assert sorted(items) == [(2 * i, i) for i in range(100)]

    @pytest.mark.parametrize(
        ("query", "columns", "item"),
        [
            ("select map('a', 1) as m", None, {"m": {"a": 1}}),
            (
                "select array(map(1, 'x')) as a, struct(map('k', 1) as m) as s",
                None,
                {"a": [{1: "x"}], "s": {"m": {"k": 1}}},
            ),
            ("select 1 as `a.b`, 2 as `c d`, 3 as `x-y`", None, {"a.b": 1, "c d": 2, "x-y": 3}),
            ("select 1 as `a.b`, 2 as c", ["a.b"], {"a.b": 1}),
            ("select struct(1 as b) as a", ["a.b"], {"b": 1}),
            ("select 1 as a", (), {}),
        ],
    )
    def test_a_frame_may_have_columns_of_any_kind_and_name(self, engine, query, columns, item):
        def frame(spark):
            found = spark.sql(query)
            return found.select() if columns == () else found

        source = sources.spark(frame, columns=columns or None)
        assert self.run(engine, lambda p: p.read_from(source)) == [item]

        rows = sources.spark(frame, columns=columns or None, items="tuple")
        assert self.run(engine, lambda p: p.read_from(rows)) == [tuple(item.values())]

    def test_maps_and_strings_of_a_length_are_written_back(self, engine):
        from pyspark.sql.types import (
            ArrayType,
            CharType,
            IntegerType,
            MapType,
            StringType,
            StructField,
            StructType,
        )

        schemas = [
            "m map<string,int>, `n.m` char(5), v array<varchar(3)>, `char(9)` int",
            StructType(
                [
                    StructField("m", MapType(StringType(), IntegerType())),
                    StructField("n.m", CharType(5)),
                    StructField("v", ArrayType(StringType())),
                    StructField("char(9)", IntegerType()),
                ]
            ),
        ]
        item = {"m": {"a": 1}, "n.m": "ab", "v": ["x"], "char(9)": 4}
        for schema in schemas:
            found = []
            p = Pipeline("back")
            p.read_from(sources.items([item])).write_to(
                sinks.spark(lambda df, found=found: found.extend(df.collect()), schema)
            )
            engine.submit(p).join(90)
            assert [row.asDict() for row in found] == [item]

    def test_a_schema_without_columns_is_refused(self, engine):
        p = Pipeline("none")
        p.read_from(sources.items([{}])).write_to(sinks.spark(print, "struct<>"))
        with pytest.raises(InvalidArgumentError, match="has no columns"):
            engine.submit(p)

    def test_a_frame_is_merged_with_another_source_without_losing_or_doubling(self, engine):
        # The frame has seven tasks, the other source as many as there are cores.
        source = sources.spark(lambda spark: spark.range(0, 70, 1, 7), items="tuple")

        def build(p):
            first = p.read_from(source).map(lambda row: row[0])
            return first.merge(p.read_from(sources.items(range(70, 100))).map(whole_item))

        assert sorted(self.run(engine, build)) == list(range(100))

    def test_an_aggregate_over_an_empty_frame_has_a_result(self, engine):
        source = sources.spark(lambda spark: spark.range(10).where("id > 100"))
        assert self.run(engine, lambda p: p.read_from(source).aggregate(agg.counting())) == [0]

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda spark: spark.read.parquet("/no/such/path"), "cannot make the DataFrame"),
            (lambda spark: 3, "returned int, not a DataFrame"),
            (lambda spark: spark.sql("select 1 as a, 2 as a"), "several columns called 'a'"),
            (lambda spark: spark.readStream.format("rate").load(), "never ends"),
        ],
    )
    def test_a_frame_that_cannot_be_read_is_refused_when_submitted(self, engine, make, said):
        p = Pipeline("p")
        p.read_from(sources.spark(make)).write_to(sinks.collect())
        with pytest.raises((InvalidArgumentError, UnsupportedFeatureError), match=said):
            engine.submit(p)

    def test_items_are_written_by_spark(self, engine, tmp_path):
        path = str(tmp_path / "out")
        p = Pipeline("write")
        stage = p.read_from(sources.items(["a", "b", "a"]))
        stage.grouping_key(whole_item).aggregate(agg.counting()).write_to(
            sinks.spark(lambda df: df.write.parquet(path), "word string not null, n long")
        )
        job = engine.submit(p)
        job.join(90)
        rows = engine.session.read.parquet(path).collect()
        assert sorted((row["word"], row["n"]) for row in rows) == [("a", 2), ("b", 1)]
        # Nothing but the sink asked for its rows, and still its counters are there.
        assert job.metrics()["spark-sink"].received == 2
        assert job.metrics()["items-source"].emitted == 3

    def test_what_has_other_outputs_too_is_run_once(self, engine, tmp_path):
        path, marks = str(tmp_path / "out"), tmp_path / "marks"
        marks.mkdir()

        def mark(item):
            (marks / f"{item}-{threading.get_ident()}-{id(object())}").touch()
            return item

        p = Pipeline("several")
        stage = p.read_from(sources.items(range(4))).map(mark)
        collected = sinks.collect()
        stage.write_to(sinks.spark(lambda df: df.write.json(path), "n long"))
        stage.write_to(sinks.json_lines(tmp_path / "files"))
        stage.write_to(collected)
        stage.grouping_key(lambda n: n % 2).aggregate(agg.counting()).write_to(
            sinks.csv(tmp_path / "counts")
        )
        # What other jobs have kept for themselves goes when Java collects it.
        kept = set(engine.session.sparkContext._jsc.getPersistentRDDs())
        engine.submit(p).join(90)
        assert sorted(row["n"] for row in engine.session.read.json(path).collect()) == [0, 1, 2, 3]
        assert sorted(collected.items) == [0, 1, 2, 3]
        lines = [
            line
            for part in (tmp_path / "files").glob("part-*")
            for line in part.read_text().splitlines()
        ]
        assert sorted(lines) == ["0", "1", "2", "3"]
        assert len(list(marks.iterdir())) == 4
        assert set(engine.session.sparkContext._jsc.getPersistentRDDs()) <= kept

    def test_an_item_that_does_not_fit_the_schema_is_named(self, engine, tmp_path):
        p = Pipeline("misfit")
        p.read_from(sources.items([1, "two"])).write_to(
            sinks.spark(lambda df: df.write.json(str(tmp_path / "out")), "n long", name="numbers")
        )
        with pytest.raises(JobFailedError) as failure:
            engine.submit(p).join(90)
        line = str(failure.value).splitlines()[0]
        assert line.startswith(
            "job 'misfit' failed in vertex 'numbers' on item 'two': BadRecordError: column 'n' is"
        )

    def test_what_the_users_writer_raises_names_the_sink(self, engine, tmp_path):
        path = str(tmp_path)
        p = Pipeline("exists")
        p.read_from(sources.items([1])).write_to(
            sinks.spark(lambda df: df.write.json(path), "n long", name="numbers")
        )
        with pytest.raises(JobFailedError, match="vertex 'numbers' while Spark wrote") as failure:
            engine.submit(p).join(90)
        assert "PATH_ALREADY_EXISTS" in str(failure.value)
        assert failure.value.vertex == "numbers"

    def test_a_schema_that_spark_does_not_know_is_refused_when_submitted(self, engine):
        p = Pipeline("p")
        p.read_from(sources.items([1])).write_to(sinks.spark(print, "n number"))
        with pytest.raises(InvalidArgumentError, match="not one that Spark knows"):
            engine.submit(p)
