"""What travels between systems and tasks: partitions, envelopes, and offsets in them."""

from __future__ import annotations

from typing import Any, NamedTuple

Offset = int | str
"""The place of one message in its partition, as its system writes it: a number in the embedded
log and in Kafka, an id such as ``"1700000000000-0"`` in Redis. Whoever keeps one (a checkpoint)
hands it back as it was."""


class SystemStream(NamedTuple):
    """A stream of a system: a topic, a log, a Redis stream."""

    system: str
    stream: str

    def __str__(self) -> str:
        return f"{self.system}.{self.stream}"


class SystemStreamPartition(NamedTuple):
    """One partition of a stream: what a task owns, and what an offset belongs to."""

    system: str
    stream: str
    partition: int

    @property
    def system_stream(self) -> SystemStream:
        """The stream that it is a part of."""
        return SystemStream(self.system, self.stream)

    def __str__(self) -> str:
        return f"{self.system}.{self.stream}[{self.partition}]"


class IncomingEnvelope:
    """A message on its way to a task, and where it came from."""

    __slots__ = ("key", "message", "offset", "partition", "timestamp")

    def __init__(
        self,
        partition: SystemStreamPartition,
        offset: Offset,
        message: Any,
        key: Any = None,
        timestamp: int | None = None,
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.message = message
        self.key = key
        self.timestamp = timestamp
        """Milliseconds since 1970, where the system knows."""

    @property
    def system_stream(self) -> SystemStream:
        """The stream that it came by."""
        return self.partition.system_stream

    def __repr__(self) -> str:
        return f"IncomingEnvelope({self.partition} at {self.offset}: {self.message!r:.100})"


class OutgoingEnvelope(NamedTuple):
    """A message that a task sends to a stream, and where in it."""

    message: Any
    key: Any = None
    partition: int | None = None
    """Where it goes in any case; by default its key decides, and without one it is spread."""
    timestamp: int | None = None
