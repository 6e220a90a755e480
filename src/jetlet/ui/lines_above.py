"""Standard streams beside a live display: lines that are printed go above it, unchanged."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


class _Unchanged:
    """Text that is put on the console as it is: not wrapped, not coloured, not cut."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        yield Segment(self._text)


class _LinesAbove:
    """Takes the place of a standard stream; whole lines go above the live display."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console = console
        self._stream = stream
        self._lock = threading.Lock()
        self._unfinished = ""

    def write(self, text: str) -> int:
        with self._lock:
            lines, newline, self._unfinished = (self._unfinished + text).rpartition("\n")
            if newline:
                self._console.print(_Unchanged(lines + newline), end="", soft_wrap=True)
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Lines are written at once, and the rest cannot be shown without its end."""

    def finish(self) -> None:
        """Write what did not end in a newline."""
        if self._unfinished:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def streams_above(console: Console) -> Iterator[None]:
    replaced = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if _is_same_terminal(stream, console.file):
            above = _LinesAbove(console, stream)
            replaced.append((name, stream, above))
            setattr(sys, name, above)
    try:
        yield
    finally:
        for name, stream, above in replaced:
            above.finish()
            setattr(sys, name, stream)


def _is_same_terminal(stream: Any, other: Any) -> bool:
    try:
        if not stream.isatty():
            return False
        return os.path.samestat(os.fstat(stream.fileno()), os.fstat(other.fileno()))
    except (AttributeError, OSError, io.UnsupportedOperation):
        return False
