"""Kafka's servers: how to reach them, what is on them, and how their errors become ours.

:class:`KafkaServers` says where they are and makes clients of librdkafka, which do their work on
threads of their own. :class:`KafkaDirectory` answers questions about topics and offsets; it is for
where a job is submitted, since it waits for the answers. Records go through
:mod:`~jetlet.connectors.kafka.consumer` and :mod:`~jetlet.connectors.kafka.producer`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from jetlet.core.arguments import shortened
from jetlet.errors import (
    InputNotFoundError,
    InvalidArgumentError,
    MissingDependencyError,
    ServerUnreachableError,
)

if TYPE_CHECKING:
    import confluent_kafka

R = TypeVar("R")

Place = tuple[str, int]
"""A partition: its topic and its index."""

ANSWER_TIMEOUT: Final = 5.0
"""Seconds to wait for an answer before a server counts as unreachable."""
DEFAULT_GROUP: Final = "jetlet"
"""The client insists on a group, also where nothing is read from it or committed."""

_ADDRESS: Final = re.compile(r"([^\s,:/\[\]]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?")
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SINCE: Final = re.compile(r" \(after [^)]*\)$")

# What a user must not set, and what to write instead.
_RESERVED: Final = {
    "bootstrap.servers": "servers=...",
    "group.id": "group=...",
    "auto.offset.reset": "start=... and on_gap=...",
    "enable.partition.eof": "nothing: a stream does not end",
    "transactional.id": "processing_guarantee='exactly-once' in JobConfig or TaskConfig",
    "on_delivery": "nothing: a record that is not delivered fails the job",
    "logger": "nothing: see the loggers below 'jetlet'",
}


@dataclass(frozen=True, slots=True)
class KafkaServers:
    """Where to connect, and the settings of the client; checked, picklable if these are."""

    what: str
    """The function that it was given to, for messages."""
    addresses: str
    settings: Mapping[str, Any]

    @classmethod
    def of(
        cls, what: str, servers: str | Sequence[str], settings: Mapping[str, Any] | None = None
    ) -> KafkaServers:
        """Check what a user wrote; ``what`` names the function for messages."""
        given: Any = servers.split(",") if isinstance(servers, str) else servers
        if not isinstance(given, list | tuple) or not given or not all(map(_is_address, given)):
            raise InvalidArgumentError(
                f"{what}: servers={servers!r}: write 'host:port', or a list of these"
            )
        if settings is not None and not isinstance(settings, Mapping):
            raise InvalidArgumentError(
                f"{what}: settings={shortened(settings)}: write a dict of settings of librdkafka, "
                "such as {'security.protocol': 'SSL'}"
            )
        for name in settings or ():
            if name in _RESERVED:
                raise InvalidArgumentError(f"{what}: settings: {name}: write {_RESERVED[name]}")
        if find_spec("confluent_kafka") is None:
            raise MissingDependencyError(
                f"{what} needs confluent-kafka: pip install 'jetlet[kafka]'"
            )
        return cls(what, ",".join(map(str.strip, given)), dict(settings or {}))

    def consumer(self, ours: Mapping[str, Any], logger: logging.Logger) -> confluent_kafka.Consumer:
        """A new consumer. Where the user's settings differ from ``ours``, they win."""
        import confluent_kafka

        return self._made(confluent_kafka.Consumer, ours, logger)

    def producer(self, ours: Mapping[str, Any], logger: logging.Logger) -> confluent_kafka.Producer:
        """A new producer. Where the user's settings differ from ``ours``, they win."""
        import confluent_kafka

        return self._made(confluent_kafka.Producer, ours, logger)

    def _made(
        self, client: Callable[[dict[str, Any]], R], ours: Mapping[str, Any], logger: logging.Logger
    ) -> R:
        from confluent_kafka import KafkaException

        settings = {**ours, **self.settings, "bootstrap.servers": self.addresses, "logger": logger}
        try:
            return client(settings)
        except (KafkaException, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"{self.what}: settings: {error_text(error)}; write settings as librdkafka knows "
                "them"
            ) from error


