"""SqlTarget: what becomes of an item in a database: a row of a table, or a statement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jetlet.connectors.rows import column_names
from jetlet.connectors.sql.database import Row, SqlClient
from jetlet.core.arguments import check_functions, shortened
from jetlet.errors import BadRecordError, InvalidArgumentError, UnsupportedFeatureError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Executable, Table

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SqlTarget:
    """A table or a statement; checked as far as it can be without the database."""

    what: str
    """The function that it was given to, for messages."""
    table: str | None = None
    statement: str | None = None
    columns: Names | None = None
    key: Names = ()
    """The columns that tell rows apart: a row that is there is replaced."""
    delete: Callable[[Any], object] | None = None
    """Says of an item whether the row with its key is to go."""

    @classmethod
    def of(
        cls,
        what: str,
        table: Any,
        statement: Any,
        columns: Any,
        key: Any,
        delete: Any = None,
    ) -> SqlTarget:
        """Check what a user wrote."""
        if (table is None) == (statement is None) or not isinstance(table or statement, str):
            raise InvalidArgumentError(
                f"{what}: write the name of a table, or statement='INSERT INTO ...'"
            )
        names = _names(what, "columns", columns)
        keys = _names(what, "key", key) or ()
        if statement is not None and (names or keys):
            raise InvalidArgumentError(
                f"{what}: columns=... and key=... are for tables: write them into the statement"
            )
        check_functions(what, delete=delete)
        if delete is not None and not keys:
            raise InvalidArgumentError(
                f"{what}: delete=... takes rows out by their key: write the table, and key='id'"
            )
        if names is not None and (missing := set(keys) - set(names)):
            raise InvalidArgumentError(
                f"{what}: the key {min(missing)!r} is not among columns={list(names)}"
            )
        return cls(what, table, statement, names, keys, delete)

    def reflected(self, connection: Connection) -> Table:
        """The table as the database has it; it must be there, with all that was named."""
        from sqlalchemy import Column, MetaData, Table, inspect
        from sqlalchemy.exc import NoSuchTableError

        assert self.table is not None
        schema, _, name = self.table.rpartition(".")
        inspector = inspect(connection)
        try:
            # Names and types are all that is needed, and much quicker than all that there is.
            columns = inspector.get_columns(name, schema or None)
        except NoSuchTableError as error:
            known = inspector.get_table_names(schema or None)
            raise InvalidArgumentError(
                f"{self.what}: the database has no table {self.table!r}; create it first, or write "
                f"one of {shortened(sorted(known))}"
            ) from error
        table = Table(
            name,
            MetaData(),
            *(Column(column["name"], column["type"]) for column in columns),
            schema=schema or None,
        )
        for column in (*(self.columns or ()), *self.key):
            if column not in table.columns:
                raise InvalidArgumentError(
                    f"{self.what}: table {self.table!r} has no column {column!r}; it has "
                    f"{shortened(list(table.columns.keys()))}"
                )
        return table

    def check(self, connection: Connection) -> None:
        """Refuse what the database cannot do."""
        if self.table is None:
            return
        table = self.reflected(connection)
        if self.key:
            # Refuses a database that it is not known for.
            _upsert(self.what, connection.dialect.name, table, self.key, self.key)
        if self.key and not _is_unique(table, self.key, connection):
            raise InvalidArgumentError(
                f"{self.what}: key={list(self.key)} is neither the primary key of table "
                f"{self.table!r} nor has it a unique constraint, so rows could not be replaced; "
                f"create a unique index on it"
            )


class SqlRows:
    """Turns items into rows, and rows into what is executed. Belongs to one writer.

    The columns are those that were named; else those of the first item, if it has names; else all
    of the table's.
    """

    def __init__(self, target: SqlTarget) -> None:
        self._target = target
        self._table: Table | None = None
        self._dialect = ""
        self.names: Names = target.columns or ()
        self._is_chosen = target.columns is not None
        self._converters: dict[type, Callable[[Any], Row]] = {}
        self._statements: dict[Names, Executable] = {}
        self._delete: Executable | None = None
        if target.statement is not None:
            from sqlalchemy import text

            self.names = tuple(text(target.statement).compile().params)
            self._is_chosen = True

    def open(self, connection: Connection) -> bool:
        """Look at the table, if there is one. There is nothing to commit."""
        self._dialect = connection.dialect.name
        if self._target.table is not None:
            self._table = self._target.reflected(connection)
            if self._target.delete is not None and not self.names:
                # Items may bring their key alone, or what kind of change they are.
                self.names = tuple(self._table.columns.keys())
                self._is_chosen = True
        return False

    @property
    def is_open(self) -> bool:
        return bool(self._dialect)

    def execute(
        self, connection: Connection, names: Names, rows: Sequence[Row], *, deletes: bool = False
    ) -> None:
        """Write rows of these columns, or delete those with their keys; within an action of
        :meth:`SqlClient.run`.
        """
        if not self.is_open:
            self.open(connection)
        if deletes:
            key = self._target.key
            places = [names.index(name) for name in key]
            keys = [[row[place] for place in places] for row in rows]
            SqlClient.execute(connection, self._deletion(), key, keys)
            return
        SqlClient.execute(connection, self._statement(names), names, rows)

    def write(self, connection: Connection, batch: Sequence[Any]) -> bool:
        """Write items, within :meth:`SqlClient.run`."""
        if not self.is_open:
            self.open(connection)
        for deletes, items in self.runs(batch):
            rows = self.of(items)
            self.execute(connection, self.names, rows, deletes=deletes)
        return True

    def runs(self, batch: Sequence[Any]) -> Iterable[tuple[bool, Sequence[Any]]]:
        """Items that follow each other and are all to be written, or all to be deleted."""
        delete = self._target.delete
        if delete is None:
            return [(False, batch)]
        return [
            (deletes, list(items))
            for deletes, items in groupby(batch, lambda item: bool(delete(item)))
        ]

    def of(self, batch: Sequence[Any]) -> list[Row]:
        """The rows of the items, in the order of ``names``."""
        if not self.names:
            self.names = self._names_for(batch[0])
        converters = self._converters
        rows = []
        for item in batch:
            convert = converters.get(type(item))
            if convert is None:
                convert = converters[type(item)] = self._converter(item)
            rows.append(convert(item))
        return rows

    def _names_for(self, item: Any) -> Names:
        assert self._table is not None
        known = column_names(item)
        return tuple(map(str, known if known is not None else self._table.columns.keys()))

    def _converter(self, item: Any) -> Callable[[Any], Row]:
        names = self.names
        width = len(names)
        if isinstance(item, Mapping):
            return self._from_mapping
        if dataclasses.is_dataclass(item) or hasattr(item, "_fields"):
            self._check_known(item, column_names(item) or ())
            return lambda item: [getattr(item, name, None) for name in names]

        def convert(item: Any) -> Row:
            row = item if isinstance(item, tuple | list) else (item,)
            if len(row) != width:
                raise BadRecordError(
                    f"{shortened(item)} has {len(row)} values for the {width} columns "
                    f"{shortened(list(names))}"
                )
            return row

        return convert

    def _from_mapping(self, item: Mapping[str, Any]) -> Row:
        if len(item) > len(self.names) or not self._is_chosen:
            self._check_known(item, item)
        get = item.get
        return [get(name) for name in self.names]

    def _check_known(self, item: Any, names: Any) -> None:
        if self._is_chosen:
            return
        for name in names:
            if name not in self.names:
                raise BadRecordError(
                    f"{shortened(item)} has {name!r}, which is not among the columns "
                    f"{shortened(list(self.names))} of the first item; write columns=[...]"
                )

    def _statement(self, names: Names) -> Executable:
        found = self._statements.get(names)
        if found is None:
            found = self._statements[names] = self._new_statement(names)
        return found

    def _new_statement(self, names: Names) -> Executable:
        from sqlalchemy import text

        if self._target.statement is not None:
            return text(self._target.statement)
        table, key = self._table, self._target.key
        assert table is not None
        for name in names:
            if name not in table.columns:
                raise BadRecordError(
                    f"table {self._target.table!r} has no column {name!r}; it has "
                    f"{shortened(list(table.columns.keys()))}"
                )
        if not key:
            return table.insert()
        return _upsert(self._target.what, self._dialect, table, key, names)

    def _deletion(self) -> Executable:
        from sqlalchemy import bindparam

        if self._delete is None:
            table = self._table
            assert table is not None
            wanted = [table.c[name] == bindparam(name) for name in self._target.key]
            self._delete = table.delete().where(*wanted)
        return self._delete


def _upsert(what: str, dialect: str, table: Table, key: Names, names: Names) -> Executable:
    """An insert that replaces the row with the same key."""
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    others = [name for name in names if name not in key]
    if dialect in ("mysql", "mariadb"):
        inserted = mysql.insert(table)
        changes = others or list(key)
        return inserted.on_duplicate_key_update({n: inserted.inserted[n] for n in changes})
    made: Any
    if dialect == "postgresql":
        made = postgresql.insert(table)
    elif dialect == "sqlite":
        made = sqlite.insert(table)
    else:
        raise UnsupportedFeatureError(
            f"{what}: key=... is not known for {dialect}; write statement='MERGE INTO ...' "
            "instead of the table"
        )
    if not others:
        statement: Executable = made.on_conflict_do_nothing(index_elements=key)
    else:
        statement = made.on_conflict_do_update(
            index_elements=key, set_={n: made.excluded[n] for n in others}
        )
    return statement


def _is_unique(table: Table, key: Names, connection: Connection) -> bool:
    from sqlalchemy import inspect

    inspector = inspect(connection)
    place = (table.name, table.schema)
    found: list[Any] = [inspector.get_pk_constraint(*place)["constrained_columns"]]
    found += [each["column_names"] for each in inspector.get_unique_constraints(*place)]
    found += [each["column_names"] for each in inspector.get_indexes(*place) if each["unique"]]
    return any(set(each) == set(key) for each in found)


def _names(what: str, parameter: str, value: Any) -> Names | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise InvalidArgumentError(f"{what}: {parameter}={value!r}: write a list of columns")
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidArgumentError(
            f"{what}: {parameter}={value!r}: write the names of columns, each once"
        )
    return tuple(names)
