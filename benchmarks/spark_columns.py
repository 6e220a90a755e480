"""Expressions on Spark with two cores, from Parquet to Parquet: against PySpark's own DataFrames.

With lambdas beside it, over as many rows.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow.dataset as ds

from benchmarks.columns import write_orders
from benchmarks.measure import at_least, at_most, race, tree_time
from jetlet import Pipeline, SparkEngine, agg, col, it, record, sinks, sources

SCHEMA = "user long, count long, cents long"


def pipeline(
    engine: SparkEngine, source: Path, target: Path, *, by_spark: bool, as_lambdas: bool = False
) -> None:
    """``by_spark`` writes with Spark, too."""
    p = Pipeline("revenue")
    stage = p.read_from(sources.parquet(source))
    if as_lambdas:
        result = (
            stage.filter(lambda row: row["status"] == "paid")
            .map(lambda row: {"user": row["user"], "cents": row["price"] * row["quantity"]})
            .grouping_key(lambda row: row["user"])
            .aggregate(agg.all_of(agg.counting(), agg.summing(lambda row: row["cents"])))
            .map(lambda e: {"user": e[0], "count": e[1][0], "cents": e[1][1]})
        )
    else:
        result = (
            stage.filter(col("status") == "paid")
            .map(record(user=col("user"), cents=col("price") * col("quantity")))
            .grouping_key(col("user"))
            .aggregate(agg.all_of(agg.counting(), agg.summing(col("cents"))))
            .map(record(user=it[0], count=it[1][0], cents=it[1][1]))
        )
    if by_spark:
        result.write_to(
            sinks.spark(lambda df: df.write.mode("overwrite").parquet(str(target)), SCHEMA)
        )
    else:
        result.write_to(sinks.parquet(target))
    engine.submit(p).join()


def native(engine: SparkEngine, source: Path, target: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    rows = engine.session.read.parquet(str(source)).where("status = 'paid'")
    rows = rows.select("user", (F.col("price") * F.col("quantity")).alias("cents"))
    result = rows.groupBy("user").agg(F.count("*").alias("count"), F.sum("cents").alias("cents"))
    result.write.mode("overwrite").parquet(str(target))


def main() -> None:
    quick = "--quick" in sys.argv
    rows = 20_000 if quick else 10_000_000
    with tempfile.TemporaryDirectory() as directory, SparkEngine("local[2]") as engine:
        root = Path(directory)
        source = root / "orders.parquet"
        write_orders(source, rows)
        runs = {
            "native": lambda: native(engine, source, root / "native"),
            "expressions to a DataFrame": lambda: pipeline(
                engine, source, root / "frame", by_spark=True
            ),
            "expressions to files": lambda: pipeline(
                engine, source, root / "files", by_spark=False
            ),
        }
        for run in runs.values():
            run()
        tables = [
            ds.dataset(root / name, format="parquet").to_table().sort_by("user")
            for name in ("native", "frame", "files")
        ]
        assert tables[0].to_pydict() == tables[1].to_pydict() == tables[2].to_pydict()
        jvm = engine.session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        best = race(runs, 1 if quick else 4, lambda: tree_time(jvm))
        lambdas = race(
            {
                "lambdas": lambda: pipeline(
                    engine, source, root / "lambdas", by_spark=False, as_lambdas=True
                )
            },
            1,
            lambda: tree_time(jvm),
        )
    for name in ("expressions to a DataFrame", "expressions to files"):
        at_most(f"{name} against native", best[name] / best["native"], 1.2)
    at_least(
        "lambdas against expressions", lambdas["lambdas"] / best["expressions to a DataFrame"], 10
    )


if __name__ == "__main__":
    main()
