from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import pathlib
import pickle
import uuid
from dataclasses import dataclass
from typing import NamedTuple, NotRequired, TypedDict

import cloudpickle
import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetlet import Pipeline, sinks, sources
from jetlet.connectors.files import jsonl
from jetlet.errors import BadRecordError, InvalidArgumentError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=30), st.integers(1, 100), st.integers(1, 5))
def test_values_come_back_as_they_were_written(
    scratch, read_all, write_all, values, split_size, target
):
    write_all(sinks.json_lines(scratch / "values"), values)
    source = sources.json_lines(scratch / "values", split_size=split_size)
    assert read_all(source, target) == values


# Lines that are JSON only together with their neighbours, or are several values in one.
FRAGMENTS = st.sampled_from(
    [
        *("1", '"x"', "{}", '{"a":1}', " 7 ", "NaN", "", "  "),
        *("1,2", "1 2", "[3", "4]", '{"a":[1', "2]}", "[", "]", ",", "nul", '"', '"\\'),
    ]
)


@given(st.lists(FRAGMENTS, min_size=1, max_size=6))
@example(["1,2", "[3", "4]"])
@example(["1,2,3", "[3", "4]"])
@example(['{"a":[1', "2]}", "1,2"])
@example(["", "1,2"])
def test_lines_parsed_together_are_judged_one_by_one(lines):
    try:
        singly = [json.loads(line) for line in lines]
    except ValueError:
        singly = None
    assert repr(jsonl._parse_together(lines)) == repr(singly)


def test_blank_lines_are_skipped(tmp_path, read_all):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \t\n[2] \n\n null')
    assert read_all(sources.json_lines(path)) == [{"a": 1}, [2], None]


@pytest.mark.parametrize("split_size", [None, 100])
def test_bad_line_fails_with_file_and_line(tmp_path, read_all, split_size):
    path = tmp_path / "x.jsonl"
    good = '{"ä": 1}\r\n' * 1000
    path.write_bytes((good + "{'b': 2}\n").encode())
    expected = r"x\.jsonl: line 1001 is not JSON: Expecting .* at column 2: .*'b'"
    with pytest.raises(BadRecordError, match=expected):
        read_all(sources.json_lines(path, split_size=split_size))


def test_two_values_on_a_line_are_refused(tmp_path, read_all):
    path = tmp_path / "x.jsonl"
    path.write_text('1\n{"a": 1} {"b": 2}\n')
    with pytest.raises(BadRecordError, match="line 2 is not JSON: Extra data at column 10:"):
        read_all(sources.json_lines(path))


def test_deeply_nested_line_is_refused_not_fatal(tmp_path, read_all):
    path = tmp_path / "x.jsonl"
    path.write_text("[" * 100_000 + "]" * 100_000 + "\n")
    with pytest.raises(BadRecordError, match="line 1 "):
        read_all(sources.json_lines(path))


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Inner:
    when: dt.date


@dataclass
class Outer:
    inner: Inner
    tags: list[str]


class Pair(NamedTuple):
    key: str
    result: int


