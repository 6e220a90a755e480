"""KafkaProducer: sends records to Kafka, each once and in order, and knows which were not taken.

Records go to a queue, from which the client sends them in batches on a thread of its own;
:meth:`KafkaProducer.flush` says when all have arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from jetlet.connectors.kafka.client import KafkaServers
from jetlet.errors import JetletError, RestartableError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

WAIT: Final = 0.05
"""Seconds between two looks at whether the job has ended, while the servers are waited for."""

_SETTINGS: Final = {
    "enable.idempotence": True,
    # The one of Kafka's own clients, so that theirs and ours put a key into the same partition.
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
}


class KafkaProducer:
    """Used by one thread, but for :meth:`interrupt`."""

    def __init__(
        self,
        servers: KafkaServers,
        logger: logging.Logger,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._servers = servers
        self._failure: KafkaError | None = None
        self._failed_topic: str | None = None
        self._is_interrupted = False
        ours = {**_SETTINGS, **settings, "on_delivery": self._on_delivery}
        self._client = servers.producer(ours, logger)

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        timestamp: int = 0,
        headers: Sequence[tuple[str, Any]] | None = None,
        partition: int = -1,
    ) -> None:
        """Put a record into the queue; waits while it is full. A ``timestamp`` of 0 is now.

        With a ``partition`` of -1 the key decides.

        Raises ``TypeError`` or ``KafkaException`` for a record that can never be sent.
        """
        while True:
            try:
                # The client does not take None for "no headers".
                if headers is None:
                    self._client.produce(topic, value, key, partition, timestamp=timestamp)
                else:
                    self._client.produce(
                        topic, value, key, partition, timestamp=timestamp, headers=list(headers)
                    )
                return
            except BufferError:
                self._client.poll(WAIT)
                self.check()

    def check(self) -> None:
        """Raise if a record was not delivered, or if the job is ending; does not wait."""
        self._client.poll(0)
        self._raise_failure()

    def flush(self, timeout: float = WAIT) -> bool:
        """Wait for so many seconds until all records have arrived; true if they have."""
        left = self._client.flush(timeout)
        self._raise_failure()
        return left == 0

    def interrupt(self) -> None:
        """Make :meth:`send` and :meth:`flush` raise rather than wait any longer."""
        self._is_interrupted = True

    def close(self) -> None:
        """Release everything; what has not been sent is dropped."""
        self._client.purge()
        self._client.flush(0)  # hears of what was purged
        del self._client  # which ends its threads

    def _on_delivery(self, error: KafkaError | None, message: Message[Any, Any]) -> None:
        """Called by the client within a call of ours, for what was not delivered."""
        if error is not None and self._failure is None:
            self._failure = error
            self._failed_topic = message.topic()

    def _raise_failure(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        failure = self._failure
        if failure is not None:
            is_late = failure.code() == KafkaError._MSG_TIMED_OUT
            raise (RestartableError if is_late else JetletError)(
                f"{self._servers.what}: a record was not delivered to topic {self._failed_topic!r} "
                f"of Kafka at {self._servers.addresses}: {failure.str()}"
            ) from KafkaException(failure)
        if self._is_interrupted:
            raise JetletError(f"{self._servers.what}: the job ended before all was delivered")
