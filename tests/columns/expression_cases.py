"""Random expressions over random columns, and what Python gives for them, to compare others with.

A case is one expression and one row. As a program it runs many, over Arrow or also on Spark::

    python tests/columns/expression_cases.py 1000000 [seed] [--spark]
"""

from __future__ import annotations

import datetime as dt
import math
import random
import sys
from decimal import Decimal

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jetlet import col, it, lit, record, when
from jetlet.columns.arrow import can_compile, evaluate, tree_of
from jetlet.columns.kernels import LeaveToPython
from jetlet.core.table import VALUE, Table
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.expressions.python_source import exact_function_of, function_of
from jetlet.spark.catalyst.expressions import LeaveToPython as LeftToPython
from jetlet.spark.catalyst.expressions import Value, compiled, row_of
from jetlet.spark.launch.versions import arrow_batches

EXTREMES = [0, 1, -1, 2, 3, -7, 10, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.5, 0.1, 1e308, math.inf, -math.inf, math.nan]
LETTERS = "aAbß\u0130\u03c3\u03a3 é\x1c\u2003z\U0001f600"


def _integer(chance):
    return chance.choice(EXTREMES) if chance.random() < 0.4 else chance.randint(-100, 100)


def _float(chance):
    return chance.choice(FLOATS) if chance.random() < 0.4 else chance.uniform(-100, 100)


def _text(chance):
    return "".join(chance.choices(LETTERS, k=chance.randint(0, 6)))


def _truth(chance):
    return chance.random() < 0.5


def _moment(chance):
    microseconds = chance.randrange(200 * 366 * 86_400 * 10**6)
    return dt.datetime(1900, 1, 1) + dt.timedelta(microseconds=microseconds)  # noqa: DTZ001


def _instant(chance):
    return _moment(chance).replace(tzinfo=dt.UTC)


def _day(chance):
    return dt.date(1700, 1, 1) + dt.timedelta(chance.randrange(400 * 366))


def _decimal(chance):
    return Decimal(chance.choice([0, 1, -1, 10**9, chance.randint(-(10**6), 10**6)])).scaleb(-2)


def _struct(chance):
    return {"x": _integer(chance), "y": _text(chance) if chance.random() < 0.8 else None}


def _list(chance):
    return [_integer(chance) for _ in range(chance.randint(1, 3))]


TYPES = {
    "i": (_integer, pa.int64()),
    "j": (_integer, pa.int64()),
    "small": (lambda chance: chance.randint(-128, 127), pa.int8()),
    "f": (_float, pa.float64()),
    "g": (_float, pa.float64()),
    "s": (_text, pa.string()),
    "t": (_text, pa.large_string()),
    "b": (_truth, pa.bool_()),
    "c": (_truth, pa.bool_()),
    "at": (_moment, pa.timestamp("us")),
    "day": (_day, pa.date32()),
    "u": (lambda chance: abs(_integer(chance)), pa.uint64()),
    "h": (lambda chance: chance.randint(-100, 100) / 8, pa.float32()),
    "ms": (lambda chance: _moment(chance).replace(microsecond=5000), pa.timestamp("ms")),
    "utc": (_instant, pa.timestamp("us", "UTC")),
    "local": (_instant, pa.timestamp("us", "Europe/Berlin")),
    "d": (_decimal, pa.decimal128(14, 2)),
    "row": (_struct, pa.struct({"x": pa.int64(), "y": pa.string()})),
    "list": (_list, pa.list_(pa.int64())),
}


def random_batch(number, size):
    """A batch of rows with every type of column, a fifth of it null."""
    chance = random.Random(number)
    return pa.record_batch(
        {
            name: pa.array(
                [None if chance.random() < 0.2 else make(chance) for _ in range(size)], kind
            )
            for name, (make, kind) in TYPES.items()
        }
    )


