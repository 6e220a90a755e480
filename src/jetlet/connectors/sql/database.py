"""SQL databases, reached through SQLAlchemy: where one is, and the client that a writer works with.

:class:`SqlDatabase` is checked and picklable; each writer opens a :class:`SqlClient` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from jetlet.core.arguments import shortened
from jetlet.errors import (
    InvalidArgumentError,
    ItemFailedError,
    JetletError,
    MissingDependencyError,
    RestartableError,
    ServerUnreachableError,
)
from jetlet.storage.file_systems import without_credentials

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Executable

Row = Sequence[Any]

LOCK_TIMEOUT: Final = 30
"""Seconds to wait for another writer of a SQLite database."""
IDLE_LIMIT_MS: Final = 30_000
"""Milliseconds between two statements of a transaction, after which PostgreSQL rolls it back."""
CONFLICTS: Final = 10
"""How often a transaction is tried that others get in the way of."""
_CONFLICT_STATES: Final = frozenset(("40001", "40P01"))  # serialization failure, deadlock


@dataclass(frozen=True, slots=True)
class SqlDatabase:
    """Where to connect, and SQLAlchemy's settings for it."""

    what: str
    """The function that it was given to, for messages."""
    url: str
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, what: str, url: Any, settings: Mapping[str, Any] | None = None) -> SqlDatabase:
        """Check what a user wrote; ``what`` names the function for messages."""
        if not isinstance(url, str) or "://" not in url:
            raise InvalidArgumentError(
                f"{what}({shortened(url)}): write the URL of a database as SQLAlchemy knows it, "
                "such as 'postgresql://user@host/database' or 'sqlite:///file.db'"
            )
        if url.startswith("sqlite") and url.partition("://")[2].lstrip("/") in ("", ":memory:"):
            raise InvalidArgumentError(
                f"{what}({url!r}): a database in memory is nobody else's; write a file, such as "
                "'sqlite:///file.db'"
            )
        if settings is not None and not isinstance(settings, Mapping):
            raise InvalidArgumentError(
                f"{what}: settings={shortened(settings)}: write a dict of arguments for "
                "sqlalchemy.create_engine"
            )
        if find_spec("sqlalchemy") is None:
            raise MissingDependencyError(f"{what} needs SQLAlchemy: pip install 'jetlet[sql]'")
        return cls(what, url, dict(settings or {}))

    @property
    def shown(self) -> str:
        """The URL as it may be shown."""
        return without_credentials(self.url)

    def engine(self) -> Engine:
        """A new engine with one connection."""
        from sqlalchemy import create_engine, make_url
        from sqlalchemy.exc import ArgumentError
        from sqlalchemy.pool import StaticPool

        try:
            url = make_url(self.url)
            if url.drivername == "postgresql":
                url = url.set(drivername="postgresql+psycopg")
            settings = {"poolclass": StaticPool, **self.settings}
            if url.get_backend_name() == "sqlite":
                settings["connect_args"] = {
                    "timeout": LOCK_TIMEOUT,
                    "check_same_thread": False,
                    **settings.get("connect_args", {}),
                }
            return create_engine(url, **settings)
        except (ArgumentError, TypeError) as error:
            raise InvalidArgumentError(
                f"{self.what}({self.shown!r}): {error}; write a URL, and settings, as SQLAlchemy "
                "knows them"
            ) from error
        except ImportError as error:
            raise MissingDependencyError(
                f"{self.what}({self.shown!r}) needs the driver of this database: {error}; for "
                "PostgreSQL: pip install 'jetlet[sql]'"
            ) from error

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection for a moment, where a job is submitted."""
        from sqlalchemy.exc import DBAPIError

        engine = self.engine()
        try:
            with engine.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise ServerUnreachableError(
                f"{self.what}: the database at {self.shown!r} does not answer as it should: "
                f"{text_of(error)}"
            ) from error
        finally:
            engine.dispose()


class SqlClient:
    """The connection of one writer. Used by one thread, but for :meth:`interrupt`."""

    def __init__(self, database: SqlDatabase, name: str) -> None:
        self._database = database
        self._name = name
        self.engine = database.engine()
        self._connection: Connection | None = None
        self._is_interrupted = False

    def run(self, action: Callable[[Connection], bool]) -> None:
        """Run ``action`` in a transaction; commit if it returns true, roll back otherwise.

        It is run again if other transactions were in its way.
        """
        from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

        for attempt in range(CONFLICTS):
            try:
                if self._connection is None:
                    self._connection = self._connect()
                with self._connection.begin() as transaction:
                    if not action(self._connection):
                        transaction.rollback()
                return
            except _BadRows as bad:
                raise self._item_failure(bad) from bad.__cause__
            except DBAPIError as error:
                is_conflict = getattr(error.orig, "sqlstate", None) in _CONFLICT_STATES
                if is_conflict and attempt < CONFLICTS - 1 and not self._is_interrupted:
                    continue
                is_curable = error.connection_invalidated or isinstance(
                    error, OperationalError | InterfaceError
                )
                kind = RestartableError if is_curable and not self._is_interrupted else JetletError
                raise kind(
                    f"{self._name}: the database at {self._database.shown!r} has failed: "
                    f"{text_of(error)}"
                ) from error

    def _connect(self) -> Connection:
        connection = self.engine.connect()
        if connection.dialect.name == "postgresql":
            # A writer that hangs in a transaction, or whose host has vanished, keeps its locks from
            # the one that takes its place no longer than this.
            connection.exec_driver_sql(f"SET idle_in_transaction_session_timeout = {IDLE_LIMIT_MS}")
            connection.commit()
        return connection

    @staticmethod
    def execute(
        connection: Connection, statement: Executable, names: Sequence[str], rows: Sequence[Row]
    ) -> None:
        """Execute a statement with each of the rows; within :meth:`run`."""
        from sqlalchemy.exc import InterfaceError, OperationalError, StatementError

        if not rows:
            return
        try:
            connection.execute(statement, [dict(zip(names, row, strict=True)) for row in rows])
        except (OperationalError, InterfaceError):
            raise
        except StatementError as error:
            raise _BadRows(statement, names, rows) from error

    def _item_failure(self, bad: _BadRows) -> ItemFailedError:
        """Find out which of the rows the database refuses."""
        from sqlalchemy.exc import StatementError

        culprit = bad.rows[0]
        connection = self._connection
        assert connection is not None
        with connection.begin() as transaction:
            for row in bad.rows:
                try:
                    connection.execute(bad.statement, dict(zip(bad.names, row, strict=True)))
                except StatementError:
                    culprit = row
                    break
            transaction.rollback()
        return ItemFailedError(dict(zip(bad.names, culprit, strict=True)), self._name)

    def interrupt(self) -> None:
        """The job is ending: make a call that waits for the database raise; from any thread."""
        self._is_interrupted = True
        connection = self._connection
        if connection is not None:
            with suppress(Exception):  # it may be gone, or doing nothing
                driver: Any = connection.connection.driver_connection
                (getattr(driver, "cancel", None) or driver.interrupt)()

    def close(self) -> None:
        """Roll back what is not committed, and disconnect."""
        connection, self._connection = self._connection, None
        with suppress(Exception):  # the connection may be lost, which may be why we are here
            if connection is not None:
                connection.close()
        self.engine.dispose()


class _BadRows(Exception):
    """The database refuses one of these rows."""

    def __init__(self, statement: Executable, names: Sequence[str], rows: Sequence[Row]) -> None:
        super().__init__()
        self.statement = statement
        self.names = names
        self.rows = rows


def text_of(error: BaseException) -> str:
    """What the database said, without the statement and its parameters."""
    said = str(getattr(error, "orig", None) or error).strip()
    return said.splitlines()[0] if said else type(error).__name__