class KafkaDirectory:
    """Knows topics and offsets. Each answer is waited for, up to :data:`ANSWER_TIMEOUT`."""

    def __init__(self, servers: KafkaServers, group: str | None = None) -> None:
        self._servers = servers
        self._complaints: list[Any] = []
        ours = {
            "group.id": group or DEFAULT_GROUP,
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
            "error_cb": self._complaints.append,
            "log_level": 0,  # what goes wrong is in the error that is raised
        }
        self._client = servers.consumer(ours, logging.getLogger(__name__))

    def places(self, topics: Sequence[str], *, must_exist: bool = True) -> list[Place]:
        """All partitions of the topics, each of which must be there unless it is a pattern."""
        found: list[Place] = []
        for topic in topics:
            if is_pattern(topic):
                there = self._ask(lambda: self._client.list_topics(timeout=ANSWER_TIMEOUT)).topics
                names = sorted(name for name in there if re.match(topic, name))
                found += [(name, i) for name in names for i in sorted(there[name].partitions)]
                continue
            try:
                found += [(topic, index) for index in self._partitions(topic)]
            except InputNotFoundError:
                if must_exist:
                    raise
        return list(dict.fromkeys(found))

    def _partitions(self, topic: str) -> list[int]:
        from confluent_kafka import KafkaError

        found = self._ask(lambda: self._client.list_topics(topic, ANSWER_TIMEOUT)).topics[topic]
        if found.error is None and found.partitions:
            return sorted(found.partitions)
        code = KafkaError.UNKNOWN_TOPIC_OR_PART if found.error is None else found.error.code()
        where = f"{self._servers.what}({topic!r}): Kafka at {self._servers.addresses}"
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION):
            raise InputNotFoundError(
                f"{where} has no such topic; check its name, or create it (kafka-topics --create "
                f"--topic {topic})"
            )
        raise ServerUnreachableError(f"{where} says: {found.error.str()}")

    def start_offsets(self, places: Sequence[Place]) -> list[int]:
        """The offset of each partition's first record that is there."""
        return [self.bounds(place)[0] for place in places]

    def end_offsets(self, places: Sequence[Place]) -> list[int]:
        """The offset that the next record of each partition gets."""
        return [self.bounds(place)[1] for place in places]

    def bounds(self, place: Place) -> tuple[int, int]:
        """The offset of the first record that is there, and that of the next to come."""
        from confluent_kafka import TopicPartition

        return self._ask(
            lambda: self._client.get_watermark_offsets(TopicPartition(*place), ANSWER_TIMEOUT)
        )

    def offsets_at(self, places: Sequence[Place], time_ms: int) -> list[int]:
        """The offset of each partition's first record at that time or later."""
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(*place, time_ms) for place in places]
        found = self._ask(lambda: self._client.offsets_for_times(asked, ANSWER_TIMEOUT))
        # A negative one means that there is none yet, so the next to come is the first.
        return [
            each.offset if each.offset >= 0 else self.bounds(place)[1]
            for place, each in zip(places, found, strict=True)
        ]

    def committed(self, places: Sequence[Place]) -> dict[Place, int]:
        """The offsets that the group has committed, of those partitions where it has."""
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(*place) for place in places]
        found = self._ask(lambda: self._client.committed(asked, ANSWER_TIMEOUT))
        return {
            place: each.offset
            for place, each in zip(places, found, strict=True)
            if each.offset >= 0
        }

    def group_metadata(self) -> Any:
        """What a producer needs in order to commit offsets of the group."""
        return self._client.consumer_group_metadata()

    def _ask(self, question: Callable[[], R]) -> R:
        from confluent_kafka import KafkaException

        try:
            return question()
        except KafkaException as error:
            self._client.poll(0)  # hands over the complaints
            reasons = {_SINCE.sub("", each.str()) for each in self._complaints}
            reason = "; ".join(sorted(reasons)[:3]) or error_text(error)
            raise ServerUnreachableError(
                f"{self._servers.what}: no answer from Kafka at {self._servers.addresses} within "
                f"{ANSWER_TIMEOUT:g} s ({reason}); check servers=... and that a broker listens "
                "there"
            ) from error

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_pattern(topic: str) -> bool:
    """Whether a topic stands for all that match it."""
    return topic.startswith("^")


def check_topic(what: str, topic: Any) -> str:
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise InvalidArgumentError(
            f"{what}({topic!r}): write the name of a topic: letters, digits, '.', '_' and '-'"
        )
    return topic


def error_text(error: BaseException) -> str:
    """What went wrong, without the class and number that the client puts around it."""
    text = getattr(error.args[0], "str", None) if error.args else None
    return str(text()) if callable(text) else str(error)


def _is_address(text: Any) -> bool:
    found = _ADDRESS.fullmatch(text.strip()) if isinstance(text, str) else None
    return found is not None and (found[2] is None or 0 < int(found[2]) < 65536)
