"""What the queries give, by hand: loops over dicts, which share nothing with the engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Any

from benchmarks.nexmark.queries import CATEGORY, EURO, SLIDE, STATES, WINDOW

Rows = list[dict[str, Any]]


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def q0(persons: Rows, auctions: Rows, bids: Rows) -> Any:
    return bids


def q1(persons: Rows, auctions: Rows, bids: Rows) -> Any:
    return [{**bid, "price": bid["price"] * EURO} for bid in bids]


def q2(persons: Rows, auctions: Rows, bids: Rows) -> Any:
    return [
        {"auction": bid["auction"], "price": bid["price"]}
        for bid in bids
        if bid["auction"] % 123 == 0
    ]


def q3(persons: Rows, auctions: Rows, bids: Rows) -> Any:
    people = {person["id"]: person for person in persons if person["state"] in STATES}
    return [
        {
            "name": people[auction["seller"]]["name"],
            "city": people[auction["seller"]]["city"],
            "state": people[auction["seller"]]["state"],
            "auction": auction["id"],
        }
        for auction in auctions
        if auction["category"] == CATEGORY and auction["seller"] in people
    ]


def q4(persons: Rows, auctions: Rows, bids: Rows) -> Any:
    by_id = {auction["id"]: auction for auction in auctions}
    highest: dict[int, int] = {}
    for bid in bids:
        auction = by_id.get(bid["auction"])
        if auction and auction["date_time"] <= bid["date_time"] <= auction["expires"]:
            highest[auction["id"]] = max(highest.get(auction["id"], 0), bid["price"])
    prices = defaultdict(list)
    for number, price in highest.items():
        prices[by_id[number]["category"]].append(price)
    return sorted((category, sum(each) / len(each)) for category, each in prices.items())


def q5(persons: Rows, auctions: Rows, bids: Rows) -> Any:
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for bid in bids:
        time = _ms(bid["date_time"])
        first = time - time % SLIDE
        for start in range(first, first - WINDOW, -SLIDE):
            counts[start][bid["auction"]] += 1
    found = []
    for start, count in counts.items():
        most = max(count.values())
        auction = min(auction for auction, n in count.items() if n == most)
        found.append({"start": start, "auction": auction, "count": most})
    return found


def q7(persons: Rows, auctions: Rows, bids: Rows) -> Any:
    highest: dict[int, dict[str, Any]] = {}
    for bid in bids:
        start = _ms(bid["date_time"]) // WINDOW * WINDOW
        before = highest.get(start)
        if before is None or (bid["price"], -bid["auction"]) > (
            before["price"],
            -before["auction"],
        ):
            highest[start] = bid
    return [
        {"start": start, "auction": bid["auction"], "price": bid["price"]}
        for start, bid in highest.items()
    ]


def q8(persons: Rows, auctions: Rows, bids: Rows) -> Any:
    sellers = {(a["seller"], _ms(a["date_time"]) // WINDOW) for a in auctions}
    return [
        {"id": p["id"], "name": p["name"], "start": _ms(p["date_time"]) // WINDOW * WINDOW}
        for p in persons
        if (p["id"], _ms(p["date_time"]) // WINDOW) in sellers
    ]


ANSWERS: dict[str, Callable[[Rows, Rows, Rows], Any]] = {
    answer.__name__: answer for answer in (q0, q1, q2, q3, q4, q5, q7, q8)
}
