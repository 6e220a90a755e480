"""Every error that Jetlet raises on purpose.

    JetletError
    ├── PlanningError                 refused while a pipeline or DAG is built or planned
    │   ├── InvalidDagError           cycle, gap in ordinals, unknown vertex, duplicate name
    │   ├── InvalidArgumentError      a parameter that cannot work (also a ValueError)
    │   ├── MissingSinkError          a stage that nothing consumes
    │   ├── MissingTimestampsError    a window without timestamps
    │   ├── UnboundedInputError       a stage that would wait for the end of a stream
    │   ├── UnsupportedFeatureError   the chosen engine cannot do this
    │   ├── UnpicklableFunctionError  a function that cannot travel to another process
    │   ├── UnstableKeyError          a key without a hash that is stable across processes
    │   ├── OrderNotPreservableError  a step that would break preserve_order
    │   ├── InputNotFoundError        a source that names nothing
    │   ├── OutputExistsError         a sink that would destroy what is not its own
    │   ├── MissingDependencyError    an optional package (or Java) that is not installed
    │   └── ServerUnreachableError    a server that does not answer
    ├── ProcessorContractError        a processor broke the contract of the Core API
    ├── JobFailedError                a job ended with an error: vertex, item, cause
    │   └── RestartableError          ... one that a restart may cure (a lost member)
    ├── JobCancelledError             a job was cancelled while somebody waited for it
    ├── JobStateError                 what was asked of a job does not go with its status
    ├── SnapshotError                 a snapshot that cannot be written, read or used
    ├── ItemFailedError               user code failed on an item (wraps the cause on its way)
    ├── BadRecordError                one record that could not be read
    └── RemoteError                   stands for an error whose class cannot leave its process

A planning error carries the name of what is wrong and says what to write instead.
"""

from __future__ import annotations

import errno
import re
from typing import Final

__all__ = [
    "BadRecordError",
    "InputNotFoundError",
    "InvalidArgumentError",
    "InvalidDagError",
    "ItemFailedError",
    "JetletError",
    "JobCancelledError",
    "JobFailedError",
    "JobStateError",
    "MissingDependencyError",
    "MissingSinkError",
    "MissingTimestampsError",
    "OrderNotPreservableError",
    "OutputExistsError",
    "PlanningError",
    "ProcessorContractError",
    "RemoteError",
    "RestartableError",
    "ServerUnreachableError",
    "SnapshotError",
    "UnboundedInputError",
    "UnpicklableFunctionError",
    "UnstableKeyError",
    "UnsupportedFeatureError",
]


class JetletError(Exception):
    """Base of all errors that Jetlet raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: first the line that says what is wrong, then how it came."""
        import traceback

        lines = "".join(traceback.format_exception(self)).splitlines()
        return [f"{type(self).__name__}: {self}", "", *lines]


class PlanningError(JetletError):
    """A mistake that is visible before anything runs."""


class InvalidDagError(PlanningError):
    """The DAG is not a DAG, or its edges do not fit together."""


class InvalidArgumentError(PlanningError, ValueError):
    """A parameter that cannot work."""


class MissingSinkError(PlanningError):
    """A stage whose items nobody consumes."""


class MissingTimestampsError(PlanningError):
    """A stage that needs event time follows one that has none."""


class UnboundedInputError(PlanningError):
    """A stage that would wait for the end of a stream."""


class UnsupportedFeatureError(PlanningError):
    """The chosen engine does not have this feature."""


class UnpicklableFunctionError(PlanningError):
    """A function or object that cannot be sent to another process."""


class UnstableKeyError(PlanningError, TypeError):
    """A key whose type has no hash that is equal in every process."""


class OrderNotPreservableError(PlanningError):
    """A step that would reorder items under ``preserve_order=True``."""


class InputNotFoundError(PlanningError, FileNotFoundError):
    """A source that names nothing."""


class OutputExistsError(PlanningError, FileExistsError):
    """A sink that would destroy something it did not write."""


class MissingDependencyError(PlanningError, ImportError):
    """An optional dependency is not installed; the message says how to get it."""

    def __str__(self) -> str:
        """Which also says from where, if that is no index of packages."""
        from jetlet.versions import install_command

        text = super().__str__()
        found = re.search(r"pip install 'jetlet\[(\w+)\]'", text)
        command = install_command(found[1]) if found else ""
        if found is None or command == found[0]:
            return text
        return f"{text} (here, where Jetlet is from a checkout: {command})"


class ServerUnreachableError(PlanningError, ConnectionError):
    """A server that does not answer, or turns us away; the message names it."""


class ProcessorContractError(JetletError):
    """A processor broke the contract of the Core API."""


class JobFailedError(JetletError):
    """A job ended with an error.

    ``vertex`` names the vertex whose code failed, ``item`` is a shortened ``repr`` of the item at
    hand (or ``None``), and ``__cause__`` is the error itself.
    """

    def __init__(self, message: str, *, vertex: str | None = None, item: str | None = None) -> None:
        super().__init__(message)
        self.vertex = vertex
        self.item = item

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_job_failed, (type(self), self.args[0], self.vertex, self.item))


class RestartableError(JobFailedError):
    """A failure that a restart may cure, such as a member that died, or a disk that is full."""


_CURABLE: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.ESTALE,
        errno.EBUSY,
        errno.EAGAIN,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.ETIMEDOUT,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EPIPE,
        errno.ENOTCONN,
        errno.EHOSTUNREACH,
        errno.EHOSTDOWN,
        errno.ENETUNREACH,
        errno.ENETDOWN,
    }
)


def kind_of_failure(error: BaseException | None) -> type[JobFailedError]:
    """What a job fails with because of an error: :class:`RestartableError` if it may get better.

    So it is if the error, or what has led to it, is one of the operating system that says that
    something is full, busy or out of reach.
    """
    while error is not None:
        if isinstance(error, RestartableError | ConnectionError):
            return RestartableError
        if isinstance(error, OSError) and error.errno in _CURABLE:
            return RestartableError
        error = error.__cause__
    return JobFailedError


class JobCancelledError(JetletError):
    """The job was cancelled while somebody waited for its result."""


class JobStateError(JetletError):
    """What was asked of a job does not go with its status."""


class SnapshotError(JetletError):
    """A snapshot that cannot be written, is damaged, or does not fit the pipeline."""


class ItemFailedError(JetletError):
    """User code failed on an item; ``__cause__`` is the error itself.

    Raised by processors that work on batches, so that the engine can name the item and the step
    among several fused ones.
    """

    def __init__(self, item: object, step: str) -> None:
        super().__init__(f"{step} failed")
        self.item = item
        self.step = step


class BadRecordError(JetletError):
    """One record that could not be read."""


class RemoteError(JetletError):
    """An error of a class that could not be brought back; its text is that of the original."""


def _rebuild_job_failed(
    cls: type[JobFailedError], message: str, vertex: str | None, item: str | None
) -> JobFailedError:
    return cls(message, vertex=vertex, item=item)
