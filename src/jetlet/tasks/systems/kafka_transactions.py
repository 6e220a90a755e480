"""Transactions of tasks on Kafka: what a task sends is held back until it is committed.

As with pipelines, see :mod:`jetlet.connectors.kafka.transactions`, records themselves are what is
prepared: nobody else could commit a transaction of Kafka's whose producer was killed. They are in
the checkpoint, and behind it are sent in one transaction, which leaves a mark that it is done.

Here marks are numbers in a row, so that a recovery also sees if the one before is not there: then
nobody knows what was done, and it says so rather than guess. The name, under which Kafka lets one
producer at a time send and keeps the mark, is in the checkpoint as well; a task whose checkpoint
has none has nothing to make an end of, and takes a new one.
"""

from __future__ import annotations

import threading
import time
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jetlet.connectors.kafka.client import KafkaDirectory, KafkaServers
from jetlet.connectors.kafka.transactions import MarkingProducer, Record
from jetlet.core.clock import SYSTEM_CLOCK
from jetlet.errors import InvalidArgumentError, JetletError
from jetlet.tasks.envelope import OutgoingEnvelope
from jetlet.tasks.systems.system import TransactionalProducer

REFRESH: Final = 24 * 3600.0
"""Seconds after which a transaction without records is sent: Kafka forgets names and marks that
nobody has used for days."""


class KafkaTransactions(TransactionalProducer):
    """The transactions of one task. ``encode`` makes a record for a topic, or refuses to."""

    def __init__(
        self, servers: KafkaServers, application: str, encode: Callable[..., Record]
    ) -> None:
        self._servers = servers
        self._application = application
        self._encode = encode
        self._lock = threading.Lock()
        """Not held while Kafka is waited for: others go on sending during a commit."""
        self._topics: dict[str, _TopicTransactions] = {}

    def recover(
        self, streams: Sequence[str], prepared: Mapping[str, Any], *, exactly: bool = True
    ) -> None:
        for name in streams:
            self._topic(name)  # nothing of an earlier run is there, and topics are asked for here
        for name, each in prepared.items():
            self._topic(name).recover(each, exactly=exactly)

    def send(self, stream: str, batch: Sequence[OutgoingEnvelope]) -> None:
        topic = self._topic(stream)
        now = SYSTEM_CLOCK.time_ms()
        records = [self._encode(stream, each, now, topic.partition_count) for each in batch]
        with self._lock:
            topic.records += records

    def flush(self) -> None:
        """What was sent is safe once it is prepared."""

    def prepare(self) -> dict[str, Any]:
        prepared = {}
        for name, topic in list(self._topics.items()):
            with self._lock:
                records, topic.records = topic.records, []
            packed = topic.prepare(records)
            if packed is not None:
                prepared[name] = packed
        return prepared

    def commit(self, prepared: Mapping[str, Any]) -> None:
        for name, each in prepared.items():
            self._topics[name].commit(each)

    def close(self) -> None:
        for topic in list(self._topics.values()):
            topic.close()

    def _topic(self, name: str) -> _TopicTransactions:
        found = self._topics.get(name)
        if found is None:
            found = _TopicTransactions(self._servers, name, self._application)
            with self._lock:
                found = self._topics.setdefault(name, found)
        return found


class _TopicTransactions:
    """One transaction after the other, each of which is settled before the next is prepared."""

    def __init__(self, servers: KafkaServers, topic: str, application: str) -> None:
        self._servers = servers
        self._topic = topic
        self._application = application
        with KafkaDirectory(servers) as directory:
            self.partition_count = len(directory.places([topic]))
        self.records: list[Record] = []
        self._ending = threading.Lock()
        self._name = ""
        self._producer: MarkingProducer | None = None
        self._is_unsettled = False
        """True from when something is prepared until it is sent. If that fails, only a recovery
        can find out what has become of it."""
        self._is_closed = False
        self._sent_at = 0.0

    def recover(self, packed: Any, *, exactly: bool) -> None:
        name, number, records = packed
        with self._ending:
            producer = self._open(name)
            if exactly and producer.mark not in (number - 1, number):
                raise JetletError(
                    f"{self._servers.what}: whether the messages of the last checkpoint are in "
                    f"topic {self._topic!r} cannot be known: it names transaction {number} of "
                    f"{name!r}, and Kafka at {self._servers.addresses} says that the last was "
                    f"{producer.mark if producer.mark >= 0 else 'none'}. Either Kafka has "
                    "forgotten it (after offsets.retention.minutes, 7 days by default), or the "
                    "checkpoint is an old one. Run the application with "
                    "TaskConfig(processing_guarantee='at-least-once') until its next commit; "
                    "messages may be sent again"
                )
            if producer.mark < number:
                producer.send_all([list(map(_unpacked, records))], number)
            self._settled()

    def prepare(self, records: Sequence[Record]) -> Any:
        with self._ending:
            self._check()
            is_due = self._producer and time.monotonic() - self._sent_at >= REFRESH
            if not records and not is_due:
                return None
            producer = self._producer
            if producer is None:
                producer = self._open(f"jetlet-{self._application}-{uuid.uuid4().hex}")
                # So that a mark which is not there is known to have been forgotten.
                producer.send_all([], 0)
            self._is_unsettled = True
            return [self._name, producer.mark + 1, list(map(_packed, records))]

    def commit(self, packed: Any) -> None:
        name, number, records = packed
        with self._ending:
            producer = self._producer
            if self._is_closed or producer is None or name != self._name:
                raise self._unknown()
            if number <= producer.mark:
                return
            if not self._is_unsettled:
                raise self._unknown()
            producer.send_all([list(map(_unpacked, records))], number)
            self._settled()

    def close(self) -> None:
        """Also while another thread is in one of the others, which then raises."""
        self._is_closed = True
        if self._producer is not None:
            self._producer.interrupt()
        with self._ending:
            if self._producer is not None:
                self._producer.close()
                self._producer = None

    def _open(self, name: str) -> MarkingProducer:
        self._check()
        self._is_unsettled = True
        self._name = name
        self._producer = producer = MarkingProducer(self._servers, self._topic, name)
        if self._is_closed:
            producer.interrupt()
        producer.open()
        return producer

    def _settled(self) -> None:
        self._is_unsettled = False
        self._sent_at = time.monotonic()

    def _check(self) -> None:
        if self._is_unsettled or self._is_closed:
            raise self._unknown()

    def _unknown(self) -> JetletError:
        return JetletError(
            f"{self._servers.what}: a transaction on topic {self._topic!r} was not committed; what "
            "has become of it is found out when the application starts again"
        )


def check_partition(stream: str, partition: Any, count: int) -> int:
    """The partition of a record; Kafka chooses one if it is -1."""
    if partition is None:
        return -1
    if not isinstance(partition, int) or partition not in range(count):
        raise InvalidArgumentError(
            f"collector.send to {stream!r}, partition={partition!r}: it has the partitions from 0 "
            f"to {count - 1}"
        )
    return partition


# --- In checkpoints -------------------------------------------------------------------------


def _packed(record: Record) -> list[Any]:
    value, key, timestamp, _, partition = record
    return [_text(value), _text(key), timestamp, partition]


def _unpacked(packed: Sequence[Any]) -> Record:
    value, key, timestamp, partition = packed
    return _bytes(value), _bytes(key), timestamp, None, partition


def _text(data: bytes | str | None) -> str | None:
    if data is None:
        return None
    return b64encode(data.encode() if isinstance(data, str) else data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
