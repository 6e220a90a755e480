from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jetlet import Pipeline, agg, col, it, record, sinks, sources, when, windows
from jetlet.errors import InvalidArgumentError, JobFailedError
from jetlet.pipeline.expressions.schemas import TypeCheck, schema_type


@dataclass
class Address:
    city: str
    codes: list[int]


@dataclass
class Person:
    name: str
    age: int | None
    address: Address
    born: dt.date
    seen: dt.datetime
    pair: tuple[int, str]
    notes: Any = None


class Order(TypedDict):
    user: str
    price: float
    tags: NotRequired[list[str]]


class Event(msgspec.Struct):
    user: str
    at: int


PERSON = (
    "{name: text, age: int, address: {city: text, codes: list of int}, born: date, "
    "seen: datetime, pair: (int, text), notes: any}"
)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        (Person, PERSON),
        (Order, "{user: text, price: float, tags: list of text}"),
        (Event, "{user: text, at: int}"),
        (
            pa.schema(
                {
                    "a": pa.int8(),
                    "b": pa.dictionary(pa.int8(), pa.string()),
                    "c": pa.timestamp("ms", "UTC"),
                    "d": pa.list_(pa.struct({"e": pa.decimal128(5, 2)})),
                }
            ),
            "{a: int, b: text, c: datetime in UTC, d: list of {e: decimal}}",
        ),
    ],
    ids=["dataclass", "TypedDict", "msgspec", "pyarrow"],
)
def test_types_of_schemas(schema, shown):
    assert str(schema_type("typed", schema)) == shown


@pytest.mark.parametrize("schema", [int, dict, "user", {"user": str}, None])
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(InvalidArgumentError, match="a schema is a dataclass"):
        sources.items([], schema=schema) if schema else schema_type("typed", schema)


def person(**changes):
    fields = {
        "name": "Ann",
        "age": None,
        "address": Address("Bern", [1, 2]),
        "born": dt.date(2000, 1, 1),
        "seen": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        "pair": (1, "a"),
    }
    return Person(**(fields | changes))


def test_an_item_of_the_schema_passes():
    item = person()

    assert TypeCheck(schema_type("typed", Person))(item) is item


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (None, "the item is of type Person, not None"),
        ({"name": "Ann"}, "the item is of type Person"),
        (person(age=True), "field 'age' is of type int, not True"),
        (person(age=1.0), "field 'age' is of type int"),
        (person(born=dt.datetime(2000, 1, 1, tzinfo=dt.UTC)), "field 'born' is of type date"),
        (person(address=Address("Bern", [1, "2"])), r"field 'address.codes\[1\]' is of type int"),
        (person(pair=(1,)), r"field 'pair' is of type \(int, text\)"),
        (person(pair=(1, 2)), r"field 'pair\[1\]' is of type text"),
    ],
)
def test_an_item_of_another_type_is_refused(item, message):
    with pytest.raises(TypeError, match=message):
        TypeCheck(schema_type("typed", Person))(item)


def test_a_missing_field_is_refused():
    with pytest.raises(TypeError, match="no field 'price'"):
        TypeCheck(schema_type("typed", Order))({"user": "ann"})


ORDERS = [{"user": "ann", "price": 1.5}, {"user": "bob", "price": None}]


def orders(p):
    return p.read_from(sources.items([{**each, "tags": ["x"]} for each in ORDERS], schema=Order))


def test_a_stage_knows_the_type_of_its_items():
    stage = orders(Pipeline())

    def shown(stage):
        return str(stage.schema)

    assert shown(stage.filter(col("price") > 1).sort(col("price")).take(1)) == shown(stage)
    assert shown(stage.map(record(a=it.user.len(), b=it.price * 2))) == "{a: int, b: float}"
    assert shown(stage.map(record(it.user, when(it.price > 1).then(1).otherwise(None)))) == (
        "(text, int)"
    )
    assert shown(stage.flat_map(col("tags").explode())) == "text"
    assert shown(stage.flat_map(col("tags"))) == "text"
    assert shown(stage.flat_map(record(it.price, it.price))) == "float"
    assert shown(stage.merge(stage.map(lambda x: x))) == "any"
    assert shown(stage.map(lambda x: x).typed(Event)) == "{user: text, at: int}"


