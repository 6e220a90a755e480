"""The embedded log: a directory of append-only partitions that several processes write and follow.

It is what a pipeline uses where others need a broker: durable, replayable, with offsets, retention
and a time index. :class:`Log` is for programs; ``sources.log`` and ``sinks.log`` are for pipelines.
Everything is in files (see :mod:`jetlet.log.segments`), so there is nothing to start.
All processes must be on one machine, because they take turns by a lock on a file.

::

    events/
      log.json                             number of partitions, serializer
      00000/                               a partition
        lock                               held while writing; the end of the partition
        00000000000000000000.log           a segment: records 0 to 81919
        00000000000000000000.index
        00000000000000081920.log
      staged-<run>-<vertex>/               transactions of a job that are not committed yet
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from jetlet.core.arguments import check_count, shortened
from jetlet.core.clock import SYSTEM_CLOCK, Clock
from jetlet.core.durations import Duration, to_ms
from jetlet.core.partitioning import Partitioner
from jetlet.errors import (
    InputNotFoundError,
    InvalidArgumentError,
    OutputExistsError,
    UnsupportedFeatureError,
)
from jetlet.log.blocks import EncodedBlock, Serializer, check_serializer, encode
from jetlet.log.reader import (
    PartitionReader,
    Records,
    end_offset,
    offset_at,
    start_offset,
)
from jetlet.log.segments import LOCK, partition_directory, segment_path
from jetlet.log.writer import PartitionWriter, WriterOptions
from jetlet.storage.exposure import warn_if_open_to_all
from jetlet.storage.replacement import replace_file, sync_directory

__all__ = ["Log", "Records"]

logger = logging.getLogger("jetlet.log.log")

Directory = str | os.PathLike[str]
Timestamps = int | Sequence[int] | None

SEGMENT_BYTES: Final = 64 << 20
FORMAT: Final = 1

_SETTINGS: Final = "log.json"
_MAX_PARTITIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a log is made and written; checked, picklable."""

    directory: str
    partitions: int | None = None
    serializer: Serializer | None = None
    segment_bytes: int = SEGMENT_BYTES
    sync_interval: int | None = None
    max_age: int | None = None
    max_bytes: int | None = None
    default_partitions: int | None = None
    """Of a log that is to be made, where ``partitions`` does not say."""

    @classmethod
    def of(
        cls,
        what: str,
        directory: Directory,
        *,
        partitions: int | None = None,
        default_partitions: int | None = None,
        serializer: Serializer | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        fsync: str | Duration = "none",
        max_age: Duration | None = None,
        max_bytes: int | None = None,
    ) -> LogOptions:
        """Check what a user wrote; ``what`` names the function for messages."""
        given: Any = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
        if not isinstance(given, str) or not given or "://" in given:
            raise InvalidArgumentError(
                f"{what}({directory!r}): write a directory of this machine, such as 'events'"
            )
        check_count(f"{what}: partitions", partitions)
        if partitions is not None and partitions > _MAX_PARTITIONS:
            raise InvalidArgumentError(
                f"{what}: partitions={partitions}: write {_MAX_PARTITIONS} at the most"
            )
        check_serializer(what, serializer)
        check_count(f"{what}: segment_bytes", segment_bytes)
        check_count(f"{what}: max_bytes", max_bytes)
        if max_age is not None:
            max_age = to_ms(f"{what}: max_age", max_age, minimum=1)
        if fsync == "none":
            sync_interval = None
        elif fsync == "batch":
            sync_interval = 0
        elif isinstance(fsync, str):
            raise InvalidArgumentError(
                f"{what}: fsync={fsync!r} is not known; write 'none', 'batch' or a duration"
            )
        else:
            sync_interval = to_ms(f"{what}: fsync", fsync, minimum=1)
        return cls(
            # A relative path means the directory that this was written in, also elsewhere.
            os.path.abspath(os.path.expanduser(given)),  # noqa: PTH100, PTH111
            partitions,
            serializer,
            segment_bytes,
            sync_interval,
            max_age,
            max_bytes,
            default_partitions,
        )


