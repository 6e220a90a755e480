"""Tasks: a job as messages and callbacks, on partitions that each task owns.

See :mod:`jetlet.tasks.task` for what a task is and :mod:`jetlet.tasks.application` for how it is
run. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING, Final

from jetlet._lazy import lazy

if TYPE_CHECKING:
    from jetlet.tasks import systems
    from jetlet.tasks.application import Input, Output, TaskApplication
    from jetlet.tasks.config import TaskConfig
    from jetlet.tasks.context import TaskContext
    from jetlet.tasks.envelope import IncomingEnvelope, SystemStream, SystemStreamPartition
    from jetlet.tasks.loop.chooser import ChooserContext, MessageChooser
    from jetlet.tasks.state import changelog, checkpoints, serdes, stores
    from jetlet.tasks.state.container_storage import StoreContext
    from jetlet.tasks.task import (
        AsyncStreamTask,
        ClosableTask,
        DrainableTask,
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

_HOMES: Final = {
    "AsyncStreamTask": "jetlet.tasks.task",
    "ChooserContext": "jetlet.tasks.loop.chooser",
    "ClosableTask": "jetlet.tasks.task",
    "DrainableTask": "jetlet.tasks.task",
    "EndOfStreamTask": "jetlet.tasks.task",
    "IncomingEnvelope": "jetlet.tasks.envelope",
    "InitableTask": "jetlet.tasks.task",
    "Input": "jetlet.tasks.application",
    "MessageChooser": "jetlet.tasks.loop.chooser",
    "MessageCollector": "jetlet.tasks.task",
    "Output": "jetlet.tasks.application",
    "Scope": "jetlet.tasks.task",
    "StoreContext": "jetlet.tasks.state.container_storage",
    "StreamTask": "jetlet.tasks.task",
    "SystemStream": "jetlet.tasks.envelope",
    "SystemStreamPartition": "jetlet.tasks.envelope",
    "TaskApplication": "jetlet.tasks.application",
    "TaskCallback": "jetlet.tasks.task",
    "TaskConfig": "jetlet.tasks.config",
    "TaskContext": "jetlet.tasks.context",
    "TaskCoordinator": "jetlet.tasks.task",
    "TaskWrapper": "jetlet.tasks.task",
    "WindowableTask": "jetlet.tasks.task",
    "changelog": "jetlet.tasks.state.changelog",
    "checkpoints": "jetlet.tasks.state.checkpoints",
    "serdes": "jetlet.tasks.state.serdes",
    "stores": "jetlet.tasks.state.stores",
    "systems": "jetlet.tasks.systems",
}

__all__ = [
    "AsyncStreamTask",
    "ChooserContext",
    "ClosableTask",
    "DrainableTask",
    "EndOfStreamTask",
    "IncomingEnvelope",
    "InitableTask",
    "Input",
    "MessageChooser",
    "MessageCollector",
    "Output",
    "Scope",
    "StoreContext",
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
    "changelog",
    "checkpoints",
    "serdes",
    "stores",
    "systems",
]

__getattr__, __dir__ = lazy(__name__, _HOMES)
