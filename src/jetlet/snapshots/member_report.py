"""MemberReport: what a member has to say of its part in a snapshot. Plain data that can travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jetlet.snapshots.format import Chunk, StateFile


@dataclass(frozen=True, slots=True)
class EndedProcessor:
    """A processor that has completed: it is not run again when the job is restored."""

    vertex: str
    processor: int
    """The processor's index among all of its vertex in the whole job."""
    reports: bytes | None = None
    """What the processor told the submitting process, as a pickled list."""
    state: tuple[Chunk, ...] = ()
    """Where a source has ended. Other processors may be the ones to read on from there."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """Phase 1 is over on a member."""

    error: str | None = None
    file: StateFile | None = None
    """The file with the member's state; ``None`` if it has none."""
    vertices: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By vertex, the number of entries that the member has, and of bytes that were saved."""
    schema_versions: Mapping[str, int] = field(default_factory=dict)
    """Schema version of each vertex's state, where that is not 1."""
    definitions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What states are made by, by vertex, where that makes a difference."""
    slowest: str = ""
    """The processor that was the last to have saved."""
    ended: tuple[EndedProcessor, ...] = ()
    """Those of this member that have completed since its last report."""
    changes: StateFile | None = None
    """The file with what has changed of the member's state; ``None`` if nothing has."""
    since: int | None = None
    """The snapshot since which the member's files of changes have everything; ``None`` if it has
    no state that is saved by its changes."""
    chained: tuple[str, ...] = ()
    """The vertices whose state is saved by its changes."""
