"""Systems: where the streams of an application are. Users write ``systems.log("data")``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from jetlet.log.blocks import Serializer
from jetlet.tasks.systems.kafka_system import KafkaSystem
from jetlet.tasks.systems.log_system import LogSystem
from jetlet.tasks.systems.memory_system import InMemorySystem
from jetlet.tasks.systems.redis_system import RedisSystem

__all__ = [
    "InMemorySystem",
    "KafkaSystem",
    "LogSystem",
    "RedisSystem",
    "in_memory",
    "kafka",
    "log",
    "redis",
]


def in_memory() -> InMemorySystem:
    """Streams that live in this process, as long as this object does."""
    return InMemorySystem()


def log(
    directory: str | os.PathLike[str],
    *,
    keyed: bool = False,
    fsync: bool = False,
    serializer: Serializer | None = None,
) -> LogSystem:
    """Embedded logs: each stream is a log in the directory, made by whoever writes to it first.

    :param keyed: records are pairs ``(key, message)``; by default they are the messages alone, and
        a key only says which partition a message goes to.
    :param fsync: a commit waits for the disk, to survive a power failure as well as the end of the
        process.
    :param serializer: how messages are stored, as that of :class:`jetlet.log.Log`.
    """
    return LogSystem(directory, keyed=keyed, fsync=fsync, serializer=serializer)


def kafka(
    servers: str | Sequence[str],
    *,
    key: Any = bytes,
    value: Any = bytes,
    settings: Mapping[str, Any] | None = None,
) -> KafkaSystem:
    """Topics of Kafka: each stream is a topic, which is there already.

    :param servers: where brokers listen, such as ``"localhost:9092"``.
    :param key: what keys are: a type, such as ``str``, or a serde. By default bytes, as they come.
    :param value: what messages are. Use two systems for topics with different messages.
    :param settings: further settings of librdkafka, such as ``{"security.protocol": "SSL"}``.
    """
    return KafkaSystem(servers, key=key, value=value, settings=settings)


def redis(
    url: str,
    *,
    partitions: int = 1,
    key: Any = str,
    value: Any = None,
    maxlen: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RedisSystem:
    """Streams of Redis, which has no partitions of its own.

    :param url: such as ``"redis://localhost:6379"``.
    :param partitions: with more than one, those of a stream ``views`` are the streams ``views:0``,
        ``views:1`` and so on.
    :param value: what messages are: a type, such as ``int``, or a serde. They are then in the field
        ``value`` of an entry. By default messages are dicts of strings, the fields of entries.
    :param key: what keys are, which are in the field ``key`` if there is a ``value``.
    :param maxlen: about how many entries a stream keeps of what is sent to it.
    :param settings: further options of a connection of redis-py.
    """
    return RedisSystem(
        url, partitions=partitions, key=key, value=value, maxlen=maxlen, settings=settings
    )
