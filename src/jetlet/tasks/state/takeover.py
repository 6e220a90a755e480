"""Moving the state of an application to one that has another number of tasks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from jetlet.core.arguments import shortened
from jetlet.errors import InvalidArgumentError
from jetlet.tasks.assignment import TaskAssignment
from jetlet.tasks.envelope import Offset, SystemStreamPartition
from jetlet.tasks.state.container_storage import Checkpoint, CheckpointManager, StoreContext

if TYPE_CHECKING:
    from jetlet.tasks.application import TaskApplication


def take_over(
    new: TaskApplication, old: TaskApplication, task_of: Callable[[str, Any], int]
) -> None:
    """See :meth:`TaskApplication.take_over`; neither may run meanwhile."""
    with ExitStack() as stack:
        before, after = _open(old, stack), _open(new, stack)
        tasks = new.assignments()
        taken = next((task for task in tasks if after.read(task.name) is not None), None)
        if taken is not None:
            raise InvalidArgumentError(
                f"{new!r}.take_over({old!r}): task {taken.name!r} has a checkpoint of its own "
                f"already; give the new application another name, or another directory"
            )
        stores = [_stores(new, task, len(tasks), None, stack) for task in tasks]
        offsets: dict[SystemStreamPartition, Offset] = {}
        old_tasks = old.assignments()
        for each in old_tasks:
            saved = before.read(each.name)
            if saved is None:
                continue
            for name, prepared in saved.transactions.items():
                producer = old.systems[name].transactional_producer(old.name, each.name)
                try:
                    producer.recover([], prepared)
                finally:
                    producer.close()
            for partition, offset in saved.offsets.items():
                order = old.systems[partition.system].order
                # A partition that several tasks read has come as far as the one behind them all.
                offsets[partition] = min(offset, offsets.get(partition, offset), key=order)
            with ExitStack() as sources:
                opened = _stores(old, each, len(old_tasks), saved, sources)
                for name, store in opened.items():
                    for key, value in store.all():
                        stores[_checked(task_of(name, key), key, tasks)][name].put(key, value)
        for task, of_task in zip(tasks, stores, strict=True):
            flushed = {name: store.flush() for name, store in of_task.items()}
            positions = {name: at for name, at in flushed.items() if at is not None}
            reached = {key: offsets[key] for key in task.partitions if key in offsets}
            after.write(task.name, Checkpoint(reached, positions))
            for store in of_task.values():
                store.committed()


def _open(app: TaskApplication, stack: ExitStack) -> CheckpointManager:
    if app.checkpoints is None:
        raise InvalidArgumentError(
            f"{app!r} has no checkpoints, so nobody knows its state: write checkpoints=..."
        )
    manager = app.checkpoints.open(app.name)
    stack.callback(manager.close)
    return manager


def _stores(
    app: TaskApplication,
    task: TaskAssignment,
    task_count: int,
    saved: Checkpoint | None,
    stack: ExitStack,
) -> dict[str, Any]:
    opened: dict[str, Any] = {}
    for name, factory in app.stores.items():
        position = None if saved is None else saved.stores.get(name)
        opened[name] = factory.open(
            StoreContext(app.name, task.name, name, task.index, task_count, position)
        )
        stack.callback(opened[name].close)
    return opened


def _checked(index: object, key: object, tasks: list[TaskAssignment]) -> int:
    if type(index) is not int or not 0 <= index < len(tasks):
        raise InvalidArgumentError(
            f"take_over: task_of gave {shortened(index)} for {shortened(key)}; it is to give the "
            f"number of a task, from 0 to {len(tasks) - 1}"
        )
    return index
