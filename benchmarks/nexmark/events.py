"""The events: persons, auctions and bids, the same in every run, as tables or in Parquet files.

Proportions, numbers of people and auctions, who is hot, prices and times are those of the public
definition (the generator of Apache Beam, which Flink's benchmark shares). Of 50 events one is a
person, three are auctions and 46 are bids. Each random number depends on nothing but the number of
the event and what it is for, so that any range of events can be made by itself.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Numbers = Any
"""An array of integers."""

BASE_TIME = 1_436_918_400_000
"""2015-07-15, in milliseconds."""
OF, PERSONS, AUCTIONS = 50, 1, 3
"""Of so many events so many are of that kind; the others are bids."""
FIRST_PERSON = FIRST_AUCTION = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
ACTIVE_PEOPLE, PEOPLE_LEAD = 1000, 10
AUCTIONS_IN_FLIGHT, AUCTIONS_LEAD = 100, 10
HOT_SELLER, HOT_AUCTION, HOT_BIDDER = 4, 2, 4
"""All but one of so many are about somebody, or something, that is hot."""
HOT_STEP = 100
"""One of so many people and auctions is hot at some time."""

STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = [
    *["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"],
    *["Bend", "Redmond", "Seattle", "Kent", "Cheyenne"],
]
FIRST_NAMES = [
    *["Peter", "Paul", "Luke", "John", "Saul", "Vicky"],
    *["Kate", "Julie", "Sarah", "Deiter", "Walter"],
]
LAST_NAMES = [
    *["Shultz", "Abrams", "Spencer", "White", "Bartels"],
    *["Walton", "Smith", "Jones", "Noris"],
]

TIME = pa.timestamp("ms", "UTC")
AT_ONCE = 1_000_000
ROW_GROUP = 64 * 1024


@dataclass(frozen=True, slots=True)
class Streams:
    """The three streams, as tables in the order of their times."""

    persons: pa.Table
    auctions: pa.Table
    bids: pa.Table

    @staticmethod
    def names() -> tuple[str, ...]:
        return ("persons", "auctions", "bids")


def make(start: int, stop: int, per_second: int = 10_000) -> Streams:
    """The events with these numbers; ``per_second`` is how fast time goes on in them."""
    numbers = np.arange(start, stop, dtype=np.int64)
    place = numbers % OF
    is_person, is_auction = place < PERSONS, (place >= PERSONS) & (place < PERSONS + AUCTIONS)
    return Streams(
        _persons(numbers[is_person], per_second),
        _auctions(numbers[is_auction], per_second),
        _bids(numbers[~is_person & ~is_auction], per_second),
    )


def write(directory: Path, count: int, per_second: int = 10_000) -> None:
    """A Parquet file for each stream of the first so many events."""
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for start in range(0, count, AT_ONCE):
            streams = make(start, min(start + AT_ONCE, count), per_second)
            for name in Streams.names():
                table: pa.Table = getattr(streams, name)
                if name not in writers:
                    writer = pq.ParquetWriter(directory / f"{name}.parquet", table.schema)
                    writers[name] = stack.enter_context(writer)
                writers[name].write_table(table, row_group_size=ROW_GROUP)


# --- The kinds of events ----------------------------------------------------------------------


def _persons(numbers: Numbers, per_second: int) -> pa.Table:
    chance = _Chance(numbers)
    first, last = chance.of(FIRST_NAMES, 0), chance.of(LAST_NAMES, 1)
    return pa.table(
        {
            "id": _last_person(numbers) + FIRST_PERSON,
            "name": [f"{a} {b}" for a, b in zip(first, last, strict=True)],
            "email": [f"{a}@{b}.com".lower() for a, b in zip(first, last, strict=True)],
            "city": chance.of(CITIES, 2),
            "state": chance.of(STATES, 3),
            "date_time": _time(numbers, per_second),
        }
    )


def _auctions(numbers: Numbers, per_second: int) -> pa.Table:
    chance = _Chance(numbers)
    hot = _last_person(numbers) // HOT_STEP * HOT_STEP
    seller = np.where(chance.below(HOT_SELLER, 0) > 0, hot, _any_person(numbers, chance, 1))
    initial = chance.price(2)
    at = _millis(numbers, per_second)
    # As long as it takes for as many auctions to begin as are to be in flight, on the average.
    later = _millis(numbers + AUCTIONS_IN_FLIGHT * OF // AUCTIONS, per_second)
    length = 1 + chance.below(np.maximum((later - at) * 2, 1), 3)
    return pa.table(
        {
            "id": _last_auction(numbers) + FIRST_AUCTION,
            "item_name": chance.text(20, 4),
            "description": chance.text(100, 5),
            "initial_bid": initial,
            "reserve": initial + chance.price(6),
            "date_time": pa.array(at).cast(TIME),
            "expires": pa.array(at + length).cast(TIME),
            "seller": seller + FIRST_PERSON,
            "category": FIRST_CATEGORY + chance.below(CATEGORIES, 7),
        }
    )


def _bids(numbers: Numbers, per_second: int) -> pa.Table:
    chance = _Chance(numbers)
    last = _last_auction(numbers)
    hot_auction = last // HOT_STEP * HOT_STEP
    least = np.maximum(last - AUCTIONS_IN_FLIGHT, 0)
    some_auction = least + chance.below(last - least + 1 + AUCTIONS_LEAD, 1)
    hot_bidder = _last_person(numbers) // HOT_STEP * HOT_STEP + 1
    some_bidder = _any_person(numbers, chance, 3)
    auction = np.where(chance.below(HOT_AUCTION, 0) > 0, hot_auction, some_auction)
    bidder = np.where(chance.below(HOT_BIDDER, 2) > 0, hot_bidder, some_bidder)
    return pa.table(
        {
            "auction": auction + FIRST_AUCTION,
            "bidder": bidder + FIRST_PERSON,
            "price": chance.price(4),
            "date_time": _time(numbers, per_second),
            "extra": chance.text(60, 5),
        }
    )


def _last_person(numbers: Numbers) -> Numbers:
    """The person that was new last, from 0 on."""
    return numbers // OF * PERSONS + np.minimum(numbers % OF, PERSONS - 1)


def _last_auction(numbers: Numbers) -> Numbers:
    """The auction that was new last, from 0 on; none, which is -1, before the first."""
    place = numbers % OF - PERSONS
    return numbers // OF * AUCTIONS + np.clip(place, -1, AUCTIONS - 1)


def _any_person(numbers: Numbers, chance: _Chance, use: int) -> Numbers:
    people = _last_person(numbers) + 1
    active = np.minimum(people, ACTIVE_PEOPLE)
    return people - active + chance.below(active + PEOPLE_LEAD, use)


def _millis(numbers: Numbers, per_second: int) -> Numbers:
    return BASE_TIME + numbers * 1000 // per_second


def _time(numbers: Numbers, per_second: int) -> pa.Array:
    return pa.array(_millis(numbers, per_second)).cast(TIME)


# --- Chance -----------------------------------------------------------------------------------

_POOL = 1000
"""Of each length there are so many texts that mean nothing."""


class _Chance:
    """Random numbers for some events: the mixing function of splitmix64, of the event's number."""

    def __init__(self, numbers: Numbers) -> None:
        self._seeds = numbers.astype(np.uint64) * np.uint64(64)

    def bits(self, use: int) -> Numbers:
        with np.errstate(over="ignore"):
            mixed = (self._seeds + np.uint64(use + 1)) * np.uint64(0x9E3779B97F4A7C15)
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
            return mixed ^ (mixed >> np.uint64(31))

    def share(self, use: int) -> Numbers:
        """From 0 to 1."""
        return (self.bits(use) >> np.uint64(11)).astype(np.float64) / 2**53

    def below(self, limit: Numbers | int, use: int) -> Numbers:
        """An integer from 0 on."""
        return np.floor(self.share(use) * limit).astype(np.int64)

    def price(self, use: int) -> Numbers:
        """In cents: from one dollar to a million, each order of magnitude as often."""
        return np.rint(10.0 ** (self.share(use) * 6) * 100).astype(np.int64)

    def of(self, values: list[str], use: int) -> list[str]:
        return np.array(values, dtype=object)[self.below(len(values), use)].tolist()  # type: ignore[no-any-return]

    def text(self, length: int, use: int) -> pa.Array:
        return pa.array(_texts(length)).take(pa.array(self.below(_POOL, use)))


def _texts(length: int) -> list[str]:
    chance = _Chance(np.arange(_POOL, dtype=np.int64) + length * _POOL)
    letters = [chance.below(26, use) + ord("a") for use in range(length)]
    return [bytes(each).decode() for each in np.stack(letters, axis=1).astype(np.uint8)]
