# ruff: noqa: DTZ001, PLW0108, PLW0177, PYI024, RUF005
from __future__ import annotations

import pickle
from collections import namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isnan, nan

import pytest

from jetlet import (
    Pipeline,
    agg,
    col,
    entry_key,
    entry_value,
    it,
    lit,
    record,
    sources,
    when,
    whole_item,
)
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.expressions.expression import node_of
from jetlet.pipeline.expressions.nodes import Literal, walk

ROW = {
    "price": 3,
    "quantity": 4,
    "none": None,
    "text": "  Ab ",
    "at": datetime(2024, 5, 1, 22, 3, 4, 5006, tzinfo=UTC),
    "list": [1, 2],
}

WRITTEN = [
    (col("price") * col("quantity") - (it - 1), 'col("price") * col("quantity") - (it - 1)'),
    ((it["price"] + 1) * -2, '(it["price"] + 1) * -2'),
    (2 ** col("a") ** 3, '2 ** col("a") ** 3'),
    ((2 ** col("a")) ** 3, '(2 ** col("a")) ** 3'),
    (it - 1 - 1, "it - 1 - 1"),
    (it - (it - 1), "it - (it - 1)"),
    (-(it + 1), "-(it + 1)"),
    (record(u=it.price, v=col("n") + 1), 'record(u=it.price, v=col("n") + 1)'),
    (record({"from": it}), "record(from=it)"),
    (record({"a b": it}), 'record({"a b": it})'),
    (
        when(it.a > 1).then("a").when(it.b.is_null()).then(2).otherwise(None),
        'when(it.a > 1).then("a").when(it.b.is_null()).then(2).otherwise(None)',
    ),
    (abs(it - 3).len(), "abs(it - 3).len()"),
    (round(it / 3, 2), "round(it / 3, 2)"),
    (col("x").is_in([1, 1.0, "a"]), 'col("x").is_in([1, 1.0, "a"])'),
    (~(it.a & it.b | it.c), "~(it.a & it.b | it.c)"),
    ((it.a | it.b) & it.c, "(it.a | it.b) & it.c"),
    ((it.a == 1) & (it.b != 2), "(it.a == 1) & (it.b != 2)"),
    (-it.a.b[0]["c"], '-it.a.b[0]["c"]'),
    (it[1:3], "it[1:3]"),
    (it[:3], "it[:3]"),
    (it.cast(int), "it.cast(int)"),
    (it.cast("text").explode(), "it.cast(str).explode()"),
]


@pytest.mark.parametrize(("expression", "text"), WRITTEN, ids=lambda each: str(each)[:30])
def test_shows_itself_as_it_was_written(expression, text):
    assert repr(expression) == text


@pytest.mark.parametrize("expression", [each for each, _ in WRITTEN], ids=str)
def test_travels_and_is_equal_by_structure(expression):
    there = pickle.loads(pickle.dumps(expression))

    assert node_of(there) == node_of(expression)
    assert hash(node_of(there)) == hash(node_of(expression))
    assert repr(there) == repr(expression)


def test_the_item_itself_is_known_by_identity_wherever_it_travels():
    assert whole_item is it
    assert pickle.loads(pickle.dumps(whole_item)) is it


def test_constants_that_python_takes_for_equal_are_different():
    constants = [1, 1.0, True, Decimal(1), 0.0, -0.0, "1", b"1"]

    assert len({Literal(each) for each in constants}) == len(constants)
    assert Literal(nan) == Literal(nan)


