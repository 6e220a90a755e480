"""Log records on the terminal, beside a live display and the job's own output."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LEVELS = ("debug", "info", "warning", "error")


class _Current:
    """Whatever ``sys.stdout`` or ``sys.stderr`` is when something is written to it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(sys, self._name), attribute)


@contextmanager
def logs_on_terminal(level: str | None) -> Iterator[None]:
    """Let log records of ``level`` (by default: warnings) reach the terminal.

    Where the user's file has set up logging, its handlers and levels stay as they are, unless a
    level is given. Handlers that hold on to a standard stream are made to look it up, so that a
    live display, which replaces the streams, is not written over.
    """
    root = logging.getLogger()
    previous = root.level
    added: logging.Handler | None = None
    if not root.handlers:
        added = logging.StreamHandler()
        added.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(added)
    if level is not None:
        root.setLevel(level.upper())
    bound = []
    for handler in _handlers():
        for name in ("stdout", "stderr"):
            if handler.stream is getattr(sys, name):
                handler.setStream(_Current(name))
                handler.addFilter(_is_not_outcome)
                bound.append((handler, name))
    try:
        yield
    finally:
        for handler, name in bound:
            handler.setStream(getattr(sys, name))
            handler.removeFilter(_is_not_outcome)
        root.setLevel(previous)
        if added is not None:
            root.removeHandler(added)


def _handlers() -> list[logging.StreamHandler[Any]]:
    known = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    return [
        handler
        for logger in known
        if isinstance(logger, logging.Logger)
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler)
    ]


def _is_not_outcome(record: logging.LogRecord) -> bool:
    """False for the record with a job's error, which the command itself tells in a better way."""
    args = record.args
    return not (
        record.name == "jetlet.job" and isinstance(args, tuple) and isinstance(args[0], Exception)
        if args
        else False
    )
