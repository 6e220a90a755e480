"""The error that a job ends with, made of what its execution knows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from jetlet.core.arguments import error_line
from jetlet.errors import (
    ItemFailedError,
    JobCancelledError,
    JobFailedError,
    kind_of_failure,
)
from jetlet.execution.execution_service import Execution
from jetlet.execution.outbox import shorten


def outcome(
    execution: Execution, known_as: Mapping[str, str] = MappingProxyType({})
) -> JobFailedError | JobCancelledError | None:
    """The error that a finished execution ends its job with, if any; its cause is chained.

    Vertices that are not the user's are named as those that they are ``known_as``.
    """
    job_name = execution.name
    if execution.was_cancelled:
        return JobCancelledError(f"job {job_name!r} was cancelled")
    failure = execution.failure
    if failure is None:
        return None
    tasklet = execution.failed_tasklet
    vertex = known_as.get(tasklet.vertex_name, tasklet.vertex_name) if tasklet else None
    item, step = execution.failed_item, None
    cause = cause_of(failure)
    kind, text = kind_of_failure(cause), error_line(cause)
    if isinstance(failure, ItemFailedError):
        item, step = shorten(failure.item), failure.step
    elif isinstance(failure, JobFailedError):
        # Whoever raised it knows better what failed, and perhaps that a restart may cure it.
        vertex, item = failure.vertex or vertex, failure.item or item
        kind, text = type(failure), str(failure).removeprefix(f"job {job_name!r} failed: ")
    where = f" in vertex {vertex!r}" if vertex else ""
    if step and step != vertex:
        where += f" (stage {step!r})"
    if item is not None:
        where += f" on item {item}"
    error = kind(f"job {job_name!r} failed{where}: {text}", vertex=vertex, item=item)
    error.__cause__ = cause
    return error


def cause_of(failure: BaseException) -> BaseException:
    """The error itself, without the wrapper that says where it happened."""
    if isinstance(failure, (ItemFailedError, JobFailedError)) and failure.__cause__ is not None:
        return failure.__cause__
    return failure
