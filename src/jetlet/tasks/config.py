"""TaskConfig: how the containers of an application run its tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from jetlet.errors import InvalidArgumentError
from jetlet.snapshots.context import AT_LEAST_ONCE, EXACTLY_ONCE

Grouping = Literal["partition", "stream-partition"]
_GROUPINGS = ("partition", "stream-partition")
TaskGuarantee = Literal["at-least-once", "exactly-once"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """Settings of one application. Intervals are in seconds."""

    thread_pool_size: int = 0
    """Threads per container for synchronous tasks: their ``process``, ``window`` and commits. With
    0, all of it happens on the thread of the event loop, which fits what computes; more fit what
    waits."""
    max_concurrency: int = 1
    """Messages that a task may have in flight at the same time. With 1 they are processed in order;
    with more they need not be, and the task guards what its calls share."""
    window_interval: float | None = None
    """How often ``window`` is called."""
    commit_interval: float | None = 60.0
    """How often each task is committed; ``None`` for only when it asks for it, and at the end."""
    async_commit: bool = False
    """Whether a commit may happen while messages are in flight, and messages begin while it is
    under way. Offsets stay exact. Stores may have more in them than the messages before the
    checkpoint put there: after a crash some are applied twice."""
    processing_guarantee: TaskGuarantee = "at-least-once"
    """``"at-least-once"``: after a failure some messages are sent again. ``"exactly-once"``: what a
    task sends is seen once the task is committed, as often as if nothing had failed. It needs
    checkpoints in a directory or a log, changelogs, and outputs in ``systems.log`` or
    ``systems.kafka``."""
    callback_timeout: float | None = None
    """How long a message may be in flight before the job fails. One that is processed on the thread
    of the event loop is reported when the call returns."""
    poll_interval: float = 0.05
    """How often to look for messages of partitions that had none, while others still have some."""
    grouping: Grouping = "partition"
    """``"partition"``: one task for each partition number, with that partition of every input.
    ``"stream-partition"``: one for each partition of each input."""
    queue_capacity: int = 10_000
    """Messages that wait in a container at the most."""
    batch_size: int = 1
    """Messages of one partition that the chooser takes in a row if it can."""
    chooser: Callable[..., Any] | None = None
    """Makes a chooser of your own, from a :class:`~jetlet.tasks.ChooserContext`; it then takes the
    place of the whole stack."""
    is_cooperative: bool = True
    """Whether the event loop shares a thread with all else that the engine runs. False gives it one
    of its own: for tasks, stores and checkpoints that make it wait."""

    def __post_init__(self) -> None:
        _check_count("thread_pool_size", self.thread_pool_size, 0)
        for name in ("max_concurrency", "queue_capacity", "batch_size"):
            _check_count(name, getattr(self, name), 1)
        for name in ("window_interval", "commit_interval", "callback_timeout"):
            seconds = getattr(self, name)
            if seconds is not None:
                _check_seconds(name, seconds, " or None")
        _check_seconds("poll_interval", self.poll_interval)
        if self.processing_guarantee not in (AT_LEAST_ONCE, EXACTLY_ONCE):
            raise InvalidArgumentError(
                f"TaskConfig(processing_guarantee={self.processing_guarantee!r}): write "
                f"{AT_LEAST_ONCE!r} or {EXACTLY_ONCE!r}"
            )
        if self.processing_guarantee == EXACTLY_ONCE and self.async_commit:
            raise InvalidArgumentError(
                "TaskConfig(async_commit=True): a commit beside messages in flight cannot tell "
                f"what they have sent: leave it out, or processing_guarantee={EXACTLY_ONCE!r}"
            )
        if self.grouping not in _GROUPINGS:
            raise InvalidArgumentError(
                f"TaskConfig(grouping={self.grouping!r}): write one of {', '.join(_GROUPINGS)}"
            )
        if self.chooser is not None and not callable(self.chooser):
            raise InvalidArgumentError(
                f"TaskConfig(chooser={self.chooser!r}): write a function that makes a chooser"
            )


def _check_count(name: str, value: Any, minimum: int) -> None:
    if type(value) is not int or value < minimum:
        raise InvalidArgumentError(
            f"TaskConfig({name}={value!r}): write a whole number of at least {minimum}"
        )


def _check_seconds(name: str, value: Any, otherwise: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidArgumentError(
            f"TaskConfig({name}={value!r}): write a number of seconds above 0{otherwise}"
        )
