"""Checkpoints: how far each task of an application has come, kept between two runs.

Users write :func:`in_directory`, :func:`in_log` or :func:`in_kafka`; :func:`in_memory` is for
tests. In files, a task belongs to the container that reads or writes its checkpoints first: a lock,
which ends with the process, keeps others out, so an older container can never write over what a
newer one has written.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol
from zlib import crc32

from jetlet.errors import BadRecordError, JetletError
from jetlet.log import Log
from jetlet.storage.replacement import replace_file
from jetlet.tasks.envelope import SystemStreamPartition
from jetlet.tasks.state.changelog import path_part
from jetlet.tasks.state.container_storage import Checkpoint, CheckpointFactory, CheckpointManager

__all__ = ["InDirectory", "InLog", "InMemory", "in_directory", "in_kafka", "in_log", "in_memory"]

logger = logging.getLogger("jetlet.tasks")

FORMAT: Final = 1

TAKEOVER_SECONDS: Final = 10.0
"""How long a task waits for a container that is still closing it."""

Directory = str | os.PathLike[str]


def in_directory(directory: Directory, *, fsync: bool = False) -> InDirectory:
    """Keep checkpoints in files below a directory.

    :param fsync: wait for the disk with every checkpoint, to survive a power failure as well as the
        end of the process.
    """
    return InDirectory(_absolute(directory), fsync)


def in_log(directory: Directory, *, fsync: bool = False) -> InLog:
    """Keep checkpoints in embedded logs below a directory, one for each task.

    Others can follow them there: each record is a checkpoint.

    :param fsync: wait for the disk with every checkpoint, to survive a power failure as well as the
        end of the process.
    """
    return InLog(_absolute(directory), fsync)


def in_kafka(
    servers: str | Sequence[str], topic: str, *, settings: Mapping[str, Any] | None = None
) -> CheckpointFactory:
    """Keep checkpoints in a topic of Kafka, which several applications may share.

    The topic is there already, with ``cleanup.policy=compact``. Nothing keeps a second container
    with the same tasks out; an engine never starts one.

    :param settings: further settings of librdkafka.
    """
    from jetlet.connectors.kafka.client import KafkaServers, check_topic
    from jetlet.tasks.state.kafka_state import KafkaCheckpoints

    what = "checkpoints.in_kafka"
    return KafkaCheckpoints(KafkaServers.of(what, servers, settings), check_topic(what, topic))


def in_memory() -> InMemory:
    """Keep checkpoints in this object, from one run to the next in the same process."""
    return InMemory()


# --- Bytes ----------------------------------------------------------------------------------


def encode_checkpoint(checkpoint: Checkpoint, version: int) -> bytes:
    """A line of JSON, with a checksum before it."""
    offsets = [[*partition, offset] for partition, offset in checkpoint.offsets.items()]
    content = {
        "format": FORMAT,
        "version": version,
        "offsets": offsets,
        "stores": dict(checkpoint.stores),
        "transactions": {name: dict(of) for name, of in checkpoint.transactions.items()},
    }
    text = json.dumps(content).encode()
    return b"%08x %s\n" % (crc32(text), text)


def decode_checkpoint(data: bytes) -> tuple[Checkpoint, int]:
    """The checkpoint and its version; raises `BadRecordError` if anything in it was changed."""
    checksum, _, text = data.partition(b" ")
    text = text[:-1]
    if checksum != b"%08x" % crc32(text):
        raise BadRecordError("a checkpoint that is not whole")
    content = json.loads(text)
    if content["format"] != FORMAT:
        raise JetletError(
            f"a checkpoint has format {content['format']}, and this version of jetlet knows "
            f"{FORMAT}; update jetlet"
        )
    offsets = {
        SystemStreamPartition(system, stream, partition): offset
        for system, stream, partition, offset in content["offsets"]
    }
    transactions = content.get("transactions", {})
    return Checkpoint(offsets, content["stores"], transactions), content["version"]


# --- In memory ------------------------------------------------------------------------------


@dataclass(slots=True)
class InMemory:
    """See `in_memory`."""

    is_exclusive: ClassVar = False

    applications: dict[str, dict[str, Checkpoint]] = field(default_factory=dict)

    def open(self, application: str) -> CheckpointManager:
        return _MemoryManager(self.applications.setdefault(application, {}))


class _MemoryManager:
    def __init__(self, checkpoints: dict[str, Checkpoint]) -> None:
        self._checkpoints = checkpoints

    def read(self, task: str) -> Checkpoint | None:
        return self._checkpoints.get(task)

    def write(self, task: str, checkpoint: Checkpoint) -> None:
        self._checkpoints[task] = Checkpoint(
            dict(checkpoint.offsets), dict(checkpoint.stores), dict(checkpoint.transactions)
        )

    def close(self) -> None:
        pass


# --- In files -------------------------------------------------------------------------------


class _TaskCheckpoints(Protocol):
    """The checkpoints of one task, which is the owner's alone."""

    latest: Checkpoint | None

    def write(self, checkpoint: Checkpoint) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class InDirectory:
    """See `in_directory`."""

    is_exclusive: ClassVar = True

    directory: str
    fsync: bool = False

    def open(self, application: str) -> CheckpointManager:
        return _FileManager(self, application)

    def open_task(self, path: Path) -> _TaskCheckpoints:
        return _CheckpointFiles(path, self.fsync)


