"""LogBook: the latest log records of Jetlet in a process, as plain data."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Self

LOGGER: Final = "jetlet"
"""The logger above all of Jetlet's."""
MAX_LENGTH: Final = 2000
"""Characters of a text that are kept."""


class LogBook(logging.Handler):
    """Keeps the latest records while it is entered; safe from any thread."""

    def __init__(self, limit: int = 500, member: int | None = None) -> None:
        super().__init__()
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=limit)
        self._member = member

    @property
    def rows(self) -> tuple[Mapping[str, Any], ...]:
        """Time, level, logger, text and member of each, since the oldest."""
        self.acquire()
        try:
            return tuple(self._rows)
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
        except Exception:
            self.handleError(record)
            return
        self._rows.append(
            {
                "time_ms": round(record.created * 1000),
                "level": record.levelname.lower(),
                "logger": record.name,
                "member": self._member,
                "text": text[:MAX_LENGTH],
            }
        )

    def __enter__(self) -> Self:
        logging.getLogger(LOGGER).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(LOGGER).removeHandler(self)
