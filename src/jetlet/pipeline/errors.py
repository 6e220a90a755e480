"""DeadLetter: a record that could not be processed, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jetlet.core.arguments import error_text


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record that a source could not read: the item of its dead letter."""

    origin: str
    """The file, or the log, that it is from."""
    line: int | None
    """Number of its first line, from 1, where there are lines."""
    offset: int | None
    """Byte of the file that it begins at, number of the row, or offset in the log."""
    raw: Any
    """Its text as it stands there, or what there is instead."""


class Rejected(list[tuple[RawRecord, Exception]]):
    """A batch of records that could not be read, each with the reason."""

    def add(self, record: RawRecord, error: Exception) -> None:
        self.append((record, error))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What a dead-letter sink receives."""

    item: Any
    """The item on which a function failed; of a source, a :class:`RawRecord`."""
    stage: str
    """Name of the stage whose function failed."""
    error_type: str
    error: str

    @classmethod
    def of(cls, item: Any, error: BaseException, stage: str) -> DeadLetter:
        """The letter for an item on which ``error`` was raised."""
        return cls(item, stage, type(error).__name__, error_text(error))
