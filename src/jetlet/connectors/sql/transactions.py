"""Transactions on a SQL database that end with the snapshots of a job.

Rows are kept in memory from one snapshot to the next and saved in it. To prepare them is to try
them out: they are written, and rolled back. To commit them is to write them in one transaction of
the database's together with a mark, a row of the table ``jetlet_transactions``, by which a commit
that is repeated is known to have been done. Marks of the latest :data:`KEPT_MARKS` transactions of
a writer stay; those of jobs that are over are of no use to anybody.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetlet.connectors.sql.database import SqlClient
from jetlet.connectors.sql.target import Names, SqlRows
from jetlet.errors import JetletError
from jetlet.pipeline.sink import TransactionId, TransactionWriter

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

T = TypeVar("T")

MARKS: Final = "jetlet_transactions"
KEPT_MARKS: Final = 100
"""More than there are snapshots that a job could be restored from."""

DELETE: Final = "delete"


@dataclass(frozen=True, slots=True)
class SqlTransaction:
    """A prepared transaction, with all that is to be written."""

    id: TransactionId
    names: Names
    batches: tuple[bytes, ...]
    """Lists of rows, each pickled when it came: a snapshot has to take them at one go. Those to be
    deleted come as a pair with :data:`DELETE`."""


class SqlTransactionWriter(TransactionWriter[T]):
    """Collects rows, and writes them when they are committed."""

    def __init__(self, client: SqlClient, rows: SqlRows) -> None:
        self._client = client
        self._rows = rows
        self._id: TransactionId | None = None
        self._batches: list[bytes] = []
        try:
            client.run(_create_marks)
        except JetletError:
            client.run(_create_marks)  # unless another writer was quicker, it fails again

    def begin(self, transaction: TransactionId) -> None:
        self._id = transaction
        self._batches = []

    def write(self, batch: Sequence[T]) -> None:
        rows = self._rows
        if not rows.is_open:
            self._client.run(rows.open)
        for deletes, items in rows.runs(batch):
            found = rows.of(items)
            entry = (DELETE, found) if deletes else found
            self._batches.append(pickle.dumps(entry, pickle.HIGHEST_PROTOCOL))

    def prepare(self) -> SqlTransaction:
        assert self._id is not None
        prepared = SqlTransaction(self._id, self._rows.names, tuple(self._batches))
        self._batches = []

        def try_out(connection: Connection) -> bool:
            _write(connection, self._rows, prepared)
            return False

        self._client.run(try_out)
        return prepared

    def commit(self, prepared: SqlTransaction) -> None:
        commit_once(self._client, self._rows, prepared)

    def recover(self, prepared: Sequence[SqlTransaction]) -> None:
        for each in prepared:
            self.commit(each)

    def interrupt(self) -> None:
        self._client.interrupt()

    def close(self) -> None:
        self._client.close()


def commit_once(client: SqlClient, rows: SqlRows, prepared: SqlTransaction) -> None:
    """Write a transaction, unless that was done before."""

    def commit(connection: Connection) -> bool:
        if not _mark(connection, prepared.id):
            return False
        _write(connection, rows, prepared)
        return True

    client.run(commit)


def _write(connection: Connection, rows: SqlRows, prepared: SqlTransaction) -> None:
    for batch in prepared.batches:
        found = pickle.loads(batch)
        deletes = isinstance(found, tuple)
        rows.execute(connection, prepared.names, found[1] if deletes else found, deletes=deletes)


# --- Marks ----------------------------------------------------------------------------------


def _marks() -> Table:
    from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

    return Table(
        MARKS,
        MetaData(),
        Column("run_id", String(64), primary_key=True),
        Column("vertex", String(200), primary_key=True),
        Column("writer", Integer, primary_key=True, autoincrement=False),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("attempt", String(32), primary_key=True),
    )


def _create_marks(connection: Connection) -> bool:
    _marks().metadata.create_all(connection)
    return True


def _mark(connection: Connection, id: TransactionId) -> bool:
    """Leave a mark that a transaction is committed; false if there is one."""
    from sqlalchemy.exc import IntegrityError

    marks = _marks()
    vertex = id.vertex[:200]
    mark: dict[str, Any] = {**id._asdict(), "vertex": vertex}
    try:
        connection.execute(marks.insert(), mark)
    except IntegrityError:
        return False
    # Snapshots are never so many that older ones could be restored.
    connection.execute(
        marks.delete().where(
            marks.c.run_id == id.run_id,
            marks.c.vertex == vertex,
            marks.c.writer == id.writer,
            marks.c.number < id.number - KEPT_MARKS,
        )
    )
    return True
