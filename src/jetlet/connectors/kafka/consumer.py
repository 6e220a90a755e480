"""KafkaConsumer: polls partitions of Kafka, each from its own offset, and knows how far it is.

It joins no group and commits nothing: where to begin is told to it, and how far it came is asked of
it. So what a job has read is in the job's own hands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from jetlet.connectors.kafka.client import DEFAULT_GROUP, KafkaServers, Place
from jetlet.errors import BadRecordError, JetletError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

OnGap = Literal["skip", "fail"]

BOUNDS_TIMEOUT: Final = 0.05
"""Seconds in a poll to ask where a partition begins and ends; else the next one asks again."""

_SETTINGS: Final = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",  # how to go on is for us to say
    # Behind the last record there may be markers of transactions, which only this tells of.
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    # A fast reader empties the queue sooner than after the second that the client would pause.
    "fetch.queue.backoff.ms": 20,
}


class KafkaRecord(NamedTuple):
    """A record of Kafka, with the key and the value deserialised."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """In milliseconds since 1970; of its creation or of its arrival, as the topic says."""
    key: Any
    value: Any
    """``None`` deletes the key, in a topic that is compacted."""
    headers: list[tuple[str, Any]]
    """Names, which may occur several times, and bytes (or ``None``)."""


class KafkaConsumer:
    """Used by one thread, from ``assign`` to ``close``; only the time given to ``poll`` is waited.

    :param group: the name by which the servers know it.
    :param on_gap: what to do when the records at an offset are gone: skip to the first that is
        there, with a warning, or raise.
    :param on_skip: told how many offsets were skipped.
    :param may_lose_partitions: whether somebody else takes care of partitions that are gone.
    """

    def __init__(
        self,
        servers: KafkaServers,
        *,
        group: str | None = None,
        on_gap: OnGap = "skip",
        on_skip: Callable[[int], None] = lambda count: None,
        may_lose_partitions: bool = False,
        logger: logging.Logger,
    ) -> None:
        self._servers = servers
        self._on_gap = on_gap
        self._on_skip = on_skip
        self._may_lose_partitions = may_lose_partitions
        self._logger = logger
        self.positions: dict[Place, int] = {}
        """The offset of the next record to poll."""
        self.ended: set[Place] = set()
        """Partitions whose end was reached in the last poll; `positions` says where that is."""
        self._out_of_range: set[Place] = set()
        self._client = servers.consumer({"group.id": group or DEFAULT_GROUP, **_SETTINGS}, logger)

    def assign(self, positions: Mapping[Place, int]) -> None:
        """Read these partitions from now on, each from its offset."""
        from confluent_kafka import TopicPartition

        self.positions = dict(positions)
        self._client.assign([TopicPartition(*place, i) for place, i in positions.items()])

    def add(self, place: Place, position: int) -> None:
        """Read one more partition."""
        from confluent_kafka import TopicPartition

        self.positions[place] = position
        self._client.incremental_assign([TopicPartition(*place, position)])

    def remove(self, place: Place) -> None:
        """Read a partition no more, if it was read."""
        from confluent_kafka import TopicPartition

        self._out_of_range.discard(place)
        if self.positions.pop(place, None) is not None:
            self._client.incremental_unassign([TopicPartition(*place)])

    def poll(self, limit: int, timeout: float) -> dict[Place, list[Message]]:
        """New records by partition, ``limit`` at the most; waits so many seconds for the first."""
        if self._out_of_range:
            self._close_gaps()
        if self.ended:
            self.ended = set()
        # Only for the first: `consume` would wait for as many as it was asked for.
        first = self._client.poll(timeout)
        if first is None:
            return {}
        found: dict[Place, list[Message]] = {}
        for message in (first, *self._client.consume(limit - 1, 0)) if limit > 1 else (first,):
            topic, partition = message.topic(), message.partition()
            error = message.error()
            if error is not None:
                self._observe(error, topic, partition, message.offset())
                continue
            assert topic is not None
            assert partition is not None
            place = topic, partition
            if place not in self.positions:
                continue  # it was given up
            try:
                found[place].append(message)
            except KeyError:
                found[place] = [message]
        for place, messages in found.items():
            offset = messages[-1].offset()
            assert offset is not None
            self.positions[place] = max(self.positions[place], offset + 1)
        return found

    def pause(self, places: Iterable[Place]) -> None:
        """Poll nothing from these partitions until they are resumed."""
        from confluent_kafka import TopicPartition

        self._client.pause([TopicPartition(*place) for place in places])

    def resume(self, places: Iterable[Place]) -> None:
        """Go on with them where they were."""
        from confluent_kafka import TopicPartition

        self._client.resume([TopicPartition(*place) for place in places])

    def known_end(self, place: Place) -> int | None:
        """Where a partition ended when it was last heard of. Never waits; from any thread."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            end = self._client.get_watermark_offsets(TopicPartition(*place), cached=True)[1]
        except (KafkaException, RuntimeError):  # closed
            return None
        return end if end >= 0 else None

    def close(self) -> None:
        self._client.close()

    # --- Errors -----------------------------------------------------------------------------

    def _observe(
        self, error: KafkaError, topic: str | None, partition: int | None, offset: int | None = None
    ) -> None:
        from confluent_kafka import KafkaError as Codes

        where = f"Kafka at {self._servers.addresses}"
        if topic is not None:
            where = f"{topic}[{partition}] of {where}"
        if error.code() == Codes._AUTO_OFFSET_RESET and topic is not None and partition is not None:
            self._out_of_range.add((topic, partition))
        elif error.code() == Codes._PARTITION_EOF:
            assert topic is not None
            assert partition is not None
            assert offset is not None
            place = topic, partition
            self.positions[place] = max(self.positions[place], offset)
            self.ended.add(place)
        elif self._may_lose_partitions and error.code() in (
            Codes.UNKNOWN_TOPIC_OR_PART,
            Codes._UNKNOWN_PARTITION,
            Codes._UNKNOWN_TOPIC,
        ):
            self._logger.warning("%s: %s", where, error.str())
        elif error.retriable() or error.code() in (Codes._TRANSPORT, Codes._ALL_BROKERS_DOWN):
            self._logger.warning("%s: %s; trying again", where, error.str())
        else:
            raise JetletError(f"{self._servers.what}: {where}: {error.str()}")

    def _close_gaps(self) -> None:
        """Go on where partitions begin, or end, whose records at our offset are not there."""
        from confluent_kafka import KafkaException, TopicPartition

        for place in sorted(self._out_of_range):
            topic, partition = place
            offset = self.positions[place]
            try:
                start, end = self._client.get_watermark_offsets(
                    TopicPartition(*place), BOUNDS_TIMEOUT
                )
            except KafkaException:
                continue  # asked again at the next poll
            what = (
                f"{topic}[{partition}]: records {offset} to {start - 1} are gone"
                if offset < start
                else f"{topic}[{partition}] ends at {end}, before offset {offset}"
            )
            if self._on_gap == "fail":
                raise BadRecordError(
                    f"{self._servers.what}: {what}; write on_gap='skip' to go on nevertheless"
                )
            go_on = start if offset < start else min(offset, end)
            self._logger.warning("%s; going on at %d", what, go_on)
            self._on_skip(max(0, go_on - offset))
            self.positions[place] = go_on
            self._out_of_range.discard(place)
            # Not by `seek`, which a partition that is out of range refuses.
            self._client.incremental_unassign([TopicPartition(*place)])
            self._client.incremental_assign([TopicPartition(*place, go_on)])
