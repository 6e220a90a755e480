"""A table of a SQL database as a sink of pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from jetlet.connectors.sql.database import SqlClient, SqlDatabase
from jetlet.connectors.sql.target import SqlRows, SqlTarget
from jetlet.connectors.sql.transactions import SqlTransaction, SqlTransactionWriter, commit_once
from jetlet.core.arguments import check_name
from jetlet.pipeline.sink import SinkWriter, TransactionalSink, WriterPlace

T = TypeVar("T")


class SqlSink(TransactionalSink[T]):
    """Write items as rows to a table of a SQL database, which must be there.

    ``url`` is one of SQLAlchemy, such as ``"postgresql://user@host/database"`` or
    ``"sqlite:///file.db"``; ``settings`` are arguments for ``sqlalchemy.create_engine``. A dict, a
    dataclass and a named tuple fill the columns of their names, a tuple or a list the ``columns``
    in their order, by default all of the table.

    With a ``key``, which must be the primary key or unique, a row that is there is replaced, so
    writing it again does no harm. Rows with equal keys keep their order if they come from one
    processor, as they do behind ``grouping_key``; otherwise write ``.rebalance(key_fn)`` before.
    With ``delete``, a function of the item, the row with the key of an item for which it is true is
    deleted instead: so a stream of changes is applied. Such items need only bring the key.
    Instead of a table there may be a ``statement`` with parameters:
    ``"UPDATE stock SET number = number - :sold WHERE id = :id"``.

    Each batch is written in a transaction of its own: rows are visible as they come, stay when the
    job fails, and a restart writes some of them again. In a job with the guarantee *exactly-once*
    rows are kept until the next snapshot, tried out, saved in it, and written when it counts,
    together with a row of the table ``jetlet_transactions``, which is made if need be: so none is
    written twice. Needs ``pip install 'jetlet[sql]'``.
    """

    is_blocking = True

    def __init__(
        self,
        url: str,
        table: str | None = None,
        *,
        statement: str | None = None,
        columns: Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        delete: Callable[[T], object] | None = None,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        self._database = SqlDatabase.of("sinks.sql", url, settings)
        self._target = SqlTarget.of("sinks.sql", table, statement, columns, key, delete)
        written = table or (statement or "").split(maxsplit=1)[0].lower()
        self.name = check_name("sinks.sql", name) or f"sql-sink({written})"

    def begin(self, run_id: str) -> None:
        with self._database.connected() as connection:
            self._target.check(connection)

    def open(self, run_id: str, writer_id: str) -> SinkWriter[T]:
        return SqlWriter(self._client(), SqlRows(self._target))

    def open_transactional(self, place: WriterPlace) -> SqlTransactionWriter[T]:
        return SqlTransactionWriter(self._client(), SqlRows(self._target))

    def commit_last(self, run_id: str, vertex: str, prepared: Sequence[SqlTransaction]) -> None:
        if not prepared:
            return
        client, rows = self._client(), SqlRows(self._target)
        try:
            for each in prepared:
                commit_once(client, rows, each)
        finally:
            client.close()

    def _client(self) -> SqlClient:
        return SqlClient(self._database, self.name)


class SqlWriter(SinkWriter[T]):
    """Writes batches over a connection, which it closes."""

    def __init__(self, client: SqlClient, rows: SqlRows) -> None:
        self._client = client
        self._rows = rows

    def write(self, batch: Sequence[T]) -> None:
        self._client.run(lambda connection: self._rows.write(connection, batch))

    def interrupt(self) -> None:
        self._client.interrupt()

    def finish(self) -> None:
        self._client.close()

    def abort(self) -> None:
        self._client.close()
