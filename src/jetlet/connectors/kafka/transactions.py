"""Transactions on Kafka that end with the snapshots of a job.

Kafka has transactions, but only the producer that began one can commit it: what a job had prepared
when it crashed would be lost. So records are kept in memory from one snapshot to the next and saved
in it; to commit them is to send them, in one transaction of Kafka's, together with a *mark*. It is
the offset of a consumer group that nobody is in, so it counts if the records do, and a commit that
is repeated is known to have been done. A producer that begins makes an end of what an earlier one
of its name was about to do.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetlet.connectors.kafka.client import KafkaDirectory, KafkaServers, error_text
from jetlet.connectors.kafka.producer import WAIT, KafkaProducer
from jetlet.errors import JetletError, RestartableError, ServerUnreachableError
from jetlet.pipeline.sink import TransactionId, TransactionWriter

if TYPE_CHECKING:
    from confluent_kafka import KafkaException

T = TypeVar("T")
R = TypeVar("R")

Record = tuple[Any, ...]
"""A record as :meth:`KafkaProducer.send` takes it behind the topic."""

PATIENCE: Final = 60.0
"""Seconds in which Kafka has to end a transaction, as long as it has for one by default."""


@dataclass(frozen=True, slots=True)
class KafkaTransaction:
    """A prepared transaction, with all that is to be sent."""

    id: TransactionId
    batches: tuple[bytes, ...]
    """Lists of records, each pickled when it came: a snapshot has to take them at one go."""


class KafkaTransactionWriter(TransactionWriter[T]):
    """Collects records, and sends them when they are committed."""

    def __init__(
        self, servers: KafkaServers, topic: str, encode: Callable[[Sequence[T]], list[Record]]
    ) -> None:
        self._encode = encode
        self._commits = KafkaCommits(servers, topic)
        self._id: TransactionId | None = None
        self._batches: list[bytes] = []

    def begin(self, transaction: TransactionId) -> None:
        self._id = transaction
        self._batches = []

    def write(self, batch: Sequence[T]) -> None:
        self._batches.append(pickle.dumps(self._encode(batch), pickle.HIGHEST_PROTOCOL))

    def prepare(self) -> KafkaTransaction:
        assert self._id is not None
        prepared = KafkaTransaction(self._id, tuple(self._batches))
        self._batches = []
        return prepared

    def commit(self, prepared: KafkaTransaction) -> None:
        self._commits.commit(prepared)

    def recover(self, prepared: Sequence[KafkaTransaction]) -> None:
        for each in prepared:
            self._commits.commit(each)

    def interrupt(self) -> None:
        self._commits.interrupt()

    def close(self) -> None:
        self._commits.close()


class KafkaCommits:
    """Sends prepared transactions to a topic, each once."""

    def __init__(self, servers: KafkaServers, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._producers: dict[str, MarkingProducer] = {}
        self._is_interrupted = False

    def commit(self, prepared: KafkaTransaction) -> None:
        """Send a transaction, unless that was done before."""
        name, mark = name_of(prepared.id), mark_of(prepared.id)
        producer = self._producers.get(name)
        if producer is None:
            producer = MarkingProducer(self._servers, self._topic, name)
            self._producers[name] = producer
            if self._is_interrupted:
                producer.interrupt()
            producer.open()
        if producer.mark < mark:
            producer.send_all(map(pickle.loads, prepared.batches), mark)

    def interrupt(self) -> None:
        """Make a call that waits raise; from any thread."""
        self._is_interrupted = True
        for producer in list(self._producers.values()):
            producer.interrupt()

    def close(self) -> None:
        """Release everything."""
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()


class MarkingProducer(KafkaProducer):
    """Sends records in transactions, the last of which is known by its mark."""

    def __init__(self, servers: KafkaServers, topic: str, name: str) -> None:
        super().__init__(servers, logging.getLogger(__name__), {"transactional.id": name})
        self._topic = topic
        self._name = name
        self._group: Any = None
        self.mark = -1
        """The mark of the last transaction that was committed."""

    def open(self) -> None:
        """End what others of this name have begun, and find the mark. To be called first."""
        self._insist(self._client.init_transactions)
        try:
            with KafkaDirectory(self._servers, self._name) as directory:
                place = (self._topic, 0)
                self.mark = directory.committed([place]).get(place, -1)
                self._group = directory.group_metadata()
        except ServerUnreachableError as error:
            raise RestartableError(str(error)) from error

    def send_all(self, batches: Any, mark: int) -> None:
        """Send records and a mark; they are visible when this returns."""
        from confluent_kafka import KafkaException, TopicPartition

        client = self._client
        try:
            client.begin_transaction()
            for batch in batches:
                for record in batch:
                    self.send(self._topic, *record)
                self.check()
            marks = [TopicPartition(self._topic, 0, mark)]
            self._insist(
                lambda timeout: client.send_offsets_to_transaction(marks, self._group, timeout)
            )
            self._insist(client.commit_transaction)
        except KafkaException as error:
            # Also if it could be aborted and tried again: the job's restart does that.
            raise self._failed(error) from error
        self.mark = mark

    def _insist(self, call: Callable[[float], R]) -> R:
        """Call until it has worked; only so long that a job that ends is not held up."""
        from confluent_kafka import KafkaException

        for _ in range(int(PATIENCE / WAIT)):
            try:
                return call(WAIT)
            except KafkaException as error:
                if self._is_interrupted or not error.args[0].retriable():
                    raise self._failed(error) from error
        raise RestartableError(
            f"{self._servers.what}: Kafka at {self._servers.addresses} has not ended a "
            f"transaction within {PATIENCE:g} s"
        )

    def _failed(self, error: KafkaException) -> JetletError:
        kind = JetletError if self._is_interrupted else RestartableError
        return kind(
            f"{self._servers.what}: a transaction on topic {self._topic!r} of Kafka at "
            f"{self._servers.addresses} has failed: {error_text(error)}"
        )


def name_of(transaction: TransactionId) -> str:
    """The name of the producer, and of the group for its marks: the same in every attempt."""
    vertex = blake2b(transaction.vertex.encode(), digest_size=4).hexdigest()
    return f"jetlet-{transaction.run_id}-{vertex}-{transaction.writer}"


def mark_of(transaction: TransactionId) -> int:
    """Higher than that of any transaction which the same writer, in any attempt, made before."""
    return (int(transaction.attempt or 0) << 32) + transaction.number
