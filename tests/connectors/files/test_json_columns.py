"""JSON lines that are decoded by column are what they are when decoded one by one."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Annotated, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import Pipeline, agg, col, it, record, sinks, sources
from jetlet.core.table import Table
from jetlet.errors import BadRecordError, JobFailedError
from jetlet.pipeline.errors import Rejected

ROWS = 300


class Order(TypedDict):
    user: str
    cents: int
    weight: float
    is_paid: bool


@dataclass
class OrderClass:
    user: str
    cents: int
    weight: float
    is_paid: bool


class OrderStruct(msgspec.Struct):
    user: str
    cents: int
    weight: float
    is_paid: bool


ARROW = pa.schema(
    {"user": pa.string(), "cents": pa.int64(), "weight": pa.float64(), "is_paid": pa.bool_()}
)


def order(i):
    return {"user": f"u{i % 7}\u00e9", "cents": i, "weight": i / 4, "is_paid": i % 2 == 0, "x": [i]}


def lines(count=ROWS):
    return [json.dumps(order(i), separators=(",", ":")) for i in range(count)]


def write(path, text):
    path.write_text(text, encoding="utf-8", newline="")
    return path


def read(path, schema, method, **options):
    """The items in the order of the file, those that are rejected among them."""
    source = sources.json_lines(path, schema=schema, **options)
    found = []
    for split in source.splits(1):
        for batch in getattr(source, method)(split):
            if isinstance(batch, Rejected):
                found += [(record.line, str(error)) for record, error in batch]
            else:
                found += batch
    return found


def tables(path, schema):
    source = sources.json_lines(path, schema=schema)
    batches = [batch for split in source.splits(1) for batch in source.read_columns(split)]
    return [batch for batch in batches if isinstance(batch, Table)]


@pytest.mark.parametrize("schema", [Order, OrderClass, OrderStruct, ARROW])
def test_items_are_the_same(tmp_path, schema):
    is_dict = schema in (Order, ARROW)
    path = write(tmp_path / "a.jsonl", "\n".join(lines()))
    assert sum(map(len, tables(path, schema))) == ROWS
    items = read(path, schema, "read_columns")
    assert items == read(path, schema, "read")
    assert {type(item) for item in items} == {dict if is_dict else schema}
    assert [type(value) for value in (items[0].values() if is_dict else [])] == (
        [str, int, float, bool] if is_dict else []
    )


def test_names_that_python_has_no_fields_for_are_not_for_columns(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"a b":1,"class":2}\n' * ROWS)
    schema = pa.schema({"a b": pa.int64(), "class": pa.int64()})
    assert tables(path, schema) == []
    assert read(path, schema, "read_columns") == [{"a b": 1, "class": 2}] * ROWS


ODD = [
    '{"user":"a","cents":1.0,"weight":1,"is_paid":true}',
    '{"user":"a","cents":1,"weight":2,"is_paid":null}',
    '{"user":"a","cents":1,"weight":1e400,"is_paid":true}',
    '{"user":"a","cents":1,"weight":NaN,"is_paid":true}',
    '{"user":"a","cents":9223372036854775808,"weight":1,"is_paid":true}',
    '{"user":"a","cents":1,"weight":1}',
    '{"user":5,"cents":1,"weight":1,"is_paid":true}',
    '{"user":"a","cents":"1","weight":1,"is_paid":true}',
    '{"user":"a","user":"b","cents":1,"weight":1,"is_paid":true}',
    '{"user":"\\ud800","cents":1,"weight":1,"is_paid":true}',
    '{"user":"a\\u0000b","cents":-0,"weight":-0.0,"is_paid":false}',
    '{"user":"a","cents":1,"weight":1,"is_paid":true}{"user":"a"}',
    '{"user":"a","cents":1,"weight":1,"is_paid":true,}',
    '{"user":"a","cents":01,"weight":1,"is_paid":true}',
    '[{"user":"a"}]',
    ' {"user":"a","cents":1,"weight":1,"is_paid":true} ',
    '{"user":"a","cents":1,\n"weight":1,"is_paid":true}',
    "{}",
    "",
    "null",
    "\r",
    '{"us\\u0065r":"a","cents":1,"weight":0.1e1,"is_paid":true,"more":{"user":[1,null]}}',
]


@settings(deadline=None)
@given(
    odd=st.lists(st.sampled_from(ODD), max_size=3),
    seed=st.integers(0, 999),
    end=st.sampled_from(["", "\n", "\n\n"]),
    weights=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5),
)
def test_odd_lines_are_dealt_with_as_one_by_one(tmp_path_factory, odd, seed, end, weights):
    chance = random.Random(seed)
    given_lines = lines()
    for i, weight in enumerate(weights):
        given_lines[i * 50] = json.dumps({**order(i), "weight": weight}, separators=(",", ":"))
    for line in odd:
        given_lines[chance.randrange(ROWS)] = line
    path = write(tmp_path_factory.mktemp("odd") / "a.jsonl", "\n".join(given_lines) + end)

    found = [read(path, OrderClass, each, on_error="skip") for each in ("read_columns", "read")]
    assert list(map(repr, found[0])) == list(map(repr, found[1]))


def test_the_line_of_an_error_is_told_behind_lines_that_were_columns(tmp_path):
    many = lines(20_000)
    many[17_000] = "{"
    path = write(tmp_path / "a.jsonl", "\n".join(many))

    with pytest.raises(BadRecordError, match="line 17001 is not a OrderClass"):
        read(path, OrderClass, "read_columns")


def test_stages_get_columns(tmp_path):
    path = write(tmp_path / "a.jsonl", "\n".join(lines()))
    for schema in (Order, OrderClass):
        p, out = Pipeline("orders"), sinks.collect()
        paid = p.read_from(sources.json_lines(path, schema=schema)).filter(col("is_paid"))
        paid.grouping_key(it.user).aggregate(agg.summing(it.cents)).write_to(out)
        p.run(on="embedded")
        wanted = {}
        for i in range(0, ROWS, 2):
            wanted[order(i)["user"]] = wanted.get(order(i)["user"], 0) + i
        assert dict(out.items) == wanted


def test_what_fails_behind_columns_is_an_object_of_the_schema(tmp_path):
    path = write(tmp_path / "a.jsonl", "\n".join(lines()))
    p = Pipeline("orders")
    stage = p.read_from(sources.json_lines(path, schema=OrderClass))
    stage.map(100 // (it.cents - 250)).write_to(sinks.noop())

    with pytest.raises(JobFailedError, match="division") as caught:
        p.run(on="embedded")

    assert caught.value.item.startswith("OrderClass(user='u5")


@dataclass
class Optional:
    a: int | None
    b: str | None = None
    c: float = 0.5


def test_fields_may_be_null_or_not_there(tmp_path):
    text = '{"a":1,"b":"x","c":2}\n{"a":null}\n' * ROWS
    path = write(tmp_path / "a.jsonl", text)
    assert sum(map(len, tables(path, Optional))) == 2 * ROWS
    assert read(path, Optional, "read_columns") == read(path, Optional, "read")


class Renamed(msgspec.Struct, rename="camel"):
    two_words: int


def test_fields_may_have_other_names_in_the_file(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"twoWords":3}\n' * ROWS)
    assert sum(map(len, tables(path, Renamed))) == ROWS
    assert read(path, Renamed, "read_columns") == [Renamed(3)] * ROWS


class Loose(TypedDict):
    a: int
    b: NotRequired[int]


@dataclass
class Checked:
    a: int

    def __post_init__(self):
        self.a += 1


class Positive(TypedDict):
    a: Annotated[int, msgspec.Meta(gt=0)]


class ByName(msgspec.Struct, kw_only=True):
    a: int


@pytest.mark.parametrize("schema", [Loose, Checked, Positive, ByName])
def test_schemas_that_are_more_than_columns_are_not_for_columns(tmp_path, schema):
    text = '{"a":1,"b":3}\n' * ROWS
    path = write(tmp_path / "a.jsonl", text)
    assert tables(path, schema) == []
    assert read(path, schema, "read_columns") == read(path, schema, "read")


def outcome(p):
    try:
        p.run(on="embedded")
    except JobFailedError as error:
        return str(error).partition("OrderClass(")[0]
    return None


@pytest.mark.parametrize("kind", ["csv", "json_lines", "parquet"])
@pytest.mark.parametrize("schema", [OrderClass, OrderStruct])
def test_objects_are_written_as_objects(tmp_path, schema, kind):
    path = write(tmp_path / "a.jsonl", "\n".join(lines()))
    options = {"default": repr} if kind == "json_lines" else {}
    found = []
    for name, step in (("columns", it), ("items", lambda item: item)):
        p = Pipeline("objects")
        stage = p.read_from(sources.json_lines(path, schema=schema)).map(step)
        stage.write_to(getattr(sinks, kind)(tmp_path / name, **options))
        said = outcome(p)
        parts = sorted((tmp_path / name).glob("part-*"))
        found.append((said and said[:20]) or [part.read_bytes() for part in parts])
    assert found[0] == found[1]


def test_objects_stay_what_they_are_within_others(tmp_path):
    path = write(tmp_path / "a.jsonl", "\n".join(lines()))
    p, out = Pipeline("objects"), sinks.collect()
    orders = p.read_from(sources.json_lines(path, schema=OrderClass))
    orders.map(record(order=it)).filter(it.order.cents == 7).write_to(out)
    p.run(on="embedded")
    assert [type(item["order"]) for item in out.items] == [OrderClass]

    q = Pipeline("tables")
    q.read_from(sources.json_lines(path, schema=OrderClass)).map_table(lambda t: t).write_to(out)
    with pytest.raises(JobFailedError, match="takes items that are dicts, not OrderClass"):
        q.run(on="embedded")
