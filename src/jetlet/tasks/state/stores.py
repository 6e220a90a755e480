"""Stores: the key-value stores that a task application can have, as users write them.

::

    from jetlet.tasks import stores

    TaskApplication(
        ..., stores={"views": stores.sqlite("state", key=str, value=int, changelog="changelogs")}
    )

A store is divided among the tasks: each has its own entries. ``key`` and ``value`` are types, or
serdes (:mod:`jetlet.tasks.state.serdes`). ``changelog`` is a directory, for changelogs in embedded
logs, or what makes others (:mod:`jetlet.tasks.state.changelog`); with one, a store is exactly as it
was at the task's latest checkpoint, on whatever machine the task starts again. Without one, a store
on disk is as it was at the latest commit, or up to one commit later than the checkpoint; one in
memory is empty.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from jetlet.core.arguments import check_count
from jetlet.errors import InvalidArgumentError
from jetlet.tasks.state.cached_store import CACHE_SIZE, WRITE_BUFFER, CachedStore
from jetlet.tasks.state.changelog import ChangelogFactory, in_log, path_part, restore
from jetlet.tasks.state.container_storage import StoreContext
from jetlet.tasks.state.local_store import LocalStore, MemoryStore
from jetlet.tasks.state.rocksdb_store import RocksDbStore
from jetlet.tasks.state.serdes import Serde, key_serde, value_serde
from jetlet.tasks.state.sqlite_store import SqliteStore

__all__ = ["Store", "in_memory", "rocksdb", "sqlite"]

Directory = str | os.PathLike[str]
Kind = Literal["in_memory", "sqlite", "rocksdb"]
AnyChangelog = Directory | ChangelogFactory | None


def in_memory(
    *,
    key: Any = None,
    value: Any = None,
    changelog: AnyChangelog = None,
    cache_size: int = CACHE_SIZE,
    write_buffer: int = WRITE_BUFFER,
) -> Store:
    """A store in memory; with a changelog it is read back from there.

    :param cache_size: how many entries are also kept as objects, beside the bytes.
    :param write_buffer: how many bytes of changes wait for a commit; more are written before it.
    """
    return _store("in_memory", None, key, value, changelog, cache_size, write_buffer)


def sqlite(
    directory: Directory,
    *,
    key: Any = None,
    value: Any = None,
    changelog: AnyChangelog = None,
    cache_size: int = CACHE_SIZE,
    write_buffer: int = WRITE_BUFFER,
) -> Store:
    """A store in SQLite, in a file for each task below the directory.

    :param cache_size: how many entries are kept in memory as objects.
    :param write_buffer: how many bytes of changes wait for a commit; more are written before it.
    """
    return _store("sqlite", directory, key, value, changelog, cache_size, write_buffer)


def rocksdb(
    directory: Directory,
    *,
    key: Any = None,
    value: Any = None,
    changelog: AnyChangelog = None,
    cache_size: int = CACHE_SIZE,
    write_buffer: int = WRITE_BUFFER,
) -> Store:
    """A store in RocksDB, in a directory for each task below this one; needs ``jetlet[rocksdb]``.

    :param cache_size: how many entries are kept in memory as objects.
    :param write_buffer: how many bytes of changes wait for a commit; more are written before it,
        and a process that is killed then has to read the whole changelog again.
    """
    return _store("rocksdb", directory, key, value, changelog, cache_size, write_buffer)


@dataclass(frozen=True, slots=True)
class Store:
    """A kind of store with its options; picklable."""

    kind: Kind
    directory: str | None
    key: Serde
    value: Serde
    changelog: ChangelogFactory | None
    cache_size: int
    write_buffer: int

    def open(self, context: StoreContext) -> CachedStore[Any, Any]:
        """Open a task's store, as it was at its checkpoint."""
        changelog = None if self.changelog is None else self.changelog.open(context)
        local: LocalStore | None = None
        try:
            local = self._open_local(context)
            options: dict[str, Any] = {}
            if changelog is not None:
                end = restore(
                    local,
                    changelog,
                    context.position,
                    lambda changes: context.count(f"{context.name}.restored", changes),
                )
                options = {"changelog": changelog, "end": end}
            return CachedStore(
                context.name,
                local,
                self.key,
                self.value,
                cache_size=self.cache_size,
                write_buffer=self.write_buffer,
                count=context.count,
                **options,
            )
        except BaseException:
            if local is not None:
                local.close()
            if changelog is not None:
                changelog.close()
            raise

    def _open_local(self, context: StoreContext) -> LocalStore:
        if self.directory is None:
            return MemoryStore()
        path = Path(self.directory, path_part(context.application), path_part(context.task))
        path.mkdir(parents=True, exist_ok=True)
        path /= path_part(context.name) + _ENDINGS[self.kind]
        if self.kind == "rocksdb":
            return RocksDbStore(path)
        return SqliteStore(path, replace_if_damaged=self.changelog is not None)


_ENDINGS: Final = {"sqlite": ".sqlite", "rocksdb": ".rocksdb"}


def _store(
    kind: Kind,
    directory: Directory | None,
    key: Any,
    value: Any,
    changelog: AnyChangelog,
    cache_size: int,
    write_buffer: int,
) -> Store:
    what = f"stores.{kind}"
    if directory is not None:
        directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))  # noqa: PTH100, PTH111
    if isinstance(changelog, str | os.PathLike):
        changelog = in_log(changelog)
    elif changelog is not None and not hasattr(changelog, "open"):
        raise InvalidArgumentError(
            f"{what}: changelog={changelog!r}: write a directory for it, such as 'changelogs'"
        )
    check_count(f"{what}: cache_size", cache_size)
    check_count(f"{what}: write_buffer", write_buffer)
    return Store(
        kind,
        directory,
        key_serde(what, key),
        value_serde(what, value),
        changelog,
        cache_size,
        write_buffer,
    )