class Log:
    """An embedded log, to append to and to read from::

        with Log("events", partitions=4) as log:
            log.append(["a", "b", "c"])
            log.append([{"user": 7}], key=lambda event: event["user"])
            for partition, end in enumerate(log.end_offsets()):
                records = log.read(partition, offset=0)

    The log is made if ``partitions`` is given and there is none yet; the number of partitions and
    the serializer are then fixed. Any number of processes and threads may append at the same time,
    and each call's records of one partition stay together. A ``Log`` appends from any thread;
    reading is for one thread at a time.

    :param serializer: how records are stored. By default they are ``"plain"`` values: numbers,
        texts, bytes, tuples, lists, dicts, sets, dates and times, decimals, and results of windows.
        ``"json"`` takes what JSON has (and gives lists for tuples), ``"bytes"`` takes bytes. All
        these are safe to read, whoever wrote them. ``"pickle"`` takes any Python object; as with
        any pickle, only open a log so whose writers you trust. What was pickled and is plain can be
        read by default, too.
    :param fsync: when to wait for the disk. By default never: what was appended survives the end
        of the process, but not a power failure. ``"batch"`` waits with every append; a duration,
        with the first append after so long, and when the log is closed.
    :param segment_bytes: how large the files become.
    :param max_age: how long records are kept, by their timestamp. They go by whole segments, so
        some stay up to an eighth longer.
    :param max_bytes: how much of the log is kept; each partition has an equal share.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        partitions: int | None = None,
        serializer: Serializer | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        fsync: str | Duration = "none",
        max_age: Duration | None = None,
        max_bytes: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        options = LogOptions.of(
            "Log",
            directory,
            partitions=partitions,
            serializer=serializer,
            segment_bytes=segment_bytes,
            fsync=fsync,
            max_age=max_age,
            max_bytes=max_bytes,
        )
        self._open("Log", options, clock)

    @classmethod
    def with_options(cls, what: str, options: LogOptions, clock: Clock = SYSTEM_CLOCK) -> Log:
        """For connectors; ``what`` names the function that the user wrote, for messages."""
        log = cls.__new__(cls)
        log._open(what, options, clock)
        return log

    def _open(self, what: str, options: LogOptions, clock: Clock) -> None:
        self.directory = options.directory
        self.partition_count, self.serializer = _settings(what, options)
        self._clock = clock
        share = options.max_bytes
        if share is not None:
            share = max(share // self.partition_count, 1)
        writing = WriterOptions(
            options.segment_bytes, options.sync_interval, options.max_age, share
        )
        self._writers = [
            PartitionWriter(path, writing, clock) for path in self._partition_directories()
        ]
        self._readers: dict[int, PartitionReader] = {}
        self._partitioner: Partitioner | None = None
        self._turn = -1

    # --- Writing ----------------------------------------------------------------------------

    def append(
        self,
        items: Iterable[Any],
        *,
        partition: int | None = None,
        key: Callable[[Any], Any] | None = None,
        timestamps: Timestamps = None,
    ) -> dict[int, range]:
        """Append items; returns the offsets that they got, by partition.

        All go to one ``partition``, or each to that of its ``key``; without either, each call takes
        the next partition. ``timestamps`` are milliseconds since 1970, one for each item or one
        for all; by default, now.

        A call that fails may have appended some of the items: append them again, and none is lost.
        """
        encoded = self.encode(items, partition=partition, key=key, timestamps=timestamps)
        return {id: self._writers[id].append(blocks) for id, blocks in encoded}

    def encode(
        self,
        items: Iterable[Any],
        *,
        partition: int | None = None,
        key: Callable[[Any], Any] | None = None,
        timestamps: Timestamps = None,
    ) -> list[tuple[int, list[EncodedBlock]]]:
        """For connectors: what :meth:`append` would write, by partition."""
        if isinstance(items, str | bytes) or not isinstance(items, Iterable):
            raise InvalidArgumentError(
                f"Log.append({shortened(items)}): write a list of items, such as "
                f"[{shortened(items)}]"
            )
        if not isinstance(items, list | tuple):
            items = list(items)
        if timestamps is None:
            timestamps = self._clock.time_ms()
        elif not isinstance(timestamps, int) and len(timestamps) != len(items):
            raise InvalidArgumentError(
                f"Log.append: {len(timestamps)} timestamps for {len(items)} items; write one for "
                "each, or one for all"
            )
        if not items:
            return []
        if key is not None and partition is None:
            return self._encode_by_key(items, key, timestamps)
        if key is not None:
            raise InvalidArgumentError("Log.append: write partition=... or key=..., not both")
        if partition is None:
            self._turn += 1
            partition = self._turn % self.partition_count
        self._check_partition("append", partition)
        return [(partition, encode(items, timestamps, self.serializer))]

    def _encode_by_key(
        self, items: Sequence[Any], key: Callable[[Any], Any], timestamps: int | Sequence[int]
    ) -> list[tuple[int, list[EncodedBlock]]]:
        partitioner = self._partitioner
        if partitioner is None or partitioner.key_fn is not key:
            partitioner = self._partitioner = Partitioner(key, self.partition_count)
        ids = partitioner.partition_ids(items)
        chosen: list[list[Any]] = [[] for _ in range(self.partition_count)]
        for item, id in zip(items, ids, strict=True):
            chosen[id].append(item)
        times: Sequence[int | list[int]]
        if isinstance(timestamps, int):
            times = [timestamps] * self.partition_count
        else:
            by_partition: list[list[int]] = [[] for _ in chosen]
            for time, id in zip(timestamps, ids, strict=True):
                by_partition[id].append(time)
            times = by_partition
        # All are encoded before any is written: an item that cannot be spoils nothing.
        return [
            (id, encode(part, times[id], self.serializer)) for id, part in enumerate(chosen) if part
        ]

    def append_once(
        self, partition: int, tag: bytes, blocks: Iterable[EncodedBlock], since: int
    ) -> range:
        """For connectors: append the blocks of a transaction that are not there yet.

        All have its ``tag``; those that are there are not before the offset ``since``.
        """
        return self._writers[partition].append_once(tag, blocks, since)

    def sync(self) -> None:
        """Wait until everything that was appended through this object is on the disk."""
        for writer in self._writers:
            writer.sync()

    def retain(self, *, max_age: Duration | None = None, max_bytes: int | None = None) -> int:
        """Delete old segments, now; returns how many. What the log was opened with happens anyway.

        Those go that are older than ``max_age`` as a whole, and the oldest ones as long as a
        partition has more than its share of ``max_bytes``.
        """
        if max_age is not None:
            max_age = to_ms("Log.retain: max_age", max_age)
        if max_bytes is not None:
            if type(max_bytes) is not int or max_bytes < 0:
                raise InvalidArgumentError(
                    f"Log.retain: max_bytes={max_bytes!r}: write a whole number of bytes"
                )
            max_bytes //= self.partition_count
        return sum(writer.retain(max_age, max_bytes) for writer in self._writers)

    def discard_before(self, partition: int, offset: int) -> int:
        """Delete the segments of a partition that end before an offset; returns how many."""
        self._check_partition("discard_before", partition)
        return self._writers[partition].discard_before(offset)

    # --- Reading ----------------------------------------------------------------------------

    def read(self, partition: int, offset: int, limit: int = 1024) -> Records:
        """Up to ``limit`` records from an offset on; empty if there are none yet.

        Offsets that retention has deleted, or that are beyond the end, raise `BadRecordError`.
        """
        self._check_partition("read", partition)
        reader = self._readers.get(partition)
        if reader is None:
            path = partition_directory(self.directory, partition)
            reader = self._readers[partition] = PartitionReader(path, offset, self.serializer)
        elif reader.offset != offset:
            reader.seek(offset)
        return reader.poll(limit) or Records(offset, [], [])

    def start_offsets(self) -> list[int]:
        """The offset of the first record that is there, of each partition."""
        return [start_offset(path) for path in self._partition_directories()]

    def end_offsets(self) -> list[int]:
        """The offset that the next record will have, of each partition."""
        return [end_offset(path) for path in self._partition_directories()]

    def offset_at(self, partition: int, timestamp: int) -> int:
        """The offset of the first record with this timestamp or a later one.

        If there is none, it is the offset that the next record will have.
        """
        self._check_partition("offset_at", partition)
        path = partition_directory(self.directory, partition)
        return offset_at(path, timestamp)

    def reader(self, partition: int, offset: int | None, **options: Any) -> PartitionReader:
        """A reader that follows a partition, for connectors; the caller closes it."""
        path = partition_directory(self.directory, partition)
        return PartitionReader(path, offset, self.serializer, **options)

    # --- Life -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all files. Idempotent; the log can be opened again at any time."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        for writer in self._writers:
            writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Log({self.directory!r}, partitions={self.partition_count})"

    def _partition_directories(self) -> list[str]:
        return [partition_directory(self.directory, i) for i in range(self.partition_count)]

    def _check_partition(self, method: str, partition: int) -> None:
        if type(partition) is not int or not 0 <= partition < self.partition_count:
            raise InvalidArgumentError(
                f"Log.{method}: partition={partition!r}: write a number from 0 to "
                f"{self.partition_count - 1}"
            )


# --- Settings -------------------------------------------------------------------------------


def _settings(what: str, options: LogOptions) -> tuple[int, Serializer]:
    """The number of partitions and the serializer of a log, which is made if it is to be."""
    directory = options.directory
    found = _read_settings(directory)
    if found is None:
        partitions = options.partitions or options.default_partitions
        if partitions is None:
            raise InputNotFoundError(
                f"{what}({directory!r}): there is no log; write partitions=... to make one"
            )
        found = _create(what, options, partitions)
    if found["format"] != FORMAT:
        raise UnsupportedFeatureError(
            f"{what}({directory!r}): the log has format {found['format']}, and this version of "
            f"jetlet knows {FORMAT}; update jetlet"
        )
    partitions, made_with = found["partitions"], found["serializer"]
    if options.partitions not in (None, partitions):
        raise InvalidArgumentError(
            f"{what}({directory!r}): the log has {partitions} partitions, not "
            f"{options.partitions}; leave partitions out, or make another log"
        )
    # Whoever could write the log could write its settings: they do not decide what is believed.
    serializer: Serializer = "plain" if made_with == "pickle" else made_with
    if options.serializer == "pickle" and serializer == "plain":
        serializer = options.serializer
    if options.serializer not in (None, serializer):
        raise InvalidArgumentError(
            f"{what}({directory!r}): the log was made with serializer={made_with!r}, not "
            f"{options.serializer!r}; leave serializer out, or make another log"
        )
    return partitions, serializer


def _read_settings(directory: str) -> Any:
    try:
        return json.loads(Path(directory, _SETTINGS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _create(what: str, options: LogOptions, partitions: int) -> Any:
    directory = options.directory
    try:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103
    except (FileExistsError, NotADirectoryError):
        raise OutputExistsError(
            f"{what}({directory!r}): there is a file in the way; write another directory"
        ) from None
    foreign = [n for n in os.listdir(directory) if n != LOCK and not _is_part(n)]  # noqa: PTH208
    if foreign and _read_settings(directory) is None:
        raise OutputExistsError(
            f"{what}({directory!r}): the directory holds {foreign[0]!r}, which is not part of a "
            "log; write another directory"
        )
    syncs = options.sync_interval is not None
    with _creating(directory):
        found = _read_settings(directory)
        if found is not None:  # another process was quicker
            return found
        for i in range(partitions):
            path = partition_directory(directory, i)
            os.makedirs(path, exist_ok=True)  # noqa: PTH103
            os.close(os.open(segment_path(path, 0), os.O_CREAT | os.O_WRONLY, 0o666))
            if syncs:
                sync_directory(path)
        settings = {
            "format": FORMAT,
            "partitions": partitions,
            "serializer": options.serializer or "plain",
        }
        # The settings come last and at once: with them, the log is there.
        content = json.dumps(settings) + "\n"
        replace_file(Path(directory, _SETTINGS), content.encode(), sync=syncs)
    warn_if_open_to_all(logger, "the log", directory)
    return settings


@contextmanager
def _creating(directory: str) -> Iterator[None]:
    fd = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _is_part(name: str) -> bool:
    return name.startswith(_SETTINGS) or (len(name) == 5 and name.isdigit())