def built(fallback, make, *of):
    """What ``make`` gives of expressions, unless they do not go together, which is refused."""

    def attempt(*given):
        try:
            return make(*given)
        except InvalidArgumentError:
            return fallback

    return st.builds(attempt, *of)


def numbers(depth):
    leaf = st.sampled_from([col("i"), col("j"), col("small"), col("f"), col("g"), col("b")])
    leaf |= st.sampled_from([lit(0), lit(1), lit(3), lit(-7), lit(2**62), lit(0.5), lit(True)])
    leaf |= st.sampled_from(
        [
            col("s").len(),
            col("at").year(),
            col("at").microsecond(),
            col("at").epoch_ms(),
            col("at").weekday(),
            col("day").year(),
            col("day").month(),
            col("day").day(),
            col("day").weekday(),
        ]
    )
    leaf |= st.sampled_from(
        [
            col("u"),
            col("h"),
            col("d"),
            it.row.x,
            col("list")[0],
            col("list")[1],
            col("list")[-1],
            col("list").len(),
            col("local").hour(),
            col("local").day(),
            col("utc").epoch_ms(),
            col("ms").millisecond(),
            col("utc").second(),
            lit(Decimal("0.5")),
            lit(-(2**63)),
            lit(float("nan")),
            lit(-0.0),
        ]
    )
    if depth == 0:
        return leaf
    inner = numbers(depth - 1)
    return (
        leaf
        | built(col("i"), lambda a: a.len(), texts(depth - 1))
        | built(col("i"), lambda a: a.cast(int), texts(depth - 1))
        | built(col("i"), lambda a: a.cast(int), truths(depth - 1))
        | built(col("i"), lambda a: a.cast(Decimal), inner)
        | built(col("i"), round, inner)
        | built(col("i"), round, inner, st.integers(-2, 3))
        | built(col("i"), lambda a, power: a**power, inner, st.sampled_from([-1, 0, 2, 0.5]))
        | built(col("i"), lambda a, b: a + b, inner, inner)
        | built(col("i"), lambda a, b: a - b, inner, inner)
        | built(col("i"), lambda a, b: a * b, inner, inner)
        | built(col("i"), lambda a, b: a / b, inner, inner)
        | built(col("i"), lambda a, b: a // b, inner, inner)
        | built(col("i"), lambda a, b: a % b, inner, inner)
        | built(col("i"), lambda a: -a, inner)
        | built(col("i"), abs, inner)
        | built(col("i"), lambda a, b: a.fill_null(b), inner, inner)
        | built(col("i"), lambda a: a.cast(int), inner)
        | built(col("i"), lambda a: a.cast(float), inner)
        | built(
            col("i"), lambda c, a, b: when(c).then(a).otherwise(b), truths(depth - 1), inner, inner
        )
    )


def truths(depth):
    leaf = st.sampled_from([col("b"), col("c"), col("i").is_null(), col("s").is_in(["a", "b"])])
    leaf |= st.sampled_from([col("i").is_in([1, 2**62]), col("s").startswith("a")])
    leaf |= st.sampled_from([col("t").contains("ß"), col("s") < col("t"), col("s") == "a"])
    leaf |= st.sampled_from([col("i") == col("f"), col("s").endswith("A"), col("i").cast(bool)])
    leaf |= st.sampled_from([col("day") < dt.date(1970, 1, 1), col("f") <= col("g")])
    leaf |= st.sampled_from([col("small") > col("f"), col("f").cast(bool), col("f") != 0.5])
    leaf |= st.sampled_from([col("d") > 1, col("utc") < col("local"), col("at") <= col("ms")])
    leaf |= st.sampled_from([col("list").contains(1), it.row.y == "a", col("row").is_null()])
    if depth == 0:
        return leaf
    inner, number, text = truths(depth - 1), numbers(depth - 1), texts(depth - 1)
    return (
        leaf
        | built(col("b"), lambda a, b: a & b, inner, inner)
        | built(col("b"), lambda a, b: a | b, inner, inner)
        | built(col("b"), lambda a: ~a, inner)
        | built(col("b"), lambda a: a.is_null(), number)
        | built(col("b"), lambda a, b: a < b, number, number)
        | built(col("b"), lambda a, b: a >= b, number, number)
        | built(col("b"), lambda a, b: a != b, number, number)
        | built(col("b"), lambda a, b: a == b, number, number)
        | built(col("b"), lambda a, b: a == b, text, text)
        | built(col("b"), lambda a, b: a < b, text, text)
        | built(col("b"), lambda a, part: a.startswith(part), text, pieces)
        | built(col("b"), lambda a, part: a.endswith(part), text, pieces)
        | built(col("b"), lambda a, part: a.contains(part), text, pieces)
        | built(col("b"), lambda a, some: a.is_in(some), number, st.lists(constants, max_size=3))
        | built(col("b"), lambda a, some: a.is_in(some), text, st.lists(pieces, max_size=3))
    )


constants = st.sampled_from([0, 1, 3, -7, 2**53 + 1, 2**63 - 1, 0.5, -0.0, math.nan, True, None])
pieces = st.sampled_from(["a", "A", "ß", "\u0130", "\x1c", " ", "bb", ""])


def texts(depth):
    leaf = st.sampled_from([col("s"), col("t"), it.row.y, lit("aB"), col("i").cast(str)])
    if depth == 0:
        return leaf
    inner, number = texts(depth - 1), numbers(depth - 1)
    places = st.none() | st.integers(-3, 4)
    return (
        leaf
        | built(col("s"), lambda a: a.upper(), inner)
        | built(col("s"), lambda a: a.lower(), inner)
        | built(col("s"), lambda a: a.strip(), inner)
        | built(col("s"), lambda a, some: a.strip(some), inner, pieces)
        | built(col("s"), lambda a, old, new: a.replace(old, new), inner, pieces, pieces)
        | built(col("s"), lambda a, start, stop: a[start:stop], inner, places, places)
        | built(col("s"), lambda a, b: a + b, inner, inner)
        | built(col("s"), lambda a, b: a.concat("-", b), inner, inner)
        | built(col("s"), lambda a, b: a.fill_null(b), inner, inner)
        | built(col("s"), lambda a: a.cast(str), number)
        | built(
            col("s"), lambda c, a, b: when(c).then(a).otherwise(b), truths(depth - 1), inner, inner
        )
    )


whole = st.builds(lambda a, b, c: record(a=a, b=b, c=c), numbers(1), truths(1), texts(1))
pairs = st.builds(record, numbers(1), texts(1))
expressions = numbers(2) | truths(2) | texts(2) | whole | pairs
batches = st.integers(0, 2**32)
"""Numbers of random batches."""


def exactly(value):
    """Told apart by type, and -0.0 from 0.0, while a NaN is like another."""
    return type(value), repr(value)


class Failed:
    """Stands for what has no value."""


def expected(expression, items):
    """What an expression means for each item."""
    function = exact_function_of(tree_of(expression))
    found = []
    for item in items:
        try:
            found.append(function(item))
        except Exception:
            found.append(Failed)
    return found


def check_python(expression, items, wanted):
    """The fast function gives the same, or fails where the exact one does."""
    function = function_of(tree_of(expression))
    for item, value in zip(items, wanted, strict=True):
        try:
            found = function(item)
        except Exception:
            found = Failed
        assert exactly(found) == exactly(value), (expression, item)


def check_columns(expression, table, wanted):
    """Columns give the same, or leave it to Python, as they have to where anything fails.

    False if they have left it.
    """
    tree = tree_of(expression)
    if not can_compile(tree):
        return False
    try:
        found = evaluate(tree, table)
    except (LeaveToPython, pa.ArrowException, OverflowError):
        return False
    assert list(map(exactly, found.items())) == list(map(exactly, wanted)), expression
    return True


def spark_frame(session, batch):
    """The rows of a batch, numbered, as a DataFrame."""
    kinds = {
        "int64": "long",
        "int8": "byte",
        "double": "double",
        "string": "string",
        "large_string": "string",
        "bool": "boolean",
        "date32[day]": "date",
    }
    fields = [field for field in batch.schema if str(field.type) in kinds]
    schema = ", ".join(f"{field.name} {kinds[str(field.type)]}" for field in fields)
    columns = [batch.column(field.name).to_pylist() for field in fields]
    rows = list(zip(range(len(batch)), *columns, strict=True))
    return session.createDataFrame(rows, f"number long, {schema}")


def check_spark(frame, expressions, wanted):
    """Spark gives the same, or knows for which rows Python fails; how many it was not asked."""
    row = row_of(frame.schema)
    selected, asked = [], {}
    for number, expression in enumerate(expressions):
        try:
            found = compiled(tree_of(expression), row)
        except LeftToPython:
            continue
        # A record and a tuple are several columns.
        parts, form = ([found], VALUE) if isinstance(found, Value) else (found.values, found.form)
        parts = list(parts)
        asked[number] = form, len(parts)
        for i, part in enumerate(parts):
            selected.append(part.column.alias(f"v{number}_{i}"))
            if part.bad is not None:
                selected.append(part.bad.alias(f"b{number}_{i}"))
    found = pa.Table.from_batches(list(arrow_batches(frame.select("number", *selected))))
    found = found.sort_by("number")
    for number, (form, width) in asked.items():
        columns = [found.column(f"v{number}_{i}").to_pylist() for i in range(width)]
        values = form.items(columns, len(found))
        names = {f"b{number}_{i}" for i in range(width)} & set(found.schema.names)
        flags = [found.column(name).to_pylist() for name in names]
        bad = [any(each) for each in zip(*flags, strict=True)] or [False] * len(values)
        given = [Failed if fails else value for value, fails in zip(values, bad, strict=True)]
        pairs = zip(map(exactly, given), map(exactly, wanted[number]), strict=True)
        wrong = [(i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1]]
        assert not wrong, (expressions[number], wrong[:3])
    return len(expressions) - len(asked)


ROWS, EXPRESSIONS = 250, 40
"""Of one example of a long run."""


def main(arguments):
    """Run many cases, and print how many there were."""
    count, *rest = [int(each) for each in arguments if not each.startswith("-")]
    tally = dict.fromkeys(["cases", "in columns", "in Spark"], 0)
    session = None
    if "--spark" in arguments:
        from jetlet import SparkEngine

        session = SparkEngine("local[2]").session

    @seed(rest[0] if rest else random.SystemRandom().randrange(2**32))
    @settings(
        max_examples=-(-count // (ROWS * EXPRESSIONS)),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(batches, st.lists(expressions, min_size=EXPRESSIONS, max_size=EXPRESSIONS))
    def run(number, chosen):
        batch = random_batch(number, ROWS)
        table = Table.of(batch)
        wanted = [expected(each, table.items()) for each in chosen]
        for expression, values in zip(chosen, wanted, strict=True):
            check_python(expression, table.items(), values)
            tally["cases"] += ROWS
            # A row that fails leaves all of a batch to Python: those that do not are tried alone.
            good = [i for i, value in enumerate(values) if value is not Failed]
            part = table.take(pa.array(good, pa.int64()))
            if good and check_columns(expression, part, [values[i] for i in good]):
                tally["in columns"] += len(good)
        if session is not None:
            left = check_spark(spark_frame(session, batch), chosen, wanted)
            tally["in Spark"] += ROWS * (len(chosen) - left)

    run()
    print(", ".join(f"{value:,} {name}" for name, value in tally.items()), "and no difference")


if __name__ == "__main__":
    main(sys.argv[1:])
