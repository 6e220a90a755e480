"""DeadLetter: a record that could not be processed, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jetlet.core.arguments import error_text


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What a dead-letter sink receives."""

    item: Any
    stage: str
    """Name of the stage whose function failed."""
    error_type: str
    error: str

    @classmethod
    def of(cls, item: Any, error: BaseException, stage: str) -> DeadLetter:
        """The letter for an item on which ``error`` was raised."""
        return cls(item, stage, type(error).__name__, error_text(error))
