"""A topic of Kafka as a sink of pipelines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from jetlet.connectors.kafka.client import KafkaDirectory, KafkaServers, check_topic, error_text
from jetlet.connectors.kafka.producer import KafkaProducer
from jetlet.connectors.kafka.transactions import KafkaCommits, KafkaTransactionWriter, Record
from jetlet.core.arguments import check_functions, check_name, shortened
from jetlet.errors import BadRecordError, ItemFailedError
from jetlet.pipeline.sink import SinkWriter, TransactionalSink, WriterPlace

T = TypeVar("T")

Text = bytes | str | None
MAX_BYTES: Final = 1_000_000
"""Largest size of a record in bytes, if the settings do not say otherwise."""
OVERHEAD: Final = 512
"""What may come to the size of a record, at the most, beside what is in it."""
_ADVICE: Final = (
    "a value and a key are bytes or strings, of at most 'message.max.bytes' of the settings: "
    "write for example value=lambda item: json.dumps(item)"
)

Headers = Mapping[str, Any] | Sequence[tuple[str, Any]] | None


@dataclass(frozen=True, slots=True)
class KafkaEncoding(Generic[T]):
    """What an item becomes; each takes the item."""

    value: Callable[[T], Text] | None
    key: Callable[[T], Text] | None
    timestamp: Callable[[T], int] | None
    headers: Callable[[T], Headers] | None

    def function(self) -> Callable[[T], tuple[Any, ...]]:
        """From an item to what :meth:`KafkaProducer.send` takes behind the topic."""
        value, key, timestamp, headers = self.value, self.key, self.timestamp, self.headers

        def encode(item: T) -> tuple[Any, ...]:
            pairs = None if headers is None else headers(item)
            return (
                item if value is None else value(item),
                None if key is None else key(item),
                0 if timestamp is None else _checked(timestamp(item)),
                list(pairs.items()) if isinstance(pairs, Mapping) else pairs,
            )

        return encode


def check_record(record: Record, limit: int, advice: str = _ADVICE) -> None:
    """Refuse what the client would, when it is too late to say so."""
    value, key, _, headers = record
    size = OVERHEAD
    for each in (value, key):
        if each is not None:
            if not isinstance(each, bytes | str):
                raise BadRecordError(f"{shortened(each)} cannot be sent; {advice}")
            size += len(each) if isinstance(each, bytes) else len(each.encode())
    for name, content in headers or ():
        if not isinstance(name, str) or not isinstance(content, bytes | str | None):
            raise BadRecordError(
                f"{shortened((name, content))} is not a header; write strings, or bytes as values"
            )
        size += len(name.encode()) + len(content or "")
    if size > limit:
        raise BadRecordError(f"the record has {size} bytes; {advice}")


def _checked(timestamp: Any) -> int:
    if type(timestamp) is not int or timestamp < 1:
        raise BadRecordError(
            f"timestamp=... returned {timestamp!r}; Kafka takes a whole number of milliseconds "
            "from 1 on"
        )
    return timestamp


class KafkaSink(TransactionalSink[T]):
    """Send items to a topic of Kafka, which must be there.

    Each of the functions takes an item. The ``value`` and the ``key`` of a record are bytes or a
    string; without ``value`` the item itself must be. Records with equal keys go to one partition,
    the same as with Kafka's own clients, and keep their order. The ``timestamp`` is in milliseconds
    since 1970; without it, it is the time of sending. ``servers`` are ``"host:port"`` of some
    brokers, ``settings`` those of librdkafka, such as ``{"linger.ms": 0}``.

    Each record is sent once and in order, whatever the connection does; one that is not delivered
    in time fails the job (``"message.timeout.ms"``, 5 minutes). Records are visible as they come,
    stay when the job fails, and a restart sends some of them again; all have arrived before a
    snapshot counts. In a job with the guarantee *exactly-once* they are kept until the next
    snapshot, saved in it, and sent when it counts, in a transaction of Kafka's, each once: for
    consumers with ``"isolation.level": "read_committed"``. Needs ``pip install 'jetlet[kafka]'``.
    """

    is_blocking = True

    def __init__(
        self,
        topic: str,
        servers: str | Sequence[str],
        *,
        value: Callable[[T], Text] | None = None,
        key: Callable[[T], Text] | None = None,
        timestamp: Callable[[T], int] | None = None,
        headers: Callable[[T], Headers] | None = None,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        what = "sinks.kafka"
        self._servers = KafkaServers.of(what, servers, settings)
        self._topic = check_topic(what, topic)
        check_functions(what, value=value, key=key, timestamp=timestamp, headers=headers)
        self._encoding = KafkaEncoding(value, key, timestamp, headers)
        self.name = check_name(what, name) or f"kafka-sink({topic})"

    def begin(self, run_id: str) -> None:
        # A topic is not made by the way: a wrong name would go unnoticed.
        with KafkaDirectory(self._servers) as directory:
            directory.places([self._topic])

    def open(self, run_id: str, writer_id: str) -> SinkWriter[T]:
        producer = KafkaProducer(self._servers, logging.getLogger(__name__))
        return KafkaWriter(self.name, self._topic, producer, self._encoding)

    def open_transactional(self, place: WriterPlace) -> KafkaTransactionWriter[T]:
        return KafkaTransactionWriter(self._servers, self._topic, self._records())

    def commit_last(self, run_id: str, vertex: str, prepared: Sequence[Any]) -> None:
        commits = KafkaCommits(self._servers, self._topic)
        try:
            for each in prepared:
                commits.commit(each)
        finally:
            commits.close()

    def _records(self) -> Callable[[Sequence[T]], list[Record]]:
        """From items to records, all of which can be sent."""
        encode, name = self._encoding.function(), self.name
        limit = int(self._servers.settings.get("message.max.bytes", MAX_BYTES))

        def records(batch: Sequence[T]) -> list[Record]:
            made = []
            for item in batch:
                try:
                    record = encode(item)
                    check_record(record, limit)
                except Exception as error:
                    raise ItemFailedError(item, name) from error
                made.append(record)
            return made

        return records


class KafkaWriter(SinkWriter[T]):
    """Sends items through a producer, which it closes. What is written arrives by and by."""

    def __init__(
        self, name: str, topic: str, producer: KafkaProducer, encoding: KafkaEncoding[T]
    ) -> None:
        self._name = name
        self._topic = topic
        self._producer = producer
        self._encode = encoding.function()

    def write(self, batch: Sequence[T]) -> None:
        from confluent_kafka import KafkaException

        topic, send, encode = self._topic, self._producer.send, self._encode
        for item in batch:
            try:
                record = encode(item)
            except Exception as error:
                raise ItemFailedError(item, self._name) from error
            try:
                send(topic, *record)
            except (TypeError, ValueError, KafkaException) as error:
                raise ItemFailedError(item, self._name) from BadRecordError(
                    f"{error_text(error)}; {_ADVICE}"
                )
        self._producer.check()

    def sync(self) -> bool:
        return self._producer.flush()

    def interrupt(self) -> None:
        self._producer.interrupt()

    def finish(self) -> None:
        while not self._producer.flush():
            pass
        self._producer.close()

    def abort(self) -> None:
        self._producer.close()
