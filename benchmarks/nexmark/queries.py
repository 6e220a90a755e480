"""The queries, as pipelines with expressions.

Each is a function of ``inputs``, which reads a stream with the columns that are asked for, and
gives the stage of its results. Windows are those of Flink's SQL. Of several that are the highest
one is chosen by what else is known of them, so that all engines choose the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.nexmark.source import EventStream
from jetlet import Pipeline, agg, col, it, lit, record, windows
from jetlet.pipeline.stages.stage import Stage
from jetlet.pipeline.stages.stream_source_stage import StreamSourceStage

BID = ("auction", "bidder", "price", "date_time", "extra")
TIME = col("date_time").epoch_ms()

WINDOW, SLIDE = 10_000, 2_000
"""Milliseconds."""
CLOSED_AFTER = 2_000
"""Nobody bids for an auction so long after it has begun."""
CATEGORY, STATES = 10, ["OR", "ID", "CA"]
EURO = 0.908


class Inputs:
    """Streams of a directory of files, for a pipeline."""

    def __init__(self, pipeline: Pipeline, directory: Path, shares: int = 1) -> None:
        self._pipeline = pipeline
        self._directory = directory
        self._shares = shares
        self.read: dict[str, list[str]] = {}
        """The columns that were asked for, by stream."""

    def __call__(self, stream: str, *columns: str) -> Stage[dict[str, Any]]:
        """Events in the order of their times."""
        return self._events(stream, *dict.fromkeys([*columns, "date_time"])).with_timestamps(TIME)

    def without_times(self, stream: str, *columns: str) -> Stage[dict[str, Any]]:
        """For queries that do not ask for them."""
        return self._events(stream, *columns).without_timestamps()

    def _events(self, stream: str, *columns: str) -> StreamSourceStage[dict[str, Any]]:
        path = str(self._directory / f"{stream}.parquet")
        self.read[stream] = list(columns)
        source = EventStream(path, columns, self._shares)
        return self._pipeline.read_from(source, local_parallelism=1)


def q0(inputs: Inputs) -> Stage[Any]:
    """Pass through: every bid."""
    return inputs.without_times("bids", *BID).map(record({name: col(name) for name in BID}))


def q1(inputs: Inputs) -> Stage[Any]:
    """Currency conversion: every bid in euros."""
    euros = {name: col(name) for name in BID} | {"price": col("price") * EURO}
    return inputs.without_times("bids", *BID).map(record(euros))


def q2(inputs: Inputs) -> Stage[Any]:
    """Selection: bids for some auctions."""
    bids = inputs.without_times("bids", "auction", "price")
    return bids.filter(it.auction % 123 == 0).map(record(auction=it.auction, price=it.price))


@dataclass(slots=True)
class Seller:
    """What is known of a person who may sell."""

    person: dict[str, Any] | None = None
    waiting: list[int] = field(default_factory=list)
    """Auctions that were there before the person."""


def q3(inputs: Inputs) -> Stage[Any]:
    """Local items: who sells in some states, and what, in one category."""
    people = inputs.without_times("persons", "id", "name", "city", "state")
    people = people.filter(it.state.is_in(STATES))
    auctions = inputs.without_times("auctions", "id", "seller", "category")
    auctions = auctions.filter(it.category == CATEGORY)
    return (
        people.map(record(who=it.id, name=it.name, city=it.city, state=it.state, auction=lit(None)))
        .merge(auctions.map(record(who=it.seller, auction=it.id)))
        .grouping_key(it.who)
        .flat_map_stateful(Seller, _offers)
    )


def _offers(seller: Seller, who: int, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
    auction = row["auction"]
    if auction is None:
        seller.person = row
        offered, seller.waiting = seller.waiting, []
    elif seller.person is None:
        seller.waiting.append(auction)
        return ()
    else:
        offered = [auction]
    person = seller.person
    where = {"name": person["name"], "city": person["city"], "state": person["state"]}
    return [{**where, "auction": each} for each in offered]


class Auction:
    """What is known of an auction: itself, and its highest bid that counts."""

    __slots__ = ("bids", "category", "end", "price", "start")

    def __init__(self) -> None:
        self.category: int | None = None
        self.start = self.end = self.price = 0
        self.bids: list[tuple[int, int]] = []
        """Those that were there before the auction: time and price."""


def q4(inputs: Inputs) -> Stage[Any]:
    """Average price for a category: of the highest bids of auctions, when they are closed."""
    auctions = inputs("auctions", "id", "category", "expires")
    bids = inputs("bids", "auction", "price")
    return (
        auctions.map(record(it.id, TIME, it.category, it.expires.epoch_ms()))
        .merge(bids.map(record(it.auction, TIME, it.price)))
        .grouping_key(it[0])
        .flat_map_stateful(Auction, _bid, ttl=CLOSED_AFTER, on_evict=_sold)
        .grouping_key(it[0])
        .rolling_aggregate(agg.all_of(agg.counting(), agg.averaging(it[1])))
    )


def _bid(auction: Auction, number: int, row: tuple[int, ...]) -> tuple[()]:
    if len(row) == 3:
        if auction.category is None:
            auction.bids.append(row[1:])
        elif auction.price < row[2] and auction.start <= row[1] <= auction.end:
            auction.price = row[2]
    else:
        _, auction.start, auction.category, auction.end = row
        for time, price in auction.bids:
            if auction.price < price and auction.start <= time <= auction.end:
                auction.price = price
        auction.bids = []
    return ()


def _sold(auction: Auction, number: int, time: int) -> Iterable[tuple[int, int]]:
    if auction.price and auction.category is not None:
        return ((auction.category, auction.price),)
    return ()


def q5(inputs: Inputs) -> Stage[Any]:
    """Hot items: the auction with most bids in the last ten seconds, every two seconds."""
    return (
        inputs("bids", "auction")
        .grouping_key(it.auction)
        .window(windows.sliding(WINDOW, SLIDE))
        .aggregate(agg.counting())
        .window(windows.tumbling(SLIDE))
        .aggregate(agg.max_by(record(it.result, -it.key)))
        .map(record(start=it.result.start, auction=it.result.key, count=it.result.result))
    )


def q7(inputs: Inputs) -> Stage[Any]:
    """Highest bid: of every ten seconds."""
    return (
        inputs("bids", *BID[:3])
        .window(windows.tumbling(WINDOW))
        .aggregate(agg.max_by(record(it.price, -it.auction, -it.bidder)))
        .map(record(start=it.start, auction=it.result.auction, price=it.result.price))
    )


def q8(inputs: Inputs) -> Stage[Any]:
    """New users: people who have come, and sold something, within the same ten seconds."""
    people = inputs("persons", "id", "name").grouping_key(it.id)
    sellers = inputs("auctions", "seller").grouping_key(it.seller)
    return (
        people.window(windows.tumbling(WINDOW))
        .aggregate2(agg.pick_any(), sellers, agg.counting())
        .filter(~it.result[0].is_null() & (it.result[1] > 0))
        .map(record(id=it.key, name=it.result[0].name, start=it.start))
    )


QUERIES: dict[str, Callable[[Inputs], Stage[Any]]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q7, q8)
}


@cache
def reads(name: str) -> dict[str, list[str]]:
    """The streams that a query reads, and which of their columns."""
    inputs = Inputs(Pipeline(name), Path())
    QUERIES[name](inputs)
    return inputs.read


def last_averages(results: Iterable[Any]) -> list[Any]:
    """Of what the fourth query has told of each category, what it has told last."""
    last: dict[Any, Any] = {}
    for category, (count, average) in results:
        last[category] = max(last.get(category, (0, 0.0)), (count, average))
    return sorted((category, average) for category, (_, average) in last.items())
