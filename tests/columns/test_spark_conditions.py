"""What Spark leaves out, the expressions would have dropped."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import types as T  # noqa: N812

from jetlet import Pipeline, agg, col, lit, sinks, sources
from jetlet.errors import JobFailedError
from jetlet.pipeline.expressions.expression import node_of
from jetlet.pipeline.expressions.python_source import exact_function_of
from jetlet.spark.catalyst.expressions import condition_of
from jetlet.spark.launch.versions import package_version

pytestmark = pytest.mark.spark

SCHEMA = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("i", T.LongType()),
        T.StructField("j", T.IntegerType()),
        T.StructField("s", T.StringType()),
        T.StructField("t", T.StringType()),
        T.StructField("b", T.BooleanType()),
        T.StructField("f", T.DoubleType()),
    ]
)
INTS = [None, 0, 1, -1, 2**31 - 1, 2**63 - 1, -(2**63)]
TEXTS = [None, "", "a", "A", "ab", "ß", "\U0001f600", "\uffff", "%", "\\", "a b"]
FLOATS = [None, 0.0, -0.0, 1.5, float("nan"), float("inf")]


def rows(count, random):
    return [
        {
            "id": n,
            "i": random.choice(INTS),
            "j": random.choice([None, 0, 1, -1, 2**31 - 1]),
            "s": random.choice(TEXTS),
            "t": random.choice(TEXTS),
            "b": random.choice([None, True, False]),
            "f": random.choice(FLOATS),
        }
        for n in range(count)
    ]


def conditions(depth, random):
    """A random condition, of which only parts may be Spark's to tell."""
    if depth and random.random() < 0.6:
        parts = [conditions(depth - 1, random) for _ in range(2)]
        return random.choice(
            [
                lambda a, b: a & b,
                lambda a, b: a & b,
                lambda a, b: a | b,
                lambda a, _: ~a,
                lambda a, _: a.is_null(),
                lambda a, b: a.fill_null(b),
                lambda a, b: a == b,
            ]
        )(*parts)
    number = random.choice([col("i"), col("j"), col("i").fill_null(col("j"))])
    text = random.choice([col("s"), col("t"), col("s").fill_null(col("t"))])
    word = random.choice([each for each in TEXTS if each is not None])
    return random.choice(
        [
            lambda: number == random.choice(INTS[1:]),
            lambda: number != col("j"),
            lambda: number < random.choice(INTS[1:]),
            lambda: number >= col("i"),
            lambda: number.is_in([0, 1, 2**63 - 1]),
            lambda: ~number.is_null(),
            lambda: text == word,
            lambda: text < col("t"),
            lambda: text > word,
            lambda: text.is_in(["a", "ß", ""]),
            lambda: text.startswith(word),
            lambda: text.endswith(word),
            lambda: text.contains(word),
            lambda: col("b"),
            lambda: col("f") > 0.5,
            lambda: col("f").is_null(),
            lambda: number + 1 > 0,
            lambda: 10 // col("j") > 0,
            lambda: text.upper() == word,
            lambda: lit(True) & (number > 0),
        ]
    )()


def test_nothing_is_left_out_that_is_kept_or_fails(spark_engine):
    chance = random.Random(18)
    data = rows(300, chance)
    filters = [
        [node_of(conditions(3, chance)) for _ in range(chance.choice([1, 1, 2]))]
        for _ in range(600)
    ]
    frame = spark_engine.session.createDataFrame(data, SCHEMA)
    found = [condition_of(each, frame.schema) for each in filters]
    known = [i for i, condition in enumerate(found) if condition is not None]
    left = frame.select("id", *(found[i].alias(f"c{i}") for i in known)).collect()

    wrong, dropped = [], 0
    for row in left:
        item = data[row["id"]]
        for i in known:
            if row[f"c{i}"] is not True:
                dropped += 1
                if fate(filters[i], item) != "dropped":
                    wrong.append((filters[i], item))
    assert wrong == []
    assert len(known) > 250
    assert dropped > 10_000


def fate(filters, item):
    for node in filters:
        try:
            if not exact_function_of(node)(item):
                return "dropped"
        except Exception:
            return "failed"
    return "kept"


def test_spark_does_not_hand_over_what_a_filter_drops(spark_engine, tmp_path):
    session = spark_engine.session
    data = rows(500, random.Random(5))
    session.createDataFrame(data, SCHEMA).write.parquet(str(tmp_path / "rows"))
    p, out = Pipeline("narrow"), sinks.collect()
    source = sources.spark(lambda spark: spark.read.parquet(str(tmp_path / "rows")))
    kept = (col("s") == "a") & (col("i") > 0)
    p.read_from(source, name="rows").filter(kept).map(col("id")).write_to(out)

    job = spark_engine.submit(p)
    job.join()

    expected = [row["id"] for row in data if kept(row)]
    assert sorted(out.items) == expected
    narrowed = source.narrowed([node_of(kept)]).frame(session)
    plan = narrowed._jdf.queryExecution().executedPlan().toString()
    assert "PushedFilters" in plan
    assert "EqualTo(s,a)" in plan


def test_a_row_that_fails_is_not_left_out(spark_engine):
    data = [{"i": None, "j": 0}, {"i": 1, "j": 1}]
    p = Pipeline("fails")
    frame = sources.spark(lambda spark: spark.createDataFrame(data, "i long, j int"))
    p.read_from(frame).filter((col("i") > 0) & (1 // col("j") > 0)).write_to(sinks.collect())

    with pytest.raises(JobFailedError, match="division"):
        spark_engine.submit(p).join()


def test_who_else_reads_from_the_source_gets_all(spark_engine):
    p, few, all_of_them = Pipeline("two"), sinks.collect(), sinks.collect()
    rows = p.read_from(sources.spark(lambda spark: spark.range(10)))
    rows.filter(col("id") < 3).map(col("id")).write_to(few)
    rows.aggregate(agg.counting()).write_to(all_of_them)

    spark_engine.submit(p).join()

    assert sorted(few.items) == [0, 1, 2]
    assert all_of_them.items == [10]


OTHERS = [T.CharType(3), T.VarcharType(3), T.DecimalType(5, 2)]
if package_version() >= (4, 0):  # before, texts have no collations
    OTHERS.append(T.StringType("UTF8_LCASE"))


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_other_columns_are_left_to_python(kind):
    schema = T.StructType([T.StructField("x", kind)])

    for value in ("a", 1, 1.5):
        assert condition_of([node_of(col("x") == value)], schema) is None


def test_names_that_spark_takes_for_one_are_left_to_python():
    fields = [T.StructField(name, T.LongType()) for name in ("a", "A", "b c")]
    for name in ("a", "A", "b c", "missing"):
        assert condition_of([node_of(col(name) == 1)], T.StructType(fields)) is None
