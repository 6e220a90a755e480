"""The queries in Spark's Structured Streaming, of the same files, on one core."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.functions as f

from benchmarks.nexmark.queries import BID, CATEGORY, EURO, STATES

Read = Callable[[str], Any]
NOBODY = -1
"""The number of an event that is there for its time only."""


class SparkQueries:
    """All files are there, so each query ends when it has read them, as one batch."""

    def __init__(self, session: Any) -> None:
        self._session = session
        session.conf.set("spark.sql.shuffle.partitions", "1")
        session.conf.set("spark.sql.session.timeZone", "UTC")

    def run(self, name: str, directory: Path) -> None:
        if name == "q4":
            self._collected(name, directory)
        else:
            self._stream(name, directory, lambda writer: writer.format("noop"))

    def results(self, name: str, directory: Path) -> list[Any]:
        """With one event more, an hour later: Spark does not tell of a window before it is over."""
        with tempfile.TemporaryDirectory() as closed:
            for file in directory.glob("*.parquet"):
                rows = pq.read_table(file)
                pq.write_table(pa.concat_tables([rows, _much_later(rows)]), Path(closed, file.name))
            found = self._collected(name, Path(closed))
        return [row for row in found if row[0] != NOBODY]

    def _collected(self, name: str, directory: Path) -> list[Any]:
        found: list[Any] = []

        def collect(rows: Any, _: int) -> None:
            found.extend(rows.collect())

        self._stream(name, directory, lambda writer: writer.foreachBatch(collect))
        return _averages(found) if name == "q4" else found

    def _stream(self, name: str, directory: Path, to: Callable[[Any], Any]) -> None:
        def read(stream: str) -> Any:
            path = str(directory / f"{stream}.p*")  # a stream reads no file by its name
            schema = self._session.read.parquet(path).schema
            return self._session.readStream.schema(schema).parquet(path)

        with tempfile.TemporaryDirectory() as checkpoint:
            writer = QUERIES[name](read).writeStream.outputMode("append")
            writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            to(writer).start().awaitTermination()


def _much_later(rows: pa.Table) -> pa.Table:
    """An event that has nothing to do with any of these."""
    columns = []
    for column in rows.columns:
        kind = column.type
        if pa.types.is_timestamp(kind):
            later = column.cast(pa.int64()).to_numpy().max() + 3_600_000
            columns.append(pa.array([later]).cast(kind))
        else:
            columns.append(pa.array(["" if pa.types.is_string(kind) else NOBODY], kind))
    return pa.table(columns, schema=rows.schema)


def _timed(rows: Any) -> Any:
    return rows.withWatermark("date_time", "0 seconds")


def _start(window: str) -> Any:
    return f.unix_millis(f"{window}.start").alias("start")


def _q0(read: Read) -> Any:
    return read("bids").select(*BID)


def _q1(read: Read) -> Any:
    return read("bids").select(*BID).withColumn("price", f.col("price") * EURO)


def _q2(read: Read) -> Any:
    return read("bids").where("auction % 123 = 0").select("auction", "price")


def _q3(read: Read) -> Any:
    people = read("persons").where(f.col("state").isin(STATES))
    auctions = read("auctions").where(f.col("category") == CATEGORY)
    joined = auctions.join(people, auctions["seller"] == people["id"])
    return joined.select(people["name"], people["city"], people["state"], auctions["id"])


def _q4(read: Read) -> Any:
    """Sums by category of the auctions that end within two seconds.

    A stream of Spark's has no averages over all time of something that is aggregated itself; the
    few sums are added up by who gets them. An auction is closed when that time is over.
    """
    auctions = read("auctions").withWatermark("expires", "2 seconds")
    bids = read("bids").withColumnRenamed("date_time", "at").withWatermark("at", "0 seconds")
    in_time = (
        (f.col("id") == f.col("auction"))
        & f.col("at").between(f.col("date_time"), f.col("expires"))
        # It says nothing new, but tells how long a bid has to be remembered.
        & (f.col("at") >= f.col("expires") - f.expr("INTERVAL 10 SECONDS"))
    )
    ending = f.window("expires", "2 seconds")
    highest = auctions.join(bids, in_time).groupBy(ending, "id", "category").agg(f.max("price"))
    together = f.window(f.window_time("window"), "2 seconds")
    price = f.col("max(price)")
    return highest.groupBy(together, "category").agg(f.sum(price), f.count(price))


def _averages(sums: list[Any]) -> list[Any]:
    total, count = defaultdict(int), defaultdict(int)
    for _, category, prices, auctions in sums:
        total[category] += prices
        count[category] += auctions
    return [(category, total[category] / count[category]) for category in total]


def _q5(read: Read) -> Any:
    window = f.window("date_time", "10 seconds", "2 seconds")
    counts = _timed(read("bids")).groupBy(window, "auction").count()
    # One second of the end of each window, which all of its counts have.
    together = f.window(f.window_time("window"), "2 seconds")
    best = f.max(f.struct("count", (-f.col("auction")).alias("auction"), "window")).alias("best")
    found = counts.groupBy(together).agg(best)
    return found.select(_start("best.window"), -f.col("best.auction"), "best.count")


def _q7(read: Read) -> Any:
    others = [(-f.col(name)).alias(name) for name in ("auction", "bidder")]
    best = f.max(f.struct("price", *others)).alias("best")
    found = _timed(read("bids")).groupBy(f.window("date_time", "10 seconds")).agg(best)
    return found.select(_start("window"), -f.col("best.auction"), "best.price")


def _q8(read: Read) -> Any:
    window = f.window("date_time", "10 seconds").alias("window")
    people = _timed(read("persons")).groupBy(window, "id", "name").count()
    sellers = _timed(read("auctions")).groupBy(window, "seller").count()
    is_same = (people["id"] == sellers["seller"]) & (people["window"] == sellers["window"])
    start = f.unix_millis(people["window"]["start"])
    return people.join(sellers, is_same).select("id", "name", start)


QUERIES: dict[str, Callable[[Read], Any]] = {
    query.__name__.lstrip("_"): query for query in (_q0, _q1, _q2, _q3, _q4, _q5, _q7, _q8)
}
