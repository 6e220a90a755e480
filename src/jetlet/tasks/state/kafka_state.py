"""State in Kafka: changelogs and checkpoints in topics that are compacted.

Such a topic keeps the latest record of each key, so nothing here has to be deleted. It is made with
Kafka's own tools, with ``cleanup.policy=compact`` and a ``min.compaction.lag.ms`` that is longer
than an application may be down: until it runs again, a change that was not committed must not take
the place of the one before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from jetlet.connectors.kafka.client import KafkaDirectory, KafkaServers, Place, error_text
from jetlet.connectors.kafka.consumer import KafkaConsumer
from jetlet.connectors.kafka.producer import KafkaProducer
from jetlet.errors import InvalidArgumentError, JetletError
from jetlet.tasks.state.checkpoints import decode_checkpoint, encode_checkpoint
from jetlet.tasks.state.container_storage import Checkpoint, StoreContext
from jetlet.tasks.state.local_store import Change, Position

if TYPE_CHECKING:
    from confluent_kafka import Message

logger = logging.getLogger("jetlet.tasks.kafka")

READ_TIMEOUT: Final = 30.0
"""Seconds without a record, though there must be one, before a restore is given up."""
_POLL_SECONDS: Final = 0.1
_LIMIT: Final = 10_000


class KafkaChangelog:
    """One partition of a topic; the task is its only writer."""

    cleans_itself = True

    def __init__(self, servers: KafkaServers, place: Place) -> None:
        self._servers = servers
        self._place = place
        self._directory = KafkaDirectory(servers)
        self._partition: KafkaPartition | None = None
        """To read from, while the store is restored."""
        self._producer: KafkaProducer | None = None

    def bounds(self) -> tuple[int, int]:
        return self._directory.bounds(self._place)

    def mark(self, end: int) -> int | None:
        return 0  # the record before may have been compacted away: it tells nothing

    def read(self, start: int, stop: int) -> tuple[Sequence[Change], Position]:
        if self._partition is None:
            self._partition = KafkaPartition(self._servers, self._place)
        messages, end = self._partition.read(start, stop)
        changes = [(message.key() or b"", message.value()) for message in messages]
        return changes, Position(end)

    def append(self, changes: Sequence[Change]) -> Position:
        self._close_partition()
        if self._producer is None:
            self._producer = KafkaProducer(self._servers, logger)
        _send(self._producer, self._place, changes)
        return Position(self.bounds()[1])

    def discard_before(self, position: int) -> None:
        pass

    def close(self) -> None:
        self._close_partition()
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        self._directory.close()

    def _close_partition(self) -> None:
        if self._partition is not None:
            self._partition.close()
            self._partition = None

    def __str__(self) -> str:
        return f"changelog {self._place[0]}[{self._place[1]}] in Kafka"


@dataclass(frozen=True, slots=True)
class KafkaChangelogs:
    """Makes changelogs in the partitions of a topic; see
    `jetlet.tasks.state.changelog.in_kafka`.
    """

    servers: KafkaServers
    topic: str

    def open(self, context: StoreContext) -> KafkaChangelog:
        with KafkaDirectory(self.servers) as directory:
            found = len(directory.places([self.topic]))
        if found < context.partition_count:
            raise InvalidArgumentError(
                f"store {context.name!r}: the topic {self.topic!r} of its changelog has {found} "
                f"partitions, and there are {context.partition_count} tasks; write a topic with at "
                "least as many"
            )
        return KafkaChangelog(self.servers, (self.topic, context.partition))


@dataclass(frozen=True, slots=True)
class KafkaCheckpoints:
    """Keeps checkpoints in the first partition of a topic; see `checkpoints.in_kafka`."""

    servers: KafkaServers
    topic: str
    is_exclusive: ClassVar = False

    def open(self, application: str) -> KafkaCheckpointManager:
        return KafkaCheckpointManager(self.servers, (self.topic, 0), application)


class KafkaCheckpointManager:
    """Reads all checkpoints when it is opened; the latest one of each task counts."""

    def __init__(self, servers: KafkaServers, place: Place, application: str) -> None:
        self._place = place
        self._application = application
        with KafkaDirectory(servers) as directory:
            directory.places([place[0]])
            start, end = directory.bounds(place)
        latest: dict[bytes, bytes] = {}
        partition = KafkaPartition(servers, place)
        try:
            while start < end:
                messages, start = partition.read(start, end)
                latest.update((m.key() or b"", m.value() or b"") for m in messages)
        finally:
            partition.close()
        self._kept = {key: value for key, value in latest.items() if value}
        self._producer = KafkaProducer(servers, logger)
        self._lock = threading.Lock()
        self._is_closed = False

    def read(self, task: str) -> Checkpoint | None:
        found = self._decoded(task)
        return None if found is None else found[0]

    def write(self, task: str, checkpoint: Checkpoint) -> None:
        with self._lock:
            found = self._decoded(task)
            data = encode_checkpoint(checkpoint, 1 if found is None else found[1] + 1)
            key = self._key(task)
            _send(self._producer, self._place, [(key, data)])
            self._kept[key] = data

    def _decoded(self, task: str) -> tuple[Checkpoint, int] | None:
        data = self._kept.get(self._key(task))
        return None if data is None else decode_checkpoint(data)

    def _key(self, task: str) -> bytes:
        return f"{self._application}\x00{task}".encode()

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._producer.close()


class KafkaPartition:
    """Reads what is there of one partition."""

    def __init__(self, servers: KafkaServers, place: Place) -> None:
        self._place = place
        self._consumer = KafkaConsumer(servers, on_gap="fail", logger=logger)

    def read(self, start: int, stop: int) -> tuple[list[Message[Any, Any]], int]:
        """Some records from an offset on, before another, and where to read on.

        Records that were compacted away leave gaps, also right before ``stop``.
        """
        if self._consumer.positions.get(self._place) != start:
            self._consumer.assign({self._place: start})
        deadline = time.monotonic() + READ_TIMEOUT
        while True:
            found = self._consumer.poll(_LIMIT, _POLL_SECONDS).get(self._place)
            if found:
                return list(_before(stop, found)), min(self._consumer.positions[self._place], stop)
            if time.monotonic() > deadline:
                topic, partition = self._place
                raise JetletError(
                    f"{topic}[{partition}]: Kafka did not send the records from {start} to "
                    f"{stop - 1} within {READ_TIMEOUT:g} s"
                )

    def close(self) -> None:
        self._consumer.close()


def _before(stop: int, messages: Sequence[Message[Any, Any]]) -> Iterator[Message[Any, Any]]:
    for message in messages:
        offset = message.offset()
        assert offset is not None
        if offset < stop:
            yield message


def _send(producer: KafkaProducer, place: Place, records: Sequence[Change]) -> None:
    """Send records, and wait until Kafka has them."""
    from confluent_kafka import KafkaException

    topic, partition = place
    try:
        for key, value in records:
            producer.send(topic, value, key, partition=partition)
    except KafkaException as error:
        raise JetletError(
            f"a change cannot be written to {topic}[{partition}]: {error_text(error)}"
        ) from error
    while not producer.flush():
        pass