def test_all_of_a_tree_can_be_walked():
    tree = node_of(record(a=when(it.x > 1).then(it.y).otherwise(it.z)))

    assert {each.name for each in walk(tree) if hasattr(each, "name")} == {"x", "y", "z"}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (col("price") * col("quantity"), 12),
        (col("price") + col("none"), None),
        (7 - col("price"), 4),
        (7 // lit(-2), -4),
        (lit(-7) % 3, 2),
        (lit(1) / 4, 0.25),
        (it.price**2, 9),
        (abs(-it.price), 3),
        (round(lit(2.5)), 2),
        (round(lit(2.675), 2), 2.67),
        (col("none").fill_null(col("price")), 3),
        (col("price").fill_null(lit(1) / 0), 3),
        (col("none").is_null(), True),
        (col("none") == 1, None),
        (col("none") != 1, None),
        (col("price") == 3.0, True),
        (lit(nan) == nan, False),
        (lit(nan) != nan, True),
        (lit(0.0) == -0.0, True),
        ((it.none > 1) & (it.price > 100), False),
        ((it.none > 1) & (it.price > 1), None),
        ((it.none > 1) | (it.price > 1), True),
        ((it.price > 100) | (it.none > 1), None),
        (~(it.none > 1), None),
        (~(it.price > 1), False),
        ((it.price > 9) & (it.price / 0 > 1), False),
        ((it.price < 9) | (it.price / 0 > 1), True),
        (when(it.none > 1).then(1).otherwise(2), 2),
        (when(it.price > 9).then(it.price / 0).otherwise(2), 2),
        (it.price.is_in([1, 3.0]), True),
        (it.none.is_in([1]), None),
        (lit(nan).is_in([nan]), False),
        (it.price.is_in([]), False),
        (col("text").strip().lower().concat("!", "?"), "ab!?"),
        (col("text").concat(col("none")), None),
        (col("text").len(), 5),
        (lit("ß").upper(), "SS"),
        (lit("x\u2003").strip(), "x"),
        (lit("xax").strip("x"), "a"),
        (lit("a-b-c").replace("-", ""), "abc"),
        (lit("a-b").split("-"), ["a", "b"]),
        (lit(" a  b ").split(), ["a", "b"]),
        (lit("😀b").len(), 2),
        (lit("😀bc")[1:], "bc"),
        (lit("abc").slice(-2), "bc"),
        (col("text").contains("A"), True),
        (col("list").contains(2), True),
        (col("text").startswith(" "), True),
        (col("text").endswith("x"), False),
        (col("list")[-1], 2),
        (col("list").len(), 2),
        (col("none")["a"][0], None),
        (col("at").year(), 2024),
        (col("at").month(), 5),
        (col("at").day(), 1),
        (col("at").hour(), 22),
        (col("at").minute(), 3),
        (col("at").second(), 4),
        (col("at").millisecond(), 5),
        (col("at").microsecond(), 5006),
        (col("at").weekday(), 2),
        (col("at").date(), date(2024, 5, 1)),
        (col("at").epoch_ms(), 1714600984005),
        (lit(datetime(1970, 1, 1, 0, 0, 1)).epoch_ms(), 1000),
        (col("at").at_zone("Asia/Kolkata").day(), 2),
        (col("at") - col("at"), timedelta()),
        (lit("12").cast(int), 12),
        (lit(2.9).cast(int), 2),
        (lit(-2.9).cast(int), -2),
        (lit(1).cast(str), "1"),
        (lit(0).cast(bool), False),
        (lit("1.5").cast(float), 1.5),
        (lit("1.50").cast(Decimal), Decimal("1.50")),
        (lit("2024-05-01").cast(date), date(2024, 5, 1)),
        (lit(date(2024, 5, 1)).cast(datetime), datetime(2024, 5, 1)),
        (record(p=it.price, n=it.none), {"p": 3, "n": None}),
        (it.list.explode(), [1, 2]),
        (it.none.explode(), []),
        (record(p=it.price, e=it.list.explode() * 2), [{"p": 3, "e": 2}, {"p": 3, "e": 4}]),
    ],
    ids=str,
)
def test_is_a_function_of_the_item(expression, value):
    result = expression(ROW)

    assert result == value
    assert type(result) is type(value)


def test_null_is_no_item_to_look_into():
    assert it.price(None) is None
    assert (it + 1)(None) is None
    assert whole_item(None) is None


def test_fields_are_those_of_rows_and_of_objects():
    point = namedtuple("Point", "x y")(1, 2)

    for expression in (col("x"), it.x, it["x"]):
        assert expression({"x": 1}) == 1
        assert expression(point) == 1
    assert (entry_key(("a", 1)), entry_value(("a", 1))) == ("a", 1)


@pytest.mark.parametrize(
    "expression",
    [
        it + 1,
        it * 2,
        it - -1,
        it**2,
        (it - 1) * -2,
        abs(-it - 2),
        -(-it - 2),
        (-it - 1) // -1,
        (it * 1.0).cast(int),
    ],
    ids=str,
)
def test_integers_do_not_leave_64_bits(expression):
    with pytest.raises(OverflowError, match="64 bits"):
        expression(2**63 - 1)


def test_integers_may_be_as_large_as_64_bits():
    assert (it + 1)(2**63 - 2) == 2**63 - 1
    assert (it - 1)(1 - 2**63) == -(2**63)
    assert isnan((it * 2)(nan))


