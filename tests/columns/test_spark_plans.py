"""What Spark does of a pipeline without Python is what Python would have done."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expression_cases import (
    check_spark,
    expected,
    expressions,
    random_batch,
    spark_frame,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jetlet import Pipeline, agg, col, it, record, sinks, sources, when
from jetlet.errors import JobFailedError
from jetlet.jobs.engine import dag_of
from jetlet.spark.catalyst.plans import own_plans

pytestmark = pytest.mark.spark

ROWS = [
    {
        "user": i % 7 if i % 50 else None,
        "status": ["paid", "open", None][i % 3],
        "price": i * 10**13,
        "quantity": i % 5,
        "weight": i / 8,
    }
    for i in range(600)
]
CENTS = col("price") * col("quantity")
SCHEMA = "user long, status string, price long, quantity int, weight double"


@pytest.fixture(params=["frame", "files"])
def orders(request, tmp_path):
    if request.param == "frame":
        return sources.spark(lambda spark: spark.createDataFrame(ROWS, SCHEMA))
    for part in range(2):
        pq.write_table(pa.Table.from_pylist(ROWS[part::2]), tmp_path / f"{part}.parquet")
    return sources.parquet(tmp_path)


def grouped(source, cents=CENTS):
    """The pipeline up to its last stage, which has dicts."""
    p = Pipeline("revenue")
    kept = p.read_from(source).filter(col("status") == "paid")
    result = (
        kept.map(record(user=col("user"), cents=cents, weight=col("weight")))
        .grouping_key(col("user"))
        .aggregate(agg.all_of(agg.counting(), agg.summing(col("cents")), agg.summing(it.weight)))
        .map(record(user=it[0], count=it[1][0], cents=it[1][1], weight=it[1][2]))
    )
    return p, result


def by_hand(cents=CENTS):
    found = {}
    for row in ROWS:
        if row["status"] == "paid":
            group = found.setdefault(row["user"], {"user": row["user"], "count": 0, "cents": 0})
            group["count"] += 1
            group["cents"] += cents(row)
            group["weight"] = group.get("weight", 0) + row["weight"]
    return sorted(found.values(), key=repr)


def left_to_python(p, engine):
    return [vertex.name for vertex in own_plans(dag_of(p, 2), engine.session).dag.vertices]


def test_there_is_no_python_between_a_source_and_a_dataframe(spark_engine, orders):
    found, plans = [], []

    def write(frame):
        plans.append(frame._jdf.queryExecution().executedPlan().toString())
        found.extend(row.asDict() for row in frame.collect())

    p, result = grouped(orders)
    result.write_to(sinks.spark(write, "user long, count long, cents long, weight double"))
    assert left_to_python(p, spark_engine) == []

    spark_engine.submit(p).join()

    assert sorted(found, key=repr) == by_hand()
    assert "InArrow" not in plans[0]
    assert "Python" not in plans[0]


def test_files_are_written_of_what_spark_has_grouped(spark_engine, orders, tmp_path):
    p, result = grouped(orders)
    result.write_to(sinks.parquet(tmp_path / "out"))
    step, sink = left_to_python(p, spark_engine)
    assert (step, sink.startswith("parquet-sink")) == ("map-2", True)

    spark_engine.submit(p).join()

    assert sorted(pq.read_table(tmp_path / "out").to_pylist(), key=repr) == by_hand()


def test_sums_may_be_larger_than_64_bits(spark_engine):
    """They are Python's integers, wherever they are worked out."""
    p, sums = Pipeline("large"), sinks.collect()
    rows = [{"k": i % 2, "n": 2**62} for i in range(20)]
    frame = sources.spark(lambda spark: spark.createDataFrame(rows, "k int, n long"))
    p.read_from(frame).grouping_key(col("k")).aggregate(agg.summing(col("n"))).write_to(sums)

    spark_engine.submit(p).join()

    assert sorted(sums.items) == [(0, 10 * 2**62), (1, 10 * 2**62)]


@pytest.mark.parametrize("where", ["collect", "frame"])
def test_what_fails_is_told_as_python_tells_it(spark_engine, orders, where):
    p, result = grouped(orders, col("price") * 10**6)
    schema = "user long, count long, cents long, weight double"
    sink = sinks.spark(lambda frame: frame.collect(), schema)
    result.write_to(sinks.collect() if where == "collect" else sink)

    with pytest.raises(JobFailedError, match="overflow") as caught:
        spark_engine.submit(p).join()

    assert "'price': " in str(caught.value.item)
    assert caught.value.vertex.startswith("fused")


