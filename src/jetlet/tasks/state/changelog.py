"""Changelogs: every change of a task's store, in a place that outlives the machine's copy.

A store that has a changelog appends its changes to it with each commit, before the checkpoint is
written, and the checkpoint has the position that it then had. :func:`restore` makes a local store
equal to the changelog up to that position, from the copy of this machine if there is one. What
lies behind the position was flushed by a container that died before its checkpoint was written, and
the messages behind it will be processed again. It is undone, also in the changelog: the values that
these keys had are appended. So at any time between two commits, a store is what a replay of all its
changelog gives.

A changelog must keep at least the latest change of every key, so the log that it is in has no
retention. A :class:`Cleaner` keeps it short instead: once most records are outdated, each flush
also appends some unchanged entries, in the order of their keys. When it comes to the last key,
everything before its first append is outdated, and goes by whole segments.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from zlib import crc32

from jetlet.errors import BadRecordError, InvalidArgumentError, JetletError
from jetlet.log import Log
from jetlet.log.reader import end_offset, start_offset
from jetlet.log.segments import partition_directory
from jetlet.tasks.state.container_storage import StoreContext
from jetlet.tasks.state.local_store import Change, LocalStore, Position

__all__ = ["Changelog", "ChangelogFactory", "InLog", "in_kafka", "in_log"]

logger = logging.getLogger("jetlet.tasks")

CHUNK: Final = 8192
"""Changes that a restore reads and writes at a time."""
SEGMENT_BYTES: Final = 16 << 20
CLEAN_FROM: Final = 100_000
"""Records from which on a changelog is worth cleaning."""
OUTDATED_SHARE: Final = 4
"""A changelog is cleaned if it has so many records for each entry of the store."""


class Changelog(Protocol):
    """The changes of one task's store, which is its only writer."""

    cleans_itself: bool
    """True if outdated records go without a `Cleaner`."""

    def bounds(self) -> tuple[int, int]:
        """The positions of its first record, and behind its last one."""

    def mark(self, end: int) -> int | None:
        """A checksum of the record before this position; ``None`` if it is not there any more."""

    def read(self, start: int, stop: int) -> tuple[Sequence[Change], Position]:
        """Some changes from a position on, and where the next ones are; before ``stop``."""

    def append(self, changes: Sequence[Change]) -> Position:
        """Append one change or more; they are safe when this returns. Gives the new end."""

    def discard_before(self, position: int) -> None:
        """Nobody will read what is before this."""

    def close(self) -> None:
        """Release everything; idempotent."""


class ChangelogFactory(Protocol):
    """What a user writes: where changelogs are kept. Picklable, holds nothing open."""

    def open(self, context: StoreContext) -> Changelog:
        """Open the changelog of a task's store; make it if there is none yet."""


def restore(
    local: LocalStore,
    changelog: Changelog,
    committed: int | None,
    count: Callable[[int], object] = lambda changes: None,
) -> Position:
    """Make the local store what it was at the committed position; give the changelog's end.

    ``count`` is told of changes that were read. Without a committed position the store is empty:
    the task begins anew.
    """
    first, end = changelog.bounds()
    if committed is None:
        committed = first
    if not first <= committed <= end:
        raise JetletError(
            f"the checkpoint needs {changelog} up to {committed}, but it has {first} to {end}: "
            "records were lost; a changelog needs fsync=True to survive a power failure, and "
            "its log must not have a retention"
        )
    at = first
    found = local.position
    if found is not None:
        if first <= found.end <= committed and changelog.mark(found.end) == found.mark:
            at = found.end
        else:
            logger.info("%s: the local copy at %d is of no use", changelog, found.end)
    if at == first:
        local.clear()
    while at < committed:
        changes, position = changelog.read(at, min(at + CHUNK, committed))
        local.write(dict(changes).items(), position)
        at = position.end
        count(len(changes))

    undone: dict[bytes, bytes | None] = {}
    while at < end:
        changes, position = changelog.read(at, min(at + CHUNK, end))
        undone.update(changes)
        at = position.end
    if undone:
        logger.info("%s: %d entries were not committed and are undone", changelog, len(undone))
        keys = list(undone)
        return changelog.append(list(zip(keys, local.get_many(keys), strict=True)))
    return Position(end, changelog.mark(end) or 0)


class Cleaner:
    """Rewrites a changelog little by little, as its store's flushes go along.

    ``page`` gives the store's entries from a key on, as `LocalStore.page`.
    """

    def __init__(
        self,
        changelog: Changelog,
        page: Callable[[bytes, bytes | None, int], list[tuple[bytes, bytes]]],
    ) -> None:
        self._changelog = changelog
        self._page = page
        self._first = changelog.bounds()[0]
        self._threshold = 0
        """Records at which a round may begin."""
        self._start: int | None = None
        """The offset at which the round of compaction under way began."""
        self._next = b""
        """The key that the compaction is at."""
        self._rewritten = 0
        self._outdated = 0
        """Everything before this is outdated, once the commit is done."""

    def next_entries(self, end: int, changes: int) -> list[tuple[bytes, bytes]]:
        """Entries to append behind a flush of so many changes, to a changelog that ends there."""
        if self._start is None:
            if end - self._first < max(self._threshold, CLEAN_FROM):
                return []
            self._start, self._next, self._rewritten = end, b"", 0
        limit = 2 * changes  # so that it ends before the changelog has doubled
        entries = self._page(self._next, None, limit)
        self._rewritten += len(entries)
        if len(entries) == limit:
            self._next = entries[-1][0] + b"\x00"
        else:
            self._outdated, self._start = self._start, None
            self._threshold = OUTDATED_SHARE * self._rewritten
        return entries

    def committed(self) -> None:
        """What was appended so far is what the next container will read."""
        if self._outdated > self._first:
            self._changelog.discard_before(self._outdated)
            self._first = self._outdated