@pytest.mark.parametrize("expression", [1 / it, 1 // it, 1 % it, 1.0 / it, 1.0 // it, it**-1])
def test_division_by_zero_fails(expression):
    for zero in (0, 0.0):
        with pytest.raises(ZeroDivisionError):
            expression(zero)


@pytest.mark.parametrize(
    "expression", [it.lower(), it & True, ~it, it + "a", it.cast(int)], ids=str
)
def test_what_goes_with_other_types_only_fails(expression):
    with pytest.raises(TypeError):
        expression([])


MISTAKES = {
    "a and b": (lambda: it.a and it.b, "write & |"),
    "not": (lambda: not it.a, "write & |"),
    "chain": (lambda: 1 < it < 3, r"\(a < b\) & \(b < c\)"),
    "if": (lambda: 1 if it.a else 2, "when"),
    "iterate": (lambda: [*it], "explode"),
    "in": (lambda: 3 in it, "contains"),
    "len()": (lambda: len(it), r"\.len\(\)"),
    "int()": (lambda: int(it), r"cast\(int\)"),
    "float()": (lambda: float(it), r"cast\(float\)"),
    "a method compared": (lambda: it.date == 3, r"it\.date\(\.\.\.\)"),
    "a method in a sum": (lambda: it.lower + 1, "is a method"),
    "a method in a record": (lambda: record(a=it.date), "is a method"),
    "a method called on": (lambda: it.date.lower(), "is a method"),
    "no such method": (lambda: it.uper(), r"write \.upper"),
    "another's method": (lambda: it.x.trim(), r"write \.strip\(\)"),
    "another's method of two": (lambda: it.between(1, 2), r"write \(x >= low\)"),
    "another's method of one": (lambda: it.isin([1]), r"write \.is_in"),
    "another's method of a text": (lambda: it.x.startsWith("a"), r"write \.startswith"),
    "another's method of a type": (lambda: it.x.astype(int), r"write \.cast"),
    "missing argument": (lambda: it.replace("a"), r"replace\(old, new\)"),
    "None": (lambda: it.a == None, r"is_null\(\)"),  # noqa: E711
    "None among": (lambda: it.a.is_in([None]), r"is_null\(\)"),
    "unfinished when": (lambda: record(a=when(it).then(1)), "otherwise"),
    "unfinished condition": (lambda: record(a=when(it)), "then"),
    "a function inside": (lambda: record(a=len), "lambda"),
    "a list": (lambda: it + [1], "constants"),
    "no condition": (lambda: when(it.year()).then(2), "comparison"),
    "wrong constant": (lambda: lit("a") - 1, "two numbers"),
    "text of a truth": (lambda: (it > 1).lower(), "text"),
    "no slice": (lambda: it.slice("a"), "whole numbers"),
    "steps": (lambda: it[::2], "without steps"),
    "a key of another kind": (lambda: it[1.5], "name of a field"),
    "no zone": (lambda: it.at_zone("Mars"), "Europe/Berlin"),
    "no type": (lambda: it.cast("word"), "cast takes"),
    "empty col": (lambda: col(""), "name of a field"),
    "empty record": (record, "no fields"),
    "call": (lambda: (it + 1)(), "an item"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_where_it_is_made(name):
    mistake, hint = MISTAKES[name]

    with pytest.raises(InvalidArgumentError, match=hint):
        mistake()


def test_an_unknown_method_of_what_is_no_path_is_no_field():
    with pytest.raises(AttributeError, match=r"write \.upper"):
        col("x").uper  # noqa: B018
    assert not hasattr(it, "_repr_html_")
    assert it.name({"name": 1}) == 1


def test_a_record_without_names_is_a_tuple():
    expression = record(it.price, it.none, 1)

    assert expression(ROW) == (3, None, 1)
    assert repr(expression) == "record(it.price, it.none, 1)"
    with pytest.raises(InvalidArgumentError, match="with names"):
        record(it.price, user=1)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda stage: stage.map(it.lower), "is a method"),
        (lambda stage: stage.filter(when(it > 1).then(2)), "otherwise"),
        (lambda stage: stage.map(it.tags.explode()), r"write \.flat_map\(it\.tags\.explode\(\)\)"),
        (lambda stage: stage.grouping_key(it.tags.explode()), "several results"),
        (lambda stage: stage.aggregate(agg.summing(it.tags.explode())), "several results"),
        (lambda stage: stage.flat_map(record(it.a.explode(), it.b.explode())), "two lists"),
    ],
)
def test_a_stage_takes_what_has_one_result(write, message):
    with pytest.raises(InvalidArgumentError, match=message):
        write(Pipeline().read_from(sources.items([])))


def test_an_error_names_the_expression():
    with pytest.raises(KeyError) as caught:
        (col("price") * 2)({})

    assert caught.value.__notes__ == ['in the expression col("price") * 2']
    assert caught.value.__context__ is None
