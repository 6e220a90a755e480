"""Records of a log that have a schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import pytest

from jetlet import Pipeline, agg, col, it, record, sinks, sources
from jetlet.connectors.typed_records import TypedRecords
from jetlet.core.table import Table
from jetlet.errors import InvalidArgumentError, JobFailedError
from jetlet.log import Log


class Order(TypedDict):
    user: str
    price: int
    weight: float


@dataclass
class Bid:
    user: str
    price: int


ORDERS = [
    {"user": f"user{i % 7}", "price": i if i % 50 else None, "weight": i / 4} for i in range(3000)
]


def written(directory, records, serializer=None):
    with Log(directory, partitions=2, serializer=serializer) as log:
        for start in range(0, len(records), 500):
            log.append(records[start : start + 500], partition=start // 500 % 2)
    return directory


def run(build, source):
    p, out = Pipeline("typed"), sinks.collect()
    build(p.read_from(source).without_timestamps()).write_to(out)
    p.run(on="embedded", workers=1)
    return out.items


def test_records_are_the_same_with_a_schema(tmp_path):
    directory = written(tmp_path / "log", ORDERS)
    source = sources.log(directory, schema=Order, until="end")
    found = run(
        lambda s: s.filter(~col("price").is_null()).map(record(who=it.user, n=it.price * 2)), source
    )
    expected = [{"who": o["user"], "n": o["price"] * 2} for o in ORDERS if o["price"] is not None]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_a_stream_of_records_comes_in_columns(tmp_path):
    directory = written(tmp_path / "log", ORDERS)
    source = sources.log(directory, schema=Order).in_columns()
    reader = source.open(source.partitions(), None)
    polled = [batch for _ in range(10) for batch in reader.poll(8192)]
    reader.close()

    assert {type(batch.items) for batch in polled} == {Table}
    items = [item for batch in polled for item in batch.items]
    assert sorted(map(repr, items)) == sorted(map(repr, ORDERS))


def test_objects_come_back_as_what_they_were():
    bids = [Bid(f"u{i}", i) for i in range(200)]
    table = TypedRecords("test", Bid).table(bids)
    assert table is not None
    assert table.items() == bids


@pytest.mark.parametrize(
    "change",
    [
        {"price": True},
        {"price": 1.0},
        {"price": 2**70},
        {"weight": 1},
        {"user": "\ud800"},
        {"more": 1},
    ],
    ids=str,
)
def test_what_a_column_would_change_stays_items(change):
    typed = TypedRecords("test", Order)
    orders = [{"user": "u", "price": 1, "weight": 0.5} for _ in range(200)]
    assert typed.table(orders) is not None
    orders[150] |= change
    assert typed.table(orders) is None


def test_a_record_of_another_type_fails_the_job(tmp_path):
    directory = written(tmp_path / "log", [*ORDERS[:300], {"user": 3, "price": 1, "weight": 1.0}])
    with pytest.raises(
        JobFailedError, match="offset 300 does not go with the schema: field 'user'"
    ):
        run(lambda s: s.map(it.user), sources.log(directory, schema=Order, until="end"))


def test_a_record_of_another_type_is_skipped(tmp_path):
    directory = written(tmp_path / "log", [*ORDERS[:300], {"user": 3, "price": 1, "weight": 1.0}])
    source = sources.log(directory, schema=Order, until="end", on_error="skip")
    assert run(lambda s: s.aggregate(agg.counting()), source) == [300]


def test_a_wrong_field_is_refused_when_planned(tmp_path):
    directory = written(tmp_path / "log", ORDERS)
    p = Pipeline("wrong")
    stage = p.read_from(sources.log(directory, schema=Order)).without_timestamps()
    assert str(stage.schema) == "{user: text, price: int, weight: float}"
    stage.map(col("prize") * 2).write_to(sinks.noop())
    with pytest.raises(InvalidArgumentError, match="did you mean 'price'"):
        p.run(on="embedded")