# --- In the embedded log --------------------------------------------------------------------

_KEY_LENGTH: Final = struct.Struct("<I")
_DELETED: Final = 1 << 31


def encode_changes(changes: Iterable[Change]) -> list[bytes]:
    """Records: the length of the key, with a bit for a deletion, the key and the value."""
    pack = _KEY_LENGTH.pack
    return [
        pack(len(key) | _DELETED) + key if value is None else pack(len(key)) + key + value
        for key, value in changes
    ]


def decode_changes(records: Iterable[bytes]) -> list[Change]:
    changes: list[Change] = []
    for record in records:
        if len(record) < _KEY_LENGTH.size:
            raise BadRecordError(f"a record of a changelog has only {len(record)} bytes")
        length = _KEY_LENGTH.unpack_from(record)[0]
        end = _KEY_LENGTH.size + (length & ~_DELETED)
        key = record[_KEY_LENGTH.size : end]
        changes.append((key, None if length & _DELETED else record[end:]))
    return changes


class LogChangelog:
    """One partition of a log of bytes."""

    cleans_itself = False

    def __init__(self, log: Log, partition: int) -> None:
        self._log = log
        self._partition = partition
        self._path = partition_directory(log.directory, partition)

    def bounds(self) -> tuple[int, int]:
        return start_offset(self._path), end_offset(self._path)

    def mark(self, end: int) -> int | None:
        if end <= start_offset(self._path):
            return 0 if end == 0 else None
        return crc32(self._log.read(self._partition, end - 1, 1).items[0])

    def read(self, start: int, stop: int) -> tuple[Sequence[Change], Position]:
        records = self._log.read(self._partition, start, stop - start)
        if not records.items:
            raise BadRecordError(f"{self} has no record {start}, though it ends behind it")
        changes = decode_changes(records.items)
        return changes, Position(records.next_offset, crc32(records.items[-1]))

    def append(self, changes: Sequence[Change]) -> Position:
        records = encode_changes(changes)
        offsets = self._log.append(records, partition=self._partition)[self._partition]
        return Position(offsets.stop, crc32(records[-1]))

    def discard_before(self, position: int) -> None:
        self._log.discard_before(self._partition, position)

    def close(self) -> None:
        self._log.close()

    def __str__(self) -> str:
        return f"changelog {self._path}"


@dataclass(frozen=True, slots=True)
class InLog:
    """Makes changelogs in embedded logs; see `in_log`."""

    directory: str
    fsync: bool = False

    def open(self, context: StoreContext) -> LogChangelog:
        try:
            log = Log(
                Path(self.directory, path_part(context.application), path_part(context.name)),
                partitions=context.partition_count,
                serializer="bytes",
                segment_bytes=SEGMENT_BYTES,
                fsync="batch" if self.fsync else "none",
            )
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"store {context.name!r} of {context.application!r}: the changelog does not fit "
                f"{context.partition_count} tasks, as many as the input has partitions: {error}"
            ) from None
        return LogChangelog(log, context.partition)


def in_log(directory: str | os.PathLike[str], *, fsync: bool = False) -> InLog:
    """Keep changelogs in embedded logs below a directory, one for each store.

    :param fsync: wait for the disk with every commit, to survive a power failure as well as the end
        of the process.
    """
    return InLog(os.path.abspath(os.fspath(directory)), fsync)  # noqa: PTH100


def in_kafka(
    servers: str | Sequence[str], topic: str, *, settings: Mapping[str, Any] | None = None
) -> ChangelogFactory:
    """Keep the changelog of one store in a topic of Kafka, a partition for each task.

    The topic is there already, with ``cleanup.policy=compact`` and a ``min.compaction.lag.ms`` that
    is longer than the application may be down.

    :param settings: further settings of librdkafka.
    """
    from jetlet.connectors.kafka.client import KafkaServers, check_topic
    from jetlet.tasks.state.kafka_state import KafkaChangelogs

    what = "changelog.in_kafka"
    return KafkaChangelogs(KafkaServers.of(what, servers, settings), check_topic(what, topic))


def path_part(name: str) -> str:
    """A name as one part of a path, whatever is in it; different for different names."""
    return "".join(
        c if c.isalnum() or c in "-_ " else "".join(f"%{byte:02x}" for byte in c.encode())
        for c in name
    )
