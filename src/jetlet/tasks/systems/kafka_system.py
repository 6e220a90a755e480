"""KafkaSystem: streams that are topics of Kafka.

Messages and keys are bytes, or what serdes (:mod:`jetlet.tasks.state.serdes`) make of them. Topics
are made with Kafka's own tools. Where tasks have come to is in their checkpoints, not in a group of
Kafka.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from jetlet.connectors.kafka.client import (
    KafkaDirectory,
    KafkaServers,
    Place,
    check_topic,
    error_text,
)
from jetlet.connectors.kafka.consumer import KafkaConsumer
from jetlet.connectors.kafka.producer import KafkaProducer
from jetlet.connectors.kafka.sink import MAX_BYTES, check_record
from jetlet.connectors.kafka.transactions import Record
from jetlet.core.arguments import shortened
from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.tasks.envelope import (
    IncomingEnvelope,
    Offset,
    OutgoingEnvelope,
    SystemStreamPartition,
)
from jetlet.tasks.state.serdes import Serde, value_serde
from jetlet.tasks.systems.kafka_transactions import KafkaTransactions, check_partition
from jetlet.tasks.systems.system import (
    LATEST,
    Polled,
    Start,
    System,
    SystemConsumer,
    SystemProducer,
    TransactionalProducer,
)

logger = logging.getLogger("jetlet.tasks.kafka")

POLL_SECONDS: Final = 0.05
"""How long a poll waits for a message; it cannot be interrupted."""


class KafkaSystem(System):
    """The topics of some servers. Picklable if the settings are."""

    is_blocking = True
    has_transactions = True

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        key: Any = bytes,
        value: Any = bytes,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        what = "systems.kafka"
        self._servers = KafkaServers.of(what, servers, settings)
        self._key = value_serde(what, key)
        self._value = value_serde(what, value)

    def partition_count(self, stream: str) -> int:
        check_topic("systems.kafka", stream)
        with KafkaDirectory(self._servers) as directory:
            return len(directory.places([stream]))

    def newest(
        self, partitions: Sequence[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, Offset | None]:
        with KafkaDirectory(self._servers) as directory:
            bounds = {key: directory.bounds(_place(key)) for key in partitions}
        return {key: end - 1 if end > start else None for key, (start, end) in bounds.items()}

    def before(
        self, partitions: Sequence[SystemStreamPartition], time_ms: int
    ) -> Mapping[SystemStreamPartition, Offset]:
        with KafkaDirectory(self._servers) as directory:
            offsets = directory.offsets_at(list(map(_place, partitions)), time_ms)
        return {key: offset - 1 for key, offset in zip(partitions, offsets, strict=True)}

    def prepare_output(self, stream: str, partitions: int | None, default: int) -> None:
        # A topic is not made by the way: a wrong name would go unnoticed.
        found = self.partition_count(stream)
        if partitions not in (None, found):
            raise InvalidArgumentError(
                f"topic {stream!r} of {self!r} has {found} partitions, not {partitions}; leave "
                "partitions out, or change the topic"
            )

    def consumer(self, starts: Mapping[SystemStreamPartition, Start]) -> KafkaSystemConsumer:
        with KafkaDirectory(self._servers) as directory:
            offsets = {
                key: _first_offset(start, directory, _place(key)) for key, start in starts.items()
            }
        consumer = KafkaConsumer(self._servers, logger=logger)
        return KafkaSystemConsumer(consumer, offsets, self._key, self._value)

    def producer(self) -> KafkaSystemProducer:
        return KafkaSystemProducer(KafkaProducer(self._servers, logger), self._key, self._value)

    def transactional_producer(self, application: str, task: str) -> TransactionalProducer:
        return KafkaTransactions(self._servers, application, self._record)

    def _record(self, stream: str, envelope: OutgoingEnvelope, now: int, count: int) -> Record:
        """What is to be sent later, and must be such that Kafka takes it."""
        partition = check_partition(stream, envelope.partition, count)
        timestamp: Any = envelope.timestamp or now
        try:
            if not isinstance(timestamp, int) or timestamp not in range(1 << 63):
                raise ValueError(f"timestamp={timestamp!r}: write milliseconds since 1970")
            value, key = _encoded(envelope, self._key, self._value)
            record = value, key, timestamp, None
            limit = int(self._servers.settings.get("message.max.bytes", MAX_BYTES))
            check_record(record, limit, "Kafka takes bytes, of 'message.max.bytes' at the most")
        except (BadRecordError, TypeError, ValueError) as error:
            raise _refused(stream, envelope, error) from error
        return *record, partition

    def __repr__(self) -> str:
        return f"systems.kafka({self._servers.addresses!r})"


def _place(key: SystemStreamPartition) -> Place:
    return key.stream, key.partition


def _first_offset(start: Start, directory: KafkaDirectory, place: Place) -> int:
    if start.after is not None:
        return int(start.after) + 1
    first, end = directory.bounds(place)
    return end if start.default == LATEST else first


class KafkaSystemConsumer(SystemConsumer):
    """Polls all partitions together; those that are not wanted are paused meanwhile."""

    def __init__(
        self,
        consumer: KafkaConsumer,
        offsets: Mapping[SystemStreamPartition, int],
        key: Serde,
        value: Serde,
    ) -> None:
        self._consumer = consumer
        self._keys = {_place(key): key for key in offsets}
        self._wanted = set(self._keys)
        self._decode_key, self._decode_value = key.decode, value.decode
        self._is_closed = False
        consumer.assign({_place(key): offset for key, offset in offsets.items()})

    def poll(
        self, wanted: Collection[SystemStreamPartition], limit: int
    ) -> Sequence[Polled] | None:
        places = set(map(_place, wanted))
        if places != self._wanted:
            if surplus := self._wanted - places:
                self._consumer.pause(surplus)
            if missing := places - self._wanted:
                self._consumer.resume(missing)
            self._wanted = places
        polled = []
        for place, messages in self._consumer.poll(limit, POLL_SECONDS).items():
            key = self._keys[place]
            polled.append(Polled(key, [self._envelope(key, message) for message in messages]))
        ends = self._consumer.positions
        return polled + [
            Polled(self._keys[place], (), upto=ends[place] - 1) for place in self._consumer.ended
        ]

    def _envelope(self, partition: SystemStreamPartition, message: Any) -> IncomingEnvelope:
        offset, key, value = message.offset(), message.key(), message.value()
        try:
            if value is not None:
                value = self._decode_value(value)
            if key is not None:
                key = self._decode_key(key)
        except Exception as error:
            raise BadRecordError(
                f"{partition}, offset {offset}: cannot be decoded: {type(error).__name__}: {error}"
            ) from error
        return IncomingEnvelope(partition, offset, value, key, message.timestamp()[1])

    def lag(self, partition: SystemStreamPartition, after: Offset | None) -> int | None:
        end = self._consumer.known_end(_place(partition))
        return None if end is None or after is None else max(end - 1 - int(after), 0)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._consumer.close()


class KafkaSystemProducer(SystemProducer):
    """Messages go to the client's queue; a flush waits until Kafka has them."""

    def __init__(self, producer: KafkaProducer, key: Serde, value: Serde) -> None:
        self._producer = producer
        self._key, self._value = key, value
        self._lock = threading.Lock()
        self._is_closed = False

    def send(self, stream: str, batch: Sequence[OutgoingEnvelope]) -> None:
        with self._lock:
            for envelope in batch:
                self._send(stream, envelope)
            self._producer.check()

    def _send(self, stream: str, envelope: OutgoingEnvelope) -> None:
        from confluent_kafka import KafkaException

        partition = -1 if envelope.partition is None else envelope.partition
        try:
            value, key = _encoded(envelope, self._key, self._value)
            self._producer.send(stream, value, key, envelope.timestamp or 0, partition=partition)
        except (KafkaException, TypeError, ValueError) as error:
            raise _refused(stream, envelope, error) from error

    def flush(self) -> None:
        with self._lock:
            while not self._producer.flush():
                pass

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._producer.close()


def _encoded(envelope: OutgoingEnvelope, key: Serde, value: Serde) -> tuple[Any, Any]:
    """The value and the key of a record."""
    return (
        None if envelope.message is None else value.encode(envelope.message),
        None if envelope.key is None else key.encode(envelope.key),
    )


def _refused(stream: str, envelope: OutgoingEnvelope, error: Exception) -> BadRecordError:
    return BadRecordError(
        f"{shortened(envelope)} cannot be sent to topic {stream!r}: {error_text(error)}; "
        "write key=... and value=... of systems.kafka for what your messages are"
    )
