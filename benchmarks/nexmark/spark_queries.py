"""The queries in Spark's Structured Streaming, of the same files, on one core."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark.sql.functions as f

from benchmarks.nexmark.queries import BID, CATEGORY, EURO, STATES


class SparkQueries:
    """All files are there, so each query ends when it has read them; results are dropped."""

    def __init__(self, session: Any, directory: Path) -> None:
        self._session = session
        self._directory = directory
        session.conf.set("spark.sql.shuffle.partitions", "1")

    def run(self, name: str) -> None:
        if name == "q4":  # a stream cannot have an aggregate without windows of an aggregate
            self._q4(lambda each: self._session.read.parquet(self._path(each)))
            return
        results = QUERIES[name](self._stream)
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                results.writeStream.format("noop")
                .outputMode("append")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    def _path(self, stream: str) -> str:
        return str(self._directory / f"{stream}.p*")  # a stream reads no file by its name

    def _stream(self, stream: str) -> Any:
        schema = self._session.read.parquet(self._path(stream)).schema
        rows = self._session.readStream.schema(schema).parquet(self._path(stream))
        return rows.withWatermark("date_time", "0 seconds")

    def _q4(self, read: Callable[[str], Any]) -> None:
        auctions, bids = read("auctions"), read("bids").withColumnRenamed("date_time", "at")
        in_time = (f.col("id") == f.col("auction")) & f.col("at").between(
            f.col("date_time"), f.col("expires")
        )
        highest = auctions.join(bids, in_time).groupBy("id", "category")
        averages = highest.agg(f.max("price").alias("p")).groupBy("category").agg(f.avg("p"))
        averages.write.format("noop").mode("overwrite").save()


def _q0(read: Callable[[str], Any]) -> Any:
    return read("bids").select(*BID)


def _q1(read: Callable[[str], Any]) -> Any:
    return read("bids").withColumn("price", f.col("price") * EURO)


def _q2(read: Callable[[str], Any]) -> Any:
    return read("bids").where("auction % 123 = 0").select("auction", "price")


def _q3(read: Callable[[str], Any]) -> Any:
    people = read("persons").where(f.col("state").isin(STATES))
    auctions = read("auctions").where(f.col("category") == CATEGORY)
    joined = auctions.join(people, auctions["seller"] == people["id"])
    return joined.select(people["name"], people["city"], people["state"], auctions["id"])


def _q5(read: Callable[[str], Any]) -> Any:
    window = f.window("date_time", "10 seconds", "2 seconds")
    counts = read("bids").groupBy(window, "auction").count()
    # One second of the end of each window, which all of its counts have.
    together = f.window(f.window_time("window"), "2 seconds").alias("end")
    best = f.max(f.struct("count", (-f.col("auction")).alias("auction")))
    return counts.groupBy(together).agg(best)


def _q7(read: Callable[[str], Any]) -> Any:
    others = [(-f.col(name)).alias(name) for name in ("auction", "bidder")]
    best = f.max(f.struct("price", *others))
    return read("bids").groupBy(f.window("date_time", "10 seconds")).agg(best)


def _q8(read: Callable[[str], Any]) -> Any:
    window = f.window("date_time", "10 seconds").alias("window")
    people = read("persons").groupBy(window, "id", "name").count()
    sellers = read("auctions").groupBy(window, "seller").count()
    is_same = (people["id"] == sellers["seller"]) & (people["window"] == sellers["window"])
    return people.join(sellers, is_same).select("id", "name", people["window"])


QUERIES: dict[str, Callable[[Callable[[str], Any]], Any]] = {
    "q0": _q0,
    "q1": _q1,
    "q2": _q2,
    "q3": _q3,
    "q5": _q5,
    "q7": _q7,
    "q8": _q8,
}
