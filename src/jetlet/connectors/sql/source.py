"""The rows of a query as a bounded source, read by several readers at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from jetlet.connectors.sql.database import SqlDatabase, text_of
from jetlet.core.arguments import check_count, check_name, shortened
from jetlet.errors import InvalidArgumentError, ServerUnreachableError
from jetlet.pipeline.source import BATCH_SIZE, BatchSource, SplitRest

if TYPE_CHECKING:
    from sqlalchemy import Connection, Result, TextClause

PREFERRED_READERS: Final = 4
"""Readers per member, if nobody says otherwise: the database is shared with others."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SqlSplit:
    """Rows whose column has a value in a range; all rows, if there is no column to split by."""

    low: Any = None
    has_low: bool = True
    """Whether ``low`` itself is among the values."""
    high: Any = None
    has_high: bool = True
    is_null: bool = False
    """The rows without a value."""


class SqlSource(BatchSource[Row]):
    """The rows of a query, each a dict by column.

    ``query`` is a SELECT, with ``parameters`` for its ``:names``; ``url`` and ``settings`` are as
    for ``sinks.sql``. With ``split_by``, a column of the result that has numbers or times, ranges
    of it are read in parallel: an index on the column helps. Rows come from a cursor of the server,
    some at a time.

    Each range is read by itself, so a table that is written to meanwhile is not seen as of one
    moment. After a restart reading goes on behind the values that were done; without ``split_by``
    as many rows are skipped, so let the query have an ORDER BY if the job takes snapshots. Needs
    ``pip install 'jetlet[sql]'``.
    """

    is_blocking = True

    def __init__(
        self,
        url: str,
        query: str,
        *,
        split_by: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> None:
        what = "sources.sql"
        self._database = SqlDatabase.of(what, url, settings)
        given: Any = query
        if not isinstance(given, str) or not given.strip():
            raise InvalidArgumentError(
                f"{what}: {given!r}: write a query, such as 'SELECT id, name FROM people'"  # noqa: S608
            )
        column: Any = split_by
        if column is not None and (not isinstance(column, str) or not column):
            raise InvalidArgumentError(
                f"{what}: split_by={split_by!r}: write the name of a column of the result that has "
                "numbers or times"
            )
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidArgumentError(
                f"{what}: parameters={shortened(parameters)}: write a dict for the :names of the "
                "query"
            )
        self._query = given.strip().rstrip(";")
        self._column = split_by
        self._parameters = dict(parameters or {})
        self.name = check_name(what, name) or "sql-source"
        self.preferred_local_parallelism = check_count(
            f"{what}: local_parallelism", local_parallelism
        ) or (1 if split_by is None else PREFERRED_READERS)

    def splits(self, target: int) -> Sequence[SqlSplit]:
        if self._column is None:
            return [SqlSplit()]
        column = self._column
        with self._database.connected() as connection:
            quoted = _quoted(connection, column)
            # The query is what its user wrote to be run.
            asked = (
                f"SELECT min(q.{quoted}), max(q.{quoted}), count(*) - count(q.{quoted}) "  # noqa: S608
                f"FROM ({self._query}) q"
            )
            low, high, nulls = tuple(self._execute(connection, asked).one())
        splits = [] if low is None else self._ranges(low, high, target)
        return [*splits, SqlSplit(is_null=True)] if nulls else splits

    def _ranges(self, low: Any, high: Any, target: int) -> list[SqlSplit]:
        if isinstance(low, bool) or not isinstance(low, int | float | Decimal | date):
            raise InvalidArgumentError(
                f"sources.sql: split_by={self._column!r}: its values are {type(low).__name__}, "
                f"such as {shortened(low)}; write a column that has numbers or times, or leave it "
                "out"
            )
        if low == high:
            return [SqlSplit(low, high=high)]
        bounds = [low, *_between(low, high, target), high]
        last = len(bounds) - 2
        return [
            SqlSplit(bounds[i], high=bounds[i + 1], has_high=i == last) for i in range(last + 1)
        ]

    def read(self, split: SqlSplit) -> Iterator[Sequence[Row]]:
        from sqlalchemy.exc import DBAPIError

        engine = self._database.engine()
        try:
            with engine.connect() as connection:
                streaming = connection.execution_options(
                    stream_results=True, max_row_buffer=BATCH_SIZE
                )
                with closing(self._rows_of(streaming, split)) as result:
                    if self._column is None or split.is_null:
                        for part in result.mappings().partitions(BATCH_SIZE):
                            yield [dict(row) for row in part]
                    else:
                        yield from self._by_value(result, self._column, split)
        except DBAPIError as error:
            raise ServerUnreachableError(
                f"{self.name}: the database at {self._database.shown!r} has failed: "
                f"{text_of(error)}"
            ) from error
        finally:
            engine.dispose()

    def _rows_of(self, connection: Connection, split: SqlSplit) -> Result[Any]:
        if self._column is None:
            return self._execute(connection, self._query)
        quoted = _quoted(connection, self._column)
        rows = f"SELECT * FROM ({self._query}) q WHERE q.{quoted}"  # noqa: S608
        if split.is_null:
            return self._execute(connection, f"{rows} IS NULL")
        above, below = ">=" if split.has_low else ">", "<=" if split.has_high else "<"
        return self._execute(
            connection,
            f"{rows} {above} :jetlet_low AND q.{quoted} {below} :jetlet_high ORDER BY q.{quoted}",
            jetlet_low=split.low,
            jetlet_high=split.high,
        )

    @staticmethod
    def _by_value(result: Result[Any], column: str, split: SqlSplit) -> Iterator[Sequence[Row]]:
        """Rows with the same value stay together, so that what is left can be said by values."""
        rows: list[Row] = []
        for part in result.mappings().partitions(BATCH_SIZE):
            rows += map(dict, part)
            end = len(rows)
            last = rows[-1][column]
            while end and rows[end - 1][column] == last:
                end -= 1
            if end:
                done, rows = rows[:end], rows[end:]
                yield SplitRest(done, replace(split, low=done[-1][column], has_low=False))
        if rows:
            yield SplitRest(rows, replace(split, low=rows[-1][column], has_low=False))

    def _execute(self, connection: Connection, statement: str, **bounds: Any) -> Result[Any]:
        return connection.execute(_text(statement), {**self._parameters, **bounds})


def _text(statement: str) -> TextClause:
    from sqlalchemy import text

    return text(statement)


def _quoted(connection: Connection, column: str) -> str:
    return connection.dialect.identifier_preparer.quote(column)


def _between(low: Any, high: Any, count: int) -> list[Any]:
    """Values that divide a range into so many parts, or fewer if there are not as many."""
    found: list[Any]
    if isinstance(low, int) and isinstance(high, int):
        found = [low + (high - low) * i // count for i in range(1, count)]
    elif isinstance(low, datetime):
        found = [low + (high - low) * i / count for i in range(1, count)]
    elif isinstance(low, date):
        days = (high - low).days
        found = [low + timedelta(days=days * i // count) for i in range(1, count)]
    else:
        found = [low + (high - low) * i / count for i in range(1, count)]
    return sorted({each for each in found if low < each < high})