def test_what_a_sink_cannot_take_is_told_by_the_sink(spark_engine, orders):
    p, result = grouped(orders, col("price") * 10**3)
    schema = "user long, count long, cents long, weight double"
    result.write_to(sinks.spark(lambda frame: frame.collect(), schema))

    with pytest.raises(JobFailedError, match="column 'cents' is int64") as caught:
        spark_engine.submit(p).join()

    assert caught.value.vertex == "spark-sink"


def test_rows_that_are_dropped_before_fail_nobody(spark_engine):
    p, out = Pipeline("guarded"), sinks.collect()
    rows = [{"n": n, "d": n % 3} for n in range(30)]
    frame = sources.spark(lambda spark: spark.createDataFrame(rows, "n long, d long"))
    kept = p.read_from(frame).filter(col("d") != 0).map(record(q=col("n") // col("d"), n=col("n")))
    kept.filter((col("q") > 3) & (col("n") // col("q") > 0)).map(col("q")).write_to(out)

    spark_engine.submit(p).join()

    assert sorted(out.items) == sorted(
        n // (n % 3) for n in range(30) if n % 3 and n // (n % 3) > 3
    )


def test_a_column_that_nobody_wants_fails_all_the_same(spark_engine):
    p = Pipeline("unwanted")
    frame = sources.spark(lambda spark: spark.range(10))
    wide = p.read_from(frame).map(record(a=1 // col("id"), b=col("id")))
    wide.map(col("b")).write_to(sinks.collect())

    with pytest.raises(JobFailedError, match="division"):
        spark_engine.submit(p).join()


def test_lambdas_get_what_spark_has_made(spark_engine):
    p, out, totals = Pipeline("mixed"), sinks.collect(), sinks.collect()
    frame = sources.spark(lambda spark: spark.range(100))
    even = p.read_from(frame).filter(col("id") % 2 == 0).map(record(n=col("id"), half=it.id / 2.0))
    even.rebalance().map(lambda row: (row["n"], row["half"])).write_to(out)
    q = Pipeline("total")
    q.read_from(frame).aggregate(agg.averaging(col("id"))).write_to(totals)

    spark_engine.submit(p).join()
    spark_engine.submit(q).join()

    assert left_to_python(p, spark_engine)[0] == "fused(filter, map)"
    assert sorted(out.items) == [(n, n / 2) for n in range(0, 100, 2)]
    assert totals.items == [49.5]


def test_what_spark_would_do_otherwise_is_left_to_python(spark_engine):
    frame = sources.spark(lambda spark: spark.createDataFrame(ROWS, SCHEMA))
    for stage in (
        lambda s: s.map(record(x=col("status").upper())),
        lambda s: s.map(col("price") / col("quantity")),
        lambda s: s.filter(col("price") > col("weight")),
        lambda s: s.map(1 // col("quantity"), on_error="skip"),
        lambda s: s.map(lambda row: row["price"]),
    ):
        p = Pipeline("left")
        stage(p.read_from(frame)).write_to(sinks.collect())
        assert left_to_python(p, spark_engine)[0].startswith("spark-source")


@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(number=st.integers(0, 2**32), chosen=st.lists(expressions, min_size=60, max_size=60))
def test_spark_gives_what_python_gives_or_knows_that_it_fails(spark_engine, number, chosen):
    batch = random_batch(number, 400)
    items = batch.to_pylist()
    frame = spark_frame(spark_engine.session, batch)

    left = check_spark(frame, chosen, [expected(each, items) for each in chosen])

    assert left < len(chosen)


def test_a_choice_is_looked_at_where_it_is_taken(spark_engine):
    p, out = Pipeline("choice"), sinks.collect()
    frame = sources.spark(lambda spark: spark.range(6))
    safe = when(col("id") == 0).then(0).otherwise(60 // col("id"))
    p.read_from(frame).map(safe).write_to(out)

    spark_engine.submit(p).join()

    assert sorted(out.items) == [0, 12, 15, 20, 30, 60]
