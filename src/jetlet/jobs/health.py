"""Health: whether a job does its work, as a supervisor such as Kubernetes asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jetlet.jobs.lifecycle import JobStatus

MISSED_INTERVALS: Final = 5
"""Intervals without a good snapshot after which a job is not healthy: a slow one takes some, and a
failed one is tried again."""


@dataclass(frozen=True, slots=True)
class Health:
    """What is said of a job at one moment."""

    is_ready: bool
    """True if it runs: on members, if all of them do."""
    is_healthy: bool
    """False if it has failed, or if it ought to take snapshots and none of them is good any more.
    Somebody should then start it again."""
    reason: str
    """One line, for people."""


def health_of(
    status: JobStatus,
    interval: float,
    seconds_without: float | None,
    snapshots: Mapping[str, Any],
) -> Health:
    """Judge by the status, the interval of snapshots, and the seconds since the last good one.

    A job that is suspended, or has not begun to run, is healthy and not ready. So is one that has
    ended as it should: nobody has to start it again.
    """
    if status is JobStatus.FAILED:
        return Health(is_ready=False, is_healthy=False, reason="it has failed")
    is_ready = status is JobStatus.RUNNING
    if seconds_without is not None and not status.is_final and status is not JobStatus.SUSPENDED:
        limit = MISSED_INTERVALS * interval + snapshots["last_ms"] / 1e3
        if seconds_without > limit:
            why = snapshots["last_error"] or "none has been completed"
            return Health(
                is_ready=is_ready,
                is_healthy=False,
                reason=f"no good snapshot for {seconds_without:.0f} s, though one is to come every "
                f"{interval:g} s: {why}",
            )
    reason = "it runs" if is_ready else f"it is {status.value}"
    return Health(is_ready=is_ready, is_healthy=True, reason=reason)
