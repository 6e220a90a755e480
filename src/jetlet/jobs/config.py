"""JobConfig: how a job is to be run."""

from __future__ import annotations

from dataclasses import dataclass

from jetlet.errors import InvalidArgumentError
from jetlet.execution.snapshot_context import GUARANTEES, NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """Settings of one job; all have defaults that suit a bounded pipeline."""

    name: str | None = None
    """By default the name of the pipeline or DAG."""
    default_parallelism: int | None = None
    """Processors per vertex and member where a stage does not say; default: one per worker."""
    processing_guarantee: str = NONE
    """``none``, ``at-least-once`` or ``exactly-once``."""
    snapshot_interval: float = 10.0
    """Seconds between two snapshots."""
    snapshot_dir: str | None = None
    """Where snapshots go."""

    def __post_init__(self) -> None:
        if self.processing_guarantee not in GUARANTEES:
            raise InvalidArgumentError(
                f"processing_guarantee must be one of {', '.join(GUARANTEES)}, "
                f"not {self.processing_guarantee!r}"
            )
        if self.default_parallelism is not None and self.default_parallelism < 1:
            raise InvalidArgumentError(
                f"default_parallelism must be at least 1, not {self.default_parallelism}"
            )
        if self.snapshot_interval <= 0:
            raise InvalidArgumentError(
                f"snapshot_interval is in seconds and positive, not {self.snapshot_interval}"
            )
