"""Which tasks there are, and which partitions each of them owns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jetlet.tasks.config import Grouping
from jetlet.tasks.envelope import SystemStreamPartition


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """A task before it is made."""

    name: str
    """The same in every run: checkpoints and stores go by it."""
    index: int
    """The task's index among all tasks of the application."""
    partitions: tuple[SystemStreamPartition, ...]


def assign_tasks(
    partitions: Iterable[SystemStreamPartition],
    grouping: Grouping,
    broadcast: Iterable[SystemStreamPartition] = (),
) -> list[TaskAssignment]:
    """Group partitions into tasks; those in ``broadcast`` go to all of them."""
    groups: dict[str, list[SystemStreamPartition]] = {}
    for each in sorted(partitions, key=lambda p: (p.partition, p)):
        name = f"partition {each.partition}" if grouping == "partition" else str(each)
        groups.setdefault(name, []).append(each)
    shared = tuple(sorted(broadcast))
    return [
        TaskAssignment(name, index, (*owned, *shared))
        for index, (name, owned) in enumerate(groups.items())
    ]