@pytest.mark.parametrize(
    ("item", "line"),
    [
        (("a", 1), '["a", 1]'),
        (Pair("a", 1), '{"key": "a", "result": 1}'),
        (
            Outer(Inner(dt.date(2024, 2, 29)), ["x"]),
            '{"inner": {"when": "2024-02-29"}, "tags": ["x"]}',
        ),
        (dt.datetime(2024, 1, 2, 3, 4, tzinfo=dt.UTC), '"2024-01-02T03:04:00+00:00"'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (pathlib.PurePosixPath("a/b"), '"a/b"'),
        (Colour.RED, '"red"'),
        ({"s": {1}}, '{"s": [1]}'),
        ("日本", '"日本"'),
        ("half \ud800", '"half \\ud800"'),
        (None, "null"),
    ],
)
def test_sink_writes_what_python_has(tmp_path, write_all, item, line):
    write_all(sinks.json_lines(tmp_path), [item])
    assert (tmp_path / "part-00000.jsonl").read_bytes() == (line + "\n").encode()


def test_sink_asks_default_for_the_rest(tmp_path, write_all):
    write_all(
        sinks.json_lines(tmp_path, default=lambda value: f"<{value}>"), [b"x", dt.date(1, 1, 1)]
    )
    assert (tmp_path / "part-00000.jsonl").read_text() == '"<b\'x\'>"\n"<0001-01-01>"\n'


@pytest.mark.parametrize("item", [b"bytes", {(1, 2): 3}, object()])
def test_sink_refuses_what_has_no_form(tmp_path, refused_by, item):
    message = refused_by(sinks.json_lines(tmp_path), ["fine", item])
    assert repr(item)[:20] in message and "default=" in message


class Reading(TypedDict):
    at: dt.datetime
    value: float
    note: NotRequired[str]


@dataclass
class Point:
    x: int
    y: int | None = None


class Pair(msgspec.Struct):
    a: decimal.Decimal
    b: list[int]


ARROW = pa.schema(
    {
        "at": pa.timestamp("us", "UTC"),
        "n": pa.list_(pa.int64()),
        "in": pa.struct({"x y": pa.string()}),
    }
)


@pytest.mark.parametrize(
    ("schema", "lines", "items"),
    [
        (
            Reading,
            ['{"value": 1, "at": "2024-05-01T00:00:00Z", "more": 3}', ""],
            [{"value": 1.0, "at": dt.datetime(2024, 5, 1, tzinfo=dt.UTC)}],
        ),
        (Point, ['{"x": 1}', " ", '{"x": 2, "y": 3}'], [Point(1), Point(2, 3)]),
        (Pair, ['{"a": "1.50", "b": []}'], [Pair(decimal.Decimal("1.50"), [])]),
        (
            ARROW,
            ['{"at": "2024-05-01T00:00:00Z", "n": [1, null], "in": {"x y": null}, "more": 3}'],
            [{"at": dt.datetime(2024, 5, 1, tzinfo=dt.UTC), "n": [1, None], "in": {"x y": None}}],
        ),
    ],
)
def test_lines_become_what_a_schema_says(tmp_path, read_all, schema, lines, items):
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, ""]))
    source = pickle.loads(cloudpickle.dumps(sources.json_lines(tmp_path, schema=schema)))

    assert read_all(source, 2) == items
    names = schema.names if schema is ARROW else schema.__annotations__
    assert set(dict(source.item_type().fields)) == set(names)


def test_only_what_may_be_null_by_an_arrow_schema_is(tmp_path, read_all):
    (tmp_path / "a.jsonl").write_text('{"x": null, "y": null}\n')
    x, y = pa.field("x", pa.float64()), pa.field("y", pa.string())
    source = sources.json_lines(tmp_path, schema=pa.schema([x, y]))
    assert read_all(source, 1) == [{"x": None, "y": None}]

    strict = sources.json_lines(tmp_path, schema=pa.schema([x, y.with_nullable(False)]))
    with pytest.raises(BadRecordError, match=r"line 1 is not a Row: .*`str`, got `null`"):
        read_all(strict, 1)


@pytest.mark.parametrize("line", ['{"x": "1"}', "{}", '{"x": 1', "[1]", '{"x":', "null"])
def test_a_line_that_does_not_go_with_the_schema_is_refused(tmp_path, read_all, line):
    (tmp_path / "a.jsonl").write_text(f'{{"x": 1}}\n{line}\n')

    with pytest.raises(BadRecordError, match=r"line 2 is not a Point"):
        read_all(sources.json_lines(tmp_path, schema=Point), 1)

    p, out = Pipeline(), sinks.collect()
    p.read_from(sources.json_lines(tmp_path, schema=Point, on_error="skip")).write_to(out)
    p.run(on="embedded")
    assert out.items == [Point(1)]


@pytest.mark.parametrize("schema", [int, {"x": int}])
def test_what_is_no_schema_is_refused(tmp_path, schema):
    with pytest.raises(InvalidArgumentError, match="schema"):
        sources.json_lines(tmp_path, schema=schema)
