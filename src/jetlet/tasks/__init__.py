"""Tasks: a job as messages and callbacks, on partitions that each task owns.

See :mod:`jetlet.tasks.task` for what a task is and :mod:`jetlet.tasks.application` for how it is
run. Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetlet.tasks import systems
    from jetlet.tasks.application import Input, Output, TaskApplication
    from jetlet.tasks.config import TaskConfig
    from jetlet.tasks.context import TaskContext
    from jetlet.tasks.envelope import IncomingEnvelope, SystemStream, SystemStreamPartition
    from jetlet.tasks.loop.chooser import ChooserContext, MessageChooser
    from jetlet.tasks.state import checkpoints, stores
    from jetlet.tasks.task import (
        AsyncStreamTask,
        ClosableTask,
        EndOfStreamTask,
        InitableTask,
        MessageCollector,
        Scope,
        StreamTask,
        TaskCallback,
        TaskCoordinator,
        TaskWrapper,
        WindowableTask,
    )

_HOMES = {
    "AsyncStreamTask": "task",
    "ChooserContext": "loop.chooser",
    "ClosableTask": "task",
    "EndOfStreamTask": "task",
    "IncomingEnvelope": "envelope",
    "InitableTask": "task",
    "Input": "application",
    "MessageChooser": "loop.chooser",
    "MessageCollector": "task",
    "Output": "application",
    "Scope": "task",
    "StreamTask": "task",
    "SystemStream": "envelope",
    "SystemStreamPartition": "envelope",
    "TaskApplication": "application",
    "TaskCallback": "task",
    "TaskConfig": "config",
    "TaskContext": "context",
    "TaskCoordinator": "task",
    "TaskWrapper": "task",
    "WindowableTask": "task",
}
_MODULES = {"checkpoints": "state.checkpoints", "stores": "state.stores", "systems": "systems"}

__all__ = [
    "AsyncStreamTask",
    "ChooserContext",
    "ClosableTask",
    "EndOfStreamTask",
    "IncomingEnvelope",
    "InitableTask",
    "Input",
    "MessageChooser",
    "MessageCollector",
    "Output",
    "Scope",
    "StreamTask",
    "SystemStream",
    "SystemStreamPartition",
    "TaskApplication",
    "TaskCallback",
    "TaskConfig",
    "TaskContext",
    "TaskCoordinator",
    "TaskWrapper",
    "WindowableTask",
    "checkpoints",
    "stores",
    "systems",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"jetlet.tasks.{_MODULES[name]}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jetlet.tasks' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"jetlet.tasks.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
