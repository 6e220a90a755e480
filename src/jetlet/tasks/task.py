"""What users write: tasks, and what a task is handed.

A task is any object with ``process`` (or ``process_async``); the base classes here are for those
who like their editor to know. It may have any of the hooks ``init``, ``window``,
``end_of_stream`` and ``close`` beside. A plain function of three arguments is a task too.

::

    class PageViews(StreamTask, InitableTask, WindowableTask):
        def init(self, context):
            self.counts = context.store("counts")

        def process(self, envelope, collector, coordinator):
            self.counts.put(envelope.key, (self.counts.get(envelope.key) or 0) + 1)

        def window(self, collector, coordinator):
            for page, count in self.counts.all():
                collector.send("log.counts", (page, count), key=page)

Calls of ``process``, ``window`` and the other hooks of one task never overlap, and neither does a
commit; each sees all that those before it did. Only with ``max_concurrency`` above 1 may several
messages of one task be under way at the same time.
"""

from __future__ import annotations

import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jetlet.errors import InvalidArgumentError

if TYPE_CHECKING:
    from jetlet.tasks.context import TaskContext
    from jetlet.tasks.envelope import IncomingEnvelope, SystemStream


class Scope(enum.Enum):
    """Whom a request to the coordinator is about."""

    CURRENT_TASK = "current task"
    ALL_TASKS = "all tasks in the container"


class MessageCollector(Protocol):
    """Takes what a task sends. Safe from any thread."""

    def send(
        self,
        stream: str | SystemStream,
        message: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Send a message to a stream, such as ``"log.counts"``.

        It goes to the given partition, or to that of its key; without either it is spread. It is
        on its way within a millisecond or so, and safe when the task is next committed.
        """


class TaskCoordinator(Protocol):
    """Takes what a task asks of its container. Safe from any thread."""

    def commit(self, scope: Scope = Scope.CURRENT_TASK) -> None:
        """Commit as soon as nothing of the task is in flight, and before it gets a new message."""

    def shutdown(self, scope: Scope = Scope.CURRENT_TASK) -> None:
        """End the container: when all of its tasks have asked for it, or for ``ALL_TASKS`` now.

        What is in flight is awaited, then every task is committed.
        """


class TaskCallback(Protocol):
    """How an asynchronous task says that it is done with a message: once, from any thread."""

    def complete(self) -> None:
        """The message is fully processed."""

    def fail(self, error: BaseException) -> None:
        """It cannot be processed: the job ends with this error, and no commit covers it."""


class StreamTask(ABC):
    """Processes a message at a time. With ``async def process`` it may await."""

    @abstractmethod
    def process(
        self,
        envelope: IncomingEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> Awaitable[None] | None:
        """Process a message. It is done when the call, or the coroutine, returns."""


class AsyncStreamTask(ABC):
    """Starts to process a message, and says later that it is done."""

    @abstractmethod
    def process_async(
        self,
        envelope: IncomingEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
        callback: TaskCallback,
    ) -> None:
        """Begin, and return soon. Always called by the same thread: that of the event loop."""


@runtime_checkable
class InitableTask(Protocol):
    """A task that makes ready; ``init`` may be ``async def`` as all hooks may."""

    def init(self, context: TaskContext) -> Awaitable[None] | None:
        """Called once, before any message; may block."""


@runtime_checkable
class ClosableTask(Protocol):
    """A task that has something to release."""

    def close(self) -> Awaitable[None] | None:
        """Called once at the end, also after a failure; may block."""


@runtime_checkable
class WindowableTask(Protocol):
    """A task that does something every ``window_interval``."""

    def window(
        self, collector: MessageCollector, coordinator: TaskCoordinator
    ) -> Awaitable[None] | None:
        """Called when none of the task's messages is in flight."""


@runtime_checkable
class DrainableTask(Protocol):
    """A task that does something before its container ends in an orderly way."""

    def drain(
        self, collector: MessageCollector, coordinator: TaskCoordinator
    ) -> Awaitable[None] | None:
        """Called once, after ``job.drain()`` or a shutdown, when all that the task has begun is
        done; then it is committed.
        """


@runtime_checkable
class EndOfStreamTask(Protocol):
    """A task that wants to know that its input has ended."""

    def end_of_stream(
        self, collector: MessageCollector, coordinator: TaskCoordinator
    ) -> Awaitable[None] | None:
        """Called once, after the last message of all its partitions is done with."""


class TaskWrapper:
    """Base of tasks around another one; hooks that are not overridden are the inner task's.

    ::

        class SkipBadRecords(TaskWrapper):
            def process(self, envelope, collector, coordinator):
                try:
                    self.task.process(envelope, collector, coordinator)
                except ValueError:
                    collector.send("log.bad-records", envelope.message)


        TaskApplication("orders", lambda: SkipBadRecords(Orders()), ...)
    """

    def __init__(self, task: Any) -> None:
        self.task = task

    def __getattr__(self, name: str) -> Any:
        # Only for what the wrapper does not have; "task" is missing while it is unpickled.
        if name == "task" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.task, name)


class TaskKind(enum.Enum):
    """How a task is called."""

    SYNC = "sync"
    CALLBACK = "callback"
    COROUTINE = "coroutine"

    @property
    def method(self) -> str:
        """The method that takes messages."""
        return "process_async" if self is TaskKind.CALLBACK else "process"


def kind_of(task: Any) -> TaskKind:
    """How to call a task; refuses what is not one."""
    if callable(getattr(task, "process_async", None)):
        return TaskKind.CALLBACK
    process = getattr(task, "process", None)
    if not callable(process):
        raise InvalidArgumentError(
            f"{task!r} is not a task: write a class with "
            f"process(self, envelope, collector, coordinator), or a function of these three"
        )
    return TaskKind.COROUTINE if inspect.iscoroutinefunction(process) else TaskKind.SYNC


class FunctionTask:
    """A plain function, or a coroutine function, as a task."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.process = function


def task_factory(what: Any) -> Callable[[], Any]:
    """Turn what a user gave as ``task`` into something that makes a task for each partition."""
    if isinstance(what, type):
        if not hasattr(what, "process") and not hasattr(what, "process_async"):
            raise InvalidArgumentError(
                f"{what.__name__} is not a task: give it a method "
                f"process(self, envelope, collector, coordinator)"
            )
        return what
    if hasattr(what, "process") or hasattr(what, "process_async"):
        raise InvalidArgumentError(
            f"{what!r} is one task, and each partition gets its own: write a function that makes "
            f"one, such as lambda: {type(what).__name__}(...)"
        )
    if not callable(what):
        raise InvalidArgumentError(
            f"{what!r} is not a task: write a class such as class MyTask(StreamTask), a function "
            f"of (envelope, collector, coordinator), or one without arguments that makes a task"
        )
    return _FunctionFactory(what) if _takes_messages(what) else what


def _takes_messages(function: Callable[..., Any]) -> bool:
    """True for (envelope, collector, coordinator), false for a function that makes tasks."""
    try:
        inspect.signature(function).bind(None, None, None)
    except (TypeError, ValueError):
        pass
    else:
        return True
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise InvalidArgumentError(
            f"{function!r}: write a function of (envelope, collector, coordinator), or one without "
            f"arguments that makes a task"
        ) from None
    except ValueError:  # a builtin that does not say what it takes
        pass
    return False


class _FunctionFactory:
    """Makes a task of a function; a class, so that it can be pickled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self) -> FunctionTask:
        return FunctionTask(self._function)
