"""JobRecovery: what a job asks of whatever lets it go on where it was."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, ClassVar, Protocol


class Stats(Protocol):
    """What has come of the snapshots so far; safe to read from any thread."""

    taken: int

    @property
    def history(self) -> deque[dict[str, Any]]:
        """The latest of them: copy it, since more are appended meanwhile."""

    def values(self) -> Mapping[str, Any]:
        """As plain data."""


class Attempt(Protocol):
    """What an attempt begins with."""

    @property
    def epoch(self) -> int:
        """Higher than that of all attempts before."""

    @property
    def job_id(self) -> str:
        """Id of the job, over all its attempts."""

    @property
    def restored(self) -> object | None:
        """What it goes on from, if it does not begin anew."""


class JobRecovery(Protocol):
    """The snapshots of a job over all its attempts, or its micro-batches.

    Used by the job's thread; requests may come from any.
    """

    @property
    def stats(self) -> Stats: ...

    can_export: ClassVar[bool]
    """True if what it keeps can be kept under a name."""

    def seconds_without(self) -> float | None:
        """Seconds since the last good snapshot, if more are to come at an interval."""

    @property
    def attempt(self) -> Attempt | None:
        """The one that runs, or is about to."""

    def begin_attempt(self, job_id: str) -> Attempt:
        """Claim an epoch and find what to begin with; may block."""

    def reports(self) -> Iterable[tuple[str, Any]]:
        """What had been reported to the job's hooks by then."""

    def complete(self) -> None:
        """The job has completed; may block, never raises."""

    def rescale(self, members: int) -> None:
        """Have so many members at the next attempt; raises what speaks against it."""

    def terminate(self) -> Future[None]:
        """Let the attempt end with a snapshot; from any thread."""

    def export(self, name: str) -> Future[None]:
        """Keep the state under a name while the job runs; from any thread."""

    def export_last(self, name: str) -> None:
        """Keep the last snapshot under a name; may block."""
