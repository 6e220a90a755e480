"""Which partition of a stream each message goes to, for systems that leave it to us."""

from __future__ import annotations

from collections.abc import Sequence

from jetlet.core.partitioning import Partitioner
from jetlet.errors import InvalidArgumentError
from jetlet.tasks.envelope import OutgoingEnvelope


def _key(envelope: OutgoingEnvelope) -> object:
    return envelope.key


class Spreading:
    """Remembers the partitions of keys, and whose turn it is. For one thread at a time."""

    def __init__(self, stream: str, partition_count: int) -> None:
        self._stream = stream
        self._count = partition_count
        self._partitioner = Partitioner(_key, partition_count, name=f"key of {stream}")
        self._turn = -1

    def spread(self, batch: Sequence[OutgoingEnvelope]) -> dict[int, list[OutgoingEnvelope]]:
        """The messages by partition, in order: as they say, by key, or else each in turn."""
        if self._count == 1:
            ids = [0] * len(batch)
        else:
            ids = self._partitioner.partition_ids(batch)
        parts: dict[int, list[OutgoingEnvelope]] = {}
        for envelope, id in zip(batch, ids, strict=True):
            if envelope.partition is not None:
                id = self._checked(envelope.partition)
            elif envelope.key is None:
                self._turn = id = (self._turn + 1) % self._count
            parts.setdefault(id, []).append(envelope)
        return parts

    def _checked(self, partition: int) -> int:
        if partition not in range(self._count):
            raise InvalidArgumentError(
                f"collector.send to {self._stream!r}, partition={partition!r}: it has the "
                f"partitions from 0 to {self._count - 1}"
            )
        return partition
