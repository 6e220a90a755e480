"""Queries as sources: each row once, however it is split and wherever reading goes on."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import Pipeline, sinks, sources
from jetlet.connectors.sql.database import SqlDatabase
from jetlet.connectors.sql.source import _between
from jetlet.errors import InvalidArgumentError, ServerUnreachableError
from jetlet.pipeline.source import SplitRest

COUNT = 5000


class Database:
    def __init__(self, url):
        self.url = url
        self.engine = SqlDatabase.of("test", url).engine()
        self.run("CREATE TABLE sales (id INTEGER, shop INTEGER, price FLOAT)")
        for start in range(0, COUNT, 500):
            values = ", ".join(f"({n}, {n % 7}, {n / 4})" for n in range(start, start + 500))
            self.run(f"INSERT INTO sales VALUES {values}")
        self.run("INSERT INTO sales VALUES (NULL, NULL, 1.5), (NULL, 1, NULL)")

    def run(self, statement):
        from sqlalchemy import text

        with self.engine.begin() as connection:
            connection.execute(text(statement))


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    if request.param == "sqlite":
        made = Database(f"sqlite:///{tmp_path}/test.db")
    else:
        made = Database(request.getfixturevalue("postgres").database())
    yield made
    made.engine.dispose()


def read(source, target=4):
    return [row for split in source.splits(target) for batch in source.read(split) for row in batch]


def bag(rows):
    return Counter(tuple(sorted(row.items(), key=lambda pair: pair[0])) for row in rows)


def everything():
    rows = [{"id": n, "shop": n % 7, "price": n / 4} for n in range(COUNT)]
    nulls = [{"id": None, "shop": None, "price": 1.5}, {"id": None, "shop": 1, "price": None}]
    return bag([*rows, *nulls])


@pytest.mark.parametrize("column", [None, "id", "shop", "price"])
@pytest.mark.parametrize("target", [1, 3, 16])
def test_each_row_comes_once(database, column, target):
    source = sources.sql(database.url, "SELECT * FROM sales", split_by=column)
    assert bag(read(source, target)) == everything()
    if column is not None and target > 1:
        assert len(source.splits(target)) > 2


@pytest.mark.parametrize("column", ["id", "shop"])
def test_goes_on_behind_each_batch(database, column):
    source = sources.sql(database.url, "SELECT id, shop FROM sales WHERE id >= 0", split_by=column)
    for split in source.splits(3):
        whole = [row for batch in source.read(split) for row in batch]
        position = 0
        for batch in source.read(split):
            assert isinstance(batch, SplitRest)
            position += len(batch)
            rest = [row for part in source.read(batch.rest) for row in part]
            assert bag(rest) == bag(whole[position:])


def test_parameters_and_semicolons_are_fine(database):
    query = "SELECT id AS n FROM sales WHERE shop = :shop ;"
    for column in (None, "n"):
        source = sources.sql(database.url, query, parameters={"shop": 3}, split_by=column)
        assert sorted(row["n"] for row in read(source)) == list(range(3, COUNT, 7))


def test_query_without_rows_gives_none(database):
    for column in (None, "id"):
        query = "SELECT * FROM sales WHERE id < 0"
        assert read(sources.sql(database.url, query, split_by=column)) == []


def test_times_are_split_too(postgres):
    made = Database(postgres.database())
    made.run("CREATE TABLE visits (at TIMESTAMP WITH TIME ZONE, day DATE)")
    made.run(
        "INSERT INTO visits SELECT TIMESTAMPTZ '2026-01-01 00:00:00+00' + n * INTERVAL '1 hour', "
        "DATE '2026-01-01' + n / 24 FROM generate_series(0, 499) AS n"
    )
    for column in ("at", "day"):
        source = sources.sql(made.url, "SELECT * FROM visits", split_by=column)
        rows = read(source, 5)
        assert len(source.splits(5)) == 5
        first = datetime(2026, 1, 1, tzinfo=UTC)
        assert sorted(row["at"] for row in rows) == [first + timedelta(hours=n) for n in range(500)]
    made.engine.dispose()


def test_as_a_pipeline(database):
    p, out = Pipeline("sql"), sinks.collect()
    source = sources.sql(database.url, "SELECT id FROM sales WHERE id >= 0", split_by="id")
    p.read_from(source).map(lambda row: row["id"]).sort().write_to(out)
    p.run(on="embedded", workers=2)
    assert out.items == list(range(COUNT))


def test_mistakes_say_what_to_write(database):
    text_column = "SELECT id, 'x' AS word FROM sales"
    with pytest.raises(InvalidArgumentError, match="numbers or times"):
        sources.sql(database.url, text_column, split_by="word").splits(2)
    with pytest.raises(InvalidArgumentError, match="write a query"):
        sources.sql(database.url, " ")
    with pytest.raises(InvalidArgumentError, match="name of a column"):
        sources.sql(database.url, "SELECT 1", split_by=3)
    with pytest.raises(InvalidArgumentError, match="write a dict"):
        sources.sql(database.url, "SELECT 1", parameters=[1])
    with pytest.raises(ServerUnreachableError, match="nothing"):
        read(sources.sql(database.url, "SELECT nothing FROM sales"))
    with pytest.raises(ServerUnreachableError, match="no_such"):
        sources.sql(database.url, "SELECT id FROM sales", split_by="no_such").splits(2)


BOUNDS = st.one_of(
    st.tuples(st.integers(), st.integers()),
    st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)),
    st.tuples(st.dates(), st.dates()),
    st.tuples(st.datetimes(), st.datetimes()),
    st.tuples(st.decimals(-1000, 1000, places=2), st.decimals(-1000, 1000, places=2)),
)


@given(BOUNDS, st.integers(1, 9))
def test_ranges_cover_everything_without_overlap(bounds, count):
    low, high = min(bounds), max(bounds)
    found = _between(low, high, count)
    assert found == sorted(set(found))
    assert len(found) < count
    assert all(low < each < high for each in found)
    if isinstance(low, int | Decimal) and high - low > 100 * count:
        assert len(found) == count - 1


def test_a_range_of_days_is_split_by_days():
    assert _between(date(2026, 1, 1), date(2026, 1, 5), 2) == [date(2026, 1, 3)]
