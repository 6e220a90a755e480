"""What a container keeps between two runs: checkpoints, and the stores of its tasks.

These are the seams; what is behind them is in :mod:`jetlet.tasks.state.checkpoints` and
:mod:`jetlet.tasks.state.stores`. A container starts with the checkpoints, then opens the stores; a
commit of a task takes its offsets, flushes the producers, flushes its stores and writes its
checkpoint, in this order, then tells the stores. The checkpoint has the position of each store's
changelog, so a store that is opened again has exactly what the messages before the checkpoint put
into it. A store without a changelog may be ahead of the checkpoint: at least once. With
transactions the checkpoint also says what was sent until then, which is shown behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from jetlet.tasks.envelope import Offset, SystemStreamPartition

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a task has come: per partition, the offset of the **last message processed**.

    A partition of which nothing was processed yet is not in it.
    """

    offsets: Mapping[SystemStreamPartition, Offset]
    stores: Mapping[str, int] = field(default_factory=dict)
    """The position of the changelog of each store that has one, as its ``flush`` returned it."""
    transactions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By system, what was prepared of the messages that are sent with it, by stream; plain values.
    They may have been shown already."""


class CheckpointManager(Protocol):
    """Reads and writes the checkpoints of one container's tasks, by the name of the task.

    Reading and writing may block. One task is written by one thread at a time, but several tasks
    may be at the same time.
    """

    def read(self, task: str) -> Checkpoint | None:
        """The latest one that was written whole; ``None`` if there is none."""

    def write(self, task: str, checkpoint: Checkpoint) -> None:
        """Write it; it is safe from the end of the process when this returns.

        Only after a whole new one is written may the one before it go.
        """

    def close(self) -> None:
        """Release everything; idempotent."""


class CheckpointFactory(Protocol):
    """What a user writes: where checkpoints are kept. Picklable, holds nothing open."""

    @property
    def is_exclusive(self) -> bool:
        """True if a task whose checkpoints are in use is not opened by another container."""

    def open(self, application: str) -> CheckpointManager:
        """Open them, in the container's process."""


class KeyValueStore(Protocol[K, V]):
    """The state of one task under one name. All methods may be called from any thread.

    A value that was put is seen by the next ``get`` at once. It need not be anywhere but in memory
    until ``flush`` returns.
    """

    def get(self, key: K) -> V | None:
        """The value, or ``None``."""

    def put(self, key: K, value: V) -> None:
        """Set a value; ``None`` is not one, and refused: use ``delete``."""

    def delete(self, key: K) -> None:
        """Remove a key, if it is there."""

    def range(self, start: K, stop: K) -> Iterator[tuple[K, V]]:
        """The entries from ``start`` up to, not including, ``stop``, by their serialised keys.

        Puts and deletes while it is iterated over do not disturb it, and may or may not be seen.
        """

    def all(self) -> Iterator[tuple[K, V]]:
        """All entries, in the same order."""

    def flush(self) -> int | None:
        """Make everything that was put and deleted safe from the end of the process.

        Called on commit, after the producers and before the checkpoint; nobody else uses the store
        meanwhile. Returns the position of its changelog, for the checkpoint; ``None`` if it has no
        changelog.
        """

    def committed(self) -> None:
        """The checkpoint with the position that ``flush`` returned is written.

        If there is no such call, the container ends and the store is opened again at the position
        of an earlier checkpoint.
        """

    def close(self) -> None:
        """Release everything; idempotent. What was not flushed may be lost."""


@dataclass(frozen=True, slots=True)
class StoreContext:
    """For whom a store is opened."""

    application: str
    task: str
    """The name of the task, the same in every run and on every machine."""
    name: str
    """The name of the store."""
    partition: int = 0
    """The task's number among all tasks of the application, from 0."""
    partition_count: int = 1
    """How many tasks there are, in all containers."""
    position: int | None = None
    """Of the store's changelog, by the task's checkpoint; ``None`` if that says nothing of it."""
    count: Callable[[str, int], None] = field(default=lambda name, amount: None)
    """Add to a counter of the task, shown in the job's metrics."""


class StoreFactory(Protocol):
    """What a user writes: a kind of store and its options. Picklable, holds nothing open."""

    def open(self, context: StoreContext) -> KeyValueStore[Any, Any]:
        """Open a task's store with all that was flushed before, restored from its changelog if it
        has one. May block for as long as that takes.
        """
