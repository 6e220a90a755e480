"""TaskInstance: a task together with what is its own: context, stores, offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jetlet.tasks.collector import Collector
from jetlet.tasks.context import TaskContext
from jetlet.tasks.envelope import Offset, SystemStreamPartition
from jetlet.tasks.loop.message import OffsetTracker
from jetlet.tasks.state.container_storage import Checkpoint, CheckpointManager
from jetlet.tasks.task import TaskCoordinator, kind_of


class TaskInstance:
    """What a task needs to be run and committed. The hooks of the task may be missing."""

    def __init__(
        self,
        task: Any,
        context: TaskContext,
        offsets: Mapping[SystemStreamPartition, Offset | None],
        saved: Checkpoint | None,
        *,
        collector: Collector,
        coordinator: TaskCoordinator,
        checkpoints: CheckpointManager | None,
    ) -> None:
        self.name = context.task
        self.context = context
        self.collector = collector
        self.coordinator = coordinator
        self.kind = kind_of(task)
        self.process: Callable[..., Any] = getattr(task, self.kind.method)
        self.trackers = {key: OffsetTracker(last) for key, last in offsets.items()}
        self._task = task
        self._checkpoints = checkpoints
        self._committed = saved or Checkpoint({})
        self._is_shown = True
        """False while what a checkpoint names may not be shown yet."""
        self.committed: Mapping[SystemStreamPartition, Offset] = self._committed.offsets
        """The offset of the last message of each partition that a commit has covered."""

    def hook(self, name: str) -> Callable[..., Any] | None:
        """A method of the task, if it has it."""
        hook = getattr(self._task, name, None)
        return hook if callable(hook) else None

    def offsets(self) -> dict[SystemStreamPartition, Offset]:
        """Of the last message of each partition before which all are processed."""
        return {key: t.last for key, t in self.trackers.items() if t.last is not None}

    def commit(self, offsets: dict[SystemStreamPartition, Offset]) -> None:
        """Make everything up to the offsets safe, then say so; may block.

        The order matters: whatever happens in between, what the checkpoint says was processed has
        had its effect. The offsets were taken before anything else.
        """
        self._is_shown = False
        transactions = self.collector.prepare()
        stores = self.context.stores
        flushed = {name: store.flush() for name, store in stores.items()}
        positions = {name: at for name, at in flushed.items() if at is not None}
        checkpoint = Checkpoint(offsets, positions, transactions)
        is_news = self.committed != offsets
        if self._checkpoints is not None and checkpoint != self._committed:
            self._checkpoints.write(self.name, checkpoint)
            self._committed = checkpoint
        self.committed = offsets
        for store in stores.values():
            store.committed()
        self.collector.commit(transactions)
        self._is_shown = True
        listener = self.hook("committed")
        if is_news and listener is not None:
            listener(offsets)

    def forget_shown(self) -> None:
        """Nothing comes any more: let the checkpoint not name what is shown.

        Where it was sent to may have forgotten about it when the application runs again.
        """
        if self._checkpoints is None or not self._is_shown or not self._committed.transactions:
            return
        checkpoint = replace(self._committed, transactions={})
        self._checkpoints.write(self.name, checkpoint)
        self._committed = checkpoint
