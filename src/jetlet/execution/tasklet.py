"""Tasklet: a unit of cooperative work that a worker calls over and over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from jetlet.execution.progress_state import ProgressState


class Parkable(Protocol):
    """A worker that may be asleep."""

    def wake(self) -> None:
        """End its sleep, or prevent the next one. Called from any thread."""

    def call_ns(self, tasklet: Tasklet) -> int:
        """For how long a call of this tasklet has been under way. Called from any thread."""


class Waker:
    """Wakes whichever worker has the tasklet at the moment. Safe from any thread.

    It outlives moves between workers, so queues can hold on to it.
    """

    __slots__ = ("worker",)

    def __init__(self) -> None:
        self.worker: Parkable | None = None

    def wake(self) -> None:
        """See to it that the tasklet is called soon."""
        worker = self.worker
        if worker is not None:
            worker.wake()

    def call_ns(self, tasklet: Tasklet) -> int:
        """For how long a call of the tasklet, whose waker this is, has been under way."""
        worker = self.worker
        return 0 if worker is None else worker.call_ns(tasklet)


class Tasklet(ABC):
    """Called in turns with many others by a worker, by one thread at a time.

    ``call`` should return within a millisecond and never block, unless ``is_cooperative`` is
    false: then the tasklet has a thread to itself.
    """

    is_cooperative: bool = True
    name: str = "tasklet"
    vertex_name: str = ""
    """The vertex it works for, as named in errors; empty if it has none."""
    commits_when_closed: bool = False
    """Whether ``close`` makes lasting what was done, so that a cancelled job waits for it."""
    is_resting: bool = False
    """Set it when a call had nothing to do and nothing but a wake-up will change that soon."""

    def __init__(self) -> None:
        self.waker = Waker()

    def init(self) -> None:  # noqa: B027 - optional
        """Called once before the first call, off the cooperative threads; may block."""

    @abstractmethod
    def call(self) -> ProgressState:
        """Do a little work and say how it went."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release what ``init`` took; off the cooperative threads, may block, is idempotent."""

    def interrupt(self) -> None:  # noqa: B027 - optional
        """The job is ending: make a blocked ``call`` return soon. From any thread."""

    def is_holding(self) -> bool:
        """True if something that has come to it is still there; from any thread."""
        return False

    def drain(self) -> None:  # noqa: B027 - optional
        """Take nothing more from outside, and end when what was taken is done with. From any
        thread, at any time.
        """

    def record_call(self, elapsed_ns: int) -> None:  # noqa: B027 - optional
        """Told after each call that made progress, or took long, how long it was."""

    def metrics_rows(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """What it has counted, as (vertex, plain data); from any thread."""
        return ()

    def describe_failure(self) -> str | None:
        """After a call has raised: a short text for the item at hand."""
        return None
