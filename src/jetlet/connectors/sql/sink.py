"""A table of a SQL database as a sink of pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from jetlet.connectors.sql.database import SqlClient, SqlDatabase
from jetlet.connectors.sql.target import SqlRows, SqlTarget
from jetlet.connectors.sql.transactions import SqlTransaction, SqlTransactionWriter, commit_once
from jetlet.core.arguments import check_name
from jetlet.pipeline.sink import SinkWriter, TransactionalSink, WriterPlace

T = TypeVar("T")


class SqlSink(TransactionalSink[T]):
    """Writes each batch of items in a transaction of the database's.

    They are visible as they come, and stay if the job fails. With transactions of the job's, they
    are written when these are committed.
    """

    is_blocking = True

    def __init__(
        self, database: SqlDatabase, target: SqlTarget, *, name: str | None = None
    ) -> None:
        self._database = database
        self._target = target
        table = target.table or (target.statement or "").split(maxsplit=1)[0].lower()
        self.name = check_name(database.what, name) or f"sql-sink({table})"

    def begin(self, run_id: str) -> None:
        with self._database.connected() as connection:
            self._target.check(connection)

    def open(self, run_id: str, writer_id: str) -> SinkWriter[T]:
        return SqlWriter(self._client(), SqlRows(self._target))

    def commit(self, run_id: str, messages: Sequence[Any]) -> None:
        pass

    def abort(self, run_id: str) -> None:
        pass

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