MISTAKES = {
    "field": (lambda s: s.map(col("prize") * 2), "there is no field 'prize': did you mean 'price'"),
    "filter": (lambda s: s.filter(col("user") > 1), "compares values of one type"),
    "nested": (lambda s: s.map(record(a=it.user.city)), "no fields in a value of type text"),
    "behind": (lambda s: s.map(record(a=it.user)).map(col("user")), "there is no field 'user'"),
    "key": (lambda s: s.grouping_key(col("usr")).aggregate(agg.counting()), "did you mean 'user'"),
    "sort": (lambda s: s.sort(-col("user")), "takes two numbers"),
    "time": (lambda s: s.add_timestamps(col("at"), 0), "there is no field 'at'"),
    "window": (
        lambda s: (
            s.add_timestamps(lambda _: 0, 0)
            .grouping_key(col("usr"))
            .window(windows.tumbling(1))
            .aggregate(agg.counting())
        ),
        "did you mean 'user'",
    ),
    "join": (lambda s: s.hash_join(s, col("user"), col("name")), "there is no field 'name'"),
    "text": (lambda s: s.map(col("price").upper()), "takes text"),
    "element": (lambda s: s.map(col("price")[0]), "is no list"),
    "cast": (lambda s: s.map(col("tags").cast(int)), "cannot be made int"),
    "condition": (lambda s: s.map(when(it.price).then(1).otherwise(2)), "write a comparison"),
    "fill": (lambda s: s.map(it.user.fill_null(0)), "of the same type"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_field_or_type_is_refused_when_planned(name):
    stage, message = MISTAKES[name]
    p = Pipeline("typed")
    stage(orders(p)).write_to(sinks.noop())

    with pytest.raises(InvalidArgumentError, match=f"stage .* of pipeline 'typed': .*{message}"):
        p.plan()


AGGREGATES = {
    "summing": agg.summing(col("prize")),
    "averaging": agg.averaging(col("prize")),
    "max_by": agg.max_by(col("prize")),
    "top_n": agg.top_n(2, col("prize")),
    "linear_trend": agg.linear_trend(col("price"), col("prize")),
    "to_list": agg.to_list(col("prize")),
    "to_set": agg.to_set(col("prize")),
    "to_dict": agg.to_dict(col("user"), col("prize")),
    "sorting": agg.sorting(col("prize")),
    "grouping_by": agg.grouping_by(col("user"), agg.summing(col("prize"))),
    "mapping": agg.mapping(col("prize"), agg.summing(it)),
    "filtering": agg.filtering(col("price") > 1, agg.summing(col("prize"))),
    "flat_mapping": agg.flat_mapping(col("prize"), agg.counting()),
    "all_of": agg.all_of(agg.counting(), agg.summing(col("prize"))),
}


@pytest.mark.parametrize("name", AGGREGATES)
@pytest.mark.parametrize("kind", ["all", "keyed", "rolling", "window"])
def test_a_wrong_field_of_an_aggregate_is_refused_when_planned(name, kind):
    p, operation = Pipeline("typed"), AGGREGATES[name]
    stage = orders(p)
    if kind == "window":
        stage.add_timestamps(lambda _: 0, 0).window(windows.tumbling(1)).aggregate(
            operation
        ).write_to(sinks.noop())
    elif kind == "all":
        stage.aggregate(operation).write_to(sinks.noop())
    else:
        keyed = stage.grouping_key(col("user"))
        rolls = kind == "rolling"
        (keyed.rolling_aggregate if rolls else keyed.aggregate)(operation).write_to(sinks.noop())

    with pytest.raises(InvalidArgumentError, match="there is no field 'prize': did you mean"):
        p.plan()


def test_a_wrong_field_of_one_of_several_inputs_is_refused_when_planned():
    p = Pipeline("typed")
    left, right = orders(p).grouping_key(col("user")), orders(p).grouping_key(col("user"))
    both = left.aggregate2(agg.summing(col("price")), right, agg.summing(col("prize")))
    both.write_to(sinks.noop())

    with pytest.raises(InvalidArgumentError, match="there is no field 'prize': did you mean"):
        p.plan()


def test_items_that_are_not_of_the_schema_are_refused():
    p = Pipeline()
    source = sources.items([{"user": 1, "price": 2.0, "tags": []}], schema=Order)
    p.read_from(source).write_to(sinks.noop())

    with pytest.raises(InvalidArgumentError, match="does not go with the schema: field 'user'"):
        p.run(on="embedded")


def test_a_stage_checks_its_items():
    p, good, bad = Pipeline(), sinks.collect(), sinks.collect()
    items = p.read_from(sources.items([Event("ann", 1), Event("bob", "2"), 3]))
    items.typed(Event, on_error=bad).map(record(it.user, it.at + 1)).write_to(good)
    p.run(on="embedded")

    assert good.items == [("ann", 2)]
    assert [each.error for each in bad.items] == [
        "field 'at' is of type int, not '2'",
        "the item is of type Event, not 3",
    ]

    p = Pipeline()
    p.read_from(sources.items([3])).typed(Event).write_to(sinks.noop())
    with pytest.raises(JobFailedError, match="the item is of type Event, not 3"):
        p.run(on="embedded")


def test_parquet_has_the_types_of_its_columns(tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2], "amount": [Decimal(1), None]}), file)

    stage = Pipeline().read_from(sources.parquet(str(file), columns=["amount"]))

    assert str(stage.schema) == "{amount: decimal}"
    missing = sources.parquet(str(tmp_path / "none.parquet"))
    assert str(Pipeline().read_from(missing).schema) == "any"


def test_csv_has_the_types_that_it_was_given(tmp_path):
    (tmp_path / "a.csv").write_text("user,price,note\nann,3,x\n")

    def shown(**options):
        return str(Pipeline().read_from(sources.csv(tmp_path / "a.csv", **options)).schema)

    assert shown(types={"price": int, "note": lambda _: 1}) == "{user: text, price: int, note: any}"
    assert shown(header=False, fields=["a", "b", "c"]) == "{a: text, b: text, c: text}"
    assert shown(header=False) == "any"
