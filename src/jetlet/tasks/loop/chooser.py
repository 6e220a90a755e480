"""Choosers: which of the partitions that have a message is next.

The event loop hands a chooser the next message of a partition (``update``) only when the one before
it was taken by its task, so a chooser holds one message of each partition at the most, and cannot
change the order within one. They stack: ``bootstrap(batching(priority(round-robin)))``, where each
layer is there only if something asks for it. See :func:`make_chooser`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from jetlet.tasks.envelope import IncomingEnvelope, Offset, SystemStreamPartition


class MessageChooser(Protocol):
    """Only used by the thread of the event loop; must not block."""

    def update(self, envelope: IncomingEnvelope) -> None:
        """A message can be chosen: the next one of its partition."""

    def choose(self) -> IncomingEnvelope | None:
        """Give one of the messages and forget it; ``None`` if there is none, or not yet."""


@dataclass(frozen=True, slots=True)
class ChooserContext:
    """What a chooser may know of the partitions that it gets messages of."""

    priorities: Mapping[SystemStreamPartition, int]
    """All partitions of the container; higher ones go first."""
    batch_size: int = 1
    bootstrap: Mapping[SystemStreamPartition, Offset] = field(default_factory=dict)
    """Partitions that are to be caught up with before others, and the offset to reach. There may be
    no message at it: a chooser that has a method ``seen(partition, offset)`` is told."""
    order: Callable[[SystemStreamPartition, Offset], Any] = lambda partition, offset: offset
    """A value that compares as the offsets of a partition follow each other."""


class RoundRobinChooser:
    """Each partition in its turn."""

    def __init__(self) -> None:
        self._waiting: deque[IncomingEnvelope] = deque()
        # One message of each partition, in the order they came: that is a round robin. Bound to
        # the queue itself, since it is called for each message.
        self.update: Callable[[IncomingEnvelope], None] = self._waiting.append

    def choose(self) -> IncomingEnvelope | None:
        return self._waiting.popleft() if self._waiting else None


class PriorityChooser:
    """Messages of the highest priority first; among equals, each partition in its turn."""

    def __init__(
        self,
        priorities: Mapping[SystemStreamPartition, int],
        make_tier: Callable[[], MessageChooser] = RoundRobinChooser,
    ) -> None:
        tiers = {p: make_tier() for p in sorted(set(priorities.values()), reverse=True)}
        self._tiers = tuple(tiers.values())
        self._tier_of = {partition: tiers[p] for partition, p in priorities.items()}

    def update(self, envelope: IncomingEnvelope) -> None:
        self._tier_of[envelope.partition].update(envelope)

    def choose(self) -> IncomingEnvelope | None:
        for tier in self._tiers:
            envelope = tier.choose()
            if envelope is not None:
                return envelope
        return None


class BatchingChooser:
    """Stays with a partition for a number of messages, as long as the next one is there."""

    def __init__(self, wrapped: MessageChooser, batch_size: int) -> None:
        self._wrapped = wrapped
        self._batch_size = batch_size
        self._partition: SystemStreamPartition | None = None
        self._next: IncomingEnvelope | None = None
        """The next message of the partition that it stays with."""
        self._taken = 0

    def update(self, envelope: IncomingEnvelope) -> None:
        if self._taken < self._batch_size and envelope.partition == self._partition:
            self._next = envelope
        else:
            self._wrapped.update(envelope)

    def choose(self) -> IncomingEnvelope | None:
        envelope = self._next
        if envelope is not None:
            self._next = None
            self._taken += 1
            return envelope
        envelope = self._wrapped.choose()
        if envelope is not None:
            self._partition = envelope.partition
            self._taken = 1
        return envelope


class BootstrapChooser:
    """Holds back all others until the bootstrap partitions are caught up with.

    One is, when all messages have been chosen up to what was its end at the start. At the end
    itself there need not be one.
    """

    def __init__(
        self,
        wrapped: MessageChooser,
        behind: Mapping[SystemStreamPartition, Offset],
        order: Callable[[SystemStreamPartition, Offset], Any],
    ) -> None:
        self._wrapped = wrapped
        self._order = order
        self._goals = {partition: order(partition, goal) for partition, goal in behind.items()}
        self._bootstrap = frozenset(self._goals)
        self._held: list[IncomingEnvelope] = []

    @property
    def is_caught_up(self) -> bool:
        """True once nothing is held back any more."""
        return not self._goals

    def update(self, envelope: IncomingEnvelope) -> None:
        if self._goals and envelope.partition not in self._bootstrap:
            self._held.append(envelope)
        else:
            self._wrapped.update(envelope)

    def choose(self) -> IncomingEnvelope | None:
        envelope = self._wrapped.choose()
        if envelope is not None and self._goals:
            partition = envelope.partition
            goal = self._goals.get(partition)
            if goal is not None and self._order(partition, envelope.offset) >= goal:
                self._caught_up(partition)
        return envelope

    def end_of_stream(self, partition: SystemStreamPartition) -> None:
        """There is nothing left to catch up with: what was missing has been deleted."""
        if partition in self._goals:
            self._caught_up(partition)

    def seen(self, partition: SystemStreamPartition, offset: Offset) -> None:
        """All messages up to this offset were chosen, though there may be none that has it."""
        goal = self._goals.get(partition)
        if goal is not None and self._order(partition, offset) >= goal:
            self._caught_up(partition)

    def _caught_up(self, partition: SystemStreamPartition) -> None:
        del self._goals[partition]
        if not self._goals:
            for held in self._held:
                self._wrapped.update(held)
            self._held.clear()


def make_chooser(context: ChooserContext) -> MessageChooser:
    """The layers that are needed, stacked."""
    chooser: MessageChooser = RoundRobinChooser()
    if len(set(context.priorities.values())) > 1:
        chooser = PriorityChooser(context.priorities)
    if context.batch_size > 1:
        chooser = BatchingChooser(chooser, context.batch_size)
    if context.bootstrap:
        chooser = BootstrapChooser(chooser, context.bootstrap, context.order)
    return chooser
