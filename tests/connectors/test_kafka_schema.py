"""Values of Kafka that have a schema, without a broker."""

from __future__ import annotations

import json
import pickle
from typing import TypedDict

import pytest

from jetlet import sources
from jetlet.connectors.kafka.source import KafkaPartition, KafkaStreamReader
from jetlet.core.table import Table
from jetlet.errors import BadRecordError, InvalidArgumentError

pytest.importorskip("confluent_kafka")
pytest.importorskip("msgspec")


class Order(TypedDict):
    user: str
    price: int


class Message:
    def __init__(self, offset, value):
        self._offset = offset
        self._value = value

    def value(self):
        return self._value

    def timestamp(self):
        return 1, self._offset * 10

    def topic(self):
        return "orders"

    def partition(self):
        return 0

    def offset(self):
        return self._offset


class Consumer:
    """Gives all messages at once."""

    def __init__(self, values):
        self.positions = {("orders", 0): 0}
        self.ended = set()
        self._values = values

    def poll(self, limit, timeout):
        return {("orders", 0): [Message(i, value) for i, value in enumerate(self._values)]}


ORDERS = [{"user": f"u{i % 5}", "price": i} for i in range(300)]


def polled(values, *, in_columns):
    source = sources.kafka("orders", "localhost:1", schema=Order)
    source = pickle.loads(pickle.dumps(source.in_columns() if in_columns else source))
    reader = KafkaStreamReader(
        Consumer(values),
        [KafkaPartition(("orders", 0), 0)],
        source._decoding.function(),
        source._columns if source._in_columns else None,
    )
    (batch,) = reader.poll(1000)
    assert list(batch.timestamps) == [i * 10 for i in range(len(values))]
    return batch.items


@pytest.mark.parametrize("in_columns", [False, True])
def test_values_are_what_the_schema_says(in_columns):
    items = polled([json.dumps({**o, "more": 1}).encode() for o in ORDERS], in_columns=in_columns)

    assert isinstance(items, Table) == in_columns
    assert list(items) == ORDERS


def test_values_that_are_no_single_lines_are_decoded_one_by_one():
    values = [json.dumps(order, indent=1).encode() for order in ORDERS]

    assert polled(values, in_columns=True) == ORDERS
    assert polled([None, *values[1:]], in_columns=True) == [None, *ORDERS[1:]]


def test_a_value_of_another_type_fails():
    values = [json.dumps(order).encode() for order in ORDERS]
    values[200] = b'{"user": 1, "price": 2}'
    with pytest.raises(BadRecordError, match="offset 200"):
        polled(values, in_columns=True)


def test_a_schema_stands_alone():
    with pytest.raises(InvalidArgumentError, match="leave out value"):
        sources.kafka("orders", "localhost:1", schema=Order, value=json.loads)
    assert (
        str(sources.kafka("orders", "x:1", schema=Order).item_type()) == "{user: text, price: int}"
    )
