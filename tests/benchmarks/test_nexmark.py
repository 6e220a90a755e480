"""NEXMark, small: the generator is what the definition says, and each query what is worked out by
hand."""

from __future__ import annotations

from collections import Counter

import pyarrow.parquet as pq
import pytest
from benchmarks.nexmark import answers, events
from benchmarks.nexmark.queries import QUERIES, Inputs, last_averages

from jetlet import EmbeddedEngine, Pipeline, sinks

COUNT = 20_000


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Events of forty seconds, so that there are several windows."""
    directory = tmp_path_factory.mktemp("nexmark")
    events.write(directory, COUNT, per_second=500)
    return directory


@pytest.fixture(scope="module")
def rows(directory):
    return [pq.read_table(directory / f"{s}.parquet").to_pylist() for s in events.Streams.names()]


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_its_answer_by_hand(name, directory, rows):
    p, out = Pipeline(name), sinks.collect()
    QUERIES[name](Inputs(p, directory)).write_to(out)

    p.run(on="embedded", workers=1)

    found = last_averages(out.items) if name == "q4" else out.items
    wanted = answers.ANSWERS[name](*rows)
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    assert wanted


@pytest.mark.cluster
def test_members_give_the_same(directory, rows):
    with EmbeddedEngine(members=2) as engine:
        for name in QUERIES:
            p, out = Pipeline(name), sinks.collect()
            QUERIES[name](Inputs(p, directory, shares=2)).write_to(out)
            engine.submit(p).join()
            found = last_averages(out.items) if name == "q4" else out.items
            wanted = answers.ANSWERS[name](*rows)
            assert sorted(map(repr, found)) == sorted(map(repr, wanted)), name


def test_any_range_of_events_is_the_same_by_itself():
    whole, first, second = events.make(0, 1000), events.make(0, 333), events.make(333, 1000)
    for name in events.Streams.names():
        both = getattr(first, name).to_pylist() + getattr(second, name).to_pylist()
        assert getattr(whole, name).to_pylist() == both


def test_proportions_and_numbers_are_those_of_the_definition():
    streams = events.make(0, 100_000)
    persons, auctions, bids = (
        getattr(streams, name).to_pylist() for name in events.Streams.names()
    )
    assert (len(persons), len(auctions), len(bids)) == (2000, 6000, 92_000)
    assert [person["id"] for person in persons] == list(range(1000, 3000))
    assert [auction["id"] for auction in auctions] == list(range(1000, 7000))
    assert {auction["category"] for auction in auctions} == {10, 11, 12, 13, 14}
    assert all(auction["date_time"] < auction["expires"] for auction in auctions)
    assert all(100 <= bid["price"] <= 10**8 for bid in bids)
    # Half of the bids are for an auction that is hot, and three of four of a bidder who is.
    hot = Counter((bid["auction"] - 1000) % 100 == 0 for bid in bids)[True] / len(bids)
    assert 0.49 < hot < 0.53
    hot = Counter((bid["bidder"] - 1000) % 100 == 1 for bid in bids)[True] / len(bids)
    assert 0.74 < hot < 0.78
    assert bids[-1]["date_time"].timestamp() * 1000 - events.BASE_TIME == 9999