@dataclass(frozen=True, slots=True)
class InLog:
    """See `in_log`."""

    is_exclusive: ClassVar = True

    directory: str
    fsync: bool = False

    def open(self, application: str) -> CheckpointManager:
        return _FileManager(self, application)

    def open_task(self, path: Path) -> _TaskCheckpoints:
        return _CheckpointLog(path, self.fsync)


class _FileManager:
    """Opens a task's checkpoints when it is first asked for them, and keeps them open."""

    def __init__(self, place: InDirectory | InLog, application: str) -> None:
        self._place = place
        self._directory = Path(place.directory, path_part(application))
        self._tasks: dict[str, tuple[_TaskCheckpoints, int]] = {}

    def read(self, task: str) -> Checkpoint | None:
        return self._open(task).latest

    def write(self, task: str, checkpoint: Checkpoint) -> None:
        self._open(task).write(checkpoint)

    def close(self) -> None:
        while self._tasks:
            checkpoints, lock = self._tasks.popitem()[1]
            checkpoints.close()
            os.close(lock)

    def _open(self, task: str) -> _TaskCheckpoints:
        found = self._tasks.get(task)
        if found is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            path = self._directory / path_part(task)
            lock = _lock(f"{path}.lock", task)
            try:
                found = self._place.open_task(path), lock
            except BaseException:
                os.close(lock)
                raise
            self._tasks[task] = found
        return found[0]


class _CheckpointFiles:
    """Two files in turn: each new checkpoint replaces the older one, as a whole."""

    def __init__(self, path: Path, fsync: bool) -> None:
        self._fsync = fsync
        self._paths = [path.with_name(f"{path.name}.{i}.checkpoint") for i in range(2)]
        self._version = 0
        self.latest: Checkpoint | None = None
        damaged = None
        for file in self._paths:
            try:
                checkpoint, version = decode_checkpoint(file.read_bytes())
            except FileNotFoundError:
                continue
            except BadRecordError:
                damaged = file
                continue
            if version > self._version:
                self.latest, self._version = checkpoint, version
        if damaged and self.latest:
            logger.warning("%s is damaged; the checkpoint before it is used", damaged)
        elif damaged:
            raise JetletError(
                f"{damaged} is damaged, and there is no other checkpoint; remove it to begin anew"
            )

    def write(self, checkpoint: Checkpoint) -> None:
        version = self._version + 1
        path = self._paths[version % 2]
        replace_file(path, encode_checkpoint(checkpoint, version), sync=self._fsync)
        self.latest, self._version = checkpoint, version

    def close(self) -> None:
        pass


class _CheckpointLog:
    """A log of checkpoints, of which the last one counts."""

    def __init__(self, path: Path, fsync: bool) -> None:
        self._log = Log(
            path,
            partitions=1,
            serializer="bytes",
            segment_bytes=_SEGMENT_BYTES,
            fsync="batch" if fsync else "none",
        )
        self._version = 0
        self._bytes = 0
        self.latest: Checkpoint | None = None
        end = self._log.end_offsets()[0]
        if end > self._log.start_offsets()[0]:
            data = self._log.read(0, end - 1, 1).items[0]
            self.latest, self._version = decode_checkpoint(data)

    def write(self, checkpoint: Checkpoint) -> None:
        data = encode_checkpoint(checkpoint, self._version + 1)
        offset = self._log.append([data], partition=0)[0].start
        self.latest, self._version = checkpoint, self._version + 1
        self._bytes += len(data)
        if not self._version % _DISCARD_EVERY or self._bytes > _DISCARD_BYTES:
            self._log.discard_before(0, offset)
            self._bytes = 0

    def close(self) -> None:
        self._log.close()


_SEGMENT_BYTES: Final = 1 << 20
_DISCARD_EVERY: Final = 1000
"""Checkpoints between two times that old ones are deleted."""
_DISCARD_BYTES: Final = 64 << 20
"""The same, for checkpoints that have messages in them."""


def _lock(path: str, task: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    deadline = time.monotonic() + TAKEOVER_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                raise JetletError(
                    f"task {task!r} runs in another container already: it holds {path}; stop it, "
                    "or give this application another name"
                ) from None
            time.sleep(0.01)


def _absolute(directory: Directory) -> str:
    return os.path.abspath(os.path.expanduser(os.fspath(directory)))  # noqa: PTH100, PTH111
