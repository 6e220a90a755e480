"""Tuning: how the workers of a process work, where the defaults do not suit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetlet.errors import InvalidArgumentError
from jetlet.execution.idle import COOPERATIVE_BACKOFF, Backoff, check_backoff

if TYPE_CHECKING:
    from jetlet.execution.execution_service import ExecutionService

CALL_TARGET_NS = 1_000_000
"""A cooperative call should return within 1 ms."""
BATCH_CALL_TARGET_NS = 50_000_000
"""Calls of processors may take this long where nobody waits for single items."""
PACKET_LIMIT = 16 * 1024
"""Bytes that a packet should have at the most; it has more only if a single item does."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Made where a job is submitted; travels to its members and tasks."""

    workers: int | None = None
    """Cooperative workers of a process; by default as many as Python lets compute at a time."""
    backoff: Backoff = COOPERATIVE_BACKOFF
    call_target_ns: int = CALL_TARGET_NS
    """How long a call of a processor should take."""
    packet_size: int = PACKET_LIMIT
    """Bytes that a packet between two members should have at the most."""
    marker_period_ns: int = 0
    """Time between two latency markers of a source; 0 if there are none."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InvalidArgumentError(f"an engine needs at least one worker, not {self.workers}")
        check_backoff(self.backoff)

    def service(self, name: str) -> ExecutionService:
        """The workers."""
        # Imported when needed: settings of jobs have their defaults from here.
        from jetlet.execution.execution_service import ExecutionService

        return ExecutionService(self.workers, name=name, backoff=self.backoff)
