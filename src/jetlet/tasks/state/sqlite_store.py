"""SqliteStore: the entries of a task's store in an SQLite file.

Changes and the position in the changelog are in one transaction, so the file always has exactly
what the changelog had up to its position, whenever the process ends. A power failure may take the
latest transactions, never a part of one.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from jetlet.errors import JetletError
from jetlet.tasks.state.local_store import Change, Position

logger = logging.getLogger("jetlet.tasks")

FORMAT: Final = 1
"""The version of the file's format, kept in its ``user_version``."""

TAKEOVER_SECONDS: Final = 5.0
"""How long to wait for another process that is still closing the file."""
_MOST_VARIABLES: Final = 500
"""Keys in one query: SQLite has a limit on them, 999 in old versions."""

_TABLES: Final = f"""
BEGIN;
CREATE TABLE entry (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE position (one INTEGER PRIMARY KEY CHECK (one = 1), "end" INTEGER, mark INTEGER);
PRAGMA user_version = {FORMAT};
COMMIT;
"""


class SqliteStore:
    """A local store in a file, which it alone has open. See `LocalStore`."""

    def __init__(self, path: Path, *, replace_if_damaged: bool = False) -> None:
        self._path = path
        try:
            self._connection = _open(path)
        except sqlite3.OperationalError as error:
            raise JetletError(
                f"{path} cannot be opened: {error}; a task's store is open in one process at a time"
            ) from error
        except sqlite3.DatabaseError as error:
            if not replace_if_damaged:
                raise JetletError(f"{path} is damaged: {error}") from error
            logger.warning("%s is damaged (%s), and is made anew from its changelog", path, error)
            for ending in ("", "-wal", "-shm"):
                Path(f"{path}{ending}").unlink(missing_ok=True)
            self._connection = _open(path)
        found = self._connection.execute('SELECT "end", mark FROM position').fetchone()
        self.position: Position | None = Position(*found) if found else None

    def get(self, key: bytes) -> bytes | None:
        found = self._connection.execute("SELECT value FROM entry WHERE key = ?", (key,)).fetchone()
        return found[0] if found else None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        for at in range(0, len(keys), _MOST_VARIABLES):
            part = keys[at : at + _MOST_VARIABLES]
            marks = ",".join("?" * len(part))
            found.update(
                self._connection.execute(
                    f"SELECT key, value FROM entry WHERE key IN ({marks})",  # noqa: S608
                    part,
                )
            )
        return list(map(found.get, keys))

    def page(self, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        if stop is None:
            query = "SELECT key, value FROM entry WHERE key >= ? ORDER BY key LIMIT ?"
            return self._connection.execute(query, (start, limit)).fetchall()
        query = "SELECT key, value FROM entry WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        return self._connection.execute(query, (start, stop, limit)).fetchall()

    def write(self, changes: Iterable[Change], position: Position | None) -> None:
        connection = self._connection
        puts, deletes = [], []
        for change in changes:
            if change[1] is None:
                deletes.append(change[:1])
            else:
                puts.append(change)
        # What is not settled stays in the open transaction: only this connection sees it.
        if not connection.in_transaction:
            connection.execute("BEGIN")
        try:
            # Sorted, since neighbours are on one page.
            puts.sort()
            connection.executemany(
                "INSERT INTO entry VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                puts,
            )
            connection.executemany("DELETE FROM entry WHERE key = ?", deletes)
            if position is not None:
                connection.execute("REPLACE INTO position VALUES (1, ?, ?)", position)
                connection.execute("COMMIT")
                self.position = position
        except sqlite3.Error as error:
            raise JetletError(f"{self._path} cannot be written: {error}") from error

    def clear(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.executescript("BEGIN; DELETE FROM entry; DELETE FROM position; COMMIT;")
        self.position = None

    def close(self) -> None:
        self._connection.close()


def _open(path: Path) -> sqlite3.Connection:
    # The thread that opens it is not always the one that uses it; there is only one at a time.
    connection = sqlite3.connect(
        path, timeout=TAKEOVER_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        # Exclusive before WAL: then the index of the WAL is in memory, and nobody else gets in.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if not version:
            connection.executescript(_TABLES)
        elif version != FORMAT:
            raise JetletError(
                f"{path} has format {version}, and this version of jetlet knows {FORMAT}; "
                "update jetlet"
            )
        # The lock is taken with the first write: better now than in the middle.
        connection.executescript("BEGIN IMMEDIATE; ROLLBACK")
    except BaseException:
        connection.close()
        raise
    return connection
