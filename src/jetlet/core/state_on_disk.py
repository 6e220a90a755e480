"""StateOnDisk: where a vertex keeps the part of its state that memory has no room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["DISK", "MEMORY", "StateKind", "StateOnDisk"]

StateKind = Literal["memory", "disk"]
"""Where the state of a stage is kept."""
MEMORY: Final = "memory"
DISK: Final = "disk"


@dataclass(frozen=True, slots=True)
class StateOnDisk:
    """How much of its state may be in memory, and where the rest goes; picklable."""

    memory: int
    """Bytes for the state of all processors of one member that keep theirs on disk."""
    directory: str | None = None
    """By default that for temporary files."""
